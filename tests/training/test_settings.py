"""Settings: impossible ones are refused with a sentence, presets hold the numbers of the paper's appendix G."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from butfor.envs import ENVS
from butfor.runs.config import config_from, plain
from butfor.runs.reading import read_run
from butfor.training.agents.policy import AgentConfig
from butfor.training.bonus import BonusConfig
from butfor.training.exploration import ExploreConfig
from butfor.training.loop import batches_due
from butfor.training.priorities import PriorityConfig
from butfor.training.replay import ReplayConfig
from butfor.training.settings import Config, preset
from butfor.training.signals.cai import CaiConfig

# ------------------------------------------------------------------------------- what is refused

NO_RANGE = AgentConfig(target_range=None)
CAUTIOUS = AgentConfig(critics=2, caution_rate=0.01)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        *[
            ({name: value}, f"{name}.* {value}")
            for name in (
                "seeds",
                "episodes",
                "warmup",
                "num_envs",
                "evaluate_every",
                "evaluation_episodes",
                "fit_every",
            )
            for value in (0, -3)
        ],
        ({"first_seed": -1}, "first_seed.* -1"),
        ({"use": ("boost",)}, "use.*boost"),
        ({"use": "bonus"}, "use.*bonus"),
        ({"use": ("bonus", "bonus")}, "use.*bonus"),
        ({"overlap": ("play",)}, "overlap.*play"),
        ({"overlap": ("model", "model")}, "overlap.*model"),
        ({"signal": "luck", "use": ("bonus",)}, "signal.*luck"),
        ({"algorithm": "a3c"}, "algorithm.*a3c"),
        *[
            ({"use": ("active", "priority"), "priority": PriorityConfig(kind)}, f"priority.kind.*'{kind}'")
            for kind in ("per", "ebp")
        ],
        ({"use": ("intrinsic", "bonus"), "agent": NO_RANGE}, "intrinsic.*bonus"),
        ({"use": ("intrinsic",)}, r"target_range.*\(-50.0, 0.0\)"),
        ({"use": ("active",), "signal": "vime"}, "active.*vime"),
        ({"signal": "vime"}, "signal.*vime"),
        ({"entities": ("cube=3:6",)}, "cube=3:6.*use"),
        ({"entities": ("a=3:6", "b=1"), "signal": "vime", "use": ("bonus",)}, "signal.*vime"),
        ({"entities": ("max=3:6", "ball=6:9")}, "max=3:6"),
        ({"combine": "cube"}, "combine.*cube"),
        ({"entities": ("cube=3:6", "ball=6:9"), "combine": "mean"}, "combine.*mean.*cube, ball"),
        ({"replay": ReplayConfig(influenced_goals=0.3)}, r"influenced_goals is 0\.3"),
        ({"algorithm": "td3", "agent": AgentConfig(critics=5)}, "critics is 5.*td3"),
        ({"algorithm": "td3bc", "agent": AgentConfig(critics=2, critics_in_target=1)}, "critics_in_target 1.*td3bc"),
        ({"agent": CAUTIOUS}, r"caution_rate is 0\.01.*practice"),
        ({"agent": CAUTIOUS, "algorithm": "sac"}, r"caution_rate is 0\.01.*ddpg"),
        ({"agent": CAUTIOUS, "data": ("a.npz",)}, r"caution_rate is 0\.01.*data"),
        ({"episodes": 100, "warmup": 101}, "episodes is 100.*101"),
        ({"episodes": 100, "warmup": 103, "num_envs": 2}, "episodes is 100.*103"),  # the plainer reason comes first
        ({"episodes": 1000, "warmup": 201, "num_envs": 2}, "799.*num_envs, 2"),
        ({"num_envs": 4, "replay": ReplayConfig(capacity=3)}, "capacity is 3.* 4"),
        ({"fit_schedule": ()}, r"fit_schedule is \(\)"),
        ({"fit_schedule": ((300, 1), (200, 1))}, "fit_schedule.*300"),
        ({"fit_schedule": ((200, 0),)}, "fit_schedule.*200, 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Config(**settings)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (AgentConfig, {"layers": 0}),
        (AgentConfig, {"updates": 0}),
        (AgentConfig, {"learning_rate": float("nan")}),
        (AgentConfig, {"discount": 1.0}),
        (AgentConfig, {"polyak": -0.1}),
        (AgentConfig, {"target_range": (0.0, -50.0)}),
        (AgentConfig, {"critics": 0}),
        (AgentConfig, {"critics_in_target": 2}),
        (AgentConfig, {"caution_rate": 0.25}),  # with one critic
        (AgentConfig, {"normalizer_batches": -1}),
        (AgentConfig, {"action_penalty": -1.0}),
        (ReplayConfig, {"capacity": 0}),
        (ReplayConfig, {"hindsight": 1.1}),
        (ExploreConfig, {"epsilon": 2.0}),
        (ExploreConfig, {"active": -0.5}),
        (ExploreConfig, {"noise": -1.0}),
        (ExploreConfig, {"candidates": 1}),
        (CaiConfig, {"horizon": 0}),
        (BonusConfig, {"weight": -1.0}),
        (BonusConfig, {"cap": 0.0}),
        (CaiConfig, {"newest_share": 1.0}),
        (CaiConfig, {"rescore": "none"}),
    ],
)
def test_impossible_values_are_refused_where_they_belong(kind: Any, settings: dict[str, Any]) -> None:
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=rf"{kind.__name__}\.{name}.*{re.escape(str(value))}"):
        kind(**settings)


def test_a_rule_for_the_hindsight_goal_needs_one() -> None:
    rules: tuple[dict[str, Any], ...] = ({"other_goals": 0.5}, {"influenced_goals": 0.3})
    for rule in rules:
        with pytest.raises(ValueError, match=f"hindsight is 0.*{next(iter(rule))}"):
            ReplayConfig(hindsight=0.0, **rule)


def test_what_is_possible_is_not_refused() -> None:
    """The borders of the rules above."""
    Config(algorithm="td3", agent=AgentConfig(critics=2))
    Config(algorithm="sac", agent=AgentConfig(critics=5, critics_in_target=2))
    Config(agent=CAUTIOUS, explore=ExploreConfig(practice=0.5))
    Config(episodes=200, warmup=200)
    Config(episodes=204, warmup=200, num_envs=4, replay=ReplayConfig(capacity=4))
    Config(use=("priority", "bonus", "active"), overlap=("acting", "updates", "model"))
    Config(use=("intrinsic", "priority", "active"), agent=NO_RANGE)
    Config(use=("active",), replay=ReplayConfig(influenced_goals=0.3))
    Config(use=("bonus", "active"), priority=PriorityConfig("per"))
    for combine in ("sum", "max", "cube", "ball"):
        Config(use=("bonus",), entities=("cube=3:6", "ball = 6:9"), combine=combine)


def test_a_model_is_trained_and_states_are_scored_only_where_needed() -> None:
    plain_agent, active = Config(), Config(use=("active",))
    by_score = dataclasses.replace(active, replay=ReplayConfig(influenced_goals=0.3))
    assert [config.needs_scores for config in (plain_agent, active, by_score)] == [False, False, True]
    assert all(Config(use=(use,)).needs_scores for use in ("priority", "bonus"))


# --------------------------------------------------------------------------- the paper's numbers


@pytest.mark.parametrize("env_name", ["push", "pick-and-place", "rot-table"])
def test_the_base_settings_are_those_of_the_papers_table(env_name: str) -> None:
    """Table "Base settings for DDPG+HER", general part."""
    config = preset(env_name)
    agent, explore = config.agent, config.explore
    assert (agent.batch_size, agent.updates, config.warmup) == (256, 20, 200)
    assert config.replay.capacity * 50 == 500_000
    assert (agent.action_penalty, explore.noise, explore.epsilon) == (1.0, 0.2, 0.3)
    assert (agent.observation_clip, agent.target_range) == (5.0, (-50.0, 0.0))
    assert (agent.layers, agent.width, config.replay.hindsight) == (3, 256, 0.8)
    assert (config.evaluate_every, config.evaluation_episodes) == (200, 100)
    rates = (agent.learning_rate, agent.discount, agent.polyak)
    assert rates == ((3e-4, 0.95, 0.99) if env_name == "rot-table" else (1e-3, 0.98, 0.95))
    assert config.algorithm == "ddpg"
    assert not agent.critic_layer_norm
    assert config.use == ()
    assert config.overlap == ()


@pytest.mark.parametrize("env_name", ["push", "pick-and-place", "rot-table"])
def test_the_model_and_its_schedule_are_those_of_the_papers_table(env_name: str) -> None:
    """Table "Settings for CAI in RL experiments"."""
    config = preset(env_name)
    model, network = config.cai, config.cai.network
    assert (model.batch_size, config.fit_every, model.learning_rate, model.betas) == (500, 100, 8e-4, (0.9, 0.9))
    assert (network.layers, network.width) == (4, 386 if env_name == "rot-table" else 256)
    assert (network.activation, network.normalize_input, network.target_scale) == ("tanh", True, 50.0)
    assert (network.spectral_norm_variance, network.spectral_norm_hidden) == (True, False)
    assert (model.scoring.actions, preset(env_name).explore.candidates) == (32, 32)
    due = {episode: batches_due(config, episode) for episode in (199, 200, 250, 300, 5200, 5300, 10_200, 10_300)}
    assert due == {199: 0, 200: 40_000, 250: 0, 300: 10_000, 5200: 10_000, 5300: 5_000, 10_200: 5_000, 10_300: 0}
    assert (model.newest_from, model.newest_share, model.rescore, model.only_sampled) == (1200, 0.25, "all", False)
    bonus = preset(env_name).bonus
    assert (bonus.weight, bonus.cap, bonus.ceiling) == (0.2, 2.0, 0.0)


@pytest.mark.parametrize(
    ("env_name", "episodes"), [("push", 20_000), ("pick-and-place", 20_000), ("rot-table", 30_000)]
)
def test_priorities_are_those_of_the_papers_table(env_name: str, episodes: int) -> None:
    priority = preset(env_name).priority
    assert (priority.alpha, priority.beta, priority.beta_episodes) == (0.6, 0.4, episodes)
    assert priority.kind == "uniform"


def test_the_record_moves_samples_on_a_table_and_not_between_walls() -> None:
    found = {env: (preset(env, "record").replay.mirror, preset(env, "record").replay.shift) for env in ENVS}
    assert found["push"] == found["stack-two"] == (True, 0.1)
    assert found["pucks"] == (True, 0.0)
    assert found["slide"] == found["rot-table"] == (False, 0.0)


def test_the_intrinsic_experiment_has_settings_of_its_own() -> None:
    """Both tables' parts "FetchPickAndPlace, intrinsic motivation"; rounds of 40,000 at episodes 100 and 200."""
    config = preset("pick-and-place", "intrinsic")
    agent = config.agent
    assert config.use == ("intrinsic",)
    assert (config.warmup, config.evaluate_every, config.replay.hindsight) == (100, 100, 0.0)
    assert (agent.learning_rate, agent.discount, agent.polyak) == (3e-3, 0.95, 0.99)
    assert (agent.layers, agent.width, agent.target_range) == (2, 192, None)
    assert config.bonus.cap == 10.0
    due = {episode: batches_due(config, episode) for episode in (100, 200, 300, 5200, 5300)}
    assert due == {100: 40_000, 200: 40_000, 300: 20_000, 5200: 20_000, 5300: 0}
    base = preset("pick-and-place")
    assert config.explore == base.explore
    assert config.cai.network == base.cai.network


