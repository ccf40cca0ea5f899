"""The results of `butfor benchmark influence` in numbers: means over seeds of each task and detector."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from butfor.analysis.statistics import mean_interval
from butfor.runs.reading import expected_form, read_metrics

RESULTS = "results.jsonl"
METRICS = ("ap", "mean_ap", "auc")
WITHIN = "auc_"  # begins the names of values for horizons


def read_edges(folder: Path | str) -> list[dict[str, Any]]:
    """Read a folder of the benchmark: a row for each task, number of transitions and detector.

    Raises:
        FileNotFoundError: there is no benchmark in the folder.
        ValueError: its results cannot be read.
    """
    path = Path(folder) / RESULTS
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} has no {RESULTS}; write it with `butfor benchmark influence --out {folder}`."
        )
    rows = read_metrics(folder, RESULTS)
    with expected_form(path):
        return summarize_edges(rows)


def summarize_edges(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds with intervals of 95 %, best detectors of a task first.

    A row has `task`, `transitions`, `detector`, `seeds`, `commits`, `rate` of true labels, the metrics, and `within`:
    the AUC of the action's influence by the number of steps.
    """
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["transitions"], row["detector"]), []).append(row)
    found = []
    for (task, transitions, detector), units in groups.items():
        steps = [int(name.removeprefix(WITHIN)) for name in units[0] if name.startswith(WITHIN)]
        found.append(
            {
                "task": task,
                "transitions": transitions,
                "detector": detector,
                "seeds": len(units),
                "commits": sorted({str(unit["commit"]) for unit in units if unit.get("commit")}),
                "rate": sum(unit["rate"] for unit in units) / len(units),
                **{metric: _interval([unit[metric] for unit in units]) for metric in METRICS},
                "within": {step: _interval([unit[f"{WITHIN}{step}"] for unit in units]) for step in steps},
            }
        )
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    return sorted(found, key=lambda row: (tasks.index(row["task"]), row["transitions"], -row["ap"]["mean"]))


def _interval(values: Sequence[float]) -> dict[str, float]:
    """Mean and 95 % interval over seeds."""
    low, high = mean_interval(np.array(values))
    return {"mean": float(np.mean(values)), "low": float(low), "high": float(high)}
