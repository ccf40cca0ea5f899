"""`butfor train`: what its options become, what it refuses, faults during a run, and resuming it."""

import dataclasses
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import SMALL_TRAIN, Asked, Butfor, assert_error
from support.small_training import ALL_USES, TRACK, Track

from butfor.cli.collect import collect
from butfor.cli.train import PRESETS as DESCRIBED
from butfor.cli.train import train
from butfor.detection.settings import DetectionConfig
from butfor.envs import ENVS
from butfor.reporting.study_page import write_report
from butfor.runs import checkpoints
from butfor.runs.files import read_json, save_checkpoint
from butfor.runs.folder import open_run
from butfor.training import run as train_library
from butfor.training.agents.td3 import TD3Config
from butfor.training.loop import Trainer
from butfor.training.priorities import PriorityConfig
from butfor.training.settings import PRESETS, preset


def trained_as(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, *arguments: str) -> tuple[Any, ...]:
    """What `train` or `resume` is called with: its positional arguments, then those by name."""

    def stand_in(*values: Any, progress: Any, on_evaluation: Any, **named: Any) -> None:
        raise Asked(*values, named)

    monkeypatch.setattr(train_library, "train", stand_in)
    monkeypatch.setattr(train_library, "resume", stand_in)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Asked) as caught:
        butfor_command("train", *arguments)
    return caught.value.args


