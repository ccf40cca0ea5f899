"""Arrays from outside: every mistake is named with its place, and nothing good is refused."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from butfor.models.tables import measure_transitions
from butfor.spaces.arrays import (
    FEWEST_TRANSITIONS,
    check_entities,
    check_finite_rows,
    check_table,
    check_transitions,
    like,
    to_tensor,
    warn_shared,
)

RANDOM = np.random.default_rng(0)
OBS, ACTION = RANDOM.normal(size=(120, 3)), RANDOM.normal(size=(120, 2))
NEXT_OBS = OBS + 0.1 * RANDOM.normal(size=(120, 3))
TENSORS = (torch.from_numpy(OBS), torch.from_numpy(ACTION), torch.from_numpy(NEXT_OBS))


def with_value(array: np.ndarray[Any, Any], place: tuple[int, ...], value: float) -> np.ndarray[Any, Any]:
    changed = array.copy()
    changed[place] = value
    return changed


# --- conversion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        OBS,
        OBS.astype(np.float32),
        OBS[::-2, ::-1],
        np.asfortranarray(OBS),
        torch.from_numpy(OBS),
        torch.from_numpy(OBS).requires_grad_(),
        OBS.tolist(),
        (OBS * 9).astype(np.int8),
        OBS > 0,
        OBS.astype(">f8"),
    ],
    ids=["double", "single", "strides", "Fortran", "tensor", "gradient", "lists", "int8", "bool", "big-endian"],
)
def test_any_array_of_numbers_becomes_a_tensor_of_the_same_numbers(value: Any) -> None:
    tensor = to_tensor("obs", value)
    assert isinstance(tensor, Tensor)
    assert not tensor.requires_grad
    expected = value.detach().numpy() if isinstance(value, Tensor) else np.asarray(value)
    np.testing.assert_allclose(tensor.numpy(), expected.astype(float), rtol=1e-15)


def test_a_read_only_array_is_accepted_without_a_warning() -> None:
    locked = OBS.copy()
    locked.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(to_tensor("obs", locked), TENSORS[0])


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a", "b"]),
        np.array([None, 1], dtype=object),
        np.array([1 + 2j]),
        torch.tensor([1 + 2j]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        None,
        "obs",
        {"observation": [1.0]},
    ],
    ids=["strings", "objects", "complex", "complex tensor", "dates", "None", "text", "dict"],
)
def test_what_holds_no_real_numbers_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match="next_obs"):
        to_tensor("next_obs", value)


def test_rows_of_unequal_length_are_refused_by_name() -> None:
    with pytest.raises((TypeError, ValueError), match="obs"):
        to_tensor("obs", [[1.0, 2.0], [3.0]])


def test_numpy_gives_numpy_and_torch_gives_torch() -> None:
    result = torch.arange(3.0)
    assert isinstance(like(result, OBS), np.ndarray)
    assert isinstance(like(result, OBS.tolist()), np.ndarray)
    assert like(result, TENSORS[0]) is result


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [3, 1000])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_place_that_is_not_finite_is_named(value: float, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("butfor.spaces.arrays.PART", part)
    broken = with_value(with_value(OBS, (7, 2), value), (50, 0), value)
    with pytest.raises(ValueError, match=r"obs .* 2 row\(s\).*row 7, column 2"):
        check_table("obs", broken)


def test_several_broken_numbers_in_one_row_are_one_row() -> None:
    with pytest.raises(ValueError, match=r" 1 row\(s\).*row 3, column 0"):
        check_finite_rows("action", torch.tensor(with_value(ACTION, (3,), np.nan)))


def test_what_is_too_large_for_single_precision_is_refused_too() -> None:
    # 1e39 is finite in double precision, but the model computes in single precision, where it is infinite
    with pytest.raises(ValueError, match="row 7, column 2"):
        check_table("obs", with_value(OBS, (7, 2), 1e39))


@pytest.mark.parametrize("value", [OBS[0], OBS[None], OBS[:, :2]], ids=["1-D", "3-D", "narrow"])
def test_a_table_of_another_shape_is_refused_with_both_shapes(value: Any) -> None:
    shape = ", ".join(map(str, np.shape(value)))
    with pytest.raises(ValueError, match=rf"obs .*\[{shape}\].*\[N, 3\]"):
        check_table("obs", value, 3)


def test_a_table_keeps_its_precision() -> None:
    assert torch.equal(check_table("obs", OBS), TENSORS[0])
    assert check_table("obs", OBS.astype(np.float32)).dtype == torch.float32


def test_large_integers_keep_their_differences() -> None:
    # such as a time in nanoseconds or a count of pulses: single precision has 24 bits
    obs = np.arange(10**9, 10**9 + 120, dtype=np.int64)[:, None]
    change = check_table("next_obs", obs + 1) - check_table("obs", obs)
    assert torch.equal(change.double(), torch.ones(120, 1, dtype=torch.float64))


# --- transitions ----------------------------------------------------------------------------------


def test_good_transitions_pass_unchanged() -> None:
    for given, checked in zip(TENSORS, check_transitions(OBS, ACTION, NEXT_OBS), strict=True):
        assert torch.equal(given, checked)
    discrete = RANDOM.integers(0, 3, 120)
    assert torch.equal(check_transitions(OBS, discrete, NEXT_OBS)[1], torch.from_numpy(discrete))
    assert check_transitions(OBS, discrete > 0, NEXT_OBS)[1].tolist() == (discrete > 0).astype(int).tolist()


@pytest.mark.parametrize(
    ("obs", "action", "next_obs", "message"),
    [
        (OBS[0], ACTION, NEXT_OBS, r"^obs .*\[3\]"),
        (OBS, ACTION, NEXT_OBS[:, :2], r"next_obs .*\[120, 2\].*\[N, 3\]"),
        (
            OBS,
            ACTION[:, 0],
            NEXT_OBS,
            r"^action .*\[N, 1\]",
        ),
        (OBS, ACTION[:, None], NEXT_OBS, r"action .*\[120, 1, 2\]"),
        (OBS, ACTION[:, :0], NEXT_OBS, r"action .*\[120, 0\]"),
        (OBS[:110], ACTION, NEXT_OBS, "110, 120 and 120 rows"),
        (OBS, ACTION[:110], NEXT_OBS, "120, 110 and 120 rows"),
        (OBS, ACTION, NEXT_OBS[:110], "120, 120 and 110 rows"),
        (OBS[:99], ACTION[:99], NEXT_OBS[:99], "99 transitions are too few.*at least 100"),
        (OBS[:0], ACTION[:0], NEXT_OBS[:0], "0 transitions are too few"),
        (with_value(OBS, (4, 1), np.nan), ACTION, NEXT_OBS, "^obs .*row 4, column 1"),
        (OBS, with_value(ACTION, (5, 0), np.inf), NEXT_OBS, "^action .*row 5, column 0"),
        (OBS, ACTION, with_value(NEXT_OBS, (6, 2), -np.inf), "^next_obs .*row 6, column 2"),
    ],
)
def test_wrong_transitions_are_refused_with_the_place(obs: Any, action: Any, next_obs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_transitions(obs, action, next_obs)


def test_just_enough_transitions_are_enough() -> None:
    few = FEWEST_TRANSITIONS
    assert len(check_transitions(OBS[:few], ACTION[:few], NEXT_OBS[:few])[0]) == few
    assert len(check_transitions(OBS[:1], ACTION[:1], NEXT_OBS[:1], fewest=1)[0]) == 1


# --- entities -------------------------------------------------------------------------------------


def test_ordinary_data_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_entities({"cube": [0, 1, 2]}, *TENSORS[::2])


def test_a_target_that_always_changes_alike_is_warned_of_with_its_column() -> None:
    obs, action, _ = TENSORS
    next_obs = obs.clone()
    next_obs[:, 0] += 0.1 * action[:, 0]
    with pytest.warns(UserWarning, match=r"\[1\] .* 'cube'"):
        check_entities({"cube": [0, 1]}, obs, next_obs)


def test_a_change_that_is_constant_up_to_rounding_is_warned_of_too() -> None:
    # a clock that advances by 0.1: s' - s is 0.1 only to the last bits, which vary
    obs, next_obs = (tensor.clone() for tensor in TENSORS[::2])
    next_obs[:, 1] = obs[:, 1] + 0.1
    assert len((next_obs - obs)[:, 1].unique()) > 1
    with pytest.warns(UserWarning, match=r"\[1\] .* 'cube'"):
        check_entities({"cube": [0, 1]}, obs, next_obs)


@pytest.mark.parametrize("rounded", [0, 1])
def test_a_column_that_only_rounding_changes_is_warned_of_whichever_side_was_rounded(rounded: int) -> None:
    pair = [TENSORS[0].double(), TENSORS[0].double()]
    pair[rounded] = pair[rounded].float()
    assert len((pair[1] - pair[0])[:, 1].unique()) > 1
    with pytest.warns(UserWarning, match=r"\[1\] .* 'cube'"):
        check_entities({"cube": [1]}, *pair)


def test_a_warning_points_to_the_line_of_the_user() -> None:
    """However many functions of the library lie in between."""
    with pytest.warns(UserWarning, match="cube") as near:
        check_entities({"cube": [0]}, TENSORS[0], TENSORS[0] + 0)
    with pytest.warns(UserWarning, match="cube") as far:
        measure_transitions((TENSORS[0], TENSORS[1], TENSORS[0]), {"cube": [0]}, None)
    lines = Path(__file__).read_text().splitlines()
    for caught, name in ((near, "check_entities("), (far, "measure_transitions(")):
        assert Path(caught[0].filename).name == Path(__file__).name
        assert name in lines[caught[0].lineno - 1]


def test_entities_that_share_columns_are_counted_twice_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"cube and pile share the columns \[4, 5\]"):
        warn_shared({"cube": [3, 4, 5], "hand": [0], "pile": [4, 5, 6]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_shared({"cube": [3, 4, 5], "hand": [0]})
