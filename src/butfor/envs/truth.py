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
# Measured over 170,000 steps of the three worlds (random actions, held and flipped corner actions, experts), at every
# second substep, gripper upright: 0.038 m for the hand, 0.073 for a finger that opens, 0.056 for the rest of the robot.
HAND_SLACK, FINGER_SLACK, ARM_SLACK = 0.05, 0.05, 0.08
UPRIGHT = 0.1  # radians; a gripper that is tilted more is being swung back and moves its links by up to 0.09
GRIPPER_LAG = 0.01  # between the gripper's kept pose and its qpos; one substep makes 0.0034
# The box of an object that nothing of the robot touches grew by at most its speed times the time of a step plus 0.008
# (gravity) when it lay, fell, tumbled or rode on the table, and by two thirds of its depth when put into the table.
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

        thing = int(mj.geom("object0").id)
        meets = (mj.geom_contype & mj.geom_conaffinity[thing]) | (mj.geom_conaffinity & mj.geom_contype[thing])
        names = [mj.body(body).name for body in mj.geom_bodyid]
        others = [geom for geom in np.flatnonzero(meets).tolist() if geom != thing]
        robot = [geom for geom in others if names[geom].startswith("robot0:")]
        self.robot_geoms = np.array(robot)  # [G] every geom of the robot that can touch the object
        self._geoms = np.array([*robot, *(geom for geom in others if geom not in robot), thing])
        self._object_qpos = slice(model.object_qpos, model.object_qpos + 7)
        self._data = mujoco.MjData(mj)
        self._slack = np.full((len(robot), 3), ARM_SLACK)
        for name in HAND:
            opening = FINGER_SLACK if name in FINGERS and not model.task.blocked else 0.0
            self._slack[robot.index(mj.geom(name).id)] = [HAND_SLACK, HAND_SLACK + opening, HAND_SLACK]

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
            after, slots = rows[flat // count], np.arange(len(flat))
            self.physics.restore(slots, after)
            _, blown = self.physics.advance(action[flat // count, flat % count], slots)
            moved = self.physics.save(slots)
            after[:, : moved.shape[1]] = moved  # the goal stays
            after[:, self.layout.elapsed] += 1
            after[blown] = np.nan
            outcome[flat] = after[:, chosen]
        return outcome.reshape(len(rows), count, len(chosen))

    def within_reach(self, states: npt.ArrayLike) -> Flags:
        """Which states [n, S] are such that some geom of the robot could touch the object during one step -> [n].

        Boxes around each link as it stands and where its velocity carries it, grown by the slack measured above,
        against the object's box, grown by its own motion. A state unlike those measured (a tilted gripper, or one kept
        apart from its qpos) counts as within reach.
        """
        rows = self._states(states)
        low, high, lag = self._boxes(rows)
        gap = np.maximum(low[:, :-1] - high[:, -1:], low[:, -1:] - high[:, :-1])  # [n, others, 3]; overlap: negative
        links, surroundings = gap[:, : len(self.robot_geoms)], gap[:, len(self.robot_geoms) :]
        velocity, radius = rows[:, self.layout.object_velocity], self.physics.model.mj.geom_rbound[self._geoms[-1]]
        speed = np.linalg.norm(velocity[:, :3], axis=1) + radius * np.linalg.norm(velocity[:, 3:], axis=1)
        sunk = np.maximum(-surroundings.max(axis=2), 0).max(axis=1)
        growth = OBJECT_SPEED_FACTOR * speed * TIME_STEP + OBJECT_SLACK + sunk
        near = (links <= self._slack + growth[:, None, None]).all(axis=2).any(axis=1)
        cosine = np.abs(rows[:, self.layout.gripper][:, 3:] @ [1.0, 0.0, 1.0, 0.0]) / np.sqrt(2)
        return np.asarray(near | (cosine < np.cos(UPRIGHT / 2)) | (lag > GRIPPER_LAG))

    def _boxes(self, rows: Floats) -> tuple[Floats, Floats, Floats]:
        """Low and high corners [n, geoms, 3] of boxes along the world's axes, the object last, and the lag [n].

        A box holds its geom as it stands and, but for the object, as its velocity would carry it through the step; the
        lag is the distance between the gripper's kept position and the one that qpos gives.
        """
        mj, data, geoms, layout = self.physics.model.mj, self._data, self._geoms, self.layout
        centre, matrix = np.empty((len(rows), 2, len(geoms), 3)), np.empty((len(rows), 2, len(geoms), 9))
        gripper = np.empty((len(rows), 3))
        for number, row in enumerate(rows):
            data.qpos[:] = row[layout.qpos]
            mujoco.mj_kinematics(mj, data)
            centre[number, 0], matrix[number, 0] = data.geom_xpos[geoms], data.geom_xmat[geoms]
            gripper[number] = data.xpos[self.physics.model.gripper_body]
            mujoco.mj_integratePos(mj, data.qpos, row[layout.qvel], TIME_STEP)
            data.qpos[self._object_qpos] = row[layout.object_pose]
            mujoco.mj_kinematics(mj, data)
            centre[number, 1], matrix[number, 1] = data.geom_xpos[geoms], data.geom_xmat[geoms]
        axes = matrix.reshape(*matrix.shape[:3], 3, 3)
        centre += np.einsum("ntgij,gj->ntgi", axes, mj.geom_aabb[geoms, :3])
        half = np.einsum("ntgij,gj->ntgi", np.abs(axes), mj.geom_aabb[geoms, 3:])
        lag = np.linalg.norm(gripper - rows[:, layout.gripper][:, :3], axis=1)
        return (centre - half).min(axis=1), (centre + half).max(axis=1), lag

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
            f"{forker.layout.size}], actions [..., {ACTION_SIZE}] with equal leading sizes, and a block of 1 or more."
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
