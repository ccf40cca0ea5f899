"""FetchRotTable: pick and place on a round table that turns by 45 degrees, pauses, and turns again.

Built from gymnasium-robotics' pick-and-place XML. The table turns for 25 steps and pauses for 5, as in the paper's text
(timing "paper", the default), or for 20 and 5, as in its release (timing "release"); its speed follows half a sine.
Observations have four more columns: sine and cosine of the table's angle, its velocity times 0.04, and the angle by
which the table will turn in the coming step.
"""

from typing import Any

import numpy as np

from butfor.envs.facts import ROUND_TABLE_CENTRE, ROUND_TABLE_RADIUS, ROUND_TABLE_TOP
from butfor.envs.fetch_physics import TIME_STEP, FetchPhysics, Floats, Task, mujoco

TURN = np.pi / 4  # the angle of one period
TIMINGS = {"paper": (25, 5), "release": (20, 5)}  # steps of moving and of pausing
TABLE_SIZE = (ROUND_TABLE_RADIUS, 0.2, 0.0)  # radius and half height
TABLE_MASS = 1.0
HINGE_DAMPING = 6.0
SERVO_STIFFNESS = 300.0
ROBOT, THING, TABLE, GUARD = 0b101, 0b011, 0b010, 0b100  # what shares a bit collides
STANDING_LINKS = ("base_link", "torso_lift_link", "torso_fixed_link", "laser_link", "estop_link")


def turn_in_step(step: Any, timing: str = "paper") -> Floats:
    """Return the angle in radians by which the table turns in a step of an episode (an array of step numbers)."""
    if timing not in TIMINGS:
        raise ValueError(f"timing is {timing!r}; expected one of {', '.join(TIMINGS)}.")
    moving, pause = TIMINGS[timing]
    phase = np.asarray(step) % (moving + pause)
    turn = TURN / 2 * (np.cos(np.pi * phase / moving) - np.cos(np.pi * (phase + 1) / moving))
    return np.where(phase < moving, turn, 0.0)


def replace_table(spec: Any) -> None:
    """Replace the box by a round table, with a guard plane that keeps the robot, and nothing else, above it."""
    for body in spec.bodies:
        if body.name.startswith("robot0:"):
            for geom in body.geoms:
                if geom.contype:  # the mocap's geoms touch nothing
                    geom.contype = geom.conaffinity = ROBOT
    spec.geom("object0").contype = spec.geom("object0").conaffinity = THING
    table = spec.body("table0")
    table.pos = ROUND_TABLE_CENTRE
    top = table.geoms[0]
    top.type = mujoco.mjtGeom.mjGEOM_CYLINDER
    top.size = TABLE_SIZE
    top.mass = TABLE_MASS
    top.contype = top.conaffinity = TABLE
    stripe = table.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, pos=[0.19, 0, TABLE_SIZE[1]], size=[0.19, 0.004, 0.001])
    stripe.rgba = [0.5, 0.5, 0.5, 1]  # it only shows the angle
    stripe.mass = stripe.contype = stripe.conaffinity = 0
    hinge = "table0:hinge"  # no name that starts with "robot", and the actuator comes last, behind the fingers'
    table.add_joint(name=hinge, type=mujoco.mjtJoint.mjJNT_HINGE, axis=[0, 0, 1], damping=[HINGE_DAMPING, 0, 0])
    servo = spec.add_actuator(name=hinge, target=hinge, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    # A position servo whose set-point moves steadily: one that jumps each step jerks the table from under the object.
    servo.set_to_intvelocity(kp=SERVO_STIFFNESS)
    servo.actlimited = False
    guard = spec.worldbody.add_body(name="guard0", pos=[*ROUND_TABLE_CENTRE[:2], ROUND_TABLE_TOP])
    plane = guard.add_geom(name="guard0", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0.38, 0.38, 1.0])
    plane.rgba = [0, 0, 0, 0]
    plane.contype = plane.conaffinity = GUARD
    for link in STANDING_LINKS:  # MuJoCo's planes are endless: these stand through it and would be lifted by it
        spec.add_exclude(bodyname1="guard0", bodyname2=f"robot0:{link}")


TASK = Task(
    "fetch/pick_and_place.xml",
    blocked=False,
    extra_height=0.2,
    air_share=0.9,
    object_start=(1.25, 0.53, ROUND_TABLE_TOP),
    edit=replace_table,
)


class RotTablePhysics(FetchPhysics):
    """Fetch environments with a table that turns by the clock."""

    observation_size = 29

    def __init__(self, timing: str = "paper", **options: Any) -> None:
        """Allocate environments; `timing` is "paper" or "release", `options` are those of `FetchPhysics`."""
        turn_in_step(0, timing)  # refuses an unknown timing
        super().__init__(TASK, **options)
        self.timing = timing
        hinge = self.model.mj.joint("table0:hinge")
        self.hinge_qpos = int(hinge.qposadr[0])
        self.hinge_dof = int(hinge.dofadr[0])

    def _turn(self, rows: Any) -> Floats:
        """Return the turn of the coming step [n]; the clock of the episode is the simulation's time."""
        step = np.rint((self.field["time"][rows] - self.model.start[0]) / TIME_STEP)
        return turn_in_step(step, self.timing)

    def _drive(self, rows: Any) -> None:
        """Set the speed of the table's set-point, in radians a second."""
        self.field["ctrl"][rows, -1] = self._turn(rows) / TIME_STEP

    def _observe(self, rows: Any) -> Floats:
        """Compute the observations [n, 29]."""
        angle = self.field["qpos"][rows, self.hinge_qpos]
        velocity = self.field["qvel"][rows, self.hinge_dof]
        table = np.stack([np.sin(angle), np.cos(angle), velocity * TIME_STEP, self._turn(rows)], axis=1)
        return np.concatenate([super()._observe(rows), table], axis=1)
