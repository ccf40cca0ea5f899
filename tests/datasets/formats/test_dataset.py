"""What all formats share: the choice of columns, suggested entities, and sentences on what is wrong with data."""

import json
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from support.dataset_formats import (
    CUBE,
    hand_and_cube,
    write_d4rl,
    write_feather,
    write_lerobot_2,
    write_libero,
    write_maniskill,
    write_ogbench,
    write_parquet,
    write_robomimic,
)

from butfor.datasets.formats import open_dataset
from butfor.datasets.formats.dataset import Column, rate_notes
from butfor.datasets.formats.tables import table_dataset


def test_images_are_left_out_and_named(tmp_path: Path) -> None:
    dataset = open_dataset(write_robomimic(tmp_path, *hand_and_cube()))
    assert dataset.observed() == ["obs/object", "obs/robot0_eef_pos"]
    assert any("obs/agentview_image" in note for note in dataset.notes)
    with pytest.raises(ValueError, match="agentview_image"):
        dataset.recording(["agentview_image"])


def test_columns_can_be_chosen_and_left_out(tmp_path: Path) -> None:
    observations, _ = hand_and_cube()
    dataset = open_dataset(write_robomimic(tmp_path, *hand_and_cube()))
    found = dataset.recording(ignore=["robot0_eef_pos"])
    np.testing.assert_array_equal(found.observation, np.concatenate(observations)[:, CUBE])
    states = dataset.recording(["states"])  # no next states are stored: the last row is the last state
    assert states.length.tolist() == [length - 1 for length in dataset.rows]
    rows = dataset.by_row(states, np.arange(len(states.observation)))
    assert [len(part) for part in rows] == dataset.rows.tolist()
    for option, names in (("observe", ["sates"]), ("ignore", ["sates"])):
        with pytest.raises(ValueError, match=r"'sates'.*states"):
            dataset.recording(**{option: names})


def test_simulator_states_stand_in_for_missing_observations(tmp_path: Path) -> None:
    observations, _ = hand_and_cube()
    dataset = open_dataset(write_maniskill(tmp_path, *hand_and_cube(), with_obs=False))
    found = dataset.recording()
    assert found.sizes == {"actors/cube": 3, "articulations/panda": 3}
    np.testing.assert_array_equal(found.observation[:, :3], np.concatenate(observations)[:, CUBE])
    assert any("env_states" in note for note in dataset.notes)
    assert dataset.suggest_entities() == ["cube=actors/cube"]


@pytest.mark.parametrize(
    ("writer", "entities"),
    [
        (write_robomimic, ["object=object"]),
        (write_lerobot_2, ["hand=0:3", "cube=3:6"]),
        (write_parquet, ["hand=0:3", "cube=3:6"]),
        (write_maniskill, ["cube_pose=extra/cube_pose"]),
    ],
)
def test_names_suggest_entities_that_can_be_used(writer: Any, entities: list[str], tmp_path: Path) -> None:
    dataset = open_dataset(writer(tmp_path, *hand_and_cube()))
    assert dataset.suggest_entities() == entities
    columns = dataset.recording().entities(entities)
    assert all(len(found) == 3 for found in columns.values())


def test_libero_is_read_from_the_states_before_the_actions(tmp_path: Path) -> None:
    """What is seen in a row, in obs, is seen after the action of the row."""
    observations, actions = hand_and_cube()
    dataset = open_dataset(write_libero(tmp_path, observations, actions))
    obs, action, next_obs = dataset.recording().transitions()
    np.testing.assert_array_equal(obs, np.concatenate([one[:-1] for one in observations]))
    np.testing.assert_array_equal(action, np.concatenate(actions))
    np.testing.assert_array_equal(next_obs, np.concatenate([one[1:] for one in observations]))
    assert any("obs/*" in note and "next row" in note for note in dataset.notes)
    assert any("agentview_rgb" in note for note in dataset.notes)


def test_a_part_that_holds_everything_is_not_suggested_as_an_entity(tmp_path: Path) -> None:
    observations, actions = hand_and_cube()
    parts: dict[str, Any] = {"observation": np.concatenate(observations), "cube": np.ones((18, 3))}
    arrays = {f"observations/{name}": part for name, part in parts.items()} | {"actions": np.concatenate(actions)}
    np.savez(tmp_path / "parts.npz", length=[len(one) for one in actions], **arrays)
    assert open_dataset(tmp_path / "parts.npz").suggest_entities() == ["cube=cube"]


