"""Settings: impossible ones are refused with a sentence, presets hold the numbers of the paper's appendix G."""

import dataclasses
import json
from typing import Any

import pytest

from butfor.envs import ENVS
from butfor.runs.config import config_from, plain
from butfor.runs.folder import run_label
from butfor.training.agents.policy import AgentConfig
from butfor.training.bonus import BonusConfig
from butfor.training.exploration import ExploreConfig
from butfor.training.priorities import PriorityConfig
from butfor.training.replay import ReplayConfig
from butfor.training.settings import Config, preset
from butfor.training.signals.cai import CaiConfig, batches_due

# ------------------------------------------------------------------------------- what is refused

NO_RANGE = AgentConfig(target_range=None)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        *[
            ({name: value}, f"{name} must be at least 1; got {value}.")
            for name in ("seeds", "episodes", "warmup", "num_envs", "evaluate_every", "evaluation_episodes")
            for value in (0, -3)
        ],
        ({"first_seed": -1}, "first_seed must be at least 0; got -1."),
        ({"use": ("boost",)}, "influence is ('boost',); expected any of priority, bonus, active, intrinsic."),
        ({"influence": "bonus"}, "influence is bonus; expected any of priority, bonus, active, intrinsic."),
        ({"use": ("bonus", "bonus")}, "influence is ('bonus', 'bonus'); name each once."),
        ({"overlap": ("play",)}, "overlap is ('play',); expected any of acting, updates, model."),
        ({"overlap": ("model", "model")}, "overlap is ('model', 'model'); name each once."),
        *[
            (
                {"use": ("active", "priority"), "priority": PriorityConfig(kind)},
                f"influence has 'priority', but priority.kind is '{kind}': episodes can be drawn by influence or by "
                "that, not by both.",
            )
            for kind in ("per", "ebp")
        ],
        (
            {"use": ("intrinsic", "bonus"), "agent": NO_RANGE},
            "influence has 'intrinsic' and 'bonus': choose influence alone, or as an addition.",
        ),
        (
            {"use": ("intrinsic",)},
            "With intrinsic rewards, which are positive, agent.target_range must be None; it is (-50.0, 0.0). The "
            "preset 'intrinsic' has the paper's settings.",
        ),
        (
            {"entities": ("cube=3:6",), "entity": (3, 4, 5)},
            "entity is (3, 4, 5) and entities ('cube=3:6',): name one, or several with names.",
        ),
        (
            {"entities": ("cube=3:6",)},
            "entities are ('cube=3:6',), but influence is not used; choose a use of influence.",
        ),
        (
            {"entities": ("cube=3:6",), "curiosity": "vime"},
            "curiosity is 'vime', which has one score for all that it predicts; name those columns by entity, not by "
            "entities.",
        ),
        (
            {"entities": ("max=3:6", "ball=6:9")},
            "entities are ('max=3:6', 'ball=6:9'); choose names other than sum and max, which combine them.",
        ),
        ({"combine": "cube"}, "combine is 'cube'; expected sum, max."),
        (
            {"entities": ("cube=3:6", "ball=6:9"), "combine": "mean"},
            "combine is 'mean'; expected sum, max, cube, ball.",
        ),
        (
            {"replay": ReplayConfig(goals_by_score=True)},
            "replay.goals_by_score needs influence scores; choose a use of influence.",
        ),
        (
            {"episodes": 100, "warmup": 101},
            "episodes is 100, less than the 101 random episodes of the warm-up.",
        ),
        (  # the plainer reason comes first
            {"episodes": 100, "warmup": 103, "num_envs": 2},
            "episodes is 100, less than the 103 random episodes of the warm-up.",
        ),
        (
            {"episodes": 1000, "warmup": 201, "num_envs": 2},
            "episodes - warmup is 799; it must be a multiple of worlds, 2.",
        ),
        (
            {"num_envs": 4, "replay": ReplayConfig(capacity=3)},
            "replay.capacity 3 is less than the 4 worlds of a seed.",
        ),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Config(**settings)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (AgentConfig, {"layers": 0}, "agent.layers must be at least 1; got 0"),
        (AgentConfig, {"updates": 0}, "agent.updates must be at least 1"),
        (AgentConfig, {"learning_rate": float("nan")}, "agent.learning_rate must be positive; got nan"),
        (AgentConfig, {"discount": 1.0}, r"agent.discount must lie in \[0, 1\); got 1.0"),
        (AgentConfig, {"polyak": -0.1}, "agent.polyak must lie in"),
        (AgentConfig, {"target_range": (0.0, -50.0)}, "agent.target_range must be a low and a higher number"),
        (ReplayConfig, {"capacity": 0}, "replay.capacity must be at least 1"),
        (ReplayConfig, {"hindsight": 1.1}, "replay.hindsight is a probability; got 1.1"),
        (ExploreConfig, {"epsilon": 2.0}, "explore.epsilon is a share between 0 and 1"),
        (ExploreConfig, {"active": -0.5}, "explore.active is a share between 0 and 1"),
        (ExploreConfig, {"noise": -1.0}, "explore.noise must not be negative"),
        (ExploreConfig, {"candidates": 1}, "explore.candidates must be at least 2"),
        (ExploreConfig, {"choice": "worst"}, "explore.choice is 'worst'"),
        (BonusConfig, {"weight": -1.0}, "bonus.weight must be at least 0"),
        (BonusConfig, {"cap": 0.0}, "bonus.cap above 0"),
        (BonusConfig, {"kind": "cubic"}, "bonus.kind is 'cubic'"),
        (BonusConfig, {"anneal_episodes": 0}, "bonus.anneal_episodes must be at least 1 or None"),
        (CaiConfig, {"every": 0}, "model.every must be at least 1"),
        (CaiConfig, {"newest_share": 1.0}, "model.newest_share must lie in"),
        (CaiConfig, {"rescore": "none"}, "model.rescore is 'none'"),
        (CaiConfig, {"schedule": ()}, "model.schedule is"),
        (CaiConfig, {"schedule": ((300, 1), (200, 1))}, "with rising episodes"),
        (CaiConfig, {"schedule": ((200, 0),)}, "at least 1 batch"),
    ],
)
def test_values_that_make_no_sense_are_refused_where_they_belong(
    kind: Any, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**settings)


