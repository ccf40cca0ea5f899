"""From scores to decisions with a bounded share of false alarms: conformal p-values, rank p-values, thresholds.

A false discovery is a state that is called influenced although the action does not matter in it. The false discovery
rate is the expected share of such states among all that are called influenced.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2, false_discovery_control, kstest, rankdata
from scipy.stats.contingency import association

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
FARTHEST = 0.1  # that actions may be from uniform and independent ones before somebody is told
SPLIT = 0.8  # between counted and other p-values; higher: fewer influenced states are counted, but more are needed


@dataclass(frozen=True)
class Calibration:
    """What decisions about one entity rest on: states known to be free, or transitions with rank p-values."""

    scores: NDArray[Any]  # [n]: the CAI of these states
    p_values: NDArray[Any] | None = None  # [n]: `rank_p_values` of the transitions; None: the states are free
    groups: NDArray[Any] | None = None  # [n]: which free states belong together; None: each stands alone

    def __post_init__(self) -> None:
        if not len(_numbers("scores", self.scores, 1)):
            raise ValueError("There are no states to calibrate with; give some hundreds, better thousands.")
        if self.p_values is not None and len(_shares("p_values", self.p_values)) != len(self.scores):
            raise ValueError(f"There are {len(self.scores)} scores, but {len(self.p_values)} p-values.")
        if self.groups is not None and self.p_values is not None:
            raise ValueError("groups are for free states; transitions with random actions need none.")
        if self.groups is not None and np.shape(self.groups) != np.shape(self.scores):
            raise ValueError(f"There are {len(self.scores)} free states, but groups has shape {np.shape(self.groups)}.")

    @property
    def smallest(self) -> float:
        """The smallest p-value that a state can have by free states."""
        largest = largest_group(self.groups)
        return largest / (len(self.scores) + largest)


def conformal_p_values(free_scores: ArrayLike, scores: ArrayLike, groups: ArrayLike | None = None) -> Float:
    """p = (1 + number of free scores that are at least s) / (n + 1) for each score s: [n], [N] -> [N].

    Super-uniform for a free state that is drawn as the n states with `free_scores` were (Vovk et al., 2005). States of
    one episode are alike, so that a hundred of them say little more than one. With `groups` [n], the episode of each,
    only episodes need to be drawn alike: p = (g + number of free scores that are at least s) / (n + g), where g is the
    size of the largest group, as if a whole further episode scored as high.
    """
    free, values = np.sort(_numbers("free_scores", free_scores, 1)), _numbers("scores", scores, 1)
    if not len(free):
        raise ValueError("free_scores is empty; give the scores of states that are known to be free of influence.")
    if groups is not None and np.shape(groups) != free.shape:
        shape = list(np.shape(groups))
        raise ValueError(f"groups has shape {shape}; expected one group for each of {len(free)} states.")
    largest = largest_group(groups)
    at_least = len(free) - np.searchsorted(free, values, side="left")
    p_values: Float = (largest + at_least) / (len(free) + largest)
    return p_values


def largest_group(groups: ArrayLike | None) -> int:
    """The number of states in the largest group; 1 where each stands alone."""
    return 1 if groups is None else int(np.unique(np.asarray(groups), return_counts=True)[1].max())


def reject(p_values: ArrayLike, rate: float) -> Bool:
    """Benjamini and Hochberg's procedure (1995): which hypotheses [N] to reject at this false discovery rate.

    It holds for `conformal_p_values` of independent states, which depend on each other through the free scores (Bates
    et al., 2023). Those of one episode depend on each other besides: it then rests on their being alike in sign.
    """
    values = _shares("p_values", p_values)
    check_rate(rate)
    if not len(values):
        return np.zeros(0, dtype=bool)
    rejected: Bool = false_discovery_control(values, method="bh") <= rate
    return rejected


def rank_p_values(taken: ArrayLike, redrawn: ArrayLike, generator: np.random.Generator | None = None) -> Float:
    """p = (1 + number of redrawn values that are at least the taken one) / (M + 1): [N], [N, M] -> [N].

    A value is any statistic of (s, action, s'_j). Where the action has no influence on s'_j, the taken action is as
    good as one of M redrawn from the same law, so p is super-uniform whatever the statistic. With a `generator`
    the taken action's place among equals is drawn, which makes p exactly uniform.
    """
    own, others = _numbers("taken", taken, 1), _numbers("redrawn", redrawn, 2)
    if len(own) != len(others) or not others.shape[1]:
        shapes = f"{list(own.shape)} and {list(others.shape)}"
        raise ValueError(f"taken and redrawn have shapes {shapes}; expected [N] and [N, M] with M at least 1.")
    above, equal = ((relation(others, own[:, None])).sum(1) for relation in (np.greater, np.equal))
    ahead = equal if generator is None else generator.integers(0, equal, endpoint=True)
    p_values: Float = (1 + above + ahead) / (others.shape[1] + 1)
    return p_values


def false_discovery_curve(scores: ArrayLike, p_values: ArrayLike, split: float = SPLIT) -> tuple[Float, Float]:
    """Thresholds on the score, falling, and the estimated share of false discoveries at or above each: [k], [k].

    With C = 1 / (1 - split), the estimate for the first k states by falling score is
    (C + sum over them of C * [p > split]) / (1 + k). States of equal score enter together. This is the accumulation
    test of Li and Barber (2017) with the function of SeqStep: the largest k with an estimate of at most q has a
    false discovery rate of at most q, if the p-values of free states are super-uniform, independent of each other
    and of the order.
    """
    values, chances = _numbers("scores", scores, 1), _shares("p_values", p_values)
    if len(values) != len(chances) or not len(values):
        raise ValueError(
            f"scores and p_values have {len(values)} and {len(chances)} numbers; expected as many, at least one."
        )
    if not 0 < split < 1:
        raise ValueError(f"split is {split}; it must lie between 0 and 1.")
    order = np.argsort(-values, kind="stable")
    values, cost = values[order], 1 / (1 - split)
    counted = np.cumsum(chances[order] > split)
    last = np.append(values[1:] != values[:-1], True)  # of those with the same score
    estimate = cost * (1 + counted) / (2 + np.arange(len(values)))
    return values[last], estimate[last]


def threshold_for(thresholds: ArrayLike, estimate: ArrayLike, rate: float) -> float | None:
    """The lowest threshold whose estimate is at most `rate`; None where there is none."""
    places, shares = _numbers("thresholds", thresholds, 1), _numbers("estimate", estimate, 1)
    check_rate(rate)
    if len(places) != len(shares):
        raise ValueError(f"thresholds and estimate have {len(places)} and {len(shares)} numbers; expected as many.")
    return float(places[shares <= rate].min()) if (shares <= rate).any() else None


def decide(calibration: Calibration, scores: ArrayLike, rate: float, name: str = "the object") -> Bool:
    """Which states [N] are called influenced at this false discovery rate.

    With free states by conformal p-values and `reject`. With transitions by `threshold_for`, for states that are
    distributed as those of the transitions; where no threshold will do, all are False and a warning says so.
    """
    values, known = _numbers("scores", scores, 1), len(calibration.scores)
    check_rate(rate)
    if calibration.p_values is None:
        if calibration.smallest > rate:
            needed = ceil(known * (1 / rate - 1) * calibration.smallest / (1 - calibration.smallest) - 1e-9)
            raise ValueError(
                f"{known} free states are too few for a false discovery rate of {rate:g}: the smallest possible "
                f"p-value is {calibration.smallest:.3g}. Calibrate with at least {needed} such, better {10 * needed}."
            )
        if len(values) == 1:
            warnings.warn(
                "The rate holds within a batch, and this one has a single state: of many that are decided one by one a "
                "larger share may be false. Decide many at once, or calibrate with transitions.",
                stacklevel=3,
            )
        return reject(conformal_p_values(calibration.scores, values, calibration.groups), rate)
    thresholds, estimate = false_discovery_curve(calibration.scores, calibration.p_values)
    threshold = threshold_for(thresholds, estimate, rate)
    if threshold is None:
        warnings.warn(
            f"No threshold on the influence on {name} has an estimated share of false discoveries of at most "
            f"{rate:g} (the lowest is {estimate.min():.2g}, from {known} transitions): nothing is called influenced. "
            "Calibrate with more transitions, or allow a larger rate.",
            stacklevel=3,
        )
        return np.zeros(len(values), dtype=bool)
    return values >= threshold


def not_random(action: ArrayLike, obs: ArrayLike, discrete: bool = False) -> str | None:
    """What is wrong with actions that should be uniform and independent of obs [N, D], or None.

    Actions [N, A] are within [-1, 1], or one-hot if `discrete`. A look, not a proof: how far each column's distribution
    is from the uniform one, and how closely it goes with each column of the states.
    """
    actions, states = _numbers("action", action, 2), _numbers("obs", obs, 2)
    rows = np.random.default_rng(0).permutation(len(actions))[:5000]
    actions, states = actions[rows], states[rows]
    if discrete:
        return _not_random_choice(actions, states)
    distance = max(kstest(column, "uniform", args=(-1, 2)).statistic for column in actions.T)
    if distance > FARTHEST + 2 / np.sqrt(len(rows)):
        return f"their distribution is {distance:.2f} away from the uniform one (Kolmogorov's distance)"
    varying = states[:, states.std(0) > 0]
    ranks = [rankdata(table, axis=0) for table in (actions, varying)]
    ranks = [(rank - rank.mean(0)) / np.maximum(rank.std(0), 1e-12) for rank in ranks]
    related = float(np.abs(ranks[0].T @ ranks[1] / len(rows)).max(initial=0.0))
    if related > FARTHEST + 4 / np.sqrt(len(rows)):
        return f"they go with the state (rank correlation {related:.2f})"
    return None


def _not_random_choice(actions: Float, states: Float) -> str | None:
    """The same of one-hot actions [N, A]: their shares, and Cramér's V with the fifths of each column of the states."""
    count, shares = actions.shape[1], actions.mean(0)
    distance = 0.5 * float(np.abs(shares - 1 / count).sum())
    if distance > FARTHEST + np.sqrt(count / len(actions)):
        return f"their distribution is {distance:.2f} away from the uniform one (total variation)"
    used, varying = actions[:, shares > 0], states[:, states.std(0) > 0]
    for column in varying.T:
        fifths = np.eye(5)[np.minimum((rankdata(column) - 1) * 5 / len(column), 4).astype(int)]
        table = used.T @ fifths[:, fifths.any(0)]  # how often each action goes with each fifth
        rows, columns = (size - 1 for size in table.shape)
        if min(rows, columns) > 0:
            by_chance = chi2.isf(0.001 / varying.shape[1], rows * columns) / (len(actions) * min(rows, columns))
            related = float(association(table.astype(int)))
            if related > FARTHEST + np.sqrt(by_chance):
                return f"they go with the state (Cramér's V {related:.2f})"
    return None


def pack(calibration: Mapping[str, Calibration]) -> dict[str, NDArray[Any]]:
    """The calibration of each entity as named arrays, for a file."""
    arrays = {f"calibration.scores.{name}": one.scores for name, one in calibration.items()}
    for part in ("p_values", "groups"):
        found = {name: getattr(one, part) for name, one in calibration.items()}
        arrays |= {f"calibration.{part}.{name}": value.copy() for name, value in found.items() if value is not None}
    return arrays


def unpack(arrays: Mapping[str, NDArray[Any]], entities: Iterable[str]) -> dict[str, Calibration]:
    """What `pack` gave."""
    if not arrays:
        return {}
    found = {}
    for name in entities:
        p_values, groups = (arrays.get(f"calibration.{part}.{name}") for part in ("p_values", "groups"))
        found[name] = Calibration(arrays[f"calibration.scores.{name}"], p_values, groups)
    return found


def check_rate(rate: float) -> None:
    """Refuses a rate that is not between 0 and 1."""
    if not isinstance(rate, Real) or not 0 < rate < 1:
        raise ValueError(f"The false discovery rate is {rate!r}; it must be a number between 0 and 1, such as 0.05.")


def _shares(name: str, values: ArrayLike) -> Float:
    """Numbers [N] between 0 and 1."""
    shares = _numbers(name, values, 1)
    if len(shares) and (shares.min() < 0 or shares.max() > 1):
        raise ValueError(f"{name} runs from {shares.min()} to {shares.max()}; expected numbers between 0 and 1.")
    return shares


def _numbers(name: str, values: ArrayLike, dimensions: int) -> Float:
    """Numbers of that many dimensions, without NaN."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != dimensions:
        expected = ["[N]", "[N, M]"][dimensions - 1]
        raise ValueError(f"{name} has shape {list(array.shape)}; expected {expected}.")
    if np.isnan(array).any():
        row = int(np.isnan(array).nonzero()[0][0])
        raise ValueError(f"{name} holds NaN, first in row {row}; remove it.")
    return array
