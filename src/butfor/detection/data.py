"""The data of a detection study: labelled episodes of scripted policies, or of agents while they learn."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from butfor.detection.collect import EPISODES_A_PART, CollectConfig, add_labels, collect_file
from butfor.envs import is_fetch_world
from butfor.rollouts.episodes import Episodes, concatenate
from butfor.rollouts.play import Progress, play_again
from butfor.runs.files import atomic_write
from butfor.training.loop import resume, train
from butfor.training.settings import Config, preset

RUNS = ("train", "validation", "test")  # each has a training run of its own: the seeds 0, 1 and 2
POLICY_SEEDS = {
    "random": 10,
    "noisy-expert": 11,
    "expert": 12,
    "random-train": 13,
}  # "-train": to learn from, unlabelled
STRATUM = 1000  # of every so many episodes of a training run the same share is drawn
FORKS, FORKED_ACTIONS = 300, 512  # states whose next states are known for many actions


def agents_config(world: str, episodes: int, worlds: int) -> Config:
    """How the agents learn whose episodes are judged: DDPG with HER, a seed for each of `RUNS`."""
    config = preset(world)
    rest = episodes - config.warmup
    if rest < 0 or rest % worlds:
        raise ValueError(
            f"agent_episodes is {episodes} and agent_envs {worlds}; after {config.warmup} random episodes the agents "
            f"play agent_envs episodes at a time, so {rest} must be a multiple of it, and not negative."
        )
    config = replace(config, seeds=len(RUNS), episodes=episodes, evaluate_every=max(1, episodes // 10))
    return replace(config, num_envs=worlds, overlap=("updates",)) if worlds > 1 else config


class Data:
    """Episode files in a folder, each made when it is first asked for."""

    def __init__(
        self,
        world: str,
        folder: Path,
        source: str,
        agent_episodes: int,
        progress: Progress,
        device: torch.device | str = "cpu",
        agent_envs: int = 1,
    ) -> None:
        """`source`: "scripted" (half random, half the noisy expert) or "agents" (while they learn, DDPG with HER)."""
        self.world, self.folder, self.source, self.agent_episodes = world, folder, source, agent_episodes
        self.progress, self.device, self.agent_envs = progress, device, agent_envs

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that the world has."""
        return ("exact", "heuristic", "contact") if is_fetch_world(self.world) else ("exact",)

    def episodes(self, name: str, count: int) -> Episodes:
        """`count` episodes: "train", "validation" or "test", or those of a policy by its name (`POLICY_SEEDS`)."""
        path = self.folder / f"{name}.npz"
        if path.is_file():
            episodes = Episodes.load(path)
            if len(episodes) == count:
                return episodes
            if name in RUNS:
                raise ValueError(
                    f"{path} holds {len(episodes)} episodes, not {count}; delete it or use another run folder."
                )
        if name in POLICY_SEEDS:
            return self._played(name, name.removesuffix("-train"), count, POLICY_SEEDS[name], 0, count)
        seed = RUNS.index(name)
        if self.source == "scripted":
            first = count - count // 2
            parts = [self._played(f"{name}-random", "random", first, 2 * seed, 0, count)]
            if count > first:
                parts.append(self._played(f"{name}-expert", "noisy-expert", count // 2, 2 * seed + 1, first, count))
        elif self.world == "slide" and name == "test":  # as the paper has it: half of it random
            share = count - count // 2
            parts = [self._played("test-random", "random", share, 2 * seed, 0, share)]  # no agent starts where it does
            parts += [self._from_agents(name, count - share)] if count > share else []
        else:
            parts = [self._from_agents(name, count)]
        episodes = concatenate(parts) if len(parts) > 1 else parts[0]
        episodes.metadata = {
            "env": self.world,
            "parts": [part.metadata.get("config", part.metadata) for part in parts],
        }
        episodes.save(path)
        for part in self.folder.glob(f"{name}-*.npz"):
            part.unlink()
        return episodes

    def _played(self, name: str, policy: str, count: int, seed: int, before: int, total: int) -> Episodes:
        """Episodes of a policy of `butfor collect`, with every label where they are to be judged."""
        to_learn_from = is_fetch_world(self.world) and (name.startswith("train") or name.endswith("-train"))
        labels = () if to_learn_from else self.labels
        config = CollectConfig(self.world, policy, count, labels, seed)
        stage = name if name in POLICY_SEEDS else name.split("-")[0]
        show = self._show(f"{stage} data", total)
        return collect_file(config, self.folder / f"{name}.npz", lambda done: show(before + done))

    def _show(self, stage: str, total: int) -> Callable[[int], None]:
        return lambda done: self.progress(stage, done, total, "episodes")

    def _from_agents(self, name: str, count: int) -> Episodes:
        """Episodes that one agent played while it learned: an equal share of every thousand, in their order."""
        played = self._training_runs()
        seeds = len(RUNS)
        length, seed = len(played) // seeds, RUNS.index(name)
        if count > length:
            raise ValueError(
                f"{count} {name} episodes are asked for, but the agents played {length}; see agent_episodes."
            )
        chosen = choose_evenly(length, count, np.random.default_rng(seed))
        episodes = played.take(chosen * seeds + seed)
        who = {"policy": "DDPG+HER while it learns", "seed": seed, "of": length, "episode": chosen.tolist()}
        episodes.metadata = who
        if name == "train":
            return episodes
        parts, show = [], self._show(f"{name} labels", count)
        for first in range(0, count, EPISODES_A_PART):  # labels take long: each part is kept
            path = self.folder / f"{name}-{first:06d}.npz"
            if not path.is_file():
                part = episodes.take(np.arange(first, min(first + EPISODES_A_PART, count)))
                part = add_labels(part, self.world, self.labels, lambda done, first=first: show(first + done))  # type: ignore[misc]
                part.save(path)
            parts.append(Episodes.load(path))
        labelled = concatenate(parts)
        labelled.metadata = episodes.metadata
        return labelled

    def _training_runs(self) -> Episodes:
        """All episodes of the training runs, which are trained first where they are not yet."""
        kept, run = self.folder / "agents.npz", self.folder / "agents"
        if not kept.is_file():
            config = agents_config(self.world, self.agent_episodes, self.agent_envs)
            begun = (run / "config.json").is_file()
            try:
                if begun:
                    resume(run, self.device, keep_episodes=kept, progress=self.progress)
                else:
                    train(config, run, self.device, keep_episodes=kept, progress=self.progress)
            except KeyboardInterrupt as stopped:  # its words are for those who called `train` themselves
                raise KeyboardInterrupt from stopped
        return Episodes.load(kept)

    def forks(self, test: Episodes) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Some states of Fetch test episodes, and the object's next position for many actions: [n, D], [n, M, 3]."""
        path = self.folder / "forks.npz"
        if not path.is_file():
            obs, outcome = fork_states(self.world, test, min(FORKS, len(test)), self.progress)
            with atomic_write(path) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, obs=obs, outcome=outcome)
        with np.load(path, allow_pickle=False) as file:
            return file["obs"], file["outcome"]


def choose_evenly(length: int, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """`count` of `length` numbers in order, from every stratum of a thousand an equal share."""
    edges = np.arange(0, length + STRATUM, STRATUM).clip(max=length)
    shares = np.diff(np.round(edges * count / length).astype(np.int64))
    parts = [
        start + np.sort(generator.choice(stop - start, share, replace=False))
        for start, stop, share in zip(edges[:-1], edges[1:], shares, strict=True)
    ]
    return np.concatenate(parts)


def fork_states(
    world: str, episodes: Episodes, count: int, progress: Progress
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """One state of each of `count` episodes, half of them influenced, and where the object goes from it under others'
    actions: obs [count, D], positions [count, M, 3]."""
    from butfor.envs import make_vector_env
    from butfor.envs.truth import Forker

    generator = np.random.default_rng(0)
    chosen = choose_states(episodes, count, generator)  # (episode, time)
    obs, outcome = [], []
    forker: Forker | None = None
    for first in range(0, len(chosen), 64):
        rows = chosen[first : first + 64]
        env = make_vector_env(world, len(rows))
        inner: Any = env.unwrapped
        forker = forker or Forker(inner)
        states = np.zeros((len(rows), forker.layout.size))

        def look(time: int, rows: NDArray[np.int64] = rows, states: NDArray[np.float64] = states) -> None:
            here = rows[:, 1] == time
            states[here] = inner.save_state()[here]  # noqa: B023

        play_again(env, episodes, rows[:, 0].tolist(), look)
        env.close()
        actions = generator.uniform(-1, 1, (len(rows), FORKED_ACTIONS, episodes.action.shape[2]))
        columns = np.arange(forker.layout.size)[forker.layout.object_pose][:3]
        outcome.append(forker.fork(states, actions, columns))
        obs.append(episodes.observation[rows[:, 0], rows[:, 1]])
        progress("forks", min(first + 64, len(chosen)), len(chosen), "states")
    return np.concatenate(obs), np.concatenate(outcome)


def choose_states(episodes: Episodes, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """(episode, time) of `count` different episodes; half in influenced states, as far as there are such episodes."""
    label = episodes.label["exact"] & episodes.valid
    influenced = generator.permutation(np.flatnonzero(label.any(1)))[: count // 2]
    rest = generator.permutation(np.setdiff1d(np.arange(len(episodes)), influenced))[: count - len(influenced)]
    free = [(e, generator.choice(np.flatnonzero(episodes.valid[e]))) for e in rest]
    return np.array([*((e, generator.choice(np.flatnonzero(label[e]))) for e in influenced), *free], dtype=np.int64)