def test_what_is_possible_is_not_refused() -> None:
    """The borders of the rules above."""
    Config(episodes=200, warmup=200)
    Config(episodes=204, warmup=200, num_envs=4, replay=ReplayConfig(capacity=4))
    Config(use=("priority", "bonus", "active"), overlap=("acting", "updates", "model"))
    Config(use=("intrinsic", "priority", "active"), agent=NO_RANGE)
    Config(use=("active",), replay=ReplayConfig(goals_by_score=True))
    Config(use=("bonus", "active"), priority=PriorityConfig("per"))
    for combine in ("sum", "max", "cube", "ball"):
        Config(use=("bonus",), entities=("cube=3:6", "ball = 6:9"), combine=combine)


def test_a_model_is_trained_and_states_are_scored_only_where_needed() -> None:
    plain_agent, active = Config(), Config(use=("active",))
    by_score = dataclasses.replace(active, replay=ReplayConfig(goals_by_score=True))
    assert [config.needs_model for config in (plain_agent, active, by_score)] == [False, True, True]
    assert [config.needs_scores for config in (plain_agent, active, by_score)] == [False, False, True]
    assert all(Config(use=(use,)).needs_scores for use in ("priority", "bonus"))


def test_errors_are_weighted_for_per_and_where_cai_p_asks_for_it() -> None:
    asked = PriorityConfig(importance=0.5)
    configs = {
        "uniform": Config(),
        "per": Config(priority=PriorityConfig("per")),
        "ebp": Config(priority=PriorityConfig("ebp")),
        "cai-p": Config(use=("priority",)),
        "cai-p weighted": Config(use=("priority",), priority=asked),
        "no cai-p": Config(use=("bonus",), priority=asked),
    }
    assert [name for name, config in configs.items() if config.weighs_importance] == ["per", "cai-p weighted"]