def test_tasks_are_read_where_the_format_names_them(tmp_path: Path) -> None:
    assert open_dataset(write_lerobot_2(tmp_path, *hand_and_cube())).tasks == ("push", "lift", "push")
    assert open_dataset(write_libero(tmp_path, *hand_and_cube())).tasks == ("put the cube away",) * 3
    assert open_dataset(write_robomimic(tmp_path, *hand_and_cube())).tasks == ("Lift",) * 3
    assert open_dataset(write_maniskill(tmp_path, *hand_and_cube())).tasks == ("PushCube-v1",) * 3


def test_missing_actions_are_told(tmp_path: Path) -> None:
    path = write_lerobot_2(tmp_path, *hand_and_cube())
    info = json.loads((path / "meta" / "info.json").read_text())
    del info["features"]["action"]
    (path / "meta" / "info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"no actions.*observation\.state"):
        open_dataset(path).recording()
    file = write_robomimic(tmp_path, *hand_and_cube())
    with h5py.File(file, "a") as opened:
        del opened["data/demo_1/actions"]
    with pytest.raises(ValueError, match=r"Episode 1 \(demo_1\).*actions"):
        open_dataset(file).recording()


def test_ragged_episodes_are_told(tmp_path: Path) -> None:
    for place, missing, words in (
        ("data/demo_2/obs/object", 2, r"Episode 2 .*obs/object has 5 rows.* 7"),
        ("data/demo_1/next_obs/object", 1, r"Episode 1 .*next_obs/object has 2 rows.* 3"),
    ):
        path = write_robomimic(tmp_path, *hand_and_cube())
        with h5py.File(path, "a") as file:
            rows = file[place][:-missing]
            del file[place]
            file[place] = rows
        with pytest.raises(ValueError, match=words):
            open_dataset(path).recording()
    table = pyarrow.table({"episode": [0, 0], "obs": [[1.0, 2.0], [1.0]], "action": [[0.1], [0.2]]})
    with pytest.raises(ValueError, match="obs has rows of 1 to 2"):
        table_dataset(table, Path("table"), "table").recording()


def test_mixed_rates_are_told() -> None:
    tenth, third = np.arange(5) / 10, np.arange(5) / 30
    assert rate_notes([tenth, tenth + 1]) == []
    assert "10 to 30" in rate_notes([tenth, third])[0]
    assert "1 step" in rate_notes([np.array([0.0, 0.1, 0.2, 0.5, 0.6])])[0]
    assert "20" in rate_notes([tenth], 20.0)[0]
    assert rate_notes([tenth[:1]]) == []


def test_missing_numbers_are_told(tmp_path: Path) -> None:
    observations, actions = hand_and_cube()
    observations[1][2, 4] = np.nan
    with pytest.raises(ValueError, match="episode 1, step 2, column 4"):
        open_dataset(write_feather(tmp_path, observations, actions)).recording()


def test_links_into_other_files_are_not_followed(tmp_path: Path) -> None:
    secret = write_d4rl(tmp_path, *hand_and_cube())
    path = write_robomimic(tmp_path, *hand_and_cube())
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs/object"]
        file["data/demo_0/obs/object"] = h5py.ExternalLink(str(secret), "observations")
    with pytest.raises(ValueError, match="link"):
        open_dataset(path).recording()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    for name, writer in (("a.hdf5", write_robomimic), ("a.parquet", write_parquet), ("a.npz", write_ogbench)):
        whole = writer(tmp_path, *hand_and_cube()).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=name):
            open_dataset(tmp_path / name)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"other\.h5.*robomimic"):
        open_dataset(tmp_path / "other.h5")


def test_a_failed_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(write_lerobot_2(tmp_path, *hand_and_cube()))

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(type(dataset), "_write_info", fail)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="disk full"):
        dataset.write(tmp_path / "copy")
    assert sorted(tmp_path.iterdir()) == before


def test_a_column_knows_what_it_holds() -> None:
    assert Column((6,), "float32").reason == ""
    assert "48, 48, 3" in Column((48, 48, 3), "uint8").reason
    assert Column((), "image").reason == "images"  # a table does not tell their size
    assert "text" in Column((), "text").reason


class Frame:
    """The part of a pandas DataFrame that is used."""

    iloc = None

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = list(columns)
        self.held = columns

    def __getitem__(self, name: str) -> list[Any]:
        return self.held[name]


