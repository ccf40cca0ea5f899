"""Learning curves of several seeds in numbers: intervals, episodes to reach a level, comparisons.

Curves are `success` [S, E], the share of successes of S seeds at E evaluations, with `episodes` [E]. A seed that never
reaches a level is right-censored: it counts as infinitely late, and what rests on it is given as a bound. Intervals are
95 % intervals over seeds by formulas, so nothing depends on a random seed. Those of means follow Student's t on the
scale of log odds; docs/results-rules.md shows how often they cover the truth.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit
from scipy.stats import t as student
from scipy.stats import trim_mean

from butfor.analysis.rank_tests import TAIL, Float, median_interval, probability_bounds, rank_interval
from butfor.runs.files import atomic_write

Curves = tuple[ArrayLike, ArrayLike]  # episodes [E], success [S, E]
TRIMMED = 0.25  # of the seeds at either end, in the interquartile mean
ROUNDING = 1e-6  # single precision and means put 0.9 a little below 0.9
RESERVED = ("tasks", "episodes", "file", "allow_pickle")  # the export's own names, and numpy's


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval."""

    low: float
    value: float
    high: float


@dataclass(frozen=True)
class Reach:
    """After how many episodes the median seed first succeeds at a level."""

    value: float  # the median; the limit where the median seed never does
    low: float  # at most the limit
    high: float  # infinite where it may lie beyond the limit
    is_bound: bool  # `value` is a lower bound of the median, not the median
    censored: int  # seeds that never do
    limit: int  # the last evaluation
    level: float
    each: tuple[float, ...]  # [S]: the episodes of each seed; infinite where never
    before: tuple[float, ...]  # [S]: the evaluation before it: 0 at the first one, the limit where never


@dataclass(frozen=True)
class Speedup:
    """How many times as many episodes a seed of the slow arm needs as one of the fast arm: median over all pairs."""

    value: float | None  # None where the fast arm's median seed never reaches the level
    is_lower_bound: bool  # the slow arm's seeds do so too rarely to know
    low: float
    high: float  # infinite where nothing bounds it

    def interval(self) -> str:
        """Return the interval as text: "[1.8, 2.6]" or "[1.8, unbounded]"."""
        return f"[{self.low:.1f}, {f'{self.high:.1f}' if math.isfinite(self.high) else 'unbounded'}]"


def curve_summary(episodes: ArrayLike, success: ArrayLike) -> dict[str, Float]:
    """Summarise each evaluation over the seeds.

    Returns:
        Arrays [E]: `episodes`; `mean` and `iqm`, the interquartile mean (Agarwal et al., 2021), each with `_low` and
        `_high`; and `std`, the population's standard deviation.
    """
    episodes, success = _check_curves(episodes, success)
    seeds = len(success)
    left_out = int(TRIMMED * seeds)
    kept = seeds - 2 * left_out
    ordered = np.sort(success, axis=0)
    winsorised = np.clip(success, ordered[left_out], ordered[-1 - left_out])
    spread = winsorised.std(0, ddof=1) if seeds > 1 else np.zeros(len(episodes))
    mean, iqm = success.mean(0), trim_mean(success, TRIMMED, axis=0)
    mean_low, mean_high = mean_interval(success)
    # the standard error of a trimmed mean after Tukey and McLaughlin
    iqm_low, iqm_high = _share_interval(iqm, spread * math.sqrt(seeds) / kept, kept)
    return {
        "episodes": episodes,
        "mean": mean,
        "mean_low": mean_low,
        "mean_high": mean_high,
        "std": success.std(0),
        "iqm": iqm,
        "iqm_low": iqm_low,
        "iqm_high": iqm_high,
    }


def mean_interval(shares: Float) -> tuple[Float, Float]:
    """Return the 95 % interval of the mean over seeds of shares [S, ...], each bound [...].

    It has no width where all seeds agree or there is only one.
    """
    seeds = len(shares)
    error = shares.std(0, ddof=1) / math.sqrt(seeds) if seeds > 1 else np.zeros(shares.shape[1:])
    return _share_interval(shares.mean(0), error, seeds)


