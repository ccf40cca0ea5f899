"""Minutes and episodes until the seeds of training runs reach a level of success: python results/minutes.py RUN ...

Minutes are of simulation, updates, model and scoring; evaluation and start-up are not counted. A run of several seeds
trains them together: its minutes are those of all. Of a run that was resumed they are the sum over its processes.
"""

import argparse
from pathlib import Path

import numpy as np

from butfor.analysis.statistics import episodes_to_reach
from butfor.runs import read_curves
from butfor.runs.reading import read_object


def minutes(run: Path, level: float) -> dict[int, tuple[float, float]]:
    """Return by seed the episodes and the minutes until the first evaluation at the level; infinite where never."""
    episodes, seeds, found = read_curves(run, ("success", "seconds"))
    if not seeds:
        raise ValueError(f"{run} has no evaluation yet.")
    reached = episodes_to_reach(episodes, found["success"], level)
    clock = {int(at): second for at, second in zip(episodes, found["seconds"][0], strict=True)}  # alike for all seeds
    return {
        seed: (float(at), clock[int(at)] / 60 if np.isfinite(at) else np.inf)
        for seed, at in zip(seeds, reached, strict=True)
    }


def main(runs: list[Path], level: float) -> None:
    """Print a row of Markdown for each seed."""
    print(f"| run | machine | seed | episodes to {level:g} | minutes |\n|---|---|---|---|---|")
    for run in runs:
        versions = read_object(run / "versions.json")
        machine = f"{versions.get('device', '?')}, {versions.get('cores', '?')} cores"
        for seed, (at, needed) in minutes(run, level).items():
            cells = (f"{at:,.0f}", f"{needed:.1f}") if np.isfinite(at) else ("not reached", "–")
            print(f"| {run.name} | {machine} | {seed} | {' | '.join(cells)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--level", type=float, default=0.9, help="of success")
    given = parser.parse_args()
    main(given.runs, given.level)
