"""The run folder is opened only for its own config, and nothing of anybody else is ever deleted."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT

import butfor
from butfor import record
from butfor.record import differences, flat, open_run, plain, read_metrics, run_label, versions, write_metrics

git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@dataclass(frozen=True)
class Inner:
    width: int = 128
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class Outer:
    world: str = "slide"
    seeds: int = 5
    model: Inner = Inner(width=64)  # not the type's own default
    fitting: Inner = field(default_factory=Inner)
    form: str | None = None
    extra: Inner | None = None


def content(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --------------------------------------------------------------------------------------------- open_run


@pytest.mark.parametrize("make_first", [False, True])
def test_a_new_folder_gets_its_config(tmp_path: Path, make_first: bool) -> None:
    folder = tmp_path / "runs" / "a"
    if make_first:  # an empty folder is as good as none
        folder.mkdir(parents=True)
    assert open_run(str(folder), "detection", Outer(seeds=2)) == folder
    assert content(folder).keys() == {"config.json"}
    assert json.loads((folder / "config.json").read_text()) == {
        "schema": 1,
        "kind": "detection",
        "label": "detection-slide-seeds=2",
        "config": {
            "world": "slide",
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
    with pytest.raises(FileExistsError, match=r"run holds a run with other settings; .*--overwrite"):
        open_run(folder, kind, config)
    assert content(folder) == before


def test_overwrite_starts_anew(tmp_path: Path) -> None:
    folder = open_run(tmp_path / "run", "detection", Outer())
    (folder / "data").mkdir()
    (folder / "data" / "test.npz").write_bytes(b"data")
    (folder / "summary.json").write_text("{}")
    open_run(folder, "detection", Outer(seeds=2), overwrite=True)
    assert content(folder).keys() == {"config.json"}
    assert json.loads((folder / "config.json").read_text())["config"]["seeds"] == 2


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_in_the_way_is_refused_and_kept(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "run").write_text("precious")
    with pytest.raises(FileExistsError, match="run is a file; give another name"):
        open_run(tmp_path / "run", "detection", Outer(), overwrite)
    assert (tmp_path / "run").read_text() == "precious"


FOREIGN: dict[str, dict[str, str]] = {
    "no config": {"thesis.tex": "precious"},
    "hidden": {".precious": "precious"},
    "another program's config": {"config.json": '{"model_type": "bert"}', "weights.bin": "precious"},
    "config that is a list": {"config.json": "[1, 2]", "weights.bin": "precious"},
    "config that is no JSON": {"config.json": "// precious\n{}", "weights.bin": "precious"},
    "config that is empty": {"config.json": "", "weights.bin": "precious"},
    "config with a config": {"config.json": '{"config": {"world": "slide"}}', "weights.bin": "precious"},
}


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_folder_is_never_changed(tmp_path: Path, files: dict[str, str], overwrite: bool) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    before = content(folder)
    with pytest.raises((FileExistsError, ValueError), match="mine") as caught:
        open_run(folder, "detection", Outer(), overwrite)
    assert content(folder) == before
    assert "--overwrite" not in str(caught.value)  # nobody is led to delete what is not a run


def test_overwriting_a_link_to_a_run_spares_what_it_points_to_or_starts_anew(tmp_path: Path) -> None:
    real = open_run(tmp_path / "real", "detection", Outer())
    (tmp_path / "link").symlink_to(real)
    try:
        open_run(tmp_path / "link", "detection", Outer(seeds=2), overwrite=True)
    except OSError:
        assert json.loads((real / "config.json").read_text())["config"]["seeds"] == 5
    else:
        assert json.loads((tmp_path / "link" / "config.json").read_text())["config"]["seeds"] == 2


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
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        open_run(folder, "detection", Outer())


# ------------------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("config", "label"),
    [
        (Outer(), "detection-slide"),
        (Outer(world="push"), "detection-push"),
        (Outer(seeds=2, form="mean"), "detection-slide-seeds=2-form=mean"),
        (Outer(model=Inner(width=64)), "detection-slide"),
        (Outer(model=Inner()), "detection-slide-model.width=128"),
        (Outer(fitting=Inner(width=64)), "detection-slide-fitting.width=64"),
        (Outer(fitting=Inner(betas=(0.0, 0.5))), "detection-slide-fitting.betas=(0.0, 0.5)"),
        (Inner(), "detection"),
        (Inner(width=1), "detection-width=1"),
    ],
)
def test_labels_say_how_a_config_differs_from_the_defaults(config: Any, label: str) -> None:
    assert run_label("detection", config) == label


def test_different_configs_have_different_labels() -> None:
    configs = [
        Outer(),
        Outer(seeds=1),
        Outer(model=Inner()),
        Outer(model=Inner(width=1)),
        Outer(fitting=Inner(width=1)),
        Outer(extra=Inner()),  # None by default: present with its defaults is a difference, too
        Outer(extra=Inner(width=1)),
    ]
    labels = [run_label("detection", config) for config in configs]
    assert len(set(labels)) == len(configs), labels


def test_differences_and_flat_name_nested_fields_with_dots() -> None:
    config = Outer(seeds=2, model=Inner(width=1))
    assert differences(config) == [("seeds", 2), ("model.width", 1)]
    names = [name for name, _ in flat(config)]
    assert names == [
        "world", "seeds", "model.width", "model.betas", "fitting.width", "fitting.betas", "form", "extra"
    ]  # fmt: skip


def test_plain_is_what_json_reads_back() -> None:
    assert plain(Outer()) == json.loads(json.dumps(dataclasses.asdict(Outer())))
    assert plain(Inner())["betas"] == [0.9, 0.999]


# ---------------------------------------------------------------------------------------------- versions


def test_versions_say_what_a_result_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/butfor", "detect", "slide"])
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


def test_an_argument_with_spaces_can_be_copied_from_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["butfor", "report", "my run"])
    assert versions("cpu")["command"] == "butfor report 'my run'"


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
    monkeypatch.setattr(record, "__file__", str(package / "record.py"))
    monkeypatch.setenv("BUTFOR_COMMIT", "abc123")
    assert versions("cpu")["commit"] == "abc123"


def test_without_git_the_commit_is_as_told_or_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BUTFOR_COMMIT", "abc123")
    assert versions("cpu")["commit"] == "abc123"
    monkeypatch.delenv("BUTFOR_COMMIT")
    assert versions("cpu")["commit"] is None


# ----------------------------------------------------------------------------------------------- metrics

ROWS = [{"detector": "cai", "seed": seed, "auc": 0.1 * seed, "note": "a\nb ä"} for seed in range(3)]


def test_metrics_come_back_one_row_a_line(tmp_path: Path) -> None:
    write_metrics(tmp_path, iter(ROWS))
    assert read_metrics(str(tmp_path)) == ROWS
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == ROWS
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
