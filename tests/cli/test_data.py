"""`butfor data`, `butfor score` and `butfor curate` on data of other formats."""

import shlex
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet
import pytest
from support.command_line import Butfor, assert_error
from support.dataset_formats import digest, hand_and_cube, write_lerobot_2, write_parquet, write_robomimic


def test_a_listing_shows_columns_tasks_and_entities(butfor_command: Butfor, tmp_path: Path) -> None:
    path = write_lerobot_2(tmp_path, *hand_and_cube())
    code, out, err = butfor_command("data", str(path))
    assert code == 0, err
    assert "LeRobot v2.1, 3 episodes of 4 to 8 rows, 18 in all" in " ".join(out.split())
    for words in (
        "observation.state",
        "float32",
        "3 cube_x",
        "push (2), lift (1)",
        "Note: Not read: observation.images.top",
    ):
        assert words in out
    assert out.splitlines()[-1].endswith("--entities hand=0:3 cube=3:6")


def test_nothing_is_suggested_for_data_without_actions(butfor_command: Butfor, tmp_path: Path) -> None:
    observations, actions = hand_and_cube((4,))
    path = write_robomimic(tmp_path, observations, actions)
    with h5py.File(path, "a") as file:
        del file["data/demo_0/actions"]
    out = butfor_command("data", str(path))[1]
    assert "1 episode of" in out
    assert "There are no actions" in out
    assert "butfor score" not in out


def test_images_and_missing_actions_are_listed(butfor_command: Butfor, tmp_path: Path) -> None:
    rows: dict[str, Any] = {"terminals": np.arange(12) % 4 == 3, "qpos": np.zeros((12, 3))}
    np.savez("images.npz", observations=np.zeros((12, 16, 16, 3), np.uint8), actions=np.zeros((12, 2)), **rows)
    code, out, err = butfor_command("data", "images.npz")
    assert code == 0, err
    assert "3 episodes of 4 rows" in out
    assert "Not read: observations (images [16, 16, 3])" in out
    assert out.splitlines()[-1].endswith("--observe COLUMN --entities NAME=COLUMNS")
    parts: dict[str, Any] = {"actions": np.zeros((12, 2)), "terminals": rows["terminals"]}
    parts |= {"observations/cube": rows["qpos"], "observations/view": np.zeros((12, 16, 16, 3), np.uint8)}
    np.savez("parts.npz", **parts)
    out = butfor_command("data", "parts.npz")[1]
    assert out.splitlines()[-1].endswith("parts.npz --ignore view --entities cube=0:3")
    np.savez("still.npz", observations=np.zeros((12, 6)), **rows)
    code, out, err = butfor_command("data", "still.npz")
    assert code == 0, err
    assert "There are no actions" in out
    assert_error(butfor_command("score", "still.npz", "--entities", "cube=0"), "still.npz", "action or actions")
    assert_error(butfor_command("score", "images.npz", "--entities", "cube=0"), "images [16, 16, 3]", "--observe")


def test_the_next_command_can_be_pasted(butfor_command: Butfor, tmp_path: Path) -> None:
    path = write_robomimic(tmp_path, *hand_and_cube())
    with h5py.File(path, "a") as file:
        for number, group in [(number, group) for number in range(3) for group in ("obs", "next_obs")]:
            file.move(f"data/demo_{number}/{group}/object", f"data/demo_{number}/{group}/red cube")
    path = path.rename(tmp_path / "my data & more.hdf5")
    code, out, err = butfor_command("data", str(path))
    assert code == 0, err
    words = shlex.split(out.splitlines()[-1])
    assert words == ["Next:", "butfor", "score", str(path), "--entities", "red cube=red cube"]


