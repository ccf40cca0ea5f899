"""How far the training episodes of each seed get: touched, lifted, success; and what limits an agent that gets far.

These numbers explain a learning curve: which of the steps towards success is missing, whether the critic's values are
those that the policy reaches, and what the relay does.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Played
from butfor.training.exploration import ExploreConfig
from butfor.training.goal_env import GoalEnv
from butfor.training.relay import RelayConfig

TOUCHED = 2e-3  # metres from where the object was at first; settling on the table moves it less
LIFTED = 0.03  # metres above where it was at first


class Phases:
    """Counts of the training episodes since the last report, and the first episode of each kind, by replica."""

    def __init__(self, goal_env: GoalEnv, replicas: int) -> None:
        self.goal_env = goal_env
        self.replicas = replicas
        self.episodes = 0  # since the last report
        self.count: dict[str, NDArray[np.int64]] = {}  # [R]: how many of these
        self.first: dict[str, NDArray[np.int64]] = {}  # [R]: number of the first one, from 1; 0: none yet

    def add(self, before: int, played: Played) -> None:
        """Count episodes [R x W] of which each replica had played `before`."""
        found = phases_of(self.goal_env, played.episodes) | {"success": self.goal_env.succeeded(played)}
        for name, flat in found.items():
            flags = flat.reshape(self.replicas, -1)  # [R, W]
            self.count[name] = self.count.get(name, np.zeros(self.replicas, np.int64)) + flags.sum(1)
            first = np.where(flags.any(1), before + 1 + flags.argmax(1), 0)
            earlier = self.first.get(name, np.zeros(self.replicas, np.int64))
            self.first[name] = np.where(earlier > 0, earlier, first)
        self.episodes += len(played.episodes) // self.replicas

    def report(self) -> list[dict[str, float]]:
        """Shares of the episodes since the last report, and first episodes, one row per replica."""
        shares = {f"training_{name}": count / max(self.episodes, 1) for name, count in self.count.items()}
        columns = shares | {f"first_{name}": first for name, first in self.first.items()}
        self.episodes = 0
        self.count = {name: np.zeros_like(count) for name, count in self.count.items()}
        return [{name: float(values[r]) for name, values in columns.items()} for r in range(self.replicas)]

    def state(self) -> dict[str, Any]:
        """What a checkpoint must contain."""
        kept = {"count": self.count, "first": self.first}
        plain = {key: {name: values.tolist() for name, values in found.items()} for key, found in kept.items()}
        return {"episodes": self.episodes, **plain}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned."""
        self.episodes = state["episodes"]
        self.count = {name: np.array(values, np.int64) for name, values in state["count"].items()}
        self.first = {name: np.array(values, np.int64) for name, values in state["first"].items()}


def phases_of(goal_env: GoalEnv, episodes: Episodes) -> dict[str, NDArray[np.bool_]]:
    """In which episodes [E] the object was touched and, on a table, lifted; empty where nothing is known about it."""
    facts = goal_env.facts
    if facts is None:
        return {}
    place = episodes.observation[..., list(facts.object_position)]  # [E, T + 1, 3]
    moved = place - place[:, :1]
    real = np.concatenate([np.ones((len(episodes), 1), bool), episodes.valid], axis=1)
    found = {"touched": ((np.linalg.norm(moved, axis=-1) > TOUCHED) & real).any(1)}
    if facts.table is not None:
        found["lifted"] = ((moved[..., -1] >= LIFTED) & real).any(1)
    return found


def reached_value(goal_env: GoalEnv, episodes: Episodes, discount: float) -> NDArray[np.float64]:
    """Discounted return [E] from the first state on, without bonus, as if the last step's reward went on for ever."""
    goals = (torch.from_numpy(goals[:, 1:]) for goals in (episodes.achieved_goal, episodes.desired_goal))
    reward = goal_env.reward(*goals).numpy().astype(np.float64)  # [E, T]
    weight = discount ** np.arange(reward.shape[1]) * episodes.valid
    last = reward[np.arange(len(reward)), episodes.length - 1]
    after = discount**episodes.length / (1 - discount) * last
    return np.asarray((weight * reward).sum(1) + after)


def relay_use(score: Tensor, length: Tensor, relay: RelayConfig, explore: ExploreConfig, amount: Tensor) -> Tensor:
    """What the relay does in stored episodes with scores [R, E, T] and lengths [R, E]: [R, 2].

    First the share of steps in which it acts, as expected from the scores: by its share of those with little influence
    that are not exploratory. Then the share of episodes in which influence reaches the level that it seeks.
    """
    real = torch.arange(score.shape[-1], device=score.device) < length[..., None]
    low = ((score < relay.until) & real).sum((1, 2)) / real.sum((1, 2)).clamp(min=1)
    acts = (1 - explore.epsilon * amount) * relay.share * low
    reached = ((score >= relay.until) & real).any(-1).float().mean(1)
    return torch.stack([acts, reached], 1)
