"""Verdicts follow their rules: at the level, just below it, not long enough, and by areas whose order is known."""

from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import pytest

from butfor.analysis.claims import Claim, Curve, judge, judge_tables

EPISODES = np.array([1000, 2000, 3000, 4000])


def curve(*means: float, seeds: int = 6, spread: float = 0.0, episodes: int = 4) -> Curve:
    """Seeds around the given means, a fixed step apart."""
    offset = spread * np.linspace(-1, 1, seeds)[:, None]
    return Curve(EPISODES[:episodes], np.clip(np.array([means]) + offset, 0, 1), 4000)


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((0.2, 0.6, 0.95, 0.9), "reproduced"),
        ((0.2, 0.6, 0.86, 0.96), "partly"),  # 0.86 >= 0.9 x 0.95; the 0.96 comes too late
        ((0.2, 0.6, 0.85, 0.96), "not reproduced"),
    ],
)
def test_a_level_within_so_many_episodes(means: tuple[float, ...], expected: str) -> None:
    claim = Claim("95 % within 3,000.", "reaches", "ours", level=0.95, within=3000)
    verdict = judge(claim, {"ours": curve(*means)})
    assert verdict.verdict == expected
    assert f"{max(means[:3]):.2f}" in verdict.words
    assert "90 %" in claim.rule


def test_a_level_not_reached_by_a_run_that_was_cut_off_is_undecided() -> None:
    claim = Claim("95 % within 3,000.", "reaches", "ours", level=0.95, within=3000)
    assert judge(claim, {"ours": curve(0.2, 0.6, episodes=2)}).verdict == "undecided"
    assert judge(claim, {"ours": curve(0.2, 0.96, episodes=2)}).verdict == "reproduced"
    assert (
        judge(Claim("Soon.", "reaches", "ours", within=10), {"ours": curve(0.2, 0.6, 0.8, 0.9)}).verdict == "undecided"
    )


@pytest.mark.parametrize(
    ("slow", "factor", "expected", "said"),
    [
        ((0.1, 0.2, 0.3, 0.6), 4.0, "reproduced", "4.0 [4.0, 4.0] times"),  # 4,000 / 1,000
        ((0.1, 0.2, 0.6, 0.7), 4.0, "partly", "3.0 [3.0, 3.0] times"),
        ((0.6, 0.7, 0.8, 0.9), 4.0, "not reproduced", "1.0 [1.0, 1.0] times"),
        (
            (0.1, 0.2, 0.3, 0.4),
            4.0,
            "reproduced",
            "more than 4.0 [4.0, unbounded] times",
        ),  # never: at least 4,000 / 1,000
        (
            (0.1, 0.2, 0.3, 0.4),
            5.0,
            "undecided",
            "more than 4.0 [4.0, unbounded] times",
        ),  # a bound below the factor says nothing
    ],
)
def test_so_many_times_faster(slow: tuple[float, ...], factor: float, expected: str, said: str) -> None:
    claim = Claim("Faster.", "faster", "ours", "theirs", level=0.6, factor=factor)
    verdict = judge(claim, {"ours": curve(0.6, 0.7, 0.8, 0.9), "theirs": curve(*slow)})
    assert verdict.verdict == expected
    assert said in verdict.words


def test_the_faster_arm_must_get_there() -> None:
    claim = Claim("Faster.", "faster", "ours", "theirs", level=0.6, factor=2)
    ours, theirs = curve(0.1, 0.2, 0.3, 0.4), curve(0.1, 0.2, 0.3, 0.7)
    assert judge(claim, {"ours": ours, "theirs": theirs}).verdict == "not reproduced"  # theirs was there at 4,000
    assert judge(claim, {"ours": curve(0.1, 0.2, episodes=2), "theirs": theirs}).verdict == "undecided"
    assert judge(claim, {"ours": ours, "theirs": ours}).verdict == "undecided"


def test_a_factor_must_hold_for_the_interval_and_not_for_the_middle_alone() -> None:
    """Five seeds are there at 1,000 and five at 2,000, of the others all at 4,000: 2.7 times, between 2 and 4."""
    ours = Curve(EPISODES, np.array([[0.6, 0.7, 0.8, 0.9]] * 5 + [[0.1, 0.7, 0.8, 0.9]] * 5), 4000)
    theirs = curve(0.1, 0.2, 0.3, 0.7, seeds=10)
    for factor, expected in ((1.0, "reproduced"), (2.0, "reproduced"), (2.5, "partly")):
        verdict = judge(Claim("x", "faster", "a", "b", factor=factor), {"a": ours, "b": theirs})
        assert verdict.verdict == expected
        assert "2.7 [2.0, 4.0] times fewer" in verdict.words
        assert ("the paper says" in verdict.words) == (factor > 1)  # it names no factor where it says "faster"


