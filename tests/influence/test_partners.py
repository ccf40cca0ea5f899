"""What touches an object is found in the data where something does, and nowhere else."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.hand_and_object import (
    ANGLE,
    DRIFTER,
    HAND,
    NOISE,
    OBJECT,
    RADIUS,
    STEP,
    Array,
    Labels,
    carried,
    transitions,
)
from torch import Tensor

from butfor.influence import partners
from butfor.influence.partners import (
    FEWEST,
    Pair,
    choose_partners,
    find_directions,
    find_partners,
    find_reach,
    find_surprises,
    measure_reach,
    moved_by_action,
    nearer_own,
)
from butfor.models import tables
from butfor.models.tables import measure_transitions

Given = tuple[Array, Array, Array]
GIVEN = transitions(3000, 0)


def found_partners(given: Given, columns: list[int] = OBJECT) -> list[Pair]:
    rows, units = measure_transitions(given, {"entity": columns}, None)
    inputs, target = units.table(rows, "cpu")
    return find_partners(rows[0], inputs[:, : rows[0].shape[1]], target, columns)


def with_change(change: Array) -> Given:
    """The same transitions with another change of the object [N, 2]."""
    obs, action, next_obs = GIVEN
    changed = next_obs.copy()
    changed[:, OBJECT] = obs[:, OBJECT] + change
    return obs, action, changed


def jumps(where: Labels) -> Array:
    """Changes as large as those of a carried object, in directions that nothing tells."""
    random = np.random.default_rng(4)
    changes: Array = STEP * random.uniform(-1, 1, (len(where), 2)) * where[:, None]
    return changes + NOISE * random.normal(size=changes.shape)


def test_surprises_are_the_rows_where_the_object_is_carried_far_enough() -> None:
    obs, action, next_obs = GIVEN
    rows, units = measure_transitions(GIVEN, {"object": OBJECT}, None)
    inputs, target = units.table(rows, "cpu")
    surprised = find_surprises(inputs[:, :7], target)
    change = np.abs(next_obs - obs)[:, OBJECT].max(1) * min(units.scale)
    assert surprised[change > 1].all()  # in standard deviations of the change: free motion is below 0.3
    is_carried = carried(obs, action)
    assert surprised[~is_carried].mean() < 0.02
    assert surprised[is_carried].mean() > 0.9


def test_the_hand_is_found_and_neither_the_drifter_nor_the_angle() -> None:
    assert found_partners(GIVEN) == [Pair(OBJECT, HAND)]


def test_the_order_of_the_rows_does_not_matter() -> None:
    order = np.random.default_rng(0).permutation(len(GIVEN[0]))
    obs, action, next_obs = GIVEN
    assert found_partners((obs[order], action[order], next_obs[order])) == [Pair(OBJECT, HAND)]


def test_the_hand_is_found_in_other_units_and_far_from_the_origin() -> None:
    obs, action, next_obs = GIVEN
    assert found_partners((1000 * obs + 500, action, 1000 * next_obs + 500)) == [Pair(OBJECT, HAND)]


def test_the_hand_is_found_in_other_columns() -> None:
    order = [*OBJECT, ANGLE, *DRIFTER, *HAND]
    obs, action, next_obs = GIVEN
    assert found_partners((obs[:, order], action, next_obs[:, order]), [0, 1]) == [Pair([0, 1], [5, 6])]


def carried_by_drifter() -> Array:
    """Changes of the object [N, 2] where the drifter carries it in directions that nothing tells."""
    obs, action, _ = GIVEN
    swapped = obs[:, [*DRIFTER, ANGLE, *OBJECT, *HAND]]
    second = np.random.default_rng(5).uniform(-1, 1, action.shape)
    return np.asarray(STEP * second * carried(swapped, second)[:, None])


def carried_by_both() -> Given:
    obs, _, next_obs = GIVEN
    return with_change(next_obs[:, OBJECT] - obs[:, OBJECT] + carried_by_drifter())


def test_two_hands_are_both_found() -> None:
    found = found_partners(carried_by_both())
    assert sorted(pair.partner for pair in found) == [HAND, DRIFTER]
    assert all(pair.entity == OBJECT for pair in found)


def test_the_action_moves_the_hand_and_hardly_anything_else() -> None:
    rows, _ = measure_transitions(GIVEN, {"object": OBJECT}, None)
    share = moved_by_action(rows)
    np.testing.assert_allclose(share[HAND], 1)  # its step is the action
    carries = carried(*GIVEN[:2]).mean()
    assert (share[OBJECT] < 2 * carries).all()  # the object's is, in the few rows in which it is carried
    assert share[DRIFTER].max() < 0.01


def test_a_column_that_never_changes_is_not_moved() -> None:
    obs, action, _ = GIVEN
    rows = tuple(torch.from_numpy(part) for part in (obs, action, obs))
    assert not moved_by_action(rows).any()  # type: ignore[arg-type]


def test_what_the_action_does_not_move_is_a_partner_only_if_nothing_else_is() -> None:
    assert chosen(carried_by_both(), {"object": OBJECT}) == {"object": [Pair(OBJECT, HAND)]}
    alone = with_change(carried_by_drifter())
    assert chosen(alone, {"object": OBJECT}) == {"object": [Pair(OBJECT, DRIFTER)]}


def test_an_object_that_drops_on_the_table_is_no_surprise_though_others_fall_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most objects stand at 0. Some start 0.04 above and drop; some have fallen off the table, to -3."""
    random = np.random.default_rng(8)
    height = 1e-4 * random.normal(size=6000)
    starts = random.random(6000) < 0.02
    falls = ~starts & (random.random(6000) < 0.02)
    height[starts] += 0.04
    height[falls] = random.uniform(-3, 0, falls.sum())
    obs = np.column_stack([height, random.normal(size=(6000, 6))])
    next_obs = obs.copy()
    next_obs[starts, 0] -= 0.04
    next_obs[falls, 0] -= 0.04
    rows, units = measure_transitions((obs, random.uniform(-1, 1, (6000, 2)), next_obs), {"object": [0]}, None)
    inputs, target = units.table(rows, "cpu")
    assert find_surprises(inputs[:, :7], target)[starts].mean() < 0.1
    monkeypatch.setattr(tables, "UNEVEN", 0)
    assert find_surprises(inputs[:, :7], target)[starts].mean() > 0.9


