"""Claims of the paper about an experiment, and the rules that decide whether they hold here.

The docstring of a rule is the text that pages show for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from butfor.analysis.statistics import (
    ROUNDING,
    Interval,
    area_under_curve,
    probability_of_improvement,
    reach_summary,
    speedup,
)

Finding = Literal["reproduced", "partly", "not reproduced", "undecided"]
CLOSE = 0.9  # of a claimed value: near enough for "partly"
NUMBERS = {"auc": "AUC", "ap": "average precision", "f1": "F1"}
ENOUGH = 5  # seeds that an interval or a comparison needs
LEAST = 0.1  # success that one of two arms must reach to be compared
FAR_WORSE = 0.2  # below this probability to be larger, an arm is not on par


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
    kind: Literal["reaches", "faster", "better", "on par", "detects", "alone", "times", "follows", "uneven"]
    arm: str
    than: str = ""
    level: float = 0.6
    """of success, to be reached (reaches) or compared at (faster); a correlation (follows)"""
    within: int = 0
    """episodes (reaches)"""
    factor: float = 1.0
    """how many times fewer episodes (faster), or how many times as large (times, uneven)"""
    measure: str = "success"
    """the curve: success, or the share of steps in which the object is moved, lifted or held; the table of a detection
    run (times); what the score is correlated with in a heat map (follows)"""
    row: str = ""
    """of that table (times)"""
    reference: str = ""
    """the row that it is compared with (times)"""

    def __post_init__(self) -> None:
        if self.kind not in RULES:
            raise ValueError(f"kind is {self.kind!r}; expected one of {', '.join(RULES)}.")
        if (self.kind in ("faster", "better", "on par")) != bool(self.than):
            raise ValueError(f"A claim of kind {self.kind!r} takes {'no' if self.than else 'a second arm as'} `than`.")
        if (self.kind == "times") != bool(self.row and self.reference):
            raise ValueError("`row` and `reference` belong to claims of kind 'times', which need both.")

    @property
    def rule(self) -> str:
        """How the claim is decided, in words."""
        return " ".join((RULES[self.kind].__doc__ or "").split())


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the numbers behind it."""

    verdict: Finding
    words: str
    measured: bool = True
    """false where an arm has not been run, or its run lacks what the claim is about"""


def judge(claim: Claim, curves: Mapping[str, Curve]) -> Verdict:
    """Return the verdict on a claim about curves by label; undecided where an arm is missing or has few seeds."""
    labels = [label for label in (claim.arm, claim.than) if label]
    if missing := [label for label in labels if label not in curves]:
        return Verdict("undecided", f"{' and '.join(missing)}: not measured yet.", measured=False)
    if few := [label for label in labels if len(curves[label].success) < ENOUGH]:
        return Verdict("undecided", f"{' and '.join(few)}: fewer than {ENOUGH} seeds.")
    return Verdict(*CURVE_RULES[claim.kind](claim, curves))


def _reaches(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Finding, str]:
    """Reproduced: the mean over at least five seeds is at or above the level at some evaluation within that many
    episodes. Partly: at 90 % of the level. Undecided: not reached, and fewer episodes were played."""
    curve = curves[claim.arm]
    within = curve.episodes <= claim.within
    if not within.any():
        return "undecided", f"There is no evaluation within {claim.within:,} episodes yet."
    mean = curve.success[:, within].mean(0)
    best = float(mean.max())
    at = int(curve.episodes[within][int(mean.argmax())])
    what = "" if claim.measure == "success" else f"{claim.measure} in a share of "
    words = f"{claim.arm}: {what}{best:.2f} in the mean over {len(curve.success)} seeds, at {at:,} episodes."
    if best < claim.level - ROUNDING and int(curve.episodes[-1]) < claim.within:
        return "undecided", f"{words} It was played for {int(curve.episodes[-1]):,} of {claim.within:,} episodes."
    return _by_share(best, claim.level), words


