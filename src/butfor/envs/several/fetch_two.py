"""FetchPushTwo and FetchStackTwo: the Fetch robot with two cubes, built from gymnasium-robotics' own XML.

| task | gripper | goal |
|---|---|---|
| `push-two` | closed | the second cube at a place on the table; the first one often lies between |
| `stack-two` | opens and closes | the first cube on top of where the second one started |

Every entity has columns of its own, and none follows from others, so that an entity can be replaced in an observation:
gripper position, velocity, fingers, their velocities (10); then of each cube position, velocity, the first two rows of
its rotation matrix, angular velocity (15). Velocities are multiplied by the time of a step.
"""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from butfor.envs.facts import CUBE_COLUMNS, MOVED, OBJECT_HALF_SIZE
from butfor.envs.fetch_physics import CLEARANCE, TIME_STEP, FetchPhysics, Floats, Task, mujoco
from butfor.envs.vector import Flags

SECOND_PLACE = (1.45, 0.95, 0.425)  # where the second cube settles before the first reset
BETWEEN = 0.08  # least distance between the cubes' centres at the start
APART = 0.075  # distance of two cubes' centres at which they cannot touch
REACH = 0.12  # distance of cube and gripper at which they cannot touch
ENTITIES = ("gripper", "object0", "object1")


def add_second_cube(spec: Any, absent: str | None = None) -> None:
    """Add a cube like the first one; the entity `absent` of `ENTITIES` touches nothing."""
    first = spec.geom("object0")
    body = spec.worldbody.add_body(name="object1", pos=SECOND_PLACE)
    body.add_joint(name="object1:joint", type=mujoco.mjtJoint.mjJNT_FREE, damping=[0.01, 0, 0])
    geom = body.add_geom(name="object1", type=mujoco.mjtGeom.mjGEOM_BOX, size=first.size)
    geom.mass = first.mass
    geom.condim = first.condim
    geom.rgba = [0.2, 0.4, 0.9, 1]
    body.add_site(name="object1", size=[0.02, 0.02, 0.02], rgba=[1, 0, 0, 0])
    if absent is not None:
        prefix = "robot0:" if absent == "gripper" else absent
        for one in (geom for body in spec.bodies if body.name.startswith(prefix) for geom in body.geoms):
            one.contype = one.conaffinity = 0


def _tasks(xml: str, blocked: bool, extra_height: float) -> dict[str | None, Task]:
    """The task with all entities (None), and without each of them."""
    edits = {absent: partial(add_second_cube, absent=absent) for absent in (None, *ENTITIES)}
    return {absent: Task(xml, blocked, extra_height, air_share=0.0, edit=edit) for absent, edit in edits.items()}


TASKS = {
    "push-two": _tasks("fetch/push.xml", blocked=True, extra_height=0.0),
    "stack-two": _tasks("fetch/pick_and_place.xml", blocked=False, extra_height=0.2),
}


class FetchTwoPhysics(FetchPhysics):
    """Fetch environments with two cubes."""

    observation_size = 40
    objects = 2

    def __init__(self, name: str, absent: str | None = None, **options: Any) -> None:
        """Allocate environments; `absent` is an entity that touches nothing, `options` are those of `FetchPhysics`."""
        super().__init__(TASKS[name][absent], **options)
        self.stacks = name == "stack-two"
        self.goal_object = 0 if self.stacks else 1
        first = CUBE_COLUMNS[self.goal_object][0]
        self.achieved_goal = slice(first, first + 3)
        mj = self.model.mj
        self.sites = [int(mj.site(f"object{number}").id) for number in range(2)]
        self.dofs = [int(mj.joint(f"object{number}:joint").dofadr[0]) for number in range(2)]

    def draw_start(self, generator: np.random.Generator) -> tuple[Floats, Floats]:
        """Draw the places [4] of both cubes, and the goal [3]."""
        centre = self.model.gripper[:2]
        reach = self.model.task.object_range
        places: list[Floats] = []
        while len(places) < 2:
            place = centre + generator.uniform(-reach, reach, size=2)
            clear = np.linalg.norm(place - centre) >= CLEARANCE or self.stacks  # high above, it touches neither
            if clear and all(np.linalg.norm(place - other) >= BETWEEN for other in places):
                places.append(place)
        drawn = centre + generator.uniform(-reach, reach, size=2)
        goal = [*places[1], self.model.height + 2 * OBJECT_HALF_SIZE] if self.stacks else [*drawn, self.model.height]
        return np.concatenate(places), np.array(goal)

    def _observe(self, rows: Any) -> Floats:
        """Compute the observations [n, 40]."""
        fingers = self.field["qpos"][rows][:, self.model.finger_qpos]
        finger_velocity = self.field["qvel"][rows][:, self.model.finger_dofs] * TIME_STEP
        parts = [*self._observe_grip(rows), fingers, finger_velocity]
        for site, dof in zip(self.sites, self.dofs, strict=True):
            place, linear, matrix, spin = self._observe_object(rows, site, dof)
            parts += [place, linear, matrix[:, :6], spin]
        return np.concatenate(parts, axis=1)