@pytest.mark.parametrize("env_name", ENVS)
def test_the_fast_preset_differs_in_nothing_but_shorter_rounds(env_name: str) -> None:
    paper, fast = preset(env_name), preset(env_name, "fast")
    same = dataclasses.replace(fast, fit_schedule=paper.fit_schedule)
    assert same == paper
    episodes = range(1, paper.episodes + 1)
    batches = [sum(batches_due(config, n) for n in episodes) for config in (paper, fast)]
    assert batches[1] <= batches[0] / (1 if env_name == "slide" else 4)  # those of slide are short already


def test_slide_has_a_schedule_that_takes_minutes_not_hours() -> None:
    config = preset("slide")
    assert config.episodes <= 1000
    assert max(config.agent.width, config.cai.network.width) <= 64
    assert config.cai.network.target_scale == 1.0
    due = {n: batches_due(config, n) for n in range(1, config.episodes + 1)}
    assert due[config.warmup] == max(due.values()) > 0  # the first round is the longest
    assert sum(due.values()) <= 5000


def test_either_name_of_an_environment_has_its_preset() -> None:
    for name, id in ENVS.items():
        assert preset(id) == preset(name)
        assert preset(id).env == name


def test_a_foreign_environment_has_the_papers_settings_and_a_measured_scale() -> None:
    config = preset("MountainCarContinuous-v0")
    assert config.env == "MountainCarContinuous-v0"
    assert config.cai.network.target_scale is None
    assert config.agent == AgentConfig()


