"""A control: the exact label of influence, which the simulator finds by trying other actions."""

from torch import Tensor

from butfor.models.networks import Generators
from butfor.training.signals.fixed import FixedSignal


class OracleSignal(FixedSignal):
    """The exact label, 1 where the action influences the object, else 0: an upper bound for learned signals."""

    def score(self, slots: Tensor, generators: Generators = ()) -> None:
        """Copy the labels that the environment reported for the episodes in these slots."""
        assert self.replay.label is not None
        self.replay.score[:, slots] = (self.replay.label[:, slots] & self.replay.valid()[:, slots]).float()
