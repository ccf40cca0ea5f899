"""Print the table of a benchmark of the defaults in Markdown, and draw its learning curves as one SVG:

python results/benchmark_table.py FOLDER

FOLDER is one of `butfor benchmark defaults`; the picture is its curves.svg. Lines are means over seeds.
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from butfor.analysis.benchmark import read_benchmark

COLOURS = {"cai": "#0072b2", "distance": "#d55e00"}  # safe for colour-blind readers
TITLES = {"auc": "AUC", "ap": "average precision"}


def main(folder: Path) -> None:
    """Print and draw."""
    benchmark = read_benchmark(folder)
    print(table(benchmark.rows))
    for goal in benchmark.goals:
        verdict = "not measured" if goal.met is None else "met" if goal.met else "not met"
        print(f"- {verdict}: {goal.words} {'; '.join(goal.missed)}")
    draw(benchmark.rows, folder / "curves.svg")


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each task and number of transitions."""
    lines = [
        "| task | transitions | n | AUC / AP | distance | moving: AUC | differ, CAI right | CPU s | diagnosis right |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        moving = row["moving"]
        differ = "" if row["disagreement"] is None else f"{row['disagreement']:.0%}, {row['cai_right'] or 0:.0%}"
        cells = [
            row["task"],
            f"{row['size']:,}",
            str(row["seeds"]),
            pair(row["detectors"]["cai"]),
            pair(row["detectors"]["distance"]) if "distance" in row["detectors"] else "",
            f"{moving['cai']['auc']['mean']:.3f}" if moving else "",
            differ,
            f"{row['cpu_seconds']:.0f}",
            f"{row['right']} of {row['seeds']}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def pair(found: dict[str, dict[str, float]]) -> str:
    """Mean AUC and average precision."""
    return " / ".join(f"{found[metric]['mean']:.3f}" for metric in TITLES)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A column for each task, a row for each metric."""
    plt.rcParams["svg.hashsalt"] = "butfor"  # the same file from the same numbers
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = plt.subplots(
        2, len(tasks), figsize=(2.2 * len(tasks), 4.4), sharex=True, sharey="row", squeeze=False
    )
    for column, task in enumerate(tasks):
        chosen = [row for row in rows if row["task"] == task]
        for line, (metric, title) in enumerate(TITLES.items()):
            axis = axes[line][column]
            for name, colour in COLOURS.items():
                known = [row for row in chosen if name in row["detectors"]]
                values = [row["detectors"][name][metric]["mean"] for row in known]
                axis.plot([row["size"] for row in known], values, color=colour, marker="o", markersize=3, label=name)
            axis.set(xscale="log", xticks=[2_000, 5_000, 15_000], xticklabels=["2k", "5k", "15k"])
            axis.minorticks_off()
            axis.grid(color="#dddddd")
            if column == 0:
                axis.set_ylabel(title)
        axes[0][column].set_title(task, fontsize=9)
        axes[1][column].set_xlabel("transitions")
    axes[1][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
