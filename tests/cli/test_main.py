"""The command line as a whole: help, version, exit codes, closed pipes, interruption."""

import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import ENVIRONMENT, Butfor, assert_error, fresh, unread

import butfor
from butfor.detection import experiment as detection
from butfor.training import run as train_library

HEAVY = {"torch", "plotly", "jinja2", "sklearn", "scipy", "gymnasium"}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_the_commands_and_a_way_to_start(butfor_command: Butfor, arguments: list[str]) -> None:
    code, out, err = butfor_command(*arguments)
    assert code == 0
    assert err == ""
    for word in ("detect", "report", "butfor demo"):
        assert word in out


@pytest.mark.parametrize("command", ["", "view", "demo", "benchmark"])
def test_help_fits_80_columns(butfor_command: Butfor, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = butfor_command(*command.split(), "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("argument", ["--version", "-V"])
def test_version(butfor_command: Butfor, argument: str) -> None:
    assert butfor_command(argument) == (0, f"butfor {butfor.__version__}\n", "")


def test_help_mentions_the_version_option(butfor_command: Butfor) -> None:
    assert "--version" in butfor_command("--help")[1]


@pytest.mark.parametrize("module", ["butfor", "butfor.cli"])
def test_both_modules_are_the_command(module: str) -> None:
    """The second is how runs start where only the source is copied to."""
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("butfor ")
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [[], ["--version"]])
def test_the_module_runs_as_a_program(arguments: list[str]) -> None:
    child = fresh(*arguments)
    assert child.returncode == 0
    assert child.stderr == ""
    assert child.stdout.startswith("butfor 0." if arguments else "usage: butfor")


@pytest.mark.parametrize("arguments", ["['--version']", "['--help']", "['evaluate', '--help']", "['study', '--help']"])
def test_nothing_heavy_is_imported_for_version_and_help(arguments: str) -> None:
    code = f"""
import sys
sys.argv = ["butfor", *{arguments}]
import butfor.cli
try:
    butfor.cli.main()
except SystemExit as exit:
    assert not exit.code
print("imported:", *sorted({HEAVY!r} & set(sys.modules)))
"""
    child = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1].strip() == "imported:"


@pytest.mark.parametrize("arguments", [["detekt", "slide"], ["frob"], ["--frob"]])
def test_an_unknown_command_is_answered_with_the_commands(butfor_command: Butfor, arguments: list[str]) -> None:
    code, out, err = butfor_command(*arguments)
    assert code == 2
    assert out == ""
    assert "detect" in err
    assert "report" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("command", ["", "--version", "train", "study list"])
def test_a_closed_pipe_ends_the_command_in_silence(command: str, buffered: bool) -> None:
    arguments = ["train", "slide", "--help"] if command == "train" else command.split()
    assert unread(*arguments, buffered=buffered) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    "command", ["detect", "score", "evaluate", "watch", "collect", "labels", "study", "study run", "report"]
)
def test_the_help_of_a_command_that_nobody_reads_ends_in_silence(command: str) -> None:
    assert unread(*command.split(), "--help") == (128 + signal.SIGPIPE, "")


