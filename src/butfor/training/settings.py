"""The settings of a training run, the memory they need, and presets for each experiment of the paper."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from butfor.envs import short_name
from butfor.envs.facts import facts_of
from butfor.influence.scoring import ScoreConfig
from butfor.models.bayesian import VimeConfig
from butfor.models.dynamics import ModelConfig
from butfor.runs.config import check_between, check_choices, check_finite, check_least
from butfor.runs.memory import check_memory, network_bytes
from butfor.training.agents.policy import AgentConfig
from butfor.training.agents.sac import SACConfig
from butfor.training.agents.td3 import TD3BCConfig, TD3Config
from butfor.training.bonus import BonusConfig
from butfor.training.exploration import ExploreConfig
from butfor.training.priorities import PriorityConfig
from butfor.training.relay import RelayConfig
from butfor.training.replay import ReplayConfig
from butfor.training.signals.cai import CaiConfig
from butfor.training.signals.disagreement import EnsembleConfig
from butfor.training.signals.moved import MovedConfig
from butfor.training.signals.nearness import NearnessConfig
from butfor.training.swapping import SwapConfig

if TYPE_CHECKING:
    import torch

    from butfor.training.goal_env import GoalEnv

Use = Literal["priority", "bonus", "active", "intrinsic", "relay"]
Overlap = Literal["acting", "updates", "model"]
ENV_BYTES = 3_000  # of the smallest environment: random generator and state
SMALLER = "Use fewer --seeds or --num-envs, smaller networks and batches, or a smaller replay.capacity."
ONE_SCORE = ("vime", "disagreement")  # signals with one score for all that they predict


@dataclass(frozen=True)
class Config:
    """One training run of several seeds. Defaults are the paper's for FetchPickAndPlace."""

    env: str = "pick-and-place"
    use: tuple[Use, ...] = ()
    """what the signal is used for: priority (replay episodes with a high score more often), bonus (add it to the
    reward), active (explore with the actions of the largest influence), intrinsic (the only reward), relay (a second
    agent that only seeks influence acts while there is none; not in the paper); none: no signal"""
    signal: Literal["cai", "vime", "disagreement", "moved", "nearness", "contact", "oracle", "shuffled"] = "cai"
    """cai (causal action influence), a rival (vime: information gain; disagreement: of an ensemble), or a control
    (moved: the object moved; nearness and contact: of hand and object; oracle: the exact label; shuffled: CAI, but
    each episode has the scores of another one)"""
    entities: tuple[str, ...] = ()
    """objects whose influence counts, as columns of the observation: cube=3:6 ball=6:9; none: those that show the
    achieved goal"""
    combine: str = "sum"
    """what counts with several entities: sum, max, or the name of one"""
    seeds: int = 1
    """replicas, trained together as one batch"""
    first_seed: int = 0
    """replica i has the seed first_seed + i"""
    episodes: int = 3_000
    """episodes of each seed, including the warm-up; with data: rounds of agent.updates updates"""
    data: tuple[str, ...] = ()
    """episode files (.npz) to learn from; none: episodes are played"""
    data_share: float = 1.0
    """share of the episodes of data that each seed draws at random, and learns from"""
    warmup: int = 200
    """episodes with uniform actions before learning begins"""
    num_envs: int = 1
    """episodes that a seed plays at once; the updates grow in proportion"""
    evaluate_every: int = 200
    """episodes between evaluations"""
    evaluation_episodes: int = 100
    """episodes of an evaluation, per seed"""
    checkpoint_seconds: float = 300.0
    """time between checkpoints"""
    overlap: tuple[Overlap, ...] = ()
    """what runs side by side. acting: one half of the seeds acts while the other is simulated; updates: the next
    episode is simulated while the updates run, with a policy one episode old; model: a round of fitting is spread over
    the episodes up to the next"""
    tf32: bool = True
    """on a GPU, round matrix products of training (not of scoring) to TF32"""
    deterministic: bool = False
    """on a GPU, give the same bits every time, also after a resume; slow, because nothing is recorded, compiled or
    rounded (a CPU always gives the same bits)"""
    algorithm: Literal["ddpg", "td3", "sac", "td3bc"] = "ddpg"
    """the agent: DDPG as in the paper, TD3, SAC, or TD3+BC for learning from data"""
    agent: AgentConfig = AgentConfig()
    td3: TD3Config = TD3Config()
    td3bc: TD3BCConfig = TD3BCConfig()
    sac: SACConfig = SACConfig()
    swap: SwapConfig = SwapConfig()
    replay: ReplayConfig = ReplayConfig()
    priority: PriorityConfig = PriorityConfig()
    explore: ExploreConfig = ExploreConfig()
    bonus: BonusConfig = BonusConfig()
    relay: RelayConfig = RelayConfig()
    fit_every: int = 100
    """episodes between rounds of fitting the signal's model; the first round follows the warm-up"""
    fit_schedule: tuple[tuple[int, int], ...] = ((200, 40_000), (5_200, 10_000), (10_200, 5_000))
    """(up to this episode, batches per round) of the signal's model; no fitting after the last"""
    cai: CaiConfig = CaiConfig()
    vime: VimeConfig = VimeConfig()
    disagreement: EnsembleConfig = EnsembleConfig()
    moved: MovedConfig = MovedConfig()
    nearness: NearnessConfig = NearnessConfig()

    def __post_init__(self) -> None:
        check_finite(self)
        check_least(self, 1, "seeds", "episodes", "warmup", "num_envs", "evaluate_every", "evaluation_episodes")
        check_least(self, 1, "fit_every")
        check_least(self, 0, "checkpoint_seconds")
        check_between(self, 0, 2**53, "first_seed")  # every program that reads JSON has these whole numbers
        check_choices(self, "use", "signal", "overlap", "algorithm")
        self._check_uses()
        self._check_entities()
        self._check_critics()
        self._check_data()
        limits = [limit for limit, _ in self.fit_schedule]
        if not limits or limits != sorted(limits) or min(batches for _, batches in self.fit_schedule) < 1:
            expected = "pairs (up to this episode, batches per round) with rising episodes and at least 1 batch"
            raise ValueError(f"fit_schedule is {self.fit_schedule}; expected {expected}.")
        if self.episodes < self.warmup and not self.data:
            raise ValueError(f"episodes is {self.episodes}, less than the {self.warmup} episodes of the warm-up.")
        if (learning := self.episodes - self.warmup) % self.num_envs and not self.data:
            raise ValueError(f"episodes - warmup is {learning}; it must be a multiple of num_envs, {self.num_envs}.")
        if self.replay.capacity < self.num_envs:
            raise ValueError(f"replay.capacity is {self.replay.capacity}, less than num_envs, {self.num_envs}.")

    def _check_uses(self) -> None:
        """Refuse uses of the signal that exclude each other."""
        if "priority" in self.use and self.priority.kind != "uniform":
            raise ValueError(f"priority.kind is {self.priority.kind!r}; with 'priority' in use it must be 'uniform'.")
        if {"intrinsic", "bonus"} <= set(self.use):
            raise ValueError("use contains 'intrinsic' and 'bonus': choose the signal as the only reward, or added.")
        if "intrinsic" in self.use and self.agent.target_range is not None:
            raise ValueError(
                f"agent.target_range is {self.agent.target_range}; intrinsic rewards are positive and need None, as in "
                "the preset 'intrinsic'."
            )
        if (compares := sorted({"active", "relay"} & set(self.use))) and self.signal != "cai":
            raise ValueError(
                f"use contains {compares[0]!r}, but signal {self.signal!r} cannot compare actions; use cai."
            )
        if self.signal != "cai" and not self.use:
            raise ValueError(f"signal is {self.signal!r}, but nothing uses it; give use, for example bonus.")
        if self.replay.influenced_goals is not None and not self.use:
            raise ValueError(
                f"replay.influenced_goals is {self.replay.influenced_goals}; it needs the scores of a signal; give use."
            )

    def _check_entities(self) -> None:
        """Check names and their combination; the columns are checked together with the environment."""
        names = [text.partition("=")[0].strip() for text in self.entities]
        if len(names) > 1 and self.signal in ONE_SCORE:
            raise ValueError(f"signal {self.signal!r} has one score; give one entity instead of {', '.join(names)}.")
        if {"sum", "max"} & set(names):
            raise ValueError(f"entities are {self.entities}; choose names other than sum and max, which combine them.")
        if self.combine not in ("sum", "max", *names):
            raise ValueError(f"combine is {self.combine!r}; expected {', '.join(('sum', 'max', *names))}.")
        if self.entities and not self.use:
            raise ValueError(f"entities are {self.entities}, but nothing uses their influence; give use.")

    def _check_critics(self) -> None:
        """Refuse numbers of critics that TD3 would not use, and caution where it would not be measured."""
        if (rate := self.agent.caution_rate) is not None:
            if self.algorithm != "ddpg" or self.data or "intrinsic" in self.use:
                raise ValueError(
                    f"agent.caution_rate is {rate}; it needs algorithm ddpg, episodes that are played instead of data, "
                    "and no intrinsic use. Leave it out."
                )
            if not self.explore.practice:
                raise ValueError(
                    f"agent.caution_rate is {rate}, but no episodes of practice are played, which it follows; set "
                    "explore.practice, such as 0.5."
                )
        critics, drawn = self.agent.critics, self.agent.critics_in_target
        if self.algorithm in ("td3", "td3bc") and (critics > 2 or drawn is not None):
            raise ValueError(
                f"agent.critics is {critics} and agent.critics_in_target {drawn}; {self.algorithm} has two critics and "
                "draws none. Leave both out, or use algorithm ddpg or sac."
            )

    def _check_data(self) -> None:
        """Refuse settings that need episodes that are played, or that swapped transitions do not fit."""
        if not 0 < self.data_share <= 1:
            raise ValueError(f"data_share is {self.data_share}; expected a share above 0, at most 1.")
        if self.data_share < 1 and not self.data:
            raise ValueError(f"data_share is {self.data_share}, but there is no data; give episode files with data.")
        if self.data and (playing := sorted({"active", "relay"} & set(self.use))):
            raise ValueError(f"use contains {playing[0]!r}, which chooses actions; with data, nothing is played.")
        if self.data and self.num_envs > 1:
            raise ValueError(f"num_envs is {self.num_envs}; with data, nothing is played, so it must be 1.")
        if self.data and self.cai.rescore != "all":
            raise ValueError(
                f"cai.rescore is {self.cai.rescore!r}; with data, all episodes are scored once: it must be 'all'."
            )
        if self.swap.share and self.priority.kind == "per":
            raise ValueError(
                "swap.share and priority.kind 'per' exclude each other: swapped transitions have no error."
            )
        if self.swap.share and not self.data and self.replay.capacity < self.episodes:
            raise ValueError(
                f"replay.capacity is {self.replay.capacity}, less than the {self.episodes} episodes; swap.share needs "
                "all of them to stay."
            )

    @property
    def needs_scores(self) -> bool:
        """Whether stored states are scored (choosing actions alone does not need it)."""
        return bool(set(self.use) - {"active"}) or self.replay.influenced_goals is not None


