"""Verdicts on curves follow their rules: by counts of seeds and by ranks whose order is known.

test_verdict_rates.py has how often each rule is wrong.
"""

from dataclasses import asdict
from typing import Literal

import numpy as np
import pytest

from butfor.analysis.claims import Claim, Curve, Found, Verdict, decide_together, finding_of, judge, verdict_from
from butfor.analysis.table_claims import rule_of

EPISODES = np.array([1000, 2000, 3000, 4000])
COMPARED: tuple[Literal["better", "on par", "similar", "faster"], ...] = ("better", "on par", "similar", "faster")


def curve(*means: float, seeds: int = 6, spread: float = 0.0, episodes: int = 4) -> Curve:
    """Seeds around the given means, a fixed step apart."""
    offset = spread * np.linspace(-1, 1, seeds)[:, None]
    return Curve(EPISODES[:episodes], np.clip(np.array([means]) + offset, 0, 1), 4000)


@pytest.mark.parametrize(
    ("above", "expected"),
    [(10, "reproduced"), (9, "reproduced"), (8, "undecided"), (2, "undecided"), (1, "not reproduced")],
)  # two-sided p-values of the sign test: 0.002, 0.021, 0.109
def test_a_level_is_reached_by_most_seeds(above: int, expected: str) -> None:
    claim = Claim("95 % within 3,000.", "reaches", "ours", level=0.95, within=3000)
    seeds = np.array([[0.2, 0.6, 0.95, 0.9]] * above + [[0.2, 0.6, 0.94, 1.0]] * (10 - above))
    verdict = judge(claim, {"ours": Curve(EPISODES, seeds, 4000)})
    assert verdict.verdict == expected
    assert f"{above} of 10 seeds" in verdict.words
    assert "sign test" in rule_of(claim)


def test_a_level_not_reached_by_a_run_that_was_cut_off_is_undecided() -> None:
    claim = Claim("95 % within 3,000.", "reaches", "ours", level=0.95, within=3000)
    assert judge(claim, {"ours": curve(0.2, 0.6, episodes=2)}).verdict == "undecided"
    assert judge(claim, {"ours": curve(0.2, 0.96, episodes=2)}).verdict == "reproduced"
    soon = Claim("Soon.", "reaches", "ours", within=10)
    assert judge(soon, {"ours": curve(0.2, 0.6, 0.8, 0.9)}).verdict == "undecided"


def test_a_level_at_the_first_evaluation_is_not_growth() -> None:
    claim = Claim("It learns to lift.", "grows", "ours", within=3000, measure="lifted")
    for last, expected in ((0.3, "reproduced"), (0.1, "not reproduced")):
        assert judge(claim, {"ours": curve(0.2, 0.2, last, 0.9)}).verdict == expected
    assert judge(claim, {"ours": curve(0.2, 0.3, 0.4, 0.5, seeds=5)}).verdict == "undecided"  # 2 / 32 is too much
    assert judge(Claim("x", "grows", "ours", within=1500), {"ours": curve(0.2, 0.3, 0.4, 0.5)}).verdict == "undecided"


@pytest.mark.parametrize(
    ("slow", "factor", "expected", "said"),
    [
        ((0.1, 0.2, 0.3, 0.6), 1.4, "reproduced", "2.0 [1.5, 4.0] times"),  # 4,000 / 2,000, from 3,000 to 1,000
        ((0.1, 0.2, 0.3, 0.6), 1.6, "partly", "2.0 [1.5, 4.0] times"),  # above 1.6 is not shown
        ((0.1, 0.6, 0.7, 0.8), 2.1, "not reproduced", "1.0 [0.5, 2.0] times"),
        ((0.1, 0.6, 0.7, 0.8), 1.9, "undecided", "1.0 [0.5, 2.0] times"),
        ((0.1, 0.2, 0.3, 0.4), 1.9, "reproduced", "more than 2.0 [2.0, unbounded] times"),  # never within 4,000
        ((0.1, 0.2, 0.3, 0.4), 5.0, "partly", "more than 2.0 [2.0, unbounded] times"),  # a bound below the factor
    ],
)
def test_so_many_times_faster(slow: tuple[float, ...], factor: float, expected: str, said: str) -> None:
    claim = Claim("Faster.", "faster", "ours", "theirs", level=0.6, factor=factor)
    verdict = judge(claim, {"ours": curve(0.1, 0.7, 0.8, 0.9), "theirs": curve(*slow)})
    assert verdict.verdict == expected
    assert said in verdict.words
    assert f"The paper says {factor:g}" in verdict.words


