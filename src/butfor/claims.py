"""What the paper claims of an experiment, and rules that say from learning curves whether it holds here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from butfor.statistics import ROUNDING, Interval, area_under_curve, probability_of_improvement

Finding = Literal["reproduced", "partly", "not reproduced", "undecided"]
CLOSE = 0.9  # of a promised level: near enough to say "partly"
ENOUGH = 5  # seeds, for an interval and to compare two arms
LEAST = 0.1  # success that one of two arms must have had, to compare them
FAR_WORSE = 0.2  # a probability to be larger, below which nobody would call two arms on par


@dataclass(frozen=True)
class Curve:
    """The success of one arm."""

    episodes: NDArray[np.int64]  # [E], rising
    success: NDArray[np.float64]  # [S, E]
    asked: int
    """episodes that each seed was to play"""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper about one arm, or about two."""

    words: str
    kind: Literal["reaches", "faster", "better", "on par", "detects"]
    arm: str
    than: str = ""
    level: float = 0.6
    """of success, which is reached, or at which two arms are compared"""
    within: int = 0
    """episodes (reaches)"""
    factor: float = 1.0
    """how many times fewer episodes (faster)"""
    measure: str = "success"
    """what the curves show: success, or the share of steps in which the object is moved, lifted or held"""

    def __post_init__(self) -> None:
        if self.kind not in RULES:
            raise ValueError(f"The kind of a claim is {self.kind!r}; it must be one of {', '.join(RULES)}.")
        if (self.kind in ("reaches", "detects")) == bool(self.than):
            raise ValueError(f"A claim of kind {self.kind!r} is about {'one arm' if self.than else 'two arms'}.")


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, the numbers that say so, and the rule."""

    verdict: Finding
    words: str
    rule: str


def judge(claim: Claim, curves: Mapping[str, Curve]) -> Verdict:
    """The verdict on a claim from the curves of a study, by label; undecided where an arm is missing."""
    rule = RULES[claim.kind]
    missing = [label for label in (claim.arm, claim.than) if label and label not in curves]
    if missing:
        return Verdict("undecided", f"{' and '.join(missing)}: not measured yet.", rule_words(claim.kind))
    few = [label for label in (claim.arm, claim.than) if label and len(curves[label].success) < ENOUGH]
    if few:
        return Verdict("undecided", f"{' and '.join(few)}: fewer than {ENOUGH} seeds.", rule_words(claim.kind))
    return Verdict(*rule(claim, curves), rule_words(claim.kind))


def rule_words(kind: str) -> str:
    """The rule of a kind of claim as a sentence or two."""
    return " ".join((RULES[kind].__doc__ or "").split())


def _reaches(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Finding, str]:
    """Reproduced: the mean over at least five seeds is at the level at some evaluation within that many episodes.
    Partly: at 90 % of the level. Undecided: not reached, and fewer episodes were played."""
    curve = curves[claim.arm]
    within = curve.episodes <= claim.within
    if not within.any():
        return "undecided", f"There is no evaluation within {claim.within:,} episodes yet."
    mean = curve.success[:, within].mean(0)
    best = float(mean.max())
    at = int(curve.episodes[within][int(mean.argmax())])
    what = "" if claim.measure == "success" else f"{claim.measure} in a share of "
    words = f"{claim.arm}: {what}{best:.2f} in the mean over {len(curve.success)} seeds, at {at:,} episodes."
    if best >= claim.level - ROUNDING:
        return "reproduced", words
    if int(curve.episodes[-1]) < claim.within:
        return "undecided", f"{words} It was played for {int(curve.episodes[-1]):,} of {claim.within:,} episodes."
    return ("partly" if best >= CLOSE * claim.level - ROUNDING else "not reproduced"), words


def _faster(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Finding, str]:
    """Compared are the first evaluations at which the mean over at least five seeds is at the level; an arm that never
    gets there counts with its last evaluation, as a lower bound. Reproduced: the ratio is above 1 and at least the
    factor. Partly: it is above 1. Not reproduced: it is not, or the arm is not there when the other has long been.
    Undecided: neither gets there, or a lower bound is below the factor."""
    fast, slow = (_first_at(curves[label], claim.level) for label in (claim.arm, claim.than))
    if fast is None and slow is not None and _last(curves[claim.arm]) >= slow:
        words = f"{claim.than} reaches {claim.level:.0%} after {slow:,} episodes, {claim.arm} not within "
        return "not reproduced", f"{words}{_last(curves[claim.arm]):,}."
    if fast is None:
        return (
            "undecided",
            f"{claim.arm} does not reach {claim.level:.0%} within its {_last(curves[claim.arm]):,} episodes.",
        )
    bound = slow is None
    ratio = (_last(curves[claim.than]) if slow is None else slow) / fast
    words = (
        f"{claim.arm} reaches {claim.level:.0%} after {fast:,} episodes, {claim.than} "
        + (f"not within {_last(curves[claim.than]):,}" if slow is None else f"after {slow:,}")
        + f": {'more than ' if bound else ''}{ratio:.1f} times fewer; the paper says {claim.factor:g}."
    )
    if ratio > 1 and ratio >= claim.factor - ROUNDING:
        return "reproduced", words
    if bound:
        return "undecided", f"{words} The slower arm was not played for long enough."
    return ("partly" if ratio > 1 else "not reproduced"), words


def _better(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Finding, str]:
    """Compared is the area under the curve of each seed up to the last episode that both have, of at least five seeds,
    where one of the two has had a success of 0.1. Reproduced: the 95 % interval of the probability that the first is
    larger lies above one half. Partly: the probability does, but not the interval. Not reproduced: the interval lies
    below one half. Otherwise undecided."""
    chance, words = _chance(claim, curves)
    if chance is None:
        return "undecided", words
    if chance.low > 0.5:
        return "reproduced", words
    if chance.high < 0.5:
        return "not reproduced", words
    return ("partly" if chance.value > 0.5 else "undecided"), words


def _on_par(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Finding, str]:
    """Compared is the area under the curve of each seed up to the last episode that both have, of at least five seeds,
    where one of the two has had a success of 0.1. Not reproduced: the 95 % interval of the probability that the first
    is larger lies below one half. Reproduced: it does not, and lies above one fifth. Otherwise undecided."""
    chance, words = _chance(claim, curves)
    if chance is None:
        return "undecided", words
    if chance.high < 0.5:
        return "not reproduced", words
    return ("reproduced" if chance.low > FAR_WORSE else "undecided"), words


def _chance(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Interval | None, str]:
    """The probability that a seed of the first arm has the larger area under its curve, and words that say so."""
    first, second = curves[claim.arm], curves[claim.than]
    ends = overlap(first, second)
    if ends is None:
        return None, f"{claim.arm} and {claim.than} were not evaluated over the same episodes."
    best = max(float(one.success[:, one.episodes <= ends[1]].mean(0).max()) for one in (first, second))
    if best < LEAST:
        return None, f"By {ends[1]:,} episodes neither has begun to learn (at most {best:.2f})."
    own, other = (area_under_curve(one.episodes, one.success, ends) for one in (first, second))
    chance = probability_of_improvement(own, other)
    asked = min(first.asked, second.asked)
    so_far = f" (so far: {asked:,} episodes are to be played)" if ends[1] < 0.9 * asked else ""
    return chance, (
        f"The probability that {claim.arm} has the larger area than {claim.than} up to {ends[1]:,} episodes is "
        f"{chance.value:.2f} [{chance.low:.2f}, {chance.high:.2f}]{so_far}."
    )


def overlap(first: Curve, second: Curve) -> tuple[int, int] | None:
    """The episodes from the first to the last evaluation that both curves cover."""
    low, high = max(one.episodes[0] for one in (first, second)), min(one.episodes[-1] for one in (first, second))
    return (int(low), int(high)) if low < high else None


def _first_at(curve: Curve, level: float) -> int | None:
    """The first evaluation at which the mean over seeds is at the level."""
    there = np.flatnonzero(curve.success.mean(0) >= level - ROUNDING)
    return int(curve.episodes[there[0]]) if len(there) else None


def _last(curve: Curve) -> int:
    return int(curve.episodes[-1])


def _detects(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Finding, str]:
    """Compared are the area under the ROC curve, average precision and F1 of CAI, rounded to two digits, with the
    paper's, on the test set and by the label that the paper used. Reproduced: none is lower. Partly: none is below 90 %
    of the paper's."""
    return "undecided", f"{claim.arm}: not measured yet."