@dataclass(frozen=True)
class Rival:
    """The paper's settings of a rival of CAI, which is used as a bonus."""

    signal: Literal["vime", "disagreement"]
    predicts: Literal["object", "positions", "full_state"]
    fit_every: int
    batches: tuple[int, int]  # of the first round, and of the later ones
    weight: float  # of the bonus
    cap: float  # of the bonus


# The first of each kind is the best of its kind in the paper.
RIVALS = {
    "vime": Rival("vime", "positions", 1, (20_000, 100), 0.3, 10.0),
    "vime-object": Rival("vime", "object", 1, (20_000, 100), 0.3, 10.0),
    "vime-full": Rival("vime", "full_state", 1, (20_000, 100), 0.3, 10.0),
    "disagreement": Rival("disagreement", "object", 100, (5_000, 5_000), 50.0, 0.1),
    "disagreement-position": Rival("disagreement", "positions", 100, (5_000, 5_000), 50.0, 0.1),
    "disagreement-full": Rival("disagreement", "full_state", 10, (500, 500), 0.25, 5.0),
}
PRESETS = ("paper", "record", "intrinsic", "fast", "offline", *RIVALS)


def preset(env: str, name: str = "paper") -> Config:
    """Settings to start from; change them with `dataclasses.replace`.

    Args:
        env: name of a built-in environment, id of a registered one, or your own name for `make_env`
        name: paper (its settings for the environment), record (ours, to learn from as few episodes as we can),
            intrinsic (the signal is the only reward), fast (shorter rounds of fitting), offline (TD3+BC on recorded
            episodes, to which `data` must be added), or a rival of CAI: one of `RIVALS`, such as vime or disagreement
    """
    if name not in PRESETS:
        raise ValueError(f"There is no preset {name!r}; the presets are {', '.join(PRESETS)}.")
    with suppress(ValueError):  # of a name for an environment that is made in Python
        env = short_name(env)
    config = _for_env(env)
    if name == "intrinsic":
        return replace(
            config,
            use=("intrinsic",),
            episodes=5_000,
            warmup=100,
            evaluate_every=100,
            agent=AgentConfig(layers=2, width=192, learning_rate=3e-3, discount=0.95, polyak=0.99, target_range=None),
            replay=ReplayConfig(hindsight=0.0),
            bonus=BonusConfig(cap=10.0),
            fit_schedule=((200, 40_000), (5_200, 20_000)),
        )
    if name == "offline":
        return replace(
            config,
            algorithm="td3bc",
            episodes=200,
            evaluate_every=50,
            agent=replace(
                config.agent, layers=2, width=128, updates=100, discount=0.95, polyak=0.99, action_penalty=0.0
            ),
            td3bc=TD3BCConfig(value_weight=1.0),
            replay=ReplayConfig(hindsight=0.5, other_goals=0.25, relative_goals=True),
        )
    if name in RIVALS:
        return _with_rival(config, name)
    if name == "record":
        facts = facts_of(env)
        mirrors = () if facts is None else facts.mirrors
        return replace(
            config,
            use=("priority", "active", "relay"),
            episodes=min(config.episodes, 1_500),
            warmup=min(config.warmup, 100),
            agent=replace(
                config.agent,
                updates=120,
                batch_size=512,
                polyak=max(config.agent.polyak, 0.975),
                critic_layer_norm=True,
            ),
            explore=replace(config.explore, success_factor=0.2),
            replay=replace(
                config.replay,
                other_goals=0.5,
                relative_goals=True,
                mirror=bool(mirrors),
                shift=0.1 if any(mirror.shift for mirror in mirrors) else 0.0,
            ),
            fit_every=50,
            fit_schedule=((100, 10_000), (5_000, 3_000)),
        )
    if name == "fast" and env != "slide":  # whose rounds are short already
        return replace(config, fit_schedule=((200, 10_000), (10_200, 2_000)))
    return config