@pytest.mark.parametrize(
    ("places", "expected"),
    [((10, 20), "reproduced"), ((10, 40), "partly"), ((10, 10), "not reproduced"), ((10, 14), "partly")],
)  # 2, 4, 1 and 1.4 times, where "roughly 2" is from 1.33 to 3
def test_roughly_a_factor_has_two_sides(places: tuple[int, int], expected: str) -> None:
    claim = Claim("Roughly twice.", "faster", "ours", "theirs", factor=2, roughly=True)
    episodes = np.arange(1000, 51_000, 1000)
    curves = [Curve(episodes, np.tile(np.arange(50) + 1 >= place, (6, 1)).astype(float), 50_000) for place in places]
    assert judge(claim, dict(zip(("ours", "theirs"), curves, strict=True))).verdict == expected


def test_the_faster_arm_must_get_there() -> None:
    claim = Claim("Faster.", "faster", "ours", "theirs", level=0.6, factor=2)
    ours, theirs = curve(0.1, 0.2, 0.3, 0.4), curve(0.1, 0.2, 0.3, 0.7)
    assert judge(claim, {"ours": ours, "theirs": theirs}).verdict == "not reproduced"  # theirs was there at 4,000
    assert judge(claim, {"ours": curve(0.1, 0.2, episodes=2), "theirs": theirs}).verdict == "undecided"
    assert judge(claim, {"ours": ours, "theirs": ours}).verdict == "undecided"
    early = curve(0.7, 0.7, 0.7, 0.7)
    zero = Curve(np.array([0, 1000, 2000, 3000]), early.success, 4000)
    assert judge(claim, {"ours": zero, "theirs": theirs}).verdict == "undecided"


def test_the_same_curve_is_not_faster_and_not_slower() -> None:
    claim = Claim("Faster.", "faster", "ours", "theirs", level=0.6, factor=1)
    same = curve(0.1, 0.6, 0.7, 0.8)
    assert judge(claim, {"ours": same, "theirs": same}).verdict == "undecided"


@pytest.mark.parametrize("level", [0.6, 0.95])
def test_a_level_that_all_of_ten_seeds_have_is_reached(level: float) -> None:
    """In single precision 0.6 is a little less than 0.6."""
    exact = Curve(EPISODES, np.full((10, 4), level, dtype=np.float32).astype(np.float64), 4000)
    assert judge(Claim("x", "reaches", "a", level=level, within=1000), {"a": exact}).verdict == "reproduced"
    slow = curve(0.1, 0.1, 0.1, level, seeds=10)
    assert (
        "4.0 [3.0, unbounded] times"
        in judge(Claim("x", "faster", "a", "b", level=level), {"a": exact, "b": slow}).words
    )


def test_few_seeds_and_nothing_learned_decide_nothing() -> None:
    none = {"a": curve(0, 0, 0, 0, seeds=10), "b": curve(0, 0, 0, 0.05, seeds=10)}
    one = {"a": curve(0.8, 0.8, 0.8, 0.8), "b": curve(0.2, 0.2, 0.2, 0.2, seeds=4)}
    for kind in COMPARED:
        verdict = judge(Claim("x", kind, "a", "b"), one)
        assert (verdict.verdict, verdict.words) == ("undecided", "b: fewer than 5 seeds.")
        assert judge(Claim("x", kind, "a", "b"), none).verdict == "undecided"
    few = judge(Claim("x", "reaches", "b", level=0.1, within=3000), one)
    assert (few.verdict, few.words) == ("undecided", "b: fewer than 5 seeds.")


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"),
    [
        ("better", 0.8, 0.2, "reproduced"),
        ("better", 0.2, 0.8, "not reproduced"),
        ("better", 0.5, 0.5, "undecided"),
        ("on par", 0.8, 0.2, "reproduced"),  # or better
        ("on par", 0.5, 0.5, "reproduced"),
        ("on par", 0.5, 0.6, "undecided"),  # just at the margin
        ("on par", 0.2, 0.8, "not reproduced"),
        ("similar", 0.5, 0.5, "reproduced"),
        ("similar", 0.6, 0.5, "undecided"),
        ("similar", 0.8, 0.2, "not reproduced"),
        ("similar", 0.2, 0.8, "not reproduced"),
    ],
)
def test_areas_are_compared(kind: str, first: float, second: float, expected: str) -> None:
    """Seeds spread by 0.04 around their means, so that a difference of 0.1 separates all of six from all of six."""
    curves = {"a": curve(*[first] * 4, spread=0.04), "b": curve(*[second] * 4, spread=0.04)}
    verdict = judge(Claim("Compared.", kind, "a", "b"), curves)  # type: ignore[arg-type]
    assert verdict.verdict == expected
    effect = (
        f"{float(first > second) + 0.5 * (first == second):.2f} [" if kind == "better" else f"{first - second:+.3f} ["
    )
    assert verdict.found is not None
    assert effect in verdict.found.effect


