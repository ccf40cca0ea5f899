"""Statistics of curves against closed forms and values by hand."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from butfor.analysis.statistics import (
    Reach,
    area_under_curve,
    curve_summary,
    difference,
    episodes_to_reach,
    export_rliable,
    mean_interval,
    probability_of_improvement,
    reach_summary,
    speedup,
)

# --- means and intervals --------------------------------------------------------------------------


def test_the_interval_of_the_mean_is_students_on_the_scale_of_log_odds() -> None:
    """0.4, 0.6, 0.8 and 1 have the mean 0.7 and the standard error 0.258 / 2; log odds change by 1 / (0.7 x 0.3)."""
    low, high = mean_interval(np.array([0.4, 0.6, 0.8, 1.0]))
    reach = 3.1824 * math.sqrt(0.2 / 3 / 4) / 0.21  # t of three degrees of freedom
    odds = math.log(0.7 / 0.3)
    assert (low, high) == pytest.approx((1 / (1 + math.exp(reach - odds)), 1 / (1 + math.exp(-reach - odds))), abs=1e-4)
    mirrored = mean_interval(np.array([0.6, 0.4, 0.2, 0.0]))
    assert mirrored == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_seeds_that_agree_and_a_single_seed_have_an_interval_without_width(share: float) -> None:
    for seeds in (1, 5):
        summary = curve_summary([0], np.full((seeds, 1), share))
        assert [summary[name][0] for name in ("mean_low", "mean_high", "iqm_low", "iqm_high")] == [share] * 4


def test_the_intervals_of_ten_seeds_take_a_moment() -> None:
    success = np.random.default_rng(0).random((10, 60))
    began = time.process_time()
    curve_summary(range(60), success)
    assert time.process_time() - began < 1


def test_the_summary_of_curves() -> None:
    seeds = [1.0, 0.0, 0.3, 0.0, 1.0]
    summary = curve_summary([100, 200], np.array([seeds, [0.5] * 5]).T)
    assert set(summary) == {"episodes", "mean", "mean_low", "mean_high", "std", "iqm", "iqm_low", "iqm_high"}
    assert summary["episodes"].tolist() == [100, 200]
    assert summary["mean"] == pytest.approx([2.3 / 5, 0.5])
    assert summary["std"] == pytest.approx([math.sqrt(2.09 / 5 - 0.46**2), 0])
    assert summary["iqm"] == pytest.approx([1.3 / 3, 0.5])
    # winsorised the seeds are 0, 0, 0.3, 1, 1: t of two degrees of freedom, three of five seeds are kept
    reach = (
        4.3027 * math.sqrt(2.09 / 4 - 2.3**2 / 20) * math.sqrt(5) / 3 / (summary["iqm"][0] * (1 - summary["iqm"][0]))
    )
    odds = math.log(1.3 / 1.7)
    assert summary["iqm_low"] == pytest.approx([1 / (1 + math.exp(reach - odds)), 0.5], abs=1e-5)
    assert summary["iqm_high"] == pytest.approx([1 / (1 + math.exp(-reach - odds)), 0.5], abs=1e-5)


def test_the_area_under_a_curve() -> None:
    ramp = np.linspace(0, 1, 11)
    np.testing.assert_allclose(area_under_curve(np.arange(11) * 100, [ramp, ramp**0, 1 - ramp]), [0.5, 1, 0.5])
    # 100 episodes from 0 to 1, then 300 at 1: (50 + 300) / 400, from the first evaluation on
    np.testing.assert_allclose(area_under_curve([1000, 1100, 1400], [[0, 1, 1]]), [7 / 8])


def test_the_probability_of_improvement_by_hand() -> None:
    assert probability_of_improvement([3, 4], [1, 2, 2.5]).value == 1
    assert probability_of_improvement([1, 2, 2.5], [3, 4]).value == 0
    assert probability_of_improvement([1, 3], [2, 4]).value == 0.25
    assert probability_of_improvement([math.inf, 3], [math.inf, 1]).value == (0.5 + 1 + 0 + 1) / 4
    equal = probability_of_improvement([1, 1], [1, 1, 1])
    assert equal.value == 0.5
    assert equal.low + equal.high == pytest.approx(1)


def test_the_interval_of_a_probability_solves_newcombes_equation() -> None:
    """At its ends the distance is 1.96 standard errors there, and half a pair for continuity."""
    x, y = np.arange(12) + 0.5, np.arange(9) * 1.4
    found = probability_of_improvement(x, y)
    assert found.value == pytest.approx(mannwhitneyu(x, y).statistic / (12 * 9))
    for end in (found.low, found.high):
        runs = (12 + 9) / 2 - 1
        variance = end * (1 - end) * (1 + runs * (1 - end) / (2 - end) + runs * end / (1 + end)) / (12 * 9)
        assert abs(found.value - end) == pytest.approx(1.959964 * math.sqrt(variance) + 0.5 / (12 * 9), abs=1e-6)


def test_the_difference_is_the_median_of_all_pairs() -> None:
    """With four against four, only all 16 pairs on one side are as rare as 1 / 70."""
    found = difference([5, 6, 7, 9], [1, 2, 3, 4])
    assert (found.low, found.value, found.high) == (1, 4, 8)
    assert difference([1, 2], [0]).high == math.inf


# --- episodes to reach a level --------------------------------------------------------------------

EPISODES = [100, 200, 300, 400]


def steps(*reached: float) -> list[list[float]]:
    """Curves over ten evaluations, every 100 episodes, that step from 0 to 1 at the given ones (inf: never)."""
    return [[float(episode >= start) for episode in range(100, 1001, 100)] for start in reached]


def reach(*reached: float, level: float = 0.5) -> Reach:
    return reach_summary(range(100, 1001, 100), steps(*reached), level)


def test_the_first_evaluation_at_the_level() -> None:
    success = [[0.1, 0.5, 0.4, 0.6], [0.9, 0, 0, 0.0], [0.0, 0.4, 0.5, 0.5], [0.0, 0.1, 0.2, 0.49], [0, 0, 0, 1.0]]
    assert episodes_to_reach(EPISODES, success, 0.5).tolist() == [200, 100, 300, math.inf, 400]
    assert episodes_to_reach(EPISODES, np.array([[0.1, 0.2, 0.9, 0]], dtype=np.float32), 0.9).tolist() == [
        300
    ]  # 0.89999998


def test_the_median_seed_and_its_interval() -> None:
    odd = reach(200, 800, 300, 500, 400)
    assert (odd.value, odd.is_bound, odd.censored, odd.limit) == (400, False, 0, 1000)
    assert odd.each == (200, 800, 300, 500, 400)
    assert (odd.low, odd.high) == (200, 800)  # the range: no two of five values cover the median in 95 %
    assert reach(200, 300, 500, 900).value == 400
    ten = reach(*range(100, 1001, 100))
    assert (ten.low, ten.value, ten.high) == (200, 550, 900)


def test_a_median_among_censored_seeds() -> None:
    some = reach(200, 300, 400, math.inf, math.inf)
    assert (some.value, some.is_bound, some.censored) == (400, False, 2)
    assert (some.low, some.high) == (200, math.inf)
    for bound in (reach(200, 300, math.inf, math.inf), reach(200, math.inf, math.inf)):
        assert (bound.value, bound.is_bound, bound.high) == (1000, True, math.inf)
        assert bound.low < 1000
    none = reach(math.inf, math.inf)
    assert (none.value, none.low, none.high, none.is_bound) == (1000, 1000, math.inf, True)


def test_the_speedup_is_the_median_ratio_of_all_pairs() -> None:
    same = speedup(reach(*[600] * 5), reach(*[300] * 5))  # after 500 and by 600, after 200 and by 300
    assert (same.value, same.is_lower_bound, same.low, same.high) == (2, False, 500 / 300, 600 / 200)
    assert same.interval() == "[1.7, 3.0]"
    # 1, 2 and 4, 8 halves: with two against two no ratio is rejected
    found = speedup(reach(100, 400), reach(100, 200))
    assert (found.value, found.low, found.high) == (1.5, 0, math.inf)
    # four against four: the interval is the range of the ratios, from 300 / 300 to 800 / 100
    found = speedup(reach(400, 500, 600, 800), reach(200, 200, 300, 300))
    assert (found.low, found.high) == (1, 8)


def test_the_speedup_is_a_bound_where_the_slow_arm_never() -> None:
    bound = speedup(reach(*[math.inf] * 5), reach(400, 400, 500, 200, 400))
    assert (bound.value, bound.is_lower_bound, bound.high) == (2.5, True, math.inf)
    assert bound.low == 1000 / 500
    assert bound.interval() == "[2.0, unbounded]"


def test_censored_seeds_widen_the_interval_of_the_speedup() -> None:
    slow = speedup(reach(600, 600, 600, math.inf, math.inf), reach(*[300] * 5))
    assert (slow.value, slow.is_lower_bound, slow.low, slow.high) == (2, False, 500 / 300, math.inf)
    # a fast seed that never does may need any number of episodes beyond 1000
    fast = speedup(reach(*[600] * 5), reach(300, 300, 300, 300, math.inf))
    assert (fast.value, fast.is_lower_bound, fast.low, fast.high) == (2, False, 0, 3)


def test_a_speedup_with_censored_seeds_in_both_arms() -> None:
    both = speedup(reach(600, 600, math.inf), reach(300, 300, math.inf))
    assert (both.value, both.low, both.high) == (2, 0, math.inf)


def test_nothing_is_said_where_the_fast_arm_never() -> None:
    for slow in (reach(100, 200, 300), reach(math.inf)):
        nothing = speedup(slow, reach(100, math.inf, math.inf))
        assert (nothing.value, nothing.is_lower_bound, nothing.low, nothing.high) == (None, False, 0, math.inf)


def test_speedups_without_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.5 and 0\.9"):
        speedup(reach(300), reach(200, level=0.9))
    with pytest.raises(ValueError, match="episode 0"):
        speedup(reach(300), reach_summary([0, 100], [[0.6, 0.7]], 0.5))


# --- for rliable ----------------------------------------------------------------------------------


def test_the_export_has_the_layout_of_rliable(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    ours, plain = random.random((2, 5, 4)), random.random((2, 3, 4))  # [tasks, runs, evaluations]
    curves = {
        "priority + bonus": {"push": (EPISODES, ours[0]), "slide": (EPISODES, ours[1])},
        "none": {"slide": (EPISODES, plain[1]), "push": (EPISODES, plain[0])},
    }
    export_rliable(tmp_path / "new" / "scores.npz", curves)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["scores.npz"]
    with np.load(tmp_path / "new" / "scores.npz", allow_pickle=False) as file:
        assert set(file) == {"priority + bonus", "none", "tasks", "episodes"}
        assert file["tasks"].tolist() == ["push", "slide"]
        assert file["episodes"].tolist() == EPISODES
        np.testing.assert_array_equal(file["priority + bonus"], ours.transpose(1, 0, 2))
        np.testing.assert_array_equal(file["none"], plain.transpose(1, 0, 2))


@pytest.mark.parametrize(
    ("curves", "sentence"),
    [
        ({}, "algorithm"),
        ({"ours": {}}, "algorithm"),
        ({"episodes": {"push": ([1, 2], [[0, 1]])}}, "'episodes'"),
        ({"a": {"push": ([1], [[0]])}, "b": {"slide": ([1], [[0]])}}, r"b .*\['slide'\]"),
        ({"a": {"push": ([1], [[0]]), "slide": ([1], [[0], [1]])}}, "a .*2, 1"),
        ({"a": {"push": ([1, 2], [[0, 1]]), "slide": ([1], [[0]])}}, "a .*1, 1"),
        ({"a": {"push": ([1, 2], [[0, 1]])}, "b": {"push": ([1, 3], [[0, 1]])}}, "b .*episodes"),
        ({"a": {"push": ([1], [[math.nan]])}}, "success .*NaN"),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path: Path, curves: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        export_rliable(tmp_path / "scores.npz", curves)
    assert not list(tmp_path.iterdir())


# --- sentences ------------------------------------------------------------------------------------

CURVE_FUNCTIONS: list[Callable[[Any, Any], Any]] = [
    area_under_curve,
    curve_summary,
    lambda episodes, success: episodes_to_reach(episodes, success, 0.5),
    lambda episodes, success: reach_summary(episodes, success, 0.5),
]


@pytest.mark.parametrize("function", CURVE_FUNCTIONS)
@pytest.mark.parametrize(
    ("episodes", "success", "sentence"),
    [
        ([1, 2], [0.1, 0.2], r"success .*\[2\]; expected \[S, E\]"),
        ([[1, 2]], [[0.1, 0.2]], r"episodes .*\[1, 2\]; expected \[S\]"),
        ([1, 2, 3], [[0.1, 0.2]], r"success .*\[1, 2\] and episodes \[3\]"),
        ([], [[]], r"episodes .*\[0\]"),
        ([1, 2], np.zeros((0, 2)), r"success .*\[0, 2\]"),
        ([1, 2], [[0, 0], [0, math.nan]], r"success .*NaN.*\[1, 1\]"),
        ([1, math.nan], [[0, 0]], r"episodes .*NaN.*\[1\]"),
        ([2, 1], [[0, 0]], r"episodes .*\[2\.0, 1\.0\]"),
        ([1, 1], [[0, 0]], r"episodes .*\[1\.0, 1\.0\]"),
        ([-1, 1], [[0, 0]], r"episodes .*\[-1\.0, 1\.0\]"),
        ([1, math.inf], [[0, 0]], "episodes .*inf"),
        ([1, 2], [[0, 97]], "success .*0 to 97"),
        ([1, 2], [[-0.1, 1]], "success .*-0.1 to 1"),
    ],
)
def test_curves_that_are_none_are_refused(function: Any, episodes: Any, success: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        function(episodes, success)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: episodes_to_reach([1], [[0]], 50), "level .* 50"),
        (lambda: reach_summary([1], [[0]], -0.1), "level .* -0.1"),
        (lambda: reach_summary([1], [[0]], math.nan), "level .* nan"),
        (lambda: area_under_curve([1], [[0]]), "evaluations.* 1"),
        (lambda: probability_of_improvement([[1, 2]], [1]), r"x .*\[1, 2\]; expected \[S\]"),
        (lambda: probability_of_improvement([1], []), r"y .*\[0\]"),
        (lambda: probability_of_improvement([1], [math.nan]), "y .*NaN"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
