"""Collect the episodes of `butfor demo`: python tools/build_demo_data.py src/butfor/datasets/pick-and-place.npz

A few minutes on one core. The simulator's version is in the file, because trajectories differ between versions.
"""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from butfor.detection.collect import CollectConfig, collect_file
from butfor.rollouts.episodes import Episodes, concatenate

ENV = "pick-and-place"
LABELS = ("exact", "contact")
PARTS = {"random": 130, "noisy-expert": 130, "expert": 60}  # episodes of each policy; 5.5 kB each


def collect_demo(parts: dict[str, int] = PARTS) -> Episodes:
    """Play the episodes of all policies, one policy after the other, each with a seed of its own."""
    with tempfile.TemporaryDirectory() as folder:
        played = [
            collect_file(CollectConfig(ENV, policy, count, LABELS, seed), Path(folder) / f"{policy}.npz")
            for seed, (policy, count) in enumerate(parts.items())
        ]
    episodes = concatenate(played)
    bounds = {key: played[0].metadata[key] for key in ("action_low", "action_high")}
    config = {"env": ENV, "labels": list(LABELS), "policy": "mixed"}
    episodes.metadata = {"config": config, "parts": parts, "mujoco": version("mujoco")} | bounds
    return episodes


if __name__ == "__main__":
    found = collect_demo()
    found.save(sys.argv[1])
    print(found)
