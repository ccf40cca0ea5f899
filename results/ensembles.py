"""Judges the networks of detection runs as one ensemble each, by uniform and by extreme actions:

python results/ensembles.py OUT DATA [RUN ...]

DATA holds test.npz and random.npz of pick-and-place. For each run the folder OUT gets a file with a row for each set,
label and way to score. The table that is printed has the mean and standard deviation over all runs in OUT.
"""

import sys
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from butfor import detect
from butfor.detection_settings import PAPER_SHARE as SETS
from butfor.detection_studies import EXTREME, evaluate, rescored
from butfor.episodes import Episodes
from butfor.files import read_json, write_json
from butfor.influence import Influence
from butfor.record import versions
from butfor.scoring import ScoreConfig

LABELS = ("exact", "heuristic")
WAYS = {  # title -> how actions are chosen, and whether the networks predict as one
    "one network, extreme actions": (ScoreConfig(extreme=EXTREME), False),
    "five networks": (ScoreConfig(), True),
    "five networks, extreme actions": (ScoreConfig(extreme=EXTREME), True),
}


def main(out: Path, data: Path, runs: list[Path]) -> None:
    """Judges the runs, and prints the table."""
    torch.set_num_threads(1)
    for run in runs:
        write_json(out / f"{run.name}.json", judge(run, {name: Episodes.load(data / f"{name}.npz") for name in SETS}))
    held = [read_json(path) for path in sorted(out.glob("*.json"))]
    columns = ("auc", "ap", "f1", "ap_at_paper_share", "f1_at_paper_share")
    print(f"| {len(held)} runs | set | label | {' | '.join(columns)} |\n|{'---|' * (3 + len(columns))}")
    for title, name, label in product(WAYS, SETS, LABELS):
        key = {"title": title, "set": name, "label": label}
        rows = [row for one in held for row in one["rows"] if key.items() <= row.items()]
        cells = [f"{np.mean([r[c] for r in rows]):.3f} ± {np.std([r[c] for r in rows]):.3f}" for c in columns]
        print(f"| {title} | {name} | {label} | {' | '.join(cells)} |")


def judge(run: Path, sets: dict[str, Episodes]) -> dict[str, Any]:
    """A run's networks on every set, by every label, in every way."""
    influence, rows = Influence.load(run / "model.safetensors"), []
    fitting, fitted = read_json(run / "config.json")["config"]["fitting"], read_json(run / "versions.json")
    for title, (scoring, together) in WAYS.items():
        detector = detect.cai(rescored(influence, scoring), "object", influence.model.replicas if together else 1)
        for name, episodes in sets.items():
            scores = detector(episodes)
            for label in LABELS:
                row: dict[str, Any] = {"title": title, "set": name, "label": label}
                row |= _mean(evaluate(scores, episodes, label))
                as_if = _mean(evaluate(scores, episodes, label, SETS[name]))
                rows.append(row | {"ap_at_paper_share": as_if["ap"], "f1_at_paper_share": as_if["f1"]})
    return {
        "schema": 1,
        "fitting": fitting | {"commit": fitted["commit"], "device": fitted["device"]},
        "scoring": {title: asdict(scoring) for title, (scoring, _) in WAYS.items()}
        | {"commit": versions("cpu")["commit"]},
        "rows": rows,
    }


def _mean(found: list[dict[str, float]]) -> dict[str, float]:
    """The mean over the networks of a run, where they are judged one by one."""
    return {name: float(np.mean([one[name] for one in found])) for name in ("auc", "ap", "f1")}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(run) for run in sys.argv[3:]])
