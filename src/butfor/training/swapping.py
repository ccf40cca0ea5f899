"""Transitions that never happened, drawn beside those of the replay buffer: an object of another episode.

What is possible is decided by `butfor.rollouts.swaps`, with a promised share of impossible ones. The agent then sees
the recorded agent with an object of another episode. If the goal is about that object, achieved and desired goals are
those of its own episode, hindsight included.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from butfor.envs.facts import EnvFacts
from butfor.rollouts.episodes import Steps
from butfor.rollouts.swaps import AugmentOptions, augment_recordings
from butfor.runs.config import check_between, check_least
from butfor.training.replay import ReplayBuffer

NOISE = 2  # uniform numbers per sample: whether, and which swap


@dataclass(frozen=True)
class SwapConfig:
    """Transitions with an entity of another episode (not in the paper)."""

    share: float = 0.0
    """share of the drawn transitions in which an object that nothing acts on is that of another episode; 0: none"""
    false_discovery_rate: float = 0.05
    """largest expected share of impossible transitions among these"""
    candidates: int = 20_000
    """swaps that are proposed for each seed; those that may be impossible are left out"""
    newest: int = 400
    """episodes, the newest ones, that are swapped and learned from"""
    growth: float = 2.0
    """what is possible is learned again when the episodes have become this many times as many"""
    updates: int = 1000
    """of the networks that learn how objects move by themselves, all seeds together"""

    def __post_init__(self) -> None:
        check_between(self, 0, 1, "share")
        check_between(self, 0, 1, "false_discovery_rate", open_end=True)
        check_least(self, 1, "candidates", "updates")
        check_least(self, 4, "newest")
        if not self.growth > 1:
            raise ValueError(f"SwapConfig.growth must be above 1; got {self.growth}.")

    @property
    def noise(self) -> int:
        """Uniform numbers per sample."""
        return NOISE if self.share else 0


class Drawn(NamedTuple):
    """Which samples of a batch are swapped, and where their object comes from; [R, B] each but the columns."""

    swapped: Tensor
    base: tuple[Tensor, Tensor]  # episode and time of all but the object
    donor: tuple[Tensor, Tensor]  # episode and time of the object
    columns: Tensor  # [R, B, D]: those of the object
    of_goal: Tensor  # the goal is about the object


class Swapper:
    """Possible swaps of R replicas, as places in the replay buffer."""

    def __init__(self, config: SwapConfig, replay: ReplayBuffer, facts: EnvFacts) -> None:
        """Allocate the table of swaps."""
        self.config = config
        self.replay = replay
        self.facts = facts
        device = replay.length.device
        obs_size = replay.observation.shape[-1]
        self.names = list(facts.bodies)
        columns = [[column in own for column in range(obs_size)] for own in facts.bodies.values()]
        self.columns = torch.tensor(columns, device=device)  # [J, D]
        of_goal = [set(facts.object_position) <= set(own) for own in facts.bodies.values()]
        self.of_goal = torch.tensor(of_goal, device=device)  # [J]
        # base episode, base time, donor episode, donor time, entity
        self.table = torch.zeros(replay.replicas, config.candidates, 5, dtype=torch.int64, device=device)
        self.count = torch.zeros(replay.replicas, dtype=torch.int64, device=device)
        self.learned_at = 0  # episodes stored when this was last learned

    def is_due(self) -> bool:
        """Whether to learn again what is possible."""
        return self.replay.stored >= max(1, self.config.growth * self.learned_at)

    def learn(self, seeds: list[int]) -> None:
        """Decide which swaps of the newest episodes are possible, for each replica by itself."""
        replay = self.replay
        slots = replay.slots(self.config.newest)
        self.learned_at = replay.stored
        config = self.config
        options = AugmentOptions(
            config.candidates, config.false_discovery_rate, agent=self.names[0], updates=config.updates
        )
        recordings, places = zip(*(self._steps(replica, slots) for replica in range(len(seeds))), strict=True)
        made = augment_recordings(recordings, self.facts.bodies, options, seeds, self.table.device)
        for replica, ((kept, _, _), place) in enumerate(zip(made, places, strict=True)):
            found = np.concatenate([place[kept.base], place[kept.donor], kept.entity[:, None]], 1)
            self.table[replica, : len(found)] = torch.as_tensor(found).to(self.table.device)
            self.count[replica] = len(found)

    def _steps(self, replica: int, slots: Tensor) -> tuple[Steps, Any]:
        """The episodes of one replica in sequence, and the slot and time [N, 2] of each step."""
        length = self.replay.length[replica, slots].cpu().numpy()
        observation = self.facts.to_absolute(self.replay.observation[replica, slots].double().cpu().numpy())
        action = self.replay.action[replica, slots].double().cpu().numpy()
        time = np.arange(self.replay.steps + 1)
        states = observation[time <= length[:, None]]
        taken = time[:-1] < length[:, None]
        episode, at = np.nonzero(taken)
        return Steps(states, action[taken], length), np.stack([slots.cpu().numpy()[episode], at], 1)

    def draw(self, noise: Tensor, episode: Tensor, time: Tensor) -> Drawn:
        """Choose by uniform numbers [R, B, 2] which samples are swapped; the others are at this episode and time."""
        rows = self.replay.rows
        place = (noise[..., 1] * self.count[:, None]).long().clamp(max=self.table.shape[1] - 1)
        found = self.table[rows, place]  # [R, B, 5]
        swapped = (noise[..., 0] < self.config.share) & (self.count[:, None] > 0)
        at = [torch.where(swapped, found[..., part], (episode, time)[part % 2]) for part in range(4)]
        entity = found[..., 4]
        return Drawn(
            swapped=swapped,
            base=(at[0], at[1]),
            donor=(at[2], at[3]),
            columns=self.columns[entity] & swapped[..., None],
            of_goal=self.of_goal[entity] & swapped,
        )

    def mix(self, base: Tensor, donor: Tensor, columns: Tensor) -> Tensor:
        """Observations [R, B, D] with the object's columns of the donor."""
        base, donor = self.facts.to_absolute(base), self.facts.to_absolute(donor)
        mixed: Tensor = self.facts.from_absolute(torch.where(columns, donor, base))
        return mixed

    def state(self) -> dict[str, Any]:
        """What a checkpoint must contain."""
        return {"table": self.table.clone(), "count": self.count.clone(), "learned_at": self.learned_at}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned."""
        self.table.copy_(state["table"])
        self.count.copy_(state["count"])
        self.learned_at = state["learned_at"]
