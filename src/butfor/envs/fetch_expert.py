"""Scripted experts that need no memory: an observation and a goal give the action."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

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


def scripted_action(
    task: str,
    observation: npt.ArrayLike,
    desired_goal: npt.ArrayLike,
    generator: np.random.Generator,
    noise: float = 0.0,
    random_share: float = 0.0,
) -> tuple[npt.NDArray[np.float32], Flags]:
    """The expert's actions [N, 4] in [-1, 1] and which of them were drawn uniformly instead [N].

    `noise` is the standard deviation of Gaussian noise on the expert's action; with probability `random_share` an
    action is uniform over the whole action space.
    """
    if task not in EXPERTS:
        raise ValueError(f"There is no expert for the task {task!r}; the tasks are {', '.join(EXPERTS)}.")
    if not noise >= 0 or not 0 <= random_share <= 1:
        raise ValueError(f"noise is {noise} and random_share {random_share}; expected noise >= 0, 0 <= share <= 1.")
    state, goal = np.asarray(observation, dtype=np.float64), np.asarray(desired_goal, dtype=np.float64)
    if state.ndim != 2 or state.shape[1] < 25 or goal.shape != (len(state), 3):
        raise ValueError(
            f"observation has shape {state.shape} and desired_goal {goal.shape}; expected [N, 25], [N, 3]."
        )
    action = np.clip(EXPERTS[task](state, goal), -1, 1)
    # Every draw is made for every world, so one world's situation never shifts the draws of another.
    uniform = generator.uniform(-1, 1, action.shape)
    noisy = np.clip(action + noise * generator.standard_normal(action.shape), -1, 1)
    sampled = generator.random(len(action)) < random_share
    return np.where(sampled[:, None], uniform, noisy).astype(np.float32), sampled


def pick_and_place(state: Floats, goal: Floats) -> Floats:
    """Hover over the object, go down with open fingers, close them, then carry the object to the goal; -> [N, 4]."""
    thing, way = state[:, 3:6], state[:, 6:9]
    motion = state[:, 14:17] + state[:, 20:23]  # of the object until the next step: a table may turn under it
    over = np.linalg.norm(way[:, :2], axis=1) < NEAR
    around = over & (np.abs(way[:, 2]) < GRASP_DEPTH)
    held = around & (state[:, 9:11].max(axis=1) < GRASPED)
    approach = np.where(over[:, None], way, way + HOVER * np.array([0, 0, 1])) + motion
    move = GAIN * np.where(held[:, None], goal - thing, approach)
    return np.concatenate([move, np.where(around, -1.0, 1.0)[:, None]], axis=1)


def push(state: Floats, goal: Floats) -> Floats:
    """Go over the object to its far side from the goal, down, and push along the line to the goal; -> [N, 4]."""
    pusher = -state[:, 6:9]  # seen from the object
    line = (goal - state[:, 3:6])[:, :2]
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
    return np.where((distance < CLOSE_ENOUGH)[:, None], 0.0, action)


EXPERTS = {"push": push, "pick_and_place": pick_and_place, "rot_table": pick_and_place}