def _share_interval(share: Float, error: Any, seeds: int) -> tuple[Float, Float]:
    """Return Student's interval of a share with a standard error, on the scale of log odds."""
    inside = np.clip(share, ROUNDING, 1 - ROUNDING)
    reach = student.isf(TAIL, max(seeds - 1, 1)) * error / (inside * (1 - inside))
    low, high = expit(logit(inside) - reach), expit(logit(inside) + reach)
    certain = reach == 0  # without the rounding of the scale
    return np.where(certain, share, low), np.where(certain, share, high)


def area_under_curve(episodes: ArrayLike, success: ArrayLike, ends: tuple[float, float] | None = None) -> Float:
    """Return the mean height [S] of each seed's curve between the first and the last evaluation, by trapezoids.

    Between other `ends`, which the curve must cover, its values there lie on straight lines between evaluations.
    """
    episodes, success = _check_curves(episodes, success)
    if ends is not None:
        if not episodes[0] <= ends[0] < ends[1] <= episodes[-1]:
            raise ValueError(f"ends is {ends}; expected rising episodes from {episodes[0]:g} to {episodes[-1]:g}.")
        grid = np.asarray([ends[0], *episodes[(episodes > ends[0]) & (episodes < ends[1])], ends[1]])
        success = np.stack([np.interp(grid, episodes, row) for row in success])
        episodes = grid
    if len(episodes) < 2:
        raise ValueError(f"An area needs at least 2 evaluations; got {len(episodes)}.")
    area: Float = np.trapezoid(success, episodes, axis=1) / (episodes[-1] - episodes[0])
    return area


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> Interval:
    """Return P(X > Y) + P(X = Y) / 2 for runs x [S] and y [T], that is Mann and Whitney's U / (S T)."""
    first = _check_numbers("x", x, 1)
    second = _check_numbers("y", y, 1)
    value = float(((first[:, None] > second) + 0.5 * (first[:, None] == second)).mean())
    low, high = probability_bounds(value, len(first), len(second))
    return Interval(low, value, high)


def difference(x: ArrayLike, y: ArrayLike) -> Interval:
    """Return by how much runs x [S] are above runs y [T]: the median over all pairs, with its exact interval."""
    pairs = _check_numbers("x", x, 1)[:, None] - _check_numbers("y", y, 1)
    low, high = rank_interval(pairs)
    return Interval(low, float(np.median(pairs)), high)


def episodes_to_reach(episodes: ArrayLike, success: ArrayLike, level: float) -> Float:
    """Return the first evaluation of each seed [S] at or above `level`; infinite where there is none."""
    episodes, success = _check_curves(episodes, success)
    if not 0 <= level <= 1:
        raise ValueError(f"level must lie in [0, 1]; got {level}.")
    reached = success >= level - ROUNDING
    return np.where(reached.any(axis=1), episodes[reached.argmax(axis=1)], np.inf)


def reach_summary(episodes: ArrayLike, success: ArrayLike, level: float) -> Reach:
    """Return the median over seeds of the episodes to reach `level`, with its interval.

    Where half of the seeds or more never do, the median is infinite and given as a bound.
    """
    each = episodes_to_reach(episodes, success, level)
    evaluated = np.asarray(episodes, dtype=np.float64)
    limit = int(evaluated[-1])
    before = np.concatenate([[0.0], evaluated])[np.searchsorted(evaluated, each)]  # of the first one, and of infinity
    median = float(np.median(each))
    low, high = median_interval(each)
    return Reach(
        value=min(median, limit),
        low=min(low, limit),
        high=high,
        is_bound=math.isinf(median),
        censored=int(np.isinf(each).sum()),
        limit=limit,
        level=level,
        each=tuple(each.tolist()),
        before=tuple(before.tolist()),
    )


