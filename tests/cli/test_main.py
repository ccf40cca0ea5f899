"""The command line as people use it: help, one sentence for every mistake, interruption, and a whole small run."""

import contextlib
import dataclasses
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.project import ROOT
from support.small_training import ALL_USES, TRACK, Track

import butfor
from butfor import cli
from butfor.cli import train as cli_train
from butfor.cli.console import live_progress
from butfor.detection import experiment as detection
from butfor.detection.settings import DetectionConfig, detection_preset
from butfor.rollouts.episodes import Episodes
from butfor.runs import checkpoints
from butfor.runs.files import save_checkpoint
from butfor.runs.folder import open_run
from butfor.studies import units
from butfor.studies.paper import STUDIES, make_study, write_study
from butfor.training import loop as train_library
from butfor.training.evaluation import evaluate_run
from butfor.training.loop import Learner
from butfor.training.priorities import PriorityConfig
from butfor.training.settings import preset

torch.set_num_threads(1)

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
COMMAND = [sys.executable, "-m", "butfor.cli"]
OPTIONS = [
    "--preset", "--seeds", "--train-episodes", "--test-episodes", "--max-epochs", "--actions", "--form", "--run",
    "--overwrite", "--device", "--data", "--studies", "--random-episodes", "--agent-episodes", "--pictures",
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


def unread(*arguments: str, buffered: bool = True) -> tuple[int, str]:
    """Runs the command where nobody reads its output: exit code and stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = ENVIRONMENT | {"PYTHONUNBUFFERED": "" if buffered else "1"}
    child = subprocess.run(
        [*COMMAND, *arguments], env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(writer)
    return child.returncode, child.stderr


# ------------------------------------------------------------------------------------------ help, version


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("command", ["", "--version", "train", "study list"])
def test_output_that_nobody_reads_ends_the_command_in_silence(command: str, buffered: bool) -> None:
    arguments = ["train", "slide", "--help"] if command == "train" else command.split()
    assert unread(*arguments, buffered=buffered) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("command", ["detect", "score", "evaluate", "watch", "collect", "labels", "study", "report"])
def test_the_help_of_a_command_that_nobody_reads_ends_in_silence(command: str) -> None:
    assert unread(command, "--help") == (128 + signal.SIGPIPE, "")


def test_a_table_that_nobody_reads_ends_in_silence(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    code, err = unread("train", "--resume", str(tmp_path / "run"), "--device", "cpu")
    assert code == 128 + signal.SIGPIPE
    assert "Error" not in err
    assert "Broken" not in err


def test_a_mistake_is_told_also_where_nobody_reads_the_output(butfor_command: Butfor, tmp_path: Path) -> None:
    butfor_command("collect", "slide", "--labels", "exact,contact", "--episodes", "5", "--out", "s.npz")
    (tmp_path / "s.html").mkdir()
    code, err = unread("labels", str(tmp_path / "s.npz"))
    assert code == 1
    assert re.fullmatch(r"Error: .* Is a directory: .*\n", err)


def test_another_broken_pipe_is_an_error(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*values: Any) -> None:
        raise BrokenPipeError("the worker has gone")

    monkeypatch.setattr("butfor.reporting.report.write_report", fail)
    assert_one_sentence(butfor_command("report", "run"), "Error: the worker has gone")


def test_worlds_of_a_module_in_the_current_folder(tmp_path: Path) -> None:
    """The installed program finds them as `python -m butfor` does; installed packages go before."""
    (tmp_path / "near_worlds.py").write_text("raise RuntimeError('near was imported')")
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was hidden')")
    code = "import sys; sys.argv[1:] = ['train', 'near_worlds:Near-v0']; from butfor.cli import main; main()"
    command = [sys.executable, "-P", "-c", code]  # -P: the path as a console script has it
    child = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert child.returncode == 1
    assert "it raised RuntimeError: near was imported" in child.stderr


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
        (["detect", "slide", "--data", "human"], ["human", "scripted", "agents"]),
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
        (["nowhere"], ["'nowhere' is not one of: slide, pick-and-place."]),
        (["slid"], ["'slid' is not one of: slide, pick-and-place."]),
        (["nomodule:World-v0"], ["'nomodule:World-v0'"]),
        (["CartPole-v1"], ["'CartPole-v1' is not one of: slide"]),
        ([""], ["''", "slide"]),
        (["slide", "--seeds", "0"], ["seeds must be at least 1; got 0"]),
        (["slide", "--train-episodes", "0"], ["train_episodes must be at least 1"]),
        (["slide", "--test-episodes", "-1"], ["test_episodes must be at least 1; got -1"]),
        (["slide", "--max-epochs", "0"], ["max_epochs must be at least 1"]),
        (["slide", "--actions", "1"], ["actions must be at least 2", "got 1"]),
        (
            ["slide", "--studies", "speed"],
            ["no study 'speed'", "actions, decisions, ensembles, helps, noise, reference"],
        ),
        (["slide", "--studies", "noise,reference"], ["reference study", "pick-and-place"]),
        (["slide", "--random-episodes", "-1"], ["random_episodes must be at least 0; got -1"]),
        (["slide", "--agent-episodes", "0"], ["agent_episodes must be at least 1; got 0"]),
        (["slide", "--agent-envs", "8"], ["agent_envs 8; after 100 random episodes", "1900 must be a multiple"]),
        (["slide", "--train-episodes", "2001"], ["2001 train episodes", "agents that play 2000", "agent_episodes"]),
        (["pick-and-place", "--agent-episodes", "5000"], ["7500 test episodes", "agents that play 5000"]),
    ],
)
def test_values_that_make_no_sense_are_answered_with_one_sentence(
    butfor_command: Butfor,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: list[str],
) -> None:
    with contextlib.suppress(ImportError):  # where it is looked for worlds, its first import has a notice of its own
        importlib.import_module("gymnasium_robotics")
    capsys.readouterr()
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
def test_a_place_that_cannot_be_written_is_told_before_the_work(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, path: str
) -> None:
    monkeypatch.setattr("butfor.detection.collect.collect", None)
    monkeypatch.setattr("butfor.training.loop.Trainer", None)
    result = butfor_command(*command.split(), path)
    assert_one_sentence(result, f"{path} cannot be written: /proc takes no files (", "); give another place.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["--overwrite"]])
def test_a_foreign_folder_is_left_alone(butfor_command: Butfor, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    result = butfor_command("detect", "slide", "--run", "thesis", *arguments)
    assert_one_sentence(result, "thesis is not empty and holds no run", "another name")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "precious"


@pytest.mark.parametrize(
    ("folder", "words"), [("nowhere", "There is no folder nowhere; give"), (".", ". is not a run folder: it holds no")]
)
def test_a_report_of_no_run(butfor_command: Butfor, folder: str, words: str) -> None:
    assert_one_sentence(butfor_command("report", folder), words)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder nobody can write to")
def test_a_report_where_nothing_can_be_written(butfor_command: Butfor) -> None:
    assert_one_sentence(
        butfor_command("report", "/proc"), "/proc/report.html cannot be written: /proc takes no files ("
    )


# --------------------------------------------------------------------- what becomes of options and errors


class Asked(Exception):
    """Raised in place of a run, with what it was asked for."""


def ask(config: DetectionConfig, folder: Path, device: str, overwrite: bool, progress: Any) -> None:
    raise Asked(config, folder, device, overwrite)


def asked_for(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, *arguments: str) -> tuple[Any, ...]:
    monkeypatch.setattr(detection, "run_detection", ask)
    with pytest.raises(Asked) as caught:
        butfor_command("detect", *arguments)
    return caught.value.args


def test_options_end_in_the_config(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    config, folder, device, overwrite = asked_for(
        monkeypatch, butfor_command, "slide", "--preset", "demo", "--seeds", "3", "--train-episodes", "7",
        "--test-episodes", "8", "--max-epochs", "9", "--actions", "10", "--form", "mean", "--run", "here",
        "--overwrite", "--device", "cpu",
    )  # fmt: skip
    demo = detection_preset("slide", "demo")
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
    longer = "fitting.max_epochs=7-scoring.actions=8-attention_fitting.max_epochs=7"
    assert folder == Path(f"runs/detection-slide-seeds=2-{longer}")


def test_data_and_studies_end_in_the_config(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    config = asked_for(
        monkeypatch, butfor_command, "pick-and-place", "--data", "scripted", "--studies", "noise,helps",
        "--random-episodes", "11", "--agent-episodes", "206", "--validation-episodes", "13", "--max-epochs", "14",
        "--agent-envs", "3", "--decay",
    )[0]  # fmt: skip
    paper = detection_preset("pick-and-place")
    expected = dataclasses.replace(
        paper, data="scripted", studies=("noise", "helps"), random_episodes=11, agent_episodes=206,
        validation_episodes=13, agent_envs=3, fitting=dataclasses.replace(paper.fitting, max_epochs=14, decay=True),
        attention_fitting=dataclasses.replace(paper.attention_fitting, max_epochs=14),
    )  # fmt: skip
    assert config == expected


@pytest.mark.parametrize(("given", "studies"), [("none", ()), ("", ()), ("noise", ("noise",)), ("noise,", ("noise",))])
def test_studies_are_chosen_by_name_or_left_out(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, given: str, studies: Any
) -> None:
    config = asked_for(monkeypatch, butfor_command, "slide", "--studies", given)[0]
    assert config == dataclasses.replace(DetectionConfig(), studies=studies)


@pytest.mark.parametrize("preset", ["paper", "reduced", "demo"])
@pytest.mark.parametrize("world", ["slide", "pick-and-place", "butfor/FetchPickAndPlace-v0"])
def test_without_options_the_preset_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, world: str, preset: str
) -> None:
    config = asked_for(monkeypatch, butfor_command, world, "--preset", preset)[0]
    assert config == detection_preset("slide" if world == "slide" else "pick-and-place", preset)


@pytest.mark.parametrize(
    ("world", "arguments", "drawn"),
    [("pick-and-place", [], True), ("pick-and-place", ["--no-pictures"], False), ("slide", [], False)],
)
def test_pictures_are_drawn_of_fetch_runs_unless_declined(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, world: str, arguments: list[str], drawn: bool
) -> None:
    """In the order: run, table, pictures, report; a report shows the pictures that are there."""
    from butfor.reporting import pictures, report

    done: list[tuple[str, Path]] = []
    monkeypatch.setattr(detection, "run_detection", lambda config, folder, *rest: done.append(("run", folder)))
    monkeypatch.setattr(pictures, "write_pictures", lambda folder, progress: done.append(("pictures", folder)))
    monkeypatch.setattr(cli, "print_detection", lambda folder: done.append(("table", folder)))
    monkeypatch.setattr(report, "write_report", lambda folder: done.append(("report", folder)))
    assert butfor_command("detect", world, "--run", "here", *arguments)[0] == 0
    names = ["run", "table", *(["pictures"] if drawn else []), "report"]
    assert done == [(name, Path("here")) for name in names]


def test_where_nothing_can_be_drawn_the_table_and_the_report_are_there_all_the_same(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor
) -> None:
    from butfor.reporting import pictures, report

    def fail(folder: Path, progress: Any) -> None:
        raise RuntimeError("no screen, and no EGL either")

    done: list[str] = []
    monkeypatch.setattr(detection, "run_detection", lambda *rest: done.append("run"))
    monkeypatch.setattr(pictures, "write_pictures", fail)
    monkeypatch.setattr(cli, "print_detection", lambda folder: done.append("table"))
    monkeypatch.setattr(report, "write_report", lambda folder: done.append("report"))
    code, _, errors = butfor_command("detect", "pick-and-place", "--run", "here")
    assert (code, done) == (0, ["run", "table", "report"])
    assert "No pictures were made: no screen" in errors


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [cli_train.choose_device(name) for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]


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
    assert_one_sentence(butfor_command("detect", "slide"), str(error))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("arguments", [[], ["--overwrite"]])
def test_an_interruption_tells_the_truth_about_going_on(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, arguments: list[str], number: signal.Signals
) -> None:
    """The same command with --overwrite would delete what was written."""

    monkeypatch.setattr(detection, "run_detection", lambda *rest: signal.raise_signal(number))
    code, out, err = butfor_command("detect", "slide", *arguments)
    assert code == 130
    assert out == ""
    assert "Interrupted" in err
    assert ("without --overwrite" in err) == bool(arguments)


# -------------------------------------------------------------------------------------------- a whole run

SMALL = [
    "detect", "slide", "--seeds", "2", "--train-episodes", "100", "--test-episodes", "20", "--max-epochs", "15",
    "--actions", "4", "--device", "cpu", "--data", "scripted", "--studies", "actions", "--validation-episodes", "20",
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
        try:
            out, err = child.communicate(timeout=15)
        except subprocess.TimeoutExpired:  # Python ignores an interrupt that falls into one of its own callbacks
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
    for stage in ("fit CAI: 15 of 15", "fit Attention: 15 of 15", "scoring: ", "actions: 16 of 16"):
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


@pytest.mark.parametrize("kind", ["detection", "training"])
def test_the_report_and_its_figures_can_be_written_elsewhere(
    kind: str, whole_run: tuple[Path, Result, Result], tiny_run: Path, butfor_command: Butfor, tmp_path: Path
) -> None:
    folder = whole_run[0] if kind == "detection" else tiny_run
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, out, _ = butfor_command("report", str(folder), "--figures", "--out", "new/page.html")
    page, figures = Path("new/page.html"), Path("new/page-figures")
    assert (code, out) == (0, f"Report: {page}\nFigures: {figures}\n")
    assert (tmp_path / page).stat().st_size > 1000
    assert {path.suffix for path in (tmp_path / figures).iterdir()} == {".svg", ".png"}
    assert_one_sentence(butfor_command("report", str(folder), "--out", "page"), "page ends in ''", "ends in .html")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


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


# --------------------------------------------------------------------------------------------- training

TINY = [
    "--seeds", "2", "--episodes", "8", "--warmup", "4", "--evaluate-every", "3", "--evaluation-episodes", "2",
    "--agent.layers", "1", "--agent.width", "8", "--agent.batch-size", "8", "--agent.updates", "2",
    "--agent.normalizer-batches", "1", "--explore.candidates", "4", "--model.network.layers", "1",
    "--model.network.width", "8", "--model.batch-size", "8", "--model.every", "2", "--model.schedule", "1000", "5",
    "--model.scoring.actions", "4", "--checkpoint-seconds", "0", "--device", "cpu",
]  # fmt: skip


def trained_as(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, *arguments: str) -> tuple[Any, ...]:
    """What `train` or `resume` is called with: its positional arguments, then those by name."""

    def stand_in(*values: Any, progress: Any, **named: Any) -> None:
        raise Asked(*values, named)

    monkeypatch.setattr(train_library, "train", stand_in)
    monkeypatch.setattr(train_library, "resume", stand_in)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Asked) as caught:
        butfor_command("train", *arguments)
    return caught.value.args


def test_the_train_command_of_the_paper_parses(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    command = "pick-and-place --influence priority bonus active --seeds 10 --episodes 3000 --device auto"
    config, folder, device, named = trained_as(monkeypatch, butfor_command, *shlex.split(command))
    expected = dataclasses.replace(preset("pick-and-place"), use=ALL_USES, seeds=10, episodes=3000)
    assert config == expected
    assert (folder, device) == (None, "cpu")
    assert named == {"overwrite": False, "time_limit": None, "keep_episodes": None}


@pytest.mark.parametrize("world", ["slide", "push", "pick-and-place", "rot-table", "butfor/FetchPush-v0"])
def test_without_options_a_world_is_trained_by_its_preset(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, world: str
) -> None:
    assert trained_as(monkeypatch, butfor_command, world)[0] == preset(world)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["--priority", "per"], "per"), (["--priority=ebp"], "ebp"), (["--priority.kind", "per"], "per"),
        (["--priority", "uniform"], "uniform"),
    ],
)  # fmt: skip
def test_priority_is_short_for_its_kind(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, arguments: list[str], kind: Any
) -> None:
    config = trained_as(monkeypatch, butfor_command, "push", *arguments, "--priority.alpha", "0.5")[0]
    assert config == dataclasses.replace(preset("push"), priority=PriorityConfig(kind, alpha=0.5))


@pytest.mark.parametrize("name", ["paper", "intrinsic", "fast"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_preset_is_where_the_other_options_start_from(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, name: str, joined: bool
) -> None:
    chosen = [f"--preset={name}"] if joined else ["--preset", name]
    config = trained_as(monkeypatch, butfor_command, "pick-and-place", "--seeds", "4", *chosen)[0]
    assert config == dataclasses.replace(preset("pick-and-place", name), seeds=4)


def test_every_part_of_the_settings_can_be_changed(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    command = (
        "slide --influence bonus --overlap acting model --entity 2 3 --num-envs 2 --no-tf32 --agent.twin-critics "
        "--agent.target-range -20 0 --replay.hindsight 0.5 --explore.choice ranked --bonus.kind flat --bonus.ceiling "
        "None --model.schedule 50 7 100 5 --model.network.width 12 --model.scoring.form mean --model.only-sampled "
        "--run here --overwrite --time-limit 1.5 --keep-episodes kept.npz --device cpu"
    )
    config, folder, device, named = trained_as(monkeypatch, butfor_command, *shlex.split(command))
    base = preset("slide")
    network = dataclasses.replace(base.model.network, width=12)
    scoring = dataclasses.replace(base.model.scoring, form="mean")
    model = dataclasses.replace(
        base.model, schedule=((50, 7), (100, 5)), network=network, scoring=scoring, only_sampled=True
    )
    expected = dataclasses.replace(
        base, use=("bonus",), overlap=("acting", "model"), entity=(2, 3), num_envs=2, tf32=False, model=model,
        agent=dataclasses.replace(base.agent, twin_critics=True, target_range=(-20.0, 0.0)),
        replay=dataclasses.replace(base.replay, hindsight=0.5),
        explore=dataclasses.replace(base.explore, choice="ranked"),
        bonus=dataclasses.replace(base.bonus, kind="flat", ceiling=None),
    )  # fmt: skip
    assert config == expected
    assert (folder, device) == (Path("here"), "cpu")
    assert named == {"overwrite": True, "time_limit": 1.5, "keep_episodes": Path("kept.npz")}


def test_a_run_is_resumed_by_its_folder(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    folder, device, named = trained_as(monkeypatch, butfor_command, "--resume", "runs/a")
    assert (folder, device) == (Path("runs/a"), "cpu")
    assert named == {"episodes": None, "time_limit": None, "keep_episodes": None}
    command = "--episodes 50 --resume=a --time-limit 3 --keep-episodes b.npz --device cpu"
    folder, device, named = trained_as(monkeypatch, butfor_command, *shlex.split(command))
    assert (folder, device) == (Path("a"), "cpu")
    assert named == {"episodes": 50, "time_limit": 3.0, "keep_episodes": Path("b.npz")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "slide", "--help"], ["--influence", "--priority.kind", "--preset", "--resume", "--keep-episodes"]),
        (
            ["train", "--help"],
            ["usage: butfor train WORLD [-h]", "the defaults below are those of pick-and-place", "--model.schedule"],
        ),
        (["train", "--resume", "a", "--help"], ["--episodes", "--time-limit", "--keep-episodes", "--device"]),
        (["evaluate", "--help"], ["RUN", "--episodes", "--device"]),
        (["watch", "--help"], ["RUN", "--out", "seed of the run acts (default: its first)  ", "--first", ".mp4"]),
        (["collect", "--help"], ["WORLD", "--policy", "seed of a trained run acts (default: its first)  ", "--out"]),
        (["--help"], ["train", "evaluate", "watch", "collect"]),
    ],
)
def test_help_of_the_training_commands(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = butfor_command(*arguments)
    assert (code, err) == (0, "")
    assert [word for word in words if word not in out] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slide", "--sedes", "2"], ["--sedes"]),
        (["slide", "--seeds", "two"], ["--seeds", "two"]),
        (["slide", "--influence", "prio"], ["prio", "priority"]),
        (["slide", "--priority", "vip"], ["vip", "per", "ebp"]),
        (["slide", "push"], ["push"]),
        (["--seeds", "2", "slide"], ["slide"]),
        (["slide", "--device", "tpu"], ["tpu", "cuda"]),
        (["slide", "--agent.discount", "2"], ["agent.discount must lie in [0, 1); got 2.0."]),
    ],
)
def test_training_arguments_that_cannot_be_read_are_named(
    butfor_command: Butfor, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    code, out, err = butfor_command("train", *arguments)
    assert (code, out) == (2, "")
    assert [word for word in words if word not in err] == []
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Which world?", "slide, push, pick-and-place"]),
        (["--seeds", "2"], ["Which world?"]),
        (["nowhere"], ["'nowhere'", "slide"]),
        (["slid", "--seeds", "2"], ["Did you mean 'slide'?"]),
        (["CartPole-v1"], ["CartPole-v1 is no goal world"]),
        (["slide", "--preset", "slow"], ["There is no preset 'slow'; the presets are paper, intrinsic, fast"]),
        (["slide", "--world", "push"], ["Which world, slide or push?"]),
        (["slide", "--seeds", "0"], ["seeds must be at least 1; got 0"]),
        (["slide", "--first-seed", "-1"], ["first_seed must be at least 0"]),
        (["slide", "--episodes", "60", "--warmup", "70"], ["episodes is 60, less than the 70 random episodes"]),
        (["slide", "--influence", "priority", "--priority", "per"], ["not by both"]),
        (["slide", "--influence", "intrinsic"], ["agent.target_range must be None"]),
        (["slide", "--priority", "ebp"], ["goals that are positions"]),
        (["slide", "--entity", "9"], ["entity is (9,)"]),
        (["slide", "--device", "cuda"], ["no CUDA GPU"]),
        (["--resume", "nowhere"], ["There is no folder nowhere"]),
        (
            ["--resume", "a", "--seeds", "3"],
            [
                "--seeds 3 cannot be given with --resume",
                "only --episodes, --time-limit, --keep-episodes and --device go",
            ],
        ),
        (["slide", "--resume", "a"], ["slide cannot be given with --resume"]),
    ],
)
def test_training_that_makes_no_sense_is_answered_with_one_sentence(
    butfor_command: Butfor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_one_sentence(butfor_command("train", *arguments), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two seeds with every use of influence, made by the command."""
    folder = tmp_path_factory.mktemp("train") / "tiny"
    child = fresh("train", "slide", *TINY, "--influence", "priority", "bonus", "active", "--run", str(folder))
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1] == f"Run: {folder}"
    assert "Success on slide, 2 seeds, after 8 episodes" in child.stdout
    shown = [line.split()[0] for line in child.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert shown[:2] == ["6", "8"]
    assert re.search(r"episodes: 8 of 8, success \d\.\d\d ± \d\.\d\d, [\d,]+ steps/s, 0 s left", child.stderr)
    return folder


def test_a_run_goes_on_to_more_episodes(tiny_run: Path, butfor_command: Butfor, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    code, out, err = butfor_command("train", "--resume", "run", "--episodes", "10", "--device", "cpu")
    assert code == 0, err
    assert "after 10 episodes" in out
    assert out.splitlines()[-1] == "Run: run"
    assert (tmp_path / "run/model.safetensors").read_bytes() != (tiny_run / "model.safetensors").read_bytes()


def test_evaluate_prints_every_seed_and_the_mean(tiny_run: Path, butfor_command: Butfor) -> None:
    code, out, err = butfor_command("evaluate", str(tiny_run), "--episodes", "4", "--device", "cpu")
    assert code == 0, err
    expected = evaluate_run(tiny_run, 4)
    *rows, last = out.splitlines()
    assert rows == [f"seed {seed}: {share:.3f}" for seed, share in expected.items()]
    assert last == f"success {sum(expected.values()) / 2:.3f}, mean over 2 seed(s), 4 episodes each"


def test_collect_by_a_trained_agent(tiny_run: Path, butfor_command: Butfor, tmp_path: Path) -> None:
    arguments = ["--policy", str(tiny_run), "--episodes", "3", "--labels", "exact", "--agent-seed", "1"]
    code, out, err = butfor_command("collect", "slide", *arguments)
    assert code == 0, err
    assert out.splitlines()[-1] == "Episodes: data/slide-tiny.npz"
    episodes = Episodes.load(tmp_path / "data/slide-tiny.npz")
    shares = ", ".join(f"{name} {value.mean():.1%}" for name, value in episodes.labels().items())
    assert out.startswith(f"3 episodes, 90 states: {shares}\n")
    assert set(episodes.labels()) == {"exact", "contact"}
    assert episodes.metadata["config"]["agent_seed"] == 1


def test_labels_of_a_world_that_is_not_drawn(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = butfor_command("collect", "slide", "--labels", "exact, contact", "--episodes", "5", "--out", "s.npz")
    assert code == 0, err
    once = iter([Episodes.load])
    with monkeypatch.context() as patch:
        patch.setattr(Episodes, "load", lambda path: next(once)(path))  # read a second time, the file would be an error
        code, out, err = butfor_command("labels", "s.npz")
    assert (code, err) == (0, "")
    assert out.startswith("exact and contact: agree in ")
    assert "No pictures: States of slide are not drawn, only those of push, " in out
    assert out.endswith("Page: s.html\n")
    code, out, _ = butfor_command("labels", "s.npz", "--pictures", "0")
    assert code == 0
    assert "No pictures" not in out


def test_watch_hands_its_options_on(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = pytest.importorskip("butfor.reporting.video")
    monkeypatch.setattr(watch, "watch", lambda *values: values)
    code, out, _ = butfor_command("watch", "run", "--out", "a.gif", "--seed", "3", "--episodes", "2", "--first", "5")
    assert code == 0
    assert out == f"Video: {(Path('run'), Path('a.gif'), 3, 2, 5)}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "nowhere"], "nowhere holds no trained agent"),
        (["evaluate", "RUN", "--episodes", "0"], "episodes must be at least 1; got 0"),
        (["watch", "nowhere"], "nowhere holds no trained agent"),
        (["watch", "RUN", "--seed", "5"], "there is no seed 5"),
        (["collect", "slide", "--policy", "nowhere"], "There is no policy 'nowhere'"),
        (["collect", "slide", "--policy", "RUN", "--agent-seed", "5", "--episodes", "1"], "there is no seed 5"),
        (["train", "slide", "--run", "RUN"], "holds a run already; go on with it by --resume"),
        (["train", "--resume", "RUN", "--episodes", "7"], "has already played 8 episodes; got 7."),
        (["train", "slide", "--run", "/proc/butfor-run"], "/proc/butfor-run"),
        (["train", "slide", "--run", "file.npz"], "file.npz is a file"),
        (["train", "slide", "--keep-episodes", "file.npz"], "file.npz exists already; give another name"),
        (["train", "slide", "--keep-episodes", "a.csv"], "a.csv cannot name an episode file; let it end in .npz."),
        (["collect", "slide", "--out", "a.csv"], "a.csv cannot name an episode file; let it end in .npz."),
        (["collect", "slide", "--seed", "-4"], "seed must be at least 0; got -4."),
    ],
)
def test_mistakes_with_runs_are_answered_with_one_sentence_and_harm_nothing(
    tiny_run: Path, butfor_command: Butfor, tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "file.npz").write_text("precious")
    before = {path: path.read_bytes() for path in tiny_run.rglob("*") if path.is_file()}
    assert_one_sentence(butfor_command(*[str(tiny_run) if word == "RUN" else word for word in arguments]), words)
    assert {path: path.read_bytes() for path in tiny_run.rglob("*") if path.is_file()} == before
    assert (tmp_path / "file.npz").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["file.npz"]


def test_a_detection_run_cannot_be_resumed_as_training(butfor_command: Butfor, tmp_path: Path) -> None:
    open_run(tmp_path / "run", "detection", DetectionConfig())
    assert_one_sentence(butfor_command("train", "--resume", "run"), "run holds a run of kind 'detection'")


def broken_world(monkeypatch: pytest.MonkeyPatch) -> None:
    Track.steps = 0
    monkeypatch.setattr(Track, "breaks_at", 260)


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, state: Any) -> None:
        if state["replay"]["stored"] < 7:
            return save_checkpoint(path, state)
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(checkpoints, "save_checkpoint", full)


def broken_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Learner.update

    def broken(self: Learner, generators: Any) -> None:
        update(self, generators)
        if self.replay.stored == 7:
            self.statistics[0] = float("nan")

    monkeypatch.setattr(Learner, "update", broken)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (broken_world, r"butfor-test/Track-v0 raised ZeroDivisionError in .*episode \d: the track has no length"),
        (full_disk, r"The checkpoint of episode 7 could not be written \(.*No space left on device"),
        (broken_loss, r"The agent's loss of replica 0 became NaN or infinite\. Lower the learning rate"),
    ],
)
def test_a_fault_during_training_ends_with_a_sentence_and_the_run_can_go_on(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Any, sentence: str
) -> None:
    with monkeypatch.context() as patch:
        fault(patch)
        code, out, err = butfor_command("train", TRACK, *TINY, "--run", "run")
    assert (code, out) == (1, "")
    assert re.match(f"Error: {sentence}", err.splitlines()[-1])
    assert "Traceback" not in err
    assert list((tmp_path / "run/checkpoint").glob("0000000[4-6]-*.pt"))
    assert not json.loads((tmp_path / "run/summary.json").read_text())["finished"]
    code, out, err = butfor_command("train", "--resume", "run", "--device", "cpu")
    assert code == 0, err
    assert out.splitlines()[-1] == "Run: run"