def test_the_same_curve_is_not_faster() -> None:
    claim = Claim("Faster.", "faster", "ours", "theirs", level=0.6, factor=1)
    same = curve(0.1, 0.6, 0.7, 0.8)
    assert judge(claim, {"ours": same, "theirs": same}).verdict == "not reproduced"


@pytest.mark.parametrize("level", [0.6, 0.95])
def test_a_level_that_all_of_ten_seeds_have_is_reached(level: float) -> None:
    """The mean of ten times 0.6 is a little less than 0.6."""
    exact = Curve(EPISODES, np.full((10, 4), level), 4000)
    assert judge(Claim("x", "reaches", "a", level=level, within=1000), {"a": exact}).verdict == "reproduced"
    slow = curve(0.1, 0.1, 0.1, level, seeds=10)
    assert "4.0 [4.0, 4.0] times" in judge(Claim("x", "faster", "a", "b", level=level), {"a": exact, "b": slow}).words


def test_few_seeds_and_nothing_learned_decide_nothing() -> None:
    few = {"a": curve(0.8, 0.8, 0.8, 0.8, seeds=2), "b": curve(0.2, 0.2, 0.2, 0.2, seeds=2)}
    none = {"a": curve(0, 0, 0, 0, seeds=10), "b": curve(0, 0, 0, 0.05, seeds=10)}
    one = {"a": curve(0.8, 0.8, 0.8, 0.8), "b": curve(0.2, 0.2, 0.2, 0.2, seeds=4)}
    kinds: tuple[Literal["better", "on par", "faster"], ...] = ("better", "on par", "faster")
    for kind in kinds:
        claim = Claim("x", kind, "a", "b", level=0.6, factor=2)
        verdict = judge(claim, one)
        assert (verdict.verdict, verdict.words) == ("undecided", "b: fewer than 5 seeds.")
        assert "five seeds" in claim.rule
    verdict = judge(Claim("x", "reaches", "a", level=0.6, within=3000), few)
    assert (verdict.verdict, verdict.words) == ("undecided", "a: fewer than 5 seeds.")
    for curves, words in ((few, "fewer than 5 seeds"), (none, "neither has begun to learn")):
        for kind in kinds[:2]:
            verdict = judge(Claim("x", kind, "a", "b"), curves)
            assert verdict.verdict == "undecided"
            assert words in verdict.words


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"),
    [
        ("better", 0.8, 0.2, "reproduced"),
        ("better", 0.2, 0.8, "not reproduced"),
        ("better", 0.5, 0.5, "undecided"),
        ("on par", 0.8, 0.2, "reproduced"),
        ("on par", 0.5, 0.5, "undecided"),  # six seeds: the interval reaches below one fifth
        ("on par", 0.2, 0.8, "not reproduced"),
    ],
)
def test_areas_are_compared(kind: str, first: float, second: float, expected: str) -> None:
    """Spread 0.1 around 0.8 and 0.2 never overlaps: the probability is 1; equal samples have 0.5."""
    curves = {"a": curve(*[first] * 4, spread=0.1), "b": curve(*[second] * 4, spread=0.1)}
    verdict = judge(Claim("Compared.", kind, "a", "b"), curves)  # type: ignore[arg-type]
    assert verdict.verdict == expected
    assert f"{float(first > second) + 0.5 * (first == second):.2f} [" in verdict.words


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
    assert "up to 2,000 episodes" in judge(claim, {"ours": long, "theirs": short}).words
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
    with pytest.raises(ValueError, match=r"kind .*reaches"):
        Claim("?", "prettier", "ours")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="than"):
        Claim("?", "faster", "ours")
    with pytest.raises(ValueError, match="than"):
        Claim("?", "reaches", "ours", "theirs")


def row(name: str, auc: float, ap: float = 0.9, f1: float = 0.8) -> dict[str, Any]:
    return {"name": name, "title": name, "seeds": 5, "auc": {"mean": auc}, "ap": {"mean": ap}, "f1": {"mean": f1}}


