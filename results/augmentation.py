"""Audits `butfor augment` on pucks: promised and realised shares of impossible transitions.

python results/augmentation.py OUT.json [SEEDS]

For each seed, 300 episodes of the noisy script are collected, and 20,000 swaps of 1 and of 5 steps are proposed. Of
those kept, of all, of those without a contact in the original steps, and of those with the least attention, 5,000 are
replayed. OUT.json is extended by the seeds that it does not have; the table is printed.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from butfor.datasets.augment import augment_file
from butfor.detection.collect import CollectConfig, collect_file
from butfor.rollouts.swaps import AugmentOptions
from butfor.runs.files import read_json, write_json
from butfor.runs.folder import versions

EPISODES = 300
CANDIDATES = 20_000
REPLAYED = 5_000
STEPS = (1, 5)


def main(out: Path, seeds: int) -> None:
    """Audit the seeds that are missing, and print the table."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = read_json(out)["rows"] if out.exists() else []
    for seed in range(seeds):
        if seed not in [row["seed"] for row in rows]:
            rows += [audit(seed, steps) for steps in STEPS]
            write_json(out, {"schema": 1, "versions": versions("cpu"), "rows": rows})
    print("| steps | choice | kept | impossible, mean | worst seed | overlap | swapped entity | another entity |")
    print("|---|---|---|---|---|---|---|---|")
    for steps in STEPS:
        here = [row for row in rows if row["steps"] == steps]
        for choice in ("kept", "unfiltered", "contact", "attention"):
            found = [row["audit"][choice] for row in here]
            impossible = [one["impossible"] for one in found]
            share = np.mean([one["stretches"] / row["candidates"] for one, row in zip(found, here, strict=True)])
            faults = [f"{np.mean([one['faults'][fault] for one in found]):.1%}" for fault in found[0]["faults"]]
            cells = [f"{share:.0%}", f"{np.mean(impossible):.1%}", f"{max(impossible):.1%}", *faults]
            print(f"| {steps} | {choice} | {' | '.join(cells)} |")


def audit(seed: int, steps: int) -> dict[str, Any]:
    """The summary of one seed."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "pucks.npz"
        collect_file(CollectConfig("pucks", "noisy-expert", EPISODES, seed=seed), data)
        options = AugmentOptions(CANDIDATES, steps=steps, seed=seed)
        summary = augment_file(data, Path(folder) / "new.npz", options=options, audit=REPLAYED)
    kept = ("candidates", "kept", "steps", "promised", "interactions", "audit")
    return {"seed": seed} | {name: summary[name] for name in kept}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
