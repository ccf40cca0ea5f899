"""A control: nearness of hand and object, without a model."""

from dataclasses import dataclass

from torch import Tensor

from butfor.envs.facts import EnvFacts
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

    def __init__(self, config: NearnessConfig, table: TransitionTable, facts: EnvFacts) -> None:
        """`facts` of the environment contain the columns of both positions."""
        super().__init__(table)
        self.config = config
        self.facts = facts

    def score(self, slots: Tensor, generators: Generators = ()) -> None:
        """Score every state of the episodes in these slots."""
        obs = self.replay.observation[:, slots, :-1]  # [R, n, T, D]
        nearness = (-self.facts.distance(obs) / self.config.length).exp()
        self.replay.score[:, slots] = nearness * self.replay.valid()[:, slots]
