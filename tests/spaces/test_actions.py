"""The uniform law over action spaces: bounds, draws, and how a model sees an action."""

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from scipy import stats

from butfor.models.networks import make_generators
from butfor.spaces.actions import MOST_ACTIONS, ActionLaw, from_unit, to_unit, warn_untried

LAW = ActionLaw((-1.0, 0.0, 2.0), (1.0, 10.0, 2.5))
CPU = torch.device("cpu")


def test_the_law_of_a_box_has_its_bounds() -> None:
    low, high = np.array([-1, 0.1], np.float32), np.array([1, 0.7], np.float32)
    law = ActionLaw.from_space(Box(low, high))
    assert (law.size, law.count) == (2, 0)
    assert law.low == tuple(map(float, low))
    assert law.high == tuple(map(float, high))


def test_the_law_of_a_discrete_space_has_its_count() -> None:
    law = ActionLaw.from_space(Discrete(5))
    assert (law.size, law.count) == (5, 5)


@pytest.mark.parametrize(
    ("space", "error", "message"),
    [
        (Box(-np.inf, np.inf, (2,)), ValueError, "inf"),
        (Box(np.array([-1, -np.inf]), np.array([1.0, 1.0]), dtype=np.float64), ValueError, "inf"),
        (Discrete(3, start=1), ValueError, r"\b1\b"),
        (Box(-1, 1, (2, 3)), TypeError, r"\(2, 3\)"),
        (Box(-1, 1, ()), TypeError, r"\(\)"),
        (MultiDiscrete([2, 3]), TypeError, "MultiDiscrete"),
        (MultiBinary(3), TypeError, "MultiBinary"),
        (Dict({"a": Discrete(2)}), TypeError, "Dict"),
        (None, TypeError, "None"),
        ("Box(2)", TypeError, r"Box\(2\)"),
        (Box(-1, 1, (0,)), ValueError, r"\(0,\)"),
    ],
)
def test_a_space_without_a_uniform_law_over_numbers_is_refused(
    space: gymnasium.Space[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ActionLaw.from_space(space)


def test_without_a_space_the_law_is_the_smallest_box_around_the_data() -> None:
    action = torch.tensor([[0.5, -3.0], [-0.25, 2.0], [0.0, 1.0]])
    assert ActionLaw.from_data(action) == ActionLaw((-0.25, -3.0), (0.5, 2.0))
    assert ActionLaw.from_data(action.double() / 3).high == (0.5 / 3, 2.0 / 3)  # in double precision


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8, torch.uint16, torch.bool])
def test_without_a_space_integers_are_discrete_actions(kind: torch.dtype) -> None:
    action = torch.tensor([0, 1, 1, 0]).to(kind)
    law = ActionLaw.from_data(action)
    assert law == ActionLaw(count=2)
    law.check("action", action)
    assert law.encode(action).tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]


def test_discrete_actions_are_encoded_one_hot_and_decoded_back() -> None:
    law, action = ActionLaw(count=4), torch.tensor([[0, 3], [2, 1]])
    encoded = law.encode(action)
    assert encoded.dtype == torch.float32
    assert encoded.tolist() == [[[1, 0, 0, 0], [0, 0, 0, 1]], [[0, 0, 1, 0], [0, 1, 0, 0]]]
    assert torch.equal(law.decode(encoded), action)


def test_box_actions_are_encoded_from_minus_one_to_one_and_decoded_back() -> None:
    action = torch.tensor([[0.5, 3.0, 2.25], [-1.0, 10.0, 2.5]], dtype=torch.float64)
    encoded = LAW.encode(action)
    assert encoded.dtype == torch.float32
    torch.testing.assert_close(encoded, torch.tensor([[0.5, -0.4, 0.0], [-1.0, 1.0, 1.0]]))
    torch.testing.assert_close(LAW.decode(encoded), action.float())
    far = ActionLaw((1e9, 1e-9), (1e9 + 1, 3e-9))  # neither an offset nor small units lose the action
    torch.testing.assert_close(
        far.encode(torch.tensor([[1e9 + 0.25, 2e-9]], dtype=torch.float64)), torch.tensor([[-0.5, 0.0]])
    )
    unit = ActionLaw((-1.0,) * 3, (1.0,) * 3)
    assert unit.is_unit
    assert torch.equal(unit.encode(action), action.float())  # bit for bit