def _for_env(env: str) -> Config:
    """The paper's settings for an environment, or ours where it has none."""
    config = Config(env=env)
    if env == "rot-table":
        return replace(
            config,
            agent=AgentConfig(learning_rate=3e-4, discount=0.95, polyak=0.99),
            priority=PriorityConfig(beta_episodes=30_000),
            cai=replace(config.cai, network=replace(config.cai.network, width=386)),
        )
    if env == "slide":  # ours: the paper reports no agents that were trained on it
        network = ModelConfig(layers=3, width=64, activation="tanh", spectral_norm_hidden=False, target_scale=1.0)
        return replace(
            config,
            episodes=400,
            warmup=100,
            evaluate_every=50,
            agent=AgentConfig(width=64, updates=40, polyak=0.98, discount=0.95, action_penalty=0.01),
            explore=ExploreConfig(epsilon=0.2, noise=0.1),
            fit_every=50,
            fit_schedule=((100, 1000), (10_000, 250)),
            cai=CaiConfig(network, ScoreConfig(actions=16), 250, newest_from=300),
        )
    if facts_of(env) is None:
        # ours: a model of touches detects influence far better, and where nothing shows what touches the entities, a
        # Gaussian network with spectral norm in measured units (see docs/training.md)
        return replace(config, cai=replace(config.cai, model="auto", network=ModelConfig(target_scale=None)))
    return config


