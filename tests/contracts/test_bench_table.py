"""The table of `make bench` and the comparison of `make bench-check`, with made-up figures."""

import json
from pathlib import Path

import pytest
from bench_table import COMMITTED, NOISE, Row, find_worse, main, read_rows, render

SLOW = Row("update", 8.0, 4.0, "ms", "products", 0.85, processors=2)
FAST = Row("stepping", 3000.0, 1000.0, "env steps/s", "AsyncVectorEnv", processors=2)


def write(path: Path, *rows: Row) -> Path:
    path.write_text("".join(json.dumps(vars(row)) + "\n" for row in rows))
    return path


def test_a_ratio_is_higher_where_we_are_faster_in_times_and_in_rates() -> None:
    assert SLOW.ratio == 0.5
    assert FAST.ratio == 3.0


def test_the_table_has_a_line_per_item_with_ratio_and_goal() -> None:
    _, update, stepping = render([SLOW, FAST]).splitlines()
    assert update.split()[-2:] == ["0.50", "0.85"]
    assert stepping.split()[-1] == "3.00"


def test_of_rows_with_the_same_item_the_last_counts(tmp_path: Path) -> None:
    again = Row("update", 5.0, 4.0, "ms", "products")
    assert read_rows(write(tmp_path / "rows", SLOW, FAST, again)) == [again, FAST]


@pytest.mark.parametrize(
    ("before", "worse"),
    [
        (0.5, False),
        (0.3, False),  # it has become better
        (0.5 / (1 - NOISE) - 0.001, False),
        (0.5 / (1 - NOISE) + 0.001, True),
    ],
)
def test_only_what_is_worse_by_more_than_the_noise_fails(before: float, worse: bool, tmp_path: Path) -> None:
    committed = tmp_path / "ratios.json"
    committed.write_text(json.dumps({"2": {"update": before, "stepping": 3.0}}))
    rows = write(tmp_path / "rows", SLOW, FAST)
    assert main([str(rows)], committed) == 0
    assert main([str(rows), "--check"], committed) == int(worse)
    assert [problem.split(":")[0] for problem in find_worse([SLOW, FAST], {"update": before})] == ["update"] * worse


def test_an_item_that_was_not_measured_or_is_not_a_number_fails() -> None:
    assert len(find_worse([SLOW], {"update": 0.5, "stepping": 3.0})) == 1
    assert len(find_worse([Row("update", float("nan"), 4.0, "ms", "products")], {"update": 0.5})) == 1


def test_committing_writes_what_a_check_then_accepts(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows", SLOW, FAST)
    committed = tmp_path / "ratios.json"
    main([str(rows), "--commit"], committed)
    assert json.loads(committed.read_text()) == {"2": {"update": 0.5, "stepping": 3.0}}
    assert main([str(rows), "--check"], committed) == 0


def test_ratios_of_another_number_of_processors_are_not_compared(tmp_path: Path) -> None:
    committed = tmp_path / "ratios.json"
    committed.write_text(json.dumps({"16": {"update": 0.5, "stepping": 3.0}}))
    rows = write(tmp_path / "rows", SLOW, FAST)
    assert main([str(rows), "--check"], committed) == 1
    main([str(rows), "--commit"], committed)
    assert set(json.loads(committed.read_text())) == {"2", "16"}


def test_the_committed_ratios_are_positive_numbers() -> None:
    ratios = json.loads(COMMITTED.read_text())
    assert ratios
    assert all(ratio > 0 for by_item in ratios.values() for ratio in by_item.values())