@pytest.mark.parametrize("env_name", ["push", "pick-and-place", "fetch-slide"])
def test_the_record_has_one_preset_for_three_tasks(env_name: str) -> None:
    config = preset(env_name, "record")
    assert config == dataclasses.replace(preset("push", "record"), env=env_name)
    assert config.use == ("priority", "active", "relay")
    assert config.warmup < preset(env_name).warmup


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"slow.*paper, record, intrinsic"):
        preset("slide", "slow")


@pytest.mark.parametrize(
    ("name", "other"), [("vime", "vime-object"), ("vime-full", "vime-object"), ("disagreement-full", "disagreement")]
)
def test_a_rival_that_needs_to_know_the_agent_says_which_one_does_not(name: str, other: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*MountainCarContinuous-v0.*'{other}'"):
        preset("MountainCarContinuous-v0", name)
    assert preset("MountainCarContinuous-v0", other).signal == preset("slide", name).signal


def test_an_environment_made_in_python_has_the_settings_of_a_foreign_one() -> None:
    config = preset("my-world")
    assert (config.env, config.cai.network.target_scale) == ("my-world", None)


# ---------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("env_name", ENVS)
@pytest.mark.parametrize("name", ["paper", "intrinsic", "fast"])
def test_settings_come_back_from_json_as_they_were(env_name: str, name: str) -> None:
    config = dataclasses.replace(preset(env_name, name), overlap=("acting", "model"), seeds=3)
    assert config_from(Config, json.loads(json.dumps(plain(config)))) == config
    uses = config.use or ("bonus",)
    several = dataclasses.replace(config, use=uses, entities=("cube=3:6", "ball=6"), combine="ball")
    assert config_from(Config, json.loads(json.dumps(plain(several)))) == several


OLD = {
    "world": "push", "influence": ["priority"], "worlds": 2, "episodes": 400, "warmup": 200, "entity": [3, 4, 5],
    "curiosity": "none", "agent": {"width": 64, "twin_critics": False},
    "model": {"every": 50, "schedule": [[200, 30], [900, 10]], "batch_size": 99}, "ensemble": {"members": 4},
}  # fmt: skip


def old_run(folder: Path, **changes: Any) -> Config:
    """A config.json with the names of before, as it is read now."""
    held = {"schema": 1, "kind": "training", "label": "training-push", "config": OLD | changes}
    (folder / "config.json").write_text(json.dumps(held))
    return config_from(Config, read_run(folder)["config"])


def test_runs_with_the_names_of_before_are_read(tmp_path: Path) -> None:
    config = old_run(tmp_path)
    assert (config.env, config.num_envs, config.use, config.signal) == ("push", 2, ("priority",), "cai")
    assert config.entities == ("object=3,4,5",)
    assert (config.fit_every, config.fit_schedule) == (50, ((200, 30), (900, 10)))
    assert (config.cai.batch_size, config.disagreement.members, config.agent.width) == (99, 4, 64)
    assert config.algorithm == "ddpg"
    rival = old_run(tmp_path, curiosity="vime", influence=[], entity=None)
    assert (rival.signal, rival.use, rival.entities) == ("vime", ("bonus",), ())
    without = old_run(tmp_path, influence=[])  # `entity` without a use was allowed, and had no effect
    assert (without.use, without.entities) == ((), ())
    twins = old_run(tmp_path, agent={"twin_critics": True})
    assert (twins.algorithm, twins.td3.policy_delay, twins.td3.target_noise) == ("td3", 1, 0.0)


REMOVED: dict[str, dict[str, tuple[Any, Any]]] = {
    "priority": {
        "distribution": ("rank", "proportional"), "power": (1.0, 2.0), "importance": (0.0, 0.5),
        "within_episode": (False, True),
    },
    "replay": {"goals_by_score": (False, True)},
    "bonus": {"kind": ("additive", "flat"), "threshold": (0.5, 0.4), "anneal_episodes": (None, 100)},
    "explore": {"choice": ("best", "ranked")},
}  # fmt: skip
"""options that were removed, with what they did by default, which is what is left, and another value"""


def test_runs_from_before_options_were_removed_are_read() -> None:
    config = Config(use=("priority",), priority=PriorityConfig(alpha=0.5))
    before: dict[str, Any] = json.loads(json.dumps(plain(config)))
    for part, options in REMOVED.items():
        before[part] |= {name: usual for name, (usual, _) in options.items()}
    assert config_from(Config, before) == config


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, options in REMOVED.items() for name in options])
def test_a_run_that_used_an_option_that_was_removed_is_refused(part: str, name: str) -> None:
    value = REMOVED[part][name][1]
    with pytest.raises(ValueError, match=rf"{part}\.{name} is {value!r}.*removed"):
        config_from(Config, {part: {name: value}})
