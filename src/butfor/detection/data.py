"""Episodes of the detection experiment: of scripted policies, or of agents during their training."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from butfor.detection.collect import EPISODES_A_PART, CollectConfig, collect_file
from butfor.detection.labels import add_labels
from butfor.detection.settings import HALF_RANDOM, DetectionConfig
from butfor.envs import make_vector_env
from butfor.envs.facts import BUILT_IN
from butfor.rollouts.episodes import Episodes, concatenate
from butfor.rollouts.play import Progress, play_again
from butfor.runs.files import atomic_write
from butfor.runs.reading import read_arrays
from butfor.training.run import resume, train
from butfor.training.settings import Config, preset

SPLITS = ("train", "validation", "test")  # each has an agent of its own: training seeds 0, 1 and 2
# Seeds of the files that hold one policy; those of "-train" are to learn from and have no labels.
POLICY_SEEDS = {"random": 10, "noisy-expert": 11, "expert": 12, "random-train": 13}
STRATUM = 1000  # the same share is drawn from every so many episodes of an agent
FORKS = 300  # states whose next states are computed for many actions
FORKED_ACTIONS = 512
FORKED_AT_ONCE = 64


def agents_config(config: DetectionConfig) -> Config:
    """Training settings of the data-collecting agents: DDPG with HER, one seed for each of `SPLITS`."""
    agents = preset(config.env)
    rest = config.agent_episodes - agents.warmup
    if rest < 0 or rest % config.agent_envs:
        raise ValueError(
            f"agent_episodes={config.agent_episodes} does not fit agent_envs={config.agent_envs}: after "
            f"{agents.warmup} random episodes the agents play agent_envs episodes at a time. Choose "
            f"{agents.warmup} plus a multiple of {config.agent_envs}."
        )
    evaluate_every = max(1, config.agent_episodes // 10)
    agents = replace(agents, seeds=len(SPLITS), episodes=config.agent_episodes, evaluate_every=evaluate_every)
    return replace(agents, num_envs=config.agent_envs, overlap=("updates",)) if config.agent_envs > 1 else agents


class ExperimentData:
    """Episode files in a folder; each is collected when it is first needed."""

    def __init__(
        self, config: DetectionConfig, folder: Path, progress: Progress, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config
        self.folder = folder
        self.progress = progress
        self.device = device
        self.labels = BUILT_IN[config.env].labels

    def episodes(self, name: str, count: int) -> Episodes:
        """Load or collect episodes: "train", "validation" or "test", or those of a policy in `POLICY_SEEDS`."""
        path = self.folder / f"{name}.npz"
        if path.is_file():
            episodes = Episodes.load(path)
            if len(episodes) == count:
                return episodes
            if name in SPLITS:
                raise ValueError(
                    f"{path} has {len(episodes)} episodes instead of {count}; delete it or use another run folder."
                )
        if name in POLICY_SEEDS:
            return self._collect(name, name.removesuffix("-train"), count, POLICY_SEEDS[name], 0, count)
        seed = SPLITS.index(name)
        scripted = self.config.data == "scripted"
        half_random = scripted or (self.config.env in HALF_RANDOM and name == "test")
        random = count - count // 2 if half_random else 0
        rest = count - random
        parts = []
        if random:
            total = count if scripted else random
            parts.append(self._collect(f"{name}-random", "random", random, 2 * seed, 0, total))
        if rest and scripted:
            parts.append(self._collect(f"{name}-expert", "noisy-expert", rest, 2 * seed + 1, random, count))
        elif rest:
            parts.append(self._take_from_agent(name, rest))
        episodes = concatenate(parts)
        sources = [part.metadata.get("config", part.metadata) for part in parts]
        episodes.metadata = {"env": self.config.env, "parts": sources}
        episodes.save(path)
        for part in ("random", "expert", "[0-9]" * 6):
            for file in self.folder.glob(f"{name}-{part}.npz"):
                file.unlink()
        return episodes

    def _collect(self, name: str, policy: str, count: int, seed: int, before: int, total: int) -> Episodes:
        """Episodes of a policy of `butfor collect`; robot episodes to learn from are not labelled, to save time."""
        to_learn_from = name.startswith("train") or name.endswith("-train")
        labels = () if to_learn_from and BUILT_IN[self.config.env].forks else self.labels
        config = CollectConfig(self.config.env, policy, count, labels, seed)
        stage = f"{name if name in POLICY_SEEDS else name.split('-')[0]} data"
        return collect_file(config, self.folder / f"{name}.npz", self._show(stage, before, total))

    def _show(self, stage: str, before: int, total: int) -> Callable[[int], None]:
        return lambda done: self.progress(stage, before + done, total, "episodes")

    def _take_from_agent(self, name: str, count: int) -> Episodes:
        """Episodes that one agent played during its training: an equal share of every thousand, in their order."""
        played = self._train_agents()
        length = len(played) // len(SPLITS)
        seed = SPLITS.index(name)
        chosen = choose_evenly(length, count, np.random.default_rng(seed))
        episodes = played.take(chosen * len(SPLITS) + seed)
        episodes.metadata = {
            "policy": "DDPG+HER while it learns", "seed": seed, "of": length, "episode": chosen.tolist(),
        }  # fmt: skip
        if name == "train":
            return episodes
        parts = []
        for first in range(0, count, EPISODES_A_PART):  # labelling takes long, so each part is saved
            path = self.folder / f"{name}-{first:06d}.npz"
            if not path.is_file():
                part = episodes.take(np.arange(first, min(first + EPISODES_A_PART, count)))
                show = self._show(f"{name} labels", first, count)
                add_labels(part, self.config.env, self.labels, show).save(path)
            parts.append(Episodes.load(path))
        labelled = concatenate(parts)
        labelled.metadata = episodes.metadata
        return labelled

    def _train_agents(self) -> Episodes:
        """All episodes of the agents; trains them first, or resumes their training."""
        path = self.folder / "agents.npz"
        run = self.folder / "agents"
        try:
            if not path.is_file() and (run / "config.json").is_file():
                resume(run, self.device, keep_episodes=path, progress=self.progress)
            elif not path.is_file():
                train(agents_config(self.config), run, self.device, keep_episodes=path, progress=self.progress)
        except KeyboardInterrupt as stopped:  # without train's advice, which is for its own callers
            raise KeyboardInterrupt from stopped
        return Episodes.load(path)

    def forks(self, test: Episodes) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Some states of robot test episodes, and the object's next position for many actions: [n, D], [n, M, 3]."""
        path = self.folder / "forks.npz"
        if not path.is_file():
            obs, outcome = fork_states(self.config.env, test, min(FORKS, len(test)), self.progress)
            with atomic_write(path) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, obs=obs, outcome=outcome)
        held = read_arrays(path)
        return held["obs"], held["outcome"]