def test_a_data_frame_is_read_and_gets_columns() -> None:
    observations, actions = hand_and_cube()
    padded = [np.concatenate([one, one[-1:]]) for one in actions]
    episode = [number for number, one in enumerate(observations) for _ in one]
    frame = Frame({"episode": episode, "obs": [*np.concatenate(observations)], "action": [*np.concatenate(padded)]})
    dataset: Any = open_dataset(frame)
    found = dataset.recording()
    np.testing.assert_array_equal(found.observation, np.concatenate(observations))
    np.testing.assert_array_equal(found.action, np.concatenate(actions))
    scores = np.arange(len(found.observation), dtype=np.float32)
    assert dataset.frame(added={"cai": dataset.by_row(found, scores)})["cai"].to_pylist() == scores.tolist()


def test_actions_of_other_widths_are_told_with_their_episode(tmp_path: Path) -> None:
    observations, actions = hand_and_cube()
    actions[1] = actions[1][:, :1]
    with pytest.raises(ValueError, match=r"Episode 1 of .*actions of 1 number.*those before it have 2"):
        open_dataset(write_maniskill(tmp_path, observations, actions)).recording()


@pytest.mark.parametrize(
    ("writer", "action", "observed"),
    [
        (write_robomimic, ("states",), 6),
        (write_robomimic, ("states", "rewards"), 6),
        (write_robomimic, ("obs/robot0_eef_pos",), 3),
        (write_d4rl, ("infos/qpos", "rewards"), 6),
        (write_ogbench, ("qvel",), 6),
        (write_lerobot_2, ("frame_index",), 6),
        (write_feather, ("timestamp",), 6),
    ],
)
def test_any_column_can_be_the_action(writer: Any, action: tuple[str, ...], observed: int, tmp_path: Path) -> None:
    """In the order in which they are given, and not as a part of the observation."""
    dataset = open_dataset(writer(tmp_path, *hand_and_cube()))
    found = dataset.recording(action=action)
    usual = dataset.recording()
    assert found.observation.shape == (len(usual.observation), observed)
    rows = [
        arrays[action[0]].reshape(size, -1) for arrays, size in zip(dataset.read(action), dataset.rows, strict=True)
    ]
    first = np.concatenate([part[:length] for part, length in zip(rows, usual.length, strict=True)])
    np.testing.assert_array_equal(found.action.reshape(len(first), -1)[:, : first.shape[1]], first)


@pytest.mark.parametrize(("writer", "name"), [(write_robomimic, "data/demo_"), (write_maniskill, "traj_")])
def test_episodes_without_actions_have_rows(writer: Any, name: str, tmp_path: Path) -> None:
    path = writer(tmp_path, *hand_and_cube())
    rows = open_dataset(path).rows.tolist()
    with h5py.File(path, "a") as file:
        for number in range(3):
            file.move(f"{name}{number}/actions", f"{name}{number}/torques")
    dataset = open_dataset(path)
    assert dataset.action == ()
    assert dataset.rows.tolist() == rows
    assert dataset.recording(action=["torques"]).action.shape == (sum(rows), 2)


def test_flat_arrays_with_other_names_can_be_the_action(tmp_path: Path) -> None:
    """Also where episodes have a last state of their own, which only the flags show without actions."""
    observations, actions = hand_and_cube()
    arrays: dict[str, Any] = {"observations": np.concatenate(observations), "torques": np.concatenate(actions)}
    np.savez(tmp_path / "torques.npz", length=[len(one) for one in actions], **arrays)
    dataset = open_dataset(tmp_path / "torques.npz")
    assert dataset.rows.tolist() == [5, 3, 7]
    np.testing.assert_array_equal(dataset.recording(action=["torques"]).action, arrays["torques"])


class Index:
    """The part of a pandas index that is used."""

    def __init__(self, levels: dict[str | None, list[Any]]) -> None:
        self.names = list(levels)
        self.held = levels

    def get_level_values(self, name: str) -> list[Any]:
        return self.held[name]


def test_the_index_of_a_data_frame_can_be_the_episode() -> None:
    """As in a Parquet file that pandas writes of it; an index without a name is none of the columns."""
    observations, actions = hand_and_cube()
    padded = [np.concatenate([one, one[-1:]]) for one in actions]
    frame = Frame({"obs": [*np.concatenate(observations)], "action": [*np.concatenate(padded)]})
    episode = [number for number, one in enumerate(observations) for _ in one]
    frame.index = Index({"episode": episode, None: list(range(18))})  # type: ignore[attr-defined]
    dataset = open_dataset(frame)
    assert list(dataset.columns) == ["episode", "obs", "action"]
    assert dataset.rows.tolist() == [6, 4, 8]


