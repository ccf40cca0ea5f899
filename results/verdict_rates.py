"""How often each rule gives each verdict, and how often intervals cover the truth, by simulation.

docs/results-rules.md shows these numbers; tests/analysis/test_verdict_rates.py simulates them again. Simulated runs are
those of tests/support/simulated_claims.py.
"""

from dataclasses import dataclass

Percent = tuple[int, int, int]


@dataclass(frozen=True)
class Rates:
    """Percentages of 1,000 simulated experiments: reproduced, partly, not reproduced; the rest is undecided."""

    kind: str
    words: str
    """what is true"""
    truth: float
    ten: Percent
    """with ten seeds"""
    five: Percent
    """with five seeds"""
    factor: float = 1.0
    false: tuple[str, ...] = ()
    """findings that are wrong"""
    variants: int = 0
    """further variants of the other arm, as good as it"""
    roughly: bool = False
    """the claimed factor may also not be much larger"""
    height: float = 0.45
    """area of the other arm, where areas are compared"""


@dataclass(frozen=True)
class Several:
    """The same percentages for a claim of several comparisons of kind "better", between arms of their own."""

    words: str
    """what is true"""
    ratios: tuple[float, ...]
    """how many times faster the first arm of each comparison is"""
    ten: Percent
    five: Percent
    false: tuple[str, ...]