# --------------------------------------------------------------------------- the paper's numbers


@pytest.mark.parametrize("world", ["push", "pick-and-place", "rot-table"])
def test_the_base_settings_are_those_of_the_papers_table(world: str) -> None:
    """Table "Base settings for DDPG+HER", general part."""
    config = preset(world)
    agent, explore = config.agent, config.explore
    assert (agent.batch_size, agent.updates, config.warmup) == (256, 20, 200)
    assert config.replay.capacity * 50 == 500_000
    assert (agent.action_penalty, explore.noise, explore.epsilon) == (1.0, 0.2, 0.3)
    assert (agent.observation_clip, agent.target_range) == (5.0, (-50.0, 0.0))
    assert (agent.layers, agent.width, config.replay.hindsight) == (3, 256, 0.8)
    assert (config.evaluate_every, config.evaluation_episodes) == (200, 100)
    rates = (agent.learning_rate, agent.discount, agent.polyak)
    assert rates == ((3e-4, 0.95, 0.99) if world == "rot-table" else (1e-3, 0.98, 0.95))
    assert not agent.twin_critics
    assert not agent.critic_layer_norm
    assert config.use == ()
    assert config.overlap == ()


@pytest.mark.parametrize("world", ["push", "pick-and-place", "rot-table"])
def test_the_model_and_its_schedule_are_those_of_the_papers_table(world: str) -> None:
    """Table "Settings for CAI in RL experiments"."""
    model, network = preset(world).model, preset(world).model.network
    assert (model.batch_size, model.every, model.learning_rate, model.betas) == (500, 100, 8e-4, (0.9, 0.9))
    assert (network.layers, network.width) == (4, 386 if world == "rot-table" else 256)
    assert (network.activation, network.normalize_input, network.target_scale) == ("tanh", True, 50.0)
    assert (network.spectral_norm_variance, network.spectral_norm_hidden) == (True, False)
    assert (model.scoring.actions, preset(world).explore.candidates) == (32, 32)
    due = {episode: batches_due(model, episode, 200) for episode in (199, 200, 250, 300, 5200, 5300, 10_200, 10_300)}
    assert due == {199: 0, 200: 40_000, 250: 0, 300: 10_000, 5200: 10_000, 5300: 5_000, 10_200: 5_000, 10_300: 0}
    assert (model.newest_from, model.newest_share, model.rescore, model.only_sampled) == (1200, 0.25, "all", False)
    bonus = preset(world).bonus
    assert (bonus.weight, bonus.cap, bonus.ceiling, bonus.kind) == (0.2, 2.0, 0.0, "additive")
    assert bonus.anneal_episodes is None


@pytest.mark.parametrize(("world", "episodes"), [("push", 20_000), ("pick-and-place", 20_000), ("rot-table", 30_000)])
def test_priorities_are_those_of_the_papers_table(world: str, episodes: int) -> None:
    priority = preset(world).priority
    assert (priority.alpha, priority.beta, priority.beta_episodes) == (0.6, 0.4, episodes)
    variants = (priority.kind, priority.distribution, priority.power, priority.importance, priority.within_episode)
    assert variants == ("uniform", "rank", 1.0, 0.0, False)


