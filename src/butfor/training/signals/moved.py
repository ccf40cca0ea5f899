"""A control: "the object moved", without a model."""

from dataclasses import dataclass

from torch import Tensor

from butfor.models.networks import Generators
from butfor.runs.config import check_least
from butfor.training.signals.fixed import FixedSignal
from butfor.training.signals.transitions import TransitionTable


@dataclass(frozen=True)
class MovedConfig:
    """When an entity counts as moved."""

    threshold: float = 0.005
    """smallest change of a column in scaled units: 0.1 mm in the Fetch environments"""

    def __post_init__(self) -> None:
        check_least(self, 0, "threshold")


class MovedSignal(FixedSignal):
    """1 where a step changes a column of an entity by more than the threshold, else 0."""

    def __init__(self, config: MovedConfig, table: TransitionTable) -> None:
        super().__init__(table)
        self.config = config

    def score(self, slots: Tensor, generators: Generators = ()) -> None:
        """Score every transition of the episodes in these slots."""
        _, change, valid = self.table.episodes(slots)  # [R, n, T, d]
        moved = (change.abs() > self.config.threshold).any(-1)
        self.replay.score[:, slots] = (moved & valid).float()
