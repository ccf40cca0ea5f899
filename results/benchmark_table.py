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
    """Two tables with a row for each task: AUC / AP by number of transitions, and details of the largest number."""
    sizes = sorted({row["size"] for row in rows})
    by_task = {row["task"]: [one for one in rows if one["task"] == row["task"]] for row in rows}
    curves = [f"| task | n | {' | '.join(f'{size:,}' for size in sizes)} | distance | diagnosis right |"]
    details = ["| task | moving: AUC | differ | CAI right there | CPU s |"]
    curves.append("|---" * (4 + len(sizes)) + "|")
    details.append("|---" * 5 + "|")
    for task, found in by_task.items():
        last = found[-1]
        scores = [pair(row["detectors"]["cai"]) for row in found]
        distance = pair(last["detectors"]["distance"]) if "distance" in last["detectors"] else ""
        right = f"{sum(row['right'] for row in found)} of {sum(row['seeds'] for row in found)}"
        curves.append(f"| {' | '.join([task, str(last['seeds']), *scores, distance, right])} |")
        moving = f"{last['moving']['cai']['auc']['mean']:.3f}" if last["moving"] else ""
        known = last["disagreement"] is not None
        differ = [f"{last['disagreement']:.0%}", f"{last['cai_right'] or 0:.0%}"] if known else ["", ""]
        details.append(f"| {' | '.join([task, moving, *differ, format(last['cpu_seconds'], '.0f')])} |")
    return "\n".join([*curves, "", *details])


def pair(found: dict[str, dict[str, float]]) -> str:
    """Mean AUC and average precision."""
    return " / ".join(f"{found[metric]['mean']:.3f}" for metric in TITLES)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A chart for each task, five in a row."""
    plt.rcParams["svg.hashsalt"] = "butfor"  # the same file from the same numbers
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    lines = -(-len(tasks) // 5)
    figure, axes = plt.subplots(lines, 5, figsize=(11, 2.2 * lines), sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(tasks) :]:
        axis.set_axis_off()
    for axis, task in zip(axes.flat, tasks, strict=False):
        chosen = [row for row in rows if row["task"] == task]
        for metric, title in TITLES.items():
            for name, colour in COLOURS.items():
                known = [row for row in chosen if name in row["detectors"]]
                values = [row["detectors"][name][metric]["mean"] for row in known]
                style = "-" if metric == "auc" else "--"
                label = f"{title}, {name if name == 'distance' else 'CAI'}"
                axis.plot([row["size"] for row in known], values, style, color=colour, marker="o", ms=3, label=label)
        axis.set(xscale="log", xticks=[2_000, 5_000, 15_000], xticklabels=["2k", "5k", "15k"], title=task)
        axis.title.set_fontsize(10)
        axis.minorticks_off()
        axis.grid(color="#dddddd")
    figure.supxlabel("transitions", fontsize=10)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper center", ncols=4, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