class FetchTwoWorld:
    """The simulator as `edges` uses it: a state is a row of `FetchVectorEnv.save_state`, an outcome a position."""

    entities: tuple[str, ...] = ENTITIES
    action_size = 4
    tolerance = MOVED
    goal_radius = 0.05

    def __init__(self, task: str, slots: int = 256, threads: int = 0) -> None:
        """Prepare `slots` environments, and more for each entity that is left out once it is."""
        self.task = task
        self.slots = slots
        self.threads = threads
        self._physics: dict[str | None, FetchTwoPhysics] = {}
        self.layout = self._variant(None).layout
        model = self._variant(None).model
        self._poses = [self.layout.qpos.start + model.object_qpos + 7 * number for number in range(2)]
        self._velocities = [self.layout.qvel.start + model.object_dof + 6 * number for number in range(2)]

    def _variant(self, absent: str | None) -> FetchTwoPhysics:
        if absent not in self._physics:
            self._physics[absent] = FetchTwoPhysics(self.task, absent, count=self.slots, threads=self.threads)
        return self._physics[absent]

    def step(
        self, states: npt.NDArray[Any], actions: npt.NDArray[np.float32], absent: int | None = None
    ) -> npt.NDArray[Any]:
        """Step states [n, S]; rows in which the physics blew up are NaN."""
        physics = self._variant(None if absent is None else ENTITIES[absent])
        result = np.array(states, dtype=np.float64)
        lost = np.isnan(result[:, 0])
        for first in range(0, len(result), self.slots):
            rows = np.arange(first, min(first + self.slots, len(result)))
            rows = rows[~lost[rows]]
            slots = np.arange(len(rows))
            physics.restore(slots, result[rows])
            _, blown = physics.advance(np.clip(actions[rows], -1, 1).astype(np.float32), slots)
            moved = physics.save(slots)
            moved[blown] = np.nan
            result[rows, : moved.shape[1]] = moved
        return result

    def outcome(self, states: npt.NDArray[Any]) -> Floats:
        """Positions [n, 3, 3] of gripper and cubes; those of the cubes are one substep newer than the gripper's."""
        grip = states[:, self.layout.observation][:, :3]
        return np.stack([grip, *(states[:, pose : pose + 3] for pose in self._poses)], axis=1)

    def contacts(self, states: npt.NDArray[Any]) -> Flags:
        """Which of gripper and cubes touch each other, by MuJoCo's contacts: [n, 3, 3]."""
        mj = self._variant(None).model.mj
        data = mujoco.MjData(mj)
        names = [mj.body(body).name for body in mj.geom_bodyid]
        prefixes = ("robot0:", *ENTITIES[1:])
        owner = np.array([next((i for i, one in enumerate(prefixes) if name.startswith(one)), -1) for name in names])
        found = np.zeros((len(states), 3, 3), dtype=np.bool_)
        for row, state in enumerate(states):
            data.qpos[:] = state[self.layout.qpos]
            mujoco.mj_kinematics(mj, data)
            mujoco.mj_collision(mj, data)
            one, other = owner[data.contact.geom].T
            touching = (one >= 0) & (other >= 0) & (one != other)
            found[row, one[touching], other[touching]] = found[row, other[touching], one[touching]] = True
        return found

    def replaced(
        self, states: npt.NDArray[Any], source: int, others: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], Flags]:
        """States with one entity as in other states, and where it is clear of the other two."""
        result = np.array(states if source else others, dtype=np.float64)
        taken, given = (others, source - 1) if source else (states, None)
        for number in range(2):
            if given is None or number == given:
                for first, size in ((self._poses[number], 7), (self._velocities[number], 6)):
                    result[:, first : first + size] = taken[:, first : first + size]
        grip, one, other = np.moveaxis(self.outcome(result), 1, 0)
        apart = np.linalg.norm(one - other, axis=1) >= APART
        clear = [np.linalg.norm(grip - cube, axis=1) >= REACH for cube in (one, other)]
        possible = clear[0] & clear[1] if source == 0 else apart & clear[source - 1]
        return result, np.asarray(possible)
