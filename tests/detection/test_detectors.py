"""How well scores separate states: hand-computed numbers, brute force, and the detectors that need no model."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from butfor.detection.detectors import contact, evaluate, moved, reference_cai, summarize
from butfor.rollouts.episodes import Episodes

Flags = NDArray[np.bool_]


def f1_at(score: NDArray[Any], label: Flags, threshold: float) -> float:
    """2 TP / (2 TP + FP + FN) of the states with at least that score."""
    said = score >= threshold
    return float(2 * (said & label).sum() / (2 * (said & label).sum() + (said != label).sum()))


def brute_force(score: NDArray[Any], label: Flags) -> dict[str, float]:
    """All pairs for AUC (a tie counts half), all thresholds for average precision and F1."""
    pairs = list(itertools.product(score[label], score[~label]))
    auc = sum(1.0 if one > other else 0.5 * (one == other) for one, other in pairs) / len(pairs)
    average, recall = 0.0, 0.0
    for threshold in sorted(set(score.tolist()), reverse=True):
        said = score >= threshold
        precision, new_recall = (said & label).sum() / said.sum(), (said & label).sum() / label.sum()
        average, recall = average + (new_recall - recall) * precision, new_recall
    return {
        "auc": auc,
        "ap": average,
        "f1": max(f1_at(score, label, threshold) for threshold in set(score.tolist())),
    }


# ---------------------------------------------------------------------------------------------- evaluate


def test_a_tiny_example_by_hand() -> None:
    """Positives 0.9 and 0.7, negatives 0.8 and twice 0.3.

    AUC: 0.9 beats all 3 negatives, 0.7 beats 2: 5 of 6 pairs. AP: precision 1 at recall 1/2, and 2/3 at recall 1:
    1/2 + 1/3. F1: 2/3 at 0.9, 1/2 at 0.8, 4/5 at 0.7, 4/7 at 0.3.
    """
    result = evaluate(np.array([0.3, 0.9, 0.8, 0.3, 0.7]), np.array([False, True, False, False, True]))
    assert result == pytest.approx({"auc": 5 / 6, "ap": 5 / 6, "f1": 0.8, "threshold": 0.7})
    assert all(type(value) is float for value in result.values())


def test_a_perfect_score() -> None:
    result = evaluate(np.array([2.0, 1.0, 4.0, 3.0]), np.array([False, False, True, True]))
    assert result == {"auc": 1, "ap": 1, "f1": 1, "threshold": 3}


def test_a_score_that_is_always_wrong() -> None:
    """One positive below three negatives: only saying yes to all finds it, with F1 2 / (2 + 3)."""
    result = evaluate(np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, False, False]))
    assert result == pytest.approx({"auc": 0, "ap": 1 / 4, "f1": 2 / 5, "threshold": 1})


def test_a_score_that_says_nothing() -> None:
    """All tied: AUC one half, AP the share of positives p, F1 of saying yes to all 2 p / (1 + p)."""
    result = evaluate(np.zeros(10), np.arange(10) < 3)
    assert result == pytest.approx({"auc": 0.5, "ap": 0.3, "f1": 0.6 / 1.3, "threshold": 0})


def test_the_highest_state_alone_can_be_the_best_threshold() -> None:
    result = evaluate(np.array([5.0, 1.0, 1.0, 1.0, 1.0]), np.array([True, False, False, False, False]))
    assert result == {"auc": 1, "ap": 1, "f1": 1, "threshold": 5}


@pytest.mark.parametrize("levels", [2, 4, 1000])  # few levels: many ties
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_against_brute_force(levels: int, share: float) -> None:
    for seed in range(5):
        generator = np.random.default_rng(seed)
        label = generator.random(60) < share
        label[:2] = [True, False]
        score = (generator.integers(levels, size=60) + label * generator.integers(2)).astype(np.float32)
        result = evaluate(score, label)
        threshold = result.pop("threshold")
        assert result == pytest.approx(brute_force(score, label))
        assert threshold in score
        assert f1_at(score, label, threshold) == pytest.approx(result["f1"])  # "at least" the threshold


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_only_the_order_counts(scale: float) -> None:
    generator = np.random.default_rng(0)
    label, score = generator.random(50) < 0.3, generator.random(50).astype(np.float32)
    plain, scaled = evaluate(score, label), evaluate(score * np.float32(scale), label)
    for name in ("auc", "ap", "f1"):
        assert scaled[name] == pytest.approx(plain[name])


@pytest.mark.parametrize("value", [True, False])
def test_one_kind_of_label_is_refused(value: bool) -> None:
    with pytest.raises(ValueError, match="All 7 states have the same label; detection needs both kinds"):
        evaluate(np.arange(7.0), np.full(7, value))


def test_no_states_are_refused() -> None:
    with pytest.raises(ValueError, match="0 states"):
        evaluate(np.zeros(0), np.zeros(0, bool))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_not_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        evaluate(np.array([0.0, value, 1.0]), np.array([False, True, True]))


# --------------------------------------------------------------------------------- contact and the object


def episodes(**optional: Any) -> Episodes:
    """Two episodes of 3 and 1 steps; the goal's numbers past the end are nonsense."""
    achieved = np.array([[[0, 0], [3, 4], [3, 4], [3, 5]], [[1, 1], [1, 0], [99, 99], [-99, 0]]], np.float32)
    return Episodes(
        observation=np.zeros((2, 4, 1), np.float32),
        action=np.zeros((2, 3, 1), np.float32),
        achieved_goal=achieved,
        desired_goal=np.zeros((2, 4, 2), np.float32),
        length=np.array([3, 1]),
        sampled=np.ones((2, 3), bool),
        **optional,
    )


