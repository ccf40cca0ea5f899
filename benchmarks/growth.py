"""Time and memory of fit, score, graph, decide, a report and a comparison of runs, as their data grow tenfold.

python -m benchmarks.growth [--quick] [--out results/growth]   (writes growth.json and growth.svg)

Each job of each size has a process of its own. The seconds are processor time, which other load on the machine changes
little; the memory is what the job adds to that of its input. The exponent of the last tenfold step is 1 where the cost
grows in proportion to the data.
"""

import argparse
import json
import math
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._timing import describe
from butfor.influence.graph.pairs import GraphConfig
from butfor.influence.influence import Influence
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig
from butfor.reporting.study_page import write_comparison, write_report

SIZES = {  # rows of data; five sizes, four steps of ten
    "fit": (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    "score": (10, 100, 1_000, 10_000, 100_000),
    "graph": (10, 100, 1_000, 10_000, 100_000),
    "decide": (10, 100, 1_000, 10_000, 100_000),
    "report": (100, 1_000, 10_000, 100_000, 1_000_000),
    "compare": (100, 1_000, 10_000, 100_000, 1_000_000),
}
WHAT = {
    "fit": "Influence.fit, one epoch; rows are transitions",
    "score": "Influence.score; rows are states",
    "graph": "Influence.graph; rows are states",
    "decide": "Influence.decide; rows are states",
    "report": "the report of a training run; rows are rows of metrics",
    "compare": "the comparison of 4 training runs; rows are rows of metrics of all",
}
LINEAR = 1.15  # an exponent up to this counts as linear: caches and allocation cost a little
Job = Callable[[], Any]


def make_transitions(rows: int) -> tuple[np.ndarray, ...]:
    """A hand at column 0 pushes a cube at column 1 that it is near to; a ball at column 2 is pushed by the cube."""
    generator = np.random.default_rng(0)
    obs = generator.uniform(-1, 1, (rows, 3)).astype(np.float32)
    action = generator.uniform(-1, 1, (rows, 1)).astype(np.float32)
    near = np.abs(obs[:, 0] - obs[:, 1]) < 0.3
    touched = np.abs(obs[:, 1] - obs[:, 2]) < 0.3
    step = np.stack([0.1 * action[:, 0], 0.1 * near * action[:, 0], 0.05 * touched * obs[:, 1]], 1)
    return obs, action, (obs + step + 0.01 * generator.standard_normal(obs.shape)).astype(np.float32)


def fit(rows: int, folder: Path) -> Job:
    """One epoch of a small Gaussian network."""
    data = make_transitions(rows)
    return lambda: fit_small(data)


def fit_small(data: tuple[np.ndarray, ...], graph: bool = False) -> Any:
    fitting = FitConfig(batch_size=500, max_epochs=1)
    model: Any = GraphConfig(updates=50, motion_updates=50) if graph else ModelConfig(layers=2, width=64)
    entities = {"cube": [1], "ball": [2]}
    return Influence.fit(*data, entities, model=model, fitting=fitting, progress=False)


def score(rows: int, folder: Path) -> Job:
    """32 actions in every state."""
    influence = fit_small(make_transitions(2_000))
    obs = make_transitions(rows)[0]
    return lambda: influence.score(obs)


def graph(rows: int, folder: Path) -> Job:
    """Two entities and the action."""
    influence = fit_small(make_transitions(2_000), graph=True)
    obs = make_transitions(rows)[0]
    return lambda: influence.graph(obs)


def decide(rows: int, folder: Path) -> Job:
    """After a calibration on 1,000 free states."""
    influence = fit_small(make_transitions(2_000))
    influence.calibrate(free_obs=make_transitions(1_000)[0])
    obs = make_transitions(rows)[0]
    return lambda: influence.decide(obs)


def report(rows: int, folder: Path) -> Job:
    """The page of a training run with two seeds."""
    run = write_run(folder / "run", rows)
    return lambda: write_report(run)


def compare(rows: int, folder: Path) -> Job:
    """The page of four training runs with two seeds each."""
    runs = [write_run(folder / f"run{number}", rows // 4) for number in range(4)]
    return lambda: write_comparison(runs, folder / "comparison.html")


def write_run(folder: Path, rows: int) -> Path:
    """A training run of two seeds with made-up metrics."""
    folder.mkdir()
    config = {"env": "push", "use": ["priority"], "signal": "cai", "seeds": 2, "episodes": rows // 2}
    document = {"schema": 1, "kind": "training", "label": f"training-push-{folder.name}", "config": config}
    (folder / "config.json").write_text(json.dumps(document))
    (folder / "versions.json").write_text(json.dumps({"butfor": "0.1.0", "commit": "0", "device": "cpu", "cores": 2}))
    with (folder / "metrics.jsonl").open("w") as file:
        for episode in range(1, rows // 2 + 1):
            for seed in range(2):
                row = {"episode": episode, "seed": seed, "success": min(1.0, 2 * episode / rows), "critic_loss": 0.1}
                file.write(json.dumps(row) + "\n")
    summary = {"schema": 1, "finished": True, "played": rows // 2, "seconds": {"total": 100.0}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


JOBS: dict[str, Callable[[int, Path], Job]] = {
    "fit": fit, "score": score, "graph": graph, "decide": decide, "report": report, "compare": compare,
}  # fmt: skip


def peak() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measure(name: str, rows: int) -> dict[str, Any]:
    """Run a job once, after a small one that loads what is loaded on first use."""
    with tempfile.TemporaryDirectory() as first:
        JOBS[name](SIZES[name][0], Path(first))()
    with tempfile.TemporaryDirectory() as folder:
        job = JOBS[name](rows, Path(folder))
        before, began = peak(), time.process_time()
        job()
        return {"job": name, "rows": rows, "seconds": time.process_time() - began, "megabytes": peak() - before}


def measure_apart(name: str, rows: int) -> dict[str, Any]:
    """`measure` in a process of its own, so that the memory of one job is not that of another."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(measure, (name, rows))


def exponent(results: Sequence[dict[str, Any]]) -> float:
    """By which power the seconds grew in the last step."""
    last, other = results[-1], results[-2]
    return math.log(last["seconds"] / other["seconds"]) / math.log(last["rows"] / other["rows"])


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Seconds and memory by rows, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    for name, results in found.items():
        rows = [result["rows"] for result in results]
        axes[0].loglog(rows, [result["seconds"] for result in results], "o-", label=name)
        axes[1].loglog(rows, [max(result["megabytes"], 0.1) for result in results], "o-", label=name)
    lowest, highest = axes[0].get_ylim()
    ends = np.array([1e3, 1e6])
    axes[0].loglog(ends, ends * 1e-5, "k:", label="linear")
    axes[0].set_ylim(lowest, highest)
    for axis, title in zip(axes, ("processor seconds", "MB beyond the input"), strict=True):
        axis.set_xlabel("rows of data")
        axis.set_title(title)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the three smallest sizes")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which nothing is begun")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.svg")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # before the first fork: threads do not survive one
    began = time.perf_counter()
    print(describe("cpu"))
    print(f"{'job':<10}{'rows':>12}{'CPU s':>10}{'MB':>9}{'us/row':>10}")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SIZES}
    for step in range(3 if options.quick else 5):
        for name, sizes in SIZES.items():
            if time.perf_counter() - began > options.limit:
                continue
            rows = sizes[step]
            result = measure_apart(name, rows)
            found[name].append(result)
            seconds, megabytes = result["seconds"], result["megabytes"]
            print(f"{name:<10}{rows:>12,}{seconds:>10.2f}{megabytes:>9.0f}{1e6 * seconds / rows:>10.1f}", flush=True)
    print("exponent of the last tenfold step; 1 is linear")
    for name, results in found.items():
        power = exponent(results) if len(results) > 1 else math.nan
        print(f"  {name:<10}{power:>6.2f}  {'worse than linear  ' if power > LINEAR else ''}{WHAT[name]}")
    if options.out:
        content = {"measured": describe("cpu"), "what": WHAT, "results": found}
        options.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
        draw(found, options.out.with_suffix(".svg"))


if __name__ == "__main__":
    main(sys.argv[1:])
