"""From scores to decisions with a bounded share of false alarms: conformal p-values, rank p-values, thresholds.

A false discovery is a state that is called influenced although the action does not matter in it. The false discovery
rate is the expected share of such states among all that are called influenced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2, false_discovery_control, kstest, rankdata
from scipy.stats.contingency import association

from butfor.influence.display import decision_rows
from butfor.models.torch_state import pinned
from butfor.runs.printing import html_table, text_table
from butfor.spaces.arrays import Array, like, to_numpy, warn_user

if TYPE_CHECKING:
    from butfor.influence.influence import Influence

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
FARTHEST = 0.1  # distance from uniform and independent actions above which they are reported
SPLIT = 0.8  # p-values above it are counted; higher: fewer influenced states are counted, but more are needed


@dataclass(frozen=True, repr=False)
class Calibration:
    """The data behind decisions about one entity: free states, or transitions with rank p-values."""

    scores: NDArray[Any]  # [n]: the CAI of these states
    p_values: NDArray[Any] | None = None  # [n]: `rank_p_values` of the transitions; None: the states are free
    groups: NDArray[Any] | None = None  # [n]: the episode of each state; None: each one is independent

    def __post_init__(self) -> None:
        if not len(self.scores):
            raise ValueError("There are no states to calibrate with; give some hundreds, better thousands.")
        for name, values in (("p_values", self.p_values), ("groups", self.groups)):
            if values is not None and np.shape(values) != np.shape(self.scores):
                raise ValueError(f"{name} has shape {list(np.shape(values))}; there are {len(self.scores)} states.")

    def describe(self) -> str:
        """What decisions rest on, in a few words."""
        kind = "states that are free of influence" if self.p_values is None else "transitions with random actions"
        return f"calibrated with {len(self.scores):,} {kind}"

    def __repr__(self) -> str:
        return f"Calibration({self.describe()})"

    @property
    def smallest(self) -> float:
        """The smallest p-value that a state can have with these free states."""
        largest = _largest_group(self.groups)
        return largest / (len(self.scores) + largest)


class Decisions(dict[str, Any]):
    """True or false [N] for each entity, printed as a table of counts."""

    def __repr__(self) -> str:
        return text_table(decision_rows(self))

    def _repr_html_(self) -> str:
        return html_table(decision_rows(self))


def conformal_p_values(free_scores: ArrayLike, scores: ArrayLike, groups: ArrayLike | None = None) -> Float:
    """p = (1 + number of free scores that are at least s) / (n + 1) for each score s: [n], [N] -> [N].

    Super-uniform for a free state that is drawn like the n states with `free_scores` (Vovk et al., 2005). States of one
    episode are similar, so that a hundred of them add little to one. With `groups` [n], the episode of each,
    only episodes need to be drawn alike: p = (g + number of free scores that are at least s) / (n + g), where g is the
    size of the largest group, as if a whole further episode scored as high.
    """
    free = np.sort(np.asarray(free_scores, dtype=np.float64))
    largest = _largest_group(groups)
    at_least = len(free) - np.searchsorted(free, np.asarray(scores, dtype=np.float64), side="left")
    p_values: Float = (largest + at_least) / (len(free) + largest)
    return p_values


def _largest_group(groups: ArrayLike | None) -> int:
    """The number of states in the largest group; 1 without groups."""
    return 1 if groups is None else int(np.unique(np.asarray(groups), return_counts=True)[1].max())


def reject(p_values: ArrayLike, rate: float) -> Bool:
    """Benjamini and Hochberg's procedure (1995): which hypotheses [N] to reject at this false discovery rate.

    It holds for `conformal_p_values` of independent states, which depend on each other through the free scores (Bates
    et al., 2023). States of one episode also depend on each other; it then assumes that they do so positively.
    """
    values = np.asarray(p_values, dtype=np.float64)
    if not len(values):
        return np.zeros(0, dtype=bool)
    rejected: Bool = false_discovery_control(values, method="bh") <= rate
    return rejected


def rank_p_values(taken: ArrayLike, redrawn: ArrayLike, generator: np.random.Generator | None = None) -> Float:
    """p = (1 + number of redrawn values that are at least the taken one) / (M + 1): [N], [N, M] -> [N].

    A value is any statistic of (s, action, s'_j). Where the action has no influence on s'_j, the taken action is
    distributed like M redrawn ones, so p is super-uniform for every statistic. With a `generator` the rank among equal
    values is drawn, which makes p exactly uniform.
    """
    own = np.asarray(taken, dtype=np.float64)[:, None]
    others = np.asarray(redrawn, dtype=np.float64)
    above = (others > own).sum(1)
    equal = (others == own).sum(1)
    ahead = equal if generator is None else generator.integers(0, equal, endpoint=True)
    p_values: Float = (1 + above + ahead) / (others.shape[1] + 1)
    return p_values


def false_discovery_curve(
    scores: ArrayLike, p_values: ArrayLike, groups: ArrayLike | None = None
) -> tuple[Float, Float]:
    """Thresholds on the score, falling, and the estimated share of false discoveries at or above each: [k], [k].

    With C = 1 / (1 - SPLIT), the estimate for the first k states by falling score is
    (C + sum over them of C * [p > SPLIT]) / (1 + k). States of equal score enter together. This is the accumulation
    test of Li and Barber (2017) with the function of SeqStep: the largest k with an estimate of at most q has a
    false discovery rate of at most q, if the p-values of free states are super-uniform, independent of each other
    and of the order.

    It holds for later states that are drawn like these if these are independent. With `groups` [n], the episode of
    each, only episodes need to be: the 1 in both places becomes the number of states that count as one.
    """
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, kind="stable")
    values = values[order]
    is_counted = np.asarray(p_values, dtype=np.float64)[order] > SPLIT
    counted = np.cumsum(is_counted)
    known = np.arange(1, len(values) + 1)
    unit = 1.0 if groups is None else _running_unit(is_counted, np.asarray(groups)[order])
    is_last = np.append(values[1:] != values[:-1], True)  # of those with the same score
    estimate = 1 / (1 - SPLIT) * (unit + counted) / (unit + known)
    return values[is_last], estimate[is_last]


def _running_unit(is_counted: Bool, groups: NDArray[Any]) -> Float:
    """How many of the first k states count as one, for each k: 2 D - 1, at least 1.

    D is the design effect of the share that is counted: its variance by episodes over that of independent states. The
    excess is doubled, since a threshold is chosen where the data look best, which is where D is estimated too low.
    """
    counted = is_counted.astype(np.float64)
    ones = np.ones(len(counted))
    known = np.cumsum(ones)
    both, mixed, single = (
        _running_products(first, second, groups)
        for first, second in ((counted, counted), (counted, ones), (ones, ones))
    )
    unit = ones
    for _ in range(5):  # the share depends on the unit, too
        share = (unit + np.cumsum(counted)) / (unit + known)
        by_episode = both - 2 * share * mixed + share**2 * single  # sum over episodes of (counted - share * states)^2
        by_state = (1 - 2 * share) * np.cumsum(counted) + share**2 * known
        spread = by_state > 0  # not where all or none are counted
        ratio = np.divide(by_episode, by_state, out=np.ones_like(by_state), where=spread)
        unit = np.maximum(2 * ratio - 1, 1)
    return unit


def _running_products(first: Float, second: Float, groups: NDArray[Any]) -> Float:
    """The sum over groups of total(first) * total(second) among the first k, for each k: [n] each -> [n]."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(np.unique(groups, return_inverse=True)[1][order]) != 0))
    sizes = np.diff(np.append(starts, len(groups)))
    one, two = first[order], second[order]
    totals = [np.cumsum(part) - part for part in (one, two)]
    earlier, other = (total - np.repeat(total[starts], sizes) for total in totals)  # of the same group
    added = np.empty(len(groups))
    added[order] = earlier * two + other * one + one * two
    return np.cumsum(added)


def threshold_for(thresholds: ArrayLike, estimate: ArrayLike, rate: float) -> float | None:
    """The lowest threshold whose estimate is at most `rate`, or None."""
    low_enough = np.asarray(thresholds)[np.asarray(estimate) <= rate]
    return float(low_enough.min()) if len(low_enough) else None


def decide_influenced(calibration: Calibration, scores: ArrayLike, rate: float, name: str = "the object") -> Bool:
    """Which states [N] are called influenced at this false discovery rate.

    With free states this uses conformal p-values and `reject`. With transitions it uses `threshold_for`, for states
    distributed like those of the transitions; if no threshold is high enough, it warns and returns False for all.
    """
    if not isinstance(rate, Real) or not 0 < rate < 1:
        raise ValueError(f"The false discovery rate must be a number between 0 and 1, such as 0.05; got {rate!r}.")
    values = np.asarray(scores, dtype=np.float64)
    known = len(calibration.scores)
    if calibration.p_values is None:
        if calibration.smallest > rate:
            needed = ceil(known * (1 / rate - 1) * calibration.smallest / (1 - calibration.smallest) - 1e-9)
            raise ValueError(
                f"{known} free states are too few for a false discovery rate of {rate:g}: the smallest possible "
                f"p-value is {calibration.smallest:.3g}. Calibrate with at least {needed}, better {10 * needed}."
            )
        if len(values) == 1:
            warn_user(
                "The rate holds within a batch, but this batch has 1 state. Of many states that are decided one by "
                "one a larger share may be false. Decide many at once, or calibrate with transitions."
            )
        return reject(conformal_p_values(calibration.scores, values, calibration.groups), rate)
    thresholds, estimate = false_discovery_curve(calibration.scores, calibration.p_values, calibration.groups)
    threshold = threshold_for(thresholds, estimate, rate)
    if threshold is None:
        warn_user(
            f"No threshold on the influence on {name} has an estimated share of false discoveries of at most "
            f"{rate:g} (the lowest is {estimate.min():.2g}, from {known} transitions): no state is called influenced. "
            "Calibrate with more transitions, or allow a larger rate."
        )
        return np.zeros(len(values), dtype=bool)
    return values >= threshold


def describe_nonrandom(action: ArrayLike, obs: ArrayLike, discrete: bool = False) -> str | None:
    """What suggests that actions are not uniform and independent of obs [N, D]; None if nothing does.

    Actions [N, A] are in [-1, 1], or one-hot if `discrete`. This is a quick look and not a proof: how far each column's
    distribution is from the uniform one, and how strongly it depends on each column of the states.
    """
    actions = np.asarray(action, dtype=np.float64)
    rows = np.random.default_rng(0).permutation(len(actions))[:5000]
    actions = actions[rows]
    states = np.asarray(obs, dtype=np.float64)[rows]
    varying = states[:, states.std(0) > 0]
    if discrete:
        return _describe_nonrandom_choice(actions, varying)
    distance = max(kstest(column, "uniform", args=(-1, 2)).statistic for column in actions.T)
    if distance > FARTHEST + 2 / np.sqrt(len(rows)):
        return f"their distribution is {distance:.2f} away from the uniform one (Kolmogorov's distance)"
    ranks = [rankdata(table, axis=0) for table in (actions, varying)]
    ranks = [(rank - rank.mean(0)) / np.maximum(rank.std(0), 1e-12) for rank in ranks]
    related = float(np.abs(ranks[0].T @ ranks[1] / len(rows)).max(initial=0.0))
    if related > FARTHEST + 4 / np.sqrt(len(rows)):
        return f"they depend on the state (rank correlation {related:.2f})"
    return None


def _describe_nonrandom_choice(actions: Float, states: Float) -> str | None:
    """For one-hot actions [N, A]: their shares, and Cramér's V with the fifths of each column of the states."""
    shares = actions.mean(0)
    distance = 0.5 * float(np.abs(shares - 1 / len(shares)).sum())
    if distance > FARTHEST + np.sqrt(len(shares) / len(actions)):
        return f"their distribution is {distance:.2f} away from the uniform one (total variation)"
    used = actions[:, shares > 0]
    for column in states.T:
        fifths = np.eye(5)[np.minimum((rankdata(column) - 1) * 5 / len(column), 4).astype(int)]
        table = used.T @ fifths[:, fifths.any(0)]  # how often each action occurs with each fifth
        rows, columns = (size - 1 for size in table.shape)
        if min(rows, columns) > 0:
            by_chance = chi2.isf(0.001 / states.shape[1], rows * columns) / (len(actions) * min(rows, columns))
            related = float(association(table.astype(int)))
            if related > FARTHEST + np.sqrt(by_chance):
                return f"they depend on the state (Cramér's V {related:.2f})"
    return None


class DecisionMethods:
    """`calibrate`, `decide` and `p_values`; a part of `Influence`."""

    @pinned()
    def calibrate(
        self: Any,
        *,
        free_obs: Array | None = None,
        groups: Array | None = None,
        transitions: Sequence[Array] | None = None,
        redraws: int = 99,
    ) -> "Influence":
        """Prepare `decide` with data that was not used for fitting: give either `free_obs` or `transitions`.

        Args:
            free_obs: states [n, D] that are known to be free of influence on every entity, distributed like the free
                states of later batches.
            groups: the episode [n] of each of these states. States of one episode are similar; without their groups
                the rate is exceeded (at a correlation of 0.99 between neighbouring states, in up to a quarter of the
                batches without influence instead of 5 %).
            transitions: (obs, action, next_obs) from states like the later ones, with actions drawn from the uniform
                law (of an episode file, only the rows with `sampled` true). Each taken action is ranked among redrawn
                ones by log p(s'_j | s, a). `next_obs` is `predicted_steps` later.
            redraws: number of redrawn actions per transition.

        Returns:
            This `Influence`.
        """
        p_values: dict[str, Any] = {}
        if free_obs is not None and transitions is None:
            scores = self.score(free_obs)
        elif transitions is not None and free_obs is None:
            held_out = self._held_out(transitions, redraws)
            if problem := self._describe_nonrandom(held_out.obs, held_out.action):
                warn_user(f"The actions of transitions do not look random: {problem}.")
            scores = self.score(transitions[0])
            ties = np.random.default_rng(self.seed)
            for name, (taken, redrawn) in held_out.densities.items():
                p_values[name] = rank_p_values(to_numpy(taken), to_numpy(redrawn), ties)
        else:
            raise ValueError("calibrate needs either free_obs=[n, D] or transitions=(obs, action, next_obs).")
        numbered = None if groups is None else np.unique(to_numpy(groups), return_inverse=True)[1]
        self.calibration = {
            name: Calibration(to_numpy(score), p_values.get(name), numbered) for name, score in scores.items()
        }
        influence: Influence = self
        return influence

    @pinned()
    def decide(self: Any, obs: Array, false_discovery_rate: float = 0.05) -> Decisions:
        """Decide in which states the action matters; needs `calibrate` first.

        Args:
            obs: states [N, D].
            false_discovery_rate: the largest expected share of false decisions among those that are true. It holds
                within this batch after calibration with free states, and for states like those of calibration after
                calibration with transitions.

        Returns:
            True or false [N] for each entity, a dictionary that is printed as a table of counts.
        """
        scores = self.score(obs)
        decided = Decisions()
        for name, calibration in self._calibrated().items():
            flags = decide_influenced(calibration, to_numpy(scores[name]), false_discovery_rate, name)
            decided[name] = like(torch.from_numpy(flags), obs)
        return decided

    @pinned()
    def p_values(self: Any, obs: Array) -> dict[str, Any]:
        """Compute conformal p-values [N] for each entity: how rare such a high score is among free states."""
        calibrated = self._calibrated()
        if any(calibration.p_values is not None for calibration in calibrated.values()):
            raise ValueError("p_values needs free states; call calibrate(free_obs=...).")
        scores = self.score(obs)
        found = {}
        for name, calibration in calibrated.items():
            values = conformal_p_values(calibration.scores, to_numpy(scores[name]), calibration.groups)
            found[name] = like(torch.from_numpy(values), obs)
        return found

    def _calibrated(self: Any) -> dict[str, Calibration]:
        if not self.calibration:
            raise ValueError(
                "This Influence is not calibrated; first call calibrate with free_obs= (states known to be free of "
                "influence) or transitions= (held-out ones with random actions)."
            )
        known: dict[str, Calibration] = self.calibration
        return known
