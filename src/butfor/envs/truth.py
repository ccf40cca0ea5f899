"""The ground truth: fork a saved Fetch state, try other actions, and see whether the object's next state depends on it.

A fork restores a state into a batch of its own (without a refresh: the old pose of the gripper is part of the state)
and steps it as the environment itself would, to the bit; the caller's environments are left alone. The exact label of
`slide` comes from `slide.outcome`.
"""

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from butfor.envs.fetch import FetchEnv, FetchVectorEnv, check_states, make_physics
from butfor.envs.fetch_physics import FINGERS, TIME_STEP, Floats, mujoco
from butfor.envs.vector import Flags

Actions = npt.NDArray[np.float32]

TOLERANCE = 1e-6  # metres; labels are the same for 1e-12 to 1e-5
WARP_TOLERANCE = 1e-5  # metres, in float32, where forks of an object that nothing touches differ by up to 6e-7
# actions that are tried together where only the label is asked for: two or four show most effects
ROUNDS = (slice(0, 2), slice(2, 4), slice(4, None))
HAND = ("robot0:gripper_link", *FINGERS)  # geoms
# How far, along each axis, a link leaves the box swept by its own velocity within one step, whatever the action.
# Measured over 170,000 steps of the three environments (random, held and flipped corner actions, experts), at every
# second substep, gripper upright: 0.038 m for the hand, 0.073 for a finger that opens, 0.056 for the rest of the robot.
HAND_SLACK = 0.05
FINGER_SLACK = 0.05
ARM_SLACK = 0.08
UPRIGHT = 0.1  # radians; a gripper that is tilted more is being swung back and moves its links by up to 0.09
GRIPPER_LAG = 0.01  # between the gripper's kept pose and its qpos; one substep makes 0.0034
# The box of an object that nothing of the robot touches grew by at most its speed times the time of a step plus 0.008
# (gravity) when it lay, fell, tumbled or rode on the table, and by two thirds of its depth when put into the table.
OBJECT_SPEED_FACTOR = 1.5
OBJECT_SLACK = 0.02


