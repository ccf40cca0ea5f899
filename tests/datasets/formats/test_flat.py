"""Files with one row per step: images beside numbers, missing actions, episode ends, and copies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.dataset_formats import LENGTHS, hand_and_cube, write_d4rl, write_episodes, write_npz, write_padded

from butfor.datasets.formats import open_dataset
from butfor.rollouts.episodes import Episodes

Save = Callable[[Path, dict[str, Any]], Path]


def save_npz(folder: Path, arrays: dict[str, Any]) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def save_hdf5(folder: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(folder / "data.hdf5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    return folder / "data.hdf5"


def rows_with_images() -> dict[str, Any]:
    """One row per state; the observations are images, and the numbers are in `qpos`."""
    observations, actions = hand_and_cube()
    whole = np.concatenate(observations)
    padded = [np.concatenate([one, one[-1:]]) for one in actions]
    ends = [np.arange(len(one)) == len(one) - 1 for one in observations]
    return {
        "observations": np.zeros((len(whole), 16, 16, 3), np.uint8),
        "actions": np.concatenate(padded),
        "terminals": np.concatenate(ends),
        "qpos": whole,
    }


@pytest.mark.parametrize("save", [save_npz, save_hdf5])
def test_other_columns_stand_in_for_images(save: Save, tmp_path: Path) -> None:
    observations, actions = hand_and_cube()
    dataset = open_dataset(save(tmp_path, rows_with_images()))
    assert dataset.rows.tolist() == [length + 1 for length in LENGTHS]
    assert any("observations (images [16, 16, 3])" in note for note in dataset.notes)
    assert dataset.suggest_entities() == []
    with pytest.raises(ValueError, match=r"observations holds images \[16, 16, 3\].*--observe.*qpos"):
        dataset.recording()
    found = dataset.recording(["qpos"])
    np.testing.assert_array_equal(found.observation, np.concatenate(observations))
    np.testing.assert_array_equal(found.action, np.concatenate(actions))
    with_next = rows_with_images()
    with_next["next_observations"] = with_next["observations"]
    np.testing.assert_array_equal(open_dataset(save(tmp_path, with_next)).rows, dataset.rows)


@pytest.mark.parametrize("save", [save_npz, save_hdf5])
def test_files_without_actions_are_listed_and_not_read(save: Save, tmp_path: Path) -> None:
    arrays = rows_with_images()
    arrays["observations"] = arrays.pop("qpos")
    del arrays["actions"]
    path = save(tmp_path, arrays)
    dataset = open_dataset(path)
    assert (dataset.action, dataset.rows.tolist()) == ((), [length + 1 for length in LENGTHS])
    with pytest.raises(ValueError, match=rf"{path.name} has no actions.*action or actions"):
        dataset.recording()
    del arrays["terminals"]
    with pytest.raises(ValueError, match=rf"{path.name} has no array action or actions"):
        open_dataset(save(tmp_path, arrays))


@pytest.mark.parametrize("save", [save_npz, save_hdf5])
def test_a_ragged_file_is_named(save: Save, tmp_path: Path) -> None:
    arrays = rows_with_images()
    arrays["observations"] = arrays.pop("qpos")
    path = save(tmp_path, arrays | {"actions": arrays["actions"][:-3]})
    with pytest.raises(ValueError, match=rf"{path.name}.*terminals has shape \[18\]; expected \[15\]"):
        open_dataset(path)


def test_ends_hold_for_other_columns(tmp_path: Path) -> None:
    """Only the next observations show the ends; another column has none."""
    with np.load(write_npz(tmp_path, *hand_and_cube())) as file:
        obs = np.split(file["observations"], np.cumsum([length + 1 for length in LENGTHS])[:-1])
        arrays = {"actions": file["actions"]}
    arrays["observations"] = np.concatenate([one[:-1] for one in obs])
    arrays["next_observations"] = np.concatenate([one[1:] for one in obs])
    arrays["qpos"] = arrays["observations"][:, :3]
    dataset = open_dataset(save_npz(tmp_path, arrays))
    assert dataset.rows.tolist() == list(LENGTHS)
    found = dataset.recording(["qpos"])
    assert found.length.tolist() == [length - 1 for length in LENGTHS]  # the last row is the last state
    copy = open_dataset(dataset.write(tmp_path / "cut.npz", [(0, 0, 2), (0, 2, 5)]))
    assert copy.rows.tolist() == [2, 3]  # the rows still follow each other


def test_parts_of_actions_are_read(tmp_path: Path) -> None:
    observations, actions = hand_and_cube()
    whole = np.concatenate(actions)
    arrays = {"observations": np.concatenate(observations), "length": LENGTHS}
    dataset = open_dataset(save_npz(tmp_path, arrays | {"actions/arm": whole[:, :1], "actions/grip": whole[:, 1:]}))
    np.testing.assert_array_equal(dataset.recording().action, whole)


def test_a_copy_keeps_groups_attributes_and_flags(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path, *hand_and_cube())
    with h5py.File(path, "a") as file:
        file.attrs["version"] = 2
        file["infos"].attrs["camera"] = "top"
        file.create_group("empty").attrs["note"] = "none"
        file["terminals"][LENGTHS[0] - 1] = True  # the first episode ends in a terminal state, not by a time limit
        file["timeouts"][LENGTHS[0] - 1] = False
    dataset = open_dataset(path)
    copy = dataset.write(tmp_path / "copy.hdf5", [(0, 1, 5), (2, 0, 3)])
    with h5py.File(copy) as file:
        assert file.attrs["version"] == 2
        assert file["infos"].attrs["camera"] == "top"
        assert file["empty"].attrs["note"] == "none"
        assert np.flatnonzero(file["terminals"]).tolist() == [3]
        assert np.flatnonzero(file["timeouts"]).tolist() == [6]  # of the one that was cut


def test_parts_of_padded_episodes_keep_their_flags(tmp_path: Path) -> None:
    dataset = open_dataset(write_padded(tmp_path, *hand_and_cube()))
    copy = dataset.write(tmp_path / "cut.npz", [(0, 1, 3), (1, 0, 3)])
    with np.load(copy) as file:
        assert file["length"].tolist() == [2, 3]
        assert [np.flatnonzero(row).tolist() for row in file["truncations"]] == [[1], [2]]
    arrays = dict(np.load(write_padded(tmp_path, *hand_and_cube())))
    arrays["observations"] = arrays["observations"][:, :-1]  # now the last row is the last state
    dataset = open_dataset(save_npz(tmp_path, arrays))
    assert (dataset.last, dataset.rows.tolist()) == ("row", list(LENGTHS))


def test_parts_of_own_episodes_cannot_be_repeated_from_a_seed(tmp_path: Path) -> None:
    dataset = open_dataset(write_episodes(tmp_path, *hand_and_cube()))
    seeds = Episodes.load(dataset.write(tmp_path / "whole.npz", dataset.whole()[1:])).reset_seed
    assert seeds is not None
    assert seeds.tolist() == [1, 2]
    cut = Episodes.load(dataset.write(tmp_path / "cut.npz", [(2, 4, 7)]))
    assert cut.reset_seed is None
    assert cut.length.tolist() == [3]


def test_pickled_objects_are_told_by_the_listing_too(tmp_path: Path) -> None:
    ragged = np.empty(2, object)
    ragged[:] = [np.zeros((3, 2)), np.zeros((4, 2))]
    path = save_npz(tmp_path, {"observations": ragged, "actions": ragged})
    with pytest.raises(ValueError, match="observations contains pickled objects"):
        open_dataset(path)


def test_long_padded_episodes_are_not_images(tmp_path: Path) -> None:
    observations = [np.random.default_rng(0).normal(size=(201, 6)) for _ in range(2)]
    path = write_padded(tmp_path, observations, [np.zeros((200, 2)) for _ in range(2)])
    dataset = open_dataset(path)
    assert dataset.columns["observations"].shape == (6,)
    assert (dataset.has_numbers, dataset.to_ignore) == (True, [])
