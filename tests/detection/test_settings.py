"""The settings of a detection study: the paper's sizes, smaller presets, and sentences for what cannot be run."""

import re
from dataclasses import replace
from typing import Any

import pytest

from butfor.detection.settings import PAPER, PAPER_LABEL, TOKENS, DetectionConfig, detection_preset
from butfor.models.attention import AttentionConfig
from butfor.models.fitting import FitConfig
from butfor.runs.config import config_from, plain

ENVS = ["slide", "pick-and-place"]
PRESETS = ["paper", "reduced", "demo"]


# ------------------------------------------------------------------------------------------------- the paper


def test_the_papers_sizes_of_pick_and_place() -> None:
    """Its appendix: episodes of agents that learn for 30,000, three layers of 256, 64 actions, the Transformer."""
    paper = detection_preset("pick-and-place")
    assert (paper.data, paper.agent_episodes, paper.seeds) == ("agents", 30_000, 5)
    sizes = (paper.train_episodes, paper.validation_episodes, paper.test_episodes, paper.random_episodes)
    assert sizes == (5_000, 5_000, 7_500, 5_000)
    assert (paper.model.layers, paper.model.width, paper.model.activation) == (3, 256, "relu")
    assert (paper.model.normalize_input, paper.model.target_scale, paper.model.beta) == (True, 50.0, 0.0)
    assert paper.model.spectral_norm_hidden
    assert paper.model.spectral_norm_variance
    assert (paper.scoring.actions, paper.scoring.sampling) == (64, "independent")
    assert (paper.fitting.batch_size, paper.fitting.learning_rate) == (500, 8e-4)
    assert paper.attention == AttentionConfig(embedding=128, feedforward=128, heads=2, layers=3, normalize_input=True)
    assert paper.attention_fitting == replace(paper.fitting, learning_rate=1e-4)
    assert set(paper.studies) == {"actions", "decisions", "ensembles", "helps", "noise", "reference"}


def test_the_papers_sizes_of_slide() -> None:
    paper = detection_preset("slide")
    assert (paper.data, paper.seeds, paper.random_episodes) == ("agents", 5, 0)
    assert (paper.train_episodes, paper.validation_episodes, paper.test_episodes) == (1_000, 1_000, 4_000)
    assert (paper.model.layers, paper.model.width) == (4, 128)
    assert (paper.model.normalize_input, paper.model.target_scale) == (False, 1.0)
    assert paper.fitting == paper.attention_fitting == FitConfig(batch_size=1000, learning_rate=3e-4, max_epochs=3000)
    assert paper.scoring.actions == 64
    assert "reference" not in paper.studies


def test_the_smaller_presets_are_smaller_and_ask_the_same() -> None:
    counts = ["train_episodes", "validation_episodes", "test_episodes", "random_episodes", "seeds"]
    for env in ENVS:
        paper, reduced, demo = (detection_preset(env, name) for name in PRESETS)
        for name in counts:
            assert getattr(demo, name) <= getattr(reduced, name) <= getattr(paper, name), name
        assert demo.fitting.max_epochs <= reduced.fitting.max_epochs <= paper.fitting.max_epochs
        assert (reduced.model, reduced.scoring, reduced.studies) == (paper.model, paper.scoring, paper.studies)
        assert demo.data == "scripted"  # minutes on two cores leave no time to train agents
        assert {one.env for one in (paper, reduced, demo)} == {env}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("env", ENVS)
def test_a_preset_survives_its_file(env: str, name: str) -> None:
    config = detection_preset(env, name)
    assert config_from(DetectionConfig, plain(config)) == config