def _with_rival(config: Config, name: str) -> Config:
    """The settings of a rival on top of those for the environment."""
    rival = RIVALS[name]
    facts = facts_of(config.env)
    if rival.predicts != "object" and facts is None:
        other = {"vime": "vime-object", "disagreement": "disagreement"}[rival.signal]
        raise ValueError(
            f"The preset {name!r} needs a built-in environment; for {config.env} use the preset {other!r} and entities."
        )
    entities: tuple[str, ...] = ()
    if rival.predicts != "object" and facts is not None:
        columns = facts.positions if rival.predicts == "positions" else facts.full_state
        entities = (f"object={','.join(map(str, columns))}",)
    first, later = rival.batches
    rescore: Literal["all", "once"] = "once" if rival.predicts == "full_state" else "all"
    return replace(
        config,
        signal=rival.signal,
        use=("bonus",),
        entities=entities,
        bonus=replace(config.bonus, weight=rival.weight, cap=rival.cap),
        fit_every=rival.fit_every,
        fit_schedule=((config.warmup, first), (10**9, later)),
        disagreement=EnsembleConfig(newest=rival.fit_every, rescore=rescore),
    )


def check_training_memory(config: Config, goal_env: "GoalEnv", device: "torch.device | str") -> None:
    """Refuse settings whose arrays alone do not fit into memory, before the first of them is made.

    Raises:
        MemoryError: names what takes the memory, and how much.
    """
    if not str(device).startswith("cpu"):
        return  # torch says what a GPU lacks
    for what, needed in (_agent_parts(config, goal_env) | _signal_parts(config, goal_env)).items():
        check_memory(float(config.seeds * needed), f"{what} (for {config.seeds:,} seeds)", SMALLER)


