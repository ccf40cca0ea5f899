"""Episode files of the built-in worlds: policies and labels by name, in a file that grows by whole parts."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from butfor.envs import facts_of, make_vector_env, short_name
from butfor.envs.experts import scripted_action
from butfor.rollouts.episodes import Episodes, check_episode_file, concatenate
from butfor.rollouts.play import Policy, Stream, collect, play_again, random_policy
from butfor.runs.files import explain_write_error
from butfor.runs.folder import versions
from butfor.spaces.actions import ActionLaw
from butfor.training.agents.policy import load_policy

POLICIES = {
    "random": "uniform actions",
    "expert": "a scripted policy that solves the task",
    "noisy-expert": "the same with Gaussian noise of 0.2, and a fifth of its actions uniform (on slide: also all those "
    "from which the object cannot be hit)",
}
LABELS = ("exact", "heuristic", "contact")
EPISODES_A_PART = 500  # what a killed process can lose
WORLDS_AT_ONCE = 64


@dataclass(frozen=True)
class CollectConfig:
    """What an episode file holds."""

    env: str
    policy: str = "random"
    episodes: int = 1000
    labels: tuple[str, ...] = ()
    seed: int = 0
    agent_seed: int | None = None
    """which seed of a trained run acts; None: its first"""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES and not Path(self.policy).exists():
            names = ", ".join(POLICIES)
            raise ValueError(f"There is no policy {self.policy!r}; give one of {names}, or a training run's folder.")
        unknown = [label for label in self.labels if label not in LABELS]
        if unknown:
            raise ValueError(f"There is no label {unknown[0]!r}; the labels are {', '.join(LABELS)}.")
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1; got {self.episodes}.")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0; got {self.seed}.")
        facts = facts_of(self.env)
        scripted = self.policy in POLICIES and self.policy != "random"
        if facts is None and (scripted or self.labels):
            raise ValueError(f"{self.env} is not a built-in world: it has neither experts nor labels.")
        if facts is not None and "heuristic" in set(self.labels) - set(facts.labels):
            raise ValueError("The heuristic label is for the Fetch worlds; slide has the exact label and contact.")


def make_policy(world: str, env: VectorEnv[Any, Any, Any], name: str, agent_seed: int | None = None) -> Policy:
    """A policy of `POLICIES` for a built-in world, or the trained agent of a run folder."""
    if name == "random":
        return random_policy(env)
    if name not in POLICIES:
        trained = load_policy(name, agent_seed)
        if short_name(trained.env) != world:
            raise ValueError(f"The agent of {name} was trained on {trained.env}; it cannot act in {world}.")
        return lambda obs, generator: (trained(obs), np.zeros(len(obs["observation"]), dtype=bool))
    facts = facts_of(world)
    assert facts is not None
    expert = facts.expert
    noise, share = (0.2, 0.2) if name == "noisy-expert" else (0.0, 0.0)
    return lambda obs, generator: scripted_action(expert, obs, generator, noise, share)


def collect_file(
    config: CollectConfig, path: Path | str, progress: Callable[[int], None] = lambda done: None
) -> Episodes:
    """Plays and labels episodes into one file, saved whole after every part; called again, it goes on from there."""
    path, world = Path(path), short_name(config.env)
    wanted = {"config": asdict(config) | {"env": world, "labels": list(config.labels)}}
    parts: list[Episodes] = []
    check_episode_file(path)
    if path.is_file():
        parts = [Episodes.load(path)]
        found = parts[0].metadata.get("config", {})
        if found | {"episodes": 0} != wanted["config"] | {"episodes": 0} or len(parts[0]) > config.episodes:
            raise FileExistsError(f"{path} holds other episodes ({found}); give another name.")
    env = make_vector_env(config.env, min(WORLDS_AT_ONCE, config.episodes), _step_labels(config.labels))
    stream = Stream.TRAINING if config.policy in POLICIES else Stream.TRAINED_AGENT
    policy = make_policy(world, env, config.policy, config.agent_seed)
    law = ActionLaw.from_space(env.single_action_space)
    while (done := sum(map(len, parts))) < config.episodes:
        count = min(EPISODES_A_PART, config.episodes - done)

        def show(more: int, done: int = done) -> None:
            progress(done + more)

        part = collect(env, policy, count, config.seed, progress=show, first=done, stream=stream)
        if "heuristic" in config.labels:
            part.label["heuristic"] = _heuristic(part)
        parts = [concatenate([*parts, part])]
        bounds = {"action_low": list(law.low), "action_high": list(law.high)}
        parts[0].metadata = wanted | {"versions": versions("cpu")} | bounds
        stays = f": the {done} episodes saved so far stay, and it goes on from them" if done else ""
        with explain_write_error(f"The episodes {path}", f"make room, then give the same command again{stays}"):
            parts[0].save(path)
    env.close()
    return parts[0]


def add_labels(
    episodes: Episodes, world: str, labels: Sequence[str], progress: Callable[[int], None] = lambda done: None
) -> Episodes:
    """The same episodes of a built-in world with labels: each is played again from the seed of its reset.

    Episodes that do not come out as they are stored, but for rounding, were not played in this world; they are refused.
    """
    world = short_name(CollectConfig(world, labels=tuple(labels)).env)  # unknown labels are refused here
    parts: list[Episodes] = []
    for first in range(0, len(episodes), WORLDS_AT_ONCE):
        rows = np.arange(first, min(first + WORLDS_AT_ONCE, len(episodes)))
        parts.append(_labelled(episodes, rows, world, labels))
        progress(first + len(rows))
    labelled = concatenate(parts)
    labelled.metadata = episodes.metadata
    return labelled


def _labelled(episodes: Episodes, rows: NDArray[np.int64], world: str, labels: Sequence[str]) -> Episodes:
    """Some episodes, played again all at once, with labels."""
    env = make_vector_env(world, len(rows), _step_labels(labels))
    again = play_again(env, episodes, rows.tolist())
    env.close()
    part = episodes.take(rows)
    if {"contact", "heuristic"} & set(labels):
        part.contact = again.contact
    part.label |= {name: again.label[name] & part.valid for name in labels if name in again.label}
    if "heuristic" in labels:
        part.label["heuristic"] = _heuristic(part)
    return part


def _step_labels(labels: Sequence[str]) -> list[str]:
    """The labels that the environment reports itself; the heuristic one is computed from contacts afterwards."""
    reported = {"exact"} if "exact" in labels else set()
    return sorted(reported | ({"contact"} if {"contact", "heuristic"} & set(labels) else set()))


def _heuristic(episodes: Episodes) -> NDArray[np.bool_]:
    """The paper's ellipsoid label of each state, from the observation and the contact of the step."""
    from butfor.envs.heuristic import heuristic_label

    return heuristic_label(episodes.observation[:, :-1], episodes.contact)
