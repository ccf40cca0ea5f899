"""Labels of MiniGrid states that are known by construction."""

import numpy as np
import pytest
from support.forks import effect

from butfor.benchmarks.grid import DoorKey

pytest.importorskip("minigrid")

RIGHT, DOWN, LEFT, UP = range(4)


@pytest.fixture
def room() -> DoorKey:
    """A simulation with the key at 1, 2 and a wall to the left of it; 1, 1 to 1, 4 are free."""
    simulation = DoorKey()
    simulation.reset(0)
    _, _, _, locked, is_open = simulation.save()
    simulation.restore(((1, 4), UP, (1, 2), locked, is_open))
    return simulation


def put(simulation: DoorKey, place: tuple[int, int], direction: int, key: tuple[int, int] | None) -> None:
    _, _, _, locked, is_open = simulation.save()
    simulation.restore((place, direction, key, locked, is_open))


@pytest.mark.parametrize(
    ("place", "direction", "key", "influenced"),
    [
        ((1, 3), UP, (1, 2), True),  # in front of the key: it can be picked up
        ((1, 3), DOWN, (1, 2), False),  # beside it, but facing away
        ((1, 4), UP, (1, 2), False),  # two cells away
        ((1, 3), DOWN, None, True),  # carries it and can walk or drop it
        ((1, 3), LEFT, None, False),  # carries it, faces the wall: it can do neither
    ],
)
def test_labels(
    room: DoorKey, place: tuple[int, int], direction: int, key: tuple[int, int] | None, influenced: bool
) -> None:
    put(room, place, direction, key)
    assert (effect(room) > 0) == influenced


def test_a_carried_key_is_where_the_agent_is(room: DoorKey) -> None:
    put(room, (1, 3), UP, (1, 2))
    obs = room.step(room.env.actions.pickup)
    np.testing.assert_array_equal(obs[[0, 1, 4, 5, 6]], [1, 3, 1, 3, 1])
    obs = room.step(room.env.actions.drop)
    np.testing.assert_array_equal(obs[[0, 1, 4, 5, 6]], [1, 3, 1, 2, 0])


def test_restoring_leaves_one_key_in_the_grid(room: DoorKey) -> None:
    for key in ((1, 2), None, (1, 1), (1, 2)):
        put(room, (1, 4), UP, key)
        keys = [cell for cell in room.env.grid.grid if cell is room.key]
        assert len(keys) == (key is not None)
