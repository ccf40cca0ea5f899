"""The simulator of the Fetch environments: models, initial states, and N states that are stepped together.

The models are gymnasium-robotics' own XML and meshes, settled and observed as its v4 does.
"""

import functools
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from butfor.envs.vector import Flags, Indices, default_threads

_INSTALL = "install them with: pip install 'butfor[fetch]'"
try:
    import mujoco as mujoco

    if int(mujoco.__version__.split(".")[0]) != 4:
        raise ImportError(f"this is mujoco {mujoco.__version__}")
    from mujoco.batch import Batch as Batch
    from mujoco.batch import SimulationError as SimulationError
except ImportError as error:
    raise ImportError(f"The Fetch environments need mujoco 4 and gymnasium-robotics ({error}); {_INSTALL}.") from error
except Exception as error:  # when imported, mujoco loads the graphics library that MUJOCO_GL names
    if "MUJOCO_GL" not in os.environ:
        raise
    raise ImportError(
        f"mujoco cannot be imported with MUJOCO_GL={os.environ['MUJOCO_GL']} ({error}); unset MUJOCO_GL, or install "
        "what it names (on Debian and Ubuntu: apt install libegl1 for egl, libosmesa6 for osmesa)."
    ) from error

Floats = npt.NDArray[np.float64]

SUBSTEPS = 20
INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
CONTACT_POINTS = 8  # the most that MuJoCo finds between two boxes
FINGERS = ("robot0:r_gripper_finger_link", "robot0:l_gripper_finger_link")  # geoms
CLEARANCE = 0.1  # between the initial gripper and the object
LARGEST_LIFT = 0.45
TIME_STEP = 0.04  # every velocity in an observation is multiplied by it
ACTION_SCALE = np.float32(0.05)  # metres that an action of 1 moves the gripper's target
CONTACT_FORCE = 30.0  # newtons, summed over the substeps and contact points of one finger
LARGEST_VALUE = 1e4  # of a coordinate or velocity; beyond it the physics counts as blown up
STATE_FIELDS = ("qpos", "qvel", "ctrl", "time", "mocap_pos", "mocap_quat")  # views of the state rows
DERIVED_FIELDS = ("xpos", "xquat", "site_xpos", "site_xmat", "cdof", "subtree_com")  # copied out after every call


@dataclass(frozen=True)
class Task:
    """What distinguishes one Fetch environment from another."""

    xml: str  # below gymnasium-robotics' assets
    blocked: bool  # the fingers are held closed
    extra_height: float  # of the gripper at the start
    air_share: float  # probability that a goal is lifted above the table
    object_start: tuple[float, float, float] = (1.25, 0.53, 0.4)  # where the object settles on the table
    robot_start: float = 0.405  # of the robot's base, along x
    object_range: float = 0.15  # around the initial gripper, in x and y
    goal_range: float = 0.15  # around the initial gripper, in x and y
    goal_offset: float = 0.0  # of the goals, along x
    edit: Callable[[Any], None] | None = None  # changes the mujoco.MjSpec before it is compiled


TASKS = {
    "push": Task("fetch/push.xml", blocked=True, extra_height=0.0, air_share=0.0),
    "pick-and-place": Task("fetch/pick_and_place.xml", blocked=False, extra_height=0.2, air_share=0.5),
    "fetch-slide": Task(
        "fetch/slide.xml",
        blocked=True,
        extra_height=-0.02,
        air_share=0.0,
        object_start=(1.7, 1.1, 0.41),
        robot_start=0.05,
        object_range=0.1,
        goal_range=0.3,
        goal_offset=0.4,
    ),
}


def assets() -> Path:
    """Find the XML files and meshes of the installed gymnasium-robotics, without importing it."""
    found = importlib.util.find_spec("gymnasium_robotics")
    if found is None or found.origin is None:
        raise ImportError(f"The Fetch environments need the meshes of gymnasium-robotics; {_INSTALL}.")
    return Path(found.origin).parent / "envs" / "assets"


