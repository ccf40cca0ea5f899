"""The benchmark's results: means and intervals over seeds, and the goals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.benchmarks import unit

from butfor.analysis.benchmark import judge_goals, read_benchmark, summarize_units


def test_a_row_for_each_task_and_size() -> None:
    units = [unit("b", 5_000, auc=0.9), unit("b", 2_000), unit("a"), unit("b", 5_000, seed=1, auc=0.8, right=False)]
    rows = summarize_units(units)
    assert [(row["task"], row["size"], row["seeds"]) for row in rows] == [
        ("b", 2_000, 1),
        ("b", 5_000, 2),
        ("a", 15_000, 1),
    ]
    found = rows[1]["detectors"]["cai"]["auc"]
    # Student's interval of log odds: the standard error is 0.05, the quantile of one degree of freedom 12.706
    reach = 12.706205 * 0.05 / (0.85 * 0.15)
    odds = np.log(0.85 / 0.15) + reach * np.array([-1, 1])
    assert [found["low"], found["mean"], found["high"]] == pytest.approx(
        [1 / (1 + np.exp(-odds[0])), 0.85, 1 / (1 + np.exp(-odds[1]))]
    )
    assert rows[1]["right"] == 1
    assert rows[1]["cai_right"] == 0.8
    assert rows[1]["fit_memory"] == 100


def met(*units: dict[str, Any]) -> list[bool | None]:
    return [goal.met for goal in judge_goals(summarize_units(units))]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"distance": 0.96}, 0),  # above AP, not above AUC
        ({"auc": 0.969}, 1),
        ({"ap": 0.92}, 1),
        ({"size": 5_000, "auc": 0.939}, 2),
        ({"moving": 0.94}, 3),
        ({"seconds": 91.0}, 4),
        ({"right": False}, 5),
    ],
)
def test_each_goal_can_be_missed(changes: dict[str, Any], place: int) -> None:
    good = [unit("good", moving=0.97), unit("good", 5_000, moving=0.97)]
    assert met(*good) == [True] * 6
    goals = judge_goals(summarize_units([*good, unit("bad", **changes)]))
    assert [goal.met for goal in goals] == [number != place for number in range(6)]
    assert len(goals[place].missed) == 1
    assert place == 5 or goals[place].missed[0].startswith("bad ")


def test_without_processor_time_the_time_passed_is_judged() -> None:
    before = {name: value for name, value in unit().items() if name != "fit_cpu_seconds"}
    assert [met(before | {"fit_seconds": seconds})[4] for seconds in (90.0, 91.0)] == [True, False]


def test_goals_that_nothing_was_measured_for() -> None:
    assert met(unit(size=2_000)) == [None, None, None, None, None, True]
    assert met() == [None] * 6
    assert met(unit(distance=None))[0] is None


def test_a_perfect_score_is_not_below_a_perfect_distance() -> None:
    assert met(unit(auc=1.0, ap=1.0, distance=1.0))[0] is True
    assert met(unit(auc=0.98, ap=0.98, distance=0.98))[0] is False


def test_a_folder_without_a_benchmark(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"benchmark\.json"):
        read_benchmark(tmp_path)


def test_a_damaged_row_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "benchmark.json").write_text('{"schema": 1, "settings": {}, "versions": {}}')
    (tmp_path / "results.jsonl").write_text('{"task": "a", "size": 1}\n')
    with pytest.raises(ValueError, match=r"results\.jsonl"):
        read_benchmark(tmp_path)