@pytest.mark.parametrize("env", ENVS)
def test_the_papers_numbers_are_shares_with_the_best_for_cai(env: str) -> None:
    rows = PAPER[env]
    assert list(rows) == ["cai", "entropy", "attention", "contact"]
    for metrics in rows.values():
        assert list(metrics) == ["auc", "ap", "f1"]
        assert all(0 <= number <= 1 for values in metrics.values() for number in values)
    for metric in ("auc", "ap", "f1"):
        assert rows["cai"][metric][0] == max(row[metric][0] for row in rows.values())
    assert PAPER_LABEL[env] in ("exact", "heuristic")


def test_tokens_show_every_column_once_but_for_what_follows_from_others() -> None:
    """Fetch: 25 numbers a state, 4 an action; 6 to 8 are the difference of two positions that are there already."""
    assert sorted(column for columns in TOKENS["slide"].values() for column in columns) == [0, 1, 2, 3, 4]
    for name in ("pick-and-place", "pick-and-place, four tokens"):
        columns = [column for token in TOKENS[name].values() for column in token]
        assert sorted(columns) == [column for column in range(29) if column not in (6, 7, 8)]
        assert TOKENS[name]["action"] == [25, 26, 27, 28]
    arm, gripper = (TOKENS["pick-and-place, four tokens"][name] for name in ("arm", "gripper"))
    assert sorted(arm + gripper) == sorted(TOKENS["pick-and-place"]["agent"])
    assert TOKENS["pick-and-place"]["object"][:3] == [3, 4, 5]


# --------------------------------------------------------------------------------------------------- refusals


def refused(message: str, **settings: Any) -> None:
    with pytest.raises(ValueError, match=message):
        DetectionConfig(**settings)


@pytest.mark.parametrize("name", ["random_episodes", "extra_episodes"])
def test_what_may_be_left_out_is_not_negative(name: str) -> None:
    assert getattr(DetectionConfig(**{name: 0}), name) == 0  # type: ignore[arg-type]
    refused(f"{name} .*-1", **{name: -1})


def test_unknown_words_are_refused_with_the_known_ones() -> None:
    refused("data .*'human'", data="human")
    refused("studies .*'speed'", studies=("speed",))
    refused("agent_episodes .*0", agent_episodes=0)
    refused("agent_envs .*0", agent_envs=0)
    with pytest.raises(ValueError, match=r"'tiny'.* paper, reduced, demo"):
        detection_preset("slide", "tiny")
    with pytest.raises(ValueError, match=r"'push'.* slide and pick-and-place"):
        detection_preset("push")


def test_slide_has_no_reference_study_and_no_parts_of_its_agent() -> None:
    refused("reference.* slide", studies=("reference",))
    refused("split_agent.* slide", split_agent=True)
    assert DetectionConfig(env="pick-and-place", studies=("reference",), split_agent=True, test_episodes=10).seeds


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_more_episodes_than_the_agents_play_are_refused_before_they_learn(name: str) -> None:
    """Hours of training must not end with that sentence."""
    few: dict[str, Any] = {f"{other}_episodes": 10 for other in ("train", "validation", "test")}
    settings = few | {"env": "pick-and-place", "agent_episodes": 10}
    assert DetectionConfig(**settings).agent_episodes == 10
    refused(f"{name}_episodes .*11.*10", **settings | {f"{name}_episodes": 11})
    assert DetectionConfig(**settings | {f"{name}_episodes": 11, "data": "scripted"}).data == "scripted"


def test_half_of_slides_test_episodes_are_random() -> None:
    settings: dict[str, Any] = {"train_episodes": 10, "validation_episodes": 10, "agent_episodes": 10}
    assert DetectionConfig(test_episodes=21, **settings).test_episodes == 21  # 11 random ones, 10 of an agent
    refused("test_episodes .*11.*10", test_episodes=22, **settings)


@pytest.mark.parametrize(("name", "value"), [("target_noise", 0.0), ("target_noise", -1.0), ("noise_levels", (-0.1,))])
def test_noise_that_cannot_be_is_refused_before_the_training(name: str, value: Any) -> None:
    refused(f"{name} .*{re.escape(str(value))}", **{name: value})
