"""Influence over a training run: score and exact label by step and episode, and what the agent did to the object."""

from pathlib import Path

import numpy as np

from butfor.detection.collect import add_labels
from butfor.envs import ENVS, short_name
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Played, Progress, episode_seed
from butfor.runs.checkpoints import latest_checkpoint
from butfor.runs.config import config_from
from butfor.runs.files import atomic_write
from butfor.runs.reading import read_run
from butfor.training.goal_env import behaviour, open_goal_env
from butfor.training.settings import Config

GROUP = 100  # episodes that are averaged
LABELLED = 4  # of each group: labels need the simulator


def write_heatmap(run: Path | str, progress: Progress = lambda stage, done, total, text: None) -> Path:
    """heatmap.npz of a training run's first seed: score and label [T, groups] over the episodes in its memory.

    Scores are those that the memory holds at the end; labels are of a few episodes of each group, played again. `seed`,
    `counts` [groups] and `labelled` [groups] say whose they are and of how many episodes.
    """
    run = Path(run)
    target = run / "heatmap.npz"
    record = read_run(run)
    if record["kind"] != "training":
        raise ValueError(f"{run} holds a run of kind {record['kind']!r}; a heat map is made of a training run.")
    config = config_from(Config, record["config"])
    if not config.influence:
        raise ValueError(f"{run} trained without influence, so there are no scores to draw.")
    state = latest_checkpoint(run)
    if state is None:
        raise ValueError(f"{run} has no checkpoint, and with it no memory to draw from; heat maps need one.")
    memory = {name: value[0].numpy() for name, value in state["replay"].items() if name != "stored"}
    stored, size = int(state["replay"]["stored"]), len(memory["length"])
    if target.is_file():
        with np.load(target, allow_pickle=False) as file:
            if int(file["played"]) == stored:  # else the run has gone on since
                return target
    order = np.arange(stored - size, stored) % size  # from the oldest to the newest
    number = np.arange(stored - size, stored)
    episodes = Episodes(
        **{name: memory[name][order] for name in ("observation", "action", "achieved_goal", "desired_goal")},
        length=memory["length"][order],
        sampled=memory["sampled"][order],
        score=memory["score"][order],
        reset_seed=np.array([episode_seed(config.first_seed, 0, int(one)) for one in number], dtype=np.int64),
    )
    groups = np.array_split(np.arange(size), max(1, size // GROUP))
    arrays = {
        "played": np.array(stored),
        "seed": np.array(config.first_seed),
        "counts": np.array([len(group) for group in groups]),
        "episodes": np.array([number[group].mean() for group in groups]),
        "score": np.stack([_mean(episodes.take(group)) for group in groups], 1),  # [T, groups]
    }
    world = short_name(config.env)
    if world in ENVS:
        chosen = [group[:: max(1, len(group) // LABELLED)][:LABELLED] for group in groups]
        some = episodes.take(np.concatenate(chosen))
        names = ("exact",) if world == "slide" else ("exact", "contact")
        some = add_labels(some, world, names, lambda done: progress("labels", done, len(some), "episodes"))
        parts = np.split(np.arange(len(some)), np.cumsum([len(group) for group in chosen])[:-1])
        arrays["labelled"] = np.array([len(group) for group in chosen])
        arrays["label"] = np.stack([some.label["exact"][part].mean(0) for part in parts], 1)
        nobody = np.zeros(len(some), dtype=bool)
        shares = behaviour(open_goal_env(world, target_scale=1.0), Played(some, nobody, nobody))
        arrays |= {name: np.array([share[part].mean() for part in parts]) for name, share in shares.items()}
    with atomic_write(target) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return target


def _mean(episodes: Episodes) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The mean score at each time, over the episodes that last so long: [T]."""
    assert episodes.score is not None
    count = episodes.valid.sum(0)
    mean: np.ndarray[tuple[int], np.dtype[np.float64]] = (episodes.score * episodes.valid).sum(0) / np.maximum(count, 1)
    return mean
