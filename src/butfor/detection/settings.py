"""Settings of the detection experiment, presets of them, and the paper's own numbers."""

from dataclasses import dataclass, replace
from typing import Literal

from butfor.envs.facts import named
from butfor.influence.scoring import ScoreConfig
from butfor.models.attention import AttentionConfig
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig
from butfor.runs.config import check_choices, check_finite, check_least, check_positive

# The paper's table 1: mean and standard deviation over seeds.
PAPER = {
    "slide": {
        "cai": {"auc": [1.00, 0.00], "ap": [0.98, 0.00], "f1": [0.95, 0.01]},
        "entropy": {"auc": [0.96, 0.00], "ap": [0.47, 0.01], "f1": [0.50, 0.01]},
        "attention": {"auc": [0.42, 0.31], "ap": [0.13, 0.14], "f1": [0.18, 0.17]},
        "contact": {"auc": [0.89], "ap": [0.78], "f1": [0.88]},
    },
    "pick-and-place": {
        "cai": {"auc": [0.97, 0.01], "ap": [0.96, 0.00], "f1": [0.89, 0.00]},
        "entropy": {"auc": [0.84, 0.00], "ap": [0.73, 0.00], "f1": [0.78, 0.00]},
        "attention": {"auc": [0.46, 0.06], "ap": [0.44, 0.04], "f1": [0.62, 0.00]},
        "contact": {"auc": [0.79], "ap": [0.77], "f1": [0.73]},
    },
}
PAPER_LABEL = {"slide": "exact", "pick-and-place": "heuristic"}
# Shares of influenced states in the paper's test sets, by the heuristic label.
PAPER_SHARES = {"pick-and-place": {"test": 0.453, "random": 0.033}}
HALF_RANDOM = ("slide",)  # environments half of whose test episodes are random

# The Transformer's tokens: columns of observation and action together. The object's velocity is in the world frame.
_ARM = [0, 1, 2, 20, 21, 22]
_GRIPPER = [9, 10, 23, 24]
_OBJECT_AND_ACTION = {"object": [3, 4, 5, 11, 12, 13, 14, 15, 16, 17, 18, 19], "action": [25, 26, 27, 28]}
TOKENS: dict[str, dict[str, list[int]]] = {
    "slide": {"agent": [0, 1], "object": [2, 3], "action": [4]},
    "pick-and-place": {"agent": _ARM + _GRIPPER} | _OBJECT_AND_ACTION,
    "pick-and-place, four tokens": {"arm": _ARM, "gripper": _GRIPPER} | _OBJECT_AND_ACTION,
}
SideStudy = Literal["actions", "decisions", "ensembles", "helps", "noise", "reference"]


