"""Labels of Panda states that are known by construction."""

from typing import Any

import numpy as np
import pytest
from support.forks import effect

from butfor.benchmarks.environments import TASKS

pytest.importorskip("panda_gym")

NAMES = [name for name, task in TASKS.items() if task.package == "panda-gym"]


def place(simulation: Any, position: Any, velocity: Any = (0, 0, 0)) -> None:
    """Put the object somewhere, with a velocity, and take one step in which the hand stays where it is."""
    body = simulation.bodies[simulation.thing]
    simulation.bullet.resetBasePositionAndOrientation(body, position, [0, 0, 0, 1])
    simulation.bullet.resetBaseVelocity(body, velocity, [0, 0, 0])
    simulation.step(np.zeros(simulation.action_space.shape, np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_an_object_out_of_reach_is_not_influenced(name: str) -> None:
    """Effects are exactly 0, also while the object slides and the hand presses on the table."""
    simulation: Any = TASKS[name].open()
    simulation.reset(0)
    down = np.zeros(simulation.action_space.shape, np.float32)
    down[2] = -1
    for _ in range(6):
        simulation.step(down)
    x, y, z = simulation.env.robot.get_ee_position()
    place(simulation, [x - 0.15, y + 0.2, z + 0.03])
    assert effect(simulation) == 0
    place(simulation, [x - 0.15, 0.2, 0.02], velocity=[-0.3, 0.1, 0])
    assert effect(simulation) == 0


@pytest.mark.parametrize("name", NAMES)
def test_an_object_at_the_hand_is_influenced(name: str) -> None:
    simulation: Any = TASKS[name].open()
    simulation.reset(0)
    x, y, z = simulation.env.robot.get_ee_position()
    place(simulation, [x + 0.045, y, z])
    assert effect(simulation) > 1e-3
