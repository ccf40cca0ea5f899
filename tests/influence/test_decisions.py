"""P-values by hand, and simulations: the share of false discoveries stays within the promise, a naive rule's not."""

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import norm

from butfor.influence.decisions import (
    Calibration,
    conformal_p_values,
    decide_influenced,
    describe_nonrandom,
    false_discovery_curve,
    rank_p_values,
    reject,
    threshold_for,
)

Bool = NDArray[np.bool_]

# --- by hand --------------------------------------------------------------------------------------


def test_a_conformal_p_value_counts_the_free_scores_that_are_as_high() -> None:
    p_values = conformal_p_values([0.3, 0.1, 0.2, 0.2], [0.0, 0.1, 0.15, 0.2, 0.3, 0.31])
    np.testing.assert_allclose(p_values, np.array([5, 5, 4, 4, 2, 1]) / 5)


def test_states_of_one_episode_count_as_one() -> None:
    """Free scores 1 to 5, four of them of one episode: p = (4 + number at or above) / (5 + 4)."""
    p_values = conformal_p_values([3, 1, 5, 2, 4], [0.5, 2.5, 4.5, 6], [0, 0, 1, 0, 0])
    assert p_values.tolist() == pytest.approx([1, (4 + 3) / 9, (4 + 1) / 9, 4 / 9])
    alone = conformal_p_values([3, 1, 5, 2, 4], [0.5, 2.5, 4.5, 6], [4, 3, 2, 1, 0])
    assert alone.tolist() == conformal_p_values([3, 1, 5, 2, 4], [0.5, 2.5, 4.5, 6]).tolist()


def test_episodes_of_unequal_length_keep_the_bound() -> None:
    """Nothing is influenced; few episodes are long and score high, most have a single state: counting each episode once
    would take the long ones for rare."""
    random, rate, found = np.random.default_rng(6), 0.1, []

    def batch() -> tuple[Any, Any]:
        long = random.random(200) < 0.05
        sizes = np.where(long, 30, 1)
        return random.normal(np.repeat(2.0 * long, sizes)), np.repeat(np.arange(200), sizes)

    for _ in range(400):
        (free, groups), (new, _) = batch(), batch()
        found.append(reject(conformal_p_values(free, new, groups), rate).any())
    assert np.mean(found) <= rate + 3 * math.sqrt(rate * (1 - rate) / 400)


def test_actions_of_a_policy_do_not_look_random() -> None:
    random = np.random.default_rng(7)
    obs = random.normal(size=(2000, 3))
    assert describe_nonrandom(random.uniform(-1, 1, (2000, 2)), obs) is None
    assert describe_nonrandom(random.uniform(-1, 1, (60, 4)), random.normal(size=(60, 25))) is None  # few, but random
    squashed = np.clip(random.normal(size=(2000, 1)), -1, 1)
    assert "away from the uniform one" in str(describe_nonrandom(squashed, obs))
    follows = 2 * (np.argsort(np.argsort(obs[:, :1] + random.normal(size=(2000, 1)), 0), 0) + 0.5) / 2000 - 1
    assert "depend on the state" in str(describe_nonrandom(follows, obs))  # exactly uniform, yet chosen by the state


def test_discrete_actions_of_a_policy_do_not_look_random() -> None:
    random = np.random.default_rng(7)
    obs = np.column_stack([random.normal(size=(2000, 2)), np.ones(2000)])
    assert describe_nonrandom(np.eye(8)[random.integers(0, 8, 2000)], obs, discrete=True) is None
    assert (
        describe_nonrandom(np.eye(18)[random.integers(0, 18, 300)], obs[:300], discrete=True) is None
    )  # few, but random
    assert describe_nonrandom(np.eye(2)[random.integers(0, 2, 60)], random.normal(size=(60, 25)), discrete=True) is None
    often = np.eye(4)[random.choice(4, 2000, p=[0.55, 0.15, 0.15, 0.15])]
    assert "away from the uniform one (total variation)" in str(describe_nonrandom(often, obs, discrete=True))
    place = np.argsort(np.argsort(obs[:, 0])) / 2000
    follows = np.where(random.random(2000) < 0.5, random.integers(0, 8, 2000), 8 * place).astype(int)
    assert "depend on the state" in str(describe_nonrandom(np.eye(8)[follows], obs, discrete=True))
    middle = np.where(np.abs(place - 0.5) < 0.25, 0, 1)  # no rank correlation, and each action half of the time
    assert "depend on the state" in str(describe_nonrandom(np.eye(2)[middle], obs, discrete=True))


