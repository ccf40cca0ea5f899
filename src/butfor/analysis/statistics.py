"""Curves of several seeds in numbers: means with bootstrap intervals, episodes to reach a level, comparisons.

Curves are `success` [S, E], the share of successes of S seeds at E evaluations, with `episodes` [E]. A seed that never
reaches a level is right-censored: it counts as infinitely late, and what rests on it is given as a bound.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import trim_mean

Float = NDArray[np.float64]
Curves = tuple[ArrayLike, ArrayLike]  # episodes [E], success [S, E]
LEVEL = 0.95  # of all intervals, unless another is asked for
RESAMPLES = 2000
CHANCE_RESAMPLES = 20_000  # of a probability: with fewer, the draw decides a verdict that lies near its bound
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
    seeds: int
    limit: int  # the last evaluation at which a seed could be seen to reach the level
    level: float
    mean_reach: float  # when the mean over the seeds reaches the level; infinite where never
    each: tuple[float, ...]  # [S]: the episodes of each seed; infinite where never

    def words(self) -> str:
        """Such as "1,800 episodes [1,600, 2,200]" or "more than 3,000 episodes (7 of 10 seeds never)"."""
        never = f" ({self.censored} of {self.seeds} seeds never)" if self.censored else ""
        if self.is_bound:
            return f"more than {self.limit:,} episodes{never}"
        if self.seeds == 1:
            return f"{self.value:,.0f} episodes (one seed)"
        high = f"{self.high:,.0f}" if math.isfinite(self.high) else f"more than {self.limit:,}"
        return f"{self.value:,.0f} episodes [{self.low:,.0f}, {high}]{never}"


@dataclass(frozen=True)
class Speedup:
    """How many times fewer episodes the fast arm's median seed needs."""

    value: float | None  # None where the fast arm's median seed never reaches the level
    is_lower_bound: bool  # the slow arm's median seed never does
    low: float
    high: float  # infinite where nothing bounds it

    def words(self) -> str:
        """Such as "2.1 times as fast [1.8, 2.6]" or "at least 2.1 times as fast [1.8, unbounded]"."""
        if self.value is None:
            return "no speedup can be given: the median seed of the arm compared never reaches the level"
        least = "at least " if self.is_lower_bound else ""
        return f"{least}{self.value:.1f} times as fast {self.interval()}"

    def interval(self) -> str:
        """Such as "[1.8, 2.6]" or "[1.8, unbounded]"."""
        return f"[{self.low:.1f}, {f'{self.high:.1f}' if math.isfinite(self.high) else 'unbounded'}]"


# --- means and intervals --------------------------------------------------------------------------


def interquartile_mean(values: ArrayLike) -> float:
    """The mean of the middle half of all values together, runs and tasks alike (Agarwal et al., 2021)."""
    return float(trim_mean(_sample("values", values), 0.25, axis=None))


