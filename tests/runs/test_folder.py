"""The run folder is opened only for its own config, and no files of others are ever deleted."""

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.configs import FOREIGN, Inner, Outer, content, edit_config
from support.files import full_disk
from support.project import ROOT

import butfor
from butfor.runs import folder as run_folder
from butfor.runs.config import plain
from butfor.runs.digests import remove_digest
from butfor.runs.files import read_json, write_json
from butfor.runs.folder import (
    Events,
    append_metrics,
    invoked_as,
    invoked_command,
    open_run,
    run_name,
    truncate_metrics,
    versions,
    versions_resumed,
    write_metrics,
)
from butfor.runs.reading import read_metrics

git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.mark.parametrize("make_first", [False, True])
def test_a_new_folder_gets_its_config(tmp_path: Path, make_first: bool) -> None:
    folder = tmp_path / "runs" / "a"
    if make_first:  # an empty folder is as good as none
        folder.mkdir(parents=True)
    assert open_run(str(folder), "detection", Outer(seeds=2)) == folder
    assert content(folder).keys() == {"config.json"}
    assert read_json(folder / "config.json") == {
        "schema": 1,
        "kind": "detection",
        "label": "detection-slide-seeds=2",
        "config": {
            "env": "slide",
            "seeds": 2,
            "model": {"width": 64, "betas": [0.9, 0.999]},
            "fitting": {"width": 128, "betas": [0.9, 0.999]},
            "form": None,
            "extra": None,
        },
    }


def test_the_same_config_goes_on_and_keeps_every_file(tmp_path: Path) -> None:
    folder = open_run(tmp_path / "run", "detection", Outer())
    (folder / "data").mkdir()
    (folder / "data" / "test.npz").write_bytes(b"data")
    before = content(folder)
    open_run(folder, "detection", Outer())
    assert content(folder) == before


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("detection", Outer(seeds=2)),
        ("detection", Outer(model=Inner(width=65))),
        ("training", Outer()),
        ("detection", Inner()),
    ],
)
def test_other_settings_are_refused_and_nothing_changes(tmp_path: Path, kind: str, config: Any) -> None:
    folder = open_run(tmp_path / "run", "detection", Outer())
    before = content(folder)
    with pytest.raises(FileExistsError, match=r"run .*--overwrite"):
        open_run(folder, kind, config)
    assert content(folder) == before


def test_overwrite_starts_anew(tmp_path: Path) -> None:
    folder = open_run(tmp_path / "run", "detection", Outer())
    (folder / "data").mkdir()
    (folder / "data" / "test.npz").write_bytes(b"data")
    (folder / "summary.json").write_text("{}")
    open_run(folder, "detection", Outer(seeds=2), overwrite=True)
    assert content(folder).keys() == {"config.json"}
    assert read_json(folder / "config.json")["config"]["seeds"] == 2


def test_overwrite_removes_only_what_a_run_consists_of(tmp_path: Path) -> None:
    folder = open_run(tmp_path / "run", "detection", Outer())
    own = ["summary.json", "checkpoint/00000002-0001-0123456789abcdef.pt", "data/test.npz", "data/agents/config.json",
           "data/agents/metrics.jsonl", "events/events.out.tfevents.1.host", "figures/roc-test-exact.png",
           "pictures/index.json", ".summary.json.99999.part", "player.json", "scores-random.npz",
           "data/train-000100.npz", "data/random-train.npz"]  # fmt: skip
    others = [
        "thesis.tex",
        "data/mine.npz",
        "data/training-set.npz",
        "data/expert_demos.npz",
        "data/test-2024.npz",
        "figures/mine.png",
        "checkpoint/mine.txt",
        "deep/er/notes.md",
    ]
    for name in own + others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "index.json").write_text("precious")
    shutil.rmtree(folder / "pictures")
    (folder / "pictures").symlink_to(elsewhere)
    open_run(folder, "detection", Outer(seeds=2), overwrite=True)
    assert content(folder).keys() == {"config.json", *others}
    assert (elsewhere / "index.json").read_text() == "precious"
    assert read_json(folder / "config.json")["config"]["seeds"] == 2


