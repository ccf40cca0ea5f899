"""Entities as text and as mappings: which columns each form gives, and what is refused."""

from typing import Any

import numpy as np
import pytest

from butfor.spaces.entities import entity_columns

PLAIN = {"": 8}
PARTS = {"achieved_goal": 3, "observation": 10, "robot/arm": 4}  # columns 0 to 2, 3 to 12, 13 to 16


@pytest.mark.parametrize(
    ("text", "sizes", "columns"),
    [
        ("cube=3:6", PLAIN, [3, 4, 5]),
        ("cube=:2", PLAIN, [0, 1]),
        ("cube=6:", PLAIN, [6, 7]),
        ("cube=:", PLAIN, list(range(8))),
        ("cube=5", PLAIN, [5]),
        ("cube=0,7,2:4", PLAIN, [0, 7, 2, 3]),
        (" cube = 3:6 ", PLAIN, [3, 4, 5]),
        ("cube=observation:3:6", PLAIN, [3, 4, 5]),
        ("cube=observation:3:6", PARTS, [6, 7, 8]),
        ("cube=observation:0,2", PARTS, [3, 5]),
        ("cube=achieved_goal:1,robot/arm:0:2", PARTS, [1, 13, 14]),
        ("cube=robot/arm", PARTS, [13, 14, 15, 16]),
        ("cube=achieved_goal,robot/arm:3", PARTS, [0, 1, 2, 16]),
        ("cube=1:3", {"observation": 5}, [1, 2]),
        ("cube=observation:1:3", {"observation": 5}, [1, 2]),
    ],
)
def test_a_text_names_columns(text: str, sizes: dict[str, int], columns: list[int]) -> None:
    assert entity_columns(text, sizes) == {"cube": columns}
    assert entity_columns([text], sizes) == {"cube": columns}
    if sizes is PLAIN:
        assert entity_columns(text, 8) == {"cube": columns}


def test_a_mapping_gives_lists_of_columns_in_the_given_order() -> None:
    given: dict[str, Any] = {"cube": range(1, 3), "hand": np.array([2, 0]), "both": (0, 16)}
    assert entity_columns(given, PARTS) == {"cube": [1, 2], "hand": [2, 0], "both": [0, 16]}


def test_several_entities_keep_their_order() -> None:
    assert list(entity_columns(["b=1", "a=0:2"], 8).items()) == [("b", [1]), ("a", [0, 1])]


@pytest.mark.parametrize(
    ("entities", "sizes", "message"),
    [
        ("3:6", PLAIN, "3:6"),
        ("cube=", PLAIN, "cube="),
        ("=3", PLAIN, "=3"),
        ("cube=x", PLAIN, "'x'"),
        ("cube=1:2:3", PLAIN, "'1:2:3'"),
        ("cube=-1", PLAIN, "'-1'"),
        ("cube=8", PLAIN, r"8 to 8.*0 to 7"),
        ("cube=4:9", PLAIN, r"4 to 8.*0 to 7"),
        ("cube=6:3", PLAIN, "6:3"),
        ("cube=3,2:4", PLAIN, r"cube.*\[3, 2, 3\]"),
        (["cube=1", "cube=2"], PLAIN, "'cube'.*twice"),
        ("cube=3:6", PARTS, r"achieved_goal .*observation .*robot/arm"),
        ("cube=image:3:6", PARTS, r"'image'.*achieved_goal"),
        ("cube=robot/arm:2:5", PARTS, r"2 to 4.*robot/arm \(columns 0 to 3\)"),
        ("goal=desired_goal:0", {"observation": 4}, "desired_goal"),
        ([], PLAIN, "empty"),
        ({}, PLAIN, "empty"),
        ({"cube": []}, PLAIN, r"'cube'.*\[\]"),
        ({"cube": [1, 1]}, PLAIN, r"'cube'.*\[1, 1\]"),
        ({"hand": [0], "cube": [1, 8]}, PLAIN, "'cube'.* 8;.*0 to 7"),
        ({"cube": [-1]}, PLAIN, "'cube'.*-1"),
    ],
)
def test_what_cannot_be_meant_is_refused(entities: Any, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        entity_columns(entities, sizes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        ({"cube": [1.5]}, "'cube'.*1.5"),
        ({"cube": [False, True, False]}, "'cube'"),  # a mask, not columns: reading it as 0, 1, 0 would be a guess
        ({"cube": np.array([False, True, False])}, "'cube'"),
        ({"cube": "12"}, "'cube'"),
        ({"cube": 2}, "'cube'"),
        ({"cube": slice(0, 2)}, "'cube'"),
        ([1, 2], r"\[1, 2\]"),
        (3, "3"),
    ],
)
def test_wrong_types_are_refused(entities: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        entity_columns(entities, 8)


@pytest.mark.parametrize("name", ["cube\x1b[2J", "a\nb", "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 100, "x" * 101])
def test_names_that_cannot_be_printed_or_are_too_long_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be printed"):
        entity_columns({name: [0]}, 3)
