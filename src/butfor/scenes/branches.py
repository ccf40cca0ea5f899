"""Simulators that the player branches: states are saved, other actions are tried from them, and a policy acts on.

A simulator steps rows of saved states [n, S] beside the environment, so that the episode itself is left alone, and it
knows how its states are drawn.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from butfor.envs import EnvFacts
from butfor.envs.facts import MOVED
from butfor.scenes.scene import Body, Flags, Floats

Observation = dict[str, NDArray[Any]]
Choose = Callable[[Observation, NDArray[np.int64]], NDArray[Any]]
"""(observations of n branches, their steps of the episode [n]) -> actions [n, A]."""

TOLERANCE = 1e-6  # metres: the exact label, as in `butfor.envs.truth`
SLOTS = 256  # branches of a robot that are stepped at once
GOAL_RADIUS = 0.02  # metres, of the ball that marks a goal of the robot
SUCCESS_RADIUS = 0.05  # metres around the goal in which an object counts as there


class Simulator(Protocol):
    """Steps saved states [n, S] and draws them."""

    actions: Floats  # [M, A]: the other actions that are tried
    action_names: tuple[str, ...]
    tolerance: float  # distance from which on outcomes of actions differ
    bodies: tuple[Body, ...]

    def states(self, saved: Floats, obs: Floats, goal: Floats) -> Floats:
        """Return the states [T + 1, S] of an episode, of what the environment saved or of its observations."""

    def step(self, states: Floats, actions: Floats) -> Floats:
        """Return the next states; rows of NaN where the physics blew up."""

    def observe(self, states: Floats) -> Observation:
        """Return the observations of states."""

    def poses(self, states: Floats) -> Floats:
        """Return the poses of all bodies [n, B, 7]."""

    def object_poses(self, states: Floats) -> Floats:
        """Return the poses of the objects [n, J, 7]."""

    def agent_positions(self, states: Floats) -> Floats:
        """Return the position of the agent [n, 3]."""

    def reached(self, states: Floats) -> Flags:
        """Return whether the goal is reached [n]."""


class FetchSimulator:
    """Branches of a Fetch environment, to the bit what the environment itself would do."""

    action_names: tuple[str, ...] = ("x", "y", "z", "fingers")

    def __init__(self, env: Any, facts: EnvFacts) -> None:
        """Allocate a batch for a `FetchVectorEnv`."""
        from butfor.scenes.robot import bodies_of, visible_geoms

        self.physics = env.unwrapped.make_physics(count=SLOTS)
        self.layout = self.physics.layout
        self.facts = facts
        model = self.physics.model
        # The corners of {-1, 1}^4; where no finger is driven the fourth number does nothing.
        fingers = (-1, 1) if len(model.actuated_qpos) else (0,)
        self.actions: Floats = np.array(list(product((-1, 1), (-1, 1), (-1, 1), fingers)), dtype=np.float32)
        self.tolerance = MOVED if facts.several else TOLERANCE
        self._reward = env.unwrapped.compute_reward
        self._goal = env.unwrapped.achieved_goal
        self._poses = [self.layout.qpos.start + model.object_qpos + 7 * j for j in range(self.physics.objects)]
        self._geoms = visible_geoms(model.mj)
        names = [f"object{j}" for j in range(self.physics.objects)]
        objects = [geom for geom in self._geoms if model.mj.body(model.mj.geom_bodyid[geom]).name in names]
        ball = Body("goal", "goal", "sphere", (GOAL_RADIUS, 0.0, 0.0))
        zone = Body("goal zone", "goal", "sphere", (SUCCESS_RADIUS, 0.0, 0.0), opacity=0.15)
        self.bodies = (*bodies_of(model.mj, self._geoms, objects), ball, zone)

    def states(self, saved: Floats, obs: Floats, goal: Floats) -> Floats:
        """Return the states that the environment saved."""
        return saved

    def step(self, states: Floats, actions: Floats) -> Floats:
        """Return the next states; rows of NaN where the physics blew up."""
        after = np.array(states)
        for first in range(0, len(states), SLOTS):
            rows = np.arange(first, min(first + SLOTS, len(states)))
            slots = np.arange(len(rows))
            self.physics.restore(slots, after[rows])
            _, blown = self.physics.advance(np.clip(actions[rows], -1, 1).astype(np.float32), slots)
            moved = self.physics.save(slots)
            moved[blown] = np.nan
            after[rows, : moved.shape[1]] = moved  # the goal stays
        return after

    def observe(self, states: Floats) -> Observation:
        """Return the observations of states."""
        observation = states[:, self.layout.observation]
        goal = states[:, self.layout.desired_goal]
        return {"observation": observation, "achieved_goal": observation[:, self._goal], "desired_goal": goal}

    def poses(self, states: Floats) -> Floats:
        """Return the poses of the visible geoms and of the goal [n, B, 7]."""
        from butfor.scenes.robot import poses_of

        poses = poses_of(self.physics.model.mj, states[:, self.layout.qpos], self._geoms)
        goal = flat_poses(states[:, self.layout.desired_goal])[:, None]
        return np.concatenate([poses, goal, goal], axis=1)

    def object_poses(self, states: Floats) -> Floats:
        """Return the poses of the objects [n, J, 7]."""
        return np.stack([states[:, first : first + 7] for first in self._poses], axis=1)

    def agent_positions(self, states: Floats) -> Floats:
        """Return the position of the gripper [n, 3]."""
        return states[:, self.layout.observation][:, list(self.facts.agent_position)]

    def reached(self, states: Floats) -> Flags:
        """Return whether the goal is reached [n]."""
        obs = self.observe(states)
        return np.asarray(self._reward(obs["achieved_goal"], obs["desired_goal"]) >= 0)


class FlatSimulator:
    """Branches of `slide` and `pucks`, whose state is the observation; the goal is kept behind it."""

    def __init__(self, env: Any, facts: EnvFacts) -> None:
        """Prepare the environment's own function of a step."""
        self.facts = facts
        self.tolerance = TOLERANCE
        self._reward = env.unwrapped.compute_reward
        self._goal = env.unwrapped.achieved_goal
        self._size = env.single_observation_space["observation"].shape[0]
        if facts.drawing == "line":
            from butfor.envs.slide import AGENT_LIMIT, GOAL_RADIUS, WIDTH, outcome

            half = WIDTH / 2
            self._advance: Callable[[Any, Any], Any] = lambda obs, action: outcome(obs, action)[0]
            self.actions: Floats = np.linspace(-1, 1, 9)[:, None]
            self.action_names: tuple[str, ...] = ("push",)
            self._scenery = AGENT_LIMIT + half
            self.bodies: tuple[Body, ...] = (
                Body("goal zone", "goal", "box", (GOAL_RADIUS, half, half), opacity=0.35),
                Body("limit of the agent", "scenery", "box", (0.02, 2 * half, half)),
                Body("agent", "agent", "box", (half, half, half)),
                Body("object", "object", "box", (half, half, half)),
            )
        else:
            from butfor.envs.several.pucks import BOX, GOAL_RADIUS, RADIUS, advance

            angle = np.linspace(0, 2 * np.pi, 16, endpoint=False)
            wide = np.stack([np.cos(angle), np.sin(angle)], axis=1)
            self._advance = lambda obs, action: advance(obs, action)[0]
            self.actions = wide / np.abs(wide).max(axis=1, keepdims=True)  # on the edge of the square of actions
            self.action_names = ("x", "y")
            self._scenery = 0.0
            zone = Body("goal zone", "goal", "sphere", (GOAL_RADIUS, 0.0, 0.0), opacity=0.35)
            agent, *objects = facts.several
            disc = (RADIUS, 0.0, 0.0)
            others = (Body(name, "object", "sphere", disc) for name in objects)
            walls = Body("walls", "scenery", "box", (BOX, BOX, RADIUS), opacity=0.35)
            self.bodies = (zone, walls, Body(agent, "agent", "sphere", disc), *others)
        columns = [facts.several[name][:2] for name in list(facts.several)[1:]] or [facts.object_position]
        self._objects = [list(places) for places in columns]

    def states(self, saved: Floats, obs: Floats, goal: Floats) -> Floats:
        """Return observations with the goal behind them."""
        return np.concatenate([obs, goal], axis=1).astype(np.float64)

    def step(self, states: Floats, actions: Floats) -> Floats:
        """Return the next states."""
        obs = states[:, : self._size].astype(np.float32)
        return np.concatenate([self._advance(obs, actions.astype(np.float32)), states[:, self._size :]], axis=1)

    def observe(self, states: Floats) -> Observation:
        """Return the observations of states."""
        obs = states[:, : self._size]
        return {"observation": obs, "achieved_goal": obs[:, self._goal], "desired_goal": states[:, self._size :]}

    def poses(self, states: Floats) -> Floats:
        """Return the poses of goal, scenery, agent and objects [n, B, 7]."""
        goal = flat_poses(states[:, self._size :])[:, None]
        agent = flat_poses(states[:, list(self.facts.agent_position)])[:, None]
        scenery = flat_poses(np.full((len(states), 1), self._scenery))[:, None]
        return np.concatenate([goal, scenery, agent, self.object_poses(states)], axis=1)

    def object_poses(self, states: Floats) -> Floats:
        """Return the poses of the objects [n, J, 7]."""
        return np.stack([flat_poses(states[:, columns]) for columns in self._objects], axis=1)

    def agent_positions(self, states: Floats) -> Floats:
        """Return the position of the agent [n, 3]."""
        return flat_poses(states[:, list(self.facts.agent_position)])[:, :3]

    def reached(self, states: Floats) -> Flags:
        """Return whether the object is in the goal zone [n]."""
        obs = self.observe(states)
        return np.asarray(self._reward(obs["achieved_goal"], obs["desired_goal"]) >= 0)


def make_simulator(env: Any, facts: EnvFacts) -> Simulator:
    """Return the simulator of a built-in environment."""
    return FetchSimulator(env, facts) if facts.drawing == "robot" else FlatSimulator(env, facts)


def flat_poses(places: Floats) -> Floats:
    """Return poses [..., 7] of upright bodies at places [..., 1 to 3]."""
    poses = np.zeros((*places.shape[:-1], 7))
    poses[..., : places.shape[-1]] = places
    poses[..., 3] = 1.0
    return poses