def _faster(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Finding, str]:
    """Compares the episodes that the median of at least five seeds needs to reach the level, by their ratio with its
    95 % interval over seeds. An arm that never reaches it counts with its last evaluation, as a lower bound.
    Reproduced: the whole interval is above 1 and at least the factor. Partly: it is above 1. Not reproduced: the ratio
    is not above 1, or the other arm reaches the level and this one does not, within as many episodes. Undecided:
    neither reaches the level, the interval includes 1, or a lower bound is below the factor."""
    fast, slow = (
        reach_summary(curves[label].episodes, curves[label].success, claim.level) for label in (claim.arm, claim.than)
    )
    if fast.is_bound:
        if not slow.is_bound and fast.limit >= slow.value:
            words = f"{claim.than} reaches {claim.level:.0%} after {slow.value:,.0f} episodes, {claim.arm} not within "
            return "not reproduced", f"{words}{fast.limit:,}."
        return "undecided", f"{claim.arm} does not reach {claim.level:.0%} within its {fast.limit:,} episodes."
    if min(fast.each) <= 0:
        words = f"A seed of {claim.arm} is at {claim.level:.0%} before it has learned, so there is no ratio."
        return "undecided", words
    ratio = speedup(slow, fast)
    assert ratio.value is not None
    words = (
        f"{claim.arm} reaches {claim.level:.0%} after {fast.value:,.0f} episodes, {claim.than} "
        + (f"not within {slow.limit:,}" if slow.is_bound else f"after {slow.value:,.0f}")
        + f": {'more than ' if slow.is_bound else ''}{ratio.value:.1f} {ratio.interval()} times fewer"
        + (f"; the paper says {claim.factor:g}." if claim.factor > 1 else ".")
    )
    if ratio.low > 1 and ratio.low >= claim.factor - ROUNDING:
        return "reproduced", words
    if slow.is_bound:
        return "undecided", f"{words} The slower arm was not played for long enough."
    if ratio.value <= 1:
        return "not reproduced", words
    return ("partly" if ratio.low > 1 else "undecided"), words


def _better(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Finding, str]:
    """Compares the area under the curve of each seed up to the last episode that both arms have, for at least five
    seeds, where one of the two reached a success of 0.1. Reproduced: the 95 % interval of the probability that the
    first is larger lies above one half. Partly: the probability does, but not the interval. Not reproduced: the
    interval lies below one half. Otherwise undecided."""
    chance, words = _chance(claim, curves)
    if chance is None:
        return "undecided", words
    if chance.low > 0.5:
        return "reproduced", words
    if chance.high < 0.5:
        return "not reproduced", words
    return ("partly" if chance.value > 0.5 else "undecided"), words


def _on_par(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Finding, str]:
    """Compares the area under the curve of each seed up to the last episode that both arms have, for at least five
    seeds, where one of the two reached a success of 0.1. Not reproduced: the 95 % interval of the probability that the
    first is larger lies below one half. Reproduced: it does not, and lies above one fifth. Otherwise undecided."""
    chance, words = _chance(claim, curves)
    if chance is None:
        return "undecided", words
    if chance.high < 0.5:
        return "not reproduced", words
    return ("reproduced" if chance.low > FAR_WORSE else "undecided"), words


def _chance(claim: Claim, curves: Mapping[str, Curve]) -> tuple[Interval | None, str]:
    """Return the probability that a seed of the first arm has the larger area under its curve, and it in words."""
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
    """Return the first and the last episode that both curves cover."""
    low = max(first.episodes[0], second.episodes[0])
    high = min(first.episodes[-1], second.episodes[-1])
    return (int(low), int(high)) if low < high else None


def _detects(claim: Claim, tables: Sequence[Mapping[str, Any]]) -> tuple[Finding, str] | None:
    """Compares the area under the ROC curve, average precision and F1 of CAI, rounded to two digits, with the paper's,
    on the test set and by the label that the paper used. Reproduced: none is lower. Partly: none is below 90 % of the
    paper's."""
    found = _beside_paper(tables)
    if found is None:
        return None
    row = found[1]
    pairs = {name: (round(float(row[name]["mean"]), 2), float(row["paper"][name][0])) for name in NUMBERS}
    words = ", ".join(f"{NUMBERS[name]} {ours:.2f} (paper: {paper:.2f})" for name, (ours, paper) in pairs.items())
    shares = [(table["positive_share"], table["paper_share"]) for table in tables if table.get("paper_share")]
    share = f" {shares[0][0]:.1%} of the states are influenced, {shares[0][1]:.1%} in the paper." if shares else ""
    words = f"{claim.arm}: {words}, mean over {int(row['seeds'])} seeds.{share}"
    if all(ours >= paper for ours, paper in pairs.values()):
        return "reproduced", words
    return ("partly" if all(ours >= CLOSE * paper for ours, paper in pairs.values()) else "not reproduced"), words


def _alone(claim: Claim, tables: Sequence[Mapping[str, Any]]) -> tuple[Finding, str] | None:
    """Compares the same three numbers of CAI with those of every other detector, by the same label. Reproduced: CAI is
    above each of them in all three, and none has 90 % of all three. Partly: CAI is above. Otherwise not."""
    found = _beside_paper(tables)
    if found is None:
        return None
    table, cai = found
    ours = [float(cai[name]["mean"]) for name in NUMBERS]
    rivals = [row for row in table["detectors"] if row["name"] != "cai"]
    others = {str(row["title"]): [float(row[name]["mean"]) for name in NUMBERS] for row in rivals}
    title, best = max(others.items(), key=lambda item: min(np.divide(item[1], ours)))
    words = (
        f"{claim.arm}: {title} comes nearest with {', '.join(f'{value:.2f}' for value in best)}; CAI has "
        f"{', '.join(f'{value:.2f}' for value in ours)} ({', '.join(NUMBERS.values())})."
    )
    if not all(np.greater(ours, other).all() for other in others.values()):
        return "not reproduced", words
    return ("partly" if min(np.divide(best, ours)) >= CLOSE else "reproduced"), words


