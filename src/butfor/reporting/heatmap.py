"""Influence over a training run: score and exact label by step and episode, and what the agent did to the object."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from butfor.detection.labels import add_labels
from butfor.envs.facts import facts_of
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Progress, Stream, episode_seed
from butfor.runs.checkpoints import latest_checkpoint
from butfor.runs.config import config_from
from butfor.runs.files import atomic_write
from butfor.runs.reading import read_arrays, read_run
from butfor.training.settings import Config

GROUP = 100  # episodes that are averaged
LABELLED = 4  # episodes of each group with labels, which need the simulator


def write_heatmap(
    run: Path | str, progress: Progress = lambda stage, done, total, text: None, labels: bool = True
) -> Path:
    """Write heatmap.npz of a training run: score and label [T, groups] of its first seed's replay buffer.

    Scores are those in the last checkpoint; `labels` are of a few episodes of each group, played again. `counts`
    [groups] and `labelled` [groups] are the numbers of episodes averaged.
    """
    run = Path(run)
    target = run / "heatmap.npz"
    config = config_from(Config, read_run(run)["config"])
    if not config.use or config.signal != "cai":
        raise ValueError(f"{run} was trained without influence, so it has no scores to draw.")
    state = latest_checkpoint(run)
    if state is None:
        raise ValueError(f"{run} has no checkpoint; a heat map needs its replay buffer.")
    replay = {name: value[0].numpy() for name, value in state["replay"].items() if name != "stored"}
    stored = int(state["replay"]["stored"])
    held = read_arrays(target) if target.is_file() else {"played": -1}
    with_labels = labels and facts_of(config.env) is not None
    if int(held["played"]) == stored and ("label" in held or not with_labels):  # else the run was resumed since
        return target
    size = len(replay["length"])
    number = np.arange(stored - size, stored)  # from the oldest to the newest
    kept = ("observation", "action", "achieved_goal", "desired_goal", "length", "sampled", "score")
    episodes = Episodes(
        **{name: replay[name][number % size] for name in kept},
        reset_seed=np.array([episode_seed(config.first_seed, Stream.TRAINING, int(one)) for one in number], np.int64),
    )
    groups = np.array_split(np.arange(size), max(1, size // GROUP))
    arrays = {
        "played": np.array(stored),
        "seed": np.array(config.first_seed),
        "counts": np.array([len(group) for group in groups]),
        "episodes": np.array([number[group].mean() for group in groups]),
        "score": np.stack([_mean_score(episodes.take(group)) for group in groups], 1),  # [T, groups]
    }
    facts = facts_of(config.env) if labels else None
    if facts is not None:
        chosen = [group[:: max(1, len(group) // LABELLED)][:LABELLED] for group in groups]
        some = episodes.take(np.concatenate(chosen))
        names = tuple(name for name in facts.labels if name in ("exact", "contact"))
        some = add_labels(some, facts.name, names, lambda done: progress("labels", done, len(some), "episodes"))
        parts = np.split(np.arange(len(some)), np.cumsum([len(group) for group in chosen])[:-1])
        arrays["labelled"] = np.array([len(group) for group in chosen])
        arrays["label"] = np.stack([some.label["exact"][part].mean(0) for part in parts], 1)
        for name, share in facts.behaviour(some).items():
            arrays[name] = np.array([share[part].mean() for part in parts])
    with atomic_write(target) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return target


def _mean_score(episodes: Episodes) -> NDArray[np.float64]:
    """The mean score at each time over the episodes that last so long: [T]."""
    assert episodes.score is not None
    total = (episodes.score * episodes.valid).sum(0)
    return np.asarray(total / np.maximum(episodes.valid.sum(0), 1))
