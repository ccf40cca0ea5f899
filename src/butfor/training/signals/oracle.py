"""A control: the exact label of influence, which the simulator gives by trying other actions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from butfor.training.signals.fixed import FixedSignal


class OracleSignal(FixedSignal):
    """1 in states in which the action influences the object, else 0: an upper bound for learned signals."""

    def score(self, slots: Tensor, generators: Sequence[torch.Generator] = ()) -> None:
        """Copy the labels that the environment reported for the episodes in these slots."""
        assert self.replay.label is not None
        self.replay.score[:, slots] = (self.replay.label[:, slots] & self.replay.valid()[:, slots]).float()