# --- draws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.1, 0.3, 0.4, 0.7, 1 / 3, 1e-3, 8.75])
def test_rounding_does_not_leave_a_box_of_float64(limit: float) -> None:
    space = Box(-limit, limit, (2,), np.float64)
    law, corners = ActionLaw.from_space(space), torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    for action in (law.decode(corners), from_unit(corners, law.bounds(CPU))):
        assert all(space.contains(row) for row in action.double().numpy())
        torch.testing.assert_close(action, limit * corners)


def test_draws_are_uniform_within_the_bounds() -> None:
    drawn = LAW.decode(LAW.draw(200, 50, make_generators([0])))
    assert drawn.shape == (1, 200, 50, 3)
    for column, (low, high) in enumerate(zip(LAW.low, LAW.high, strict=True)):
        values = drawn[..., column].flatten().numpy()
        assert values.min() >= low
        assert values.max() <= high
        # 10,000 uniform numbers are this far from uniform once in a thousand seeds; the seed is fixed
        assert stats.kstest((values - low) / (high - low), "uniform").pvalue > 1e-3
    correlation = np.corrcoef(drawn.reshape(-1, 3).numpy().T)
    assert np.abs(correlation - np.eye(3)).max() < 0.05  # deviation 0.01


def test_each_state_and_each_action_is_drawn_anew() -> None:
    drawn = LAW.draw(20, 10, make_generators([0]))[..., 0].flatten()
    assert len(drawn.unique()) == 200


def test_each_generator_draws_what_it_draws_alone() -> None:
    together = LAW.draw(5, 4, make_generators([3, 9]))
    assert together.shape == (2, 5, 4, 3)
    for replica, seed in enumerate([3, 9]):
        assert torch.equal(together[replica], LAW.draw(5, 4, make_generators([seed]))[0])


@pytest.mark.parametrize(("actions", "size"), [(1, 1), (3, 1), (5, 3), (64, 4)])
def test_drawing_states_in_parts_is_drawing_them_at_once(actions: int, size: int) -> None:
    law = ActionLaw((-1.0,) * size, (1.0,) * size)
    whole = law.draw(23, actions, make_generators([0, 1]))
    generators = make_generators([0, 1])
    parts = [law.draw(states, actions, generators) for states in (1, 2, 7, 13)]
    assert torch.equal(torch.cat(parts, 1), whole)


def test_a_column_without_extent_is_constant() -> None:
    law = ActionLaw((-1.0, 0.3), (1.0, 0.3))
    for drawn in (law.draw(5, 4, make_generators([0])), law.draw_shared(4, 0, CPU)):
        assert torch.equal(drawn[..., 1], torch.zeros(drawn.shape[:-1]))
        assert torch.equal(law.decode(drawn)[..., 1], torch.full(drawn.shape[:-1], 0.3))
    assert torch.equal(law.encode(torch.tensor([[0.5, 0.3]])), torch.tensor([[0.5, 0.0]]))


# --- shared sets ----------------------------------------------------------------------------------


def test_a_shared_discrete_set_is_every_action_once() -> None:
    shared = ActionLaw(count=5).draw_shared(5, 0, CPU)
    assert torch.equal(shared[0, 0], torch.eye(5))


@pytest.mark.parametrize("actions", [8, 64, 256])
def test_a_shared_set_is_evenly_spread_in_each_column(actions: int) -> None:
    shared = LAW.draw_shared(actions, 3, CPU)
    assert shared.shape == (1, 1, actions, 3)
    unit = (shared[0, 0] + 1) / 2
    assert unit.min() >= 0
    assert unit.max() <= 1
    # each of the first 2^m points of a scrambled Sobol set has one of 2^m equal intervals for itself
    cells = (unit.double() * actions - 1e-4).floor().clamp_min(0).long().sort(0).values
    assert torch.equal(cells, torch.arange(actions)[:, None].expand(-1, 3))


def test_shared_sets_of_other_seeds_differ_and_of_the_same_do_not() -> None:
    assert torch.equal(LAW.draw_shared(16, 0, CPU), LAW.draw_shared(16, 0, CPU))
    assert not torch.equal(LAW.draw_shared(16, 0, CPU), LAW.draw_shared(16, 1, CPU))


def test_whole_numbers_in_a_column_are_not_guessed_to_be_continuous() -> None:
    # how some replay buffers store discrete actions
    with pytest.raises(ValueError, match=r"\[N, 1\]"):
        ActionLaw.from_data(torch.tensor([[0], [2], [1]]))


# --- an agent's actions ---------------------------------------------------------------------------