def judge_detection(claim: Claim, tables: Sequence[Mapping[str, Any]]) -> Verdict:
    """The verdict on a claim about detection, from a run's tables; undecided where none has numbers of the paper."""
    rows = [row for table in tables for row in table["detectors"] if row["name"] == "cai" and row.get("paper")]
    if not rows:
        return Verdict("undecided", f"{claim.arm}: not measured yet.", rule_words("detects"))
    names = {"auc": "AUC", "ap": "average precision", "f1": "F1"}
    pairs = {name: (round(float(rows[0][name]["mean"]), 2), float(rows[0]["paper"][name][0])) for name in names}
    words = ", ".join(f"{names[name]} {ours:.2f} (paper: {paper:.2f})" for name, (ours, paper) in pairs.items())
    shares = [(table["positive_share"], table["paper_share"]) for table in tables if table.get("paper_share")]
    share = f" Influenced are {shares[0][0]:.1%} of the states, in the paper {shares[0][1]:.1%}." if shares else ""
    verdict: Finding = "not reproduced"
    if all(ours >= paper for ours, paper in pairs.values()):
        verdict = "reproduced"
    elif all(ours >= CLOSE * paper for ours, paper in pairs.values()):
        verdict = "partly"
    return Verdict(
        verdict, f"{claim.arm}: {words}, mean over {int(rows[0]['seeds'])} seeds.{share}", rule_words("detects")
    )


RULES: dict[str, Callable[[Claim, Mapping[str, Curve]], tuple[Finding, str]]] = {
    "reaches": _reaches,
    "faster": _faster,
    "better": _better,
    "on par": _on_par,
    "detects": _detects,
}


def claim_from(data: Mapping[str, Any]) -> Claim:
    """A claim back from JSON."""
    return Claim(**data)
