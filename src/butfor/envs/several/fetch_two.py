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

from butfor.envs.facts import CUBE_COLUMNS, OBJECT_HALF_SIZE
from butfor.envs.fetch_physics import CLEARANCE, TIME_STEP, FetchPhysics, Floats, Task, mujoco

SECOND_PLACE = (1.45, 0.95, 0.425)  # where the second cube settles before the first reset
BETWEEN = 0.08  # least distance between the cubes' centres at the start
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
        leave_out(spec, absent)


def leave_out(spec: Any, absent: str) -> None:
    """Let an entity of `ENTITIES` touch nothing."""
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