def test_a_world_that_fails_while_collecting_ends_with_a_sentence_and_the_file_can_go_on(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("butfor.detection.collect.EPISODES_A_PART", 4)
    command = ("collect", TRACK, "--episodes", "9", "--out", "a.npz")
    with monkeypatch.context() as patch:
        patch.setattr(Track, "steps", 0)
        patch.setattr(Track, "breaks_at", 150)  # nine at once, with up to ten steps in an episode
        code, out, err = butfor_command(*command)
    assert (code, out) == (1, "")
    sentence = rf"Error: {TRACK} raised ZeroDivisionError in one of the episodes \d+ to \d+: the track has no length"
    assert re.fullmatch(sentence, err.splitlines()[-1])
    assert "Traceback" not in err
    assert len(Episodes.load(tmp_path / "a.npz")) == 4
    code, out, err = butfor_command(*command)
    assert code == 0, err
    assert len(Episodes.load(tmp_path / "a.npz")) == 9


def test_errors_of_the_library_itself_are_not_hidden(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that nobody foresaw comes with its traceback."""

    def fail(*values: Any, **named: Any) -> None:
        raise RuntimeError("predictor was called in training mode")

    monkeypatch.setattr(train_library, "train", fail)
    with pytest.raises(RuntimeError, match="predictor was called"):
        butfor_command("train", "slide")


# -------------------------------------------------------------------------------------------------- studies


def test_study_list_has_a_line_for_each(butfor_command: Butfor) -> None:
    code, out, err = butfor_command("study", "list")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(STUDIES)


@pytest.mark.parametrize(("options", "processes"), [([], 1), (["--processes", "3"], 3)])
def test_study_run_asks_for_its_runs_and_says_how_far_they_are(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, options: list[str], processes: int
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(units, "run_here", lambda *given: asked.append(given))
    size = ["--size", "small", "--seeds", "2", "--episodes", "300"]
    code, out, _ = butfor_command("study", "run", "partial-rescoring", *size, "--device", "cpu", *options)
    assert code == 0
    configs = [arm.config for arm in make_study("partial-rescoring", "small", seeds=2, episodes=300).arms]
    assert asked[0][:4] == (configs, Path("studies"), ["cpu"] * processes, None)
    assert "Rescoring in part" in out
    assert "Report: studies/reports/partial-rescoring-small.html" in out
    code, again, _ = butfor_command("study", "status", "partial-rescoring", *size)
    assert code == 0
    assert again.strip() in out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["list", "combined"], ["takes no name; got combined"]),
        (["run"], ["Which study?", "combined"]),
        (["run", "combine"], ["combine"]),
        (["run", "combined", "--processes", "0"], ["--processes is 0; give at least 1"]),
        (["run", "combined", "--processes", "2", "--ray", "auto"], ["on Ray leave it to --cpus and --gpus"]),
        (["run", "combined", "--cpus", "2"], ["--cpus and --gpus are for --ray"]),
        (["run", "combined", "--time-limit", "-1"], ["--time-limit is -1"]),
        (["report", "--root", "nothing"], ["nothing holds no studies yet"]),
    ],
)
def test_a_mistake_in_a_study_is_one_sentence(butfor_command: Butfor, arguments: list[str], parts: list[str]) -> None:
    assert_one_sentence(butfor_command("study", *arguments), *parts)


@pytest.mark.parametrize("action", ["report", "films"])
def test_pages_of_a_study_that_was_not_run_so_say_why(butfor_command: Butfor, tmp_path: Path, action: str) -> None:
    def told(*arguments: str) -> Result:
        return butfor_command("study", action, *arguments, "--root", "st")

    write_study(make_study("heatmaps", "small"), tmp_path / "st", "small")
    write_study(make_study("table1"), tmp_path / "st", "paper")
    assert_one_sentence(told("heatmap"), "There is no study 'heatmap'; the studies are table1, ", *STUDIES)
    again = f"butfor study {action} heatmaps --root st --size small"
    assert_one_sentence(told("heatmaps"), f"heatmaps was run with --size small; add that: {again}")
    again = f"butfor study {action} table1 --root st\n"
    assert_one_sentence(
        told("table1", "--size", "small"), f"table1 was not run with --size small; leave that out: {again}"
    )
    again = "not run yet in st; run it first by: butfor study run combined --root st"
    assert_one_sentence(told("combined"), f"{again}\n")
    assert_one_sentence(told("combined", "--size", "small"), f"{again} --size small\n")
