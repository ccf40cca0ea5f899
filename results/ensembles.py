"""Judges the networks of detection runs as one ensemble each, by uniform and by extreme actions:

python results/ensembles.py OUT DATA [RUN ...]

DATA holds test.npz and random.npz of pick-and-place. For each run the folder OUT gets a file with a row for each set,
label and way to score. The table that is printed has the mean and standard deviation over all runs in OUT.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from butfor.detection.settings import PAPER_SHARES
from butfor.detection.side_studies import evaluate_networks
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes
from butfor.runs.files import read_json, write_json
from butfor.runs.folder import versions

METRICS = ("auc", "ap", "f1")
SHARES = PAPER_SHARES["pick-and-place"]


def main(out: Path, data: Path, runs: list[Path]) -> None:
    """Judges the runs, and prints the table."""
    torch.set_num_threads(1)
    sets = {name: Episodes.load(data / f"{name}.npz") for name in SHARES} if runs else {}
    for run in runs:
        write_json(out / f"{run.name}.json", judge(run, sets))
    held = [read_json(path)["rows"] for path in sorted(out.glob("*.json"))]
    columns = (*METRICS, "ap_at_paper_share", "f1_at_paper_share")
    print(f"| {len(held)} runs | set | label | {' | '.join(columns)} |\n|{'---|' * (3 + len(columns))}")
    for rows in zip(*held, strict=True):  # the same row of every run
        cells = [f"{np.mean([row[c] for row in rows]):.3f} ± {np.std([row[c] for row in rows]):.3f}" for c in columns]
        print(f"| {rows[0]['title']} | {rows[0]['set']} | {rows[0]['label']} | {' | '.join(cells)} |")


def judge(run: Path, sets: dict[str, Episodes]) -> dict[str, Any]:
    """A run's networks one by one (their mean) and as one, on every set, by every label."""
    influence = Influence.load(run / "model.safetensors")
    fitting, fitted = read_json(run / "config.json")["config"]["fitting"], read_json(run / "versions.json")
    found = evaluate_networks("one network", influence, 1, sets, SHARES)
    found += evaluate_networks("five networks", influence, influence.model.replicas, sets, SHARES)
    rows = [
        {name: row[name] for name in ("title", "set", "label")}
        | {metric: row[metric]["mean"] for metric in METRICS}
        | {f"{metric}_at_paper_share": row["at_paper_share"][metric]["mean"] for metric in ("ap", "f1")}
        for row in found
    ]
    return {
        "schema": 1,
        "fitting": fitting | {"commit": fitted["commit"], "device": fitted["device"]},
        "scoring": asdict(influence.scoring) | {"commit": versions("cpu")["commit"]},
        "rows": rows,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(run) for run in sys.argv[3:]])
