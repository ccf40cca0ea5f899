"""N simulated Fetch worlds without episodes: place, advance, observe, save and restore them, all in batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from butfor.envs.fetch_model import (
    CLEARANCE,
    CONTACT_POINTS,
    FINGERS,
    SUBSTEPS,
    Batch,
    Floats,
    SimulationError,
    Task,
    build,
)
from butfor.envs.vector import default_threads

Flags = npt.NDArray[np.bool_]
Worlds = npt.NDArray[np.int64] | None  # ascending indices; None means all

TIME_STEP = 0.04  # every velocity in an observation is multiplied by it
ACTION_SCALE = np.float32(0.05)  # metres that an action of 1 moves the gripper's target
CONTACT_FORCE = 30.0  # newtons, summed over the substeps and contact points of one finger
LARGEST_VALUE = 1e4  # of a coordinate or velocity: beyond it a world counts as blown up
STATE_FIELDS = ("qpos", "qvel", "ctrl", "time", "mocap_pos", "mocap_quat")  # views of the state rows
DERIVED_FIELDS = ("xpos", "xquat", "site_xpos", "site_xmat", "cdof", "subtree_com")  # copied out after every call


class FetchPhysics:
    """The worlds' states, and the one way to move them.

    After `advance` the positions and Jacobians are one substep older than qpos and qvel, as in gymnasium-robotics,
    and the gripper's next target starts from its old position, which is why `gripper` is kept.
    """

    observation_size = 25

    def __init__(self, task: Task, count: int, contacts: bool = False, threads: int = 0) -> None:
        """Allocate the worlds, none of them placed; `threads` 0 takes BUTFOR_THREADS, or all processors."""
        self.model, self.count, self.contacts = build(task, contacts), count, contacts
        self.layout = self.model.layout(self.observation_size)
        self.batch = Batch(self.model.mj, count, min(threads or default_threads(), count))
        self.field: dict[str, Floats] = {name: self.batch.bind(name) for name in STATE_FIELDS + DERIVED_FIELDS}
        self.gripper = np.zeros((count, 7))  # position and quaternion of the gripper's body
        self.observation = np.zeros((count, self.observation_size))
        self.forces = np.zeros((count, SUBSTEPS, self.model.mj.nsensordata))  # at the contacts, of the last step

    def like(self, count: int, threads: int = 0) -> "FetchPhysics":
        """Make simulated environments of the same kind, without contacts."""
        return FetchPhysics(self.model.task, count, threads=threads)

    def place(self, worlds: npt.NDArray[np.int64], places: Floats) -> None:
        """Put worlds into the initial state with their objects at these places [n, 2]."""
        self.batch.state[worlds] = self.model.start
        first = self.model.object_qpos
        self.field["qpos"][worlds, first : first + 2] = places
        self.refresh(worlds)

    def refresh(self, worlds: Worlds) -> None:
        """Recompute positions and observations from qpos and qvel."""
        self.batch.forward(worlds)
        self._look(worlds)

    def advance(self, action: npt.NDArray[np.float32], worlds: Worlds = None) -> tuple[Flags, Flags]:
        """One environment step of actions [n, 4] in [-1, 1]: (who touched the object, whose physics blew up) [n].

        Worlds that blew up are put back to the initial state, but keep the observation from before: the last true one.
        """
        model, rows = self.model, slice(None) if worlds is None else worlds
        field, fingers = self.field, model.actuated_qpos
        field["ctrl"][rows, : len(fingers)] = field["qpos"][rows][:, fingers] + action[:, 3:]
        field["mocap_pos"][rows, 0] = self.gripper[rows, :3] + action[:, :3] * ACTION_SCALE  # in float32
        field["mocap_quat"][rows, 0] = self.gripper[rows, 3:] + [1.0, 0.0, 1.0, 0.0]  # not normalised
        self._drive(rows)

        contact = np.zeros(len(action), dtype=np.bool_)
        if self.contacts:
            record = {"sensordata": self.forces[: len(action)]}
            failed = self._survivors(
                lambda: self.batch.rollout(SUBSTEPS, record=("sensordata",), ids=worlds, out=record)
            )
            contact = touching(record["sensordata"])
        else:
            failed = self._survivors(lambda: self.batch.step(worlds, nstep=SUBSTEPS))
        if model.task.blocked:
            for finger in model.finger_qpos:
                field["qpos"][rows, finger] = 0.0
            failed |= self._survivors(lambda: self.batch.forward(worlds))

        blown = failed[rows] | self.batch.warning[rows, :, 1].any(axis=1)
        for name in ("qpos", "qvel"):
            blown |= ~(np.abs(field[name][rows]) < LARGEST_VALUE).all(axis=1)  # also true of NaN
        before = self.observation[rows][blown]
        self._look(worlds)
        if blown.any():
            lost = np.arange(self.count)[rows][blown]
            self.place(lost, np.broadcast_to(model.gripper[:2] + CLEARANCE, (len(lost), 2)))
            self.observation[lost] = before
            self.batch.warning[lost] = 0  # MuJoCo restarts its count when it resets itself: a rise could be missed
        return contact & ~blown, blown

    def save(self, worlds: npt.NDArray[np.int64]) -> Floats:
        """Physics, gripper and observation, the first columns of `layout`."""
        return np.concatenate([part[worlds] for part in (self.batch.state, self.gripper, self.observation)], axis=1)

    def restore(self, worlds: npt.NDArray[np.int64], states: Floats) -> None:
        """Put saved columns back; a refresh would move the gripper's next target by millimetres, so there is none."""
        self.batch.state[worlds] = states[:, self.layout.physics]
        self.gripper[worlds] = states[:, self.layout.gripper]
        self.observation[worlds] = states[:, self.layout.observation]

    def _survivors(self, call: Callable[[], Any]) -> Flags:
        """Run a call of the batch and tell the worlds in which MuJoCo raised an error; the others went on."""
        failed = np.zeros(self.count, dtype=np.bool_)
        try:
            call()
        except SimulationError as error:
            failed[error.ids] = True
        return failed

    def _drive(self, rows: Any) -> None:
        """Set the controls that are not the agent's: none here."""

    def _look(self, worlds: Worlds) -> None:
        """Take over the gripper's pose and the observations that MuJoCo's fields give now."""
        rows = slice(None) if worlds is None else worlds
        body = self.model.gripper_body
        self.gripper[rows, :3], self.gripper[rows, 3:] = self.field["xpos"][rows, body], self.field["xquat"][rows, body]
        self.observation[rows] = self._observe(rows)

    def _observe(self, rows: Any) -> Floats:
        """The observations [n, 25] in gymnasium-robotics' order."""
        model, field = self.model, self.field
        qpos, qvel = field["qpos"][rows], field["qvel"][rows]
        grip, thing = field["site_xpos"][rows, model.gripper_site], field["site_xpos"][rows, model.object_site]
        matrix = field["site_xmat"][rows, model.object_site]  # [n, 9]
        # Spatial velocity about the robot's centre of mass, from old axes and new joint velocities, moved to the grip.
        axes = field["cdof"][rows][:, model.arm_dofs]  # [n, dofs, 6]
        twist = np.einsum("nd,ndk->nk", qvel[:, model.arm_dofs], axes)
        arm = grip - field["subtree_com"][rows, model.gripper_root]
        turn = twist[:, [1, 2, 0]] * arm[:, [2, 0, 1]] - twist[:, [2, 0, 1]] * arm[:, [1, 2, 0]]  # their cross product
        grip_velocity = (twist[:, 3:] + turn) * TIME_STEP
        first = model.object_dof
        linear = qvel[:, first : first + 3]
        spin = np.einsum("nij,nj->ni", matrix.reshape(-1, 3, 3), qvel[:, first + 3 : first + 6]) * TIME_STEP
        parts = [grip, thing, thing - grip, qpos[:, model.finger_qpos], euler(matrix)]
        parts += [linear * TIME_STEP - grip_velocity, spin, grip_velocity, qvel[:, model.finger_dofs] * TIME_STEP]
        return np.concatenate(parts, axis=1)


def finger_forces(record: Floats) -> Floats:
    """Recorded contact forces [n, substeps, fingers x points x 3] -> the sum of their norms for each finger [n, 2]."""
    points = record.reshape(len(record), SUBSTEPS, len(FINGERS), CONTACT_POINTS, 3)
    return np.asarray(np.sqrt(np.einsum("nsfpk,nsfpk->nsfp", points, points)).sum(axis=(1, 3)))


def touching(record: Floats) -> Flags:
    """Whether the contact forces of one finger sum up to 30 N or more; [n, substeps, ...] -> [n]."""
    return np.asarray((finger_forces(record) >= CONTACT_FORCE).any(axis=1))


def euler(matrix: Floats) -> Floats:
    """Rotation matrices [n, 9], rows first, as gymnasium-robotics' Euler angles [n, 3]."""
    m = matrix.T
    cosine = np.sqrt(m[8] * m[8] + m[5] * m[5])
    regular = cosine > 4 * np.finfo(np.float64).eps
    x = np.where(regular, -np.arctan2(m[5], m[8]), 0.0)
    z = np.where(regular, -np.arctan2(m[1], m[0]), -np.arctan2(-m[3], m[4]))
    return np.stack([x, -np.arctan2(-m[2], cosine), z], axis=1)
