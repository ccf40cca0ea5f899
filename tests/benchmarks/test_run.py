"""The loop of the benchmark: a unit from start to end, resuming, and what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.benchmarks import NUDGE, unit

from butfor.analysis.benchmark import read_results
from butfor.benchmarks import environments, run
from butfor.benchmarks.run import Settings, choose_tasks, run_benchmark
from butfor.runs.files import read_json
from butfor.runs.folder import append_metrics

SMALL = Settings(sizes=(200, 400), states=300)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Units are not fitted but noted: task, size, seed."""
    noted: list[tuple[str, int, int]] = []

    def measure(request: Any) -> dict[str, Any]:
        noted.append((Path(request.train).stem.split("-train-")[0], request.size, request.seed))
        return {name: value for name, value in unit().items() if name not in ("task", "size", "seed")}

    monkeypatch.setattr(run, "_measure_apart", measure)
    return noted


@pytest.mark.timeout(120)
def test_a_unit_from_start_to_end(tmp_path: Path) -> None:
    """The distance is exact in this task: the action matters within reach, and nowhere else."""
    seen: list[tuple[str, int, int]] = []
    folder = run_benchmark(
        tmp_path / "out", [NUDGE], Settings(sizes=(300,), states=800), 1, lambda *told: seen.append(told[:3])
    )
    (row,) = read_results(folder)
    assert (row["task"], row["size"], row["seed"], row["transitions"]) == ("nudge", 300, 0, 300)
    assert 0.1 < row["base_rate"] < 0.9
    assert row["detectors"]["distance"]["auc"] == 1
    assert row["detectors"]["contact"]["f1"] > 0.9  # it also counts a touch after the step
    assert row["detectors"]["cai"]["auc"] > 0.7  # chance would reach 0.5 ± 0.02
    assert row["fit_seconds"] > 0
    assert row["fit_cpu_seconds"] > 0
    assert row["peak_memory"] > row["memory_before"] > 50
    assert row["diagnosis"]["right"] == (row["diagnosis"]["trusted"] == (row["detectors"]["cai"]["auc"] >= 0.95))
    steps = [0, 16 * 800, 16 * 800 + 300]  # 800 states with 16 actions each, and the training data
    assert seen[:3] == [("simulated steps", done, steps[-1]) for done in steps]
    assert seen[3:] == [("transitions", 0, 300), ("transitions", 300, 300)]
    record = read_json(folder / "benchmark.json")
    assert record["settings"] == {"sizes": [300], "states": 800}
    assert record["versions"]["torch"]
    with np.load(folder / "data" / "nudge-test.npz") as test:
        assert len(test["label"]) == 800


def test_finished_units_are_skipped(tmp_path: Path, measured: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in its third unit, it resumes with that one; data are collected once for each seed."""

    def interrupt(*arguments: Any) -> None:
        if len(measured) == 3:
            raise KeyboardInterrupt
        append_metrics(*arguments)

    monkeypatch.setattr(run, "append_metrics", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(tmp_path / "out", [NUDGE], SMALL, 2)
    assert measured == [("nudge", 200, 0), ("nudge", 400, 0), ("nudge", 200, 1)]
    monkeypatch.setattr(run, "append_metrics", append_metrics)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "data").iterdir()}
    assert sorted(path.name for path in made) == ["nudge-test.npz", "nudge-train-0.npz", "nudge-train-1.npz"]
    measured.clear()
    told: list[Any] = []
    run_benchmark(tmp_path / "out", [NUDGE], SMALL, 2, lambda *words: told.append(words))
    assert measured == [("nudge", 200, 1), ("nudge", 400, 1)]
    assert told[0][:3] == ("transitions", 600, 1200)
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "data").iterdir()}
    found = [(row["size"], row["seed"]) for row in read_results(tmp_path / "out")]
    assert found == [(200, 0), (400, 0), (200, 1), (400, 1)]
    assert len(read_json(tmp_path / "out" / "benchmark.json")["versions"]["resumed"]) == 1


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path, measured: list[Any]) -> None:
    run_benchmark(tmp_path, [NUDGE], SMALL, 1)
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text()[:-20])
    measured.clear()
    run_benchmark(tmp_path, [NUDGE], SMALL, 1)
    assert measured == [("nudge", 400, 0)]
    assert [json.loads(line)["size"] for line in path.read_text().splitlines()] == [200, 400]


def test_another_benchmark_or_folder_is_refused(tmp_path: Path, measured: list[Any]) -> None:
    run_benchmark(tmp_path / "out", [NUDGE], SMALL, 1)
    with pytest.raises(FileExistsError, match=r"200, 400.*200, 500"):
        run_benchmark(tmp_path / "out", [NUDGE], Settings((200, 500), 300), 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="other"):
        run_benchmark(tmp_path / "other", [NUDGE], SMALL, 1)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]
    assert len(measured) == 2


@pytest.mark.timeout(60)
def test_a_unit_that_fails_stops_with_its_name(tmp_path: Path) -> None:
    """An object without columns cannot be fitted."""
    broken = dataclasses.replace(NUDGE, object=[7])
    with pytest.raises(OSError, match=r"nudge-train-0 with 200 .*7"):
        run_benchmark(tmp_path, [broken], SMALL, 1)
    assert read_results(tmp_path) == []


def test_which_tasks_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    aside = dataclasses.replace(NUDGE, name="aside", held_out=True)
    absent = dataclasses.replace(NUDGE, name="absent", package="no-such-package")
    monkeypatch.setattr(environments, "TASKS", {task.name: task for task in (NUDGE, aside)})
    assert choose_tasks() == [NUDGE]
    assert choose_tasks(held_out=True) == [NUDGE, aside]
    assert choose_tasks(["aside"], held_out=True) == [aside]
    with pytest.raises(ValueError, match="aside"):
        choose_tasks(["aside"])
    with pytest.raises(ValueError, match=r"frob.*nudge, aside"):
        choose_tasks(["frob", "nudge"])
    monkeypatch.setitem(environments.TASKS, "absent", absent)
    with pytest.raises(ImportError, match=r"absent needs no-such-package.*butfor\[benchmark\]"):
        choose_tasks()


@pytest.mark.parametrize("sizes", [(), (0, 5), (5, 5)])
def test_impossible_sizes(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sizes"):
        Settings(sizes)


@pytest.mark.parametrize("seeds", [0, 1001])
def test_impossible_numbers_of_seeds(seeds: int, tmp_path: Path) -> None:
    """Seed 1000 is that of the test states."""
    with pytest.raises(ValueError, match=f"{seeds}"):
        run_benchmark(tmp_path, [NUDGE], SMALL, seeds)