@pytest.mark.parametrize("share", [0.07, 0.5, 1.0])
def test_nothing_is_found_where_the_object_moves_at_random(share: float) -> None:
    where = np.random.default_rng(6).random(len(GIVEN[0])) < share
    assert found_partners(with_change(jumps(where))) == []


def test_the_hand_is_found_where_most_surprises_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The object also jumps by itself, far from the hand, more often than the hand carries it."""
    obs = GIVEN[0]
    far = np.linalg.norm(obs[:, OBJECT] - obs[:, HAND], axis=1)
    touched = far < np.quantile(far, 0.04)
    fallen = (far > np.median(far)) & (np.random.default_rng(1).uniform(size=len(far)) < 0.12)
    given = with_change(jumps(touched | fallen))
    assert found_partners(given) == [Pair(OBJECT, HAND)]
    monkeypatch.setattr(partners, "LEAST_RATIO", np.inf)
    assert found_partners(given) == []


def test_a_place_alone_is_not_a_partner() -> None:
    # An object in the middle is also nearer to most other positions.
    in_the_middle = np.linalg.norm(GIVEN[0][:, OBJECT], axis=1) < 0.2
    assert found_partners(with_change(jumps(in_the_middle))) == []


def test_two_places_are_not_partners() -> None:
    # Each in the middle by itself: then they are near each other, but no nearer than at other surprises.
    where = np.abs(GIVEN[0][:, [*OBJECT, *DRIFTER]]).max(1) < 0.25
    near = -np.linalg.norm(GIVEN[0][:, OBJECT] - GIVEN[0][:, DRIFTER], axis=1)
    assert roc_auc_score(where, near) > partners.LEAST_AUC
    assert found_partners(with_change(jumps(where))) == []


def test_the_hand_is_found_if_it_is_always_at_the_same_place_then() -> None:
    # It touches only in the middle, so that its place alone announces surprises as well as its nearness.
    obs = GIVEN[0]
    far = np.linalg.norm(obs[:, OBJECT] - obs[:, HAND], axis=1)
    off_center = np.linalg.norm(obs[:, HAND], axis=1)
    touched = (far < np.quantile(far, 0.3)) & (off_center < np.quantile(off_center, 0.2))
    assert roc_auc_score(touched, -off_center) > roc_auc_score(touched, -far) > partners.LEAST_AUC
    assert found_partners(with_change(jumps(touched))) == [Pair(OBJECT, HAND)]


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_nearer_to_its_own_partner(spread: float) -> None:
    # The offset to the own partner is N(0, s^2) along two axes, that to another's N(0, 2 + s^2), independently: their
    # squared lengths are exponential, and the first is shorter with probability (2 + s^2) / (2 + 2 s^2).
    random = np.random.default_rng(8)
    place = random.normal(size=(10_000, 2))
    states = np.hstack([place, place + spread * random.normal(size=place.shape)])
    expected = (2 + spread**2) / (2 + 2 * spread**2)
    assert nearer_own(states, Pair([0, 1], [2, 3])) == pytest.approx(expected, abs=0.02)


def test_as_near_to_others_without_a_relation() -> None:
    states = np.random.default_rng(9).normal(size=(10_000, 4))
    assert nearer_own(states, Pair([0, 1], [2, 3])) == pytest.approx(0.5, abs=0.02)


def test_motion_that_the_state_explains_is_not_a_surprise() -> None:
    assert found_partners(with_change(-0.1 * GIVEN[0][:, OBJECT])) == []


def test_the_hand_is_also_found_where_finer_columns_surprise_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = partners.find_surprises

    def find(standardized: Tensor, target: Tensor, finer: bool = True) -> Labels:
        return np.ones(len(target), bool) if finer else plain(standardized, target, finer)

    monkeypatch.setattr(partners, "find_surprises", find)
    assert found_partners(GIVEN) == [Pair(OBJECT, HAND)]


def test_too_few_surprises_show_nothing() -> None:
    moved = carried(*GIVEN[:2])
    moved[np.flatnonzero(moved)[FEWEST - 10 :]] = False
    assert found_partners(with_change(STEP * GIVEN[1] * moved[:, None])) == []


def test_an_object_among_columns_that_are_not_adjacent_has_no_position() -> None:
    obs, action, next_obs = GIVEN
    order = [0, 3, 1, 4]  # hand x, object x, hand y, object y
    assert found_partners((obs[:, order], action, next_obs[:, order]), [1, 3]) == []


def chosen(given: tuple[Array, Any, Array], entities: dict[str, list[int]], agent: list[int] | None = None) -> object:
    rows, units = measure_transitions(given, entities, None)
    return choose_partners(rows, units.table(rows, "cpu"), units, agent)


def test_partners_are_chosen_for_each_entity_or_for_none() -> None:
    assert chosen(GIVEN, {"object": OBJECT}) == {"object": [Pair(OBJECT, HAND)]}
    assert chosen(GIVEN, {"object": OBJECT, "drifter": DRIFTER}) is None
    given = {"object": [Pair(OBJECT, HAND)], "drifter": [Pair(DRIFTER, HAND)]}
    assert chosen(GIVEN, {"object": OBJECT, "drifter": DRIFTER}, agent=HAND) == given


def test_discrete_actions_have_no_partners_unless_they_are_given() -> None:
    obs, _, _ = GIVEN
    directions = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    number = np.random.default_rng(7).integers(0, 4, len(obs))
    step = directions[number].astype(float)
    next_obs = with_change(STEP * step * carried(obs, step)[:, None])[2]
    assert found_partners((obs, step, next_obs)) == [Pair(OBJECT, HAND)]  # the same steps as continuous actions
    assert chosen((obs, number, next_obs), {"object": OBJECT}) is None
    assert chosen((obs, number, next_obs), {"object": OBJECT}, agent=HAND) == {"object": [Pair(OBJECT, HAND)]}


@pytest.mark.parametrize(("agent", "count"), [([0, 1, 2], 3), ([], 0)])
def test_the_position_of_the_agent_has_as_many_columns_as_that_of_an_entity(agent: list[int], count: int) -> None:
    with pytest.raises(ValueError, match=rf"\b{count}\b.*'object'"):
        chosen(GIVEN, {"object": OBJECT}, agent)


@pytest.mark.parametrize("column", [7, -1, 99])
def test_the_columns_of_the_agent_exist(column: int) -> None:
    with pytest.raises(ValueError, match=str(column)):
        chosen(GIVEN, {"object": OBJECT}, [0, column])


def test_the_data_stay_as_they_were() -> None:
    before = [torch.from_numpy(part).clone() for part in GIVEN]
    found_partners(GIVEN)
    for part, kept in zip(GIVEN, before, strict=True):
        torch.testing.assert_close(torch.from_numpy(part), kept, rtol=0, atol=0)


# --- how far a partner reaches ----------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [0.0, 0.05, 0.2])
def test_the_reach_is_where_surprises_become_as_frequent_as_far_away(elsewhere: float) -> None:
    random = np.random.default_rng(0)
    states = np.column_stack([random.uniform(0, 1, 6000), np.zeros(6000)])  # an entity, and a partner at 0
    surprised = random.random(6000) < np.where(states[:, 0] < 0.3, 0.6, elsewhere)
    assert find_reach(states, surprised, Pair([0], [1])) == pytest.approx(0.3, abs=0.02)


def test_few_surprises_have_no_reach() -> None:
    states = np.column_stack([np.linspace(0, 1, 1000), np.zeros(1000)])
    for count, known in ((FEWEST - 1, False), (FEWEST, True)):
        assert (find_reach(states, np.arange(1000) < count, Pair([0], [1])) is not None) == known
    # all surprises are far away: nothing is out of reach
    assert find_reach(states, np.arange(1000) >= 500, Pair([0], [1])) == 1


def test_entities_that_are_always_at_their_partner_have_no_reach() -> None:
    assert find_reach(np.zeros((100, 2)), np.arange(100) < 40, Pair([0], [1])) is None


def test_the_hand_reaches_as_far_as_it_carries() -> None:
    rows, units = measure_transitions(GIVEN, {"object": OBJECT}, None)
    (pair,) = measure_reach(rows, units.table(rows, "cpu"), units, {"object": [Pair(OBJECT, HAND)]})["object"]
    assert (pair.entity, pair.partner) == (OBJECT, HAND)
    assert pair.reach is not None
    assert RADIUS < pair.reach <= RADIUS + 2**0.5 * STEP  # at the object after the longest step


def test_what_the_hand_gets_to_in_a_step_is_within_its_reach() -> None:
    """Surprises are only where the hand is at the object already, nearer than a step."""
    obs, action, next_obs = with_change(jumps(np.linalg.norm(GIVEN[0][:, OBJECT] - GIVEN[0][:, HAND], axis=1) < 0.08))
    rows, units = measure_transitions((obs, action, next_obs), {"object": OBJECT}, None)
    (pair,) = measure_reach(rows, units.table(rows, "cpu"), units, {"object": [Pair(OBJECT, HAND)]})["object"]
    steps = np.linalg.norm(STEP * action, axis=1)
    assert pair.reach == pytest.approx(np.quantile(steps, 0.99))
    assert np.quantile(steps, 0.99) > 0.08


def test_discrete_actions_have_no_reach() -> None:
    obs, action, next_obs = GIVEN
    number = (action[:, 0] > 0).astype(int)
    rows, units = measure_transitions((obs, number, next_obs), {"object": OBJECT}, None)
    given = {"object": [Pair(OBJECT, HAND)]}
    assert measure_reach(rows, units.table(rows, "cpu"), units, given) == given


def test_directions_are_adjacent_cosines_and_sines() -> None:
    random = np.random.default_rng(0)
    angle, flag = random.uniform(-np.pi, np.pi, 500), random.integers(0, 2, 500)
    columns = [random.normal(size=500), np.cos(angle), np.sin(angle), flag, 1 - flag, np.ones(500), np.zeros(500)]
    assert find_directions(torch.tensor(np.stack(columns, 1))) == [[1, 2]]
    noisy = np.stack([np.cos(angle), np.sin(angle) + 0.01], 1)  # not a unit vector
    assert find_directions(torch.tensor(noisy)) == []
    assert find_directions(torch.tensor(noisy[:, :1])) == []
