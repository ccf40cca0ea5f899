"""Episode files of a policy, with labels: `butfor collect`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from butfor.detection.labels import ENVS_AT_ONCE, add_heuristic, check_labels, reported_labels
from butfor.envs import facts_of, make_vector_env, short_name
from butfor.envs.experts import scripted_action
from butfor.envs.facts import BUILT_IN
from butfor.rollouts.episodes import Episodes, check_episode_file, concatenate
from butfor.rollouts.play import Policy, Stream, collect, random_policy
from butfor.runs.config import check_least
from butfor.runs.files import explain_write_error
from butfor.runs.folder import versions
from butfor.runs.locks import locked
from butfor.spaces.actions import ActionLaw
from butfor.training.agents.policy import load_policy

POLICIES = {
    "random": "uniform actions",
    "expert": "a scripted policy that solves the task",
    "noisy-expert": "the same with Gaussian noise of 0.2, and a fifth of its actions uniform (on slide: also all those "
    "from which the object cannot be hit)",
}
EPISODES_A_PART = 500  # episodes between two saves


@dataclass(frozen=True)
class CollectConfig:
    """What an episode file contains."""

    env: str
    policy: str = "random"
    """one of `POLICIES`, or the run folder of a trained agent"""
    episodes: int = 1000
    labels: tuple[str, ...] = ()
    """any of `butfor.detection.labels.LABELS`"""
    seed: int = 0
    agent_seed: int | None = None
    """which seed of a trained run acts; None: its first"""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES and not Path(self.policy).exists():
            raise ValueError(f"policy is {self.policy!r}; expected {', '.join(POLICIES)} or the folder of a run.")
        check_least(self, 1, "episodes")
        check_least(self, 0, "seed")
        check_labels(self.env, self.labels)
        if self.policy in ("expert", "noisy-expert") and facts_of(self.env) is None:
            raise ValueError(f"{self.env} is not a built-in environment, so it has no policy {self.policy!r}.")


def make_policy(env_name: str, env: VectorEnv[Any, Any, Any], name: str, agent_seed: int | None = None) -> Policy:
    """Make a policy of `POLICIES`, or load the trained agent of a run folder."""
    if name == "random":
        return random_policy(env)
    if name not in POLICIES:
        trained = load_policy(name, agent_seed)
        if short_name(trained.env) != env_name:
            raise ValueError(f"The agent of {name} was trained on {trained.env}; it cannot act in {env_name}.")
        return lambda obs, generator: (trained(obs), np.zeros(len(obs["observation"]), dtype=bool))
    expert = BUILT_IN[env_name].expert
    noise, share = (0.2, 0.2) if name == "noisy-expert" else (0.0, 0.0)
    return lambda obs, generator: scripted_action(expert, obs, generator, noise, share)


def collect_file(
    config: CollectConfig, path: Path | str, progress: Callable[[int], None] = lambda done: None
) -> Episodes:
    """Play and label episodes into a file; an interrupted or shorter file of the same settings is extended.

    Args:
        config: what to play.
        path: the episode file, saved after every `EPISODES_A_PART` episodes.
        progress: called with the number of episodes played.

    Returns:
        All episodes of the file.

    Raises:
        FileExistsError: the file contains other episodes.
        BusyError: another process writes the file.
    """
    check_episode_file(path)
    with locked(path):
        return _collect_file(config, Path(path), progress)


def _collect_file(config: CollectConfig, path: Path, progress: Callable[[int], None]) -> Episodes:
    """Play into a file that no other process writes."""
    env_name = short_name(config.env)
    wanted = asdict(config) | {"env": env_name, "labels": list(config.labels)}
    whole = Episodes.load(path) if path.is_file() else None
    if whole is not None:
        found = whole.metadata.get("config", {})
        if found | {"episodes": 0} != wanted | {"episodes": 0} or len(whole) > config.episodes:
            raise FileExistsError(f"{path} contains other episodes ({found}); choose another name.")
        if len(whole) == config.episodes:
            return whole
    env = make_vector_env(config.env, min(ENVS_AT_ONCE, config.episodes), reported_labels(config.labels))
    stream = Stream.TRAINING if config.policy in POLICIES else Stream.TRAINED_AGENT
    policy = make_policy(env_name, env, config.policy, config.agent_seed)
    law = ActionLaw.from_space(env.single_action_space)
    bounds = {"action_low": list(law.low), "action_high": list(law.high)}
    for first in range(0 if whole is None else len(whole), config.episodes, EPISODES_A_PART):
        count = min(EPISODES_A_PART, config.episodes - first)

        def show(more: int, first: int = first) -> None:
            progress(first + more)

        part = collect(env, policy, count, config.seed, progress=show, first=first, stream=stream)
        if "heuristic" in config.labels:
            add_heuristic(part)
        whole = concatenate([part] if whole is None else [whole, part])
        whole.metadata = {"config": wanted, "versions": versions("cpu")} | bounds
        with explain_write_error(f"The episodes {path}", f"free some space and run it again; {first} stay saved"):
            whole.save(path)
    env.close()
    assert whole is not None  # config.episodes is at least 1
    return whole