def test_actions_between_minus_one_and_one_are_stretched_to_the_bounds_and_back() -> None:
    unit = torch.rand(5, 7, 3, generator=make_generators([0])[0]) * 2 - 1
    stretched = from_unit(unit, LAW.bounds(CPU))
    for column, (low, high) in enumerate(zip(LAW.low, LAW.high, strict=True)):
        expected = low + (high - low) * (unit[..., column] + 1) / 2
        torch.testing.assert_close(stretched[..., column], expected)
    torch.testing.assert_close(to_unit(stretched, LAW.bounds(CPU)), unit, rtol=1e-5, atol=1e-5)


def test_the_ends_and_the_middle_of_the_bounds() -> None:
    low, high = torch.tensor(LAW.low), torch.tensor(LAW.high)
    ends = torch.tensor([[-1.0], [0.0], [1.0]]).expand(3, 3)
    torch.testing.assert_close(from_unit(ends, (low, high)), torch.stack([low, (low + high) / 2, high]))
    torch.testing.assert_close(to_unit(torch.stack([low, (low + high) / 2, high]), (low, high)), ends)


def test_a_box_from_minus_one_to_one_leaves_actions_as_they_are() -> None:
    action = torch.rand(4, 2, generator=make_generators([0])[0]) * 2 - 1
    bounds = ActionLaw((-1.0, -1.0), (1.0, 1.0)).bounds(CPU)
    assert torch.equal(from_unit(action, bounds), action)
    assert torch.equal(to_unit(action, bounds), action)


def test_each_column_has_its_own_bounds() -> None:
    bounds = ActionLaw((-1.0, -1.0), (1.0, 3.0)).bounds(CPU)
    assert from_unit(torch.tensor([1.0, 1.0]), bounds).tolist() == [1.0, 3.0]
    assert to_unit(torch.tensor([1.0, 1.0]), bounds).tolist() == [1.0, 0.0]


def test_bounds_are_tensors_of_their_own_law() -> None:
    for law in (LAW, ActionLaw((0.0,), (5.0,)), LAW):
        low, high = law.bounds(CPU)
        assert low.tolist() == list(law.low)
        assert high.tolist() == list(law.high)


def test_a_saturated_action_stays_within_the_bounds() -> None:
    """Worlds that check `action_space.contains` would refuse it."""
    edges = (torch.rand(2, 300, generator=make_generators([0])[0]) * 10 - 5).sort(0).values
    law = ActionLaw(tuple(edges[0].tolist()), tuple(edges[1].tolist()))
    assert (from_unit(torch.ones(300), law.bounds(CPU)) <= edges[1]).all()
    assert (from_unit(-torch.ones(300), law.bounds(CPU)) >= edges[0]).all()


# --- actions that cannot be compared, or were never tried ----------------------------------------------


def test_more_discrete_actions_than_can_be_compared_are_refused() -> None:
    assert ActionLaw.from_space(Discrete(MOST_ACTIONS)).count == MOST_ACTIONS
    with pytest.raises(ValueError, match="1,001"):
        ActionLaw.from_space(Discrete(MOST_ACTIONS + 1))
    with pytest.raises(ValueError, match="1,000,000,001"):
        ActionLaw.from_data(torch.tensor([0, 10**9]))


@pytest.mark.parametrize(
    ("law", "action", "start"),
    [
        (
            ActionLaw(count=4),
            torch.arange(120) % 3,
            r"\[3\]",
        ),
        (
            ActionLaw(count=20),
            torch.full((120,), 2),
            r"\[0, 1, 3, .*, 10\] and 9 more",
        ),
        (ActionLaw(count=1), torch.zeros(120).long(), "only one action"),
        (
            ActionLaw((-1.0, -1.0), (1.0, 1.0)),
            torch.rand(120, 2).index_fill(1, torch.tensor([1]), 0.3),
            r"\[1\]",
        ),
    ],
)
def test_actions_that_were_never_tried_are_warned_of(law: ActionLaw, action: torch.Tensor, start: str) -> None:
    with pytest.warns(UserWarning, match=start):
        assert warn_untried(law, action)


def test_actions_that_were_all_tried_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not warn_untried(ActionLaw(count=3), torch.arange(120) % 3)
        assert not warn_untried(ActionLaw((-1.0,), (1.0,)), torch.rand(120, 1))


def test_discrete_actions_that_were_hardly_ever_tried_are_warned_of() -> None:
    action = torch.arange(3000) % 3
    action[:19] = 3
    with pytest.warns(UserWarning, match=r"\[3\].* 20 of 3,000"):
        assert warn_untried(ActionLaw(count=4), action)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        action[19] = 3
        assert not warn_untried(ActionLaw(count=4), action)
        assert not warn_untried(ActionLaw(count=4), torch.arange(60) % 4)  # 15 each: few, but no fewer than the others
