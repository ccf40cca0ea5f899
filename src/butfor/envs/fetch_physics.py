"""N simulated Fetch environments without episodes: place, advance, observe, save and restore them, all in batches."""

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
from butfor.envs.vector import Flags, Indices, default_threads

TIME_STEP = 0.04  # every velocity in an observation is multiplied by it
ACTION_SCALE = np.float32(0.05)  # metres that an action of 1 moves the gripper's target
CONTACT_FORCE = 30.0  # newtons, summed over the substeps and contact points of one finger
LARGEST_VALUE = 1e4  # of a coordinate or velocity; beyond it the physics counts as blown up
STATE_FIELDS = ("qpos", "qvel", "ctrl", "time", "mocap_pos", "mocap_quat")  # views of the state rows
DERIVED_FIELDS = ("xpos", "xquat", "site_xpos", "site_xmat", "cdof", "subtree_com")  # copied out after every call


class FetchPhysics:
    """The states of N environments, and the one way to move them.

    After `advance` the positions and Jacobians are one substep older than qpos and qvel, as in gymnasium-robotics,
    and the gripper's next target starts from its old position, which is why `gripper` is kept. Methods take the indices
    of environments in ascending order; None means all.
    """

    observation_size = 25

    def __init__(self, task: Task, count: int, contacts: bool = False, threads: int = 0) -> None:
        """Allocate `count` environments; `threads` 0 is BUTFOR_THREADS, or all processors."""
        self.model = build(task, contacts)
        self.count = count
        self.contacts = contacts
        self.layout = self.model.layout(self.observation_size)
        self.batch = Batch(self.model.mj, count, min(threads or default_threads(), count))
        self.field: dict[str, Floats] = {name: self.batch.bind(name) for name in STATE_FIELDS + DERIVED_FIELDS}
        self.gripper = np.zeros((count, 7))  # position and quaternion of the gripper's body
        self.observation = np.zeros((count, self.observation_size))
        self.forces = np.zeros((count, SUBSTEPS, self.model.mj.nsensordata))  # at the contacts, of the last step

    def like(self, count: int, threads: int = 0) -> "FetchPhysics":
        """Make simulated environments of the same kind, without contacts."""
        return FetchPhysics(self.model.task, count, threads=threads)

    def place(self, envs: Indices, places: Floats) -> None:
        """Put environments into the initial state, with their objects at these places [n, 2]."""
        self.batch.state[envs] = self.model.start
        first = self.model.object_qpos
        self.field["qpos"][envs, first : first + 2] = places
        self.refresh(envs)

    def refresh(self, envs: Indices | None) -> None:
        """Recompute positions and observations from qpos and qvel."""
        self.batch.forward(envs)
        self._read(envs)

    def advance(self, action: npt.NDArray[np.float32], envs: Indices | None = None) -> tuple[Flags, Flags]:
        """Make one environment step with actions [n, 4] in [-1, 1].

        Returns:
            Who touched the object [n], and whose physics blew up [n]. The latter are put back to the initial state, but
            keep their last true observation.
        """
        rows = slice(None) if envs is None else envs
        field = self.field
        fingers = self.model.actuated_qpos
        field["ctrl"][rows, : len(fingers)] = field["qpos"][rows][:, fingers] + action[:, 3:]
        field["mocap_pos"][rows, 0] = self.gripper[rows, :3] + action[:, :3] * ACTION_SCALE  # in float32
        field["mocap_quat"][rows, 0] = self.gripper[rows, 3:] + [1.0, 0.0, 1.0, 0.0]  # not normalised
        self._drive(rows)

        contact = np.zeros(len(action), dtype=np.bool_)
        if self.contacts:
            record = {"sensordata": self.forces[: len(action)]}
            failed = self._call(lambda: self.batch.rollout(SUBSTEPS, record=("sensordata",), ids=envs, out=record))
            contact = touching(record["sensordata"])
        else:
            failed = self._call(lambda: self.batch.step(envs, nstep=SUBSTEPS))
        if self.model.task.blocked:
            for finger in self.model.finger_qpos:
                field["qpos"][rows, finger] = 0.0
            failed |= self._call(lambda: self.batch.forward(envs))

        blown = failed[rows] | self.batch.warning[rows, :, 1].any(axis=1)
        for name in ("qpos", "qvel"):
            blown |= ~(np.abs(field[name][rows]) < LARGEST_VALUE).all(axis=1)  # also true of NaN
        before = self.observation[rows][blown]
        self._read(envs)
        if blown.any():
            lost = np.arange(self.count)[rows][blown]
            self.place(lost, np.broadcast_to(self.model.gripper[:2] + CLEARANCE, (len(lost), 2)))
            self.observation[lost] = before
            self.batch.warning[lost] = 0  # MuJoCo restarts its count when it resets itself: a rise could be missed
        return contact & ~blown, blown

    def save(self, envs: Indices) -> Floats:
        """Return physics, gripper and observation, the first columns of `layout`."""
        return np.concatenate([part[envs] for part in (self.batch.state, self.gripper, self.observation)], axis=1)

    def restore(self, envs: Indices, states: Floats) -> None:
        """Put saved columns back, without a refresh: that would move the gripper's next target by millimetres."""
        self.batch.state[envs] = states[:, self.layout.physics]
        self.gripper[envs] = states[:, self.layout.gripper]
        self.observation[envs] = states[:, self.layout.observation]

    def _call(self, call: Callable[[], Any]) -> Flags:
        """Call the batch; return the environments [N] in which MuJoCo raised an error, after stepping the others."""
        failed = np.zeros(self.count, dtype=np.bool_)
        try:
            call()
        except SimulationError as error:
            failed[error.ids] = True
        return failed

    def _drive(self, rows: Any) -> None:
        """Set the controls that are not the agent's."""

    def _read(self, envs: Indices | None) -> None:
        """Copy the gripper's pose and the observations out of MuJoCo's fields."""
        rows = slice(None) if envs is None else envs
        body = self.model.gripper_body
        self.gripper[rows, :3] = self.field["xpos"][rows, body]
        self.gripper[rows, 3:] = self.field["xquat"][rows, body]
        self.observation[rows] = self._observe(rows)

    def _observe(self, rows: Any) -> Floats:
        """Compute the observations [n, 25] in gymnasium-robotics' order."""
        model = self.model
        field = self.field
        qpos = field["qpos"][rows]
        qvel = field["qvel"][rows]
        grip = field["site_xpos"][rows, model.gripper_site]
        thing = field["site_xpos"][rows, model.object_site]
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
    """Sum the norms of recorded contact forces [n, substeps, fingers x points x 3] for each finger: [n, 2]."""
    points = record.reshape(len(record), SUBSTEPS, len(FINGERS), CONTACT_POINTS, 3)
    return np.asarray(np.sqrt(np.einsum("nsfpk,nsfpk->nsfp", points, points)).sum(axis=(1, 3)))


def touching(record: Floats) -> Flags:
    """Return whether the contact forces of one finger sum up to 30 N or more; [n, substeps, ...] -> [n]."""
    return np.asarray((finger_forces(record) >= CONTACT_FORCE).any(axis=1))


def euler(matrix: Floats) -> Floats:
    """Convert rotation matrices [n, 9], rows first, to gymnasium-robotics' Euler angles [n, 3]."""
    m = matrix.T
    cosine = np.sqrt(m[8] * m[8] + m[5] * m[5])
    regular = cosine > 4 * np.finfo(np.float64).eps
    x = np.where(regular, -np.arctan2(m[5], m[8]), 0.0)
    z = np.where(regular, -np.arctan2(m[1], m[0]), -np.arctan2(-m[3], m[4]))
    return np.stack([x, -np.arctan2(-m[2], cosine), z], axis=1)