def test_the_columns_of_actions_are_listed(butfor_command: Butfor, tmp_path: Path) -> None:
    numbers = np.zeros(12)
    table = {"episode": np.arange(12) // 4, "obs": list(np.zeros((12, 2)))}
    own = {"u0": numbers, "u1": numbers}
    pyarrow.parquet.write_table(pyarrow.table(table | own), tmp_path / "own.parquet")
    assert "--action" in butfor_command("data", "own.parquet")[1]
    named = {"action_x": numbers, "action_y": numbers, "action_id": np.arange(12)}
    pyarrow.parquet.write_table(pyarrow.table(table | named), tmp_path / "named.parquet")
    out = butfor_command("data", "named.parquet")[1]
    assert "action: 0 x, 1 y" in out
    assert "Not read as actions: action_id (int64)" in out


@pytest.mark.parametrize("command", ["score", "curate", "augment"])
def test_columns_of_the_action_are_an_option_of_each_command(
    command: str, butfor_command: Butfor, tmp_path: Path
) -> None:
    """`u9` is looked up, before anything is fitted."""
    write_parquet(tmp_path, *hand_and_cube())
    given = (command, "table.parquet", "--entities", "cube=3:6", "--action", "action_1", "u9")
    assert_error(butfor_command(*given), "--action", "u9", "action_1")
    assert_error(butfor_command(*given[:-1], "action_0", "--ignore", "action_0", "action_1"), "no actions")


def test_data_of_no_known_format_is_told(butfor_command: Butfor, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no data")
    assert_error(butfor_command("data", "notes.txt"), "notes.txt", "LeRobot")


def pushed(steps: int, seed: int) -> tuple[Any, Any]:
    """A hand that jumps about and moves a cube that is near: observations [T + 1, 6] and actions [T, 2]."""
    random = np.random.default_rng(seed)
    obs = random.uniform(-1, 1, (steps + 1, 6)).astype(np.float32)
    action = random.uniform(-1, 1, (steps, 2)).astype(np.float32)
    for step in range(steps):
        near = abs(obs[step, 0] - obs[step, 3]) < 0.5
        obs[step + 1, 3:] = np.clip(obs[step, 3:] + 0.3 * action[step, 0] * near + random.normal(0, 0.02, 3), -1, 1)
    return obs, action


@pytest.mark.filterwarnings("ignore:.*explains")
def test_scores_of_a_robomimic_file_go_into_a_copy(butfor_command: Butfor, tmp_path: Path) -> None:
    episodes = [pushed(100, seed) for seed in range(20)]
    path = write_robomimic(tmp_path, [obs for obs, _ in episodes], [action for _, action in episodes])
    before = digest(path)
    quick = ["--network", "paper", "--epochs", "30", "--actions", "8", "--device", "cpu"]
    code, out, err = butfor_command("score", str(path), "--entities", "cube=object", *quick)
    assert code == 0, err
    copy = tmp_path / "low_dim-cai.hdf5"
    assert f"Scores: {copy} (cai)" in out
    assert (tmp_path / "low_dim-cai.html").is_file()
    with h5py.File(copy) as file:
        scores = np.concatenate([file[f"data/demo_{number}/cai"][()] for number in range(20)])
        assert file["data/demo_3/cai"].shape == (100,)
        assert file["data"].attrs["total"] == 2000
    every = np.concatenate([obs[:-1] for obs, _ in episodes])
    near = np.abs(every[:, 0] - every[:, 3]) < 0.5
    assert scores[near].mean() > 2 * scores[~near].mean()
    assert digest(path) == before
    assert_error(butfor_command("score", str(path), "--entities", "cube=object", *quick), "low_dim-cai.hdf5")
    code, out, err = butfor_command(
        "curate", str(path), "--entities", "cube=object", "--epochs", "2", "--device", "cpu"
    )
    assert code == 0, err
    assert f"Kept part: {tmp_path / 'low_dim-kept.hdf5'}" in out
    assert "Lift: 50.0% of 2,000 rows in 20 episodes kept" in out
    assert_error(butfor_command("curate", str(path), "--entities", "cube=object", "--keep", "1.5"), "1.5")


def test_an_augmentation_is_shown_with_its_audit(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {"overlap": 0.125, "swapped entity": 0.0}
    audit = {"kept": {"replayed": 500, "impossible": 0.0104, "faults": faults}}
    made = {"kept": 1350, "candidates": 1971, "steps": 5, "promised": 0.05, "audit": audit, "out": "new.npz"}
    made["computed"] = "columns 6:9"
    monkeypatch.setattr("butfor.datasets.augment.augment_file", lambda *_, **__: made)
    code, out, err = butfor_command("augment", "data.npz", "--steps", "5", "--audit", "500")
    assert code == 0, err
    for words in (
        "1,350 of 1,971 new stretches of 5 steps",
        "5.0%",
        "1.04%",
        "12.50%",
        "columns 6:9",
        "Transitions: new.npz",
    ):
        assert words in out
    assert_error(butfor_command("augment", "data.npz", "--false-discovery-rate", "2"), "2.0")
