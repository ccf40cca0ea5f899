"""Tables for networks: units of the data, targets in them, and rows held out for validation."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from butfor.models.tables import (
    Units,
    add_finer,
    move_scale,
    split_table,
    target_columns,
    target_scale,
    uneven_columns,
)
from butfor.spaces.actions import ActionLaw

UNIT = ActionLaw((-1.0,), (1.0,))


def test_units_are_those_of_the_data() -> None:
    random = np.random.default_rng(0)
    obs = random.normal([0, 5, -2, 100], [1, 0.1, 3, 20], (300, 4))
    action = random.uniform([-1, 0], [1, 3], (300, 2))
    next_obs = obs + random.normal(size=(300, 4)) * [0.1, 1, 2, 3]
    tensors: Any = tuple(map(torch.from_numpy, (obs, action, next_obs)))
    units = Units.measure(tensors, {"ball": [1], "both": [2, 0, 1]}, ActionLaw.from_data(tensors[1]))
    assert units.law.low == pytest.approx(action.min(0).tolist())
    assert target_columns(units.entities) == [0, 1, 2]
    assert units.dims == [[1], [2, 0, 1]]
    inputs, target = units.table(tensors, "cpu")
    np.testing.assert_allclose(inputs[:, :4], (obs - obs.mean(0)) / obs.std(0, ddof=1), rtol=1e-4, atol=1e-5)
    low, high = action.min(0), action.max(0)
    np.testing.assert_allclose(inputs[:, 4:], (2 * action - low - high) / (high - low), rtol=1e-5, atol=1e-6)
    change = (next_obs - obs)[:, :3]
    np.testing.assert_allclose(target, change / change.std(0, ddof=1), rtol=1e-3, atol=1e-3)


def test_the_model_predicts_the_union_of_the_entities_columns() -> None:
    assert target_columns({"a": [4, 2], "b": [2, 0]}) == [0, 2, 4]


def test_targets_are_scaled_by_their_deviation_or_as_configured() -> None:
    change = torch.tensor([[1.0, 0.0, 5.0], [3.0, 0.0, -5.0], [5.0, 0.0, 0.0]], dtype=torch.float64)
    transitions = (torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, 1), change)
    scale = target_scale(transitions, {"a": [0, 1], "b": [2]})
    torch.testing.assert_close(scale, torch.tensor([0.5, 1.0, 0.2], dtype=torch.float64))
    scale = target_scale(transitions, {"a": [0, 1], "b": [2]}, 50.0)
    assert scale.tolist() == [50.0, 50.0, 50.0]


def test_changes_are_taken_before_rounding_to_single_precision() -> None:
    # next to 1e6 single precision has steps of 0.06
    obs = torch.full((4, 2), 1e6, dtype=torch.float64)
    change = torch.tensor([[0.001, 7], [0.002, 7], [0.003, 7], [0.004, 7]], dtype=torch.float64)
    scale = torch.tensor([10.0, 0.5], dtype=torch.float64)
    units = Units.raw(UNIT, {"a": [1, 0]}, scale.tolist(), 2)
    inputs, target = units.table((obs, torch.zeros(4, 1), obs + change), "cpu")
    assert inputs.dtype == target.dtype == torch.float32
    assert inputs.shape == (4, 3)
    torch.testing.assert_close(target, (change * scale).float(), rtol=1e-5, atol=0)


def test_inputs_are_observations_and_encoded_actions() -> None:
    obs, action = torch.arange(6.0).view(3, 2), torch.tensor([2, 0, 1])
    inputs, _ = Units.raw(ActionLaw(count=3), {"a": [0]}, [1.0], 2).table((obs, action, obs), "cpu")
    assert inputs.tolist() == [[0, 1, 0, 0, 1], [2, 3, 1, 0, 0], [4, 5, 0, 1, 0]]


@pytest.mark.parametrize(("share", "held_out"), [(0.1, 10), (0.5, 50), (0.001, 1), (0.985, 98)])
def test_a_share_of_the_rows_is_held_out_at_random(share: float, held_out: int) -> None:
    rows = torch.arange(100.0)[:, None]
    train, validation = split_table((rows, -rows), share, 0)
    assert len(validation[0]) == held_out
    assert sorted([*train[0].flatten().tolist(), *validation[0].flatten().tolist()]) == list(range(100))
    assert torch.equal(train[0], -train[1])
    assert torch.equal(validation[0], -validation[1])
    again, other = split_table((rows, -rows), share, 0), split_table((rows, -rows), share, 1)
    assert torch.equal(validation[0], again[1][0])
    assert not torch.equal(torch.cat([train[0], validation[0]]), torch.cat([other[0][0], other[1][0]]))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, math.nan, 0.9999])
def test_a_share_that_leaves_nothing_on_one_side_is_refused(share: float) -> None:
    rows = torch.arange(100.0)[:, None]
    with pytest.raises(ValueError, match="validation"):
        split_table((rows, rows), share, 0)


def test_whole_groups_are_held_out() -> None:
    rows = torch.arange(100.0)[:, None]
    groups = torch.arange(100) // 7 + 3  # 14 groups of 7 rows, and one of 2
    train, validation = split_table((rows, -rows), 0.2, 0, groups)
    held_out = {int(row) // 7 for row in validation[0]}
    assert held_out.isdisjoint(int(row) // 7 for row in train[0])
    assert 20 <= len(validation[0]) < 20 + 7
    assert len(train[0]) + len(validation[0]) == 100
    assert torch.equal(validation[0], -validation[1])
    other = split_table((rows, -rows), 0.2, 1, groups)[1][0]
    assert {int(row) // 7 for row in other} != held_out


@pytest.mark.parametrize(("groups", "value"), [([0] * 99, r"\[99\]"), ([5] * 100, "1 episodes")])
def test_groups_that_cannot_be_split_are_refused(groups: list[int], value: str) -> None:
    rows = torch.arange(100.0)[:, None]
    with pytest.raises(ValueError, match=value):
        split_table((rows, rows), 0.1, 0, np.array(groups))


@pytest.mark.parametrize("share", [0.01, 0.1, 1.0])
def test_the_scale_of_moves_does_not_depend_on_how_many_there_are(share: float) -> None:
    """Of 1,000 rows a share moves by 0.02 or -0.02, the others rest; the second column never moves."""
    obs = torch.zeros(1000, 2, dtype=torch.float64)
    next_obs = obs.clone()
    count = int(share * 1000)
    next_obs[:count, 0] = torch.where(torch.arange(count) % 2 == 0, 0.02, -0.02)
    torch.testing.assert_close(
        move_scale((obs, obs, next_obs), {"a": [0, 1]}), torch.tensor([50.0, 1.0], dtype=torch.float64)
    )


def test_uneven_columns_have_most_values_close_together() -> None:
    random = np.random.default_rng(0)
    resting = np.where(random.random(4000) < 0.05, random.normal(size=4000), 0.001 * random.normal(size=4000))
    even = [random.normal(size=4000), random.uniform(size=4000), np.full(4000, 3.0)]
    table = torch.tensor(np.column_stack([even[0], resting + 2, *even[1:]]))
    standardized = (table - table.mean(0)) / table.std(0).clamp_min(1e-12)
    columns, median = uneven_columns(standardized)
    assert columns == [1]
    assert median.item() == standardized[:, 1].median()


def test_finer_columns_are_added_around_their_median() -> None:
    obs = torch.tensor([[0.0, 1.0], [5.0, 1.2], [2.0, -3.0]])
    found = add_finer(obs, [1], torch.tensor([1.0]))
    expected = torch.column_stack([obs, torch.tensor([0.0, math.asinh(2), math.asinh(-40)])])
    torch.testing.assert_close(found, expected)
    assert add_finer(obs, [], torch.zeros(0)) is obs
    many = add_finer(obs.expand(4, 3, 2), [1, 0], torch.zeros(4, 1, 2))
    assert many.shape == (4, 3, 4)
