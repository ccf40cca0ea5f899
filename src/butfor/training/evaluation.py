"""What agents reach: success in deterministic episodes, and how far the training episodes of each seed get.

The numbers beside success explain a learning curve: which of the steps towards it is missing (touched, lifted), and
whether the critic's values are those that the policy reaches.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.rollouts.episodes import STATES, Episodes
from butfor.rollouts.play import Observation, Played, Stream, episode_seed, play
from butfor.spaces.actions import from_unit
from butfor.training.agents import Agent
from butfor.training.exploration import stack_inputs
from butfor.training.goal_env import GoalEnv

TOUCHED = 2e-3  # metres from where the object was at first; settling on the table moves it less
LIFTED = 0.03  # metres above where it was at first


class Evaluation:
    """Deterministic episodes of R agents, in environments that are kept for the next evaluation."""

    def __init__(self, goal_env: GoalEnv, seeds: Sequence[int], agent: Agent, discount: float, relative: bool) -> None:
        """`relative`: agents also see the difference between desired and achieved goal."""
        self.goal_env = goal_env
        self.seeds = seeds
        self.agent = agent
        self.discount = discount
        self.relative = relative
        self._env: Any = None

    @torch.no_grad()
    def play(self, episodes: int, number: int, what: str) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """Share of `episodes` that succeed [R], and behaviour and values by name [R]; `number` chooses the resets."""
        goal_env = self.goal_env
        replicas = len(self.seeds)
        wins = np.zeros(replicas)
        shares = []
        for first in range(0, episodes, goal_env.evaluation_envs):
            count = min(goal_env.evaluation_envs, episodes - first)
            places = range(number * episodes + first, number * episodes + first + count)
            resets = [episode_seed(seed, Stream.EVALUATION, place) for seed in self.seeds for place in places]
            if self._env is None or self._env.num_envs != len(resets):
                self.close()
                self._env = goal_env.make_evaluation_env(len(resets))
            played = play([self._env], lambda group, at, obs: self._act(obs), resets, goal_env.steps, what)
            wins += goal_env.succeeded(played).reshape(replicas, count).sum(1)
            facts = goal_env.facts
            shares.append({} if facts is None else facts.behaviour(played.episodes) | self.values(played.episodes))
        parts = {name: [share[name].reshape(replicas, -1) for share in shares] for name in shares[0]}
        return wins / episodes, {name: np.concatenate(part, 1).mean(1) for name, part in parts.items()}

    def close(self) -> None:
        """Close the environments."""
        if self._env is not None:
            self._env.close()

    def _act(self, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The policy's own actions in W environments."""
        inputs = self._inputs(obs)
        action = from_unit(self.agent.policy(inputs), self.goal_env.law.bounds(inputs.device)).flatten(0, 1)
        return action.cpu().numpy(), np.zeros(len(action), dtype=bool)

    @torch.no_grad()
    def values(self, episodes: Episodes) -> dict[str, NDArray[np.float64]]:
        """The critic's value of the first states [E], and the value that the policy reaches from there."""
        inputs = self._inputs({name: getattr(episodes, name)[:, 0] for name in STATES})
        predicted = self.agent.value(inputs).flatten().double().cpu().numpy()
        return {"value_predicted": predicted, "value_reached": reached_value(self.goal_env, episodes, self.discount)}

    def _inputs(self, obs: Observation) -> Tensor:
        """What the policy sees of W environments, [R, W / R, ...]."""
        inputs = torch.from_numpy(stack_inputs(obs, self.relative)).to(self.agent.policy.normalizer.mean.device)
        return inputs.view(len(self.seeds), -1, inputs.shape[-1])


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
    """Discounted return [E] of the first state without bonus, as if the last step's reward were repeated for ever."""
    goals = (torch.from_numpy(goals[:, 1:]) for goals in (episodes.achieved_goal, episodes.desired_goal))
    reward = goal_env.reward(*goals).numpy().astype(np.float64)  # [E, T]
    weight = discount ** np.arange(reward.shape[1]) * episodes.valid
    last = reward[np.arange(len(reward)), episodes.length - 1]
    after = discount**episodes.length / (1 - discount) * last
    return np.asarray((weight * reward).sum(1) + after)
