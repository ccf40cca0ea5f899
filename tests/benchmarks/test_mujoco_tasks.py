"""Labels of MuJoCo states that are known by construction."""

from typing import Any

import mujoco
import numpy as np
import pytest
from support.forks import effect

from butfor.benchmarks.environments import TASKS, TOLERANCE
from butfor.benchmarks.mujoco_tasks import AntBall, FetchSlide, Hand, Kitchen, MujocoSimulation, Stick

Place = tuple[float, float]


def place(simulation: MujocoSimulation, position: Any) -> None:
    """Put the object somewhere, at rest."""
    joint = simulation.data.joint(simulation.object_joint)
    joint.qpos[:3] = position
    joint.qvel[:] = 0
    mujoco.mj_forward(simulation.model, simulation.data)


def test_fetch_slide() -> None:
    simulation = FetchSlide()
    simulation.reset(0)
    puck = simulation.object_state()
    hand = np.array(simulation.data.site("robot0:grip").xpos)
    place(simulation, [hand[0] + 0.3, hand[1] + 0.3, puck[2]])
    assert effect(simulation) < TOLERANCE
    place(simulation, [hand[0] + 0.04, hand[1], puck[2]])
    assert effect(simulation) > 1e-3


def test_a_block_on_the_floor_is_not_influenced_and_one_on_a_finger_is() -> None:
    simulation = Hand("HandManipulateBlock-v1")
    simulation.reset(0)
    x, y, z = simulation.data.body("robot0:mfmiddle").xpos
    place(simulation, [x, y, z + 0.03])
    assert effect(simulation) > 1e-3
    place(simulation, [x + 0.5, y, 0.05])
    assert effect(simulation) < TOLERANCE


def test_the_kettle_is_influenced_by_the_arm_at_it() -> None:
    simulation = Kitchen()
    simulation.reset(0)
    assert effect(simulation) < TOLERANCE
    rng = np.random.default_rng(0)
    for _ in range(30):
        simulation.step(simulation.scripted(rng))
    assert effect(simulation) > 1e-3


def test_the_ball_is_influenced_by_a_leg() -> None:
    simulation = AntBall()
    simulation.reset(0)
    foot = simulation.data.geom("left_ankle_geom").xpos
    place(simulation, [foot[0], foot[1] + 0.3, 0.2])
    assert effect(simulation) > 1e-3
    place(simulation, [-1.2, -1.2, 0.2])
    assert effect(simulation) < TOLERANCE


def arrange(simulation: Stick, hand: Place, stick: Place, puck: Place) -> None:
    """Put hand and puck beside a stick along the x axis, all at rest."""
    simulation.reset(0)
    simulation.data.qpos[:] = [*hand, *stick, 0.0, *puck]
    simulation.data.qvel[:] = 0
    mujoco.mj_forward(simulation.model, simulation.data)


@pytest.mark.parametrize(
    ("hand", "stick", "puck", "influenced"),
    [
        ((0.0, -0.06), (0.0, 0.0), (0.2, 0.07), True),  # hand touches stick, stick touches puck
        ((0.0, -0.06), (0.0, 0.0), (0.2, 0.2), False),  # the stick does not reach it in one step
        ((0.0, -0.2), (0.0, 0.0), (0.2, 0.07), False),  # the hand does not reach the stick
        ((0.0, 0.0), (0.0, 0.4), (0.08, 0.0), True),  # without the stick
        ((0.0, -0.06), (0.0, 0.4), (0.2, 0.07), False),  # as in the first row, but the stick lies elsewhere
    ],
)
def test_a_stick_carries_the_effect(hand: Place, stick: Place, puck: Place, influenced: bool) -> None:
    simulation = Stick()
    arrange(simulation, hand, stick, puck)
    assert (effect(simulation) > TOLERANCE) == influenced


def test_contact_is_that_of_hand_and_puck() -> None:
    simulation = Stick()
    arrange(simulation, (0.0, -0.06), (0.0, 0.0), (0.2, 0.07))
    simulation.step(np.array([0, 1]))
    assert not simulation.contact()
    arrange(simulation, (0.0, 0.0), (0.0, 0.4), (0.075, 0.0))
    simulation.step(np.array([1, 0]))
    assert simulation.contact()


def test_the_held_out_tasks_without_a_hand_have_no_distance() -> None:
    assert TASKS["kitchen"].hand_position is None
    assert TASKS["hand-block"].hand_position is None