class Forker:
    """A batch of simulated environments that saved states are forked into, a fixed number at a time."""

    def __init__(
        self,
        env: str | FetchVectorEnv | FetchEnv,
        slots: int = 256,
        threads: int = 0,
        warp_device: str | None = None,
    ) -> None:
        """Allocate `slots` environments of a task (by name, or as in an environment); `threads` 0 is the default.

        With a `warp_device`, such as "cuda", MuJoCo Warp steps them there, in float32; a GPU needs thousands of slots
        to be fast.
        """
        self.slots = slots
        options: dict[str, Any] = {"count": slots, "threads": threads}
        if warp_device is not None:
            options["warp_device"] = warp_device
        if isinstance(env, str):
            self.physics = make_physics(env, **options)
        else:
            inner: Any = env.unwrapped
            self.physics = getattr(inner, "vector", inner).make_physics(**options)
        self.tolerance = TOLERANCE if self.physics.warp_device is None else WARP_TOLERANCE
        self.layout = self.physics.layout
        model = self.physics.model
        count = self.physics.objects
        pose, velocity = self.layout.object_pose.start, self.layout.object_velocity.start
        self._poses = [slice(pose + 7 * number, pose + 7 * number + 7) for number in range(count)]
        self._velocities = [slice(velocity + 6 * number, velocity + 6 * number + 6) for number in range(count)]
        first = self._poses[self.physics.goal_object].start
        self.object_position = np.arange(first, first + 3)  # columns of a state, of the object that the goal is about
        mj = model.mj
        # The 16 corners of {-1, +1}^4; where no finger is driven the fourth number does nothing, and 8 suffice.
        fingers = (-1, 1) if len(model.actuated_qpos) else (0,)
        # Those that find most effects come first: downwards, in opposite directions.
        corners = sorted(
            product((-1, 1), (-1, 1), (-1, 1), fingers),
            key=lambda corner: (corner[3] > fingers[0], corner[2] > 0, corner[0] * corner[1] < 0),
        )
        self.corners: Actions = np.array(corners, dtype=np.float32)

        things = [int(mj.geom(f"object{number}").id) for number in range(count)]
        thing = things[0]  # all are alike
        meets = (mj.geom_contype & mj.geom_conaffinity[thing]) | (mj.geom_conaffinity & mj.geom_contype[thing])
        names = [mj.body(body).name for body in mj.geom_bodyid]
        others = [geom for geom in np.flatnonzero(meets).tolist() if geom not in things]
        robot = [geom for geom in others if names[geom].startswith("robot0:")]
        self.robot_geoms = np.array(robot)  # [G] every geom of the robot that can touch an object
        self._geoms = np.array([*robot, *(geom for geom in others if geom not in robot), *things])
        self._data = mujoco.MjData(mj)
        joints = np.flatnonzero(mj.jnt_type != int(mujoco.mjtJoint.mjJNT_FREE))  # all but those of the objects
        self._joint_qpos = mj.jnt_qposadr[joints]
        self._joint_dofs = mj.jnt_dofadr[joints]
        self._slack = np.full((len(robot), 3), ARM_SLACK)
        for name in HAND:
            opening = FINGER_SLACK if name in FINGERS and not model.task.blocked else 0.0
            self._slack[robot.index(mj.geom(name).id)] = [HAND_SLACK, HAND_SLACK + opening, HAND_SLACK]

    def fork(self, states: npt.ArrayLike, actions: npt.ArrayLike, columns: Any = None) -> Floats:
        """Step M alternatives, actions [n, M, 4] (or [M, 4] for all), from each state [n, S] of `save_state`.

        Returns the next states [n, M, S], or some columns of them, such as `layout.object_pose`; NaN where the physics
        blew up.
        """
        rows = check_states(states, self.layout.size)
        action = _actions(actions, len(rows))  # [n, M, 4]
        count = action.shape[1]
        total = len(rows) * count
        chosen = np.arange(self.layout.size)[slice(None) if columns is None else columns]
        outcome = np.empty((total, len(chosen)))
        for first in range(0, total, self.slots):
            flat = np.arange(first, min(first + self.slots, total))
            after = rows[flat // count]
            slots = np.arange(len(flat))
            self.physics.restore(slots, after)
            _, blown = self.physics.advance(action[flat // count, flat % count], slots)
            moved = self.physics.save(slots)
            after[:, : moved.shape[1]] = moved  # the goal stays
            after[:, self.layout.elapsed] += 1
            after[blown] = np.nan
            outcome[flat] = after[:, chosen]
        return outcome.reshape(len(rows), count, len(chosen))

    def within_reach(self, states: npt.ArrayLike) -> Flags:
        """Find the states [n, S] in which some geom of the robot could touch an object during one step -> [n].

        Compares boxes around each link as it stands and where its velocity carries it, grown by the slack above, with
        the box of each object, grown by its own motion; of several objects, by that of the fastest, which may push the
        others. A state unlike those measured (a tilted gripper, or one apart from its qpos) counts as within reach.
        """
        rows = check_states(states, self.layout.size)
        low, high, lag = self._boxes(rows)
        count = len(self._poses)
        radius = self.physics.model.mj.geom_rbound[self._geoms[-count]]
        speeds = [
            np.linalg.norm(rows[:, columns][:, :3], axis=1) + radius * np.linalg.norm(rows[:, columns][:, 3:], axis=1)
            for columns in self._velocities
        ]
        moved = OBJECT_SPEED_FACTOR * np.max(speeds, axis=0) * TIME_STEP + OBJECT_SLACK
        near = np.zeros(len(rows), dtype=np.bool_)
        for place in range(-count, 0):  # of the object's box
            others = np.delete(np.arange(low.shape[1]), place)
            box = slice(place, place + 1 or None)
            gap = np.maximum(low[:, others] - high[:, box], low[:, box] - high[:, others])  # overlap: negative
            links, surroundings = gap[:, : len(self.robot_geoms)], gap[:, len(self.robot_geoms) :]
            sunk = np.maximum(-surroundings.max(axis=2), 0).max(axis=1)
            near |= (links <= self._slack + (moved + sunk)[:, None, None]).all(axis=2).any(axis=1)
        cosine = np.abs(rows[:, self.layout.gripper][:, 3:] @ [1.0, 0.0, 1.0, 0.0]) / np.sqrt(2)
        return np.asarray(near | (cosine < np.cos(UPRIGHT / 2)) | (lag > GRIPPER_LAG))

    def _boxes(self, rows: Floats) -> tuple[Floats, Floats, Floats]:
        """Return low and high corners [n, geoms, 3] of axis-aligned boxes, the objects last, and the lag [n].

        A box contains its geom as it stands and, except for the objects, where its velocity would carry it in the step;
        the lag is the distance between the gripper's kept position and the one that qpos gives.
        """
        layout = self.layout
        now = rows[:, layout.qpos]
        later = now.copy()
        later[:, self._joint_qpos] += TIME_STEP * rows[:, layout.qvel][:, self._joint_dofs]
        centres, matrices, gripper = zip(self._geom_poses(now), self._geom_poses(later), strict=True)
        centre = np.stack(centres, axis=1)  # [n, 2, geoms, 3]
        matrix = np.stack(matrices, axis=1)
        mj = self.physics.model.mj
        geoms = self._geoms
        axes = matrix.reshape(*matrix.shape[:3], 3, 3)
        centre += np.einsum("ntgij,gj->ntgi", axes, mj.geom_aabb[geoms, :3])
        half = np.einsum("ntgij,gj->ntgi", np.abs(axes), mj.geom_aabb[geoms, 3:])
        lag = np.linalg.norm(gripper[0] - rows[:, layout.gripper][:, :3], axis=1)
        return (centre - half).min(axis=1), (centre + half).max(axis=1), lag

    def _geom_poses(self, qpos: Floats) -> tuple[Floats, Floats, Floats]:
        """Positions [n, geoms, 3] and matrices [n, geoms, 9] of the geoms, and the gripper's position [n, 3]."""
        model = self.physics.model
        if self.physics.warp_device is not None:
            place, matrix, body = self.physics.batch.geom_poses(qpos)
            return place[:, self._geoms], matrix[:, self._geoms], body[:, model.gripper_body]
        data = self._data
        places = np.empty((len(qpos), len(self._geoms), 3))
        matrices = np.empty((len(qpos), len(self._geoms), 9))
        gripper = np.empty((len(qpos), 3))
        for number, row in enumerate(qpos):
            data.qpos[:] = row
            mujoco.mj_kinematics(model.mj, data)
            places[number] = data.geom_xpos[self._geoms]
            matrices[number] = data.geom_xmat[self._geoms]
            gripper[number] = data.xpos[model.gripper_body]
        return places, matrices, gripper


def exact_label(
    forker: Forker,
    states: npt.ArrayLike,
    taken: npt.ArrayLike | None = None,
    shortcut: bool = True,
    sizes: bool = True,
) -> tuple[Flags, Floats]:
    """Find out in which states [n, S] the object's next position depends on the action.

    Tries the corners of the action space and the actions `taken` [n, 4]. With the shortcut, states in which no part of
    the robot is within reach of an object are not forked; their effect is 0. Of two cubes it is about the one that the
    goal is about; the other one may be what pushes it.

    Returns the label effect > 1e-6 m [n] (1e-5 m with a `warp_device`), and the effect [n]: the largest range over the
    actions, max - min, of any coordinate of the object's next position in qpos, which is one substep newer than an
    observation. Actions whose physics blew up are left out; the effect is NaN, and the label False, where all did.

    If its `sizes` are not asked for, the effect is only that of the first actions which show one. The label is the
    same, with fewer forks.
    """
    rows = np.asarray(states, dtype=np.float64)
    candidates = [np.broadcast_to(forker.corners, (len(rows), *forker.corners.shape))]
    if taken is not None:
        candidates.append(_actions(np.asarray(taken)[:, None], len(rows)))
    action = np.concatenate(candidates, axis=1)  # [n, M, 4]
    effect = np.zeros(len(rows))
    chosen = np.flatnonzero(forker.within_reach(rows)) if shortcut else np.arange(len(rows))
    low = np.full((len(rows), 3), np.nan)
    high = low.copy()
    for tried in (slice(None),) if sizes else ROUNDS:
        outcome = forker.fork(rows[chosen], action[chosen, tried], forker.object_position)
        low[chosen] = np.fmin(low[chosen], np.fmin.reduce(outcome, axis=1))  # they pass over NaN
        high[chosen] = np.fmax(high[chosen], np.fmax.reduce(outcome, axis=1))
        effect[chosen] = (high[chosen] - low[chosen]).max(axis=1)
        chosen = chosen[~(effect[chosen] > forker.tolerance)]
    return effect > forker.tolerance, effect


def _actions(values: npt.ArrayLike, count: int) -> Actions:
    """Return the actions as float32 [count, M, 4] within [-1, 1]; refuse other shapes and NaN."""
    array = np.asarray(values, dtype=np.float32)
    if array.shape[-1:] != (4,) or array.ndim not in (2, 3) or (array.ndim == 3 and len(array) != count):
        raise ValueError(f"The actions have shape {array.shape}; expected [M, 4] for all states or [{count}, M, 4].")
    if np.isnan(array).any():
        raise ValueError("The actions contain NaN; nothing was stepped. Check what computed them.")
    return np.broadcast_to(np.clip(array, -1, 1), (count, *array.shape[-2:]))