def choose_evenly(length: int, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` of `length` numbers, an equal share from every thousand, in rising order."""
    edges = np.arange(0, length + STRATUM, STRATUM).clip(max=length)
    shares = np.diff(np.round(edges * count / length).astype(np.int64))
    chosen = []
    for start, stop, share in zip(edges[:-1], edges[1:], shares, strict=True):
        chosen.append(start + np.sort(generator.choice(stop - start, share, replace=False)))
    return np.concatenate(chosen)


def fork_states(
    env_name: str, episodes: Episodes, count: int, progress: Progress
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """One state of each of `count` episodes [count, D], half of them influenced, and the object's next position for
    many uniform actions [count, M, 3]."""
    from butfor.envs.truth import Forker

    generator = np.random.default_rng(0)
    chosen = choose_states(episodes, count, generator)  # (episode, time)
    forker = Forker(env_name)
    obs = []
    outcome = []
    for first in range(0, len(chosen), FORKED_AT_ONCE):
        rows = chosen[first : first + FORKED_AT_ONCE]
        states = _replayed_states(env_name, episodes, rows, forker.layout.size)
        actions = generator.uniform(-1, 1, (len(rows), FORKED_ACTIONS, episodes.action.shape[2]))
        outcome.append(forker.fork(states, actions, forker.object_position))
        obs.append(episodes.observation[rows[:, 0], rows[:, 1]])
        progress("forks", min(first + FORKED_AT_ONCE, len(chosen)), len(chosen), "states")
    return np.concatenate(obs), np.concatenate(outcome)


def _replayed_states(env_name: str, episodes: Episodes, rows: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """Simulator states [n, size] at rows of (episode, time), from replaying these episodes."""
    env = make_vector_env(env_name, len(rows))
    states = np.zeros((len(rows), size))

    def look(time: int) -> None:
        here = rows[:, 1] == time
        states[here] = env.unwrapped.save_state()[here]  # type: ignore[attr-defined]

    play_again(env, episodes, rows[:, 0].tolist(), look)
    env.close()
    return states


def choose_states(episodes: Episodes, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """(episode, time) in `count` different episodes, half of them in influenced states if there are so many."""
    label = episodes.label["exact"] & episodes.valid
    influenced = generator.permutation(np.flatnonzero(label.any(1)))[: count // 2]
    rest = generator.permutation(np.setdiff1d(np.arange(len(episodes)), influenced))[: count - len(influenced)]
    free = [(e, generator.choice(np.flatnonzero(episodes.valid[e]))) for e in rest]
    return np.array([*((e, generator.choice(np.flatnonzero(label[e]))) for e in influenced), *free], dtype=np.int64)
