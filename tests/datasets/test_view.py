"""The scene of whatever a user names: forks where they are possible, else positions with ghosts of a model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from butfor.datasets.recording import read_arrays
from butfor.datasets.view import LONGEST, ViewOptions, scored_scene, view_anything
from butfor.detection.collect import CollectConfig, collect_file
from butfor.influence.influence import Influence
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import make_generators
from butfor.models.tables import Units
from butfor.scenes.positions import other_actions
from butfor.spaces.actions import ActionLaw


def untrained(size: int = 4) -> Influence:
    """A model of the columns 2 and 3 that has not learned anything."""
    model = GaussianDynamics(size, 2, 2, ModelConfig(layers=1, width=8), make_generators([0]))
    return Influence(model, Units.raw(ActionLaw((-1.0, -1.0), (1.0, 1.0)), {"cube": [2, 3]}, [1.0, 1.0], size))


def save_data(path: Path, steps: int = 40) -> Path:
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {"observation": random.normal(size=(2, steps + 1, 4))}
    np.savez(path, action=random.uniform(-1, 1, (2, steps, 2)), length=np.array([steps, steps - 10]), **arrays)
    return path


def test_episodes_of_a_built_in_environment_are_forked(tmp_path: Path) -> None:
    path = tmp_path / "slide.npz"
    collect_file(CollectConfig("slide", "expert", 2), path)
    scene = view_anything(path, ViewOptions((1,)))
    ghosts = scene.episodes[0].ghosts
    assert ghosts is not None
    assert ghosts.source == "simulator"
    assert ghosts.success is not None


def test_other_data_need_a_model_or_columns(tmp_path: Path) -> None:
    path = save_data(tmp_path / "mine.npz")
    with pytest.raises(ValueError, match="mine"):
        view_anything(path, ViewOptions())
    drawn = view_anything(path, ViewOptions(positions=("cube=2:4",), agent="hand=0:2"))
    assert [body.name for body in drawn.bodies] == ["agent", "cube"]
    assert drawn.episodes[0].ghosts is None


def test_ghosts_of_a_model_are_its_predictions(tmp_path: Path) -> None:
    """One step ahead, at the mean of the prediction for each corner of the box of actions."""
    path = save_data(tmp_path / "mine.npz")
    influence = untrained()
    scene = view_anything(path, ViewOptions((1,)), influence)
    ghosts = scene.episodes[0].ghosts
    assert ghosts is not None
    assert ghosts.source == "model"
    obs = np.load(path)["observation"][1, :30]
    tried = np.broadcast_to(other_actions(influence.law), (30, 4, 2)).copy()
    assert np.allclose(ghosts.path[:, :, 0, 0, :2], influence.predict(obs, tried)["cube"][0])


def test_an_unknown_episode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="7"):
        view_anything(save_data(tmp_path / "mine.npz"), ViewOptions((7,)), untrained())


@pytest.mark.parametrize(
    ("law", "count"),
    [
        (ActionLaw(count=5), 5),
        (ActionLaw(count=100), 16),
        (ActionLaw((-1.0,), (1.0,)), 9),
        (ActionLaw((-1.0,) * 4, (1.0,) * 4), 16),
        (ActionLaw((-1.0,) * 7, (1.0,) * 7), 14),
    ],
)
def test_other_actions_are_few_and_far_apart(law: ActionLaw, count: int) -> None:
    tried = other_actions(law)
    assert len(np.unique(tried, axis=0)) == len(tried) == count


def test_a_report_shows_most_and_least_influence() -> None:
    """Long episodes are cut around their highest score."""
    random = np.random.default_rng(0)
    steps = 2 * LONGEST
    obs = random.normal(size=(2, steps + 1, 4))
    recording = read_arrays(obs, random.uniform(-1, 1, (2, steps, 2)), length=np.array([steps, steps]))
    score = np.concatenate([np.zeros(steps + 1), np.ones(steps + 1)])
    score[steps + 1 + 500] = 9
    scene = scored_scene(untrained(), recording, {"cube": score})
    assert [episode.title.split(",")[0] for episode in scene.episodes] == [
        "Most influence: episode 1",
        "Least influence: episode 0",
    ]
    assert len(scene.episodes[0].action) == LONGEST
    assert scene.episodes[0].scores["cube"].max() == 9


def test_an_episode_of_one_state_is_not_shown() -> None:
    """It has the highest and the lowest mean, but no step."""
    random = np.random.default_rng(0)
    observations = [random.normal(size=(steps + 1, 4)) for steps in (0, 5, 5, 0)]
    actions = [random.uniform(-1, 1, (len(one) - 1, 2)) for one in observations]
    recording = read_arrays(observations, actions)
    score = np.repeat([9.0, 1.0, 2.0, 0.0], [1, 6, 6, 1])
    titles = [episode.title for episode in scored_scene(untrained(), recording, {"cube": score}).episodes]
    assert titles == ["Most influence: episode 2", "Least influence: episode 1"]
    first = read_arrays(observations[:2], actions[:2])
    titles = [episode.title for episode in scored_scene(untrained(), first, {"cube": score[:7]}).episodes]
    assert titles == ["Most influence: episode 1"]