def _agent_parts(config: Config, goal_env: "GoalEnv") -> dict[str, float]:
    """Bytes of one seed by what needs them: environments, episodes and the agent."""
    obs, action, goal = goal_env.sizes
    agent = config.agent
    envs = max(config.num_envs, min(config.evaluation_episodes, goal_env.evaluation_envs))
    episode = (goal_env.steps + 1) * (obs + action + 2 * goal + 2) * 4
    stored = min(config.replay.capacity, config.episodes)
    rows = agent.updates * config.num_envs * agent.batch_size
    networks = (1 + agent.critics) * network_bytes(obs + goal, agent.width, agent.layers)
    return {
        f"{config.seeds * envs:,} environments": envs * (ENV_BYTES + episode),
        f"A replay buffer of {stored:,} episodes": stored * episode,
        f"An agent with {agent.layers:,} layers of {agent.width:,} units and {agent.critics:,} critics": networks,
        f"The {rows:,} transitions of one round of updates": rows * (2 * obs + action + goal) * 4,
    }


def _signal_parts(config: Config, goal_env: "GoalEnv") -> dict[str, float]:
    """Bytes of one seed by what needs them: the model of the signal, and its uses."""
    obs, action, _ = goal_env.sizes
    parts: dict[str, float] = {}
    if "active" in config.use:
        tried = config.explore.candidates
        parts[f"The choice among {tried:,} actions in each step"] = goal_env.steps * tried * (action + 1) * 4
    if config.swap.share:
        parts[f"A table of {config.swap.candidates:,} swapped transitions"] = config.swap.candidates * 5 * 8
    if not config.use or config.signal not in ("cai", "shuffled", "vime", "disagreement"):
        return parts
    learned: ModelConfig | VimeConfig | EnsembleConfig = config.cai.network
    batch = config.cai.batch_size
    copies = 1
    if config.signal == "vime":
        learned = config.vime
        batch = max(config.vime.batch_size, config.vime.group)
        copies = config.vime.samples
    elif config.signal == "disagreement":
        learned = config.disagreement
        batch = config.disagreement.batch_size
        copies = config.disagreement.members
    parts[f"A model with {learned.layers:,} layers of {learned.width:,} units"] = network_bytes(
        obs + action, learned.width, learned.layers
    )
    parts[f"A batch of {batch:,} transitions, {copies:,} times"] = batch * copies * (obs + action) * 4
    if config.signal in ("cai", "shuffled"):
        tried = config.cai.scoring.actions
        parts[f"Comparing {tried:,} actions in one state"] = tried * (3 * learned.width + 6 * tried) * 4
    return parts
