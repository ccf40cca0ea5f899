"""Verdicts on tables follow their rules: against the paper's numbers, by ratios, and by correlations given time."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from butfor.analysis.claims import Claim
from butfor.analysis.table_claims import given_time, judge_tables

EXACT = {"std": 0.001}  # over five seeds: a standard error of 0.0005


def row(name: str, auc: float, ap: float = 0.9, f1: float = 0.8, **more: Any) -> dict[str, Any]:
    numbers = {metric: {"mean": value} | EXACT for metric, value in (("auc", auc), ("ap", ap), ("f1", f1))}
    return {"name": name, "title": name, "seeds": 5} | numbers | more


def table(auc: float, paper: list[float] | None, *others: dict[str, Any], f1: float = 0.8) -> dict[str, Any]:
    quoted = {"paper": None if paper is None else {"auc": paper, "ap": [0.9], "f1": [0.8]}}
    return {"detectors": [*others, row("cai", auc, f1=f1) | quoted]}


@pytest.mark.parametrize(
    ("auc", "f1", "expected"),
    [
        (0.97, 0.8, "reproduced"),
        (0.965, 0.8, "reproduced"),  # within 0.01
        (0.96, 0.8, "undecided"),  # just at the tolerance
        (0.95, 0.8, "partly"),  # the others are reached
        (0.95, 0.7, "partly"),
    ],
)
def test_detection_is_held_against_the_papers_table(auc: float, f1: float, expected: str) -> None:
    claim = Claim("CAI detects.", "detects", "slide")
    verdict = judge_tables(claim, [table(0.5, None), table(auc, [0.97, 0.0], f1=f1)])  # the exact label has no number
    assert verdict.verdict == expected
    assert verdict.measured
    assert f"AUC {auc:.3f} (0.97)" in verdict.words
    none = judge_tables(claim, [table(auc, None)])
    assert (none.verdict, none.measured) == ("undecided", False)


def test_detection_that_misses_all_numbers_is_not_reproduced() -> None:
    low = row("cai", 0.5, 0.5, 0.5) | {"paper": {"auc": [0.97], "ap": [0.9], "f1": [0.8]}}
    assert judge_tables(Claim("x", "detects", "slide"), [{"detectors": [low]}]).verdict == "not reproduced"
    assert judge_tables(Claim("x", "detects", "slide"), [{"detectors": [low | {"seeds": 4}]}]).verdict == "undecided"


def test_the_verdict_on_the_table_tells_how_it_deviates() -> None:
    entropy = row("entropy", 0.8, paper={"auc": [0.9], "ap": [0.9], "f1": [0.8]})
    found = table(0.97, [0.97], entropy) | {"positive_share": 0.53, "paper_share": 0.45}
    words = judge_tables(Claim("x", "detects", "slide"), [found]).words
    assert "53.0% of the states are influenced (45.0%)" in words
    assert "entropy AUC 0.80 (0.90)" in words


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((0.9, 0.85, 0.75), "reproduced"),
        ((0.9, 0.3, 0.8), "undecided"),  # as good in one
        ((0.99, 0.3, 0.3), "not reproduced"),  # is ahead in one
    ],
)
def test_no_other_detector_of_the_paper_comes_near(other: tuple[float, float, float], expected: str) -> None:
    paper = {"auc": [0.9], "ap": [0.9], "f1": [0.8]}
    found = table(0.97, [0.97, 0.0], row("Nothing", 0.5, 0.1, 0.1, paper=paper), row("Other", *other, paper=paper))
    verdict = judge_tables(Claim("Alone.", "alone", "slide"), [found])
    assert verdict.verdict == expected
    assert "Other comes nearest" in verdict.words


def test_a_detector_that_is_not_in_the_paper_is_named_where_it_is_ahead() -> None:
    paper = {"auc": [0.9], "ap": [0.9], "f1": [0.8]}
    found = table(0.97, [0.97], row("Theirs", 0.5, 0.1, 0.1, paper=paper), row("Ours", 0.98, 0.1, 0.1))
    verdict = judge_tables(Claim("Alone.", "alone", "slide"), [found])
    assert verdict.verdict == "reproduced"
    assert "above CAI: Ours in AUC (0.980 against 0.970)" in verdict.words
    assert not judge_tables(Claim("x", "alone", "slide"), [table(0.97, [0.97])]).measured


@pytest.mark.parametrize(("factor", "expected"), [(0.48, "reproduced"), (0.5, "undecided"), (0.52, "not reproduced")])
def test_one_number_is_so_many_times_another(factor: float, expected: str) -> None:
    claim = Claim("x", "times", "slide", factor=factor, measure="noise", row="much", reference="none")
    sides = {"noise": [{"title": "none", "ap": {"mean": 0.8} | EXACT}, {"title": "much", "ap": {"mean": 0.4} | EXACT}]}
    held = {"sides": sides, "detectors": [row("cai", 0.9)]}
    verdict = judge_tables(claim, [held])
    assert verdict.verdict == expected
    assert "average precision: 0.40 (much) against 0.80 (none): 0.50 [0.50, 0.50] times" in verdict.words
    assert not judge_tables(claim, [held | {"sides": {"noise": sides["noise"][:1]}}]).measured
    with pytest.raises(ValueError, match="row"):
        Claim("x", "times", "slide", row="much")


def test_a_heat_map_of_one_seed_decides_nothing() -> None:
    """0, 1, 1 and 2 have a deviation of 0.71 of their mean, 1, 2, 2 and 3 one of 0.35."""
    wide, narrow = np.array([[0.0, 1.0], [1.0, 2.0]]), np.array([[1.0, 2.0], [2.0, 3.0]])
    verdict = judge_tables(Claim("x", "uneven", "a"), [{"heat_map": {"score": wide, "label": narrow}}])
    assert verdict.verdict == "undecided"
    assert "0.71 for CAI, 0.35 for the label, 2.00 times" in verdict.words
    assert not judge_tables(Claim("x", "uneven", "a"), [{"heat_map": {"score": wide, "label": 0 * wide}}]).measured
    assert not judge_tables(Claim("x", "uneven", "a"), [{"heat_map": {"score": wide}}]).measured
    score = np.array([[0.0, 1.0, 2.0], [2.0, 3.0, 7.0]])
    verdict = judge_tables(
        Claim("x", "follows", "a", measure="label"), [{"heat_map": {"score": score, "label": score}}]
    )
    assert verdict.verdict == "undecided"
    assert "correlation 1.00; 1.00 given step and time" in verdict.words
    assert not judge_tables(Claim("x", "follows", "a", measure="held"), [{"heat_map": {"score": score}}]).measured


def test_a_trend_that_all_seeds_share_is_no_correlation_given_time() -> None:
    """Both rise over time in all seeds; what is left of one seed belongs to another."""
    time, own = np.arange(8.0), np.eye(6)[:, [0, 1, 2, 3, 4, 5, 0, 1]]
    claim = Claim("x", "follows", "a", measure="lifted")
    other = np.roll(own, 1, axis=0)
    trend = [{"training": {"score": time + own, "lifted": time + other}}]
    verdict = judge_tables(claim, trend)
    assert verdict.verdict != "reproduced"
    assert "not given time 0.9" in verdict.words
    assert judge_tables(claim, [{"training": {"score": time + own, "lifted": own - time}}]).verdict == "reproduced"
    assert judge_tables(claim, [{"training": {"score": own[:4], "lifted": own[:4]}}]).verdict == "undecided"


def test_the_error_of_the_correlation_is_that_of_all_permutations_of_the_seeds() -> None:
    random = np.random.default_rng(0)
    score, other = random.normal(size=(5, 7)), random.normal(size=(5, 7))
    drawn = [given_time(score, other[list(order)])[0] for order in permutations(range(5))]
    assert np.mean(drawn) == pytest.approx(0, abs=1e-12)
    assert given_time(score, other)[1] == pytest.approx(np.std(drawn))
    assert given_time(score, 0 * other) == (0, np.inf)
