"""Copies of parts of episodes: flags of their ends, counts and statistics are those of what was written."""

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from support.dataset_formats import (
    hand_and_cube,
    write_lerobot_2,
    write_lerobot_3,
    write_libero,
    write_maniskill,
    write_minari,
    write_parquet,
    write_robomimic,
)

from butfor.datasets.formats import copy_path, default_copy, open_dataset

pytestmark = pytest.mark.filterwarnings("ignore:.*is set to None", "ignore:env_spec is None")
SEGMENTS = [(0, 1, 4), (2, 4, 7)]
"""the middle of the first episode, which has 5 steps, and the end of the last one, which has 7"""


@pytest.mark.parametrize(
    ("writer", "group", "flag", "marked"),
    [
        (write_robomimic, "data/demo_", "dones", [True, True]),
        (write_maniskill, "traj_", "truncated", [True, True]),
        (write_maniskill, "traj_", "terminated", [False, True]),
    ],
)
def test_what_was_cut_ends(writer: Any, group: str, flag: str, marked: list[bool], tmp_path: Path) -> None:
    dataset = open_dataset(writer(tmp_path, *hand_and_cube()))
    with h5py.File(dataset.write(tmp_path / "copy.h5", SEGMENTS)) as file:
        flags = [file[f"{group}{number}/{flag}"][()] for number in range(2)]
    assert [bool(one[-1]) for one in flags] == marked
    assert not any(one[:-1].any() for one in flags)


def test_a_terminal_state_is_not_a_truncation(tmp_path: Path) -> None:
    path = write_maniskill(tmp_path, *hand_and_cube())
    with h5py.File(path, "a") as file:
        file["traj_0/terminated"][3] = True
    copy = open_dataset(path).write(tmp_path / "copy.h5", SEGMENTS)
    with h5py.File(copy) as file:
        assert not file["traj_0/truncated"][()].any()
    about = json.loads(copy.with_suffix(".json").read_text())["episodes"]
    assert [(one["elapsed_steps"], one["success"]) for one in about] == [(3, False), (3, True)]


def test_minari_reads_what_was_cut_as_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = open_dataset(write_minari(tmp_path, *hand_and_cube()))
    dataset.write(default_copy(dataset, "cut"), SEGMENTS)
    for episode in minari.load_dataset("test/cube-cut-v0").iterate_episodes():
        assert episode.truncations.tolist() == [False, False, True]


def test_libero_counts_its_demonstrations(tmp_path: Path) -> None:
    dataset = open_dataset(write_libero(tmp_path, *hand_and_cube()))
    with h5py.File(dataset.write(tmp_path / "copy.hdf5", dataset.whole()[1:])) as file:
        assert (file["data"].attrs["num_demos"], file["data"].attrs["total"]) == (2, 4 + 8)