@pytest.mark.parametrize(("heights", "expected"), [((0.15, 0.15), "undecided"), ((0.25, 0.25), "reproduced")])
@pytest.mark.parametrize("kind", ["on par", "similar"])
def test_agents_that_have_hardly_learned_do_not_agree(
    kind: Literal["on par", "similar"], heights: tuple[float, float], expected: str
) -> None:
    """With areas of 0.15 an agent that learns nothing would nearly be within the margin of 0.1."""
    curves = {label: curve(*[height] * 4, spread=0.02) for label, height in zip("ab", heights, strict=True)}
    assert judge(Claim("x", kind, "a", "b"), curves).verdict == expected


@pytest.mark.parametrize(
    ("kind", "heights", "expected"),
    [
        ("on par", (0.19, 0.1), "reproduced"),
        ("on par", (0.1, 0.19), "undecided"),
        ("similar", (0.19, 0.1), "undecided"),
    ],
)
def test_who_is_better_is_on_par_however_little_was_learned(
    kind: Literal["on par", "similar"], heights: tuple[float, float], expected: str
) -> None:
    curves = {label: curve(*[height] * 4, spread=0.02) for label, height in zip("ab", heights, strict=True)}
    assert judge(Claim("x", kind, "a", "b"), curves).verdict == expected


def test_the_best_variant_counts_on_either_side() -> None:
    arms = {"low": curve(*[0.2] * 4, spread=0.04), "middle": curve(*[0.5] * 4, spread=0.04)}
    arms |= {"high": curve(*[0.8] * 4, spread=0.04)}
    for claim, expected in (
        (Claim("x", "better", "middle", "low", than_variants=("high",)), "not reproduced"),
        (Claim("x", "better", "low", "middle", variants=("high",)), "reproduced"),
        (Claim("x", "better", "high", "low", than_variants=("middle", "absent")), "reproduced"),
    ):
        verdict = judge(claim, arms)
        assert verdict.verdict == expected
        assert "best variants" in verdict.words
        assert all(label in verdict.words for label in (*claim.own, *claim.others))
    p = [judge(Claim("x", "better", "middle", "low", than_variants=more), arms).found for more in ((), ("high",))]
    assert [one.least for one in p if one] == pytest.approx([2 / 924, 2 * 2 / 924])  # 12 over 6; chosen from two


def test_only_shared_evaluations_count() -> None:
    """Up to 2,000 the second is ahead; that the first is far ahead later must not count."""
    curves = {"a": curve(0.1, 0.1, 0.9, 0.9, spread=0.05), "b": curve(0.4, 0.4, spread=0.05, episodes=2)}
    verdict = judge(Claim("Compared.", "better", "a", "b"), curves)
    assert verdict.verdict == "not reproduced"
    assert "2,000 episodes" in verdict.words
    assert judge(Claim("x", "better", "a", "b"), curves | {"b": curve(0.4, episodes=1)}).verdict == "undecided"


def test_a_comparison_is_so_far_only_where_an_arm_was_cut_off() -> None:
    """An arm that was to be played for longer than the other does not make it so."""
    claim, long = Claim("Better.", "better", "ours", "theirs"), curve(0.2, 0.6, 0.8, 0.9)
    short = Curve(EPISODES[:2], np.full((6, 2), 0.1), 2000)
    assert "Up to 2,000 episodes" in judge(claim, {"ours": long, "theirs": short}).words
    assert "so far" not in judge(claim, {"ours": long, "theirs": short}).words
    cut = Curve(EPISODES[:2], np.full((6, 2), 0.1), 3000)
    assert "(so far: 3,000 episodes are to be played)" in judge(claim, {"ours": long, "theirs": cut}).words