def test_moved_is_the_distance_of_each_real_step() -> None:
    score = moved(episodes())
    assert score.dtype == np.float32
    assert score.tolist() == [[5, 0, 1, 1]]  # (3, 4), nothing, 1 up; 1 down


def test_contact_is_the_worlds_flag_of_each_real_step() -> None:
    flags = np.array([[True, False, True], [False, True, True]])
    score = contact(episodes(contact=flags))
    assert score.dtype == np.float32
    assert score.tolist() == [[1, 0, 1, 0]]


def test_contact_without_contacts_is_refused() -> None:
    with pytest.raises(ValueError, match="no contact information; collect them with contacts"):
        contact(episodes())


# --------------------------------------------------------------------------------------------- summarize


def test_summarize_takes_mean_and_deviation_over_seeds() -> None:
    """AUC 0.5, 0.7, 0.9: mean 0.7, deviations -0.2, 0, 0.2, so the standard deviation is sqrt(0.08 / 3)."""
    rows = [
        {"detector": "cai", "seed": n, "auc": 0.5 + 0.2 * n, "ap": 0.25, "f1": n, "threshold": 1e9} for n in range(3)
    ]
    result = summarize(rows)
    assert result.keys() == {"auc", "ap", "f1"}
    assert result["auc"] == pytest.approx({"mean": 0.7, "std": math.sqrt(0.08 / 3)})
    assert result["ap"] == pytest.approx({"mean": 0.25, "std": 0})
    assert result["f1"] == pytest.approx({"mean": 1, "std": math.sqrt(2 / 3)})


def test_summarize_of_one_seed_has_no_deviation() -> None:
    result = summarize([{"auc": 0.5, "ap": 0.1, "f1": 0.2}])
    assert result == {name: {"mean": value, "std": 0} for name, value in [("auc", 0.5), ("ap", 0.1), ("f1", 0.2)]}


# ------------------------------------------------------------------------------------------------ reference


def test_the_reference_is_the_integral_of_the_mixture_divergence() -> None:
    outcomes = np.array([[[0.0], [0.5], [2.0]]])
    noise = 0.4
    grid = np.linspace(-4, 6, 20001)
    densities = np.exp(-0.5 * ((grid - outcomes[0]) / noise) ** 2) / (noise * np.sqrt(2 * np.pi))  # [3, grid]
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.nan_to_num(densities * np.log(densities / densities.mean(0)))
    truth = float(np.trapezoid(terms, grid, axis=1).mean())
    estimate = reference_cai(outcomes, noise, 4000, np.random.default_rng(0))
    # one draw of the integrand varies by less than log 3 around its mean
    assert estimate[0] == pytest.approx(truth, abs=4 * np.log(3) / np.sqrt(3 * 4000))


def test_the_reference_is_zero_without_influence_and_log_m_with_full_influence() -> None:
    same, apart = np.ones((1, 5, 3)), np.arange(5.0)[None, :, None] * np.ones(3)
    both = reference_cai(np.concatenate([same, apart]), 1e-3, 3, np.random.default_rng(0))
    assert both[0] == pytest.approx(0, abs=1e-12)
    assert both[1] == pytest.approx(np.log(5), rel=1e-9)
    with pytest.raises(ValueError, match=r"expected \[n, M, d\]"):
        reference_cai(np.ones((2, 3)), 1.0, 1, np.random.default_rng(0))


def test_a_share_weighs_states_as_if_there_were_more_of_them() -> None:
    """Repeating every free state 3 times is the same as weighting the share of influenced ones down."""
    random = np.random.default_rng(0)
    label = random.random(400) < 0.4
    score = random.normal(label * 1.0, 1.0)
    times = np.where(label, 1, 3)
    share = float(label.sum() / times.sum())
    repeated = evaluate(np.repeat(score, times), np.repeat(label, times))
    assert evaluate(score, label, share) == pytest.approx(repeated)
    assert evaluate(score, label, float(label.mean())) == pytest.approx(evaluate(score, label))
