"""Controls: scores without a model, which are read off each episode once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from butfor.models.networks import Generators
from butfor.runs.config import check_least, check_positive
from butfor.training.signals.transitions import TransitionTable


class FixedSignal:
    """What the controls share: there is nothing to train, to save or to restore. A subclass implements `score`."""

    learns = False

    def __init__(self, table: TransitionTable) -> None:
        self.table = table
        self.replay = table.replay

    def fit(self, batches: int, generators: Generators, fast: bool = True) -> Tensor:
        return torch.zeros(self.replay.replicas, device=self.table.device)

    def stale(self) -> Tensor:
        return self.replay.slots(0)

    def action_model(self) -> None: ...

    def prepare(self, fast: bool) -> None: ...

    def save(self, folder: Path, seed: int) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}  # the scores are part of the replay buffer

    def restore(self, state: Mapping[str, Any]) -> None: ...


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


class OracleSignal(FixedSignal):
    """The exact label, 1 where the action influences the object, else 0: an upper bound for learned signals."""

    def score(self, slots: Tensor, generators: Generators = ()) -> None:
        """Copy the labels that the environment reported for the episodes in these slots."""
        assert self.replay.label is not None
        self.replay.score[:, slots] = (self.replay.label[:, slots] & self.replay.valid()[:, slots]).float()
