"""An agent learns a small world past a threshold that chance and the ablation fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from butfor.envs import make_worlds
from butfor.rollout import collect, random_policy

THRESHOLD = 0.25  # far above chance, about 0.03
SEEDS = 2


def start(folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    """`butfor train slide` with its preset, in a process of its own with one thread."""
    command = [sys.executable, "-m", "butfor", "train", "slide", "--seeds", str(SEEDS), "--run", str(folder), *options]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)


def success(folder: Path) -> float:
    """The mean over seeds and the last three evaluations."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = sorted({row["episode"] for row in rows})[-3:]
    return float(np.mean([row["success"] for row in rows if row["episode"] in last]))


def test_slide_is_learned_with_hindsight_and_not_without(tmp_path: Path) -> None:
    """Both runs side by side, one core each: about a minute."""
    runs = {"hindsight": start(tmp_path / "hindsight"), "none": start(tmp_path / "none", "--replay.hindsight", "0")}
    assert {name: process.wait(timeout=280) for name, process in runs.items()} == {"hindsight": 0, "none": 0}
    assert success(tmp_path / "hindsight") > THRESHOLD
    assert success(tmp_path / "none") < THRESHOLD


def test_a_random_policy_does_not_pass_for_learned() -> None:
    env = make_worlds("slide", 100)
    episodes = collect(env, random_policy(env), 400, 0)
    env.close()
    ends = episodes.length
    rows = np.arange(len(ends))
    achieved, desired = episodes.achieved_goal[rows, ends], episodes.desired_goal[rows, ends]
    assert (np.abs(achieved - desired) <= 0.5).mean() < THRESHOLD / 3


@pytest.mark.long
def test_slide_is_learned_with_influence_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The comparison with plain hindsight is printed, not asserted: on this world both learn fast."""
    runs = {
        "hindsight": start(tmp_path / "hindsight"),
        "influence": start(tmp_path / "influence", "--influence", "priority", "bonus", "active"),
    }
    assert all(process.wait(timeout=280) == 0 for process in runs.values())
    with capsys.disabled():
        print({name: round(success(tmp_path / name), 2) for name in runs})
    assert success(tmp_path / "influence") > THRESHOLD
