"""Claims of the paper about an experiment, and the rules that decide about curves whether they hold here.

A rule returns its evidence: findings, each with the p-value of the test that would have to be wrong for it. The finding
is the first whose p-value is small enough; `decide_together` chooses how small for all claims of a page. Rules about
tables are in `table_claims`. The docstring of a rule is the text that pages show for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from butfor.analysis.rank_tests import Float, median_interval, rank_test, sign_test
from butfor.analysis.statistics import (
    ROUNDING,
    Interval,
    Reach,
    area_under_curve,
    difference,
    probability_of_improvement,
    reach_summary,
    speedup,
)

Finding = Literal["reproduced", "partly", "not reproduced", "undecided"]
Kind = Literal[
    "reaches", "grows", "faster", "better", "on par", "similar", "detects", "alone", "times", "follows", "uneven"
]
SIZE = 0.05  # of the test of one claim, and the false discovery rate of all
ENOUGH = 5  # seeds that a comparison needs
LEAST = 0.1  # success that one of two arms must reach to be compared
MARGIN = 0.1  # of success, in the mean over training: a smaller difference is none
LEARNED = 2 * MARGIN  # mean success over training that one arm must have to be similar to another, or on par
RATIO = 1.5  # of numbers of episodes: "roughly" the claimed factor is up to so many times more or less
PAIRED = ("faster", "better", "on par", "similar")


@dataclass(frozen=True)
class Curve:
    """The success of one arm, or another share that its evaluations measure."""

    episodes: NDArray[np.int64]  # [E], rising
    success: NDArray[np.float64]  # [S, E]
    asked: int
    """episodes that each seed is to play"""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about one arm or two."""

    words: str
    kind: Kind
    arm: str
    than: str = ""
    level: float = 0.6
    """of success, to be reached (reaches) or compared at (faster)"""
    within: int = 0
    """episodes (reaches, grows)"""
    factor: float = 1.0
    """how many times fewer episodes (faster), or how many times as large (times, uneven)"""
    measure: str = "success"
    """the curve: success, or the share of steps in which the object is moved, lifted or held; the table of a detection
    run (times); what the score is correlated with (follows)"""
    row: str = ""
    """of that table (times)"""
    reference: str = ""
    """the row that it is compared with (times)"""
    roughly: bool = False
    """the factor may also not be much larger (faster)"""
    variants: tuple[str, ...] = ()
    """further variants of the arm: the best one counts (better)"""
    than_variants: tuple[str, ...] = ()
    """further variants of the other arm: the best one counts (better)"""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {self.kind!r}; expected one of {', '.join(get_args(Kind))}.")
        if (self.kind in PAIRED) != bool(self.than):
            raise ValueError(f"A claim of kind {self.kind!r} takes {'no' if self.than else 'a second arm as'} `than`.")
        if (self.kind == "times") != bool(self.row and self.reference):
            raise ValueError("`row` and `reference` belong to claims of kind 'times', which need both.")
        if self.kind != "better" and (self.variants or self.than_variants):
            raise ValueError("`variants` and `than_variants` belong to claims of kind 'better'.")
        object.__setattr__(self, "variants", tuple(self.variants))  # JSON has lists
        object.__setattr__(self, "than_variants", tuple(self.than_variants))

    @property
    def own(self) -> tuple[str, ...]:
        """The arm with its variants."""
        return (self.arm, *self.variants)

    @property
    def others(self) -> tuple[str, ...]:
        """The other arm with its variants; empty where there is none."""
        return (self.than, *self.than_variants) if self.than else ()