@pytest.mark.parametrize(
    ("writer", "name", "own"),
    [
        (write_robomimic, "copy.parquet", ".hdf5"),
        (write_d4rl, "copy.feather", ".hdf5"),
        (write_ogbench, "copy.h5", ".npz"),
        (write_parquet, "copy.feather", ".parquet"),
        (write_feather, "copy.npz", ".feather"),
        (write_lerobot_2, "copy.parquet", "folder"),
    ],
)
def test_a_copy_has_no_name_of_another_format(writer: Any, name: str, own: str, tmp_path: Path) -> None:
    dataset = open_dataset(writer(tmp_path, *hand_and_cube()))
    with pytest.raises(ValueError, match=rf"{name} .*{own}"):
        dataset.write(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_what_to_do_with_scores_that_are_already_there(tmp_path: Path) -> None:
    """One entity is always called cai, so another name of it would not help."""
    dataset = open_dataset(write_parquet(tmp_path, *hand_and_cube()))
    zeros = [np.zeros(rows, np.float32) for rows in dataset.rows]
    copy = open_dataset(dataset.write(tmp_path / "copy.parquet", added={"cai": zeros, "cai_cube": zeros}))
    with pytest.raises(ValueError, match=r"'cai'.*--out FILE\.npz"):
        copy.check_copy(tmp_path / "again.parquet", ["cai"])
    with pytest.raises(ValueError, match=r"'cai_cube'.*rename the entities"):
        copy.check_copy(tmp_path / "again.parquet", ["cai_cube", "cai_hand"])


def test_entities_that_are_not_given_name_the_command_that_lists_them(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, *hand_and_cube()).rename(tmp_path / "my data.parquet")
    with pytest.raises(ValueError, match=rf"butfor data '{path}'"):
        open_dataset(path).recording().entities([])


def test_a_matrix_is_not_suggested_as_an_entity(tmp_path: Path) -> None:
    path = write_maniskill(tmp_path, *hand_and_cube())
    with h5py.File(path, "a") as file:
        for name in file:
            file[name]["obs/sensor_param/top_view/intrinsic_cv"] = np.zeros((len(file[name]["actions"]) + 1, 3, 3))
    assert open_dataset(path).suggest_entities() == ["cube_pose=extra/cube_pose"]


def test_empty_episodes_are_told(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path, *hand_and_cube())
    with h5py.File(path, "a") as file:
        for name, array in file["data/demo_1"].items():
            for place in [f"{name}/{part}" for part in array] if hasattr(array, "keys") else [name]:
                empty = file["data/demo_1"][place][:0]
                del file["data/demo_1"][place]
                file["data/demo_1"][place] = empty
    with pytest.raises(ValueError, match=r"Episode 1 .* is empty"):
        open_dataset(path).recording()


@pytest.mark.filterwarnings("ignore:.*is set to None", "ignore:env_spec is None")
def test_images_of_minari_are_known_by_their_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minari stores them as rows of compressed bytes."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    observations, actions = hand_and_cube()
    views = [{"cube": one[:, CUBE], "camera": np.zeros((len(one), 48, 48, 3), np.uint8)} for one in observations]
    buffers = [
        EpisodeBuffer(
            observations=view,
            actions=moves,
            rewards=np.zeros(len(moves)),
            terminations=np.zeros(len(moves), bool),
            truncations=np.arange(len(moves)) == len(moves) - 1,
        )
        for view, moves in zip(views, actions, strict=True)
    ]
    camera = spaces.Box(0, 255, (48, 48, 3), np.uint8)
    minari.create_dataset_from_buffers(
        "test/images-v0", buffers, action_space=spaces.Box(-1.0, 1.0, (2,), np.float32),
        observation_space=spaces.Dict({"cube": spaces.Box(-np.inf, np.inf, (3,), np.float32), "camera": camera}),
    )  # fmt: skip
    dataset = open_dataset("test/images-v0")
    assert dataset.recording().sizes == {"cube": 3}
    assert "observations/camera (images [48, 48, 3])" in dataset.notes[0]
    assert (dataset.suggest_entities(), dataset.to_ignore) == (["cube=0:3"], ["camera"])
