"""Keeping part of a dataset: frames are worth what they lead to, phases, shares, and a readable copy with a page."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dataset_formats import digest, write_d4rl, write_episodes, write_lerobot_2, write_lerobot_3, write_npz
from support.pages import page_data

from butfor import FitConfig, Influence
from butfor.datasets.curate import (
    DISCOUNT,
    PHASES,
    CurateOptions,
    choose_segments,
    curate_file,
    find_phases,
    frame_values,
)
from butfor.datasets.formats import open_dataset
from butfor.datasets.recording import Recording, read_arrays
from butfor.datasets.score import THRESHOLD, Options
from butfor.models.dynamics import ModelConfig

QUICK = Options(epochs=150, actions=12, network=ModelConfig(layers=2, width=48))
ENTITIES = {"cube": [1]}


def two_episodes() -> tuple[Recording, dict[str, Any]]:
    """Four steps each; only in the first episode the cube (column 1) is influenced, at step 2, and moves then."""
    observations = [np.zeros((5, 2)), np.zeros((5, 2))]
    observations[0][3:, 1] = 1.0
    recording = read_arrays(observations, [np.full((4, 1), 0.5), np.ones((4, 1))])
    scores = np.zeros(10)
    scores[2] = 1.0
    return recording, {"cube": scores}


def test_a_frame_is_worth_what_it_leads_to() -> None:
    recording, scores = two_episodes()
    worth = frame_values(recording, scores, ENTITIES)
    np.testing.assert_allclose(worth, [DISCOUNT**2, DISCOUNT, 1, 0, 0, 0, 0, 0, 0, 0])
    assert frame_values(recording, scores, ENTITIES, "motion")[:3].argmax() == 2
    by_action = frame_values(recording, scores, ENTITIES, "action")
    assert by_action[5] == 2 * by_action[0] > 0
    drawn = [frame_values(recording, scores, ENTITIES, "random", seed) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_phases_are_told_apart() -> None:
    recording, scores = two_episodes()
    names = [PHASES[place] for place in find_phases(recording, scores, ENTITIES, approach=1)]
    assert names == ["idle", "approach", "effect", "idle", "idle", *["idle"] * 5]
    still = read_arrays([np.zeros((5, 2)), np.zeros((5, 2))], [np.ones((4, 1)), np.ones((4, 1))])
    touched = find_phases(still, {"cube": np.where(np.arange(10) == 2, 2 * THRESHOLD, 0)}, ENTITIES, approach=1)
    assert PHASES[touched[2]] == "contact"


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.8])
def test_about_the_asked_share_is_kept(keep: float, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(20, 60, 40)
    observations = [random.normal(size=(length + 1, 6)) for length in lengths]
    path = write_d4rl(tmp_path, observations, [random.normal(size=(length, 2)) for length in lengths])
    dataset = open_dataset(path)
    recording = dataset.recording()
    worth = random.random(40)
    scores = {"cube": worth[recording.episode]}
    chosen = choose_segments(dataset, recording, scores, {"cube": [3]}, CurateOptions(keep))
    assert abs(sum(last - first for _, first, last in chosen) / lengths.sum() - keep) < 60 / lengths.sum()
    dropped = set(range(40)) - {place for place, _, _ in chosen}
    assert min(worth[place] for place, _, _ in chosen) > max(worth[list(dropped)])


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("flat", [True, False])
def test_at_most_the_asked_share_of_frames_is_kept(keep: float, flat: bool, tmp_path: Path) -> None:
    """Also where worth comes and goes, so that gaps are closed, and where most frames are worth nothing."""
    random = np.random.default_rng(0)
    observations = [random.normal(size=(51, 6)) for _ in range(40)]
    dataset = open_dataset(write_d4rl(tmp_path, observations, [random.normal(size=(50, 2)) for _ in range(40)]))
    recording = dataset.recording()
    worth = np.zeros((40, 51)) if flat else random.random((40, 51)) ** 20
    worth[:, :5] += 1
    chosen = choose_segments(dataset, recording, {"cube": worth.ravel()}, {"cube": [3]}, CurateOptions(keep, "frames"))
    share = sum(last - first for _, first, last in chosen) / 2000
    assert keep - 0.02 < share <= keep
    assert {(place, 0) for place in range(40)} <= {(place, first) for place, first, _ in chosen}


def mixed(episodes: int) -> tuple[list[Any], list[Any]]:
    """Every second episode, the hand is near the cube (column 3) in the first half and moves it; else it is far."""
    random = np.random.default_rng(0)
    observations, actions = [], []
    for number in range(episodes):
        action = random.uniform(-1, 1, (40, 2))
        obs = random.normal(0, 0.01, (41, 6))
        obs[:, 0] += 2.0
        obs[: 20 * (1 - number % 2), 0] -= 2.0
        for step in range(40):
            obs[step + 1, 3] = obs[step, 3] + 0.1 * action[step, 0] * (obs[step, 0] < 1) + random.normal(0, 0.003)
        observations.append(obs.astype(np.float32))
        actions.append(action.astype(np.float32))
    return observations, actions


def test_influential_episodes_are_kept_in_the_same_format(tmp_path: Path) -> None:
    path = write_lerobot_3(tmp_path, *mixed(40))
    before = digest(path)
    summary = curate_file(path, entities=["cube=3"], scoring=QUICK)
    assert digest(path) == before
    copy = open_dataset(summary["out"])
    assert copy.kind == "LeRobot v3.0"
    assert "cai" in copy.columns
    whole = open_dataset(path).recording()
    kept = copy.recording()
    original = whole.observation.reshape(40, 41, 6)
    np.testing.assert_array_equal(kept.observation.reshape(-1, 41, 6), original[::2])
    phases = {row["phase"]: row for row in summary["phases"]}
    assert phases["idle"]["after"] < phases["idle"]["before"]
    assert {row["task"]: round(row["kept"], 2) for row in summary["tasks"]} == {"push": 1.0, "lift": 0.0}
    page = Path(summary["report"]).read_text(encoding="utf-8")
    assert set(page_data(page)["figures"]) == {"values", "dropped", "kept"}
    assert summary["diagnosis"]["cube"]["verdict"] in page


def test_a_model_of_other_data_or_entities_is_refused(tmp_path: Path) -> None:
    obs, action, next_obs = open_dataset(write_d4rl(tmp_path, *mixed(30))).recording().transitions()
    influence = Influence.fit(
        obs, action, next_obs, ["cube=3"], model=ModelConfig(layers=1, width=8), fitting=FitConfig(max_epochs=1)
    )
    influence.save(tmp_path / "model.safetensors")
    np.savez(tmp_path / "narrow.npz", observations=obs[:, :4], actions=action, length=[len(obs)])
    with pytest.raises(ValueError, match=r"model\.safetensors does not fit"):
        curate_file(tmp_path / "narrow.npz", model=tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors has the entities"):
        curate_file(tmp_path / "cube-v2.hdf5", None, ["hand=0"], model=tmp_path / "model.safetensors")


def test_frames_become_episodes(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path, *mixed(40))
    curate_file(path, entities=["cube=3"], options=CurateOptions(0.25, "frames"), scoring=QUICK)
    copy = open_dataset(tmp_path / "cube-v2-kept.hdf5").recording()
    assert 0.15 < len(copy.action) / 1600 < 0.35
    near = copy.transitions()[0][:, 0] < 1
    assert near.mean() > 0.9  # half of every second episode


def test_what_cannot_be_cut_is_refused_before_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lerobot_2(tmp_path, *mixed(2))
    monkeypatch.setattr("butfor.datasets.curate.fit_recording", lambda *_: pytest.fail("it was fitted"))
    with pytest.raises(ValueError, match=r"observation\.images\.top"):
        curate_file(path, entities=["cube=3"], options=CurateOptions(by="frames"))


@pytest.mark.parametrize("writer", [write_npz, write_episodes])
def test_frames_of_npz_files_become_episodes(writer: Any, tmp_path: Path) -> None:
    """Of files with one observation more than actions, and of padded ones."""
    path = writer(tmp_path, *mixed(40))
    before = digest(path)
    summary = curate_file(path, entities=["cube=3"], options=CurateOptions(0.25, "frames"), scoring=QUICK)
    copy = open_dataset(summary["out"])
    assert copy.rows.sum() == summary["kept_rows"]
    assert copy.recording().transitions()[0][:, 0].mean() < 0.2  # near: half of every second episode; else 2
    assert "cai" in copy.columns
    assert digest(path) == before


def test_wrong_options_are_told() -> None:
    for name, value in (("keep", 1.5), ("by", "rows"), ("rank", "beauty"), ("approach", 0)):
        with pytest.raises(ValueError, match=str(value)):
            CurateOptions(**{name: value})  # type: ignore[arg-type]