def test_the_intrinsic_experiment_has_settings_of_its_own() -> None:
    """Both tables' parts "FetchPickAndPlace, intrinsic motivation"; rounds of 40,000 at episodes 100 and 200."""
    config = preset("pick-and-place", "intrinsic")
    agent = config.agent
    assert config.use == ("intrinsic",)
    assert (config.warmup, config.evaluate_every, config.replay.hindsight) == (100, 100, 0.0)
    assert (agent.learning_rate, agent.discount, agent.polyak) == (3e-3, 0.95, 0.99)
    assert (agent.layers, agent.width, agent.target_range) == (2, 192, None)
    assert config.bonus.cap == 10.0
    due = {episode: batches_due(config.model, episode, 100) for episode in (100, 200, 300, 5200, 5300)}
    assert due == {100: 40_000, 200: 40_000, 300: 20_000, 5200: 20_000, 5300: 0}
    base = preset("pick-and-place")
    assert config.explore == base.explore
    assert config.model.network == base.model.network


@pytest.mark.parametrize("world", ENVS)
def test_the_fast_preset_differs_in_nothing_but_shorter_rounds(world: str) -> None:
    paper, fast = preset(world), preset(world, "fast")
    same = dataclasses.replace(fast, model=dataclasses.replace(fast.model, schedule=paper.model.schedule))
    assert same == paper
    episodes = range(1, paper.episodes + 1)
    batches = [sum(batches_due(config.model, n, paper.warmup) for n in episodes) for config in (paper, fast)]
    assert batches[1] <= batches[0] / (1 if world == "slide" else 4)  # those of slide are short already


def test_slide_has_a_schedule_that_takes_minutes_not_hours() -> None:
    config = preset("slide")
    assert config.episodes <= 1000
    assert max(config.agent.width, config.model.network.width) <= 64
    assert config.model.network.target_scale == 1.0
    due = {n: batches_due(config.model, n, config.warmup) for n in range(1, config.episodes + 1)}
    assert due[config.warmup] == max(due.values()) > 0  # the first round is the longest
    assert sum(due.values()) <= 5000


def test_either_name_of_a_world_has_its_preset() -> None:
    for name, id in ENVS.items():
        assert preset(id) == preset(name)
        assert preset(id).env == name


def test_a_foreign_world_has_the_papers_settings_and_a_measured_scale() -> None:
    config = preset("MountainCarContinuous-v0")
    assert config.env == "MountainCarContinuous-v0"
    assert config.model.network.target_scale is None
    assert config.agent == AgentConfig()


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(ValueError, match="There is no preset 'slow'; the presets are paper, intrinsic, fast"):
        preset("slide", "slow")


@pytest.mark.parametrize(
    ("name", "other"), [("vime", "vime-object"), ("vime-full", "vime-object"), ("disagreement-full", "disagreement")]
)
def test_a_rival_that_needs_to_know_the_agent_says_which_one_does_not(name: str, other: str) -> None:
    with pytest.raises(ValueError, match=f"In other worlds take the preset '{other}', which predicts the columns"):
        preset("MountainCarContinuous-v0", name)
    assert preset("MountainCarContinuous-v0", other).curiosity == preset("slide", name).curiosity


def test_a_world_made_in_python_has_the_settings_of_a_foreign_one() -> None:
    config = preset("my-world")
    assert (config.env, config.model.network.target_scale) == ("my-world", None)


# ---------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("world", ENVS)
@pytest.mark.parametrize("name", ["paper", "intrinsic", "fast"])
def test_settings_come_back_from_json_as_they_were(world: str, name: str) -> None:
    config = dataclasses.replace(preset(world, name), entity=(1, 2), overlap=("acting", "model"), seeds=3)
    assert config_from(Config, json.loads(json.dumps(plain(config)))) == config
    uses = config.use or ("bonus",)
    several = dataclasses.replace(config, entity=None, use=uses, entities=("cube=3:6", "ball=6"), combine="ball")
    assert config_from(Config, json.loads(json.dumps(plain(several)))) == several


def test_runs_from_before_there_were_several_entities_keep_settings_and_name() -> None:
    config = dataclasses.replace(preset("slide"), use=("bonus",), entity=(2,))
    older = {name: value for name, value in plain(config).items() if name not in ("entities", "combine")}
    assert config_from(Config, older) == config
    label = run_label("training", config)
    assert "entities" not in label
    assert "combine" not in label