def test_what_is_not_measured_is_undecided_and_named() -> None:
    verdict = judge(Claim("Faster.", "faster", "ours", "theirs"), {"ours": curve(0.1, 0.2, 0.3, 0.4)})
    assert verdict.verdict == "undecided"
    assert "theirs: not measured yet" in verdict.words


def test_a_claim_survives_json_and_nonsense_is_refused() -> None:
    claim = Claim("Faster.", "faster", "ours", "theirs", factor=3)
    assert Claim(**asdict(claim)) == claim
    listed = Claim("Best.", "better", "ours", "theirs", than_variants=["others"])  # type: ignore[arg-type]
    assert listed.than_variants == ("others",)
    with pytest.raises(ValueError, match=r"kind .*reaches"):
        Claim("?", "prettier", "ours")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="than"):
        Claim("?", "faster", "ours")
    with pytest.raises(ValueError, match="than"):
        Claim("?", "reaches", "ours", "theirs")
    with pytest.raises(ValueError, match="variants"):
        Claim("?", "faster", "ours", "theirs", variants=("more",))


def test_claims_are_decided_together() -> None:
    """By Benjamini and Hochberg: of four, 0.04 is above 0.0375, and 0.02 is below 0.025."""

    def found(*pairs: tuple[str, float]) -> Verdict:
        return verdict_from(Found("", evidence=pairs))  # type: ignore[arg-type]

    alone = [found(("reproduced", p)) for p in (0.001, 0.02, 0.04, 0.9)]
    assert [one.verdict for one in alone] == ["reproduced"] * 3 + ["undecided"]
    together, size = decide_together([[one] for one in (*alone, Verdict("undecided", "not run", measured=False))])
    assert [one.verdict for (one,) in together] == ["reproduced"] * 2 + ["undecided"] * 3
    assert size == pytest.approx(0.025)
    graded = found(("reproduced", 0.03), ("partly", 0.001))  # the stronger finding needs its own p-value
    assert [one.verdict for (one,) in decide_together([[graded], [alone[3]]])[0]] == ["partly", "undecided"]
    assert decide_together([]) == ([], 0)


@pytest.mark.parametrize(
    ("p_values", "expected", "together"),
    [
        ((0.04, 0.04, 0.001), "reproduced reproduced reproduced", "reproduced"),  # each by its own p-value
        ((0.03, 0.2, 0.2), "undecided undecided undecided", "undecided"),  # the smallest of three is above 0.05 / 3
        ((0.04, 0.04, 0.04), "undecided undecided undecided", "undecided"),
        ((0.01, 0.02, 0.2), "reproduced reproduced undecided", "partly"),  # 0.05 / 3, then 0.05 / 2
        ((0.01, 0.03, 0.2), "reproduced undecided undecided", "partly"),
        ((0.01, None, None), "reproduced undecided undecided", "partly"),  # the others could not be tested
        ((-0.01, 0.01, 0.2), "not_reproduced reproduced undecided", "partly"),
        ((-0.01, 0.2, 0.2), "not_reproduced undecided undecided", "not reproduced"),
        ((-0.03, 0.2, 0.2), "undecided undecided undecided", "undecided"),
    ],
)
def test_a_claim_of_several_comparisons_needs_more_evidence_for_a_part(
    p_values: tuple[float | None, ...], expected: str, together: str
) -> None:
    """Holm's procedure, unless all hold; a negative number is the p-value of the contrary."""

    def verdict(p: float | None) -> Verdict:
        if p is None:
            return Verdict("undecided", "not run", measured=False)
        return verdict_from(Found("", evidence=((("reproduced" if p > 0 else "not reproduced"), abs(p)),)))

    (decided, _), _ = decide_together([[verdict(p) for p in p_values], [verdict(1e-9)]])
    assert [one.verdict for one in decided] == [one.replace("_", " ") for one in expected.split()]
    assert finding_of(decided) == together
