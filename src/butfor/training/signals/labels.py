"""Controls: what the simulator knows, the exact label of influence or contact of hand and object."""

from torch import Tensor

from butfor.models.networks import Generators
from butfor.training.signals.fixed import FixedSignal


class LabelSignal(FixedSignal):
    """1 where the label that the environment reports is true, else 0.

    The exact label, found by trying other actions, is an upper bound for learned signals.
    """

    def score(self, slots: Tensor, generators: Generators = ()) -> None:
        """Copy the labels that the environment reported for the episodes in these slots."""
        assert self.replay.label is not None
        self.replay.score[:, slots] = (self.replay.label[:, slots] & self.replay.valid()[:, slots]).float()
