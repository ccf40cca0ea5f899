"""`butfor detect`: what its options become, what it refuses, and a whole small run."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import SMALL_DETECT, Asked, Butfor, Result, assert_error

from butfor.cli import detect
from butfor.detection import experiment as detection
from butfor.detection.settings import DetectionConfig, detection_preset
from butfor.runs.files import read_json
from butfor.runs.folder import open_run, run_name

OPTIONS = [
    "--preset", "--seeds", "--train-episodes", "--test-episodes", "--fitting.max-epochs", "--scoring.actions",
    "--run",
    "--overwrite", "--device", "--data", "--studies", "--random-episodes", "--agent-episodes", "--pictures",
]  # fmt: skip


def ask(config: DetectionConfig, folder: Path, device: str, overwrite: bool, progress: Any) -> None:
    raise Asked(config, folder, device, overwrite)


def asked_for(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, *arguments: str) -> tuple[Any, ...]:
    monkeypatch.setattr(detection, "run_detection", ask)
    with pytest.raises(Asked) as caught:
        butfor_command("detect", *arguments)
    return caught.value.args


def test_help_names_the_options(butfor_command: Butfor) -> None:
    code, out, err = butfor_command("detect", "--help")
    assert code == 0
    assert err == ""
    assert [word for word in (*OPTIONS, "slide", "paper", "demo", "cuda") if word not in out] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["detect", "slide", "--seeds"], ["--seeds"]),
        (["detect", "slide", "--preset", "foo"], ["foo", "paper", "demo"]),
        (["detect", "slide", "--scoring.form", "foo"], ["foo", "product", "variational", "mean_clip_product"]),
        (["detect", "slide", "--studies", "speed"], ["speed", "reference"]),
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
        (["nowhere"], ["'nowhere'"]),
        (["slid"], ["'slid'"]),
        (["nomodule:Env-v0"], ["'nomodule:Env-v0'"]),
        (["CartPole-v1"], ["'CartPole-v1'"]),
        ([""], ["''", "slide"]),
        (["slide", "--seeds", "0"], ["seeds", "got 0"]),
        (["slide", "--fitting.max-epochs", "0"], ["max_epochs"]),
        (["slide", "--scoring.actions", "1"], ["actions", "got 1"]),
        (["slide", "--train-episodes", "0"], ["train_episodes"]),
        (["slide", "--test-episodes", "-1"], ["test_episodes", "got -1"]),
        (["slide", "--studies", "noise", "reference"], ["reference", "slide"]),
        (["slide", "--random-episodes", "-1"], ["random_episodes", "got -1"]),
        (["slide", "--agent-episodes", "0"], ["agent_episodes", "got 0"]),
        (["slide", "--agent-envs", "8"], ["agent_envs", "8", "2000"]),
        (["slide", "--train-episodes", "2001"], ["2001", "2000", "agent_episodes"]),
        (["pick-and-place", "--agent-episodes", "5000"], ["7500", "5000"]),
    ],
)
def test_wrong_values_are_one_sentence(
    butfor_command: Butfor, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    assert_error(butfor_command("detect", *arguments), *words)
    assert list(tmp_path.iterdir()) == []  # no folder is left behind


def test_a_missing_gpu_is_an_error(butfor_command: Butfor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_error(butfor_command("detect", "slide", "--device", "cuda"), "CUDA", "--device cpu")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_the_run(butfor_command: Butfor, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("precious")
    assert_error(butfor_command("detect", "slide", "--run", "run"), "run")
    assert_error(butfor_command("detect", "slide", "--run", "run/inner"), "run")
    assert (tmp_path / "run").read_text() == "precious"


@pytest.mark.parametrize("arguments", [[], ["--overwrite"]])
def test_a_foreign_folder_is_left_alone(butfor_command: Butfor, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    result = butfor_command("detect", "slide", "--run", "thesis", *arguments)
    assert_error(result, "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "precious"


def test_options_end_in_the_config(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    config, folder, device, overwrite = asked_for(
        monkeypatch, butfor_command, "slide", "--preset", "demo", "--seeds", "3", "--train-episodes", "7",
        "--test-episodes", "8", "--fitting.max-epochs", "9", "--scoring.actions", "10", "--scoring.form", "mean",
        "--run", "here", "--overwrite", "--device", "cpu",
    )  # fmt: skip
    demo = detection_preset("slide", "demo")
    assert (config.seeds, config.train_episodes, config.test_episodes) == (3, 7, 8)
    assert (config.fitting.max_epochs, config.scoring.actions, config.scoring.form) == (9, 10, "mean")
    assert (config.validation_episodes, config.compare_forms) == (demo.validation_episodes, demo.compare_forms)
    assert (config.model, config.attention) == (demo.model, demo.attention)
    assert (folder, device, overwrite) == (Path("here"), "cpu", True)


@pytest.mark.parametrize("env", ["slide", "butfor/Slide-v0"])
def test_without_options_the_papers_run_has_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, env: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config, folder, device, overwrite = asked_for(monkeypatch, butfor_command, env)
    assert config == DetectionConfig()
    assert (folder, device, overwrite) == (Path("runs") / run_name("detection", config), "cpu", False)


def test_the_folder_is_named_after_the_settings(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    arguments = ["slide", "--seeds", "2", "--fitting.max-epochs", "7", "--scoring.actions", "8"]
    config, folder = asked_for(monkeypatch, butfor_command, *arguments)[:2]
    assert folder == Path("runs") / run_name("detection", config)
    assert folder != Path("runs") / run_name("detection", DetectionConfig())


def test_data_and_studies_end_in_the_config(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    config = asked_for(
        monkeypatch, butfor_command, "pick-and-place", "--data", "scripted", "--studies", "noise", "helps",
        "--random-episodes", "11", "--agent-episodes", "206", "--validation-episodes", "13",
        "--fitting.max-epochs", "14", "--agent-envs", "3", "--fitting.decay",
    )[0]  # fmt: skip
    paper = detection_preset("pick-and-place")
    expected = dataclasses.replace(
        paper, data="scripted", studies=("noise", "helps"), random_episodes=11, agent_episodes=206,
        validation_episodes=13, agent_envs=3, fitting=dataclasses.replace(paper.fitting, max_epochs=14, decay=True),
    )  # fmt: skip
    assert config == expected


@pytest.mark.parametrize(("given", "studies"), [([], ()), (["noise"], ("noise",))])
def test_studies_are_chosen_by_name_or_left_out(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, given: list[str], studies: Any
) -> None:
    config = asked_for(monkeypatch, butfor_command, "slide", "--studies", *given)[0]
    assert config == dataclasses.replace(DetectionConfig(), studies=studies)


@pytest.mark.parametrize("preset", ["paper", "reduced", "demo"])
@pytest.mark.parametrize("env", ["slide", "pick-and-place", "butfor/FetchPickAndPlace-v0"])
def test_without_options_the_preset_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, env: str, preset: str
) -> None:
    config = asked_for(monkeypatch, butfor_command, env, "--preset", preset)[0]
    assert config == detection_preset("slide" if env == "slide" else "pick-and-place", preset)


@pytest.mark.parametrize(
    ("env", "arguments", "drawn"),
    [("pick-and-place", [], True), ("pick-and-place", ["--no-pictures"], False), ("slide", [], False)],
)
def test_pictures_are_drawn_of_fetch_runs_unless_declined(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, env: str, arguments: list[str], drawn: bool
) -> None:
    """In the order: run, table, pictures, report; a report shows the pictures that are there."""
    from butfor.reporting import pictures, study_page

    done: list[tuple[str, Path]] = []
    monkeypatch.setattr(
        detection,
        "run_detection",
        lambda config, folder, *rest: done.append(("run", open_run(folder, "detection", config))),
    )
    monkeypatch.setattr(pictures, "write_pictures", lambda folder, progress: done.append(("pictures", folder)))
    monkeypatch.setattr(detect, "print_detection", lambda folder: done.append(("table", folder)))
    monkeypatch.setattr(study_page, "write_report", lambda folder: done.append(("report", folder)))
    assert butfor_command("detect", env, "--run", "here", *arguments)[0] == 0
    names = ["run", "table", *(["pictures"] if drawn else []), "report"]
    assert done == [(name, Path("here")) for name in names]


def test_where_nothing_can_be_drawn_the_table_and_the_report_are_there_all_the_same(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor
) -> None:
    from butfor.reporting import pictures, study_page

    def fail(folder: Path, progress: Any) -> None:
        raise RuntimeError("no screen, and no EGL either")

    done: list[str] = []
    monkeypatch.setattr(detection, "run_detection", lambda config, folder, *rest: open_run(folder, "detection", config))
    monkeypatch.setattr(pictures, "write_pictures", fail)
    monkeypatch.setattr(detect, "print_detection", lambda folder: done.append("table"))
    monkeypatch.setattr(study_page, "write_report", lambda folder: done.append("report"))
    code, _, errors = butfor_command("detect", "pick-and-place", "--run", "here")
    assert (code, done) == (0, ["table", "report"])
    assert "no screen" in errors


def test_an_interrupted_run_names_the_command_that_resumes(whole_run: tuple[Path, Result, Result]) -> None:
    code, out, err = whole_run[1]
    assert code == 130, err
    assert out == ""
    assert "Interrupted" in err
    assert "the same command" in err
    assert "Traceback" not in err


def test_the_same_command_finishes_an_interrupted_run(whole_run: tuple[Path, Result, Result]) -> None:
    folder, _, (code, out, err) = whole_run
    assert code == 0, err
    page = folder / "report.html"
    assert out.splitlines()[-2:] == [f"Report: {page}", f"Next: open {page} in a browser"]
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    assert not list(folder.rglob(".*"))  # nothing half-written is left
    assert "data:" not in err  # the data was there already
    for stage in ("fit CAI: 15 of 15", "fit Attention: 15 of 15", "scoring: ", "actions: 16 of 16"):
        assert stage in err


def test_the_table_names_every_detector_in_full_and_shows_the_papers_numbers(
    whole_run: tuple[Path, Result, Result],
) -> None:
    folder, _, (_, out, _) = whole_run
    summary = read_json(folder / "summary.json")
    assert f"{summary['positive_share']:.1%} of 600 states are influenced" in out
    missing = [row["title"] for row in summary["detectors"] + summary["forms"] if row["title"] not in out]
    assert missing == []
    for row in summary["detectors"]:
        line = next(line for line in out.splitlines() if row["title"] in line)
        shown = [float(number) for number in re.findall(r"\d\.\d+", line)]
        assert f"{row['auc']['mean']:.3f}" in line
        assert {round(number, 2) for number in shown} >= {paper[0] for paper in (row["paper"] or {}).values()}


def test_a_finished_run_is_shown_again_without_computing(
    whole_run: tuple[Path, Result, Result], butfor_command: Butfor
) -> None:
    folder, _, (_, first, _) = whole_run
    scores = (folder / "scores.npz").stat().st_mtime_ns
    code, out, err = butfor_command(*SMALL_DETECT, "--run", str(folder))
    assert (code, out, err) == (0, first, "")
    assert (folder / "scores.npz").stat().st_mtime_ns == scores


def test_other_settings_for_a_finished_run_are_refused(
    whole_run: tuple[Path, Result, Result], butfor_command: Butfor
) -> None:
    folder = whole_run[0]
    result = butfor_command(*SMALL_DETECT, "--scoring.form", "mean", "--run", str(folder))
    assert_error(result, "other settings", "--overwrite")
    assert (folder / "scores.npz").exists()