@dataclass(frozen=True)
class Found:
    """What a rule finds."""

    words: str
    effect: str = ""
    """the size of what is measured, with its 95 % interval"""
    evidence: tuple[tuple[Finding, float], ...] = ()
    """findings, the strongest first, each with a two-sided p-value; empty where nothing can be decided"""

    @property
    def least(self) -> float:
        """The smallest p-value."""
        return min(p for _, p in self.evidence)


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the numbers behind it."""

    verdict: Finding
    words: str
    measured: bool = True
    """false where an arm has not been run, or its run lacks what the claim is about"""
    found: Found | None = None


def verdict_from(found: Found, size: float = SIZE) -> Verdict:
    """Return the first finding whose p-value is at most `size`, or undecided."""
    decided: list[Finding] = [finding for finding, p in found.evidence if p <= size]
    return Verdict(decided[0] if decided else "undecided", found.words, found=found)


def decide_together(claims: Sequence[Sequence[Verdict]]) -> tuple[list[list[Verdict]], float]:
    """Decide several claims so that at most 5 % of the decisions are expected to be false (Benjamini and Hochberg).

    A claim is made of one or more comparisons. It is decided where one of them is, by Holm's procedure, so a claim of
    many comparisons is not decided by chance more often than one of a single comparison. If all comparisons of a
    decided claim are reproduced at the same p-value, the claim is.

    Returns:
        the verdicts on the comparisons of each claim, and the largest p-value that decides a claim
    """
    least = [p for p in map(claim_p_value, claims) if p is not None]
    decided = int((false_discovery_control(least) <= SIZE).sum()) if least else 0
    size = SIZE * decided / max(len(least), 1)
    return [_decide(comparisons, size) for comparisons in claims], size


def claim_p_value(comparisons: Sequence[Verdict]) -> float | None:
    """Return the p-value at which something is decided about a claim, or None where nothing can be."""
    least = _least(comparisons)
    return min(len(least) * least[0], 1.0) if least else None


def _least(comparisons: Sequence[Verdict]) -> list[float]:
    """Return the smallest p-value of each comparison that can be tested, rising."""
    return sorted(one.found.least for one in comparisons if one.found and one.found.evidence)


def _decide(comparisons: Sequence[Verdict], size: float) -> list[Verdict]:
    """Return the verdicts on the comparisons of one claim, by Holm's procedure (1979)."""
    least = _least(comparisons)
    limits = [size / left for left in range(len(least), 0, -1)]
    passed = list(takewhile(lambda pair: pair[0] <= pair[1], zip(least, limits, strict=True)))
    if not passed:
        return [replace(one, verdict="undecided") for one in comparisons]
    whole = [_at_size(one, size) for one in comparisons]
    if all(one.verdict == "reproduced" for one in whole):
        return whole
    return [_at_size(one, passed[-1][1]) for one in comparisons]


def _at_size(verdict: Verdict, size: float) -> Verdict:
    """Return what the evidence of a comparison decides at that size."""
    return replace(verdict, verdict=verdict_from(verdict.found, size).verdict) if verdict.found else verdict


def finding_of(comparisons: Sequence[Verdict]) -> Finding:
    """Return the verdict on a claim from those on its comparisons."""
    found = {one.verdict for one in comparisons}
    if len(found) == 1:
        return comparisons[0].verdict
    if found & {"reproduced", "partly"}:
        return "partly"
    return "not reproduced" if "not reproduced" in found else "undecided"


def judge(claim: Claim, curves: Mapping[str, Curve]) -> Verdict:
    """Return the verdict on a claim about curves by label; undecided where an arm is missing or has few seeds."""
    for labels in (claim.own, claim.others):
        measured = [label for label in labels if label in curves]
        if labels and not measured:
            return Verdict("undecided", f"{' and '.join(labels)}: not measured yet.", measured=False)
        if labels and not any(len(curves[label].success) >= ENOUGH for label in measured):
            return Verdict("undecided", f"{' and '.join(measured)}: fewer than {ENOUGH} seeds.")
    return verdict_from(CURVE_RULES[claim.kind](claim, curves))


def evidence(*pairs: tuple[Finding, float]) -> tuple[tuple[Finding, float], ...]:
    """Return findings with two-sided p-values from one-sided ones."""
    return tuple((finding, min(2 * p, 1.0)) for finding, p in pairs)


def _reaches(claim: Claim, curves: Mapping[str, Curve]) -> Found:
    """Counts the seeds that are at or above the level at the last evaluation within that many episodes, by an exact
    sign test. Reproduced: more than half of all seeds would be. Not reproduced: less than half would be, and the run
    was long enough. Otherwise undecided, as always with five seeds or fewer."""
    curve = curves[claim.arm]
    within = curve.episodes <= claim.within
    if not within.any():
        return Found(f"There is no evaluation within {claim.within:,} episodes yet.")
    last = curve.success[:, within][:, -1]
    seeds = len(last)
    count = int((last >= claim.level - ROUNDING).sum())
    above, below = sign_test(count, seeds)
    low, high = median_interval(last)
    what = "" if claim.measure == "success" else f"{claim.measure} in "
    at = int(curve.episodes[within][-1])
    effect = f"{what}{np.median(last):.2f} [{low:.2f}, {high:.2f}], median seed"
    words = f"{claim.arm} at {at:,} episodes: {effect}; {count} of {seeds} seeds have {claim.level:g} or more."
    if int(curve.episodes[-1]) < claim.within:
        words += f" It was played for {int(curve.episodes[-1]):,} of {claim.within:,} episodes."
        return Found(words, effect, evidence(("reproduced", above)))
    return Found(words, effect, evidence(("reproduced", above), ("not reproduced", below)))


