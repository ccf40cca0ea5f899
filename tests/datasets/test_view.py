"""The scene of whatever a user names: forks where they are possible, else positions with ghosts of a model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from butfor.datasets.recording import read_arrays
from butfor.datasets.view import LONGEST, ViewOptions, scored_scene, view_anything
from butfor.detection.collect import CollectConfig, collect_file
from butfor.influence import GraphConfig
from butfor.influence.graph.pairs import GraphDynamics
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


def untrained_pairs(horizon: int = 1) -> Influence:
    """A model of pairs of the four entities of pucks that has not learned anything."""
    names = ("agent", "first", "second", "third")
    entities = {name: list(range(4 * place, 4 * place + 4)) for place, name in enumerate(names)}
    units = Units.raw(ActionLaw((-1.0, -1.0), (1.0, 1.0)), entities, [1.0] * 16, 16)
    config = GraphConfig(updates=1, motion_updates=1)
    return Influence(GraphDynamics(units, ["agent"], config, make_generators([0])), units, horizon=horizon)


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


@pytest.mark.parametrize("horizon", [1, 2])
def test_who_moves_whom_is_the_model_s_answer_where_nothing_is_forked(tmp_path: Path, horizon: int) -> None:
    """For the actions taken; positions are the columns that the model takes for them, and agents have no ghosts."""
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "observation": 0.1 * random.normal(size=(1, 21, 16)),
        "action": random.uniform(-1, 1, (1, 20, 2)),
    }
    np.savez(tmp_path / "mine.npz", length=np.array([20]), **arrays)
    influence = untrained_pairs(horizon)
    scene = view_anything(tmp_path / "mine.npz", ViewOptions(), influence)
    (episode,) = scene.episodes
    assert episode.moves is None
    assert len(episode.edges) == 12
    graph = influence.graph(arrays["observation"][0, :-1], arrays["action"][0])
    for edge, values in episode.edges.items():
        np.testing.assert_array_equal(values, graph[edge])
    assert scene.horizon == horizon
    assert [body.role for body in scene.bodies] == ["agent", "object", "object", "object"]
    assert scene.places == {"agent": 0, "first": 1, "second": 2, "third": 3}
    assert scene.dimensions == 2
    assert episode.ghosts is not None
    assert episode.ghosts.bodies == (1, 2, 3)


def test_who_moves_whom_is_both_answers_where_states_are_forked(tmp_path: Path) -> None:
    collect_file(CollectConfig("pucks", "noisy-expert", 1), tmp_path / "pucks.npz")
    scene = view_anything(tmp_path / "pucks.npz", ViewOptions(hold=1, outcomes=False), untrained_pairs())
    (episode,) = scene.episodes
    assert episode.moves
    assert len(episode.edges) == 12
    assert {scene.bodies[place].name: name for name, place in scene.places.items()} == {
        name: name for name in ("agent", "first", "second", "third")
    }
    assert "By the model" in scene.notes[0]


def test_other_models_have_no_edges(tmp_path: Path) -> None:
    scene = view_anything(save_data(tmp_path / "mine.npz"), ViewOptions(), untrained())
    assert scene.episodes[0].edges == {}
    assert not any("By the model" in note for note in scene.notes)


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


def test_a_report_begins_with_the_episode_of_the_most_influence_between_entities() -> None:
    random = np.random.default_rng(0)
    recording = read_arrays(random.normal(size=(3, 11, 4)), random.uniform(-1, 1, (3, 10, 2)), length=np.full(3, 10))
    edges = {("cube", "ball"): np.repeat([0.0, 0.0, 0.5], 11), ("ball", "cube"): np.repeat([0.0, 0.1, 0.0], 11)}
    scene = scored_scene(untrained(), recording, {"cube": np.repeat([1.0, 0.5, 0.0], 11)}, edges)
    assert [episode.title for episode in scene.episodes] == [
        "Most influence between entities: episode 2",
        "Most influence: episode 0",
        "Least influence: episode 2",
    ]
    assert scene.episodes[0].edges["cube", "ball"].tolist() == [0.5] * 10


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
