"""How often each rule gives each verdict, and intervals cover the truth: the numbers that docs/results-rules.md shows.

A finding that is false may be given in 2.5 % of the experiments. The tests allow for what is as rare as 0.001.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm
from support.simulated_claims import claim_of, flat, learning, rates, rates_of_several, verdicts
from verdict_rates import COVERAGE, RATES, SEVERAL, Percent, Rates, Several

from butfor.analysis.claims import Curve, decide_together, judge
from butfor.analysis.statistics import curve_summary, difference, probability_of_improvement, reach_summary, speedup

COUNT = 500
Float = NDArray[np.float64]


@pytest.mark.parametrize("stated", RATES, ids=lambda one: f"{one.kind}: {one.words}")
def test_a_rule_gives_its_verdicts_as_often_as_stated(stated: Rates) -> None:
    claim = claim_of(stated.kind, stated.factor, stated.variants, stated.roughly)
    for seeds, percent in ((10, stated.ten), (5, stated.five)):
        check_rates(rates(claim, stated.truth, seeds, COUNT, stated.height), percent, stated.false)


@pytest.mark.parametrize("stated", SEVERAL, ids=lambda one: one.words)
def test_a_claim_of_several_comparisons_is_not_decided_by_chance_more_often(stated: Several) -> None:
    for seeds, percent in ((10, stated.ten), (5, stated.five)):
        check_rates(rates_of_several(stated.ratios, seeds, COUNT), percent, stated.false)


def check_rates(found: dict[str, float], percent: Percent, false: tuple[str, ...]) -> None:
    for finding, share in zip(("reproduced", "partly", "not reproduced"), percent, strict=True):
        error = np.sqrt(max(share / 100 * (1 - share / 100), 0.01) / COUNT)
        assert found[finding] == pytest.approx(share / 100, abs=0.005 + 3.5 * error), finding
        if finding in false:
            assert found[finding] * COUNT <= binom.isf(0.001, COUNT, 0.025), finding


def test_groups_of_unlike_spread_are_called_different_a_little_too_often() -> None:
    """Ten seeds that differ ten times as much as the other ten: at most 5 % on either side, where 2.5 % are meant."""
    random, claim = np.random.default_rng(0), claim_of("better")
    found = {"reproduced": 0, "not reproduced": 0, "undecided": 0}
    for _ in range(1000):
        wide, narrow = (np.clip(random.normal(0.5, spread, (10, 1)), 0, 1) for spread in (0.1, 0.01))
        curves = [Curve(np.array([0, 1]), np.repeat(height, 2, axis=1), 1) for height in (wide, narrow)]
        found[judge(claim, dict(zip("ab", curves, strict=True))).verdict] += 1
    assert max(found["reproduced"], found["not reproduced"]) <= 1000 * 0.06


def test_of_many_claims_few_decisions_are_false() -> None:
    """Forty claims without a difference beside twenty with one: 5 % of the decisions at most, in the mean."""
    alike = list(verdicts(claim_of("better"), 1, 10, 800))
    unlike = list(verdicts(claim_of("better"), 1.5, 10, 400))
    shares, alone = [], 0
    for place in range(20):
        chosen = alike[40 * place :][:40] + unlike[20 * place :][:20]
        decided = [one.verdict != "undecided" for (one,) in decide_together([[one] for one in chosen])[0]]
        shares.append(sum(decided[:40]) / max(sum(decided), 1))
        alone += sum(one.verdict != "undecided" for one in chosen[:40])
    assert np.mean(shares) <= 0.05 * 40 / 60 + 3 * np.std(shares) / np.sqrt(20)
    assert alone / 20 > sum(share > 0 for share in shares) / 20  # without it there are more


LAWS: dict[str, tuple[Callable[[np.random.Generator, tuple[int, int]], Float], float]] = {
    "around one half": (lambda random, shape: random.beta(2, 2, shape), 0.5),
    "around 0.77": (lambda random, shape: random.beta(5, 1.5, shape), 5 / 6.5),
    "near 1": (lambda random, shape: random.beta(20, 1, shape), 20 / 21),
    "near 0": (lambda random, shape: random.beta(1, 20, shape), 1 / 21),
    "at 0 or 1": (lambda random, shape: random.beta(0.5, 0.5, shape), 0.5),
    "mostly 0, some high": (lambda random, shape: random.beta(0.3, 3, shape), 0.3 / 3.3),
    "three of ten seeds fail": (lambda random, shape: failing(random, shape, 0.3), 0.3 * 0.2 + 0.7 * 30 / 31.5),
    "one of ten seeds fails": (lambda random, shape: failing(random, shape, 0.1), 0.1 * 0.2 + 0.9 * 30 / 31.5),
}


def failing(random: np.random.Generator, shape: tuple[int, int], share: float) -> Float:
    """Seeds that have learned the task, except for a share that has between 0 and 0.4."""
    return np.where(random.random(shape) < share, random.uniform(0, 0.4, shape), random.beta(30, 1.5, shape))


@pytest.mark.parametrize("name", LAWS)
def test_the_intervals_of_means_cover_as_often_as_stated(name: str) -> None:
    """Success of 50 episodes a seed, 2,000 samples at a time."""
    law, mean = LAWS[name]
    random = np.random.default_rng(1)
    ordered = np.sort(random.binomial(50, law(random, (1, 400_000)))[0] / 50)
    middle = float(ordered[100_000:300_000].mean())
    for place, seeds in enumerate((5, 10, 20)):
        summary = curve_summary(np.arange(2000), random.binomial(50, law(random, (seeds, 2000))) / 50)
        for kind, value, stated in (("mean", mean, COVERAGE[name][0]), ("iqm", middle, COVERAGE[name][1])):
            covered = float(np.mean((summary[f"{kind}_low"] <= value) & (value <= summary[f"{kind}_high"])))
            assert covered == pytest.approx(stated[place] / 100, abs=0.04), (kind, seeds)


@pytest.mark.parametrize(("first", "second"), [(10, 10), (5, 5), (5, 10)])
def test_the_intervals_of_comparisons_cover_the_truth(first: int, second: int) -> None:
    random = np.random.default_rng(first * second)
    missed = {"probability": 0, "difference": 0, "ratio": 0}
    for _ in range(COUNT):
        x, y = random.normal(1, 1, first), random.normal(0, 1, second)
        chance = probability_of_improvement(x, y)
        missed["probability"] += not chance.low <= norm.cdf(1 / np.sqrt(2)) <= chance.high
        heights = (flat(random, first, 0.5).success[:, 0], flat(random, second, 0.3).success[:, 0])
        apart = difference(*heights)
        missed["difference"] += not apart.low <= 0.2 <= apart.high
        fast, slow = learning(random, first, 1000), learning(random, second, 2000)
        ratio = speedup(*(reach_summary(one.episodes, one.success, 0.5) for one in (slow, fast)))
        missed["ratio"] += not ratio.low <= 2 <= ratio.high
    assert max(missed.values()) <= binom.isf(0.001, COUNT, 0.05), missed