def test_a_table_that_nobody_reads_ends_in_silence(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    code, err = unread("train", "--resume", str(tmp_path / "run"), "--device", "cpu")
    assert code == 128 + signal.SIGPIPE
    assert "Error" not in err
    assert "Broken" not in err


def test_an_error_is_reported_also_with_a_closed_pipe(butfor_command: Butfor, tmp_path: Path) -> None:
    butfor_command("collect", "slide", "--labels", "exact,contact", "--episodes", "5", "--out", "s.npz")
    (tmp_path / "s.html").mkdir()
    code, err = unread("labels", str(tmp_path / "s.npz"))
    assert code == 1
    assert re.fullmatch(r"Error: .*s\.html.*\n", err)


def test_another_broken_pipe_is_an_error(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*values: Any, **named: Any) -> None:
        raise BrokenPipeError("the worker has gone")

    monkeypatch.setattr("butfor.reporting.study_page.write_report", fail)
    assert_error(butfor_command("report", "."), "the worker has gone")


def test_environments_of_a_module_in_the_current_folder(tmp_path: Path) -> None:
    """The installed program finds them as `python -m butfor` does, after installed packages."""
    (tmp_path / "near_envs.py").write_text("raise RuntimeError('near was imported')")
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was hidden')")
    code = "import sys; sys.argv[1:] = ['train', 'near_envs:Near-v0']; from butfor.cli import main; main()"
    command = [sys.executable, "-P", "-c", code]  # -P: the path as a console script has it
    child = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert child.returncode == 1
    assert "near was imported" in child.stderr


@pytest.mark.parametrize(
    "error",
    [
        ValueError("data/test.npz is not complete."),
        FloatingPointError("The loss of replica 1 became NaN."),
        OSError(28, "No space left on device", "runs/a/scores.npz"),
        MemoryError("Unable to allocate 3 TiB for an array."),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 TiB."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_during_the_run_ends_with_its_sentence(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, error: Exception
) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(detection, "run_detection", fail)
    assert_error(butfor_command("detect", "slide"), str(error))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("arguments", [[], ["--overwrite"]])
def test_an_interruption_names_the_command_that_resumes(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, arguments: list[str], number: signal.Signals
) -> None:
    """The same command with --overwrite would delete what was written."""
    monkeypatch.setattr(detection, "run_detection", lambda *rest: signal.raise_signal(number))
    code, out, err = butfor_command("detect", "slide", *arguments)
    assert code == 130
    assert out == ""
    assert "Interrupted" in err
    assert ("without --overwrite" in err) == bool(arguments)


def test_errors_of_the_library_itself_are_not_hidden(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error keeps its traceback."""

    def fail(*values: Any, **named: Any) -> None:
        raise RuntimeError("predictor was called in training mode")

    monkeypatch.setattr(train_library, "train", fail)
    with pytest.raises(RuntimeError, match="predictor was called"):
        butfor_command("train", "slide")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder nobody can write to")
@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("detect slide --run", "/proc/butfor-run"),
        ("train slide --run", "/proc/butfor-run"),
        ("train slide --keep-episodes", "/proc/x/y.npz"),
        ("collect slide --out", "/proc/x/y.npz"),
        ("study run heatmaps --root", "/proc/x"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, path: str
) -> None:
    monkeypatch.setattr("butfor.detection.collect.collect", None)
    monkeypatch.setattr("butfor.training.loop.Trainer", None)
    result = butfor_command(*command.split(), path)
    assert_error(result, path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "nowhere"], "nowhere"),
        (["evaluate", "RUN", "--episodes", "0"], "episodes must be at least 1; got 0"),
        (["watch", "nowhere"], "nowhere"),
        (["watch", "RUN", "--seed", "5"], "seed 5"),
        (["collect", "slide", "--policy", "nowhere"], "'nowhere'"),
        (["collect", "slide", "--policy", "RUN", "--agent-seed", "5", "--episodes", "1"], "seed 5"),
        (["train", "slide", "--run", "RUN"], "--resume"),
        (["train", "--resume", "RUN", "--episodes", "7"], "7"),
        (["train", "slide", "--run", "/proc/butfor-run"], "/proc/butfor-run"),
        (["train", "slide", "--run", "file.npz"], "file.npz"),
        (["train", "slide", "--keep-episodes", "file.npz"], "file.npz"),
        (["train", "slide", "--keep-episodes", "a.csv"], "a.csv"),
        (["collect", "slide", "--out", "a.csv"], "a.csv"),
        (["collect", "slide", "--seed", "-4"], "-4"),
    ],
)
def test_mistakes_with_runs_are_one_sentence_and_change_nothing(
    tiny_run: Path, butfor_command: Butfor, tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "file.npz").write_text("precious")
    before = {path: path.read_bytes() for path in tiny_run.rglob("*") if path.is_file()}
    assert_error(butfor_command(*[str(tiny_run) if word == "RUN" else word for word in arguments]), words)
    assert {path: path.read_bytes() for path in tiny_run.rglob("*") if path.is_file()} == before
    assert (tmp_path / "file.npz").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["file.npz"]


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("train slide", "--seeds"),
        ("detect slide", "--seeds"),
        ("score a.npz --out b.npz", "fewer rows"),
        ("evaluate .", "fewer rows"),
    ],
)
def test_the_advice_when_gpu_memory_runs_out(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, command: str, advice: str
) -> None:
    """Commands without --seeds are not advised to reduce them."""

    def fail(*given: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 TiB.")

    monkeypatch.setattr(train_library, "train", fail)
    monkeypatch.setattr(detection, "run_detection", fail)
    monkeypatch.setattr("butfor.datasets.score.score_file", fail)
    monkeypatch.setattr("butfor.training.run.evaluate_run", fail)
    assert_error(butfor_command(*command.split(), "--device", "cpu"), "3 TiB", advice)


@pytest.mark.parametrize(("typed", "meant"), [("detct", "butfor detect"), ("comapre", "butfor compare"), ("xyz", "")])
def test_a_mistyped_command_gets_a_suggestion(butfor_command: Butfor, typed: str, meant: str) -> None:
    code, out, err = butfor_command(typed, "slide")
    assert (code, out) == (2, "")
    assert repr(typed) in err
    assert ("Did you mean" in err) == bool(meant)
    assert meant in err
    assert max(map(len, err.splitlines())) < 80 + len("Error: There is no command")


def warner(module: str, words: str) -> Callable[[], None]:
    """A function of a module with this name, which warns."""
    inside: dict[str, Any] = {"__name__": module}
    exec(f"import warnings\ndef speak():\n    warnings.warn({words!r})", inside)
    speak: Callable[[], None] = inside["speak"]
    return speak


def test_warnings_of_other_packages_come_once_and_after_the_answer(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak = warner("other.inner", "is\x1b[33m deprecated")

    def answer(arguments: list[str]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            speak()
            speak()
        raise ValueError("the answer")

    monkeypatch.setitem(butfor.cli.COMMANDS, "train", answer)
    code, _, err = butfor_command("train")
    assert code == 1
    first, second, third = err.splitlines()
    assert first == "Error: the answer"
    assert "other packages" in second
    assert third.startswith("  other: is")
    assert "\x1b" not in third


def test_warnings_of_the_package_itself_are_sentences_without_a_place_in_the_source(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak = warner("butfor.inner", "Give \x1b[33m a larger weight.")

    def answer(arguments: list[str]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            speak()

    monkeypatch.setitem(butfor.cli.COMMANDS, "train", answer)
    code, out, err = butfor_command("train")
    assert (code, out) == (0, "")
    (line,) = err.splitlines()
    assert line.startswith("Warning: Give ")
    assert line.endswith(" a larger weight.")
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
    ids=["by default", "spins given", "policy given"],
)
def test_waiting_threads_sleep_soon_unless_told_otherwise(given: dict[str, str], spins: str | None) -> None:
    """It is set in the environment before torch, whose threads read it, is imported."""
    program = "import os, sys; from butfor import cli; sys.argv[1:] = ['--version']; cli.main(); "
    program += "print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_WAIT", "GOMP_SPIN"))}
    found = subprocess.run([sys.executable, "-c", program], env=outside | given, capture_output=True, text=True)
    assert found.stdout.splitlines()[-1] == f"{spins} False", found.stderr
