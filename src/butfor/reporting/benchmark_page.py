"""The pages of `butfor benchmark`: how much data the default settings need, and which detectors find who moves whom."""

from pathlib import Path

import numpy as np

from butfor.analysis.benchmark import ENOUGH, Benchmark, read_benchmark
from butfor.analysis.edges import read_edges
from butfor.reporting.charts import Row, amount_charts
from butfor.reporting.page import render_page, write_page
from butfor.reporting.plotly_renderer import draw


def write_benchmark_page(folder: Path | str) -> Path:
    """Write index.html in the folder of a benchmark.

    Raises:
        FileNotFoundError: there is no benchmark in the folder.
        ValueError: a file of it cannot be read.
    """
    return write_page(Path(folder) / "index.html", render_benchmark(read_benchmark(folder)))


def render_benchmark(benchmark: Benchmark) -> str:
    """The page as text."""
    by_task: dict[str, list[Row]] = {}
    for row in benchmark.rows:
        by_task.setdefault(row["task"], []).append(row)
    lowest = {metric: lowest_value(benchmark.rows, metric) for metric in ENOUGH}
    figures = {
        f"amount-{place}": draw(*amount_charts(rows, lowest, ENOUGH), heights=(0.5, 0.5))
        for place, rows in enumerate(by_task.values())
    }
    return render_page(
        "benchmark.html.j2",
        {"figures": figures},
        benchmark=benchmark,
        tasks=by_task,
        commits=sorted({str(unit["commit"]) for unit in benchmark.units}),
        seeds=max((row["seeds"] for row in benchmark.rows), default=0),
    )


def write_edges_page(folder: Path | str) -> Path:
    """Write index.html in the folder of a benchmark of detectors of who moves whom.

    Raises:
        FileNotFoundError: there is no benchmark in the folder.
        ValueError: its results cannot be read.
    """
    rows = read_edges(folder)
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["transitions"]), []).append(row)
    commits = sorted({commit for row in rows for commit in row["commits"]})
    seeds = max((row["seeds"] for row in rows), default=0)
    text = render_page("edges.html.j2", {"figures": {}}, groups=groups, commits=commits, seeds=seeds)
    return write_page(Path(folder) / "index.html", text)


def lowest_value(rows: list[Row], metric: str) -> float:
    """Where the axis of a metric begins in the charts of all tasks: a tenth below the lowest value."""
    lows = [
        row["detectors"][name][metric]["low"]
        for row in rows
        for name in ("cai", "distance")
        if name in row["detectors"]
    ]
    return float(np.floor(10 * min(lows, default=0.0)) / 10)