def test_a_rate_may_be_any_kind_of_number() -> None:
    calibration = Calibration(np.arange(100.0))
    scores = np.array([1.0, 200.0])
    rates: tuple[Any, ...] = (0.05, np.float32(0.05), np.float64(0.05))
    for rate in rates:
        assert decide_influenced(calibration, scores, rate).tolist() == [False, True]


def test_a_single_state_is_no_batch() -> None:
    with pytest.warns(UserWarning, match="1 state"):
        assert decide_influenced(Calibration(np.arange(100.0)), [200.0], 0.05).tolist() == [True]


def test_alike_states_break_the_bound_unless_they_count_as_one() -> None:
    """Nothing is influenced, and the twenty states of an episode share their score: every discovery is false."""
    random, rate, alone, together = np.random.default_rng(5), 0.1, [], []
    for _ in range(400):
        free, new = (np.repeat(random.normal(size=60), 20) for _ in range(2))
        groups = np.repeat(np.arange(60), 20)
        alone.append(reject(conformal_p_values(free, new), rate).any())
        together.append(reject(conformal_p_values(free, new, groups), rate).any())
    allowed = rate + 3 * math.sqrt(rate * (1 - rate) / 400)
    assert np.mean(together) <= allowed
    assert np.mean(alone) > allowed


def test_the_procedure_of_benjamini_and_hochberg() -> None:
    # the largest k with p_(k) <= 0.1 k / 5 is 3: 0.05 <= 0.06, although 0.045 > 0.04
    p_values = [0.2, 0.045, 0.05, 0.01, 0.09]
    assert reject(p_values, 0.1).tolist() == [False, True, True, True, False]
    assert not reject([0.11, 0.5, 0.9], 0.1).any()
    assert reject([0.1, 0.1], 0.1).all()
    assert reject([], 0.1).shape == (0,)


def test_a_rank_p_value_counts_the_redrawn_that_are_as_likely() -> None:
    taken, redrawn = [3.0, 0.0, 1.0], [[1.0, 2.0, 2.5], [1.0, 2.0, 3.0], [1.0, 1.0, 0.0]]
    np.testing.assert_allclose(rank_p_values(taken, redrawn), [1 / 4, 1, 3 / 4])


def test_ties_broken_at_random_make_every_rank_as_probable() -> None:
    random = np.random.default_rng(0)
    p_values = rank_p_values(np.zeros(20_000), np.zeros((20_000, 3)), random)
    shares = [(p_values == rank / 4).mean() for rank in (1, 2, 3, 4)]
    assert np.abs(np.array(shares) - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / 20_000)
    own, others = random.normal(size=50), random.normal(size=(50, 9))  # without ties nothing is drawn
    assert np.array_equal(rank_p_values(own, others, random), rank_p_values(own, others))