def test_the_train_command_of_the_paper_parses(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    command = "pick-and-place --use priority bonus active --seeds 10 --episodes 3000 --device auto"
    config, folder, device, named = trained_as(monkeypatch, butfor_command, *shlex.split(command))
    expected = dataclasses.replace(preset("pick-and-place"), use=ALL_USES, seeds=10, episodes=3000)
    assert config == expected
    assert (folder, device) == (None, "cpu")
    assert named == {"overwrite": False, "time_limit": None, "keep_episodes": None}


@pytest.mark.parametrize("env", ["slide", "push", "pick-and-place", "rot-table", "butfor/FetchPush-v0"])
def test_without_options_an_environment_is_trained_by_its_preset(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, env: str
) -> None:
    assert trained_as(monkeypatch, butfor_command, env)[0] == preset(env)


def test_the_kind_of_priority_and_its_settings(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    config = trained_as(monkeypatch, butfor_command, "push", "--priority.kind=per", "--priority.alpha", "0.5")[0]
    assert config == dataclasses.replace(preset("push"), priority=PriorityConfig("per", alpha=0.5))


def test_recorded_episodes_select_the_preset_for_them(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    config = trained_as(monkeypatch, butfor_command, "push", "--data", "a.npz", "b.npz", "--data-share", "0.1")[0]
    assert config == dataclasses.replace(preset("push", "offline"), data=("a.npz", "b.npz"), data_share=0.1)


def test_the_help_names_every_preset_and_environment() -> None:
    for text, names in ((DESCRIBED, PRESETS), (str(train.__doc__), ENVS), (str(collect.__doc__), ENVS)):
        assert [name for name in names if not re.search(rf"[ (]{name}[ ,(]", f"{text} ".replace("\n", " "))] == []


@pytest.mark.parametrize("name", ["paper", "record", "intrinsic", "fast"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_preset_is_where_the_other_options_start_from(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, name: str, joined: bool
) -> None:
    chosen = [f"--preset={name}"] if joined else ["--preset", name]
    config = trained_as(monkeypatch, butfor_command, "pick-and-place", "--seeds", "4", *chosen)[0]
    assert config == dataclasses.replace(preset("pick-and-place", name), seeds=4)


def test_every_part_of_the_settings_can_be_changed(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    command = (
        "slide --use bonus --overlap acting model --entities ball=2:4 --num-envs 2 --no-tf32 "
        "--algorithm td3 --td3.policy-delay 3 --agent.target-range -20 0 --replay.hindsight 0.5 "
        "--explore.active 0.5 --bonus.cap 1.5 --bonus.ceiling None --fit-schedule 50 7 100 5 "
        "--cai.network.width 12 --cai.scoring.form mean --cai.only-sampled "
        "--run here --overwrite --time-limit 1.5 --keep-episodes kept.npz --device cpu"
    )
    config, folder, device, named = trained_as(monkeypatch, butfor_command, *shlex.split(command))
    base = preset("slide")
    network = dataclasses.replace(base.cai.network, width=12)
    scoring = dataclasses.replace(base.cai.scoring, form="mean")
    cai = dataclasses.replace(base.cai, network=network, scoring=scoring, only_sampled=True)
    expected = dataclasses.replace(
        base, use=("bonus",), fit_schedule=((50, 7), (100, 5)), cai=cai,
        overlap=("acting", "model"), entities=("ball=2:4",), num_envs=2, tf32=False,
        algorithm="td3", td3=TD3Config(policy_delay=3),
        agent=dataclasses.replace(base.agent, target_range=(-20.0, 0.0)),
        replay=dataclasses.replace(base.replay, hindsight=0.5),
        explore=dataclasses.replace(base.explore, active=0.5),
        bonus=dataclasses.replace(base.bonus, cap=1.5, ceiling=None),
    )  # fmt: skip
    assert config == expected
    assert (folder, device) == (Path("here"), "cpu")
    assert named == {"overwrite": True, "time_limit": 1.5, "keep_episodes": Path("kept.npz")}


def test_a_run_is_resumed_by_its_folder(
    monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor, tmp_path: Path
) -> None:
    for name in ("a", "runs/slide-1a2b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    for text in ("runs/slide-1a2b", "slide", "latest"):
        folder, device, named = trained_as(monkeypatch, butfor_command, "--resume", text)
        assert (folder, device) == (Path("runs/slide-1a2b"), "cpu")
    assert named == {"episodes": None, "time_limit": None, "keep_episodes": None}
    command = "--episodes 50 --resume=a --time-limit 3 --keep-episodes b.npz --device cpu"
    folder, device, named = trained_as(monkeypatch, butfor_command, *shlex.split(command))
    assert (folder, device) == (Path("a"), "cpu")
    assert named == {"episodes": 50, "time_limit": 3.0, "keep_episodes": Path("b.npz")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "slide", "--help"], ["--use", "--priority.kind", "--preset", "--resume", "(default: none)"]),
        (
            ["train", "--help"],
            ["butfor train ENV", "those of pick-and-place", "--help-all"],
        ),
        (["train", "--help-all"], ["--fit-schedule", "--agent.layers", "--preset"]),
        (["train", "--resume", "a", "--help"], ["--episodes", "--time-limit", "--keep-episodes", "--device"]),
        (["evaluate", "--help"], ["RUN", "--episodes", "--device"]),
        (["watch", "--help"], ["RUN", "--out", "--seed", "--first", ".mp4"]),
        (["collect", "--help"], ["ENV", "--policy", "--agent-seed", "--out"]),
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
    assert "(default: )" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slide", "--sedes", "2"], ["--sedes"]),
        (["slide", "--seeds", "two"], ["--seeds", "two"]),
        (["slide", "--use", "prio"], ["prio", "priority"]),
        (["slide", "--priority.kind", "vip"], ["vip", "per", "ebp"]),
        (["slide", "push"], ["push"]),
        (["--seeds", "2", "slide"], ["slide"]),
        (["slide", "--env", "push"], ["--env"]),
        (["slide", "--device", "tpu"], ["tpu", "cuda"]),
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
        ([], ["butfor train ENV"]),
        (["--seeds", "2"], ["butfor train ENV"]),
        (["nowhere"], ["'nowhere'"]),
        (["slid", "--seeds", "2"], ["'slide'"]),
        (["CartPole-v1"], ["CartPole-v1"]),
        (["slide", "--preset", "slow"], ["'slow'", "intrinsic"]),
        (["slide", "--seeds", "0"], ["seeds", "got 0"]),
        (["slide", "--agent.discount", "2"], ["discount", "2.0"]),
        (["slide", "--cai.network.width", "0"], ["width", "got 0"]),
        (["slide", "--first-seed", "-1"], ["first_seed", "-1"]),
        (["slide", "--episodes", "60", "--warmup", "70"], ["60", "70"]),
        (["slide", "--use", "priority", "--priority.kind", "per"], ["'per'"]),
        (["slide", "--use", "intrinsic"], ["agent.target_range"]),
        (["slide", "--priority.kind", "ebp"], ["ebp"]),
        (["slide", "--use", "bonus", "--entities", "ball=9"], ["9"]),
        (["slide", "--device", "cuda"], ["CUDA"]),
        (["--resume", "nowhere"], ["nowhere"]),
        (
            ["--resume", "a", "--seeds", "3"],
            ["--seeds 3", "--episodes", "--time-limit", "--keep-episodes", "--device"],
        ),
        (["slide", "--resume", "a"], ["slide", "--resume"]),
    ],
)
def test_wrong_settings_are_one_sentence(
    butfor_command: Butfor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_error(butfor_command("train", *arguments), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_to_more_episodes(tiny_run: Path, butfor_command: Butfor, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    code, out, err = butfor_command("train", "--resume", "run", "--episodes", "10", "--device", "cpu")
    assert code == 0, err
    assert "after 10 episodes" in out
    assert "Run: run\nReport: run/report.html\nNext: open run/report.html" in out
    assert (tmp_path / "run/model.safetensors").read_bytes() != (tiny_run / "model.safetensors").read_bytes()


def test_a_detection_run_cannot_be_resumed_as_training(butfor_command: Butfor, tmp_path: Path) -> None:
    open_run(tmp_path / "run", "detection", DetectionConfig())
    assert_error(butfor_command("train", "--resume", "run"), "'detection'")


def broken_env(monkeypatch: pytest.MonkeyPatch) -> None:
    Track.steps = 0
    monkeypatch.setattr(Track, "breaks_at", 260)


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, state: Any) -> None:
        if state["replay"]["stored"] < 7:
            return save_checkpoint(path, state)
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(checkpoints, "save_checkpoint", full)


def broken_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Trainer.update

    def broken(self: Trainer) -> None:
        update(self)
        if self.replay.stored == 7:
            self.statistics[0] = float("nan")

    monkeypatch.setattr(Trainer, "update", broken)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (broken_env, r"butfor-test/Track-v0 .*ZeroDivisionError.*the track has no length"),
        (full_disk, r".*episode 7 .*No space left on device"),
        (broken_loss, r".*replica 0 "),
    ],
)
def test_after_an_error_during_training_the_run_can_be_resumed(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Any, sentence: str
) -> None:
    with monkeypatch.context() as patch:
        fault(patch)
        code, out, err = butfor_command("train", TRACK, *SMALL_TRAIN, "--run", "run")
    assert (code, out) == (1, "")
    assert re.match(f"Error: {sentence}", err.splitlines()[-1])
    assert "Traceback" not in err
    assert list((tmp_path / "run/checkpoint").glob("0000000[4-6]-*.pt"))
    assert not read_json(tmp_path / "run/summary.json")["finished"]
    code, out, err = butfor_command("train", "--resume", "run", "--device", "cpu")
    assert code == 0, err
    assert "Run: run\nReport: run/report.html\nNext: open run/report.html" in out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("slide --signal vime --cai.network.width 12", ["--cai.network.width"]),
        ("slide --td3.policy-delay 3", ["--td3.policy-delay"]),
        (
            "slide --preset disagreement --cai.batch-size 12 --cai.scoring.actions 5",
            ["--cai.scoring.actions", "--cai.batch-size"],
        ),
    ],
)
def test_settings_that_a_rival_ignores_are_refused(butfor_command: Butfor, command: str, options: list[str]) -> None:
    assert_error(butfor_command("train", *command.split()), *options)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("slide --use priority --use bonus", "--use"),
        ("slide --use bonus --entities a=0 --entities=b=2", "--entities"),
        ("slide --cai.batch-size 8 --cai.batch_size 9", "--cai.batch-size"),
        ("--resume here --resume there", "--resume"),
    ],
)
def test_an_option_that_is_given_twice_is_refused(butfor_command: Butfor, command: str, option: str) -> None:
    assert_error(butfor_command("train", *command.split()), option, "2 times")


