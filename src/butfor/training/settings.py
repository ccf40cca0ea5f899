"""The settings of a training run, and those to start from for each world and experiment of the paper."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from butfor.envs import ENVS, short_name
from butfor.influence.scoring import ScoreConfig
from butfor.models.bayesian import VimeConfig
from butfor.models.dynamics import ModelConfig
from butfor.training.agents.ddpg import AgentConfig
from butfor.training.exploration import BonusConfig, ExploreConfig
from butfor.training.priorities import PriorityConfig
from butfor.training.replay import ReplayConfig
from butfor.training.signals.cai import OnlineConfig
from butfor.training.signals.disagreement import EnsembleConfig

Use = Literal["priority", "bonus", "active", "intrinsic"]
Overlap = Literal["acting", "updates", "model"]


@dataclass(frozen=True)
class Config:
    """One training run of several seeds. Defaults are the paper's for FetchPickAndPlace."""

    env: str = "pick-and-place"
    influence: tuple[Use, ...] = ()
    """how influence is used: replay by it, add it to the reward, explore by it; intrinsic: it is the only reward"""
    seeds: int = 1
    """replicas, trained together as one batch"""
    first_seed: int = 0
    """replica i has the seed first_seed + i"""
    episodes: int = 3_000
    """of each seed, the warm-up included"""
    warmup: int = 200
    """random episodes before learning begins"""
    num_envs: int = 1
    """episodes that a seed plays at once; the updates grow in proportion"""
    evaluate_every: int = 200
    evaluation_episodes: int = 100
    checkpoint_seconds: float = 300.0
    """time between checkpoints"""
    overlap: tuple[Overlap, ...] = ()
    """acting: one half of the seeds acts while the other is simulated; updates: the next episode is simulated while the
    updates run, by a policy one episode old; model: a round of the model is spread over the episodes up to the next"""
    entity: tuple[int, ...] | None = None
    """columns of the observation whose next value is predicted; None: those that show the achieved goal"""
    entities: tuple[str, ...] = ()
    """several instead, each with a name, as in cube=3:6 ball=6:9 (columns 3 to 5 and 6 to 8)"""
    combine: str = "sum"
    """which influence counts where there are several entities: sum, max, or the name of one"""
    tf32: bool = True
    """on a GPU, round matrix products of training (not of scoring) to TF32"""
    deterministic: bool = False
    """on a GPU, give the same bits every time, also after a resume: slow, for nothing is recorded, compiled or rounded
    (a CPU always does)"""
    agent: AgentConfig = AgentConfig()
    replay: ReplayConfig = ReplayConfig()
    priority: PriorityConfig = PriorityConfig()
    explore: ExploreConfig = ExploreConfig()
    bonus: BonusConfig = BonusConfig()
    model: OnlineConfig = OnlineConfig()
    """the influence model; `every` and `schedule` are also those of a rival's model"""
    curiosity: Literal["none", "vime", "disagreement"] = "none"
    """a rival of influence as the source of the bonus: information gain, or an ensemble's disagreement"""
    vime: VimeConfig = VimeConfig()
    ensemble: EnsembleConfig = EnsembleConfig()

    def __post_init__(self) -> None:
        for name in ("seeds", "episodes", "warmup", "num_envs", "evaluate_every", "evaluation_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if self.first_seed < 0:
            raise ValueError(f"first_seed must be at least 0; got {self.first_seed}.")
        for name, known in (("influence", get_args(Use)), ("overlap", get_args(Overlap))):
            given = getattr(self, name)
            if not set(given) <= set(known):
                raise ValueError(f"{name} is {given}; expected any of {', '.join(known)}.")
            if len(set(given)) < len(given):
                raise ValueError(f"{name} is {given}; name each once.")
        if "priority" in self.influence and self.priority.kind != "uniform":
            raise ValueError(
                f"influence has 'priority', but priority.kind is {self.priority.kind!r}: episodes can be drawn by "
                "influence or by that, not by both."
            )
        if {"intrinsic", "bonus"} <= set(self.influence):
            raise ValueError("influence has 'intrinsic' and 'bonus': choose influence alone, or as an addition.")
        if "intrinsic" in self.influence and self.agent.target_range is not None:
            raise ValueError(
                f"With intrinsic rewards, which are positive, agent.target_range must be None; it is "
                f"{self.agent.target_range}. The preset 'intrinsic' has the paper's settings."
            )
        if self.curiosity not in ("none", "vime", "disagreement"):
            raise ValueError(f"curiosity is {self.curiosity!r}; it must be none, vime or disagreement.")
        if self.curiosity != "none" and self.influence:
            raise ValueError(f"curiosity is {self.curiosity!r} and influence {self.influence}: choose one of the two.")
        self._check_entities()
        if self.replay.goals_by_score and not self.influence:
            raise ValueError("replay.goals_by_score needs influence scores; choose a use of influence.")
        if self.episodes < self.warmup:
            raise ValueError(
                f"episodes is {self.episodes}, less than the {self.warmup} random episodes of the warm-up."
            )
        if (self.episodes - self.warmup) % self.num_envs:
            raise ValueError(
                f"episodes - warmup is {self.episodes - self.warmup}; it must be a multiple of worlds, {self.num_envs}."
            )
        if self.replay.capacity < self.num_envs:
            raise ValueError(f"replay.capacity {self.replay.capacity} is less than the {self.num_envs} environments.")

    def _check_entities(self) -> None:
        """Names and their combination; the columns are looked at together with the world."""
        names = [text.partition("=")[0].strip() for text in self.entities]
        if self.entities and self.entity is not None:
            raise ValueError(f"entity is {self.entity} and entities {self.entities}: name one, or several with names.")
        if self.entities and self.curiosity != "none":
            raise ValueError(
                f"curiosity is {self.curiosity!r}, which has one score for all that it predicts; name those columns by "
                "entity, not by entities."
            )
        if {"sum", "max"} & set(names):
            raise ValueError(f"entities are {self.entities}; choose names other than sum and max, which combine them.")
        if self.combine not in ("sum", "max", *names):
            raise ValueError(f"combine is {self.combine!r}; expected {', '.join(('sum', 'max', *names))}.")
        if self.entities and not self.influence:
            raise ValueError(f"entities are {self.entities}, but influence is not used; choose a use of influence.")

    @property
    def needs_model(self) -> bool:
        """Whether a model is trained that scores states."""
        return bool(self.influence) or self.curiosity != "none"

    @property
    def adds_bonus(self) -> bool:
        """Whether scores are added to the reward."""
        return "bonus" in self.influence or self.curiosity != "none"

    @property
    def needs_scores(self) -> bool:
        """Whether states in memory are scored (choosing actions alone does not need it)."""
        return bool(set(self.influence) - {"active"}) or self.curiosity != "none" or self.replay.goals_by_score

    @property
    def weighs_importance(self) -> bool:
        """Whether squared errors are weighted to correct for how their transitions were drawn."""
        by_influence = "priority" in self.influence
        return self.priority.importance > 0 if by_influence else self.priority.kind == "per"


FETCH = ("push", "pick-and-place", "rot-table")
POSITIONS = {"slide": (0, 2)} | dict.fromkeys(FETCH, (0, 1, 2, 3, 4, 5))  # columns of agent and object
FULL_STATE = {"slide": (0, 1, 2, 3)} | dict.fromkeys(FETCH, (*range(6), *range(9, 25)))  # without redundant columns
# the paper's rivals: kind, what is predicted, and (episodes between rounds, batches of the first round and of the later
# ones, weight and cap of the bonus); the first is the best of its kind in the paper
RIVALS: dict[str, tuple[Any, str, tuple[int, int, int, float, float]]] = {
    "vime": ("vime", "position", (1, 20_000, 100, 0.3, 10.0)),
    "vime-object": ("vime", "object", (1, 20_000, 100, 0.3, 10.0)),
    "vime-full": ("vime", "full", (1, 20_000, 100, 0.3, 10.0)),
    "disagreement": ("disagreement", "object", (100, 5_000, 5_000, 50.0, 0.1)),
    "disagreement-position": ("disagreement", "position", (100, 5_000, 5_000, 50.0, 0.1)),
    "disagreement-full": ("disagreement", "full", (10, 500, 500, 0.25, 5.0)),
}


def preset(world: str, name: str = "paper") -> Config:
    """The settings to start from: the paper's for a world, its intrinsic experiment, or a short schedule."""
    try:
        short = short_name(world)
    except ValueError:  # the name of a world that is made in Python
        short = world
    config = Config(env=short)
    if short == "rot-table":
        config = replace(
            config,
            agent=AgentConfig(learning_rate=3e-4, discount=0.95, polyak=0.99),
            priority=PriorityConfig(beta_episodes=30_000),
            model=replace(config.model, network=replace(config.model.network, width=386)),
        )
    elif short == "slide":  # ours: the paper trains no agents on it that it reports
        network = ModelConfig(layers=3, width=64, activation="tanh", spectral_norm_hidden=False, target_scale=1.0)
        config = replace(
            config,
            episodes=400,
            warmup=100,
            evaluate_every=50,
            agent=AgentConfig(width=64, updates=40, polyak=0.98, discount=0.95, action_penalty=0.01),
            explore=ExploreConfig(epsilon=0.2, noise=0.1),
            model=OnlineConfig(
                network, ScoreConfig(actions=16), 250, every=50, schedule=((100, 1000), (10_000, 250)), newest_from=300
            ),
        )
    elif short not in ENVS:
        # ours: with measured units, spectral norm tells far better when the action matters (see docs/training.md)
        config = replace(config, model=replace(config.model, network=ModelConfig(target_scale=None)))
    if name == "intrinsic":
        agent = AgentConfig(layers=2, width=192, learning_rate=3e-3, discount=0.95, polyak=0.99, target_range=None)
        return replace(
            config,
            influence=("intrinsic",),
            episodes=5_000,
            warmup=100,
            evaluate_every=100,
            agent=agent,
            replay=ReplayConfig(hindsight=0.0),
            bonus=BonusConfig(cap=10.0),
            model=replace(config.model, schedule=((200, 40_000), (5_200, 20_000))),
        )
    if name in RIVALS:
        columns = {"object": None, "position": POSITIONS, "full": FULL_STATE}[RIVALS[name][1]]
        if columns is not None and short not in columns:
            other = {"vime": "vime-object", "disagreement": "disagreement"}[RIVALS[name][0]]
            raise ValueError(
                f"The preset {name!r} needs to know the agent's columns; it is for {', '.join(columns)}. "
                f"In other worlds take the preset {other!r}, which predicts the columns that you name by entity."
            )
        every, first, later, weight, cap = RIVALS[name][2]
        return replace(
            config,
            curiosity=RIVALS[name][0],
            entity=None if columns is None else columns[short],
            bonus=replace(config.bonus, weight=weight, cap=cap),
            model=replace(config.model, every=every, schedule=((config.warmup, first), (10**9, later))),
            ensemble=EnsembleConfig(newest=every, rescore="once" if RIVALS[name][1] == "full" else "all"),
        )
    if name == "fast" and short != "slide":  # its rounds are short already
        return replace(config, model=replace(config.model, schedule=((200, 10_000), (10_200, 2_000))))
    if name not in ("paper", "fast"):
        names = ", ".join(("paper", "intrinsic", "fast", *RIVALS))
        raise ValueError(f"There is no preset {name!r}; the presets are {names}.")
    return config
