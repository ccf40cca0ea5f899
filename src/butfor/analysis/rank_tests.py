"""Exact tests and intervals that assume no distribution: ranks of two groups of runs, and signs of one.

Nothing is drawn at random, so no result depends on a seed. P-values are one-sided, in pairs: for "larger" and for
"smaller".
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, norm, rankdata

Float = NDArray[np.float64]
TAIL = 0.025  # of a 95 % interval, on either side


@lru_cache(maxsize=512)
def _rank_sum_law(doubled_ranks: tuple[int, ...], count: int) -> Float:
    """Return the probabilities of each sum of `count` of these ranks, if all choices of them are equally likely.

    Ranks are doubled, so that those of ties are whole numbers (Streitberg and Roehmel, 1986).
    """
    ways = np.zeros((count + 1, sum(doubled_ranks) + 1))
    ways[0, 0] = 1
    for rank in doubled_ranks:
        ways[1:, rank:] += ways[:-1, :-rank]
    law: Float = ways[count] / ways[count].sum()
    return law


def rank_test(x: Float, y: Float) -> tuple[float, float]:
    """Return the one-sided p-values that x [S] is larger than y [T], and smaller: the test of Mann and Whitney.

    The size is exact for any number of runs, with ties, if both come from the same distribution.
    """
    doubled = np.rint(2 * rankdata(np.concatenate([x, y]))).astype(int)
    law = _rank_sum_law(tuple(sorted(doubled.tolist())), len(x))
    observed = int(doubled[: len(x)].sum())
    return min(float(law[observed:].sum()), 1.0), min(float(law[: observed + 1].sum()), 1.0)


def rank_interval(pairs: Float) -> tuple[float, float]:
    """Return the 95 % interval of a shift or ratio from the differences or ratios of all pairs [S, T].

    It has the values that `rank_test` does not reject (Moses; Hodges and Lehmann). With too few runs to reject any, it
    is unbounded.
    """
    first, second = pairs.shape
    law = _rank_sum_law(tuple(range(2, 2 * (first + second) + 1, 2)), first)
    rejected = int((np.cumsum(law[first * (first + 1) :: 2]) <= TAIL).sum())  # values of U = 0, 1, ...
    if not rejected:
        return -np.inf, np.inf
    ordered = np.sort(pairs, axis=None)
    return float(ordered[rejected - 1]), float(ordered[-rejected])


def probability_bounds(probability: float, first: int, second: int) -> tuple[float, float]:
    """Return the 95 % interval of the probability that a run of one group is larger than one of the other.

    Newcombe's score interval (2006, method 5) with a correction for continuity. It excludes one half where `rank_test`
    rejects equality.
    """
    return (
        _lower_probability(probability, first, second),
        1 - _lower_probability(1 - probability, first, second),
    )


def _lower_probability(probability: float, first: int, second: int) -> float:
    """Return the lower bound of `probability_bounds`."""
    start = probability - 0.5 / (first * second)
    factor = float(norm.isf(TAIL)) ** 2 / (first * second)
    runs = (first + second) / 2 - 1

    def excess(value: float) -> float:
        variance = value * (1 - value) * (1 + runs * (1 - value) / (2 - value) + runs * value / (1 + value))
        return float(start - value - np.sqrt(factor * variance))

    return float(brentq(excess, 0, start)) if start > 0 else 0.0


def sign_test(count: int, runs: int) -> tuple[float, float]:
    """Return the one-sided p-values that more than half of all runs do what `count` of these do, and less than half."""
    return float(binom.sf(count - 1, runs, 0.5)), float(binom.cdf(count, runs, 0.5))


def median_interval(values: Float) -> tuple[float, float]:
    """Return the 95 % interval of the median from runs [S]: two of their values, of five or fewer runs the range."""
    ordered = np.sort(values)
    rejected = int((binom.cdf(np.arange(len(ordered)), len(ordered), 0.5) <= TAIL).sum())
    place = max(rejected - 1, 0)
    return float(ordered[place]), float(ordered[-1 - place])
