"""Time from the start of a process to its first episodes on a GPU, with and without compiled code of an earlier run.

python -m benchmarks.start_up [preset]
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks._timing import describe, note
from butfor.runs.files import read_json

GOAL = 15.0  # seconds until the first episodes are played, and of compiling and recording, cold
ENV = "pick-and-place"
RUN = """
import sys, time
began = float(sys.argv[1])
from butfor.training import preset, train
from dataclasses import replace
def say(stage, done, total, text):
    if stage not in seen:
        seen[stage] = time.time() - began
        print(stage, seen[stage], flush=True)
seen = {}
config = replace(preset(sys.argv[2], sys.argv[3]), seeds=10, num_envs=2, overlap=("updates", "model"))
if not config.use:
    config = replace(config, use=("priority", "bonus", "active"))
config = replace(config, episodes=config.warmup + 2, evaluate_every=config.warmup + 2, evaluation_episodes=1)
train(config, sys.argv[4], device="cuda", progress=say)
"""


def stages(name: str, caches: Path, run: Path) -> dict[str, float]:
    """Seconds of compiling and recording, and until a stage ends first, of a short run in a process of its own."""
    places = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton")}
    arguments = [sys.executable, "-c", RUN, str(time.time()), ENV, name, str(run)]
    output = subprocess.run(arguments, env=os.environ | places, check=True, capture_output=True, text=True).stdout
    reached = {stage: float(seconds) for stage, seconds in (line.split() for line in output.splitlines())}
    recording = float(read_json(run / "summary.json")["seconds"]["start-up"])
    return {
        "compiling and recording": recording,
        "random episodes": reached["start-up"],
        "an update": reached["episodes"],
    }


def main(name: str) -> None:
    if not torch.cuda.is_available():
        print("start-up is measured on a GPU; there is none")
        return
    print(describe("cuda"))
    print(f"seconds: {ENV}, preset {name}, ten seeds; of compiling, and from the start of the process until after")
    with tempfile.TemporaryDirectory() as folder:
        for turn in ("cold", "again"):  # the first leaves compiled code for the second
            found = stages(name, Path(folder), Path(folder) / turn)
            print(f"{turn}: " + ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in found.items()), flush=True)
            for part in ("random episodes", "compiling and recording"):
                note(f"start-up, preset {name}, {turn}: {part}", found[part], GOAL, "s", "15 s", 1.0)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "record")
