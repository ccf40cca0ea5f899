"""Audits `butfor augment`: promised and realised shares of impossible transitions.

python results/augmentation.py OUT.json [SEEDS]

For each seed, 300 episodes of the noisy script of `pucks`, `push-two` and `stack-two` are collected, and 20,000 swaps
are proposed: of 1 step, on `pucks` also of 5. Of those kept, of all, of those without a contact in
the original steps, and of those with the least attention, 2,000 are replayed. OUT.json is extended by what it does not
have; the table is printed, without seeds for which nothing could be kept.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from butfor.analysis.statistics import mean_interval
from butfor.datasets.audit import FAULTS
from butfor.datasets.augment import augment_file
from butfor.detection.collect import CollectConfig, collect_file
from butfor.rollouts.swaps import AugmentOptions
from butfor.runs.files import read_json, write_json
from butfor.runs.folder import versions

EPISODES = 300
CANDIDATES = 20_000
REPLAYED = 2_000
UNITS = (("pucks", 1), ("push-two", 1), ("stack-two", 1), ("pucks", 5))


def main(out: Path, seeds: int) -> None:
    """Audit what is missing, and print the table."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = read_json(out)["rows"] if out.exists() else []
    for seed in range(seeds):
        for env, steps in UNITS:
            if (env, steps, seed) not in [(row["env"], row["steps"], row["seed"]) for row in rows]:
                rows.append(audit(env, steps, seed))
                rows[-1]["commit"] = versions("cpu")["commit"]
                write_json(out, {"schema": 2, "versions": versions("cpu"), "rows": rows})
    heading = ["environment", "steps", "seeds", "choice", "kept", "impossible", "95 %", "worst", *FAULTS]
    print(f"| {' | '.join(heading)} |")
    print("|---" * len(heading) + "|")
    for env, steps in UNITS:
        here = [row for row in rows if (row["env"], row["steps"]) == (env, steps) and "audit" in row]
        for choice in ("kept", "contact", "attention", "unfiltered") if here else ():
            found = [row["audit"][choice] for row in here]
            impossible = np.array([one["impossible"] for one in found])
            low, high = mean_interval(impossible)
            share = np.mean([one["stretches"] / row["candidates"] for one, row in zip(found, here, strict=True)])
            # the columns of pucks are its bodies' places and velocities, so that they had no count of their own before
            faults = [f"{np.mean([one['faults'].get(fault, 0.0) for one in found]):.1%}" for fault in FAULTS]
            cells = [f"{share:.0%}", f"{impossible.mean():.1%}", f"{low:.1%} to {high:.1%}", f"{impossible.max():.1%}"]
            print(f"| {env} | {steps} | {len(here)} | {choice} | {' | '.join(cells + faults)} |")


def audit(env: str, steps: int, seed: int) -> dict[str, Any]:
    """The summary of one seed."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        collect_file(CollectConfig(env, "noisy-expert", EPISODES, seed=seed), data)
        options = AugmentOptions(CANDIDATES, steps=steps, seed=seed)
        try:
            summary = augment_file(data, Path(folder) / "new.npz", options=options, audit=REPLAYED)
        except ValueError as error:  # nothing can be promised with these data
            return {"env": env, "seed": seed, "steps": steps, "kept": 0, "refused": str(error)}
    kept = ("candidates", "kept", "steps", "promised", "interactions", "audit")
    return {"env": env, "seed": seed} | {name: summary[name] for name in kept}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
