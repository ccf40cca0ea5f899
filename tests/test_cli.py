"""The command line as people use it: help, one sentence for every mistake, interruption, and a whole small run."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT

import butfor
from butfor import cli, study
from butfor.console import live_progress
from butfor.study import DETECTION_PRESETS, DetectionConfig

torch.set_num_threads(1)

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
COMMAND = [sys.executable, "-m", "butfor.cli"]
OPTIONS = [
    "--preset", "--seeds", "--train-episodes", "--test-episodes", "--max-epochs", "--actions", "--form", "--run",
    "--overwrite", "--device",
]  # fmt: skip
HEAVY = {"torch", "plotly", "jinja2", "sklearn", "scipy", "gymnasium"}

Result = tuple[int, str, str]
Butfor = Callable[..., Result]


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


def assert_one_sentence(result: Result, *parts: str) -> None:
    """Exit code 1, and one line on stderr that holds the parts and ends a sentence."""
    code, out, err = result
    assert code == 1
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("Error: ")
    for part in parts:
        assert part in err


def fresh(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    return subprocess.run([*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


# ------------------------------------------------------------------------------------------ help, version


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_the_commands_and_a_way_to_start(butfor_command: Butfor, arguments: list[str]) -> None:
    code, out, err = butfor_command(*arguments)
    assert code == 0
    assert err == ""
    for word in ("detect", "report", "butfor detect slide --preset demo"):
        assert word in out


@pytest.mark.parametrize(
    ("command", "words"), [("detect", [*OPTIONS, "slide", "paper", "demo", "cuda"]), ("report", ["run folder"])]
)
def test_help_of_a_command_names_its_options(butfor_command: Butfor, command: str, words: list[str]) -> None:
    code, out, err = butfor_command(command, "--help")
    assert code == 0
    assert err == ""
    assert [word for word in words if word not in out] == []


@pytest.mark.parametrize("argument", ["--version", "-V"])
def test_version(butfor_command: Butfor, argument: str) -> None:
    assert butfor_command(argument) == (0, f"butfor {butfor.__version__}\n", "")


def test_help_mentions_the_version_option(butfor_command: Butfor) -> None:
    assert "--version" in butfor_command("--help")[1]


@pytest.mark.parametrize("arguments", [[], ["--version"]])
def test_the_module_runs_as_a_program(arguments: list[str]) -> None:
    child = fresh(*arguments)
    assert child.returncode == 0
    assert child.stderr == ""
    assert child.stdout.startswith("butfor 0." if arguments else "usage: butfor")


@pytest.mark.parametrize("arguments", ["['--version']", "['--help']", "['detect', '--help']"])
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


# --------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("arguments", [["detekt", "slide"], ["frob"], ["--frob"]])
def test_an_unknown_command_is_answered_with_the_commands(butfor_command: Butfor, arguments: list[str]) -> None:
    code, out, err = butfor_command(*arguments)
    assert code == 2
    assert out == ""
    assert "detect" in err
    assert "report" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["detect"], ["slide"]),
        (["detect", "slide", "--preset", "foo"], ["foo", "paper", "demo"]),
        (["detect", "slide", "--form", "foo"], ["foo", "product", "variational", "mean_clip_product"]),
        (["detect", "slide", "--device", "tpu"], ["tpu", "auto", "cpu", "cuda"]),
        (["detect", "slide", "--seeds", "two"], ["--seeds", "two"]),
        (["detect", "slide", "--sedes", "2"], ["--sedes"]),
        (["detect", "slide", "push"], ["push"]),
        (["report"], ["run folder"]),
    ],
)
def test_arguments_that_cannot_be_read_are_named(
    butfor_command: Butfor, arguments: list[str], words: list[str]
) -> None:
    code, out, err = butfor_command(*arguments)
    assert code == 2
    assert out == ""
    assert [word for word in words if word not in err] == []
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ["'nowhere'", "built-in worlds are slide"]),
        (["slid"], ["'slid'", "Did you mean 'slide'?"]),
        (["nomodule:World-v0"], ["'nomodule:World-v0'"]),
        (["CartPole-v1"], ["'CartPole-v1' is not one of: slide"]),
        ([""], ["''", "slide"]),
        (["slide", "--seeds", "0"], ["seeds must be at least 1; got 0"]),
        (["slide", "--train-episodes", "0"], ["train_episodes must be at least 1"]),
        (["slide", "--test-episodes", "-1"], ["test_episodes must be at least 1; got -1"]),
        (["slide", "--max-epochs", "0"], ["max_epochs must be at least 1"]),
        (["slide", "--actions", "1"], ["actions must be at least 2", "got 1"]),
    ],
)
def test_values_that_make_no_sense_are_answered_with_one_sentence(
    butfor_command: Butfor, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    assert_one_sentence(butfor_command("detect", *arguments), *words)
    assert list(tmp_path.iterdir()) == []  # no folder is left behind


def test_a_missing_gpu_is_said_so(butfor_command: Butfor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_one_sentence(butfor_command("detect", "slide", "--device", "cuda"), "no CUDA GPU", "--device cpu")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_the_run(butfor_command: Butfor, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("precious")
    assert_one_sentence(butfor_command("detect", "slide", "--run", "run"), "run is a file", "another name")
    assert_one_sentence(butfor_command("detect", "slide", "--run", "run/inner"), "run")
    assert (tmp_path / "run").read_text() == "precious"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder nobody can write to")
def test_a_run_in_a_read_only_place(butfor_command: Butfor) -> None:
    assert_one_sentence(butfor_command("detect", "slide", "--run", "/proc/butfor-run"), "/proc/butfor-run")


@pytest.mark.parametrize("arguments", [[], ["--overwrite"]])
def test_a_foreign_folder_is_left_alone(butfor_command: Butfor, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    result = butfor_command("detect", "slide", "--run", "thesis", *arguments)
    assert_one_sentence(result, "thesis is not empty and holds no run", "another name")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "precious"


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_report_of_no_run(butfor_command: Butfor, folder: str) -> None:
    assert_one_sentence(butfor_command("report", folder), "config.json")


# --------------------------------------------------------------------- what becomes of options and errors


class Asked(Exception):
    """Raised in place of a run, with what it was asked for."""


def ask(config: DetectionConfig, folder: Path, device: str, overwrite: bool, progress: Any) -> None:
    raise Asked(config, folder, device, overwrite)


def asked_for(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, *arguments: str) -> tuple[Any, ...]:
    monkeypatch.setattr(study, "run_detection", ask)
    with pytest.raises(Asked) as caught:
        butfor_command("detect", *arguments)
    return caught.value.args


def test_options_end_in_the_config(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    config, folder, device, overwrite = asked_for(
        monkeypatch, butfor_command, "slide", "--preset", "demo", "--seeds", "3", "--train-episodes", "7",
        "--test-episodes", "8", "--max-epochs", "9", "--actions", "10", "--form", "mean", "--run", "here",
        "--overwrite", "--device", "cpu",
    )  # fmt: skip
    demo = DETECTION_PRESETS["demo"]
    assert (config.seeds, config.train_episodes, config.test_episodes) == (3, 7, 8)
    assert (config.fitting.max_epochs, config.scoring.actions, config.scoring.form) == (9, 10, "mean")
    assert (config.validation_episodes, config.compare_forms) == (demo.validation_episodes, demo.compare_forms)
    assert (config.model, config.attention) == (demo.model, demo.attention)
    assert (folder, device, overwrite) == (Path("here"), "cpu", True)


@pytest.mark.parametrize("world", ["slide", "butfor/Slide-v0"])
def test_without_options_the_papers_run_has_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, world: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config, folder, device, overwrite = asked_for(monkeypatch, butfor_command, world)
    assert config == DetectionConfig()
    assert (folder, device, overwrite) == (Path("runs/detection-slide"), "cpu", False)


def test_the_folder_is_named_after_the_settings(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    arguments = ["slide", "--seeds", "2", "--max-epochs", "7", "--actions", "8"]
    folder = asked_for(monkeypatch, butfor_command, *arguments)[1]
    assert folder == Path("runs/detection-slide-seeds=2-fitting.max_epochs=7-scoring.actions=8")


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [cli.choose_device(name) for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]


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

    monkeypatch.setattr(study, "run_detection", fail)
    assert_one_sentence(butfor_command("detect", "slide"), str(error))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("arguments", [[], ["--overwrite"]])
def test_an_interruption_tells_the_truth_about_going_on(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, arguments: list[str], number: signal.Signals
) -> None:
    """The same command with --overwrite would delete what was written."""

    monkeypatch.setattr(study, "run_detection", lambda *rest: signal.raise_signal(number))
    code, out, err = butfor_command("detect", "slide", *arguments)
    assert code == 130
    assert out == ""
    assert "Interrupted" in err
    assert ("without --overwrite" in err) == bool(arguments)


# -------------------------------------------------------------------------------------------- a whole run

SMALL = [
    "detect", "slide", "--seeds", "2", "--train-episodes", "100", "--test-episodes", "20", "--max-epochs", "15",
    "--actions", "4", "--device", "cpu",
]  # fmt: skip


def interrupted(folder: Path, awaited: str) -> Result:
    """Starts the small run, interrupts it as soon as the awaited file is there, and waits for its end."""
    child = subprocess.Popen(
        [*COMMAND, *SMALL, "--run", str(folder)],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not (folder / awaited).exists() and child.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    return child.returncode, out, err


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, Result]:
    """A run that was interrupted in the middle of its training, and then finished by the same command."""
    folder = tmp_path_factory.mktemp("cli") / "small run"
    first = interrupted(folder, "checkpoint/cai.pt")
    child = fresh(*SMALL, "--run", str(folder))
    return folder, first, (child.returncode, child.stdout, child.stderr)


def test_an_interrupted_run_says_that_it_can_go_on(whole_run: tuple[Path, Result, Result]) -> None:
    code, out, err = whole_run[1]
    assert code == 130, err
    assert out == ""
    assert "Interrupted" in err
    assert "same command goes on" in err
    assert "Traceback" not in err


def test_the_same_command_finishes_an_interrupted_run(whole_run: tuple[Path, Result, Result]) -> None:
    folder, _, (code, out, err) = whole_run
    assert code == 0, err
    assert out.splitlines()[-1] == f"Report: {folder / 'report.html'}"
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    assert not list(folder.rglob(".*"))  # nothing half-written is left
    assert "data:" not in err  # the data was there already
    for stage in ("fit CAI: 15 of 15", "fit Attention: 15 of 15", "scoring: "):
        assert stage in err


def test_the_table_names_every_detector_in_full_and_shows_the_papers_numbers(
    whole_run: tuple[Path, Result, Result],
) -> None:
    folder, _, (_, out, _) = whole_run
    summary = json.loads((folder / "summary.json").read_text())
    assert f"{summary['positive_share']:.1%} of 600 states are influenced" in out
    missing = [row["title"] for row in summary["detectors"] + summary["forms"] if row["title"] not in out]
    assert missing == []
    for row in summary["detectors"]:
        line = next(line for line in out.splitlines() if row["title"] in line)
        shown = [float(number) for number in re.findall(r"\d\.\d+", line)]
        assert f"{row['auc']['mean']:.3f}" in line
        assert {round(number, 2) for number in shown} >= {paper[0] for paper in (row["paper"] or {}).values()}


def test_the_report_can_be_written_anew(whole_run: tuple[Path, Result, Result], butfor_command: Butfor) -> None:
    folder = whole_run[0]
    (folder / "report.html").unlink()
    assert butfor_command("report", str(folder)) == (0, f"Report: {folder / 'report.html'}\n", "")
    assert (folder / "report.html").stat().st_size > 1000


def test_a_finished_run_is_shown_again_without_computing(
    whole_run: tuple[Path, Result, Result], butfor_command: Butfor
) -> None:
    folder, _, (_, first, _) = whole_run
    scores = (folder / "scores.npz").stat().st_mtime_ns
    code, out, err = butfor_command(*SMALL, "--run", str(folder))
    assert (code, out, err) == (0, first, "")
    assert (folder / "scores.npz").stat().st_mtime_ns == scores


def test_other_settings_for_a_finished_run_are_refused(
    whole_run: tuple[Path, Result, Result], butfor_command: Butfor
) -> None:
    folder = whole_run[0]
    result = butfor_command(*SMALL, "--form", "mean", "--run", str(folder))
    assert_one_sentence(result, "other settings", "--overwrite")
    assert (folder / "scores.npz").exists()


def test_progress_on_a_terminal_shows_every_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with live_progress() as progress:
        progress("test data", 0, 10, "random")
        progress("test data", 10, 10, "scripted")
        progress("fit CAI", 3, 30, "error 1.00e-02, best epochs [20, 20]")
    out, err = capsys.readouterr()
    assert out == ""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err)
    for words in ("test data", "10/10", "scripted", "fit CAI", "3/30", "[20, 20]"):
        assert words in plain