BOTH = ("reproduced", "not reproduced")
SOME = ("reproduced", "partly")
RATES = [
    Rates("better", "no difference", 1, (3, 0, 3), (2, 0, 1), false=BOTH),
    Rates("better", "1.5 times faster", 1.5, (64, 0, 0), (30, 0, 0), false=("not reproduced",)),
    Rates("better", "1.5 times slower", 2 / 3, (0, 0, 69), (0, 0, 31), false=("reproduced",)),
    Rates("better", "no difference to each of 5 variants", 1, (0, 0, 2), (0, 0, 2), false=BOTH, variants=4),
    Rates(
        "better",
        "1.5 times faster than each of 5 variants",
        1.5,
        (44, 0, 0),
        (11, 0, 0),
        false=("not reproduced",),
        variants=4,
    ),
    Rates(
        "better",
        "1.5 times slower than each of 5 variants",
        2 / 3,
        (0, 0, 85),
        (0, 0, 45),
        false=("reproduced",),
        variants=4,
    ),
    Rates("faster", "no difference, claimed factor 2", 1, (0, 1, 83), (0, 0, 49), 2, SOME),
    Rates("faster", "1.5 times faster, claimed factor 2", 1.5, (0, 36, 18), (0, 18, 8), 2, ("reproduced",)),
    Rates("faster", "2 times faster, claimed factor 2", 2, (0, 84, 0), (1, 47, 1), 2, BOTH),
    Rates("faster", "3 times faster, claimed factor 2", 3, (36, 57, 0), (18, 41, 0), 2, ("not reproduced",)),
    Rates("faster", "1.5 times slower, claimed factor 2", 2 / 3, (0, 0, 93), (0, 0, 59), 2, SOME),
    Rates("faster", "no difference, claimed roughly 2", 1, (0, 1, 16), (0, 0, 8), 2, SOME, roughly=True),
    Rates("faster", "1.33 times faster, claimed roughly 2", 4 / 3, (0, 15, 0), (0, 7, 0), 2, BOTH, roughly=True),
    Rates(
        "faster", "2 times faster, claimed roughly 2", 2, (5, 79, 0), (0, 47, 0), 2, ("not reproduced",), roughly=True
    ),
    Rates("faster", "3 times faster, claimed roughly 2", 3, (0, 93, 0), (0, 59, 0), 2, BOTH, roughly=True),
    Rates("on par", "no difference", 0, (94, 0, 0), (57, 0, 0), false=("not reproduced",)),
    Rates("on par", "worse by the margin", -0.1, (2, 0, 2), (2, 0, 1), false=BOTH),
    Rates("on par", "worse by 0.2", -0.2, (0, 0, 93), (0, 0, 58), false=("reproduced",)),
    Rates("on par", "no difference, hardly learned", 0, (3, 0, 0), (3, 0, 0), false=("not reproduced",), height=0.12),
    Rates("on par", "worse by 0.05, hardly learned", -0.05, (0, 0, 0), (0, 0, 0), false=BOTH, height=0.12),
    Rates(
        "on par", "better by 0.08, hardly learned", 0.08, (83, 0, 0), (47, 0, 0), false=("not reproduced",), height=0.07
    ),
    Rates("similar", "no difference", 0, (88, 0, 0), (29, 0, 0), false=("not reproduced",)),
    Rates("similar", "worse by the margin", -0.1, (2, 0, 2), (1, 0, 1), false=BOTH),
    Rates("similar", "better by the margin", 0.1, (3, 0, 3), (1, 0, 2), false=BOTH),
    Rates("similar", "worse by 0.2", -0.2, (0, 0, 93), (0, 0, 58), false=("reproduced",)),
    Rates("reaches", "half of the seeds get there", 0.5, (1, 0, 1), (0, 0, 0), false=BOTH),
    Rates("reaches", "19 of 20 seeds get there", 0.95, (91, 0, 0), (0, 0, 0), false=("not reproduced",)),
    Rates("reaches", "1 of 10 seeds gets there", 0.1, (0, 0, 74), (0, 0, 0), false=("reproduced",)),
    Rates("grows", "half of the seeds grow", 0.5, (1, 0, 1), (0, 0, 0), false=BOTH),
    Rates("grows", "19 of 20 seeds grow", 0.95, (91, 0, 0), (0, 0, 0), false=("not reproduced",)),
    Rates("grows", "1 of 10 seeds grows", 0.1, (0, 0, 74), (0, 0, 0), false=("reproduced",)),
    Rates("detects", "one number is lower by the tolerance", -0.01, (2, 1, 0), (2, 1, 0), false=BOTH),
    Rates("detects", "all numbers are above the paper's", 0.005, (100, 0, 0), (99, 0, 0), false=("not reproduced",)),
    Rates("detects", "one number is lower by 0.03", -0.03, (0, 100, 0), (0, 100, 0), false=("reproduced",)),
    Rates("alone", "another detector is as good in one number", 0, (2, 0, 0), (1, 0, 0), false=BOTH),
    Rates("alone", "CAI is ahead by 0.03 or more", -0.03, (100, 0, 0), (100, 0, 0), false=("not reproduced",)),
    Rates("alone", "another detector is ahead by 0.03", 0.03, (0, 0, 100), (0, 0, 100), false=("reproduced",)),
    Rates("times", "exactly the claimed ratio", 1, (3, 0, 2), (2, 0, 2), 0.5, BOTH),
    Rates("times", "5 % more than claimed", 1.05, (100, 0, 0), (100, 0, 0), 0.5, ("not reproduced",)),
    Rates("times", "5 % less than claimed", 0.95, (0, 0, 100), (0, 0, 100), 0.5, ("reproduced",)),
    Rates("follows", "only a common trend", 0, (1, 0, 2), (0, 0, 0), false=BOTH),
    Rates("follows", "a correlation given time of 0.7", 1.5, (85, 0, 0), (33, 0, 0), false=("not reproduced",)),
]
ANY = ("reproduced", "partly", "not reproduced")
SEVERAL = [
    Several("no difference in any of 3 comparisons", (1,) * 3, (0, 2, 2), (0, 3, 3), ANY),
    Several("no difference in any of 6 comparisons", (1,) * 6, (0, 3, 2), (0, 2, 2), ANY),
    Several("2 times faster in 1 of 3 comparisons", (2, 1, 1), (0, 78, 0), (0, 49, 1), BOTH),
    Several("2 times slower in 1 of 3 comparisons", (0.5, 1, 1), (0, 3, 74), (0, 3, 46), SOME),
    Several("2 times faster in all of 3 comparisons", (2, 2, 2), (72, 27, 0), (17, 71, 0), ("not reproduced",)),
]

# By what the success of a seed is like: how often, in percent of 4,000 samples of 5, 10 and 20 seeds, the interval
# covers the mean, and the interquartile mean.
COVERAGE: dict[str, tuple[Percent, Percent]] = {
    "around one half": ((96, 95, 95), (94, 94, 94)),
    "around 0.77": ((96, 95, 95), (93, 93, 94)),
    "near 1": ((95, 95, 95), (89, 95, 94)),
    "near 0": ((96, 95, 95), (89, 94, 95)),
    "at 0 or 1": ((96, 97, 96), (93, 95, 95)),
    "mostly 0, some high": ((91, 92, 93), (86, 93, 93)),
    "three of ten seeds fail": ((85, 96, 96), (86, 84, 74)),
    "one of ten seeds fails": ((75, 70, 87), (92, 95, 93)),
}
