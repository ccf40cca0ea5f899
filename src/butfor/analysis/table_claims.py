"""The rules that decide about the tables of a run whether a claim holds: detection, and scores over training.

Tables have means and standard deviations over seeds, so these tests follow Student's t.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import t as student

from butfor.analysis.claims import CURVE_RULES, ENOUGH, Claim, Found, Verdict, evidence, verdict_from
from butfor.analysis.rank_tests import TAIL

NUMBERS = {"auc": "AUC", "ap": "average precision", "f1": "F1"}
TOLERANCE = 0.01  # of the paper's numbers, which have two digits
CERTAIN = 1 - 1e-9  # the largest correlation that Fisher's scale can show
FAR = 0.05  # from the paper's number of another detector: told beside the verdict
Table = Mapping[str, Any]


def judge_tables(claim: Claim, tables: Sequence[Table]) -> Verdict:
    """Return the verdict on a claim about tables of one run; undecided where the run lacks them.

    A table has `detectors` and so on as a detection run's summary, `sides` with rows by name, a `heat_map`, or
    `training` with arrays [S, E].
    """
    found = TABLE_RULES[claim.kind](claim, tables)
    if found is None:
        return Verdict("undecided", f"{claim.arm}: not measured yet.", measured=False)
    return verdict_from(found)


def rule_of(claim: Claim) -> str:
    """Return in words how the claim is decided."""
    return " ".join((RULES[claim.kind].__doc__ or "").split())


def _detects(claim: Claim, tables: Sequence[Table]) -> Found | None:
    """Compares the area under the ROC curve, average precision and F1 of CAI with the paper's, on the test set and by
    the label that the paper used, with a tolerance of 0.01, by t-tests over the seeds of the model. Reproduced: all
    three are above the paper's less 0.01. Partly: some are, and another is below. Not reproduced: one is below.
    Otherwise undecided."""
    found = _beside_paper(tables)
    if found is None:
        return None
    table, row = found
    seeds = int(row["seeds"])
    paper = {name: float(row["paper"][name][0]) for name in NUMBERS}
    tests = [_tests(float(row[name]["mean"]) - paper[name] + TOLERANCE, _error(row[name], seeds), seeds)
             for name in NUMBERS]  # fmt: skip
    bounds = [student.isf(TAIL, seeds - 1) * _error(row[name], seeds) if seeds > 1 else math.inf for name in NUMBERS]
    effect = ", ".join(
        f"{title} {row[name]['mean'] - paper[name]:+.3f} ± {bound:.3f}"
        for (name, title), bound in zip(NUMBERS.items(), bounds, strict=True)
    )
    numbers = ", ".join(f"{title} {row[name]['mean']:.3f} ({paper[name]:.2f})" for name, title in NUMBERS.items())
    words = f"{claim.arm}, {seeds} seeds, the paper's in brackets: {numbers}.{_deviations(table)}"
    above, below = ([pair[side] for pair in tests] for side in (0, 1))
    refuted = min(len(below) * min(below), 1.0)
    some = max(min(len(above) * min(above), 1.0), refuted)
    return Found(words, effect, evidence(("reproduced", max(above)), ("partly", some), ("not reproduced", refuted)))


def _deviations(table: Table) -> str:
    """Return in words how the states and the other detectors of a table differ from the paper's."""
    words = ""
    if table.get("paper_share"):
        words += f" {table['positive_share']:.1%} of the states are influenced ({table['paper_share']:.1%})."
    rows = [row for row in table["detectors"] if row["name"] != "cai" and row.get("paper")]
    far = [
        f"{row['title']} {NUMBERS[name]} {row[name]['mean']:.2f} ({row['paper'][name][0]:.2f})"
        for row, name in product(rows, NUMBERS)
        if abs(row[name]["mean"] - row["paper"][name][0]) > FAR
    ]
    return f"{words} Other detectors differ by more than {FAR:g}: {', '.join(far)}." if far else words