class Model:
    """A compiled task, settled into its initial pose as in gymnasium-robotics v4; nothing of it changes later."""

    def __init__(self, task: Task, contacts: bool) -> None:
        """Compile the task; `build` does so only once per process."""
        spec = mujoco.MjSpec.from_file(str(assets() / task.xml))
        if task.edit is not None:
            task.edit(spec)
        if contacts:
            for finger in FINGERS:
                spec.add_sensor(
                    name=f"contact:{finger}",
                    type=mujoco.mjtSensor.mjSENS_CONTACT,
                    objtype=mujoco.mjtObj.mjOBJ_GEOM,
                    objname=finger,
                    reftype=mujoco.mjtObj.mjOBJ_GEOM,
                    refname="object0",
                    # the force at every contact point, without reduction, for so many points
                    intprm=[1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE), 0, CONTACT_POINTS],
                )
        mj = spec.compile()
        base = {"robot0:slide0": task.robot_start, "robot0:slide1": 0.48, "robot0:slide2": 0.0}
        joints: dict[str, Any] = base | {"object0:joint": [*task.object_start, 1, 0, 0, 0]}
        fingers = [mj.joint(f"robot0:{side}_gripper_finger_joint").id for side in "rl"]
        actuated = [mj.actuator_trnid[i, 0] for i in range(mj.nu) if mj.actuator(i).name.startswith("robot0:")]
        thing = mj.joint("object0:joint").id
        self.task = task
        self.mj: Any = mj  # mujoco.MjModel; nobody writes to it
        self.gripper_body = int(mj.body("robot0:gripper_link").id)
        self.gripper_site = int(mj.site("robot0:grip").id)
        self.object_site = int(mj.site("object0").id)
        self.target_site = int(mj.site("target0").id)
        self.start, sites = settle(mj, joints, task.extra_height)  # [physics] the state of a reset, but for the object
        self.gripper: Floats = sites[self.gripper_site]  # [3] its initial position
        self.height = float(sites[self.object_site, 2])  # of the object at rest on the table
        self.gripper_root = mj.body_rootid[self.gripper_body]  # the spatial axes refer to its subtree's centre of mass
        carriers = [self.gripper_body]
        while carriers[-1]:
            carriers.append(mj.body_parentid[carriers[-1]])
        self.arm_dofs = np.flatnonzero(np.isin(mj.dof_bodyid, carriers))  # the degrees of freedom that move the gripper
        self.finger_qpos = mj.jnt_qposadr[fingers].astype(np.int64)  # right, left
        self.finger_dofs = mj.jnt_dofadr[fingers].astype(np.int64)
        self.actuated_qpos = mj.jnt_qposadr[actuated].astype(np.int64)  # of the finger actuators, in their order
        self.object_qpos = int(mj.jnt_qposadr[thing])
        self.object_dof = int(mj.jnt_dofadr[thing])


build = functools.lru_cache(maxsize=8)(Model)


class FetchState:
    """The columns of a saved state, float64 [S]: all that decides what the environment does next.

    `physics` is MuJoCo's mjSTATE_INTEGRATION; `time`, `qpos`, `qvel` and the object's columns lie within it. After a
    step MuJoCo's body poses are one substep older than qpos, and the next mocap target starts from the old pose of
    the gripper: so `gripper` (position, quaternion) is part of the state and cannot be recomputed from qpos.
    """

    def __init__(self, model: Model, observation_size: int) -> None:
        bits = [mujoco.mjtState.mjSTATE_TIME, mujoco.mjtState.mjSTATE_QPOS, mujoco.mjtState.mjSTATE_QVEL]
        qpos, qvel, rest = np.cumsum([mujoco.mj_stateSize(model.mj, int(bit)) for bit in bits]).tolist()
        pose = qpos + model.object_qpos
        velocity = qvel + model.object_dof
        ends = np.cumsum([len(model.start), 7, observation_size, 3, 1]).tolist()
        self.physics = slice(0, ends[0])
        self.time = slice(0, qpos)
        self.qpos = slice(qpos, qvel)
        self.qvel = slice(qvel, rest)
        self.object_pose = slice(pose, pose + 7)  # position and quaternion
        self.object_velocity = slice(velocity, velocity + 6)  # linear in the world's frame, angular in the object's
        self.gripper = slice(ends[0], ends[1])
        self.observation = slice(ends[1], ends[2])
        self.desired_goal = slice(ends[2], ends[3])
        self.elapsed = slice(ends[3], ends[4])  # steps of the episode so far
        self.size: int = ends[4]