def test_statistics_of_lerobot_are_those_of_what_was_cut(tmp_path: Path) -> None:
    observations, _ = hand_and_cube()
    dataset = open_dataset(write_lerobot_3(tmp_path, *hand_and_cube()))
    copy = dataset.write(tmp_path / "copy", [(0, 1, 4), (2, 0, 8)])
    first, second = parquet.read_table(copy / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    cut = observations[0][1:4]
    np.testing.assert_allclose(first["stats/observation.state/min"], cut.min(0))
    np.testing.assert_allclose(first["stats/observation.state/q50"], np.median(cut, 0))
    assert first["stats/observation.state/count"] == [3]
    assert first["stats/observation.images.top/mean"] is None  # images are not read
    np.testing.assert_allclose(second["stats/observation.state/min"], observations[2].min(0))
    assert second["stats/observation.images.top/mean"] == [[[0.5]]] * 3
    assert [one["stats/index/max"] for one in (first, second)] == [[2], [10]]
    stats = json.loads((copy / "meta/stats.json").read_text())["observation.state"]
    np.testing.assert_allclose(stats["mean"], np.concatenate([cut, observations[2]]).mean(0), rtol=1e-5)
    done = pyarrow.concat_tables(parquet.read_table(file) for file in sorted((copy / "data").rglob("*.parquet")))
    assert np.flatnonzero(done["next.done"]).tolist() == [2, 10]


def test_statistics_of_lerobot_2_are_those_of_what_was_cut(tmp_path: Path) -> None:
    observations, _ = hand_and_cube()
    path = write_lerobot_2(tmp_path, *hand_and_cube(), video=False)
    lines = [json.loads(line) for line in (path / "meta/episodes_stats.jsonl").read_text().splitlines()]
    for line in lines:
        line["stats"] |= {"observation.image": {"mean": [[[0.5]]]}, "index": {"max": [99]}}
    (path / "meta/episodes_stats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    copy = open_dataset(path).write(tmp_path / "copy", [(0, 1, 4), (2, 0, 8)])
    first, second = (json.loads(line)["stats"] for line in (copy / "meta/episodes_stats.jsonl").open())
    np.testing.assert_allclose(first["observation.state"]["min"], observations[0][1:4].min(0))
    assert ("observation.image" in first, "observation.image" in second) == (False, True)
    assert (first["index"]["max"], second["index"]["max"]) == ([2], [10])


def test_a_folder_of_tables_becomes_one_with_a_suffix(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    write_parquet(tmp_path / "tables", *hand_and_cube())
    dataset = open_dataset(tmp_path / "tables")
    copy = dataset.write(default_copy(dataset, "cai"))
    assert copy == tmp_path / "tables-cai.parquet"
    dataset.write(copy, overwrite=True)
    assert open_dataset(copy).rows.tolist() == dataset.rows.tolist()


def folders(path: Path) -> list[Path]:
    """A folder and those inside it."""
    return [Path(place) for place, _, _ in os.walk(path)]


@pytest.mark.parametrize("writer", [write_lerobot_2, write_lerobot_3])
def test_a_copy_of_read_only_folders_can_be_replaced(writer: Any, tmp_path: Path) -> None:
    original = writer(tmp_path, *hand_and_cube())
    for place in folders(original):
        place.chmod(0o555)
    dataset = open_dataset(original)
    copy = dataset.write(tmp_path / "copy")
    for place in folders(original):
        place.chmod(0o755)  # for the removal after the test
    assert all(place.stat().st_mode & stat.S_IWUSR for place in folders(copy))
    for place in folders(copy)[1:]:
        place.chmod(0o555)
    dataset.write(copy, overwrite=True)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_link_to_a_folder_is_replaced_not_what_it_leads_to(tmp_path: Path) -> None:
    dataset = open_dataset(write_lerobot_2(tmp_path, *hand_and_cube()))
    elsewhere = dataset.write(tmp_path / "elsewhere")
    (elsewhere / "meta").chmod(0o555)
    (tmp_path / "copy").symlink_to(elsewhere)
    dataset.write(tmp_path / "copy", overwrite=True)
    assert not (tmp_path / "copy").is_symlink()
    assert not (elsewhere / "meta").stat().st_mode & stat.S_IWUSR
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    (elsewhere / "meta").chmod(0o755)


def test_a_copy_of_minari_has_a_name_with_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = open_dataset(write_minari(tmp_path, *hand_and_cube()))
    for name in ("kept", "mine/kept", tmp_path / "kept"):
        with pytest.raises(ValueError, match=r"kept'.*version"):
            copy_path(dataset, name)
    assert copy_path(dataset, "mine/kept-v1") == tmp_path / "mine" / "kept-v1"
    dataset.path = dataset.path.rename(tmp_path / "pushes")
    assert default_copy(dataset, "kept").name == "pushes-kept-v0"


def test_a_copy_of_lerobot_without_its_list_of_episodes_is_refused_before_the_work(tmp_path: Path) -> None:
    path = write_lerobot_3(tmp_path, *hand_and_cube())
    shutil.rmtree(path / "meta" / "episodes")
    with pytest.raises(ValueError, match="meta/episodes"):
        open_dataset(path).check_copy(tmp_path / "copy")


def test_the_report_has_the_whole_name_of_a_folder(tmp_path: Path) -> None:
    path = write_lerobot_3(tmp_path, *hand_and_cube()).rename(tmp_path / "aloha_v1.0")
    assert open_dataset(path).page_of(tmp_path / "aloha_v1.0-cai").name == "aloha_v1.0-cai.html"
    table = write_parquet(tmp_path, *hand_and_cube())
    assert open_dataset(table).page_of(tmp_path / "table-cai.parquet").name == "table-cai.html"