def _alone(claim: Claim, tables: Sequence[Table]) -> Found | None:
    """Compares the same three numbers of CAI with those of every other detector of the paper, by the same label, by
    t-tests over the seeds. The effect is the smallest lead. Reproduced: CAI is above each of them in all three. Not
    reproduced: one is above CAI in one number. Otherwise undecided. Detectors that are not in the paper do not count
    and are named where they are above CAI."""
    found = _beside_paper(tables)
    if found is None:
        return None
    table, cai = found
    others = [row for row in table["detectors"] if row["name"] != "cai"]
    pairs = list(product([row for row in others if row.get("paper")], NUMBERS))
    if not pairs:
        return None
    seeds = int(cai["seeds"])
    leads = [float(cai[name]["mean"] - row[name]["mean"]) for row, name in pairs]
    errors = [math.hypot(_error(cai[name], seeds), _error(row[name], int(row["seeds"]))) for row, name in pairs]
    tests = [_tests(lead, error, seeds) for lead, error in zip(leads, errors, strict=True)]
    least = int(np.argmin(leads))
    nearest, number = pairs[least]
    effect = f"lead {_interval(leads[least], errors[least], seeds, '.3f')}"
    words = f"{claim.arm}: {nearest['title']} comes nearest, in {NUMBERS[number]}: {effect}."
    ours = [row for row in others if not row.get("paper")]
    ahead = [(row, name) for row, name in product(ours, NUMBERS) if row[name]["mean"] > cai[name]["mean"]]
    if ahead:
        numbers = [f"{row['title']} in {NUMBERS[name]} ({row[name]['mean']:.3f} against {cai[name]['mean']:.3f})"
                   for row, name in ahead]  # fmt: skip
        words += f" Not in the paper, and above CAI: {', '.join(numbers)}."
        effect += f"; not in the paper, and above CAI: {', '.join(dict.fromkeys(row['title'] for row, _ in ahead))}"
    refuted = min(len(tests) * min(below for _, below in tests), 1.0)
    return Found(words, effect, evidence(("reproduced", max(above for above, _ in tests)), ("not reproduced", refuted)))


def _times(claim: Claim, tables: Sequence[Table]) -> Found | None:
    """Compares two numbers of a detection run, average precision unless another is named, by their ratio, with a t-test
    of its logarithm over the seeds of the model, as if the two were independent. Reproduced: the ratio is above the
    claimed share or multiple. Not reproduced: it is below. Otherwise undecided."""
    rows = {str(row["title"]): row for table in tables for row in table.get("sides", {}).get(claim.measure, [])}
    counted = [int(row["seeds"]) for table in tables for row in table.get("detectors", []) if row["name"] == "cai"]
    if not {claim.row, claim.reference} <= set(rows) or not counted:
        return None
    number = "cai" if "cai" in rows[claim.row] else "ap"
    pair = [rows[title][number] for title in (claim.row, claim.reference)]
    name = "CAI" if number == "cai" else NUMBERS[number]
    ours, reference = (float(one["mean"]) for one in pair)
    words = f"{claim.arm}, {name}: {ours:.2f} ({claim.row}) against {reference:.2f} ({claim.reference})"
    if min(ours, reference) <= 0:
        return Found(f"{words}, no ratio.")
    seeds = counted[0]
    error = math.hypot(*(_error(one, seeds) / float(one["mean"]) for one in pair))
    lead = math.log(ours / reference)
    above, below = _tests(lead - math.log(claim.factor), error, seeds)
    reach = student.isf(TAIL, seeds - 1) * error if seeds > 1 else math.inf
    effect = f"{math.exp(lead):.2f} [{math.exp(lead - reach):.2f}, {math.exp(lead + reach):.2f}] times"
    return Found(
        f"{words}: {effect}, {seeds} seeds.", effect, evidence(("reproduced", above), ("not reproduced", below))
    )


