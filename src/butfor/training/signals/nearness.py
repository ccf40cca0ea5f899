"""A control: nearness of hand and object, without a model."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from butfor.models.networks import Generators
from butfor.runs.config import check_positive
from butfor.training.signals.fixed import FixedSignal
from butfor.training.signals.transitions import TransitionTable


@dataclass(frozen=True)
class NearnessConfig:
    """How fast the score falls with the distance."""

    length: float = 0.1
    """distance at which the score is 1 / e, in the units of the observation"""

    def __post_init__(self) -> None:
        check_positive(self, "length")


class NearnessSignal(FixedSignal):
    """exp(-distance / length) between the agent's position and the object's in each state."""

    def __init__(
        self, config: NearnessConfig, table: TransitionTable, agent: Sequence[int], thing: Sequence[int]
    ) -> None:
        """`agent` and `thing` are the columns of the positions in an observation, in the same order."""
        super().__init__(table)
        self.config = config
        self.agent = list(agent)
        self.thing = list(thing)

    def score(self, slots: Tensor, generators: Generators = ()) -> None:
        """Score every state of the episodes in these slots."""
        obs = self.replay.observation[:, slots, :-1]  # [R, n, T, D]
        distance = (obs[..., self.agent] - obs[..., self.thing]).norm(dim=-1)
        self.replay.score[:, slots] = (-distance / self.config.length).exp() * self.replay.valid()[:, slots]