def test_the_curve_follows_its_formula_and_equal_scores_enter_together(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, p_values = [1.0, 3.0, 2.0, 2.0, 0.5], [0.9, 0.1, 0.6, 0.2, 0.3]
    # C = 5; only one p-value is above 0.8
    np.testing.assert_allclose(false_discovery_curve(scores, p_values)[1], [5 / 2, 5 / 4, 10 / 5, 10 / 6])
    monkeypatch.setattr("butfor.influence.decisions.SPLIT", 0.5)
    thresholds, estimate = false_discovery_curve(scores, p_values)
    # C = 2; after 1, 3, 4 and 5 states 0, 1, 2 and 2 of them have p > 1/2
    np.testing.assert_allclose(thresholds, [3, 2, 1, 0.5])
    np.testing.assert_allclose(estimate, [2 / 2, 4 / 4, 6 / 5, 6 / 6])


def test_states_of_one_episode_count_as_fewer_in_the_curve() -> None:
    """Each state alone in its group: nothing changes. Episodes of equal states: the unit is that of a plain loop."""
    random = np.random.default_rng(0)
    scores, p_values = np.repeat(random.normal(size=40), 5), np.repeat(random.random(40), 5)
    groups = np.repeat(random.permutation(40), 5)
    alone = false_discovery_curve(scores, p_values, np.arange(200))
    np.testing.assert_allclose(alone[1], false_discovery_curve(scores, p_values)[1])
    thresholds, estimate = false_discovery_curve(scores, p_values, groups)
    for threshold, found in zip(thresholds, estimate, strict=True):
        above = scores >= threshold
        counted = p_values[above] > 0.8
        unit = 1.0
        for _ in range(5):
            error = counted - (unit + counted.sum()) / (unit + above.sum())
            totals = [error[groups[above] == group].sum() for group in np.unique(groups[above])]
            unit = max(2 * np.square(totals).sum() / np.square(error).sum() - 1, 1.0)
        assert found == pytest.approx(5 * (unit + counted.sum()) / (unit + above.sum()))
        assert unit == pytest.approx(2 * 5 - 1)  # equal errors: the design effect is the size of an episode


def test_the_threshold_is_the_lowest_that_will_do() -> None:
    thresholds, estimate = [4.0, 3.0, 2.0, 1.0], [0.3, 0.1, 0.2, 0.4]
    assert threshold_for(thresholds, estimate, 0.2) == 2
    assert threshold_for(thresholds, estimate, 0.15) == 3
    assert threshold_for(thresholds, estimate, 0.05) is None


def test_decisions_by_both_kinds_of_calibration() -> None:
    free = Calibration(np.arange(99.0))
    # p = 0.01 twice: 0.01 <= 2/3 0.05
    assert decide_influenced(free, [200.0, 50.0, 98.5], 0.05).tolist() == [
        True,
        False,
        True,
    ]  # p = 0.01 twice: 0.01 <= 2/3 0.05
    # 200 states with p = 0 above the score 1, 100 with p = 1 below: C / (1 + k) <= 0.05 for k >= 99
    scores, p_values = (
        np.concatenate([np.linspace(2, 1, 200), np.linspace(0.9, 0, 100)]),
        np.repeat([0.0, 1.0], [200, 100]),
    )
    # (5 + 5 m) / (201 + m) <= 0.05 holds for m = 1 (10 / 202) and no more
    lowest = scores[200]
    assert decide_influenced(Calibration(scores, p_values), [lowest, lowest - 1e-3, 5.0], 0.05).tolist() == [
        True,
        False,
        True,
    ]


def test_where_no_threshold_will_do_a_warning_says_so() -> None:
    calibration = Calibration(np.linspace(1, 0, 50), np.zeros(50))
    with pytest.warns(UserWarning, match=r"cube.*0\.05.*0\.098.* 50 "):
        assert not decide_influenced(calibration, [5.0, 0.1], 0.05, "cube").any()  # the least is 5 / 51
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decide_influenced(calibration, [5.0, 0.1], 0.2).all()


def test_too_few_free_states_are_refused_with_the_number_that_is_needed() -> None:
    with pytest.raises(ValueError, match=r"\b18 .*0\.0526.*\b19\b"):
        decide_influenced(Calibration(np.zeros(18)), [1.0], 0.05)
    assert decide_influenced(Calibration(np.zeros(19)), [1.0, 1.0], 0.05).all()
    with pytest.raises(ValueError, match=r"\b9,"):
        decide_influenced(Calibration(np.zeros(8)), [1.0], 0.1)
    assert decide_influenced(Calibration(np.zeros(9)), [1.0, 1.0], 0.1).all()


@pytest.mark.parametrize("rate", [0.0, 1.0, 1.5, math.nan, "0.05"])
def test_an_impossible_rate_is_refused(rate: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(rate))):
        decide_influenced(Calibration(np.arange(100.0)), [200.0, 1.0], rate)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([np.zeros(0)], "no states"),
        ([np.zeros(2), np.zeros(3)], r"p_values.*\[3\].* 2 "),
        ([np.zeros(2), None, np.zeros(1)], r"groups.*\[1\].* 2 "),
        ([np.zeros(2), np.zeros(2), np.zeros(3)], r"groups.*\[3\].* 2 "),
    ],
)
def test_data_that_cannot_calibrate_are_refused(parts: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Calibration(*parts)


# --- simulations ----------------------------------------------------------------------------------


def false_share(chosen: Bool, influenced: Bool) -> float:
    return float((chosen & ~influenced).sum() / max(1, chosen.sum()))


def upper_bound(shares: list[float]) -> float:
    """How far the mean of so many simulations may lie above the truth: three standard errors."""
    return float(3 * np.std(shares, ddof=1) / math.sqrt(len(shares)))


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_free_states_bound_the_share_of_false_discoveries(rate: float) -> None:
    random, shares, naive, found = np.random.default_rng(1), [], [], []
    for _ in range(400):
        influenced = random.random(300) < 0.1
        scores, free = random.normal(3.0 * influenced), random.normal(size=5000)
        p_values = conformal_p_values(free, scores)
        chosen = reject(p_values, rate)
        shares.append(false_share(chosen, influenced))
        found.append(chosen[influenced].mean())
        naive.append(false_share(p_values <= rate, influenced))  # a bound on false alarms is none on discoveries
    assert np.mean(shares) <= rate + upper_bound(shares)
    assert np.mean(shares) >= 0.9 * 0.9 * rate - upper_bound(
        shares
    )  # rate times the share of free states, but for steps
    assert np.mean(naive) > rate + upper_bound(naive)
    assert np.mean(found) > 0.3


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_the_ranks_of_taken_actions_bound_it_too(rate: float) -> None:
    """s' = a + noise where influenced, else noise; the score tells them apart imperfectly and not by the action."""
    random, shares, naive, found = np.random.default_rng(2), [], [], []
    for _ in range(200):
        influenced = random.random(1000) < 0.4
        scores = random.normal(2.5 * influenced)
        action, redrawn = random.uniform(-1, 1, 1000), random.uniform(-1, 1, (1000, 49))
        seen = action * influenced + 0.1 * random.normal(size=1000)
        taken = norm.logpdf(seen, action, 0.1)
        p_values = rank_p_values(taken, norm.logpdf(seen[:, None], redrawn, 0.1))
        threshold = threshold_for(*false_discovery_curve(scores, p_values), rate)
        chosen = scores >= (np.inf if threshold is None else threshold)
        shares.append(false_share(chosen, influenced))
        found.append(chosen[influenced].mean())
        naive.append(false_share(scores >= norm.ppf(1 - rate), influenced))  # the same share of the free
    assert np.mean(shares) <= rate + upper_bound(shares)
    assert np.mean(naive) > rate + upper_bound(naive)
    assert np.mean(found) > (0.2 if rate == 0.05 else 0.7)


def correlated(random: np.random.Generator, episodes: int, steps: int, correlation: float) -> Any:
    """Standard normal numbers [episodes * steps], with this correlation between neighbours of an episode."""
    noise = random.normal(size=(episodes, steps))
    noise[:, 1:] *= math.sqrt(1 - correlation**2)
    return lfilter([1], [1, -correlation], noise).ravel()


@pytest.mark.parametrize("correlation", [0.0, 0.95, 0.99])
def test_correlated_states_of_an_episode_keep_the_promise_for_new_episodes(correlation: float) -> None:
    """20 episodes of 500 states calibrate; the threshold is applied to 300 new episodes, in 80 simulations."""
    random, rate, found = np.random.default_rng(8), 0.05, []
    alone: list[float] = []
    together: list[float] = []
    groups = np.repeat(np.arange(20), 500)

    def batch(episodes: int) -> tuple[Any, Bool]:
        influenced = correlated(random, episodes, 500, correlation) > norm.isf(0.2)
        return correlated(random, episodes, 500, correlation) + 2.5 * influenced, influenced

    new, truth = batch(300)
    for _ in range(80):
        scores, influenced = batch(20)
        p_values = np.where(influenced, random.beta(0.2, 4, len(scores)), random.random(len(scores)))
        for given, shares in ((None, alone), (groups, together)):
            threshold = threshold_for(*false_discovery_curve(scores, p_values, given), rate)
            chosen = new >= (np.inf if threshold is None else threshold)
            shares.append(false_share(chosen, truth))
        found.append(chosen[truth].mean())
    assert np.mean(together) <= rate + upper_bound(together)
    assert np.mean(found) > 0.2
    if correlation == 0.99:
        assert np.mean(alone) > rate + upper_bound(alone)


@pytest.mark.parametrize("statistic", ["model", "noise", "constant"])
def test_rank_p_values_of_free_states_are_super_uniform_whatever_the_statistic(statistic: str) -> None:
    random = np.random.default_rng(3)
    seen, actions = random.normal(size=20_000), random.uniform(-1, 1, (20_000, 20))
    values = {
        "model": -np.square(seen[:, None] - actions),  # a wrong model, which believes in an influence
        "noise": random.normal(size=actions.shape),
        "constant": np.zeros(actions.shape),
    }[statistic]
    p_values = rank_p_values(values[:, 0], values[:, 1:])
    for level in (0.05, 0.1, 0.5, 0.9):
        assert (p_values <= level + 1e-9).mean() <= level + 3 * math.sqrt(level * (1 - level) / 20_000)


def test_where_nothing_is_influenced_discoveries_are_rare() -> None:
    """All discoveries are false then, so the rate is the chance to make any."""
    random, by_free, by_rank = np.random.default_rng(4), [], []
    for _ in range(500):
        scores, p_values = random.normal(size=200), random.integers(1, 101, 200) / 100
        by_free.append(bool(reject(conformal_p_values(random.normal(size=200), scores), 0.1).any()))
        by_rank.append(threshold_for(*false_discovery_curve(scores, p_values), 0.1) is not None)
    allowed = 0.1 + 3 * math.sqrt(0.1 * 0.9 / 500)
    assert np.mean(by_free) <= allowed
    assert np.mean(by_rank) <= allowed