def _follows(claim: Claim, tables: Sequence[Table]) -> Found | None:
    """Correlates CAI with what the agent does to the object at each evaluation, over the seeds: the mean over seeds is
    taken from both at each evaluation, so that what all seeds do as time goes by does not count. The test permutes the
    seeds of one against the other. Reproduced: the correlation given time is above 0. Not reproduced: it is below 0.
    Otherwise undecided. A heat map is of one seed and decides nothing; its correlation given step and time is shown."""
    training = next((table["training"] for table in tables if claim.measure in table.get("training", {})), None)
    if training is not None:
        score, other = (np.asarray(training[name], dtype=np.float64) for name in ("score", claim.measure))
        if len(score) < ENOUGH:
            return Found(f"{claim.arm}: fewer than {ENOUGH} seeds.")
        correlation, error = given_time(score, other)
        bent = math.atanh(min(max(correlation, -CERTAIN), CERTAIN))  # Fisher's scale
        reach = student.isf(TAIL, len(score) - 1) * error
        low, high = math.tanh(bent - reach), math.tanh(bent + reach)
        raw = float(np.corrcoef(score.ravel(), other.ravel())[0, 1])
        effect = f"correlation {correlation:.2f} [{low:.2f}, {high:.2f}]"
        words = (
            f"{claim.arm}, CAI and {claim.measure} given time, {len(score)} seeds: {effect}; not given time {raw:.2f}."
        )
        above, below = _tests(bent, error, len(score))
        return Found(words, effect, evidence(("reproduced", above), ("not reproduced", below)))
    heat_map = next((table["heat_map"] for table in tables if claim.measure in table.get("heat_map", {})), None)
    if heat_map is None or np.ndim(heat_map[claim.measure]) != 2:
        return None
    score, other = (np.asarray(heat_map[name], dtype=np.float64) for name in ("score", claim.measure))
    raw = float(np.corrcoef(score.ravel(), other.ravel())[0, 1])
    score, other = (one - one.mean(0) - one.mean(1, keepdims=True) for one in (score, other))
    given = float(np.corrcoef(score.ravel(), other.ravel())[0, 1])
    effect = f"correlation {raw:.2f}; {given:.2f} given step and time"
    return Found(f"{claim.arm}, CAI and {claim.measure}, one seed, which decides nothing: {effect}.", effect)


def given_time(score: Any, other: Any) -> tuple[float, float]:
    """Return the correlation of two arrays [S, E] with the means over seeds taken away, and its standard error.

    The error is that of all permutations of the seeds of one array, of which the exact variance is known, so values of
    a seed at different times may depend on each other.
    """
    score, other = score - score.mean(0), other - other.mean(0)
    scale = math.sqrt((score**2).sum() * (other**2).sum())
    if scale == 0:
        return 0.0, math.inf
    pairs = score @ other.T  # [S, S]: the diagonal has what belongs together
    return float(np.trace(pairs)) / scale, math.sqrt((pairs**2).sum() / (len(score) - 1)) / scale


def _uneven(claim: Claim, tables: Sequence[Table]) -> Found | None:
    """Compares how much CAI varies between steps and groups of episodes in the heat map of a run, as standard deviation
    over mean, with the same of the label. A heat map is of one seed, so this is undecided."""
    pairs = [table["heat_map"] for table in tables if {"score", "label"} <= table.get("heat_map", {}).keys()]
    if not pairs or not np.mean(pairs[0]["label"]) > 0:
        return None
    score, label = (float(np.std(pairs[0][name]) / np.mean(pairs[0][name])) for name in ("score", "label"))
    effect = f"{score / label:.2f} times"
    return Found(f"{claim.arm}: {score:.2f} for CAI, {label:.2f} for the label, {effect}; one seed.", effect)


def _tests(lead: float, error: float, seeds: int) -> tuple[float, float]:
    """Return the one-sided p-values of a t-test that a number is above 0, and below."""
    if seeds < ENOUGH or (error == 0 and lead == 0) or not math.isfinite(error):
        return 1.0, 1.0
    ratio = lead / error if error > 0 else math.copysign(math.inf, lead)
    return float(student.sf(ratio, seeds - 1)), float(student.cdf(ratio, seeds - 1))


def _error(number: Mapping[str, float], seeds: int) -> float:
    """Return the standard error of a mean over seeds from the population's standard deviation."""
    return float(number.get("std", 0.0)) / math.sqrt(seeds - 1) if seeds > 1 else 0.0


def _interval(value: float, error: float, seeds: int, digits: str) -> str:
    """Return a value with its 95 % interval."""
    reach = student.isf(TAIL, seeds - 1) * error if seeds > 1 else math.inf
    return f"{value:{digits}} [{value - reach:{digits}}, {value + reach:{digits}}]"


def _beside_paper(tables: Sequence[Table]) -> tuple[Table, Mapping[str, Any]] | None:
    """Return the table that has the paper's numbers beside CAI's, and CAI's row of it."""
    rows = [(table, row) for table in tables for row in table.get("detectors", []) if row["name"] == "cai"]
    return next(((table, row) for table, row in rows if row.get("paper")), None)


TABLE_RULES: dict[str, Callable[[Claim, Sequence[Table]], Found | None]] = {
    "detects": _detects,
    "alone": _alone,
    "times": _times,
    "follows": _follows,
    "uneven": _uneven,
}
RULES: dict[str, Callable[..., Found | None]] = CURVE_RULES | TABLE_RULES