def test_settings_that_a_rival_shares_are_used(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    command = "slide --signal vime --fit-every 7 --fit-schedule 50 7 --cai.network.target-scale 3"
    config = trained_as(monkeypatch, butfor_command, *command.split())[0]
    assert (config.fit_every, config.fit_schedule, config.cai.network.target_scale) == (7, ((50, 7),), 3.0)


def test_entities_are_named_in_words(monkeypatch: pytest.MonkeyPatch, butfor_command: Butfor) -> None:
    command = "push --entities cube=3:6 hand=0:3 --combine max --use priority bonus active"
    expected = dataclasses.replace(
        preset("push"), entities=("cube=3:6", "hand=0:3"), combine="max", use=("priority", "bonus", "active")
    )
    assert trained_as(monkeypatch, butfor_command, *command.split())[0] == expected


def test_help_lists_few_options(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    listed = [
        len(set(re.findall(r"(?<![\w-])--[a-z][\w.-]+", butfor_command("train", "slide", option)[1])))
        for option in ("--help", "--help-all")
    ]
    assert listed[0] <= 30
    assert listed[1] > 60


def test_a_running_training_has_a_page_that_loads_itself_again(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages: list[str] = []

    def write(run: Path, out: Path | None = None, running: bool = False) -> Path:
        page = write_report(run, out, running)
        pages.append(page.read_text(encoding="utf-8"))
        return page

    monkeypatch.setattr("butfor.reporting.study_page.write_report", write)
    monkeypatch.setattr("butfor.cli.train.BETWEEN_PAGES", 0)
    code, out, _ = butfor_command("train", TRACK, *SMALL_TRAIN, "--run", "run")
    assert code == 0
    assert "Report: run/report.html" in out
    assert len(pages) >= 2
    assert all('http-equiv="refresh"' in page for page in pages[:-1])
    assert 'http-equiv="refresh"' not in pages[-1]


def test_a_page_that_cannot_be_written_does_not_stop_the_training(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run: Path, out: Path | None = None, running: bool = False) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr("butfor.reporting.study_page.write_report", refuse)
    code, out, err = butfor_command("train", TRACK, *SMALL_TRAIN, "--run", "run")
    assert code == 0
    assert "no space left" in err
    assert "butfor report run" in out


def test_training_ends_well_where_plotly_is_missing(
    butfor_command: Butfor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise ImportError("No module named 'plotly'")

    monkeypatch.setattr("butfor.reporting.study_page.write_report", fail)
    code, _, err = butfor_command("train", TRACK, *SMALL_TRAIN, "--run", str(tmp_path / "run"))
    assert code == 0
    assert "plotly" in err
    assert (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / "report.html").exists()


def test_no_report_on_demand(butfor_command: Butfor, tmp_path: Path) -> None:
    code, out, _ = butfor_command("train", TRACK, *SMALL_TRAIN, "--run", str(tmp_path / "run"), "--no-report")
    assert code == 0
    assert f"butfor report {tmp_path / 'run'}" in out
    assert not [*(tmp_path / "run").glob("*.html"), *(tmp_path / "run").glob("player*")]
