"""Metrics and thresholds of scores: hand-computed numbers, brute force, and decisions whose truth is known."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.small_detection import separable

from butfor.detection import thresholds
from butfor.detection.thresholds import evaluate, summarize

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
    with pytest.raises(ValueError, match="All 7 states"):
        evaluate(np.arange(7.0), np.full(7, value))


def test_no_states_are_refused() -> None:
    with pytest.raises(ValueError, match="0 states"):
        evaluate(np.zeros(0), np.zeros(0, bool))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_not_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        evaluate(np.array([0.0, value, 1.0]), np.array([False, True, True]))


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


# ---------------------------------------------------------------------------------------------------- decisions


def test_halves_are_of_whole_episodes() -> None:
    episodes = separable(11)
    for half in thresholds._halves(episodes):
        by_episode = half.reshape(11, 20)
        assert (by_episode.all(1) | ~by_episode.any(1)).all()
        assert by_episode.all(1).sum() == 5
    assert len({half.tobytes() for half in thresholds._halves(episodes)}) > 10  # 20 draws among 462


def test_an_outcome_and_a_row_in_numbers() -> None:
    called = np.array([True, True, True, True, False, False, False, False, False, False])
    label = np.array([True, True, True, False, True, True, False, False, False, False])
    assert thresholds._outcome(called, label) == (1 / 4, 3 / 5, 4 / 10)
    assert thresholds._outcome(~label & False, label) == (0, 0, 0)  # nothing called: no false discovery
    splits = [np.arange(10) < 0, np.arange(10) >= 5]  # decide about all, and about the first half: T T T F T
    calls = {(0, 10): called, (1, 10): label, (0, 5): called[:5], (1, 5): ~called[:5]}
    row = thresholds._rows("x", lambda seed, split, rate: calls[seed, (~split).sum()], splits, label, 2)[1]
    # wrong: 1/4 and 0 of all, 1/4 and 0 of the half; found: 3/5, 1, 3/4, 1/4; called: 4/10, 5/10, 4/5, 1/5
    assert row == pytest.approx(
        {"method": "x", "target": 0.05, "realised": 1 / 8, "realised_std": 1 / 8, "found": 2.6 / 4,
         "rejected": 1.9 / 4, "seeds": 2}
    )  # fmt: skip
    row = thresholds._rows("x", lambda seed, split, rate: None, splits, label, 2)[1]
    assert (row["realised"], row["found"], row["rejected"]) == (None, 0, 0)  # nothing can be promised


def test_episodes_of_copies_count_as_one_state_each() -> None:
    """Copies of a transition add nothing: with its episodes, no state more is called than without the copies.

    200 transitions, the better half influenced, in 10 copies each. Half of the rows calibrate: all copies of some.
    """
    generator = np.random.default_rng(0)
    single = generator.normal(size=400) + np.arange(400) // 200 * 3.0
    single_p = np.where(np.arange(400) < 200, generator.random(400), generator.random(400) * 0.2)
    order = generator.permutation(400)
    scores, p_values = (np.repeat(values[order], 10)[None] for values in (single, single_p))
    calibrating = np.arange(4000) < 2000
    episodes = np.repeat(np.arange(400), 10)
    called = {
        name: thresholds._call_above(scores, p_values, groups, 0, calibrating, 0.1).mean()
        for name, groups in {"copies": None, "episodes": episodes, "rows": np.arange(4000)}.items()
    }
    few = (scores[:, ::10], p_values[:, ::10], None, 0, calibrating[::10], 0.1)
    assert called["rows"] == called["copies"]  # every row an episode of its own
    assert called["episodes"] <= thresholds._call_above(*few).mean() <= called["copies"]
    assert 0 < called["episodes"] < called["copies"]
