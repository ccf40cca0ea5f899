"""Simulators that the player branches: states are saved, other actions are tried from them, and a policy acts on.

A simulator steps rows of saved states [n, S] in a batch of its own, so that the episode itself is left alone.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from butfor.envs.slide import GOAL_RADIUS, outcome
from butfor.scenes.scene import Flags, Floats

Observation = dict[str, NDArray[Any]]
Choose = Callable[[Observation, NDArray[np.int64]], NDArray[Any]]
"""(observations of n branches, their steps of the episode [n]) -> actions [n, A]."""


class Simulator(Protocol):
    """Steps saved states [n, S]."""

    actions: Floats  # [M, A]: the other actions that are tried

    def step(self, states: Floats, actions: Floats) -> Floats:
        """Return the next states; rows of NaN where the physics blew up."""

    def observe(self, states: Floats) -> Observation:
        """Return the observations of saved states."""

    def object_poses(self, states: Floats) -> Floats:
        """Return the poses of the objects [n, J, 7]."""

    def agent_positions(self, states: Floats) -> Floats:
        """Return the position of the agent [n, 3]."""

    def reached(self, states: Floats) -> Flags:
        """Return whether the goal is reached [n]."""


class FetchSimulator:
    """Branches of a Fetch environment, to the bit what the environment itself would do."""

    def __init__(self, env: Any) -> None:
        """Allocate a batch for a `FetchVectorEnv`."""
        from butfor.envs.truth import Forker

        self.forker = Forker(env)
        self.layout = self.forker.layout
        self.actions: Floats = self.forker.corners
        self._reward = env.unwrapped.compute_reward

    def step(self, states: Floats, actions: Floats) -> Floats:
        """Return the next states; rows of NaN where the physics blew up."""
        after = np.full_like(states, np.nan)
        alive = np.isfinite(states).all(axis=1)
        if alive.any():
            after[alive] = self.forker.fork(states[alive], actions[alive][:, None])[:, 0]
        return after

    def observe(self, states: Floats) -> Observation:
        """Return the observations of saved states."""
        observation = states[:, self.layout.observation]
        goal = states[:, self.layout.desired_goal]
        return {"observation": observation, "achieved_goal": observation[:, 3:6], "desired_goal": goal}

    def object_poses(self, states: Floats) -> Floats:
        """Return the pose of the object [n, 1, 7]."""
        return states[:, None, self.layout.object_pose]

    def agent_positions(self, states: Floats) -> Floats:
        """Return the position of the gripper [n, 3]."""
        return states[:, self.layout.observation][:, :3]

    def reached(self, states: Floats) -> Flags:
        """Return whether the goal is reached [n]."""
        obs = self.observe(states)
        return np.asarray(self._reward(obs["achieved_goal"], obs["desired_goal"], {}) >= 0)


class SlideSimulator:
    """Branches of `slide`, whose state is its observation; the goal is a fifth column."""

    actions: Floats = np.linspace(-1, 1, 9)[:, None]

    def step(self, states: Floats, actions: Floats) -> Floats:
        """Return the next states [n, 5]."""
        after, _, _ = outcome(states[:, :4].astype(np.float32), actions.astype(np.float32))
        return np.concatenate([after, states[:, 4:]], axis=1)

    def observe(self, states: Floats) -> Observation:
        """Return the observations of states."""
        return {"observation": states[:, :4], "achieved_goal": states[:, 2:3], "desired_goal": states[:, 4:]}

    def object_poses(self, states: Floats) -> Floats:
        """Return the pose of the object [n, 1, 7]."""
        return flat_poses(states[:, 2:3])[:, None]

    def agent_positions(self, states: Floats) -> Floats:
        """Return the position of the agent [n, 3]."""
        return flat_poses(states[:, :1])[:, :3]

    def reached(self, states: Floats) -> Flags:
        """Return whether the object is in the goal zone [n]."""
        return np.asarray(np.abs(states[:, 2] - states[:, 4]) <= GOAL_RADIUS)


def flat_poses(places: Floats) -> Floats:
    """Return poses [..., 7] of upright bodies at places [..., 1 to 3]."""
    poses = np.zeros((*places.shape[:-1], 7))
    poses[..., : places.shape[-1]] = places
    poses[..., 3] = 1.0
    return poses


def corner_actions(low: Floats, high: Floats, most: int = 16) -> Floats:
    """Return the corners of a box of actions [M, A], or pairs of opposite ends of single numbers if those are many."""
    if 2 ** len(low) <= most:
        return np.array(list(product(*zip(low, high, strict=True))))
    middle = (low + high) / 2
    ends = np.repeat(middle[None], 2 * len(low), axis=0)
    for column in range(len(low)):
        ends[2 * column, column], ends[2 * column + 1, column] = low[column], high[column]
    return ends
