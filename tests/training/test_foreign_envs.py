"""Environments that this package did not write, trained in for a few episodes, with one entity and with several."""

import importlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.project import ROOT
from support.small_training import ALL_USES, TRACK, changed, metrics, models, small

from butfor.influence.contact import ContactDynamics
from butfor.influence.influence import Influence
from butfor.reporting.heatmap import write_heatmap
from butfor.runs.checkpoints import latest_checkpoint
from butfor.training.agents.policy import load_policy
from butfor.training.goal_env import open_goal_env
from butfor.training.run import resume, train
from butfor.training.settings import Config, preset

SHORT = (  # settings that take time
    "agent", "episodes", "warmup", "evaluate_every", "evaluation_episodes", "fit_every", "fit_schedule", "cai",
)  # fmt: skip


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The mazes write their models to the folder for temporary files, and leave them there."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def robotics() -> None:
    """The environments of gymnasium-robotics by name."""
    gymnasium.register_envs(pytest.importorskip("gymnasium_robotics"))


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A file of `examples/`, as a user would import it."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def briefly(goal_env: str) -> Config:
    """All uses of influence in an environment of any kind, from a few episodes; its scale is measured."""
    base = preset(goal_env)
    assert (base.cai.model, base.cai.network.target_scale) == ("auto", None)
    short: Config = changed(
        base, episodes=3, warmup=2, evaluate_every=10, evaluation_episodes=1, use=ALL_USES,
        agent={"updates": 2, "batch_size": 8, "width": 8, "normalizer_batches": 1},
        fit_every=1, fit_schedule=((2, 4), (1000, 2)), cai={"batch_size": 8, "network": {"width": 8}},
    )  # fmt: skip
    return short


def check_run(run: Path, entities: dict[str, list[int]], sizes: tuple[int, int, int]) -> Influence:
    """Everything was learned and written: an agent that acts, finite losses, scores of each entity by name."""
    policy = load_policy(run)
    assert policy.sizes == sizes
    (row,) = metrics(run)
    assert all(np.isfinite(value) for value in row.values())
    assert row["score"] > 0
    influence = Influence.load(run / "influence.safetensors")
    assert influence.entities == entities
    state = latest_checkpoint(run)
    assert state is not None
    seen = state["replay"]["observation"][0, -1, :5].numpy()
    scores = influence.score(seen)
    assert list(scores) == list(entities)
    assert all(np.isfinite(score).all() for score in scores.values())
    return influence


# ------------------------------------------------------------------------- environments of gymnasium-robotics


@pytest.mark.usefixtures("robotics")
def test_fetch_slide_watches_the_puck_that_achieves_the_goal(tmp_path: Path) -> None:
    """Which random actions hardly ever reach: the few times show the hand and how far the puck moves."""
    run = train(briefly("FetchSlide-v4"), tmp_path / "run")
    influence = check_run(run, {"object": [3, 4, 5]}, (25, 4, 3))
    assert isinstance(influence.model, ContactDynamics)
    assert all(10 < scale < 100 for scale in influence.units.scale)  # a touch moves it by centimetres


@pytest.mark.usefixtures("robotics")
def test_a_gaussian_model_is_told_that_the_moves_of_a_puck_have_an_unknown_size(tmp_path: Path) -> None:
    config = changed(briefly("FetchSlide-v4"), cai={"model": "gaussian"})
    with pytest.warns(UserWarning, match=r"FetchSlide-v4.*object.*--cai\.network\.target-scale"):
        run = train(config, tmp_path / "run")
    assert check_run(run, {"object": [3, 4, 5]}, (25, 4, 3)).units.scale == [1.0] * 3


@pytest.mark.usefixtures("robotics")
def test_in_a_point_maze_the_agent_itself_is_the_entity(tmp_path: Path) -> None:
    run = train(briefly("PointMaze_UMaze-v3"), tmp_path / "run")
    influence = check_run(run, {"object": [0, 1]}, (4, 2, 2))
    assert all(scale > 10 for scale in influence.units.scale)  # a step moves it by centimetres


