"""The settings to start from, for each world and experiment of the paper."""

from dataclasses import replace

from butfor.agent import AgentConfig
from butfor.dynamics import ModelConfig
from butfor.envs import WORLDS, short_name
from butfor.explore import BonusConfig
from butfor.online import OnlineConfig
from butfor.priority import PriorityConfig
from butfor.replay import ReplayConfig
from butfor.scoring import ScoreConfig
from butfor.train import Config


def preset(world: str, name: str = "paper") -> Config:
    """The settings to start from: the paper's for a world, its intrinsic experiment, or a short schedule."""
    short = short_name(world)
    config = Config(world=short)
    if short == "rot-table":
        config = replace(
            config,
            agent=AgentConfig(learning_rate=3e-4, discount=0.95, polyak=0.99),
            priority=PriorityConfig(beta_episodes=30_000),
            model=replace(config.model, network=replace(config.model.network, width=386)),
        )
    elif short == "slide":
        network = ModelConfig(layers=3, width=64, activation="tanh", spectral_norm_hidden=False, target_scale=1.0)
        config = replace(
            config,
            episodes=600,
            warmup=50,
            evaluate_every=50,
            agent=AgentConfig(width=64, updates=40),
            model=OnlineConfig(
                network, ScoreConfig(actions=16), 250, every=50, schedule=((50, 1000), (10_000, 250)), newest_from=300
            ),
        )
    elif short not in WORLDS:
        config = replace(config, model=replace(config.model, network=replace(config.model.network, target_scale=None)))
    if name == "intrinsic":
        agent = AgentConfig(layers=2, width=192, learning_rate=3e-3, discount=0.95, polyak=0.99, target_range=None)
        return replace(
            config,
            influence=("intrinsic",),
            warmup=100,
            evaluate_every=100,
            agent=agent,
            replay=ReplayConfig(hindsight=0.0),
            bonus=BonusConfig(cap=10.0),
            model=replace(config.model, schedule=((200, 40_000), (5_200, 20_000))),
        )
    if name == "fast":
        return replace(config, model=replace(config.model, schedule=((200, 10_000), (10_200, 2_000))))
    if name != "paper":
        raise ValueError(f"There is no preset {name!r}; the presets are paper, intrinsic, fast.")
    return config
