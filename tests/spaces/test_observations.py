"""Which numbers of an observation a model sees, and in which order."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from butfor.datasets.recording import flatten_arrays
from butfor.spaces.observations import choose_parts, flatten_parts, parts_of

GOAL: Any = spaces.Dict({name: spaces.Box(-1, 1, (size,)) for name, size in (
    ("observation", 4), ("achieved_goal", 1), ("desired_goal", 1))})  # fmt: skip
OTHER: Any = spaces.Dict({"b": spaces.Box(-1, 1, (2, 3)), "a": spaces.Dict({"c": spaces.Box(-1, 1, ())})})


def test_parts_are_in_the_order_of_their_names() -> None:
    """Which is Gymnasium's own, unless a space was made in another order on purpose."""
    whole: Any = spaces.Box(-1, 1, (2, 3))
    for space in (GOAL, OTHER, whole):
        sample = space.sample()
        sizes = choose_parts(space, list(parts_of(space)))
        assert sum(sizes.values()) == spaces.flatdim(space)
        np.testing.assert_array_equal(flatten_parts(sample, sizes, 1)[0], spaces.flatten(space, sample))
    box = spaces.Box(-1, 1, (2,))
    unordered = spaces.Dict(z=box, a=spaces.Dict(y=box, b=box))
    assert list(choose_parts(unordered)) == ["a/b", "a/y", "z"]
    for space in (GOAL, unordered):  # as in data sets, so that a model fitted on one fits here
        sample = space.sample()
        table, sizes = flatten_arrays(sample, 0)
        assert list(sizes.items()) == list(choose_parts(space, list(parts_of(space))).items())
        np.testing.assert_array_equal(flatten_parts(sample, sizes, 1)[0], table)
    assert choose_parts(OTHER) == {"a/c": 1, "b": 6}
    assert choose_parts(whole) == {"": 6}


def test_goals_are_left_out_unless_the_model_has_seen_them() -> None:
    assert choose_parts(GOAL) == choose_parts(GOAL, columns=4) == {"observation": 4}
    assert choose_parts(GOAL, columns=6) == {"achieved_goal": 1, "desired_goal": 1, "observation": 4}
    assert choose_parts(GOAL, ["desired_goal", "observation"]) == {"desired_goal": 1, "observation": 4}
    assert choose_parts(OTHER) == {"a/c": 1, "b": 6}
    box = spaces.Box(-1, 1, (2,))
    nested = spaces.Dict(observation=box, achieved_goal=spaces.Dict(kettle=box), desired_goal=spaces.Dict(kettle=box))
    assert choose_parts(nested) == {"observation": 2}
    assert choose_parts(nested, columns=6) == {"achieved_goal/kettle": 2, "desired_goal/kettle": 2, "observation": 2}
    with pytest.raises(ValueError, match=r"\b5 columns"):
        choose_parts(GOAL, columns=5)
    with pytest.raises(ValueError, match=r"\b6 columns"):
        choose_parts(GOAL, ["observation"], columns=6)
    for wrong in ("observation", [], ["goal"], ["observation", "observation"]):
        with pytest.raises(ValueError, match="'achieved_goal', 'desired_goal'"):
            choose_parts(GOAL, wrong)


def test_a_batch_is_copied_row_by_row() -> None:
    batch = {"b": np.arange(12.0).reshape(2, 2, 3), "a": {"c": np.array([100.0, 200.0])}}
    table = flatten_parts(batch, {"b": 6, "a/c": 1}, 2)
    np.testing.assert_array_equal(table, [[0, 1, 2, 3, 4, 5, 100], [6, 7, 8, 9, 10, 11, 200]])
    plain = np.ones((2, 3))
    flatten_parts(plain, {"": 3}, 2)[:] = 0
    assert plain.all()


BOX = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (spaces.Box(0, 255, (8, 8), np.uint8), "image.*'other'"),
        (spaces.Box(0, 1, (84, 84), np.float32), "image.*'other'"),
        (spaces.Box(0, 255, (84 * 84,), np.uint8), "image.*'other'"),
        (spaces.Discrete(3), "'other'.*Discrete"),
        (spaces.Text(4), "'other'.*Text"),
        (spaces.Tuple([BOX]), "'other'.*Tuple"),
    ],
)
def test_what_is_no_state_is_refused_only_where_the_model_would_see_it(part: Any, sentence: str) -> None:
    space = spaces.Dict({"other": part, "state": BOX})
    with pytest.raises(TypeError, match=f"{sentence}.*parts="):
        choose_parts(space)
    assert choose_parts(space, ["state"]) == {"state": 2}
    goal = spaces.Dict(observation=BOX, achieved_goal=BOX, desired_goal=BOX, camera=part)
    assert choose_parts(goal) == {"observation": 2}


def test_rows_of_numbers_are_no_images() -> None:
    assert choose_parts(spaces.Box(0, 255, (128,), np.uint8)) == {"": 128}  # the memory of a small computer
    assert choose_parts(spaces.Box(-1, 1, (5, 6))) == {"": 30}
    with pytest.raises(TypeError, match="Discrete"):
        choose_parts(spaces.Discrete(3))
