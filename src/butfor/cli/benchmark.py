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
    name: Annotated[Literal["defaults"], tyro.conf.Positional],
    /,
    tasks: Names = (),
    sizes: tuple[int, ...] = (2_000, 5_000, 15_000),
    seeds: int = 5,
    held_out: Flag = False,
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs/benchmark-defaults"),
) -> None:
    """Measure the default settings of the estimator: fit, score states with exact labels, compare with the distance.

    The same command resumes an interrupted benchmark, or adds tasks and seeds to it.

    Args:
        name: defaults: `Influence.fit` with its default settings
        tasks: environments
        sizes: transitions to fit on
        seeds: number of seeds; each has its own training data
        held_out: also run the tasks that are set aside while the defaults are developed
        out: folder of the results and of the collected data
    """
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