@dataclass(frozen=True)
class DetectionConfig:
    """Settings of the detection experiment (the paper's section 5); the defaults are the paper's for 1DSlide."""

    env: str = "slide"
    seeds: int = 5
    """independent models, fitted together as one batch"""
    data: Literal["scripted", "agents"] = "agents"
    """who acts: half a random and half a noisy scripted policy, or DDPG with HER agents during their training"""
    agent_episodes: int = 2_000
    """training length of the data-collecting agents; train, validation and test episodes have one agent each"""
    agent_envs: int = 1
    """environments in which each of these agents acts in parallel; with more than one, updates overlap with acting"""
    train_episodes: int = 1000
    """episodes to fit the models on"""
    validation_episodes: int = 1000
    """episodes for early stopping"""
    test_episodes: int = 4000
    """episodes to score"""
    random_episodes: int = 0
    """episodes of a second test set, of a random policy"""
    model: ModelConfig = ModelConfig(layers=4, width=128, normalize_input=False, target_scale=1.0)
    fitting: FitConfig = FitConfig()
    scoring: ScoreConfig = ScoreConfig()
    attention: AttentionConfig = AttentionConfig()
    attention_fitting: FitConfig = FitConfig()
    split_agent: bool = False
    """give the Transformer of pick-and-place two tokens for the agent, arm and gripper, as the authors' release does"""
    compare_forms: bool = True
    """evaluate every form of the KL to the mixture, not only the one in `scoring`"""
    studies: tuple[SideStudy, ...] = ("actions", "decisions", "ensembles", "helps", "noise")
    """side studies: number of actions, decisions, ensembles, what helps, noise, bias against the truth (Fetch)"""
    noise_levels: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)
    """noise study: noise in standard deviations of each dimension"""
    target_noise: float = 0.005
    """reference study: standard deviation of the noise on the object's next position, in metres"""
    extra_episodes: int = 500
    """decision study: episodes of each further policy"""

    def __post_init__(self) -> None:
        if self.env not in PAPER:
            raise ValueError(f"DetectionConfig.env is {self.env!r}; detection works on {' and '.join(PAPER)}.")
        sets = ("train_episodes", "validation_episodes", "test_episodes")
        check_finite(self)
        check_least(self, 1, "seeds", "agent_episodes", "agent_envs", *sets)
        check_least(self, 0, "random_episodes", "extra_episodes")
        check_choices(self, "data", "studies")
        check_positive(self, "target_noise")
        if not all(level >= 0 for level in self.noise_levels):
            raise ValueError(f"DetectionConfig.noise_levels must be at least 0; got {self.noise_levels}.")
        for name in sets if self.data == "agents" else ():
            count = getattr(self, name)
            if self.env in HALF_RANDOM and name == "test_episodes":
                count //= 2
            if count > self.agent_episodes:
                raise ValueError(
                    f"{name} needs {count} episodes of an agent that plays only agent_episodes={self.agent_episodes}; "
                    f"increase agent_episodes or decrease {name}."
                )
        if self.split_agent and f"{self.env}, four tokens" not in TOKENS:
            raise ValueError(f"split_agent is for pick-and-place; the agent of {self.env} has no parts.")
        if "reference" in self.studies and self.env not in named(forks=True):
            raise ValueError(f"The study 'reference' forks the simulator, which {self.env} does not support.")


def detection_preset(env: str, name: str = "paper") -> DetectionConfig:
    """Look up settings for an environment.

    Args:
        env: "slide" or "pick-and-place".
        name: "paper", "reduced" (minutes on a GPU) or "demo" (minutes on two CPU cores).
    """
    if env == "slide":
        fitting = FitConfig(batch_size=250, learning_rate=5e-4, max_epochs=60, validate_every=10)
        demo = DetectionConfig(
            data="scripted", seeds=2, test_episodes=1000, fitting=fitting, attention_fitting=fitting,
            compare_forms=False, studies=("decisions",), extra_episodes=0,
        )  # fmt: skip
        presets = {"paper": DetectionConfig(), "reduced": DetectionConfig(data="scripted"), "demo": demo}
    else:
        fitting = FitConfig(batch_size=500, learning_rate=8e-4, max_epochs=2000)
        paper = DetectionConfig(
            env=env, agent_episodes=30_000, train_episodes=5_000, validation_episodes=5_000, test_episodes=7_500,
            random_episodes=5_000, model=ModelConfig(target_scale=50.0), fitting=fitting,
            attention=AttentionConfig(embedding=128, feedforward=128, heads=2, layers=3, normalize_input=True),
            attention_fitting=replace(fitting, learning_rate=1e-4),
            studies=("actions", "decisions", "ensembles", "helps", "noise", "reference"),
        )  # fmt: skip
        reduced = replace(
            paper, agent_episodes=10_000, train_episodes=3_500, validation_episodes=1_000, test_episodes=2_500,
            random_episodes=1_000, extra_episodes=400, fitting=replace(fitting, max_epochs=1000, validate_every=10),
            attention_fitting=replace(paper.attention_fitting, max_epochs=100, validate_every=10),
        )  # fmt: skip
        short = replace(fitting, max_epochs=24, validate_every=4)
        demo = replace(
            paper, data="scripted", agent_episodes=2_000, seeds=2, train_episodes=400, validation_episodes=100,
            test_episodes=100, random_episodes=100, model=replace(paper.model, layers=3, width=128), fitting=short,
            attention=AttentionConfig(embedding=32, feedforward=32, heads=2, layers=2, normalize_input=True),
            attention_fitting=replace(short, learning_rate=5e-4), compare_forms=False, studies=("decisions",),
            extra_episodes=100,
        )  # fmt: skip
        presets = {"paper": paper, "reduced": reduced, "demo": demo}
    if name not in presets:
        raise ValueError(f"There is no preset {name!r}; the presets are {', '.join(presets)}.")
    return presets[name]