def _grows(claim: Claim, curves: Mapping[str, Curve]) -> Found:
    """Counts the seeds whose share is larger at the last evaluation within that many episodes than at the first, by an
    exact sign test. Reproduced: more than half of all seeds would grow. Not reproduced: less than half would. Otherwise
    undecided, as always with five seeds or fewer."""
    curve = curves[claim.arm]
    within = curve.episodes <= claim.within
    if within.sum() < 2:
        return Found(f"There are no two evaluations within {claim.within:,} episodes yet.")
    shares = curve.success[:, within]
    change = shares[:, -1] - shares[:, 0]
    count = int((change > ROUNDING).sum())
    low, high = median_interval(change)
    first, last = (int(curve.episodes[within][place]) for place in (0, -1))
    effect = f"{claim.measure} {np.median(change):+.2f} [{low:+.2f}, {high:+.2f}], median seed"
    words = f"{claim.arm}, from {first:,} to {last:,} episodes: {effect}; it grows in {count} of {len(change)} seeds."
    more, less = sign_test(count, len(change))
    return Found(words, effect, evidence(("reproduced", more), ("not reproduced", less)))


def _faster(claim: Claim, curves: Mapping[str, Curve]) -> Found:
    """Compares the episodes that each seed needs to reach the level. The effect is the ratio between a seed of one arm
    and one of the other, the median over all pairs, with its exact interval. A factor is tested by an exact rank test
    (Mann and Whitney) after the faster arm's episodes were multiplied by it. A seed reaches the level between two
    evaluations, or after the last: it counts with the end that is worse for the finding. Reproduced: the ratio is
    above the factor; where the paper says "roughly", it is within 1.5 times the factor, on both sides. Partly: it is
    above 1, and the factor is not shown. Not reproduced: it is below the factor. Otherwise undecided."""
    fast, slow = (
        reach_summary(curves[label].episodes, curves[label].success, claim.level) for label in (claim.arm, claim.than)
    )
    if min(fast.each) <= 0:
        return Found(f"A seed of {claim.arm} is at {claim.level:.0%} before it has learned, so there is no ratio.")
    reached = [
        f"{label} " + (f"not within {one.limit:,}" if one.is_bound else f"after {one.value:,.0f} episodes")
        for label, one in ((claim.arm, fast), (claim.than, slow))
    ]
    ratio = speedup(slow, fast)
    effect = ""
    if ratio.value is not None:
        effect = f"{'more than ' if ratio.is_lower_bound else ''}{ratio.value:.1f} {ratio.interval()} times fewer"
    words = f"The median seed reaches {claim.level:.0%}: {', '.join(reached)}."
    words += f" {claim.arm} needs {effect} episodes." if effect else ""
    if fast.is_bound and slow.is_bound:
        return Found(words, effect)
    least = claim.factor / RATIO if claim.roughly else claim.factor
    most = claim.factor * RATIO if claim.roughly else np.inf
    reproduced = max(_above(slow, fast, least), _below(slow, fast, most) if claim.roughly else 0.0)
    refuted = min(_below(slow, fast, least), _above(slow, fast, most) if claim.roughly else 1.0)
    if claim.factor > 1:
        words += f" The paper says {'roughly ' if claim.roughly else ''}{claim.factor:g}."
    return Found(
        words,
        effect,
        evidence(("reproduced", reproduced), ("partly", _above(slow, fast, 1.0)), ("not reproduced", refuted)),
    )


def _above(slow: Reach, fast: Reach, factor: float) -> float:
    """Return the p-value that a seed of the slow arm needs more than `factor` times as many episodes."""
    return rank_test(np.array(slow.before), factor * np.array(fast.each))[0]


def _below(slow: Reach, fast: Reach, factor: float) -> float:
    """Return the p-value that a seed of the slow arm needs less than `factor` times as many episodes."""
    return rank_test(np.array(slow.each), factor * np.array(fast.before))[1]


def _better(claim: Claim, curves: Mapping[str, Curve]) -> Found:
    """Compares the area under the curve of each seed over the episodes that all arms have, where one of them reached a
    success of 0.1, by exact rank tests (Mann and Whitney). The effect is the probability that a seed of the first has
    the larger area. Reproduced: it is above one half. Not reproduced: it is below one half. Otherwise undecided. Where
    an arm has variants, the best one counts: the claim must hold for one of the first against every one of the others,
    and fails if one of the others is better than every one of the first; p-values are multiplied by the number of
    variants to choose from."""
    own, others = (
        [label for label in labels if label in curves and len(curves[label].success) >= ENOUGH]
        for labels in (claim.own, claim.others)
    )
    areas, ends, words = _areas(curves, [*own, *others])
    if ends is None:
        return Found(words)
    tests = np.array([[rank_test(areas[ours], areas[theirs]) for theirs in others] for ours in own])  # [own, others, 2]
    better = len(own) * float(tests[..., 0].max(1).min())
    worse = len(others) * float(tests[..., 1].max(0).min())
    ours, theirs = (max(labels, key=lambda label: float(areas[label].mean())) for labels in (own, others))
    chance = probability_of_improvement(areas[ours], areas[theirs])
    effect = f"probability {_bracketed(chance, '.2f')}"
    words = f"Up to {ends[1]:,} episodes the area of {ours} is larger than that of {theirs} with {effect}{words}."
    if len(own) * len(others) > 1:
        means = ", ".join(f"{label} {areas[label].mean():.3f}" for label in [*own, *others])
        words += f" These are the best variants by these runs; the mean areas of all: {means}."
        effect += f" of {ours}" if len(own) > 1 else ""
        effect += f" against {theirs}, the best of {len(others)}, up to {ends[1]:,} episodes"
    if missing := [label for label in (*claim.own, *claim.others) if label not in own and label not in others]:
        words += f" Without {', '.join(missing)}: not measured, or with fewer than {ENOUGH} seeds."
    return Found(words, effect, evidence(("reproduced", better), ("not reproduced", worse)))


