"""Run folders are read as they were written, and what is broken is named."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.configs import FOREIGN, Outer, edit_config

from butfor.runs.config import config_from, plain
from butfor.runs.files import write_json
from butfor.runs.folder import (
    open_run,
    write_metrics,
)
from butfor.runs.reading import find_run, finite_array, read_arrays, read_curves, read_metrics, read_object, read_run


def test_a_run_tells_what_it_is(tmp_path: Path) -> None:
    folder = open_run(tmp_path / "run", "training", Outer(seeds=2))
    expected = {"schema": 1, "kind": "training", "label": "training-slide-seeds=2", "config": plain(Outer(seeds=2))}
    assert read_run(folder) == read_run(str(folder)) == expected
    assert config_from(Outer, read_run(folder)["config"]) == Outer(seeds=2)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path / 'missing'}"):
        read_run(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path / 'file'}"):
        read_run(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=f"{tmp_path / 'empty'}"):
        read_run(tmp_path / "empty")


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_folder_is_no_run(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        read_run(tmp_path)


@pytest.mark.parametrize("schema", [2, 0, "1", None, [1]])
def test_an_unknown_schema_is_refused(tmp_path: Path, schema: Any) -> None:
    folder = open_run(tmp_path / "run", "detection", Outer())
    edit_config(folder, schema=schema)
    with pytest.raises(ValueError, match=f"schema {re.escape(repr(schema))}"):
        read_run(folder)


# --------------------------------------------------------------------------------------------- read_object


def test_old_fields_have_their_present_names(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {"schema": 1, "world": "push", "played": 5})
    assert read_object(tmp_path / "summary.json") == {"schema": 1, "env": "push", "played": 5}


@pytest.mark.parametrize("value", [[1], 3, None])
def test_what_is_not_an_object_is_refused(tmp_path: Path, value: Any) -> None:
    write_json(tmp_path / "summary.json", value)
    with pytest.raises(ValueError, match=rf"summary\.json .*{type(value).__name__}"):
        read_object(tmp_path / "summary.json")


# ------------------------------------------------------------------------------------ metrics and curves


def test_a_broken_line_before_the_last_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"episode": 1}\n{"epi\n{"episode": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("damage", [b"\r", b"\x0b", b"\x1c", b"\x85"])
def test_a_byte_that_became_another_line_end_is_damage(tmp_path: Path, damage: bytes) -> None:
    content = b'{"episode": 1}\n{"episo' + damage + b'": 2}\n{"episode": 3}\n'
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2"):
        read_metrics(tmp_path)


def test_a_damaged_last_line_with_its_line_end_is_not_one_that_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"episode": 1}\n{"episode: 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2"):
        read_metrics(tmp_path)


@pytest.mark.parametrize(("line", "lacking"), [("{}", "episode"), ("3", "an object"), ('{"episode": 5}', "success")])
def test_a_row_without_its_fields_is_named(tmp_path: Path, line: str, lacking: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"episode": 1, "success": 0.5}}\n{line}\n')
    with pytest.raises(ValueError, match=rf"metrics\.jsonl, line 2.*{lacking}"):
        read_metrics(tmp_path, needed=("episode", "success"))


def evaluations(*rows: tuple[int, int, float], **more: float) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl."""
    return [{"episode": episode, "seed": seed, "success": success, **more} for episode, seed, success in rows]


def test_curves_have_a_row_per_seed_and_a_column_per_whole_evaluation(tmp_path: Path) -> None:
    rows = evaluations((50, 3, 0.25), (50, 1, 0.0), (100, 1, 0.5), (100, 3, 0.75), (150, 1, 1.0), held=0.5)
    write_metrics(tmp_path, rows)
    episodes, seeds, curves = read_curves(tmp_path, ("success", "held", "lifted"))
    assert episodes.tolist() == [50, 100]  # a crash cut off the third
    assert seeds == (1, 3)
    assert curves.keys() == {"success", "held"}
    assert curves["success"].tolist() == [[0.0, 0.5], [0.25, 0.75]]


def test_without_evaluations_there_are_no_curves(tmp_path: Path) -> None:
    assert read_curves(tmp_path, ("success",))[1:] == ((), {})


@pytest.mark.parametrize("change", [{"seed": None}, {"success": "high"}, {"success": float("nan")}])
def test_an_evaluation_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    write_metrics(tmp_path, [evaluations((50, 0, 0.5))[0] | change])
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        read_curves(tmp_path, ("success",))


# ------------------------------------------------------------------------------------------------ arrays


def test_arrays_come_back_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "scores.npz", cai=np.arange(3.0))
    assert read_arrays(tmp_path / "scores.npz")["cai"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", b"PK", b"nothing"])
def test_broken_arrays_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "scores.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"scores\.npz"):
        read_arrays(tmp_path / "scores.npz")
    with pytest.raises(FileNotFoundError, match=r"other\.npz"):
        read_arrays(tmp_path / "other.npz")


@pytest.mark.parametrize("shape", [(2, 2), (3,), (3, None), (None, None, None)])
def test_numbers_of_another_shape_are_refused(shape: tuple[int | None, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        finite_array(np.zeros((2, 3)), *shape)
    assert finite_array(np.zeros((2, 3)), 2, None).shape == (2, 3)


# ---------------------------------------------------------------------------------------------- find_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs, the second of which began last, and a folder that is not a run."""
    for age, name in ((3, "push-a1"), (1, "push-b2"), (2, "slide")):
        folder = open_run(tmp_path / name, "training", Outer())
        os.utime(folder / "config.json", (1e9 - age, 1e9 - age))
    (tmp_path / "slides").mkdir()
    return tmp_path


def test_a_run_is_found_by_path_name_beginning_and_age(runs: Path) -> None:
    assert find_run(str(runs / "push-a1"), "elsewhere") == runs / "push-a1"
    assert find_run("slide", runs) == find_run("sl", runs) == runs / "slide"
    assert find_run("push-b", runs) == find_run("latest", runs) == runs / "push-b2"
    write_json(runs / "push-a1" / "versions.json", {})  # it is resumed
    assert find_run("latest", runs) == runs / "push-a1"


def test_a_name_that_begins_another_is_not_ambiguous(runs: Path) -> None:
    open_run(runs / "push-a10", "training", Outer())
    assert find_run("push-a1", runs) == runs / "push-a1"


def test_an_unknown_or_ambiguous_run_is_refused_with_the_candidates(runs: Path) -> None:
    with pytest.raises(ValueError, match="push-a1, push-b2"):
        find_run("push", runs)
    with pytest.raises(FileNotFoundError, match=r"'pull'.* push-a1, push-b2, slide"):
        find_run("pull", runs)
    for text in ("latest", "pull"):
        with pytest.raises(FileNotFoundError, match=f"'{text}'.*empty"):
            find_run(text, runs / "empty")
