"""Simulated runs of which the truth is known, to count how often a rule is right.

Learning curves are logistic, with midpoints that differ between seeds by a factor of about 1.3, and evaluations of 50
episodes every 250. One seed in ten never learns. Curves of which the area matters are flat, at a height with a skewed
law.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from butfor.analysis.claims import PAIRED, Claim, Curve, Finding, Verdict, decide_together, finding_of, judge
from butfor.analysis.table_claims import judge_tables

EPISODES = np.arange(250, 5001, 250)
Float = NDArray[np.float64]


def learning(random: np.random.Generator, seeds: int, middle: float, spread: float = 0.25) -> Curve:
    """Seeds that learn around `middle` episodes."""
    middles = middle * np.exp(spread * random.normal(size=(seeds, 1)))
    success = 0.03 + 0.95 / (1 + np.exp(-(EPISODES - middles) / (0.15 * middles)))
    success = np.where(random.random((seeds, 1)) < 0.1, 0.05, success)
    return Curve(EPISODES, random.binomial(50, success) / 50, 5000)


def flat(random: np.random.Generator, seeds: int, height: float) -> Curve:
    """Seeds whose area is `height` in the median, with a standard deviation of 0.06 and a tail upwards."""
    skewed = 0.06 * (random.gamma(2, size=(seeds, 1)) - 1.678) / np.sqrt(2)
    return Curve(EPISODES, np.clip(height + skewed, 0, 1) * np.ones(len(EPISODES)), 5000)


def shares(random: np.random.Generator, seeds: int, above: float) -> Curve:
    """Seeds that end above 0.5, having begun at 0.5, with probability `above`."""
    end = np.where(random.random((seeds, 1)) < above, 0.5 + 0.4 * random.random((seeds, 1)), 0.4)
    return Curve(EPISODES, np.concatenate([np.full((seeds, len(EPISODES) - 1), 0.5), end], 1), 5000)


def numbers(random: np.random.Generator, seeds: int, mean: float) -> dict[str, float]:
    """Mean and standard deviation of a number over the seeds, of which the standard deviation is 0.005."""
    values = random.normal(mean, 0.005, size=seeds)
    return {"mean": float(values.mean()), "std": float(values.std())}


def detectors(random: np.random.Generator, seeds: int, cai: float, other: float) -> dict[str, Any]:
    """A table with CAI at the paper's 0.9 plus `cai` in AUC, and a rival whose F1 is below CAI's by -`other`."""
    paper = {"auc": [0.9], "ap": [0.9], "f1": [0.9]}
    means = {"auc": 0.9 + cai, "ap": 0.92, "f1": 0.92}
    ours = {name: numbers(random, seeds, mean) for name, mean in means.items()}
    theirs = {"auc": 0.7, "ap": 0.7, "f1": 0.92 + other}
    rival = {name: numbers(random, seeds, mean) for name, mean in theirs.items()}
    return {
        "detectors": [
            {"name": "cai", "title": "CAI", "seeds": seeds, "paper": paper} | ours,
            {"name": "entropy", "title": "Entropy", "seeds": seeds, "paper": paper} | rival,
        ]
    }


def ratio(random: np.random.Generator, seeds: int, factor: float) -> dict[str, Any]:
    """A table of two numbers with a ratio of `factor` times 0.5."""
    means = {"one": 0.4 * factor, "two": 0.8}
    rows = [{"title": title, "ap": numbers(random, seeds, mean)} for title, mean in means.items()]
    return {"sides": {"noise": rows}, "detectors": [{"name": "cai", "seeds": seeds}]}


def trend(random: np.random.Generator, seeds: int, shared: float) -> dict[str, Any]:
    """Two curves that rise in all seeds and wander on their own, with a part that they share."""
    wandering = np.cumsum(random.normal(size=(3, seeds, 10)), axis=2)
    score, lifted = wandering[0] + shared * wandering[2], wandering[1] + abs(shared) * wandering[2]
    return {"training": {"score": score + np.arange(10) * 2, "lifted": lifted + np.arange(10) * 2}}


MAKERS: dict[str, Any] = {
    "better": learning, "faster": learning, "on par": flat, "similar": flat, "reaches": shares, "grows": shares,
    "detects": lambda random, seeds, truth: detectors(random, seeds, truth, -0.1),
    "alone": lambda random, seeds, truth: detectors(random, seeds, 0.0, truth),
    "times": ratio, "follows": trend,
}  # fmt: skip


def claim_of(kind: str, factor: float = 1.0, variants: int = 0, roughly: bool = False) -> Claim:
    """A claim of a kind about the simulated arms a and b, or about a and the best of b and its variants."""
    more: dict[str, Any] = {"than": "b", "roughly": roughly} if kind in PAIRED else {}
    if variants:
        more["than_variants"] = tuple(f"b{number}" for number in range(variants))
    if kind == "times":
        more = {"measure": "noise", "row": "one", "reference": "two"}
    if kind == "follows":
        more = {"measure": "lifted"}
    return Claim("x", kind, "a", level=0.5, within=5000, factor=factor, **more)  # type: ignore[arg-type]


def verdicts(claim: Claim, truth: float, seeds: int, count: int, height: float = 0.45) -> Iterator[Verdict]:
    """Verdicts on `count` simulated experiments.

    `truth` is the ratio of episodes (better, faster), the difference of areas (on par, similar), the probability of a
    seed above (reaches, grows), the difference of numbers (detects, alone), the ratio over the claimed one (times), or
    the weight of what both curves share (follows). `height` is the area of the other arm (on par, similar).
    """
    random = np.random.default_rng([seeds, int(1000 * (truth + 10)), int(10 * claim.factor)])
    make = MAKERS[claim.kind]
    for _ in range(count):
        if make is learning:
            middles = {label: 2000 * np.sqrt(truth) for label in claim.others} | {"a": 2000 / np.sqrt(truth)}
            yield judge(claim, {label: make(random, seeds, middle) for label, middle in middles.items()})
        elif make is flat:
            yield judge(claim, {"a": make(random, seeds, height + truth), "b": make(random, seeds, height)})
        elif make is shares:
            yield judge(claim, {"a": make(random, seeds, truth)})
        else:
            yield judge_tables(claim, [make(random, seeds, truth)])


def rates_of_several(ratios: Sequence[float], seeds: int, count: int) -> dict[str, float]:
    """How often each verdict is given on a claim of comparisons of kind "better" with these ratios of episodes."""
    random, claim = (
        np.random.default_rng([seeds, len(ratios), *(int(1000 * one) for one in ratios)]),
        claim_of("better"),
    )
    found: Counter[str] = Counter()
    for _ in range(count):
        comparisons = []
        for truth in ratios:
            middles = {"a": 2000 / np.sqrt(truth), "b": 2000 * np.sqrt(truth)}
            comparisons.append(judge(claim, {label: learning(random, seeds, one) for label, one in middles.items()}))
        found[finding_of(decide_together([comparisons])[0][0])] += 1
    return {verdict: found[verdict] / count for verdict in get_args(Finding)}


def rates(claim: Claim, truth: float, seeds: int, count: int, height: float = 0.45) -> dict[str, float]:
    """How often each verdict is given."""
    found = Counter(one.verdict for one in verdicts(claim, truth, seeds, count, height))
    return {verdict: found[verdict] / count for verdict in get_args(Finding)}