def table(auc: float, paper: list[float] | None, *others: dict[str, Any]) -> dict[str, Any]:
    ours = {"paper": None if paper is None else {"auc": paper, "ap": [0.9], "f1": [0.8]}}
    return {"detectors": [*others, row("cai", auc) | ours]}


@pytest.mark.parametrize(
    ("auc", "expected"),
    [(0.966, "reproduced"), (0.964, "partly"), (0.88, "partly"), (0.85, "not reproduced")],  # 0.97 rounded; 0.9 x 0.97
)
def test_detection_is_held_against_the_papers_table(auc: float, expected: str) -> None:
    claim = Claim("CAI detects.", "detects", "slide")
    verdict = judge_tables(claim, [table(0.5, None), table(auc, [0.97, 0.0])])  # the exact label has no number
    assert verdict.verdict == expected
    assert verdict.measured
    assert f"AUC {auc:.2f} (paper: 0.97)" in verdict.words
    none = judge_tables(claim, [table(auc, None)])
    assert (none.verdict, none.measured) == ("undecided", False)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((0.9, 0.3, 0.7), "reproduced"),
        ((0.9, 0.85, 0.75), "partly"),  # has 90 % of all three
        ((0.99, 0.3, 0.3), "not reproduced"),  # is ahead in one
    ],
)
def test_no_other_detector_comes_near(other: tuple[float, float, float], expected: str) -> None:
    found = table(0.97, [0.97, 0.0], row("Nothing", 0.5, 0.1, 0.1), row("Other", *other))
    verdict = judge_tables(Claim("Alone.", "alone", "slide"), [found])
    assert verdict.verdict == expected
    assert "Other" in verdict.words or expected == "not reproduced"


@pytest.mark.parametrize(("factor", "expected"), [(0.5, "reproduced"), (0.55, "partly"), (0.6, "not reproduced")])
def test_one_number_is_so_many_times_another(factor: float, expected: str) -> None:
    claim = Claim("x", "times", "slide", factor=factor, measure="noise", row="much", reference="none")
    sides = {"noise": [{"title": "none", "ap": {"mean": 0.8}}, {"title": "much", "ap": {"mean": 0.4}}]}
    verdict = judge_tables(claim, [{"sides": sides}])
    assert verdict.verdict == expected
    assert "average precision: 0.40 (much) against 0.80 (none), 0.50 times as much" in verdict.words
    assert not judge_tables(claim, [{"sides": {"noise": sides["noise"][:1]}}]).measured
    with pytest.raises(ValueError, match="row"):
        Claim("x", "times", "slide", row="much")


def test_the_score_differs_more_than_the_label() -> None:
    """0, 1, 1 and 2 have a deviation of 0.71 of their mean, 1, 2, 2 and 3 one of 0.35."""
    wide, narrow = np.array([[0.0, 1.0], [1.0, 2.0]]), np.array([[1.0, 2.0], [2.0, 3.0]])
    for score, label, factor, expected in (
        (wide, narrow, 2.0, "reproduced"),
        (wide, narrow, 2.1, "partly"),
        (narrow, wide, 1.0, "not reproduced"),
    ):
        held = [{"heat_map": {"score": score, "label": label}}]
        assert judge_tables(Claim("x", "uneven", "a", factor=factor), held).verdict == expected
    verdict = judge_tables(Claim("x", "uneven", "a"), [{"heat_map": {"score": wide, "label": narrow}}])
    assert verdict.words == "a: 0.71 for CAI, 0.35 for the label, 2.00 times as much, one seed."
    assert not judge_tables(Claim("x", "uneven", "a"), [{"heat_map": {"score": wide, "label": 0 * wide}}]).measured
    assert not judge_tables(Claim("x", "uneven", "a"), [{"heat_map": {"score": wide}}]).measured


def test_the_score_follows_the_label_over_training() -> None:
    """A correlation of 1 by construction with the label, and of -1 with what is lifted."""
    score = np.array([[0.0, 1.0], [2.0, 3.0]])
    held = [{"heat_map": {"score": score, "label": 2 * score + 1, "lifted": np.array([1.0, 0.0])}}]
    assert judge_tables(Claim("x", "follows", "a", level=0.7, measure="label"), held).verdict == "reproduced"
    verdict = judge_tables(Claim("x", "follows", "a", level=0.7, measure="lifted"), held)
    assert (verdict.verdict, "is -1.00" in verdict.words) == ("not reproduced", True)
    assert not judge_tables(Claim("x", "follows", "a", measure="held"), held).measured
