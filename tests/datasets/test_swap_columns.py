"""Columns outside of the entities: computed again if they follow from them, else refused by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest

from butfor.datasets.augment import augment_file, known_entities, known_facts
from butfor.datasets.export import export_minari
from butfor.datasets.formats import open_dataset
from butfor.datasets.recording import Recording, read_arrays
from butfor.datasets.swap_columns import describe_columns, find_columns
from butfor.detection.collect import CollectConfig, collect_file
from butfor.rollouts.swaps import AugmentOptions, propose_swaps

ENTITIES = {"hand": [0, 1], "cube": [2, 3]}


def walks(episodes: int = 30, steps: int = 20, seed: int = 0) -> Any:
    """Random walks of a hand and a cube: [E, T + 1, 4]."""
    random = np.random.default_rng(seed)
    start = random.uniform(-1, 1, (episodes, 1, 4))
    return start + np.cumsum(random.normal(0, 0.1, (episodes, steps + 1, 4)), 1)


def record(states: Any) -> Recording:
    return read_arrays(list(states.astype(np.float32)), list(np.zeros((len(states), states.shape[1] - 1, 2))))


def test_differences_and_copies_are_computed_again() -> None:
    states = walks()
    mixed = 0.3 * states[..., 2:3] + 0.123456 * states[..., 1:2] + 5
    constant = np.full((30, 21, 1), 7.0)
    recording = record(
        np.concatenate([states, states[..., 2:4] - states[..., :2], mixed, states[..., 2:], constant], -1)
    )
    columns = find_columns(recording, ENTITIES, None)
    assert columns.following == [4, 5, 6, 7, 8]
    hidden = columns.hide(recording)
    assert not hidden.observation[:, 4:9].any()
    swaps = propose_swaps(hidden, ENTITIES, AugmentOptions(200, agent="hand"))
    new = columns.finish_swaps(swaps, recording).observation
    np.testing.assert_array_equal(new[..., :4], swaps.observation[..., :4])
    np.testing.assert_allclose(new[..., 4:6], new[..., 2:4] - new[..., :2], atol=1e-5)
    np.testing.assert_allclose(new[..., 6], 0.3 * new[..., 2] + 0.123456 * new[..., 1] + 5, atol=1e-5)
    np.testing.assert_array_equal(new[..., 7:9], new[..., 2:4])
    assert (new[..., 9] == 7).all()


@pytest.mark.parametrize("kind", ["noise", "square", "constant in an episode"])
def test_columns_that_follow_from_nothing_are_refused(kind: str) -> None:
    states = walks()
    noise = np.random.default_rng(1).normal(size=(30, 21, 1))
    more = {"noise": noise, "square": states[..., :1] ** 2, "constant in an episode": noise[:, :1].repeat(21, 1)}[kind]
    recording = record(np.concatenate([states, states[..., 2:3] - states[..., :1], more], -1))
    with pytest.raises(ValueError, match=r"column 5\b"):
        find_columns(recording, ENTITIES, None)
    find_columns(recording, ENTITIES | {"hand": [0, 1, 5]}, None)  # the agent keeps it


def test_a_column_of_two_entities_is_refused() -> None:
    states = walks()
    recording = record(np.concatenate([states, states[..., 2:4] - states[..., :2]], -1))
    with pytest.raises(ValueError, match=r"olumn 4 of 'cube'.*cube, hand"):
        find_columns(recording, {"hand": [0, 1], "cube": [2, 3, 4, 5]}, None)
    with pytest.raises(ValueError, match=r"olumn 2 of 'cube'.*hand"):
        find_columns(recording, {"hand": [0, 1, 4, 5], "cube": [2, 3]}, None)
    with pytest.raises(ValueError, match=r"'hand' and 'cube'.*column 2"):
        find_columns(recording, {"hand": [0, 1, 2], "cube": [2, 3]}, None)
    own = record(np.concatenate([states, 2 * states[..., 2:3]], -1))
    assert not find_columns(own, {"hand": [0, 1], "cube": [2, 3, 4]}, None).following  # of one entity: swapped with it


def test_things_that_lie_still_are_not_functions_of_each_other_by_chance() -> None:
    """With three episodes, places that are constant within each are a linear function of three others."""
    states = walks(3)
    still = np.random.default_rng(2).normal(size=(3, 1, 8)).repeat(21, 1)
    recording = record(np.concatenate([states, still], -1))
    columns = find_columns(recording, ENTITIES | {"box": [4, 5, 6, 7], "ball": [8, 9, 10, 11]}, None)
    assert not columns.following


def test_columns_in_words() -> None:
    assert describe_columns([6, 7, 8, 12], {"": 20}) == "columns 6:9, 12"
    assert describe_columns([1], {"goal": 2, "state": 3}) == "column goal:1"
    assert describe_columns([0, 1, 4], {"goal": 2, "state": 3}) == "columns goal:0:2, state:2"


def test_goals_of_a_minari_dataset_come_with_the_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The achieved goal is where the third puck is; the dataset names the environment, and so the entities."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    episodes = collect_file(CollectConfig("pucks", "noisy-expert", 60), tmp_path / "pucks.npz")
    export_minari(episodes, "mine/pucks-v0", "pucks")
    assert minari.load_dataset("mine/pucks-v0").env_spec is not None
    options = AugmentOptions(1500, 0.5, updates=200)
    summary = augment_file("mine/pucks-v0", tmp_path / "new.npz", options=options)
    assert summary["entities"]["third"] == [16, 17, 18, 19]  # after two goals of 2 columns
    with np.load(tmp_path / "new.npz") as file:
        new = dict(file)
    np.testing.assert_array_equal(new["observations/achieved_goal"], new["observations/observation"][:, 12:14])
    # the episode file gives the same transitions and goals
    augment_file(tmp_path / "pucks.npz", tmp_path / "own.npz", options=options)
    with np.load(tmp_path / "own.npz") as file:
        own = dict(file)
    np.testing.assert_array_equal(own["desired_goals"], new["observations/desired_goal"])
    np.testing.assert_array_equal(own["achieved_goals"], new["observations/achieved_goal"])
    np.testing.assert_array_equal(own["observations"], new["observations/observation"])
    # of all candidates, with the third puck those of its own episode
    dataset = open_dataset("mine/pucks-v0")
    recording = dataset.recording()
    facts: Any = known_facts(dataset, recording)
    entities = known_entities(facts, recording)
    columns = find_columns(recording, entities, facts)
    swaps = columns.finish_swaps(propose_swaps(columns.hide(recording), entities, AugmentOptions(300)), recording)
    third = swaps.entity == 3
    assert 0 < third.mean() < 1
    desired = episodes.desired_goal[:, :-1].reshape(-1, 2)
    wanted = desired[np.where(third, swaps.donor, swaps.base)]
    np.testing.assert_array_equal(swaps.observation[:, 0, 2:4], wanted)
    np.testing.assert_array_equal(swaps.observation[..., :2], swaps.observation[..., 16:18])


def test_a_part_that_is_left_out_needs_no_entity(tmp_path: Path) -> None:
    states = walks(40)
    camera = np.random.default_rng(3).normal(size=(40, 21, 2))
    rows = {"observations/camera": camera[:, :-1], "observations/state": states[:, :-1]}
    rows |= {"next_observations/camera": camera[:, 1:], "next_observations/state": states[:, 1:]}
    path = tmp_path / "data.npz"
    flat: dict[str, Any] = {name: values.reshape(800, -1) for name, values in rows.items()}
    np.savez(path, **flat, actions=np.zeros((800, 1)), timeouts=np.tile(np.arange(20) == 19, 40))
    entities = ["hand=state:0:2", "cube=state:2:4"]
    options = AugmentOptions(100, 0.5, agent="hand", updates=20)
    with pytest.raises(ValueError, match=r"camera:0:2.*--ignore"):
        augment_file(path, tmp_path / "new.npz", entities, options)
    with pytest.raises(ValueError, match="None of"):  # nothing acts on anything
        augment_file(path, tmp_path / "new.npz", ["hand=0:2", "cube=2:4"], options, ignore=["camera"])
    with pytest.raises(ValueError, match="--entities"):
        augment_file(path, tmp_path / "new.npz", options=replace(options, agent="agent"))
