"""Mirrors: which are refused. What they mean is tested with the environments and in training."""

import math
from typing import Any

import pytest

from butfor.spaces.mirrors import Mirror, check_mirrors

SIZES = (6, 3, 2)  # columns of an observation, an action and a goal


def mirror(**changes: Any) -> Mirror:
    return Mirror(**({"places": (0,), "goal_places": (0,), "action_signs": (0,), "signs": (2,)} | changes))


def test_columns_within_the_sizes_are_accepted() -> None:
    given = (mirror(places=(0, 5), goal_places=(1,), action_signs=(2,), swapped=((3, 4),)),)
    assert check_mirrors(given, SIZES, "mine") == given
    assert check_mirrors([], SIZES, "mine") == ()


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"places": (6,)}, r"\(6,\)"),
        ({"signs": (-1,)}, r"\(-1,\)"),
        ({"goal_places": (2,)}, r"\(2,\)"),
        ({"action_signs": (3,)}, r"\(3,\)"),
        ({"swapped": ((0, 6),)}, r"\(0, 6\)"),
        ({"swapped": ((3, 4), (4, 5))}, r"\(3, 4, 4, 5\)"),  # twice
        ({"places": (0, 2)}, r"\[2\]"),  # also in signs
        ({"swapped": ((2, 3),)}, r"\(2, 3\)"),  # one of them is in signs
        ({"swapped": ((5, 0),)}, r"\(5, 0\)"),  # one of them is in places
    ],
)
def test_impossible_columns_are_refused(changes: dict[str, Any], shown: str) -> None:
    with pytest.raises(ValueError, match=rf"mine.*{shown}|{shown}.*mine"):
        check_mirrors([mirror(**changes)], SIZES, "mine")


def test_a_mirror_without_an_effect_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shift.*reflect"):
        mirror(shift=False, reflect=False)


def test_a_mirror_stands_at_a_finite_place() -> None:
    with pytest.raises(ValueError, match="middle"):
        mirror(middle=math.inf)