def test_overwrite_of_a_training_run_removes_no_data(tmp_path: Path) -> None:
    """`butfor train --run . --overwrite` where somebody keeps data."""
    open_run(tmp_path, "training", Outer())
    (tmp_path / "data").mkdir()
    for name in ("data/train.npz", "data/expert.npz", "data/agents.npz", "model.safetensors"):
        (tmp_path / name).write_text("")
    open_run(tmp_path, "training", Outer(seeds=2), overwrite=True)
    assert content(tmp_path).keys() == {"config.json", "data/train.npz", "data/expert.npz", "data/agents.npz"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_in_the_way_is_refused_and_kept(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "run").write_text("precious")
    with pytest.raises(FileExistsError, match=f"{tmp_path / 'run'} "):
        open_run(tmp_path / "run", "detection", Outer(), overwrite)
    assert (tmp_path / "run").read_text() == "precious"


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_folder_is_never_changed(tmp_path: Path, files: dict[str, str], overwrite: bool) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    before = content(folder)
    with pytest.raises((FileExistsError, ValueError), match=f"{folder}") as caught:
        open_run(folder, "detection", Outer(), overwrite)
    assert content(folder) == before
    assert "--overwrite" not in str(caught.value)  # nobody is led to delete what is not a run


def test_overwriting_a_link_to_a_run_spares_what_it_points_to_or_starts_anew(tmp_path: Path) -> None:
    real = open_run(tmp_path / "real", "detection", Outer())
    (tmp_path / "link").symlink_to(real)
    try:
        open_run(tmp_path / "link", "detection", Outer(seeds=2), overwrite=True)
    except OSError:
        assert read_json(real / "config.json")["config"]["seeds"] == 5
    else:
        assert read_json(tmp_path / "link" / "config.json")["config"]["seeds"] == 2


def test_overwriting_the_current_folder_works_or_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_run(tmp_path / "run", "detection", Outer())
    (folder / "summary.json").write_text("{}")
    before = content(folder)
    monkeypatch.chdir(folder)
    try:
        open_run(".", "detection", Outer(seeds=2), overwrite=True)
    except OSError:
        assert content(folder) == before
    else:
        assert content(folder).keys() == {"config.json"}


@pytest.mark.parametrize("text", ["", '{"schema": 1, "kind": "detec'])
def test_a_damaged_config_is_named(tmp_path: Path, text: str) -> None:
    folder = open_run(tmp_path / "run", "detection", Outer())
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        open_run(folder, "detection", Outer())


def test_a_run_from_before_a_field_existed_goes_on_with_its_default(tmp_path: Path) -> None:
    folder = open_run(tmp_path / "run", "detection", Outer(seeds=2))
    new = (folder / "config.json").read_text()
    older = plain(Outer(seeds=2))
    del older["form"], older["model"]["betas"]
    edit_config(folder, config=older)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(FileExistsError, match=f"{folder} .*settings"):
        open_run(folder, "detection", Outer(seeds=2, form="mean"))
    open_run(folder, "detection", Outer(seeds=2))
    assert (folder / "config.json").read_text() == new
    assert (folder / "metrics.jsonl").exists()


def test_a_run_of_a_newer_schema_is_refused_and_kept(tmp_path: Path) -> None:
    folder = open_run(tmp_path / "run", "detection", Outer())
    edit_config(folder, schema=2)
    before = content(folder)
    with pytest.raises(ValueError, match="schema 2"):
        open_run(folder, "detection", Outer())
    assert content(folder) == before


def test_versions_say_what_a_result_depends_on() -> None:
    with invoked_as("butfor detect slide"):
        found = versions("cpu")
    needed = {
        "butfor", "commit", "python", "torch", "numpy", "platform", "processor", "device", "threads",
        "command", "started",
    }  # fmt: skip
    assert needed <= found.keys()
    assert found["butfor"] == butfor.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["torch"] == torch.__version__
    assert found["numpy"] == np.__version__
    assert found["device"] == "cpu"
    assert found["threads"] == torch.get_num_threads()
    assert found["command"] == "butfor detect slide"
    assert found["processor"]
    age = datetime.now(UTC) - datetime.fromisoformat(found["started"])
    assert -1 <= age.total_seconds() < 60
    assert json.loads(json.dumps(found)) == found


@git
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_commit_is_that_of_the_checkout() -> None:
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    match = re.fullmatch(r"([0-9a-f]{12,40})(-dirty)?", str(versions("cpu")["commit"]))
    assert match
    assert head.stdout.startswith(match[1])


@git
def test_the_commit_of_somebody_elses_repository_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """butfor is often installed in an ignored .venv inside the repository of another project."""
    package = tmp_path / ".venv" / "butfor"
    package.mkdir(parents=True)
    (package / "record.py").write_text("")
    (tmp_path / ".gitignore").write_text(".venv\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "theirs"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    monkeypatch.setattr(run_folder, "__file__", str(package / "record.py"))
    monkeypatch.setenv("BUTFOR_COMMIT", "abc123")
    assert versions("cpu")["commit"] == "abc123"


def test_without_git_the_commit_is_as_told_or_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BUTFOR_COMMIT", "abc123")
    assert versions("cpu")["commit"] == "abc123"
    monkeypatch.delenv("BUTFOR_COMMIT")
    assert versions("cpu")["commit"] is None


def test_a_run_that_goes_on_says_what_began_it_and_what_was_different_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUTFOR_COMMIT", "abc123")
    with invoked_as("butfor train push"):
        first = versions_resumed(tmp_path, "cpu")
    write_json(tmp_path / "versions.json", first)
    assert (first["commit"], first["command"], "resumed" in first) == ("abc123", "butfor train push", False)
    for commit in ("abc123", "def456"):
        monkeypatch.setenv("BUTFOR_COMMIT", commit)
        with invoked_as("butfor train --resume run"):
            write_json(tmp_path / "versions.json", versions_resumed(tmp_path, "cpu"))
    found = read_json(tmp_path / "versions.json")
    resumed = found.pop("resumed")
    assert found == first
    assert [one["command"] for one in resumed] == ["butfor train --resume run"] * 2
    assert [one.get("commit") for one in resumed] == [None, "def456"]
    assert "torch" not in resumed[0]


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"resumed": 3}'])
def test_a_damaged_record_of_the_versions_does_not_keep_a_run_from_going_on(tmp_path: Path, text: str) -> None:
    (tmp_path / "versions.json").write_text(text)
    assert versions_resumed(tmp_path, "cpu")["torch"] == torch.__version__


ROWS = [{"detector": "cai", "seed": seed, "auc": 0.1 * seed, "note": "a\nb ä"} for seed in range(3)]


def test_metrics_come_back_one_row_a_line(tmp_path: Path) -> None:
    write_metrics(tmp_path, iter(ROWS))
    assert read_metrics(str(tmp_path)) == ROWS
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [remove_digest(json.loads(line), "") for line in lines] == ROWS
    write_metrics(tmp_path, ROWS[:1])  # anew, not appended
    assert read_metrics(tmp_path) == ROWS[:1]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_no_metrics_are_an_empty_file(tmp_path: Path) -> None:
    write_metrics(tmp_path, [])
    assert read_metrics(tmp_path) == []


def test_a_last_line_cut_off_anywhere_is_left_out(tmp_path: Path) -> None:
    write_metrics(tmp_path, ROWS)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1  # of the last line
    for length in range(start, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert read_metrics(tmp_path) == ROWS[:2]
    path.write_bytes(whole[:-1])  # only the newline is missing
    assert read_metrics(tmp_path) == ROWS


def test_a_crash_while_writing_metrics_keeps_the_old_ones(tmp_path: Path) -> None:
    write_metrics(tmp_path, ROWS)

    def rows() -> Any:
        yield ROWS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_metrics(tmp_path, rows())
    assert read_metrics(tmp_path) == ROWS
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_missing_metrics_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        read_metrics(tmp_path)


def test_appended_rows_come_after_those_already_there(tmp_path: Path) -> None:
    append_metrics(tmp_path, ROWS[:1])
    append_metrics(tmp_path, iter(ROWS[1:]))
    append_metrics(tmp_path, [])
    assert read_metrics(tmp_path) == ROWS
    written_at_once = tmp_path / "once"
    written_at_once.mkdir()
    write_metrics(written_at_once, ROWS)
    assert (tmp_path / "metrics.jsonl").read_bytes() == (written_at_once / "metrics.jsonl").read_bytes()


def write_calls() -> int:
    """How often this thread has asked the system to write."""
    return int(re.findall(r"syscw: (\d+)", Path("/proc/thread-self/io").read_text())[0])


@pytest.mark.skipif(not Path("/proc/thread-self/io").exists(), reason="the system does not count writes")
def test_rows_are_appended_in_one_write(tmp_path: Path) -> None:
    """Also those that exceed a buffer by far."""
    rows = [{"episode": number, "text": "x" * 1000} for number in range(100)]
    append_metrics(tmp_path, rows[:1])
    before = write_calls()
    append_metrics(tmp_path, rows[1:])
    assert write_calls() == before + 1
    assert read_metrics(tmp_path) == rows


def test_appending_after_a_crash_at_any_byte_loses_only_the_cut_off_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_metrics(tmp_path, ROWS[:2])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        append_metrics(tmp_path, ROWS[2:])
        kept = (length >= first - 1) + (length >= len(whole) - 1)  # a row without its newline is a row
        assert read_metrics(tmp_path) == ROWS[:kept] + ROWS[2:]
        assert path.read_bytes().count(b"\n") == kept + 1
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_appending_replaces_a_tail_of_zeros(tmp_path: Path) -> None:
    """What some file systems leave after a power failure."""
    write_metrics(tmp_path, ROWS[:2])
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(bytes(100))
    append_metrics(tmp_path, ROWS[2:])
    assert read_metrics(tmp_path) == ROWS


EPISODES = [{"episode": episode, "seed": seed, "success": 0.5} for episode in (50, 100, 150) for seed in range(2)]


@pytest.mark.parametrize(("episode", "kept"), [(0, 0), (49, 0), (50, 2), (149, 4), (150, 6), (1000, 6)])
def test_rows_after_an_episode_are_removed(tmp_path: Path, episode: int, kept: int) -> None:
    append_metrics(tmp_path, EPISODES)
    truncate_metrics(tmp_path, episode)
    assert read_metrics(tmp_path) == EPISODES[:kept]
    append_metrics(tmp_path, EPISODES[kept:])
    assert read_metrics(tmp_path) == EPISODES
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_truncating_removes_a_cut_off_line_and_needs_no_file(tmp_path: Path) -> None:
    truncate_metrics(tmp_path, 5)
    assert os.listdir(tmp_path) == []
    append_metrics(tmp_path, EPISODES)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    truncate_metrics(tmp_path, 1000)
    assert read_metrics(tmp_path) == EPISODES[:-1]
    assert path.read_bytes().endswith(b"\n")


def test_truncating_a_damaged_file_changes_nothing(tmp_path: Path) -> None:
    """A run whose metrics are damaged is not resumed: the rows after the damage are results, too."""
    append_metrics(tmp_path, EPISODES)
    path = tmp_path / "metrics.jsonl"
    damaged = path.read_bytes().replace(b'"seed"', b"seed", 1)
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"line 1"):
        truncate_metrics(tmp_path, 1000)
    assert path.read_bytes() == damaged


def test_a_crash_while_truncating_keeps_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_metrics(tmp_path, EPISODES)

    def crash(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            truncate_metrics(tmp_path, 50)
    assert read_metrics(tmp_path) == EPISODES
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows: the steps and values of each curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "events"))
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that passes: TensorBoard orders its files by the second in which they were opened."""
    pytest.importorskip("tensorboard")
    seconds = count(1_700_000_000)
    name = "tensorboard.summary.writer.event_file_writer.time"
    monkeypatch.setattr(name, SimpleNamespace(time=lambda: next(seconds)))


@pytest.mark.usefixtures("clock")
def test_tensorboard_reads_the_curves(tmp_path: Path) -> None:
    events = Events(tmp_path)
    events.add({"success": 0.25, "score/object": -1.5}, 50)
    assert curves(tmp_path) == {"success": [(50, 0.25)], "score/object": [(50, -1.5)]}  # before it is closed
    events.add({"success": 0.5}, 100)
    events.close()
    assert curves(tmp_path) == {"success": [(50, 0.25), (100, 0.5)], "score/object": [(50, -1.5)]}
    assert os.listdir(tmp_path) == ["events"]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("purge_step", "kept"), [(None, 3), (0, 0), (99, 1), (100, 2), (150, 3)])
def test_steps_after_the_checkpoint_are_hidden(tmp_path: Path, purge_step: int | None, kept: int) -> None:
    first = Events(tmp_path, None)
    for step in (50, 100, 150):
        first.add({"success": 0.25}, step)
    second = Events(tmp_path, purge_step)  # the first was killed, not closed
    second.add({"success": 0.5}, 200)
    expected = [(50, 0.25), (100, 0.25), (150, 0.25)][:kept]
    assert curves(tmp_path) == {"success": [*expected, (200, 0.5)]}
    first.close()
    second.close()


@pytest.mark.parametrize("points", [0, 200])
def test_curves_that_cannot_be_written_are_a_sentence_without_a_traceback(
    tmp_path: Path, points: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorBoard writes in a thread of its own, which would print one; the error comes at the start or later."""
    pytest.importorskip("tensorboard")

    def write() -> None:
        events = Events(tmp_path)
        for step in range(points):
            events.add({"success": 0.5}, step)

    with full_disk(10 if points == 0 else 500), pytest.raises(OSError, match=r"events could not be written \(File too"):
        write()
    assert capsys.readouterr().err == ""