def _times(claim: Claim, tables: Sequence[Mapping[str, Any]]) -> tuple[Finding, str] | None:
    """Compares two numbers of a detection run, average precision unless another is named, as means over seeds.
    Reproduced: the first is at least the claimed share or multiple of the second. Partly: 90 % of that."""
    rows = {str(row["title"]): row for table in tables for row in table.get("sides", {}).get(claim.measure, [])}
    if not {claim.row, claim.reference} <= set(rows):
        return None
    number = "cai" if "cai" in rows[claim.row] else "ap"
    ours, reference = (float(rows[title][number]["mean"]) for title in (claim.row, claim.reference))
    name = "CAI" if number == "cai" else NUMBERS[number]
    ratio = ours / reference if reference else np.inf
    against = f"{reference:.2f} ({claim.reference})"
    words = f"{claim.arm}, {name}: {ours:.2f} ({claim.row}) against {against}, {ratio:.2f} times as much."
    return _by_share(ratio, claim.factor), words


def _follows(claim: Claim, tables: Sequence[Mapping[str, Any]]) -> tuple[Finding, str] | None:
    """Compares CAI in the heat map of a run, which shows one seed, with the label by step and group of episodes, or its
    mean over steps with what the agent does to the object. Reproduced: their correlation is at least the level. Partly:
    90 % of it."""
    pairs = [table["heat_map"] for table in tables if claim.measure in table.get("heat_map", {})]
    if not pairs:
        return None
    score, other = (np.asarray(pairs[0][name], dtype=np.float64) for name in ("score", claim.measure))
    score = score if other.ndim == 2 else score.mean(0)
    correlation = float(np.corrcoef(score.ravel(), other.ravel())[0, 1])
    words = f"{claim.arm}: the correlation of CAI with {claim.measure} is {correlation:.2f}, one seed."
    return _by_share(correlation, claim.level), words


def _uneven(claim: Claim, tables: Sequence[Mapping[str, Any]]) -> tuple[Finding, str] | None:
    """Compares how much CAI varies between steps and groups of episodes in the heat map of a run, which shows one seed,
    as standard deviation over mean, with the same of the label. Reproduced: it is at least the claimed multiple.
    Partly: it is larger."""
    pairs = [table["heat_map"] for table in tables if {"score", "label"} <= table.get("heat_map", {}).keys()]
    if not pairs or not np.mean(pairs[0]["label"]) > 0:
        return None
    score, label = (float(np.std(pairs[0][name]) / np.mean(pairs[0][name])) for name in ("score", "label"))
    words = f"{claim.arm}: {score:.2f} for CAI, {label:.2f} for the label, {score / label:.2f} times as much, one seed."
    if score >= claim.factor * label - ROUNDING:
        return "reproduced", words
    return ("partly" if score > label else "not reproduced"), words


def _by_share(value: float, claimed: float) -> Finding:
    """Return the finding on a value that should be at least the claimed one."""
    if value >= claimed - ROUNDING:
        return "reproduced"
    return "partly" if value >= CLOSE * claimed - ROUNDING else "not reproduced"


def _beside_paper(tables: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return the table that has the paper's numbers beside CAI's, and CAI's row of it."""
    rows = [(table, row) for table in tables for row in table.get("detectors", []) if row["name"] == "cai"]
    return next(((table, row) for table, row in rows if row.get("paper")), None)


def judge_tables(claim: Claim, tables: Sequence[Mapping[str, Any]]) -> Verdict:
    """Return the verdict on a claim about tables of one run; undecided where the run lacks them.

    A table has `detectors` and so on as a detection run's summary, `sides` with rows by name, or a `heat_map`.
    """
    found = TABLE_RULES[claim.kind](claim, tables)
    if found is None:
        return Verdict("undecided", f"{claim.arm}: not measured yet.", measured=False)
    return Verdict(*found)


CURVE_RULES: dict[str, Callable[[Claim, Mapping[str, Curve]], tuple[Finding, str]]] = {
    "reaches": _reaches,
    "faster": _faster,
    "better": _better,
    "on par": _on_par,
}
TABLE_RULES: dict[str, Callable[[Claim, Sequence[Mapping[str, Any]]], tuple[Finding, str] | None]] = {
    "detects": _detects,
    "alone": _alone,
    "times": _times,
    "follows": _follows,
    "uneven": _uneven,
}
RULES: dict[str, Callable[..., tuple[Finding, str] | None]] = CURVE_RULES | TABLE_RULES