def _on_par(claim: Claim, curves: Mapping[str, Curve]) -> Found:
    """Compares the area under the curve of each seed over the episodes that both arms have, where one of them reached a
    success of 0.1. The effect is the difference, the median over all pairs of seeds, with its exact interval; an exact
    rank test (Mann and Whitney) shifts one arm by a margin of 0.1. Reproduced: the first is at most 0.1 worse and one
    of them has a mean area of 0.2 or more, since agents that have hardly learned cannot differ by the margin; where
    both areas are smaller, the first is better. Not reproduced: it is more than 0.1 worse. Otherwise undecided."""
    return _by_difference(claim, curves, at_most=np.inf)


def _similar(claim: Claim, curves: Mapping[str, Curve]) -> Found:
    """Compares the same difference of areas with a margin of 0.1 to both sides (two one-sided tests). Reproduced: it is
    less than 0.1 either way, and one mean area is 0.2 or more. Not reproduced: it is more than 0.1 one way. Otherwise
    undecided."""
    return _by_difference(claim, curves, at_most=MARGIN)


def _by_difference(claim: Claim, curves: Mapping[str, Curve], at_most: float) -> Found:
    """Return the evidence that the difference of areas lies between -MARGIN and `at_most`, and that it does not."""
    areas, ends, words = _areas(curves, [claim.arm, claim.than])
    if ends is None:
        return Found(words)
    ours, theirs = areas[claim.arm], areas[claim.than]
    above, worse = rank_test(ours + MARGIN, theirs)
    better, below = rank_test(ours - at_most, theirs) if np.isfinite(at_most) else (1.0, 0.0)
    effect = f"area {_bracketed(difference(ours, theirs), '+.3f')}"
    words = f"{claim.arm} against {claim.than} up to {ends[1]:,} episodes: {effect}; the margin is {MARGIN:g}{words}."
    reproduced, refuted = max(above, below), min(worse, better)
    largest = max(float(ours.mean()), float(theirs.mean()))
    if largest < LEARNED:
        words += f" The larger mean area is {largest:.2f}; an agreement within the margin needs {LEARNED:g}."
        reproduced = rank_test(ours, theirs)[0] if np.isinf(at_most) else 1.0  # better without a margin
    return Found(words, effect, evidence(("reproduced", reproduced), ("not reproduced", refuted)))


def _bracketed(found: Interval, digits: str) -> str:
    """Return such as "0.90 [0.70, 1.00]"."""
    return f"{found.value:{digits}} [{found.low:{digits}}, {found.high:{digits}}]"


def _areas(curves: Mapping[str, Curve], labels: Sequence[str]) -> tuple[dict[str, Float], tuple[int, int] | None, str]:
    """Return the area of each seed by label over the episodes that all have, these, and a remark or the problem."""
    chosen = [curves[label] for label in labels]
    ends = overlap(*chosen)
    if ends is None:
        return {}, None, f"{' and '.join(labels)} were not evaluated over the same episodes."
    best = max(float(one.success[:, one.episodes <= ends[1]].mean(0).max()) for one in chosen)
    if best < LEAST:
        return {}, None, f"By {ends[1]:,} episodes none has begun to learn (at most {best:.2f})."
    asked = min(one.asked for one in chosen)
    remark = f" (so far: {asked:,} episodes are to be played)" if ends[1] < 0.9 * asked else ""
    return (
        {label: area_under_curve(curves[label].episodes, curves[label].success, ends) for label in labels},
        ends,
        remark,
    )


def overlap(*curves: Curve) -> tuple[int, int] | None:
    """Return the first and the last episode that all curves cover."""
    low = max(int(one.episodes[0]) for one in curves)
    high = min(int(one.episodes[-1]) for one in curves)
    return (low, high) if low < high else None


CURVE_RULES: dict[str, Callable[[Claim, Mapping[str, Curve]], Found]] = {
    "reaches": _reaches,
    "grows": _grows,
    "faster": _faster,
    "better": _better,
    "on par": _on_par,
    "similar": _similar,
}