def bootstrap_interval(
    samples: Sequence[ArrayLike],
    statistic: Callable[[list[NDArray[Any]]], float],
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Percentile interval of a statistic of samples [S_i, ...], each redrawn on its own along its first axis."""
    if len(samples) == 0:
        raise ValueError("There are no samples to draw from; give a list with one array a task.")
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}; expected at least 1, better {RESAMPLES}.")
    given = [_sample(f"samples[{i}]", sample) for i, sample in enumerate(samples)]
    generator = np.random.default_rng(seed)
    redrawn = [
        statistic([sample[generator.integers(len(sample), size=len(sample))] for sample in given])
        for _ in range(resamples)
    ]
    low, high = _percentiles(np.asarray(redrawn, dtype=np.float64), level)
    return Interval(float(low), float(statistic(given)), float(high))


def curve_summary(episodes: ArrayLike, success: ArrayLike) -> dict[str, list[float]]:
    """Of every evaluation the mean, the population's standard deviation and the IQM; 95 % intervals of both means."""
    episodes, success = _curves(episodes, success)
    redrawn = _redraw(success, np.random.default_rng(0))  # [RESAMPLES, S, E]
    mean_low, mean_high = _percentiles(redrawn.mean(1), LEVEL)
    iqm_low, iqm_high = _percentiles(trim_mean(redrawn, 0.25, axis=1), LEVEL)
    summary = {
        "episodes": episodes,
        "mean": success.mean(0),
        "mean_low": mean_low,
        "mean_high": mean_high,
        "std": success.std(0),
        "iqm": trim_mean(success, 0.25, axis=0),
        "iqm_low": iqm_low,
        "iqm_high": iqm_high,
    }
    return {name: values.tolist() for name, values in summary.items()}


def area_under_curve(episodes: ArrayLike, success: ArrayLike, ends: tuple[float, float] | None = None) -> Float:
    """The mean height [S] of each seed's curve between the first and the last evaluation, by trapezoids.

    Between other `ends`, which the curve must cover, its values there lie on straight lines between evaluations.
    """
    episodes, success = _curves(episodes, success)
    if ends is not None:
        if not episodes[0] <= ends[0] < ends[1] <= episodes[-1]:
            raise ValueError(f"ends is {ends}; expected rising episodes from {episodes[0]:g} to {episodes[-1]:g}.")
        grid = np.asarray([ends[0], *episodes[(episodes > ends[0]) & (episodes < ends[1])], ends[1]])
        episodes, success = grid, np.stack([np.interp(grid, episodes, row) for row in success])
    if len(episodes) < 2:
        raise ValueError("There is one evaluation only; an area needs at least two.")
    area: Float = np.trapezoid(success, episodes, axis=1) / (episodes[-1] - episodes[0])
    return area


def probability_of_improvement(x: ArrayLike, y: ArrayLike, level: float = LEVEL, seed: int = 0) -> Interval:
    """P(X > Y) + P(X = Y) / 2 for runs x [S] and y [T], that is Mann and Whitney's U / (S T), both redrawn."""
    first, second = _sample("x", x, 1), _sample("y", y, 1)
    wins = (first[:, None] > second) + 0.5 * (first[:, None] == second)  # [S, T]
    generator = np.random.default_rng(seed)
    # how often each run is drawn says as much as the runs drawn: [N, S], [N, T]
    counts = [generator.multinomial(n, np.full(n, 1 / n), size=CHANCE_RESAMPLES) for n in wins.shape]
    low, high = _percentiles(((counts[0] @ wins) * counts[1]).sum(1) / wins.size, level)
    return Interval(float(low), float(wins.mean()), float(high))


# --- episodes to reach a level --------------------------------------------------------------------


def episodes_to_reach(episodes: ArrayLike, success: ArrayLike, level: float, stays: int = 1) -> Float:
    """The first evaluation of each seed [S] from which it is at or above `level` `stays` times in a row, else inf."""
    episodes, success = _curves(episodes, success)
    if not 0 <= level <= 1:
        raise ValueError(f"The level of success is {level}; it must lie from 0 to 1, such as 0.5.")
    if not 1 <= stays <= len(episodes):
        raise ValueError(f"stays is {stays}; expected 1 to {len(episodes)}, the number of evaluations.")
    windows = np.lib.stride_tricks.sliding_window_view(success >= level - ROUNDING, stays, axis=1)
    reached = np.all(windows, axis=-1)  # [S, E - stays + 1, stays] -> [S, E - stays + 1]
    return np.where(reached.any(axis=1), episodes[reached.argmax(axis=1)], np.inf)


def reach_summary(episodes: ArrayLike, success: ArrayLike, level: float, stays: int = 1, seed: int = 0) -> Reach:
    """The median over seeds of the episodes to reach `level`, its 95 % interval, and how many never do.

    A half of the seeds or more that never do make the median infinite; it then is given as a bound.
    """
    episodes, success = _curves(episodes, success)
    each = episodes_to_reach(episodes, success, level, stays)
    median = float(np.median(each))
    low, high = _percentiles(np.median(_redraw(each, np.random.default_rng(seed)), axis=1), LEVEL)
    limit = int(episodes[-stays])  # a later start could not be seen to stay
    return Reach(
        value=min(median, limit),
        low=min(float(low), limit),
        high=float(high),
        is_bound=math.isinf(median),
        censored=int(np.isinf(each).sum()),
        seeds=len(each),
        limit=limit,
        level=level,
        mean_reach=float(episodes_to_reach(episodes, success.mean(0)[None], level, stays)[0]),
        each=tuple(each.tolist()),
    )


def speedup(reach_slow: Reach, reach_fast: Reach, seed: int = 0) -> Speedup:
    """The ratio of the medians, with a 95 % interval over the seeds of both arms; a bound where the slow one never."""
    if reach_slow.level != reach_fast.level:
        raise ValueError(f"The levels are {reach_slow.level} and {reach_fast.level}; compare arms at the same level.")
    if min(reach_fast.each) <= 0:
        raise ValueError("A seed of the fast arm is at the level at episode 0: there is no ratio; take a higher level.")
    if reach_fast.is_bound:
        return Speedup(None, is_lower_bound=False, low=0.0, high=math.inf)
    generator = np.random.default_rng(seed)
    slow, fast = (np.median(_redraw(np.array(reach.each), generator), axis=1) for reach in (reach_slow, reach_fast))
    # where a redrawn median is beyond the limit, the ratio is as small, and as large, as that allows
    low, _ = _percentiles(np.minimum(slow, reach_slow.limit) / fast, LEVEL)
    _, high = _percentiles(slow / np.minimum(fast, reach_fast.limit), LEVEL)
    return Speedup(reach_slow.value / reach_fast.value, reach_slow.is_bound, float(low), float(high))


# --- for rliable ----------------------------------------------------------------------------------


def export_rliable(path: Path | str, curves: Mapping[str, Mapping[str, Curves]]) -> None:
    """Writes {algorithm: {task: (episodes, success)}} as .npz: an array [runs, tasks, evaluations] an algorithm.

    That is rliable's score dictionary; `tasks` and `episodes` name the last two axes.
    """
    if not curves or not all(curves.values()):
        raise ValueError("There is nothing to export; give each algorithm at least one task with its curves.")
    tasks = list(next(iter(curves.values())))
    episodes, _ = _curves(*next(iter(curves.values()))[tasks[0]])
    arrays = {name: _scores(name, by_task, tasks, episodes) for name, by_task in curves.items()}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, tasks=np.array(tasks, dtype=str), episodes=episodes, **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _scores(name: str, by_task: Mapping[str, Curves], tasks: list[str], episodes: Float) -> Any:
    """One algorithm's success [runs, tasks, evaluations], as many runs for each task, at these episodes."""
    if name in RESERVED:
        raise ValueError(f"An algorithm is called {name!r}, a name with a meaning of its own; call it something else.")
    if set(by_task) != set(tasks):
        raise ValueError(f"{name} has the tasks {sorted(by_task)}; expected those of the first, {sorted(tasks)}.")
    success = []
    for task in tasks:
        places, values = _curves(*by_task[task])
        if not np.array_equal(places, episodes):
            raise ValueError(
                f"{name} on {task} has {len(places)} evaluations up to episode {places[-1]:g}; expected the first"
                f" curves' {len(episodes)} up to {episodes[-1]:g}, at the same episodes. Leave out what is not shared."
            )
        success.append(values)
    runs = {task: len(values) for task, values in zip(tasks, success, strict=True)}
    if len(set(runs.values())) > 1:
        raise ValueError(f"{name} has unequal numbers of runs, {runs}; give as many for each task.")
    return np.stack(success, axis=1)  # [S, E] each -> [S, tasks, E]


# --- what these share -----------------------------------------------------------------------------


def _redraw(sample: Float, generator: np.random.Generator) -> Float:
    """Rows drawn with replacement, as many as there are: [S, ...] -> [RESAMPLES, S, ...]."""
    return sample[generator.integers(len(sample), size=(RESAMPLES, len(sample)))]


def _percentiles(redrawn: Float, level: float) -> tuple[Any, Any]:
    """The bounds that leave out as many values on either side: [N, ...] -> [...], [...].

    They are values of the sample, never between two, so that infinite ones do no harm.
    """
    if not 0 < level < 1:
        raise ValueError(f"The interval's level is {level}; it must lie between 0 and 1, such as {LEVEL}.")
    if np.isnan(redrawn).any():
        count = int(np.isnan(redrawn).sum())
        raise ValueError(f"The statistic is NaN for {count} of {redrawn.size} resamples; define it for every resample.")
    ordered = np.sort(redrawn, axis=0)
    left_out = int(len(ordered) * (1 - level) / 2 + 1e-9)  # 1 - 0.9 is a little below 0.1
    return ordered[left_out], ordered[-1 - left_out]


def _sample(name: str, values: ArrayLike, dimensions: int | None = None) -> NDArray[Any]:
    """Numbers without NaN, at least one; of that many dimensions, if given."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or dimensions not in (None, array.ndim):
        expected = {None: "[S, ...]", 1: "[S]", 2: "[S, E]"}[dimensions]
        raise ValueError(f"{name} has shape {list(array.shape)}; expected {expected}.")
    if not array.size:
        raise ValueError(f"{name} is empty (shape {list(array.shape)}); give at least one number.")
    if np.isnan(array).any():
        place = [int(index[0]) for index in np.isnan(array).nonzero()]
        raise ValueError(f"{name} holds NaN, first at {place}; remove it, or find out where it comes from.")
    return array


def _curves(episodes: ArrayLike, success: ArrayLike) -> tuple[Float, Float]:
    """Episodes [E], rising, and success [S, E], shares."""
    places, values = _sample("episodes", episodes, 1), _sample("success", success, 2)
    if values.shape[1] != len(places):
        raise ValueError(
            f"success has shape {list(values.shape)} and episodes {list(places.shape)}; expected [S, E] and [E], a"
            " column an evaluation."
        )
    if not np.isfinite(places).all() or places[0] < 0 or (np.diff(places) <= 0).any():
        raise ValueError("episodes must be finite, not negative and rise from each to the next; sort the evaluations.")
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"success runs from {values.min():g} to {values.max():g}; expected shares from 0 to 1.")
    return places, values
