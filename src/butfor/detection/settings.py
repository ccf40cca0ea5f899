"""The settings of a detection study, those of the paper among them, and the paper's own numbers."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from butfor.influence.scoring import ScoreConfig
from butfor.models.attention import AttentionConfig
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig

# mean and standard deviation over seeds of AUC, average precision and F1, from the paper's table 1 (heuristic label of
# pick-and-place), and the share of influenced states in its test sets
PAPER = {
    "slide": {
        "cai": {"auc": [1.00, 0.00], "ap": [0.98, 0.00], "f1": [0.95, 0.01]},
        "entropy": {"auc": [0.96, 0.00], "ap": [0.47, 0.01], "f1": [0.50, 0.01]},
        "attention": {"auc": [0.42, 0.31], "ap": [0.13, 0.14], "f1": [0.18, 0.17]},
        "contact": {"auc": [0.89], "ap": [0.78], "f1": [0.88]},
    },
    "pick-and-place": {
        "cai": {"auc": [0.97, 0.00], "ap": [0.96, 0.00], "f1": [0.89, 0.00]},
        "entropy": {"auc": [0.84, 0.00], "ap": [0.73, 0.01], "f1": [0.78, 0.00]},
        "attention": {"auc": [0.46, 0.11], "ap": [0.44, 0.06], "f1": [0.62, 0.00]},
        "contact": {"auc": [0.79], "ap": [0.77], "f1": [0.73]},
    },
}
PAPER_LABEL = {"slide": "exact", "pick-and-place": "heuristic"}
PAPER_SHARE = {"test": 0.453, "random": 0.033}  # of pick-and-place, by the heuristic label
# columns of observation and action together; of Fetch the object's velocity is taken in the world's frame
AGENT = {"arm": [0, 1, 2, 20, 21, 22], "gripper": [9, 10, 23, 24]}
THING = {"object": [3, 4, 5, 11, 12, 13, 14, 15, 16, 17, 18, 19], "action": [25, 26, 27, 28]}
TOKENS: dict[str, dict[str, list[int]]] = {
    "slide": {"agent": [0, 1], "object": [2, 3], "action": [4]},
    "pick-and-place": {"agent": AGENT["arm"] + AGENT["gripper"]} | THING,
    "pick-and-place, four tokens": AGENT | THING,
}
SideStudy = Literal["actions", "decisions", "ensembles", "helps", "noise", "reference"]


@dataclass(frozen=True)
class DetectionConfig:
    """Influence detection on one world (the paper's section 5). Defaults are the paper's settings for 1DSlide."""

    env: str = "slide"
    seeds: int = 5
    data: Literal["scripted", "agents"] = "agents"
    """who plays: half a random and half a scripted policy with noise, or agents while they learn (DDPG with HER)"""
    agent_episodes: int = 2_000
    """how long those agents learn, each in a run of its own for training, validation and test episodes"""
    agent_envs: int = 1
    """episodes that each of them plays at once; with more than one, updates run while it plays the next (faster)"""
    train_episodes: int = 1000
    validation_episodes: int = 1000
    test_episodes: int = 4000
    random_episodes: int = 0
    """of a second test set, played by a random policy"""
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
    """further questions: number of actions, decisions, ensembles, what helps, noise, bias against the truth (Fetch)"""
    noise_levels: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4)
    """of the noise study, in standard deviations of each dimension"""
    target_noise: float = 0.005
    """of the reference study: standard deviation of the noise on the object's next position, in metres"""
    extra_episodes: int = 500
    """of the decision study: episodes of each further policy"""

    def __post_init__(self) -> None:
        if self.env not in PAPER:
            worlds = ", ".join(PAPER)
            raise ValueError(f"Detection needs a world with influence labels; {self.env!r} is not one of: {worlds}.")
        sets = ("train_episodes", "validation_episodes", "test_episodes")
        for name in ("seeds", "agent_episodes", "agent_envs", *sets):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        for name in ("random_episodes", "extra_episodes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0; got {getattr(self, name)}.")
        if self.data not in ("scripted", "agents"):
            raise ValueError(f"data is {self.data!r}; it must be 'scripted' or 'agents'.")
        played = {name: getattr(self, f"{name}_episodes") for name in ("train", "validation", "test")}
        played["test"] //= 2 if self.env == "slide" else 1  # the other half is random
        for name, count in played.items() if self.data == "agents" else ():
            if count > self.agent_episodes:
                raise ValueError(
                    f"{count} {name} episodes are to be of agents that play {self.agent_episodes}; give "
                    "a larger agent_episodes, or ask for fewer."
                )
        if self.split_agent and f"{self.env}, four tokens" not in TOKENS:
            raise ValueError(f"split_agent is for pick-and-place; the agent of {self.env} has no parts.")
        if not self.target_noise > 0 or not all(level >= 0 for level in self.noise_levels):
            raise ValueError(
                f"target_noise is {self.target_noise} and noise_levels are {self.noise_levels}; expected a positive "
                "number, and numbers of at least 0."
            )
        unknown = [name for name in self.studies if name not in get_args(SideStudy)]
        if unknown:
            raise ValueError(f"There is no study {unknown[0]!r}; the studies are {', '.join(get_args(SideStudy))}.")
        if self.env == "slide" and "reference" in self.studies:
            raise ValueError("The reference study forks a simulator; it is for pick-and-place, not for slide.")


def detection_preset(world: str, name: str = "paper") -> DetectionConfig:
    """The paper's settings for a world, "reduced" ones for minutes on a GPU, or "demo", for minutes on two cores."""
    if name not in ("paper", "reduced", "demo"):
        raise ValueError(f"There is no preset {name!r}; the presets are paper, reduced, demo.")
    if world == "slide":
        quick = FitConfig(batch_size=250, learning_rate=5e-4, max_epochs=60, validate_every=10)
        demo = DetectionConfig(
            data="scripted", seeds=2, test_episodes=1000, fitting=quick, attention_fitting=quick, compare_forms=False,
            studies=("decisions",), extra_episodes=0,
        )  # fmt: skip
        return {"paper": DetectionConfig(), "reduced": DetectionConfig(data="scripted"), "demo": demo}[name]
    fitting = FitConfig(batch_size=500, learning_rate=8e-4, max_epochs=2000)
    paper = DetectionConfig(
        env=world,
        data="agents",
        agent_episodes=30_000,
        train_episodes=5_000,
        validation_episodes=5_000,
        test_episodes=7_500,
        random_episodes=5_000,
        model=ModelConfig(target_scale=50.0),
        fitting=fitting,
        attention=AttentionConfig(embedding=128, feedforward=128, heads=2, layers=3, normalize_input=True),
        attention_fitting=replace(fitting, learning_rate=1e-4),
        studies=("actions", "decisions", "ensembles", "helps", "noise", "reference"),
    )
    if name == "paper":
        return paper
    if name == "reduced":
        return replace(
            paper, agent_episodes=10_000, train_episodes=3_500, validation_episodes=1_000, test_episodes=2_500,
            random_episodes=1_000, extra_episodes=400,
            fitting=replace(fitting, max_epochs=1000, validate_every=10),
            attention_fitting=replace(paper.attention_fitting, max_epochs=100, validate_every=10),
        )  # fmt: skip
    short = replace(fitting, max_epochs=24, validate_every=4)
    return replace(
        paper, data="scripted", agent_episodes=2_000, seeds=2, train_episodes=400, validation_episodes=100,
        test_episodes=100, random_episodes=100, model=replace(paper.model, layers=3, width=128), fitting=short,
        attention=AttentionConfig(embedding=32, feedforward=32, heads=2, layers=2, normalize_input=True),
        attention_fitting=replace(short, learning_rate=5e-4), compare_forms=False, studies=("decisions",),
        extra_episodes=100,
    )  # fmt: skip