@pytest.mark.long
@pytest.mark.usefixtures("robotics")
def test_an_ant_does_not_see_where_it_is() -> None:
    """So its columns have to be named: the torso's height and orientation, say."""
    with pytest.raises(ValueError, match=r"achieved goal of AntMaze_UMaze-v5 is not part of its observation"):
        open_goal_env("AntMaze_UMaze-v5")


@pytest.mark.long
@pytest.mark.usefixtures("robotics")
def test_the_kitchen_is_trained_in_once_its_goals_are_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="FrankaKitchen-v1"):
        open_goal_env("FrankaKitchen-v1")
    kitchen = example("franka_kitchen", monkeypatch)
    settings = briefly("FlatKitchen-v1")
    run = kitchen.main(tmp_path / "run", **{name: getattr(settings, name) for name in SHORT})
    check_run(run, {"microwave": [31], "kettle": [32, 33, 34, 35, 36, 37, 38]}, (59, 9, 8))


# ------------------------------------------------------------------------------------- several entities


def test_the_example_with_two_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two = example("two_objects", monkeypatch)
    settings = briefly("TwoPucks-v0")
    scores = two.main(tmp_path / "run", **{name: getattr(settings, name) for name in SHORT})
    assert list(scores) == ["red", "blue"]
    assert len(capsys.readouterr().out.splitlines()) == 3
    check_run(tmp_path / "run", {"red": [2, 3], "blue": [4, 5]}, (6, 2, 2))


@pytest.mark.parametrize("combine", ["sum", "ball"])
def test_one_entity_by_name_is_trained_as_ever(tmp_path: Path, combine: str) -> None:
    """To the bit, however it is combined."""
    runs = [
        train(small(use=ALL_USES, **changes), tmp_path / name)
        for name, changes in (("one", {}), ("named", {"entities": ("ball=2",), "combine": combine}))
    ]
    assert metrics(runs[0]) == metrics(runs[1])
    agents, influences = zip(*map(models, runs), strict=True)
    assert agents[0] == agents[1]
    tensors = []
    for run in runs:
        with safe_open(run / "influence.safetensors", "pt") as file:
            tensors.append({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    assert influences[0] != influences[1]  # the entity's name


def test_several_entities_are_trained_and_resumed_to_the_bit(tmp_path: Path) -> None:
    several = small(env=TRACK, seeds=2, entities=("clock=0", "place=1"), combine="max", use=ALL_USES)
    whole = train(several, tmp_path / "whole")
    broken = train(changed(several, episodes=7), tmp_path / "broken")
    assert models(resume(broken, episodes=several.episodes)) == models(whole)
    assert metrics(broken)[-1] == metrics(whole)[-1]


def test_the_chosen_entity_decides_what_the_agent_learns(tmp_path: Path) -> None:
    """Whatever is combined, the model learns the same from the same random episodes; the scores differ."""
    scores = {}
    for combine in ("sum", "max", "agent", "object"):
        config = small(use=("bonus",), entities=("agent=0", "object=2"), combine=combine, episodes=4)
        state = latest_checkpoint(train(config, tmp_path / combine))
        assert state is not None
        scores[combine] = state["replay"]["score"]
    assert torch.equal(scores["sum"], scores["agent"] + scores["object"])
    assert torch.equal(scores["max"], torch.maximum(scores["agent"], scores["object"]))
    assert not torch.equal(scores["agent"], scores["object"])


def test_a_heat_map_shows_the_combined_scores(tmp_path: Path) -> None:
    config = small(use=("bonus",), entities=("agent=0", "object=2"), combine="max")
    run = train(config, tmp_path / "run")
    state = latest_checkpoint(run)
    assert state is not None
    with np.load(write_heatmap(run)) as file:
        np.testing.assert_allclose(file["score"][:, 0], state["replay"]["score"][0].mean(0), rtol=1e-5)
