"""The results of `butfor benchmark defaults` in numbers: means over seeds, and whether the goals are met."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from butfor.analysis.statistics import mean_interval
from butfor.runs.reading import expected_form, read_metrics, read_object

Row = dict[str, Any]
RESULTS = "results.jsonl"
METRICS = ("auc", "ap", "f1")
LARGE = 15_000  # transitions, for which most goals are stated
SMALL = 5_000
ENOUGH = {"auc": 0.97, "ap": 0.93}  # with LARGE transitions


@dataclass(frozen=True)
class Goal:
    """One goal of the default settings; `met` is None where nothing was measured for it."""

    words: str
    met: bool | None
    missed: tuple[str, ...]  # what does not meet it, with numbers


@dataclass(frozen=True)
class Benchmark:
    """What a benchmark's folder contains: settings, versions, a row for each unit, and one for each task and size."""

    settings: Row
    versions: Row
    units: list[Row]
    rows: list[Row]
    goals: list[Goal]


def read_results(folder: Path | str) -> list[Row]:
    """Return a row for each finished unit of a benchmark."""
    return read_metrics(folder, RESULTS) if (Path(folder) / RESULTS).is_file() else []


def read_benchmark(folder: Path | str) -> Benchmark:
    """Read a benchmark's folder.

    Raises:
        FileNotFoundError: there is no benchmark in the folder.
        ValueError: a file of it cannot be read.
    """
    record = read_object(Path(folder) / "benchmark.json")
    units = read_results(folder)
    with expected_form(Path(folder) / RESULTS):
        rows = summarize_units(units)
        return Benchmark(record["settings"], record["versions"], units, rows, judge_goals(rows))


def summarize_units(units: Sequence[Row]) -> list[Row]:
    """Return one row for each task and size, in the order of the tasks' first units: means over seeds."""
    tasks = list(dict.fromkeys(unit["task"] for unit in units))
    keys = sorted({(tasks.index(unit["task"]), unit["size"]) for unit in units})
    return [
        _summarize([unit for unit in units if (unit["task"], unit["size"]) == (tasks[place], size)])
        for place, size in keys
    ]


def _summarize(units: Sequence[Row]) -> Row:
    """Summarise the units of one task and size."""
    first = units[0]
    moving = [unit["moving"] for unit in units if unit["moving"]]
    differing = [unit["disagreement"] for unit in units if unit["disagreement"]]
    states = sum(one["states"] for one in differing)
    return {
        **{name: first[name] for name in ("task", "size", "held_out", "base_rate", "states")},
        "seeds": len(units),
        "detectors": _over_seeds([unit["detectors"] for unit in units]),
        "moving": _over_seeds([one["detectors"] for one in moving]) if moving else None,
        "disagreement": float(np.mean([one["share"] for one in differing])) if differing else None,
        "cai_right": sum(one["cai_right"] for one in differing) / states if states else None,
        "fit_seconds": float(np.mean([unit["fit_seconds"] for unit in units])),
        "cpu_seconds": float(np.mean([_cpu_seconds(unit) for unit in units])),
        "slowest": max(_cpu_seconds(unit) for unit in units),
        "peak_memory": max(unit["peak_memory"] for unit in units),
        "fit_memory": max(unit["peak_memory"] - unit["memory_before"] for unit in units),
        "trusted": sum(unit["diagnosis"]["trusted"] for unit in units),
        "right": sum(unit["diagnosis"]["right"] for unit in units),
    }


def _cpu_seconds(unit: Row) -> float:
    """Processor time of a fit; of units measured before it was, the time passed."""
    return float(unit["fit_cpu_seconds" if "fit_cpu_seconds" in unit else "fit_seconds"])


def _over_seeds(found: Sequence[Mapping[str, Mapping[str, float]]]) -> Row:
    """Return the mean of each metric of each detector, with its 95 % interval."""
    summary: Row = {}
    for name in found[0]:
        summary[name] = {}
        for metric in METRICS:
            values = np.array([one[name][metric] for one in found])
            low, high = mean_interval(values)
            summary[name][metric] = {"mean": float(values.mean()), "low": float(low), "high": float(high)}
    return summary


def judge_goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals of the default settings, judged by means over seeds."""
    large = [row for row in rows if row["size"] == LARGE]
    small = [row for row in rows if row["size"] == SMALL]
    compared = [row for row in large if "distance" in row["detectors"]]
    moving = [row for row in large if row["moving"]]
    units = sum(row["seeds"] for row in rows)
    right = sum(row["right"] for row in rows)
    often = right >= 0.9 * units

    def auc(row: Row, states: str = "detectors", detector: str = "cai") -> float:
        return float(row[states][detector]["auc"]["mean"])

    def ap(row: Row, detector: str = "cai") -> float:
        return float(row["detectors"][detector]["ap"]["mean"])

    return [
        _judge(
            f"AUC and AP are above those of the distance with {LARGE:,} transitions.",
            compared,
            lambda row: _above(auc(row), auc(row, detector="distance")) and _above(ap(row), ap(row, "distance")),
            lambda row: (
                f"AUC {auc(row):.3f}, distance {auc(row, detector='distance'):.3f}; "
                f"AP {ap(row):.3f}, distance {ap(row, 'distance'):.3f}"
            ),
        ),
        _judge(
            f"AUC is at least {ENOUGH['auc']} and AP at least {ENOUGH['ap']} with {LARGE:,} transitions.",
            large,
            lambda row: auc(row) >= ENOUGH["auc"] and ap(row) >= ENOUGH["ap"],
            lambda row: f"AUC {auc(row):.3f}, AP {ap(row):.3f}",
        ),
        _judge(
            f"AUC is at least 0.94 with {SMALL:,} transitions.",
            small,
            lambda row: auc(row) >= 0.94,
            lambda row: f"AUC {auc(row):.3f}",
        ),
        _judge(
            f"Where an object that also moves by itself is moving, AUC is at least 0.95 with {LARGE:,} transitions.",
            moving,
            lambda row: auc(row, "moving") >= 0.95,
            lambda row: f"AUC {auc(row, 'moving'):.3f}",
        ),
        _judge(
            f"Every fit with {LARGE:,} transitions takes at most 90 s of processor time.",
            large,
            lambda row: row["slowest"] <= 90,
            lambda row: f"{row['slowest']:.0f} s",
        ),
        Goal(
            "The diagnosis is right about 90 % of the fits: it trusts those with an AUC of 0.95 or more, no others.",
            often if units else None,
            () if often else (f"right about {right} of {units}",),
        ),
    ]


def _judge(words: str, rows: Sequence[Row], meets: Callable[[Row], bool], shown: Callable[[Row], str]) -> Goal:
    """Judge a goal that every row must meet."""
    missed = tuple(f"{row['task']} ({shown(row)})" for row in rows if not meets(row))
    return Goal(words, not missed if rows else None, missed)


def _above(value: float, other: float) -> bool:
    """Whether a value is larger; 1 counts as larger than 1, as nothing is above it."""
    return value > other or value == 1
