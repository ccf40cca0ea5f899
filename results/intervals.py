"""Success of training runs with 95 % intervals over seeds, as a table in Markdown:

python results/intervals.py [--last EPISODES] LABEL=RUN ...

Below it, for each column, the pairs of runs whose intervals do not overlap.
"""

import argparse
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from butfor.analysis.statistics import mean_interval
from butfor.runs import read_curves

FEWEST = 5  # seeds; with fewer, the range of the seeds is given instead of an interval

Curve = dict[int, NDArray[np.float64]]
"""The success of each seed, by the number of episodes."""


def read_runs(runs: list[str], last: int | None = None) -> dict[str, Curve]:
    """Return the curves of LABEL=RUN ... by label, up to `last` episodes."""
    curves: dict[str, Curve] = {}
    for label, _, folder in (run.partition("=") for run in runs):
        episodes, _, found = read_curves(folder, ("success",))
        shown = [place for place, episode in enumerate(episodes) if last is None or episode <= last]
        curves[label] = {int(episodes[place]): found["success"][:, place] for place in shown}
    return curves


def interval(success: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over seeds, or the range of few seeds."""
    if len(success) < FEWEST:
        return float(success.min()), float(success.max())
    low, high = mean_interval(success)
    return float(low), float(high)


def main(runs: list[str], last: int | None) -> None:
    """Print the table and the pairs."""
    curves = read_runs(runs, last)
    columns = sorted({episode for curve in curves.values() for episode in curve})
    bounds = {(label, e): interval(values) for label, curve in curves.items() for e, values in curve.items()}
    print("| episodes | seeds |", " | ".join(map(str, columns)), "|")
    print("|---" * (len(columns) + 2) + "|")
    for label, curve in curves.items():
        seeds = len(next(iter(curve.values())))
        cells = [
            f"{curve[e].mean():.3f} [{bounds[label, e][0]:.3f}, {bounds[label, e][1]:.3f}]" if e in curve else ""
            for e in columns
        ]
        print(f"| {label} | {seeds} |", " | ".join(cells), "|")
    for episode in columns:
        known = [label for label, curve in curves.items() if episode in curve and len(curve[episode]) >= FEWEST]
        apart = [
            f"{one} / {other}"
            for one, other in combinations(known, 2)
            if bounds[one, episode][1] < bounds[other, episode][0]
            or bounds[other, episode][1] < bounds[one, episode][0]
        ]
        if len(known) > 1:
            print(f"\nno overlap at {episode}: {'; '.join(apart) or 'none'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN")
    parser.add_argument("--last", type=int, help="leave out evaluations after so many episodes")
    arguments = parser.parse_args()
    main(arguments.runs, arguments.last)
