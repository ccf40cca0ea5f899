"""The command in this process, and a small run of each kind."""

import contextlib
import importlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import COMMAND, ENVIRONMENT, SMALL_DETECT, SMALL_TRAIN, Butfor, Result, fresh

from butfor import cli

with contextlib.suppress(ImportError):
    importlib.import_module("gymnasium_robotics")  # its first import prints a notice


@pytest.fixture
def butfor_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Butfor]:
    """Runs the command in this process, in an empty folder: exit code, stdout, stderr."""

    def unhandled(number: int, frame: Any) -> None:
        raise AssertionError("the command does not handle SIGTERM")

    handler = signal.signal(signal.SIGTERM, unhandled)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["butfor", *arguments])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as exit:
            code = exit.code
        out, err = capsys.readouterr()
        if isinstance(code, str):  # the interpreter prints it and exits with 1
            code, err = 1, f"{err}{code}\n"
        return code or 0, out, err

    yield run
    signal.signal(signal.SIGTERM, handler)


def interrupted(folder: Path, awaited: str) -> Result:
    """Starts the small run, interrupts it as soon as the awaited file is there, and waits for its end."""
    child = subprocess.Popen(
        [*COMMAND, *SMALL_DETECT, "--run", str(folder)],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not (folder / awaited).exists() and child.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=15)
        except subprocess.TimeoutExpired:  # Python ignores an interrupt that falls into one of its own callbacks
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    return child.returncode, out, err


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, Result]:
    """A run that was interrupted in the middle of its training, and then finished by the same command."""
    folder = tmp_path_factory.mktemp("cli") / "small run"
    first = interrupted(folder, "checkpoint/cai.pt")
    child = fresh(*SMALL_DETECT, "--run", str(folder))
    return folder, first, (child.returncode, child.stdout, child.stderr)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two seeds with every use of influence, made by the command."""
    folder = tmp_path_factory.mktemp("train") / "tiny"
    child = fresh("train", "slide", *SMALL_TRAIN, "--use", "priority", "bonus", "active", "--run", str(folder))
    assert child.returncode == 0, child.stderr
    assert f"Run: {folder}\nReport: {folder / 'report.html'}\nNext: open {folder / 'report.html'}" in child.stdout
    assert "on slide, 2 seeds, after 8 episodes" in child.stdout
    shown = [line.split()[0] for line in child.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert shown[:2] == ["6", "8"]
    assert re.search(r"episodes: 8 of 8, success \d\.\d\d ± \d\.\d\d, [\d,]+ steps/s, 0 s left", child.stderr)
    return folder