def speedup(reach_slow: Reach, reach_fast: Reach) -> Speedup:
    """Return the ratio of episodes of all pairs of seeds, with its exact interval."""
    if reach_slow.level != reach_fast.level:
        raise ValueError(f"The levels are {reach_slow.level} and {reach_fast.level}; compare arms at the same level.")
    if min(reach_fast.each) <= 0:
        raise ValueError("A seed of the fast arm reaches the level at episode 0, so there is no ratio.")
    if reach_fast.is_bound:
        return Speedup(None, is_lower_bound=False, low=0.0, high=math.inf)
    slow, fast = np.array(reach_slow.each), np.array(reach_fast.each)
    value = float(np.median(np.minimum(slow, reach_slow.limit)[:, None] / fast))
    # a level is reached between two evaluations: the ratio is as small, and as large, as that allows
    with np.errstate(divide="ignore"):
        smallest = np.array(reach_slow.before)[:, None] / fast
        largest = slow[:, None] / np.array(reach_fast.before)
    low, high = max(rank_interval(smallest)[0], 0.0), rank_interval(largest)[1]
    return Speedup(value, bool(np.isinf(np.median(slow[:, None] / np.minimum(fast, reach_fast.limit)))), low, high)


def export_rliable(path: Path | str, curves: Mapping[str, Mapping[str, Curves]]) -> None:
    """Write learning curves as rliable's score dictionary, an .npz file.

    Args:
        path: the file; it gets an array [runs, tasks, evaluations] per algorithm, and `tasks` and `episodes`.
        curves: {algorithm: {task: (episodes [E], success [S, E])}}, with the same tasks and episodes in all, and the
            same number of runs for all tasks of an algorithm.
    """
    if not curves or not all(curves.values()):
        raise ValueError("There is nothing to export; give each algorithm at least one task with its curves.")
    tasks = list(next(iter(curves.values())))
    episodes, _ = _check_curves(*next(iter(curves.values()))[tasks[0]])
    arrays: dict[str, Any] = {}
    for name, by_task in curves.items():
        if name in RESERVED:
            raise ValueError(f"The algorithm's name {name!r} is reserved; choose another.")
        if set(by_task) != set(tasks):
            raise ValueError(f"{name} has the tasks {sorted(by_task)}; expected {sorted(tasks)}, as the first has.")
        checked = {task: _check_curves(*by_task[task]) for task in tasks}
        shapes = {task: values.shape for task, (_, values) in checked.items()}
        if not all(np.array_equal(places, episodes) for places, _ in checked.values()) or len(set(shapes.values())) > 1:
            raise ValueError(f"{name} needs as many runs for each task, evaluated at the same episodes; got {shapes}.")
        arrays[name] = np.stack([values for _, values in checked.values()], axis=1)  # [S, E] each -> [S, tasks, E]
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, tasks=np.array(tasks, dtype=str), episodes=episodes, **arrays)


def _check_numbers(name: str, values: ArrayLike, dimensions: int) -> Float:
    """Return values as an array of that many dimensions; refuse NaN and an empty one."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != dimensions or not array.size:
        expected = {1: "[S]", 2: "[S, E]"}[dimensions]
        raise ValueError(f"{name} has shape {list(array.shape)}; expected {expected}, not empty.")
    if np.isnan(array).any():
        raise ValueError(f"{name} contains NaN, first at {np.argwhere(np.isnan(array))[0].tolist()}.")
    return array


def _check_curves(episodes: ArrayLike, success: ArrayLike) -> tuple[Float, Float]:
    """Return episodes [E], rising, and success [S, E], shares."""
    places = _check_numbers("episodes", episodes, 1)
    values = _check_numbers("success", success, 2)
    if values.shape[1] != len(places):
        raise ValueError(
            f"success has shape {list(values.shape)} and episodes {list(places.shape)}; expected [S, E] and [E]."
        )
    if not np.isfinite(places).all() or places[0] < 0 or (np.diff(places) <= 0).any():
        raise ValueError(f"episodes must be finite, not negative and rising; got {places.tolist()}.")
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"success must lie in [0, 1]; got {values.min():g} to {values.max():g}.")
    return places, values
