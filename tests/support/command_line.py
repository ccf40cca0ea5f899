"""Runs `butfor` in this process or in its own, and checks how it ends."""

import os
import subprocess
import sys
from collections.abc import Callable

from support.project import ROOT

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
COMMAND = [sys.executable, "-m", "butfor"]
SMALL_DETECT = [
    "detect", "slide", "--seeds", "2", "--train-episodes", "100", "--validation-episodes", "20", "--test-episodes",
    "20", "--data", "scripted", "--studies", "actions", "--fitting.max-epochs", "15",
    "--attention-fitting.max-epochs", "15", "--scoring.actions", "4", "--device", "cpu",
]  # fmt: skip
SMALL_TRAIN = [
    "--seeds", "2", "--episodes", "8", "--warmup", "4", "--evaluate-every", "3", "--evaluation-episodes", "2",
    "--agent.layers", "1", "--agent.width", "8", "--agent.batch-size", "8", "--agent.updates", "2",
    "--agent.normalizer-batches", "1", "--explore.candidates", "4", "--fit-every", "2", "--fit-schedule", "1000", "5",
    "--cai.network.layers", "1", "--cai.network.width", "8", "--cai.batch-size", "8", "--cai.scoring.actions", "4",
    "--checkpoint-seconds", "0", "--device", "cpu",
]  # fmt: skip

Result = tuple[int, str, str]
"""exit code, stdout, stderr"""
Butfor = Callable[..., Result]


class Asked(Exception):
    """Raised in place of a run, with what it was asked for."""


def assert_error(result: Result, *parts: str) -> None:
    """Assert exit code 1 and one line on stderr that contains the parts."""
    code, out, err = result
    assert code == 1
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("Error: ")
    for part in parts:
        assert part in err


def fresh(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process."""
    return subprocess.run([*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def unread(*arguments: str, buffered: bool = True) -> tuple[int, str]:
    """Run the command with a closed stdout; return its exit code and stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = ENVIRONMENT | {"PYTHONUNBUFFERED": "" if buffered else "1"}
    child = subprocess.run(
        [*COMMAND, *arguments], env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(writer)
    return child.returncode, child.stderr
