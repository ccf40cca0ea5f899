"""Scripted experts of the built-in environments: memoryless policies, one function each."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from butfor.envs.slide import ACCELERATION, AGENT_LIMIT, FRICTION, GOAL_RADIUS, MASS_RATIO, TIME_STEP, WIDTH

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Expert = Callable[[Any, Any], tuple[Floats, Flags]]
"""(observation [..., D], desired goal [..., G]) -> action [..., A], and in which states that action matters [...]."""

GAIN = 20.0  # an action of 1 moves the gripper's target by 0.05, so this asks for the whole way at once
HOVER = 0.08  # above the object, before the gripper goes down
NEAR = 0.02  # over its place, in x and y
GRASP_DEPTH = 0.015  # the gripper is around the object when their heights differ by less
GRASPED = 0.03  # finger position below which the fingers hold the object; open fingers stand at 0.05
BEHIND = 0.06  # where the pusher goes down, from the object's centre, on the side away from the goal
CLEAR = 0.055  # height over the object's centre at which closed fingers pass over it
CARRY_HEIGHT = 0.09  # height at which the pusher travels
PUSH_GAIN = 10.0  # slower near the goal, for a pushed object slides on
CLOSE_ENOUGH = 0.03  # from the goal: the pusher rests
PUCK_SLOWDOWN = 0.7  # m/s^2, by friction, as measured
PUCK_MOVES = 0.03  # m/s
RUN_UP = 0.1  # from the puck's centre, where a hit starts
FASTEST = 1.25  # m/s, of the gripper's target
STACKED = 0.02  # from the goal: the fingers let go


def scripted_action(
    expert: Expert,
    obs: Mapping[str, npt.ArrayLike],
    generator: np.random.Generator,
    noise: float = 0.0,
    random_share: float = 0.0,
) -> tuple[npt.NDArray[np.float32], Flags]:
    """Let an expert act on the observation of one environment or of many.

    `noise` is the standard deviation of Gaussian noise on its action, `random_share` the probability of a uniform
    action instead. Returns actions [..., A] in [-1, 1], and which of them are uniform draws [...].
    """
    action, matters = expert(obs["observation"], obs["desired_goal"])
    # Every draw is made for every environment, so that the state of one never shifts the draws of another.
    uniform = generator.uniform(-1, 1, action.shape)
    noisy = np.clip(np.clip(action, -1, 1) + noise * generator.standard_normal(action.shape), -1, 1)
    sampled = ~matters | (generator.random(matters.shape) < random_share)
    return np.where(sampled[..., None], uniform, noisy).astype(np.float32), sampled


def hit(observation: npt.ArrayLike, desired_goal: npt.ArrayLike) -> tuple[Floats, Flags]:
    """Steer the agent of `slide` towards the speed at impact that lets the object slide to the goal.

    The action matters while the object rests, left of its goal zone and within the agent's reach.
    """
    _, agent_velocity, position, velocity = np.moveaxis(np.asarray(observation, dtype=np.float32), -1, 0)
    goal = np.asarray(desired_goal, dtype=np.float32)[..., 0]
    resting = velocity == 0
    matters = resting & (position < goal - GOAL_RADIUS) & (position - WIDTH <= AGENT_LIMIT)
    needed = (impact_speed(np.maximum(goal - position, 0)) - agent_velocity) / ACCELERATION
    return needed[..., None], np.asarray(matters)


def impact_speed(distance: npt.ArrayLike) -> Floats:
    """Return the agent's speed at impact after which a resting object slides exactly this far.

    Hit to u = 2 speed, the object moves TIME_STEP (u - k FRICTION) in its k-th step, k = 1 .. n with
    n = floor(u / FRICTION). For u = n FRICTION the sum is TIME_STEP FRICTION n (n - 1) / 2, which gives n for
    a distance; solving the sum for u then gives the speed.
    """
    steps_worth = np.asarray(distance, dtype=np.float64) / TIME_STEP
    n = np.floor((1 + np.sqrt(1 + 8 * steps_worth / FRICTION)) / 2)
    return np.asarray((steps_worth / n + FRICTION * (n + 1) / 2) / MASS_RATIO)


def pick_and_place(observation: npt.ArrayLike, desired_goal: npt.ArrayLike) -> tuple[Floats, Flags]:
    """Hover over the object, go down with open fingers, close them, then carry the object to the goal."""
    state = np.asarray(observation, dtype=np.float64)
    goal = np.asarray(desired_goal, dtype=np.float64)
    motion = state[:, 14:17] + state[:, 20:23]  # of the object until the next step, for a table may turn under it
    return _grasp(state[:, 6:9], motion, state[:, 9:11], goal - state[:, 3:6]), np.ones(len(state), dtype=np.bool_)


def stack(observation: npt.ArrayLike, desired_goal: npt.ArrayLike) -> tuple[Floats, Flags]:
    """Put the first of two cubes where the goal is, from above, let it go, and move away."""
    state = np.asarray(observation, dtype=np.float64)
    cube = state[:, 10:13]
    way = np.asarray(desired_goal, dtype=np.float64) - cube
    over = np.linalg.norm(way[:, :2], axis=1) < NEAR
    lift = np.where(over, 0.0, CARRY_HEIGHT - 0.03)
    action = _grasp(cube - state[:, :3], state[:, 13:16], state[:, 6:8], way + lift[:, None] * np.array([0, 0, 1]))
    placed = np.linalg.norm(way, axis=1) < STACKED
    return np.where(placed[:, None], [0.0, 0.0, 1.0, 1.0], action), np.ones(len(state), dtype=np.bool_)


def _grasp(way: Floats, motion: Floats, fingers: Floats, carry: Floats) -> Floats:
    """Actions [n, 4]: grasp what lies at `way` from the gripper and moves by `motion`, then move it by `carry`."""
    over = np.linalg.norm(way[:, :2], axis=1) < NEAR
    around = over & (np.abs(way[:, 2]) < GRASP_DEPTH)
    held = around & (fingers.max(axis=1) < GRASPED)
    approach = np.where(over[:, None], way, way + HOVER * np.array([0, 0, 1])) + motion
    move = GAIN * np.where(held[:, None], carry, approach)
    return np.concatenate([move, np.where(around, -1.0, 1.0)[:, None]], axis=1)


def push(observation: npt.ArrayLike, desired_goal: npt.ArrayLike) -> tuple[Floats, Flags]:
    """Go over the object to its far side from the goal, down, and push along the line to the goal."""
    state = np.asarray(observation, dtype=np.float64)
    goal = np.asarray(desired_goal, dtype=np.float64)
    return _push(-state[:, 6:9], (goal - state[:, 3:6])[:, :2]), np.ones(len(state), dtype=np.bool_)


def push_into(observation: npt.ArrayLike, desired_goal: npt.ArrayLike) -> tuple[Floats, Flags]:
    """Push the first of two cubes into the second one, and both on, until the second one is at the goal.

    Where the second cube then goes is not steered: the script shows a cube that moves a cube.
    """
    state = np.asarray(observation, dtype=np.float64)
    line = (state[:, 25:27] - state[:, 10:12]).copy()
    action = _push(state[:, :3] - state[:, 10:13], line)
    reached = np.linalg.norm(np.asarray(desired_goal)[:, :2] - state[:, 25:27], axis=1) < CLOSE_ENOUGH
    return np.where(reached[:, None], 0.0, action), np.ones(len(state), dtype=np.bool_)


def _push(pusher: Floats, line: Floats) -> Floats:
    """Actions [n, 4] of a pusher, seen from the object, that is to move the object along the line [n, 2]."""
    distance = np.linalg.norm(line, axis=1)
    direction = line / np.maximum(distance, 1e-9)[:, None]
    along = (pusher[:, :2] * direction).sum(axis=1)
    aside = pusher[:, :2] - along[:, None] * direction
    height = pusher[:, 2]
    way = -BEHIND * direction - pusher[:, :2]
    above_place = np.linalg.norm(way, axis=1) < NEAR
    ready = (along < -0.03) & (np.linalg.norm(aside, axis=1) < NEAR) & (np.abs(height) < 0.03)

    travel = GAIN * way * ((height > CLEAR) | above_place)[:, None]  # straight up first if something is in the way
    shove = np.minimum(PUSH_GAIN * distance, 1)[:, None] * direction - GAIN * aside
    level = np.where(ready | above_place, 0.0, CARRY_HEIGHT)
    rise = GAIN * (level - height)[:, None]
    action = np.concatenate([np.where(ready[:, None], shove, travel), rise, np.zeros_like(rise)], axis=1)
    return np.asarray(np.where((distance < CLOSE_ENOUGH)[:, None], 0.0, action))


def slide_puck(observation: npt.ArrayLike, desired_goal: npt.ArrayLike) -> tuple[Floats, Flags]:
    """Hit the puck from behind with the speed at which friction stops it at the goal, then wait.

    A round puck slips off the closed fingers to one side or the other: a third of the goals are reached.
    """
    state = np.asarray(observation, dtype=np.float64)
    goal = np.asarray(desired_goal, dtype=np.float64)
    pusher = -state[:, 6:9]  # seen from the puck
    line = (goal - state[:, 3:6])[:, :2]
    distance = np.linalg.norm(line, axis=1)
    direction = line / np.maximum(distance, 1e-9)[:, None]
    velocity = (state[:, 14:16] + state[:, 20:22]) / 0.04
    needed = np.sqrt(2 * PUCK_SLOWDOWN * distance)
    along = (pusher[:, :2] * direction).sum(axis=1)
    aside = pusher[:, :2] - along[:, None] * direction
    height = pusher[:, 2]
    way = -RUN_UP * direction - pusher[:, :2]
    above_place = np.linalg.norm(way, axis=1) < NEAR
    ready = (along < -0.02) & (np.linalg.norm(aside, axis=1) < 0.03) & (np.abs(height) < 0.03)

    travel = GAIN * way * ((height > CLEAR) | above_place)[:, None]
    hit_speed = np.minimum(1.2 * needed / FASTEST, 1)[:, None]
    shove = hit_speed * direction - 10 * aside
    rise = GAIN * (np.where(ready | above_place, 0.0, CARRY_HEIGHT) - height)[:, None]
    action = np.concatenate([np.where(ready[:, None], shove, travel), rise, np.zeros_like(rise)], axis=1)
    moving = np.linalg.norm(velocity, axis=1) > PUCK_MOVES
    fast_enough = moving & ((velocity * direction).sum(axis=1) >= needed)
    wait = (distance < NEAR) | fast_enough | (moving & ~ready)
    return np.where(wait[:, None], 0.0, action), np.ones(len(state), dtype=np.bool_)
