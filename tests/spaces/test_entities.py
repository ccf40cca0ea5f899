"""Entities in words: what each text means, and what is refused."""

import pytest

from butfor.spaces.entities import parse_entities

PLAIN = {"": 8}
PARTS = {"achieved_goal": 3, "observation": 10, "robot/arm": 4}  # columns 0 to 2, 3 to 12, 13 to 16


@pytest.mark.parametrize(
    ("text", "sizes", "columns"),
    [
        ("cube=3:6", PLAIN, (3, 4, 5)),
        ("cube=:2", PLAIN, (0, 1)),
        ("cube=6:", PLAIN, (6, 7)),
        ("cube=:", PLAIN, tuple(range(8))),
        ("cube=5", PLAIN, (5,)),
        ("cube=0,7,2:4", PLAIN, (0, 7, 2, 3)),
        (" cube = 3 : 6 ".replace(" : ", ":"), PLAIN, (3, 4, 5)),
        ("cube=observation:3:6", PARTS, (6, 7, 8)),
        ("cube=observation:0,2", PARTS, (3, 5)),
        ("cube=achieved_goal:1,robot/arm:0:2", PARTS, (1, 13, 14)),
        ("cube=robot/arm", PARTS, (13, 14, 15, 16)),
        ("cube=achieved_goal,robot/arm:3", PARTS, (0, 1, 2, 16)),
        ("cube=1:3", {"observation": 5}, (1, 2)),
        ("cube=observation:1:3", {"observation": 5}, (1, 2)),
    ],
)
def test_a_text_names_columns(text: str, sizes: dict[str, int], columns: tuple[int, ...]) -> None:
    assert parse_entities([text], sizes) == {"cube": columns}


def test_several_entities_keep_their_order() -> None:
    assert list(parse_entities(["b=1", "a=0:2"], PLAIN).items()) == [("b", (1,)), ("a", (0, 1))]
    assert parse_entities([], PLAIN) == {}


@pytest.mark.parametrize(
    ("texts", "sizes", "message"),
    [
        (["3:6"], PLAIN, "cannot be read; expected name=first:last"),
        (["cube="], PLAIN, "cannot be read"),
        (["=3"], PLAIN, "cannot be read"),
        (["cube=x"], PLAIN, "cannot be read at 'x'"),
        (["cube=1:2:3"], PLAIN, "cannot be read at '1:2:3'"),
        (["cube=-1"], PLAIN, "cannot be read at '-1'"),
        (["cube=8"], PLAIN, "names columns 8 to 8; the observation has 0 to 7"),
        (["cube=4:9"], PLAIN, "names columns 4 to 8; the observation has 0 to 7"),
        (["cube=6:3"], PLAIN, "first column 6 is not before"),
        (["cube=3,2:4"], PLAIN, "names a column twice"),
        (["cube=1", "cube=2"], PLAIN, "named twice"),
        (["cube=3:6"], PARTS, r"does not say in which part.*observation \(10 columns\)"),
        (["cube=image:3:6"], PARTS, r"is in 'image', which the observation does not have: achieved_goal \(3 columns\)"),
        (["cube=robot/arm:2:5"], PARTS, "names columns 2 to 4; 'robot/arm' has 0 to 3"),
    ],
)
def test_what_cannot_be_meant_is_refused(texts: list[str], sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        parse_entities(texts, sizes)
    assert "\n" not in str(raised.value)
