"""Every format: recognised by its content, read exactly, and copied with new columns while the original stays."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pyarrow
import pytest
from gymnasium.spaces import Box
from pyarrow import parquet
from support.dataset_formats import CUBE, HAND, LENGTHS, WRITERS, digest, hand_and_cube

import butfor.datasets
from butfor.datasets.formats import Dataset, default_copy, open_dataset

pytestmark = pytest.mark.filterwarnings("ignore:.*is set to None", "ignore:env_spec is None")
ORDER = {"robomimic": "cube first", "ManiSkill": "hand first", "Minari": "cube first"}  # parts are sorted by name


@pytest.fixture(params=list(WRITERS))
def written(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A dataset of each format."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return request.param, WRITERS[request.param](tmp_path, *hand_and_cube())


def expected(kind: str) -> np.ndarray[Any, Any]:
    """All states as this format's recording has them."""
    whole = np.concatenate(hand_and_cube()[0])
    return np.hstack([whole[:, CUBE], whole[:, HAND]]) if ORDER.get(kind) == "cube first" else whole


def assert_holds(dataset: Dataset, kind: str, episodes: list[int]) -> None:
    observations, actions = hand_and_cube()
    found = dataset.recording()
    assert found.length.tolist() == [LENGTHS[episode] for episode in episodes]
    np.testing.assert_array_equal(found.action, np.concatenate([actions[episode] for episode in episodes]))
    edges = np.cumsum([len(one) for one in observations])[:-1]
    parts = np.split(expected(kind), edges)
    np.testing.assert_array_equal(found.observation, np.concatenate([parts[episode] for episode in episodes]))


def test_it_is_recognised_and_read(written: tuple[str, Path]) -> None:
    kind, path = written
    dataset = butfor.datasets.open(path)
    assert dataset.kind == kind
    assert dataset.action_space == (Box(-1.0, 1.0, (2,), np.float32) if kind == "Minari" else None)
    assert_holds(dataset, kind, [0, 1, 2])


def test_the_name_of_a_file_does_not_matter(written: tuple[str, Path], tmp_path: Path) -> None:
    kind, path = written
    if path.is_file():
        shutil.copyfile(path, tmp_path / "data.bin")
        assert open_dataset(tmp_path / "data.bin").kind == kind


def test_what_takes_more_memory_than_allowed_is_not_read(
    written: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, path = written
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "0.000001")  # 250 bytes for a file
    with pytest.raises(ValueError, match=r"BUTFOR_MEMORY_GB"):
        open_dataset(path).recording()
    if kind == "Minari":
        with pytest.raises(ValueError, match=r"episode_\d/.*BUTFOR_MEMORY_GB"):
            butfor.datasets.files.read_minari(path)


