"""Print the table of a benchmark of detectors of who moves whom in Markdown:

python results/influence_table.py FOLDER

FOLDER is one of `butfor benchmark influence`.
"""

import sys
from pathlib import Path
from typing import Any

from butfor.analysis.edges import read_edges


def main(folder: Path) -> None:
    """A row for each detector, best ones first, and a column for each task."""
    rows = read_edges(folder)
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    found = {(row["detector"], row["task"]): row for row in rows}
    rates = {task: next(row["rate"] for row in rows if row["task"] == task) for task in tasks}
    print(
        "| average precision (AUC), n seeds | "
        + " | ".join(f"`{task}`, {rates[task]:.1%} true" for task in tasks)
        + " |"
    )
    print("|---" * (len(tasks) + 1) + "|")
    for detector in dict.fromkeys(row["detector"] for row in rows):
        cells = [cell(found.get((detector, task))) for task in tasks]
        print(f"| `{detector}` | " + " | ".join(cells) + " |")
    for row in rows:
        for steps, auc in row["within"].items():
            print(f"- {row['task']}, influence of the action within {steps} steps: AUC {auc['mean']:.3f}")
    print("Commits:", ", ".join(sorted({commit for row in rows for commit in row["commits"]})))


def cell(row: dict[str, Any] | None) -> str:
    """Average precision, AUC and the number of seeds."""
    return "" if row is None else f"{row['ap']['mean']:.3f} ({row['auc']['mean']:.3f}), {row['seeds']}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
