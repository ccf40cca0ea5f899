"""`butfor benchmark`: how well the default settings detect influence, mostly on environments of other packages."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from butfor.cli.console import live_progress, print_benchmark, print_next
from butfor.cli.options import Flag

Names = Annotated[
    tuple[str, ...], tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: all that are not held out)")
]


def benchmark(
    name: Annotated[Literal["defaults", "influence"], tyro.conf.Positional],
    /,
    tasks: Names = (),
    sizes: tuple[int, ...] = (2_000, 5_000, 15_000),
    seeds: int = 5,
    states: int = 3_000,
    detectors: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: all)")] = (),
    only_data: Flag = False,
    held_out: Flag = False,
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: runs/benchmark-NAME)")
    ] = None,
) -> None:
    """Measure how well influence is detected in states with exact labels: of the action, or between entities.

    The same command resumes an interrupted benchmark, or adds tasks and seeds to it.

    Args:
        name: defaults: `Influence.fit` with its default settings; influence: detectors of who moves whom, on pucks,
            push-two and stack-two
        tasks: environments
        sizes: transitions to fit on
        seeds: number of seeds; each has its own training data
        states: labelled states of each task of `influence`
        detectors: detectors of `influence` to measure; others can be added later
        only_data: write labelled states of `influence` in files of 10,000, and measure nothing
        held_out: also run the tasks of `defaults` that are set aside while the defaults are developed
        out: folder of the results and of the collected data
    """
    option, wanted = ("--held-out", held_out) if name == "influence" else ("--only-data", only_data)
    if wanted:
        raise ValueError(f"{option} is not an option of `butfor benchmark {name}`; leave it out.")
    out = out or Path("runs") / f"benchmark-{name}"
    if name == "influence" and only_data:
        from butfor.benchmarks.edges import LABELS, TASKS, write_labels

        with live_progress() as progress:
            files = write_labels(out, tasks or TASKS, states, progress)
        total = sum(file["states"] for file in files.values())
        print(f"Labelled states: {total:,} in {len(files)} files, listed in {out / 'labels' / LABELS}")
        return
    if name == "influence":
        _benchmark_edges(tasks, sizes, seeds, states, detectors, out)
        return
    from butfor.analysis.benchmark import read_benchmark
    from butfor.benchmarks.run import Settings, choose_tasks, run_benchmark
    from butfor.reporting.benchmark_page import write_benchmark_page

    chosen = choose_tasks(tasks, held_out)
    with live_progress() as progress:
        run_benchmark(out, chosen, Settings(sizes), seeds, progress)
    print_benchmark(read_benchmark(out))
    page = write_benchmark_page(out)
    print(f"Report: {page}")
    print_next(f"open {page} in a browser")


def _benchmark_edges(
    tasks: tuple[str, ...], sizes: tuple[int, ...], seeds: int, states: int, detectors: tuple[str, ...], out: Path
) -> None:
    """Run the benchmark of edges with each number of transitions, and print the means over seeds."""
    from butfor.analysis.edges import summarize_edges
    from butfor.benchmarks.edge_detectors import choose_detectors
    from butfor.benchmarks.edges import TASKS, run_edges
    from butfor.reporting.benchmark_page import write_edges_page

    chosen = choose_detectors(detectors)
    rows = []
    for size in sizes:
        with live_progress() as progress:
            rows = run_edges(out, tasks or TASKS, size, states, seeds, chosen, progress)
    print(f"{'task':<10} {'transitions':>11} {'detector':<12} {'AP':>6} {'AUC':>6} {'seeds':>5}")
    for found in summarize_edges(rows):
        print(
            f"{found['task']:<10} {found['transitions']:>11,} {found['detector']:<12} {found['ap']['mean']:>6.3f} "
            f"{found['auc']['mean']:>6.3f} {found['seeds']:>5}"
        )
        for steps, auc in found["within"].items():
            print(f"{'':<10} {'':>11} within {steps} steps: AUC {auc['mean']:.3f} of the action's influence")
    page = write_edges_page(out)
    print(f"Report: {page}")
    print_next(f"open {page} in a browser")