def test_the_size_of_a_bomb_is_known_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of some kilobytes whose arrays would take a terabyte, or 8 MB of equal numbers."""
    with h5py.File(tmp_path / "bomb.hdf5", "w") as file:
        for name in ("observations", "actions", "terminals"):
            file.create_dataset(name, shape=(10**11, 3), dtype="f4", chunks=(10**6, 3))  # no chunk is written
    with pytest.raises(ValueError, match=r"observations of .*bomb\.hdf5 takes 1\.2 TB"):
        open_dataset(tmp_path / "bomb.hdf5")
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "0.01")
    rows = pyarrow.array(np.zeros(10**6))
    parquet.write_table(
        pyarrow.table({"episode": rows, "observation": rows, "action": rows}), tmp_path / "bomb.parquet"
    )
    assert (tmp_path / "bomb.parquet").stat().st_size < 10**5
    with pytest.raises(ValueError, match=r"episode of .*bomb\.parquet takes 8.0 MB"):
        open_dataset(tmp_path / "bomb.parquet")


def test_scores_go_into_a_copy_and_the_original_stays(written: tuple[str, Path], tmp_path: Path) -> None:
    kind, path = written
    before = digest(path)
    dataset = open_dataset(path)
    recording = dataset.recording()
    scores = np.arange(len(recording.observation), dtype=np.float32)
    rows = dataset.by_row(recording, scores)
    copy = open_dataset(dataset.write(default_copy(dataset, "cai"), added={"cai": rows}))
    assert copy.kind == kind
    assert_holds(copy, kind, [0, 1, 2])
    name = "infos/cai" if kind == "Minari" else "cai"
    found = [arrays[name].reshape(-1) for arrays in copy.read([name])]
    for place, values in enumerate(found):
        own = scores[(recording.episode == place)]
        np.testing.assert_array_equal(values, own[: len(values)])
        assert len(values) >= LENGTHS[place]
    assert digest(path) == before
    assert not list(tmp_path.glob(".*part*"))


def test_some_episodes_can_be_kept(written: tuple[str, Path], tmp_path: Path) -> None:
    kind, path = written
    before = digest(path)
    dataset = open_dataset(path)
    whole = dataset.whole()
    copy = dataset.write(default_copy(dataset, "kept"), [whole[0], whole[2]])
    assert_holds(open_dataset(copy), kind, [0, 2])
    assert digest(path) == before
    if kind == "Minari":  # its own package reads the copy
        assert [len(one.actions) for one in minari.load_dataset("test/cube-kept-v0").iterate_episodes()] == [5, 7]


def test_parts_of_episodes_become_episodes(written: tuple[str, Path], tmp_path: Path) -> None:
    kind, path = written
    dataset = open_dataset(path)
    more = 0 if dataset.last in ("own", "next") else 1  # a row for the last state
    copy = default_copy(dataset, "cut")
    segments = [(0, 1, 3 + more), (2, 0, 2 + more), (2, 4, 7 + more)]
    if kind == "LeRobot v2.1":
        with pytest.raises(ValueError, match=r"images\.top"):
            dataset.write(copy, segments)
        assert not copy.exists()
        return
    found = open_dataset(dataset.write(copy, segments)).recording()
    assert found.length.tolist() == [2, 2, 3]
    actions = hand_and_cube()[1]
    np.testing.assert_array_equal(found.action, np.concatenate([actions[0][1:3], actions[2][:2], actions[2][4:]]))
    parts = np.split(expected(kind), np.cumsum([length + 1 for length in LENGTHS])[:-1])
    np.testing.assert_array_equal(found.observation, np.concatenate([parts[0][1:4], parts[2][:3], parts[2][4:]]))


def test_the_original_and_other_folders_are_not_replaced(written: tuple[str, Path], tmp_path: Path) -> None:
    _, path = written
    dataset = open_dataset(path)
    with pytest.raises(ValueError, match="input"):
        dataset.write(path, overwrite=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match="other"):
        dataset.write(other, overwrite=True)
    copy = default_copy(dataset, "cai")
    dataset.write(copy)
    with pytest.raises(FileExistsError, match=copy.name):
        dataset.write(copy)
    dataset.write(copy, overwrite=True)
    with pytest.raises(ValueError, match=r"'actions?'"):
        dataset.write(tmp_path / "new", added={dataset.action[0]: []})


def test_the_second_file_of_a_dataset_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ManiSkill has a JSON file of the same name; a copy beside the original must not share it."""
    path = WRITERS["ManiSkill"](tmp_path, *hand_and_cube())
    before = digest(path)
    dataset = open_dataset(path)
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"trajectory\.json"):
            dataset.write(tmp_path / "trajectory.hdf5", overwrite=overwrite)
    with pytest.raises(ValueError, match=r"copy\.json"):
        dataset.write(tmp_path / "copy.json")
    other = tmp_path / "other.json"
    other.write_text("precious")
    with pytest.raises(FileExistsError, match=r"other\.json"):
        dataset.check_copy(tmp_path / "other.h5")  # before the work
    assert other.read_text() == "precious"
    assert digest(path) == before
    assert not (tmp_path / "other.h5").exists()
    dataset.write(tmp_path / "other.h5", [dataset.whole()[2]], overwrite=True)
    assert [one["elapsed_steps"] for one in json.loads(other.read_text())["episodes"]] == [LENGTHS[2]]

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(type(dataset), "_write_file", fail)
    with pytest.raises(OSError, match="disk full"):
        dataset.write(tmp_path / "new.h5")
    assert not list(tmp_path.glob("*new*"))
    assert dataset.files(tmp_path / "new.h5") == {
        tmp_path / name for name in ("trajectory.h5", "trajectory.json", "new.h5", "new.json")
    }


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no data")
    (tmp_path / "empty").mkdir()
    for name in ("notes.txt", "empty"):
        with pytest.raises(ValueError, match=name):
            open_dataset(tmp_path / name)
    (tmp_path / "nothing.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"nothing\.npz is empty"):
        open_dataset(tmp_path / "nothing.npz")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_dataset(tmp_path / "nowhere")


def of_another_kind(name: str, kind: str, change: Any) -> Any:
    """A dataset and a change of a JSON file of it."""
    return pytest.param(kind, name, change, id=f"{kind} {name}")


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        of_another_kind("meta/info.json", "LeRobot v3.0", lambda about: about["features"].update(action=5)),
        of_another_kind("meta/info.json", "LeRobot v2.1", lambda about: about["features"]["action"].update(shape=None)),
        of_another_kind("meta/info.json", "LeRobot v2.1", lambda about: about.update(fps="ten")),
        of_another_kind("data/metadata.json", "Minari", lambda about: about.update(action_space=[3])),
        of_another_kind("", "ManiSkill", lambda about: about.update(env_info=None)),
    ],
)
def test_metadata_of_another_kind_are_told(
    kind: str, name: str, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    path = WRITERS[kind](tmp_path, *hand_and_cube())
    file = path / name if name else path.with_suffix(".json")
    about = json.loads(file.read_text())
    change(about)
    file.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=path.stem):
        open_dataset(path)


def test_lists_of_another_kind_are_told_when_a_copy_is_written(tmp_path: Path) -> None:
    lerobot = WRITERS["LeRobot v2.1"](tmp_path, *hand_and_cube())
    (lerobot / "meta" / "episodes.jsonl").write_text("[1]\n")
    maniskill = WRITERS["ManiSkill"](tmp_path, *hand_and_cube())
    maniskill.with_suffix(".json").write_text('{"env_info": {}, "episodes": 3}')
    for path, copy, place in ((lerobot, "copy", "meta"), (maniskill, "copy.h5", r"trajectory\.json")):
        with pytest.raises(ValueError, match=place):
            open_dataset(path).write(tmp_path / copy)
        assert not (tmp_path / copy).exists()


@pytest.mark.parametrize("place", ["data", "data/demo_0", "data/demo_0/actions"])
def test_numbers_in_the_place_of_groups_are_told(place: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "number.hdf5", "w") as file:
        file[place] = 3.0
    with pytest.raises(ValueError, match=r"number\.hdf5"):
        open_dataset(tmp_path / "number.hdf5")


@pytest.mark.parametrize(("package", "kind"), [("h5py", "robomimic"), ("pyarrow", "Parquet table")])
def test_a_missing_package_is_named(package: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = WRITERS[kind](tmp_path, *hand_and_cube())
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}.*butfor\[data\]"):
        open_dataset(path)
