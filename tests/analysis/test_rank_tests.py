"""Exact tests against scipy's and against all permutations; intervals have what the tests do not reject."""

import numpy as np
import pytest
from scipy.stats import binomtest, mannwhitneyu, permutation_test

from butfor.analysis.rank_tests import median_interval, probability_bounds, rank_interval, rank_test, sign_test


def test_ranks_without_ties_are_those_of_mann_and_whitney() -> None:
    random = np.random.default_rng(0)
    for first, second in ((10, 10), (5, 10), (3, 4), (20, 20)):
        x, y = random.normal(size=first), random.normal(0.5, 1, size=second)
        expected = [mannwhitneyu(x, y, alternative=side, method="exact").pvalue for side in ("greater", "less")]
        assert rank_test(x, y) == pytest.approx(expected)


def test_ranks_with_ties_are_those_of_all_permutations() -> None:
    random = np.random.default_rng(1)
    x, y = random.integers(0, 4, 6).astype(float), random.integers(0, 5, 5).astype(float)

    def wins(first: np.ndarray, second: np.ndarray) -> float:
        return float(((first[:, None] > second) + 0.5 * (first[:, None] == second)).sum())

    for side, found in zip(("greater", "less"), rank_test(x, y), strict=True):
        expected = permutation_test((x, y), wins, alternative=side, n_resamples=np.inf).pvalue
        assert found == pytest.approx(expected)


def test_what_never_happens_is_later_than_everything() -> None:
    assert rank_test(np.array([np.inf] * 5), np.arange(5.0))[0] == pytest.approx(1 / 252)  # one of 10 over 5
    assert rank_test(np.array([np.inf] * 3), np.array([np.inf] * 3)) == (1, 1)


@pytest.mark.parametrize(("first", "second"), [(10, 10), (5, 5), (5, 10)])
def test_the_interval_has_the_shifts_that_are_not_rejected(first: int, second: int) -> None:
    random = np.random.default_rng(first + second)
    x, y = random.normal(size=first), random.normal(size=second)
    low, high = rank_interval(x[:, None] - y)
    for shift, rejected in ((low - 1e-9, True), (low + 1e-9, False), (high - 1e-9, False), (high + 1e-9, True)):
        assert (min(rank_test(x - shift, y)) <= 0.025) == rejected
    assert rank_interval(np.ones((3, 3))) == (-np.inf, np.inf)  # of 20 choices, the rarest has 5 %


@pytest.mark.parametrize(("first", "second"), [(10, 10), (5, 5), (5, 10), (6, 20)])
def test_a_probability_differs_from_one_half_where_the_test_says_so(first: int, second: int) -> None:
    """The second group lies above so many runs of the first: every number of won pairs occurs."""
    x = np.arange(float(first))
    for losses in range(first * second + 1):
        above = losses // second + (np.arange(second) < losses % second)  # of the first, for each of the second
        y = above - 0.5 + 0.01 * np.arange(second)
        won = float((x[:, None] > y).mean())
        low, high = probability_bounds(won, first, second)
        larger, smaller = rank_test(x, y)
        assert won == pytest.approx(1 - losses / (first * second))
        assert (low > 0.5) == (larger <= 0.025)
        assert (high < 0.5) == (smaller <= 0.025)
        assert 0 <= low <= won <= high <= 1


def test_signs_and_medians() -> None:
    assert sign_test(9, 10) == pytest.approx((11 / 1024, 1023 / 1024))
    assert sign_test(7, 12)[0] == pytest.approx(binomtest(7, 12, alternative="greater").pvalue)
    assert median_interval(np.arange(10.0)) == (1, 8)  # outside with probability 2 x 11 / 1024
    assert median_interval(np.arange(6.0)) == (0, 5)
    assert median_interval(np.array([3.0, 1.0, np.inf])) == (1, np.inf)