def test_without_tensorboard_a_run_goes_on_and_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    with pytest.warns(UserWarning, match=r"pip install 'butfor\[tensorboard\]'") as told:
        events = Events(tmp_path, 5)
    assert len(told) == 1
    assert told[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        events.add({"success": 0.5}, 1)
        events.close()
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------------- names


@dataclass(frozen=True)
class Settings:
    """Settings as those of a training run."""

    env: str = "push"
    seeds: int = 5
    signal: str = "cai"
    use: tuple[str, ...] = ()
    annealed: bool = False
    weights: tuple[float, ...] = ()
    extra: Inner | None = None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Settings(), "push"),
        (Settings(use=("priority", "bonus")), "push-priority-bonus"),
        (Settings(seeds=10, signal="vime", use=("bonus",)), "push-vime-bonus-seeds10"),
        (Settings(annealed=True), "push-annealed"),
        (Settings(extra=Inner(width=3)), "push-extra-width3"),
        (Settings(weights=(0.5, 2)), "push-weights-0.5-2"),
        (Settings(env="Near:Far/Reach-v0", seeds=2), "Near-Far-Reach-v0-seeds2"),
        (Settings(signal="x" * 50, seeds=2), "push-seeds2"),
    ],
)
def test_a_runs_name_says_what_is_different(config: Settings, words: str) -> None:
    name = run_name("training", config)
    assert re.fullmatch(rf"{re.escape(words)}-[0-9a-f]{{4}}", name), name
    assert run_name("detection", config) != name


def test_runs_that_share_the_words_have_different_names() -> None:
    configs = [Settings(signal=character * 50) for character in "abcdefgh"]
    assert len({run_name("training", config, digits=8) for config in configs}) == len(configs)


def test_the_command_is_recorded_only_while_it_runs() -> None:
    assert invoked_command() == versions("cpu")["command"] == ""
    with invoked_as("butfor train push"):
        assert versions("cpu")["command"] == "butfor train push"
    assert invoked_command() == ""