def settle(mj: Any, joints: dict[str, Any], extra_height: float) -> tuple[Floats, Floats]:
    """Let a compiled model settle as gymnasium-robotics v4 does; return its state for resets and its site positions."""
    mj.eq_data[mj.eq_type == int(mujoco.mjtEq.mjEQ_WELD), :7] = [0, 0, 0, 0, 0, 0, 1]
    data = mujoco.MjData(mj)
    for name, value in joints.items():
        data.joint(name).qpos = value
    mujoco.mj_forward(mj, data)
    grip = data.site("robot0:grip").xpos
    data.mocap_pos[0] = np.array([-0.498, 0.005, -0.431 + extra_height]) + grip
    data.mocap_quat[0] = [1, 0, 1, 0]
    mujoco.mj_step(mj, data, nstep=10 * SUBSTEPS)
    sites, time, qpos, qvel = data.site_xpos.copy(), data.time, data.qpos.copy(), data.qvel.copy()
    mujoco.mj_resetData(mj, data)
    data.time, data.qpos, data.qvel = time, qpos, qvel
    start = np.empty(mujoco.mj_stateSize(mj, INTEGRATION))
    mujoco.mj_getState(mj, data, start, INTEGRATION)
    return start, sites


def draw_start(model: Model, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw the object's place [2] and the goal [3] of a new episode, in the order of gymnasium-robotics."""
    task = model.task
    place = model.gripper[:2]
    while np.linalg.norm(place - model.gripper[:2]) < CLEARANCE:
        place = model.gripper[:2] + generator.uniform(-task.object_range, task.object_range, size=2)
    goal = model.gripper + generator.uniform(-task.goal_range, task.goal_range, size=3)
    goal[0] += task.goal_offset
    goal[2] = model.height
    if task.air_share > 0 and generator.uniform() < task.air_share:
        goal[2] += generator.uniform(0, LARGEST_LIFT)
    return place, goal


class FetchPhysics:
    """The states of N environments, and the one way to move them.

    After `advance` the positions and Jacobians are one substep older than qpos and qvel, as in gymnasium-robotics,
    and the gripper's next target starts from its old position, which is why `gripper` is kept. Methods take the indices
    of environments in ascending order; None means all.
    """

    observation_size = 25
    achieved_goal = slice(3, 6)  # columns of the observation
    objects = 1
    goal_object = 0  # the number of the one that the goal is about

    def __init__(
        self, task: Task, count: int, contacts: bool = False, threads: int = 0, warp_device: str | None = None
    ) -> None:
        """Allocate `count` environments; `threads` 0 is BUTFOR_THREADS, or all processors.

        With a `warp_device`, such as "cuda", MuJoCo Warp steps them there, in float32.
        """
        if contacts and warp_device is not None:
            raise ValueError(f"Contacts are not reported with warp_device={warp_device!r}; leave one of them out.")
        self.model = build(task, contacts)
        self.count = count
        self.contacts = contacts
        self.layout = FetchState(self.model, self.observation_size)
        self.warp_device = warp_device
        self.batch = self._make_batch(min(threads or default_threads(), count))
        self.field: dict[str, Floats] = {name: self.batch.bind(name) for name in STATE_FIELDS + DERIVED_FIELDS}
        self.gripper = np.zeros((count, 7))  # position and quaternion of the gripper's body
        self.observation = np.zeros((count, self.observation_size))
        self.forces = np.zeros((count, SUBSTEPS, self.model.mj.nsensordata))  # at the contacts, of the last step

    def _make_batch(self, threads: int) -> Any:
        if self.warp_device is None:
            return Batch(self.model.mj, self.count, threads)
        from butfor.envs.warp_batch import WarpBatch

        return WarpBatch(self.model.mj, self.count, self.warp_device)

    def draw_start(self, generator: np.random.Generator) -> tuple[Floats, Floats]:
        """Draw the places [2 x objects] and the goal [3] of a new episode."""
        return draw_start(self.model, generator)

    def place(self, envs: Indices, places: Floats) -> None:
        """Put environments into the initial state, with their objects at these places [n, 2 x objects]."""
        self.batch.state[envs] = self.model.start
        for number in range(self.objects):
            first = self.model.object_qpos + 7 * number
            self.field["qpos"][envs, first : first + 2] = places[:, 2 * number : 2 * number + 2]
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

        contact: Flags = np.zeros(len(action), dtype=np.bool_)
        if self.contacts:
            record = {"sensordata": self.forces[: len(action)]}
            failed = self._call(lambda: self.batch.rollout(SUBSTEPS, record=("sensordata",), ids=envs, out=record))
            contact = np.any(finger_forces(record["sensordata"]) >= CONTACT_FORCE, axis=1)
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
            corners = np.concatenate([self.model.gripper[:2] + CLEARANCE, self.model.gripper[:2] - CLEARANCE])
            self.place(lost, np.broadcast_to(corners[: 2 * self.objects], (len(lost), 2 * self.objects)))
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
        grip, grip_velocity = self._observe_grip(rows)
        thing, linear, matrix, spin = self._observe_object(rows, model.object_site, model.object_dof)
        fingers = self.field["qpos"][rows][:, model.finger_qpos]
        finger_velocity = self.field["qvel"][rows][:, model.finger_dofs] * TIME_STEP
        parts = [grip, thing, thing - grip, fingers, euler(matrix)]
        parts += [linear - grip_velocity, spin, grip_velocity, finger_velocity]
        return np.concatenate(parts, axis=1)

    def _observe_grip(self, rows: Any) -> tuple[Floats, Floats]:
        """Position and velocity [n, 3] of the grip."""
        model = self.model
        field = self.field
        qvel = field["qvel"][rows]
        grip = field["site_xpos"][rows, model.gripper_site]
        # Spatial velocity about the robot's centre of mass, from old axes and new joint velocities, moved to the grip.
        axes = field["cdof"][rows][:, model.arm_dofs]  # [n, dofs, 6]
        twist = np.einsum("nd,ndk->nk", qvel[:, model.arm_dofs], axes)
        arm = grip - field["subtree_com"][rows, model.gripper_root]
        turn = twist[:, [1, 2, 0]] * arm[:, [2, 0, 1]] - twist[:, [2, 0, 1]] * arm[:, [1, 2, 0]]  # their cross product
        return grip, (twist[:, 3:] + turn) * TIME_STEP

    def _observe_object(self, rows: Any, site: int, dof: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Position, velocity [n, 3], rotation matrix [n, 9] and angular velocity [n, 3] of an object."""
        qvel = self.field["qvel"][rows]
        matrix = self.field["site_xmat"][rows, site]
        spin = np.einsum("nij,nj->ni", matrix.reshape(-1, 3, 3), qvel[:, dof + 3 : dof + 6]) * TIME_STEP
        return self.field["site_xpos"][rows, site], qvel[:, dof : dof + 3] * TIME_STEP, matrix, spin


def finger_forces(record: Floats) -> Floats:
    """Sum the norms of recorded contact forces [n, substeps, fingers x points x 3] for each finger: [n, 2]."""
    points = record.reshape(len(record), SUBSTEPS, len(FINGERS), CONTACT_POINTS, 3)
    return np.asarray(np.sqrt(np.einsum("nsfpk,nsfpk->nsfp", points, points)).sum(axis=(1, 3)))


def euler(matrix: Floats) -> Floats:
    """Convert rotation matrices [n, 9], rows first, to gymnasium-robotics' Euler angles [n, 3]."""
    m = matrix.T
    cosine = np.sqrt(m[8] * m[8] + m[5] * m[5])
    regular = cosine > 4 * np.finfo(np.float64).eps
    x = np.where(regular, -np.arctan2(m[5], m[8]), 0.0)
    z = np.where(regular, -np.arctan2(m[1], m[0]), -np.arctan2(-m[3], m[4]))
    return np.stack([x, -np.arctan2(-m[2], cosine), z], axis=1)
