"""The judge: fork a saved Fetch state, try other actions, and see whether the object's next state depends on them.

A fork restores a state into a batch of its own (no refresh: the old pose of the gripper is part of the state) and
steps it as the world itself would, to the bit; the caller's worlds are left alone. The exact label of the slide world
is `slide.influence`.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from butfor.envs.fetch import FetchEnv, FetchVectorEnv
from butfor.envs.fetch_model import FINGERS, TASKS, Floats, mujoco
from butfor.envs.fetch_physics import TIME_STEP, FetchPhysics, Flags
from butfor.envs.rot_table import RotTablePhysics

Actions = npt.NDArray[np.float32]

ACTION_SIZE = 4
HAND = ("robot0:gripper_link", *FINGERS)  # geoms
# How far, along each axis, a link leaves the box swept by its own velocity within one step, whatever the action.
# Measured over 460,000 steps of the three worlds (random, held and flipped corner actions, experts), every second
# substep, gripper upright: 0.038 m for the hand, 0.023 more for a finger that opens, 0.056 for the rest of the robot.
HAND_SLACK, FINGER_SLACK, ARM_SLACK = 0.05, 0.05, 0.08
UPRIGHT = 0.1  # radians; a gripper that is tilted more is being swung back and moves its links by up to 0.09
GRIPPER_LAG = 0.01  # between the gripper's kept pose and its qpos; one substep makes 0.0034
# An object that nothing of the robot touches stayed within its speed times the time of a step plus 0.008 (gravity) when
# it lay, fell, tumbled or rode on the table, and within 0.018 when it was put 0.03 deep into the table.
OBJECT_SPEED_FACTOR, OBJECT_SLACK = 1.5, 0.02


class Forker:
    """A batch of simulated worlds that saved states are forked into, a fixed number at a time."""

    def __init__(
        self,
        world: str | FetchVectorEnv | FetchEnv | FetchPhysics,
        slots: int = 256,
        threads: int = 0,
        timing: str = "paper",
    ) -> None:
        """Allocate `slots` worlds like `world`: "push", "pick_and_place", "rot_table" or worlds that exist.

        `threads` 0 takes all processors; `timing` is that of a rot_table given by its name.
        """
        if slots < 1:
            raise ValueError(f"slots is {slots}; expected 1 or more worlds to step at once.")
        self.slots, self.physics = slots, _physics_like(world, slots, threads, timing)
        self.layout = self.physics.layout
        model, mj = self.physics.model, self.physics.model.mj
        # The 16 corners of {-1, +1}^4; where no finger is driven the fourth number does nothing, and 8 say the same.
        fingers = (-1, 1) if len(model.actuated_qpos) else (0,)
        self.corners: Actions = np.array(list(product((-1, 1), (-1, 1), (-1, 1), fingers)), dtype=np.float32)

        self._data = mujoco.MjData(mj)
        self._object = int(mj.geom("object0").id)
        bits = int(mj.geom_contype[self._object]), int(mj.geom_conaffinity[self._object])
        names = [mj.body(body).name for body in mj.geom_bodyid]
        touching = (mj.geom_contype & bits[1]) | (mj.geom_conaffinity & bits[0])
        robot = [geom for geom, name in enumerate(names) if name.startswith("robot0:") and touching[geom]]
        self.robot_geoms = np.array(robot)  # [G] every geom of the robot that can touch the object
        slack = np.full((len(robot), 3), ARM_SLACK)
        for name in HAND:
            slack[robot.index(mj.geom(name).id)] = HAND_SLACK
            if name in FINGERS and not model.task.blocked:
                slack[robot.index(mj.geom(name).id), 1] += FINGER_SLACK
        self._slack = slack + mj.geom_margin[robot].max()

    def fork(self, states: npt.ArrayLike, actions: npt.ArrayLike, columns: Any = None) -> Floats:
        """Step M alternatives from each state: [n, S] and actions [n, M, 4] or [M, 4] -> next states [n, M, S].

        `columns` chooses among the columns of `layout`, for instance layout.object_pose. A row whose physics blew up
        is NaN.
        """
        rows = self._states(states)
        action = _actions(actions, len(rows))  # [n, M, 4]
        count, total = action.shape[1], action.shape[0] * action.shape[1]
        chosen = np.arange(self.layout.size)[slice(None) if columns is None else columns]
        outcome = np.empty((total, len(chosen)))
        for first in range(0, total, self.slots):
            flat = np.arange(first, min(first + self.slots, total))
            before, slots = rows[flat // count], np.arange(len(flat))
            self.physics.restore(slots, before)
            _, blown = self.physics.advance(action[flat // count, flat % count], slots)
            after = before  # goals stay
            moved = self.physics.save(slots)
            after[:, : moved.shape[1]] = moved
            after[:, self.layout.elapsed] += 1
            after[blown] = np.nan
            outcome[flat] = after[:, chosen]
        return outcome.reshape(len(rows), count, len(chosen))

    def within_reach(self, states: npt.ArrayLike) -> Flags:
        """Which states [n, S] are such that some geom of the robot could touch the object during one step -> [n].

        Each link's bounding box now and where its velocity carries it, grown by a measured slack, against the object's
        box grown by its own speed. A state unlike those measured (tilted gripper, kept gripper pose far from qpos)
        counts as within reach.
        """
        rows, model = self._states(states), self.physics.model
        places = self._places(rows)  # [n, 2 (low, high), G + 1, 3]
        links, thing = places[:, :, :-1], places[:, :, -1:]
        velocity = rows[:, self.layout.object_velocity]
        radius = model.mj.geom_rbound[self._object]
        speed = np.linalg.norm(velocity[:, :3], axis=1) + radius * np.linalg.norm(velocity[:, 3:], axis=1)
        growth = OBJECT_SPEED_FACTOR * speed * TIME_STEP + OBJECT_SLACK
        gap = np.maximum(links[:, 0] - thing[:, 1], thing[:, 0] - links[:, 1])  # [n, G, 3], negative where they overlap
        near = (gap <= self._slack + growth[:, None, None]).all(axis=2).any(axis=1)

        gripper = rows[:, self.layout.gripper]
        cosine = np.abs(gripper[:, 3:] @ np.array([1.0, 0.0, 1.0, 0.0])) / np.sqrt(2)
        tilt = 2 * np.arccos(np.clip(cosine, 0, 1))
        return np.asarray(near | (tilt > UPRIGHT) | (self._lag > GRIPPER_LAG))

    def _places(self, rows: Floats) -> Floats:
        """Boxes along the world's axes that hold the robot's geoms and, last, the object; [n, S] -> [n, 2, G + 1, 3].

        A box of the robot holds the geom as it stands and as its velocity would carry it through the step.
        """
        mj, data = self.physics.model.mj, self._data
        geoms = np.append(self.robot_geoms, self._object)
        centre, matrix = np.empty((2, len(rows), len(geoms), 3)), np.empty((2, len(rows), len(geoms), 9))
        self._lag = np.empty(len(rows))
        for number, row in enumerate(rows):
            data.qpos[:] = row[self.layout.qpos]
            mujoco.mj_kinematics(mj, data)
            centre[0, number], matrix[0, number] = data.geom_xpos[geoms], data.geom_xmat[geoms]
            lag = data.xpos[self.physics.model.gripper_body] - row[self.layout.gripper][:3]
            self._lag[number] = np.sqrt(lag @ lag)
            mujoco.mj_integratePos(mj, data.qpos, row[self.layout.qvel], TIME_STEP)
            mujoco.mj_kinematics(mj, data)
            centre[1, number], matrix[1, number] = data.geom_xpos[geoms], data.geom_xmat[geoms]
        axes = matrix.reshape(*matrix.shape[:3], 3, 3)
        centre += np.einsum("tngij,gj->tngi", axes, mj.geom_aabb[geoms, :3])
        half = np.einsum("tngij,gj->tngi", np.abs(axes), mj.geom_aabb[geoms, 3:])
        low, high = centre - half, centre + half
        low[1, :, -1], high[1, :, -1] = low[0, :, -1], high[0, :, -1]  # the object may go anywhere: see its growth
        return np.stack([low.min(axis=0), high.max(axis=0)], axis=1)

    def _states(self, states: npt.ArrayLike) -> Floats:
        """The states as float64 [n, S], or an error that says what was given."""
        rows = np.asarray(states, dtype=np.float64)
        bad = np.count_nonzero(~np.isfinite(rows))
        if rows.ndim != 2 or rows.shape[1] != self.layout.size or bad:
            raise ValueError(
                f"states has shape {rows.shape} and {bad} numbers that are not finite; expected finite numbers of "
                f"shape [n, {self.layout.size}], as save_state() of this kind of world gives them."
            )
        return rows


def exact_label(
    forker: Forker,
    states: npt.ArrayLike,
    taken: npt.ArrayLike | None = None,
    extra: int = 0,
    generator: np.random.Generator | None = None,
    tolerance: float = 1e-6,
    of: str = "position",
    shortcut: bool = True,
) -> tuple[Flags, Floats]:
    """Does the object's next state depend on the action? States [n, S] -> (label [n], effect [n]).

    The candidates are the corners of the action space, the actions `taken` [n, 4] and `extra` uniform ones. The effect
    is the largest range over them, max - min, of any number of the object's next `of`: its "position" (metres) or its
    whole "state" (position, quaternion, linear and angular velocity, each in its own unit), taken from qpos and qvel,
    which are one substep newer than an observation. The label is effect > tolerance. Candidates whose physics blew up
    are left out; an effect is NaN, and its label False, where all did. The `shortcut` gives 0 without a fork where no
    part of the robot is within reach of the object.
    """
    rows = forker._states(states)
    if of not in ("position", "state"):
        raise ValueError(f"of is {of!r}; expected 'position' or 'state' (of the object).")
    if not tolerance >= 0 or extra < 0 or (extra > 0 and generator is None):
        raise ValueError(
            f"tolerance is {tolerance}, extra {extra} and generator {generator}; expected a tolerance and a number of "
            "extra actions of 0 or more, and with extra actions a numpy Generator to draw them from."
        )
    layout, corners = forker.layout, forker.corners
    candidates = [np.broadcast_to(corners, (len(rows), *corners.shape))]
    if taken is not None:
        if np.shape(taken) != (len(rows), ACTION_SIZE):
            raise ValueError(f"taken has shape {np.shape(taken)}; expected {(len(rows), ACTION_SIZE)}, one per state.")
        candidates.append(_actions(np.asarray(taken)[:, None], len(rows)))
    if extra and generator is not None:
        # Drawn for every state, so that the shortcut does not shift the draws.
        candidates.append(generator.uniform(-1, 1, (len(rows), extra, ACTION_SIZE)).astype(np.float32))
    action = np.concatenate(candidates, axis=1)  # [n, M, 4]

    pose, velocity = layout.object_pose, layout.object_velocity
    columns = np.r_[pose.start : pose.start + 3] if of == "position" else np.r_[pose, velocity]
    effect = np.zeros(len(rows))
    chosen = np.flatnonzero(forker.within_reach(rows)) if shortcut else np.arange(len(rows))
    outcome = forker.fork(rows[chosen], action[chosen], columns)
    spread = np.fmax.reduce(outcome, axis=1) - np.fmin.reduce(outcome, axis=1)  # they pass over NaN
    effect[chosen] = spread.max(axis=1)
    return effect > tolerance, effect


def label_episodes(
    forker: Forker,
    states: npt.ArrayLike,
    actions: npt.ArrayLike,
    progress: Callable[[int, int], None] | None = None,
    block: int = 1024,
    **options: Any,
) -> tuple[Flags, Floats]:
    """Exact labels and effects [...] of saved states [..., S] under the actions taken there [..., 4].

    Works through the states a block at a time and calls progress(states done, states in all) after each; `options` are
    those of `exact_label`.
    """
    rows, action = np.asarray(states, dtype=np.float64), np.asarray(actions)
    shape = rows.shape[:-1]
    if rows.ndim < 1 or action.shape != (*shape, ACTION_SIZE) or block < 1:
        raise ValueError(
            f"states has shape {rows.shape}, actions {action.shape} and block is {block}; expected states [..., "
            f"{forker.layout.size}], actions [..., {ACTION_SIZE}] with the same leading sizes, and a block of 1 or more."
        )
    rows, action = rows.reshape(-1, rows.shape[-1]), action.reshape(-1, ACTION_SIZE)
    label, effect = np.zeros(len(rows), dtype=np.bool_), np.zeros(len(rows))
    for first in range(0, len(rows), block):
        part = slice(first, first + block)
        label[part], effect[part] = exact_label(forker, rows[part], action[part], **options)
        if progress is not None:
            progress(min(first + block, len(rows)), len(rows))
    return label.reshape(shape), effect.reshape(shape)


def _physics_like(world: Any, slots: int, threads: int, timing: str) -> FetchPhysics:
    """New simulated worlds of the kind that a name or existing worlds stand for."""
    if isinstance(world, str):
        name = world.replace("-", "_")
        if name == "rot_table":
            return RotTablePhysics(slots, threads=threads, timing=timing)
        if name not in TASKS:
            raise ValueError(f"There is no Fetch world {world!r}; the worlds are {', '.join(TASKS)}, rot_table.")
        return FetchPhysics(TASKS[name], slots, threads=threads)
    inner = getattr(world, "unwrapped", world)
    physics = getattr(getattr(inner, "worlds", inner), "physics", inner)
    if isinstance(physics, RotTablePhysics):
        return RotTablePhysics(slots, threads=threads, timing=physics.timing)
    if isinstance(physics, FetchPhysics):
        return FetchPhysics(physics.model.task, slots, threads=threads)
    raise ValueError(f"Cannot fork a {type(world).__name__}; expected Fetch worlds or the name of one.")


def _actions(values: npt.ArrayLike, count: int) -> Actions:
    """The actions as float32 [count, M, 4] within [-1, 1], or an error that says what was given."""
    array = np.asarray(values, dtype=np.float32)
    if array.shape[-1:] != (ACTION_SIZE,) or array.ndim not in (2, 3) or (array.ndim == 3 and len(array) != count):
        raise ValueError(
            f"The actions have shape {array.shape}; expected [M, {ACTION_SIZE}] for all states or "
            f"[{count}, M, {ACTION_SIZE}], M alternatives for each of the {count} states."
        )
    if np.isnan(array).any():
        raise ValueError("The actions contain NaN; nothing was stepped. Check what computed them.")
    return np.broadcast_to(np.clip(array, -1, 1), (count, *array.shape[-2:]))
