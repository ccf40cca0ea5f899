"""Learning curves of several seeds in numbers: bootstrap intervals, episodes to reach a level, comparisons.

Curves are `success` [S, E], the share of successes of S seeds at E evaluations, with `episodes` [E]. A seed that never
reaches a level is right-censored: it counts as infinitely late, and what rests on it is given as a bound. All intervals
are 95 % percentile intervals over resampled seeds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import trim_mean

from butfor.runs.files import atomic_write

Float = NDArray[np.float64]
Curves = tuple[ArrayLike, ArrayLike]  # episodes [E], success [S, E]
LEVEL = 0.95
RESAMPLES = 2000
CHANCE_RESAMPLES = 20_000  # of a probability: with fewer, the draw decides a verdict near its bound
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


@dataclass(frozen=True)
class Speedup:
    """How many times fewer episodes the fast arm's median seed needs."""

    value: float | None  # None where the fast arm's median seed never reaches the level
    is_lower_bound: bool  # the slow arm's median seed never does
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
    redrawn = _redraw(success, np.random.default_rng(0))  # [RESAMPLES, S, E]
    mean_low, mean_high = _percentiles(redrawn.mean(1))
    iqm_low, iqm_high = _percentiles(trim_mean(redrawn, 0.25, axis=1))
    return {
        "episodes": episodes,
        "mean": success.mean(0),
        "mean_low": mean_low,
        "mean_high": mean_high,
        "std": success.std(0),
        "iqm": trim_mean(success, 0.25, axis=0),
        "iqm_low": iqm_low,
        "iqm_high": iqm_high,
    }


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


def probability_of_improvement(x: ArrayLike, y: ArrayLike, seed: int = 0) -> Interval:
    """Return P(X > Y) + P(X = Y) / 2 for runs x [S] and y [T], that is Mann and Whitney's U / (S T)."""
    first = _check_numbers("x", x, 1)
    second = _check_numbers("y", y, 1)
    wins = (first[:, None] > second) + 0.5 * (first[:, None] == second)  # [S, T]
    generator = np.random.default_rng(seed)
    # how often each run is drawn is all that counts: [N, S], [N, T]
    counts = [generator.multinomial(n, np.full(n, 1 / n), size=CHANCE_RESAMPLES) for n in wins.shape]
    low, high = _percentiles(((counts[0] @ wins) * counts[1]).sum(1) / wins.size)
    return Interval(float(low), float(wins.mean()), float(high))


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
    limit = int(np.asarray(episodes)[-1])
    median = float(np.median(each))
    low, high = _percentiles(np.median(_redraw(each, np.random.default_rng(0)), axis=1))
    return Reach(
        value=min(median, limit),
        low=min(float(low), limit),
        high=float(high),
        is_bound=math.isinf(median),
        censored=int(np.isinf(each).sum()),
        limit=limit,
        level=level,
        each=tuple(each.tolist()),
    )


def speedup(reach_slow: Reach, reach_fast: Reach) -> Speedup:
    """Return the ratio of two medians, with an interval over the seeds of both; a bound where the slow one is."""
    if reach_slow.level != reach_fast.level:
        raise ValueError(f"The levels are {reach_slow.level} and {reach_fast.level}; compare arms at the same level.")
    if min(reach_fast.each) <= 0:
        raise ValueError("A seed of the fast arm reaches the level at episode 0, so there is no ratio.")
    if reach_fast.is_bound:
        return Speedup(None, is_lower_bound=False, low=0.0, high=math.inf)
    generator = np.random.default_rng(0)
    slow, fast = (np.median(_redraw(np.array(reach.each), generator), axis=1) for reach in (reach_slow, reach_fast))
    # where a redrawn median is beyond the limit, the ratio is as small, and as large, as that allows
    low, _ = _percentiles(np.minimum(slow, reach_slow.limit) / fast)
    _, high = _percentiles(slow / np.minimum(fast, reach_fast.limit))
    return Speedup(reach_slow.value / reach_fast.value, reach_slow.is_bound, float(low), float(high))


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


def _redraw(sample: Float, generator: np.random.Generator) -> Float:
    """Draw as many rows as there are, with replacement: [S, ...] -> [RESAMPLES, S, ...]."""
    return sample[generator.integers(len(sample), size=(RESAMPLES, len(sample)))]


def _percentiles(redrawn: Float) -> tuple[Any, Any]:
    """Return the bounds that leave out as many values on either side: [N, ...] -> [...], [...].

    They are values of the sample, never between two, so that infinite ones do no harm.
    """
    ordered = np.sort(redrawn, axis=0)
    left_out = int(len(ordered) * (1 - LEVEL) / 2 + 1e-9)  # 1 - 0.9 is a little below 0.1
    return ordered[left_out], ordered[-1 - left_out]


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
