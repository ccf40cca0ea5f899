"""Labels that tell whether the action matters in a state: which there are, how to add them, where they agree.

`exact` comes from forking the simulator, `heuristic` is the paper's ellipsoid around the gripper, and `contact` is the
contact of agent and object. To add a label, name it in `LABELS` and in the environment's facts, and compute it here or
report it as `label_NAME` in the environment's info.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from butfor.envs import facts_of, make_vector_env
from butfor.rollouts.episodes import Episodes, concatenate
from butfor.rollouts.play import play_again

LABELS = ("exact", "heuristic", "contact")
ENVS_AT_ONCE = 64
SAME_WITHIN = 1e-3  # of a replayed observation, in every column: the labels are of the replayed states


def check_labels(env_name: str, labels: Sequence[str]) -> None:
    """Refuse labels that are unknown, or that the environment does not have."""
    facts = facts_of(env_name)
    known = tuple(dict.fromkeys((*facts.labels, "contact"))) if facts else ()
    for label in labels:
        if label not in LABELS:
            raise ValueError(f"There is no label {label!r}; the labels are {', '.join(LABELS)}.")
        if label not in known:
            found = f"it has {', '.join(known)}" if known else "it is not a built-in environment"
            raise ValueError(f"{env_name} has no label {label!r}; {found}.")


def reported_labels(labels: Sequence[str]) -> list[str]:
    """The labels that an environment must report, so that `labels` are known."""
    contact = ["contact"] if {"contact", "heuristic"} & set(labels) else []
    return contact + (["exact"] if "exact" in labels else [])


def add_heuristic(episodes: Episodes) -> None:
    """Add the paper's ellipsoid label, from the observation and the contact of each step."""
    from butfor.envs.heuristic import heuristic_label

    episodes.label["heuristic"] = heuristic_label(episodes.observation[:, :-1], episodes.contact)


def add_labels(
    episodes: Episodes, env_name: str, labels: Sequence[str], progress: Callable[[int], None] = lambda done: None
) -> Episodes:
    """Label episodes of a built-in environment by replaying them from the seeds of their resets.

    Args:
        episodes: the episodes, which stay as they are.
        env_name: the environment in which they were played.
        labels: any of `LABELS`.
        progress: called with the number of episodes that are labelled.

    Returns:
        A copy of the episodes with the labels.

    Raises:
        ValueError: the replay differs from the stored states, or the environment does not have a label.
    """
    check_labels(env_name, labels)
    parts: list[Episodes] = []
    for first in range(0, len(episodes), ENVS_AT_ONCE):
        rows = np.arange(first, min(first + ENVS_AT_ONCE, len(episodes)))
        env = make_vector_env(env_name, len(rows), reported_labels(labels))
        again = play_again(env, episodes, rows.tolist())
        env.close()
        part = episodes.take(rows)
        gap = np.abs(again.observation - part.observation)[:, :-1].max(2, where=part.valid[..., None], initial=0)
        if not (gap < SAME_WITHIN).all():  # [n, T]
            place = int((~(gap < SAME_WITHIN)).any(1).argmax())
            raise ValueError(
                f"Episode {rows[place]}, played again in {env_name}, is {gap[place].max():.2g} off the stored one; "
                "it was played in another environment or with another version of mujoco. Collect the episodes again."
            )
        if {"contact", "heuristic"} & set(labels):
            part.contact = again.contact
        part.label |= {name: again.label[name] & part.valid for name in labels if name in again.label}
        if "heuristic" in labels:
            add_heuristic(part)
        parts.append(part)
        progress(first + len(rows))
    labelled = concatenate(parts)
    labelled.metadata = episodes.metadata
    return labelled


def compare_labels(episodes: Episodes) -> list[dict[str, Any]]:
    """One row per pair of labels: the shares of the real steps with `both`, `only_first`, `only_second`, `neither`."""
    found = episodes.labels()
    labels = {name: found[name][episodes.valid] for name in LABELS if name in found}
    if len(labels) < 2:
        raise ValueError(f"A comparison needs two labels; these episodes have {', '.join(labels) or 'none'}.")
    rows = []
    for (name, first), (other, second) in combinations(labels.items(), 2):
        shares = {"both": first & second, "only_first": first & ~second, "only_second": ~first & second}
        shares["neither"] = ~first & ~second
        row = {"first": name, "second": other, "states": len(first)}
        rows.append(row | {case: float(where.mean()) for case, where in shares.items()})
    return rows


def find_disagreements(episodes: Episodes, first: str, second: str, count: int) -> list[tuple[int, int]]:
    """States (episode, time) where two labels differ, one per episode, equally many of both kinds if possible."""
    labels = episodes.labels()
    differing = (labels[first] & ~labels[second], ~labels[first] & labels[second])
    sides = [np.argwhere(only & episodes.valid) for only in differing]
    sides = [places[np.unique(places[:, 0], return_index=True)[1]] for places in sides]  # the first of each episode
    ours = min(len(sides[0]), max(count - count // 2, count - len(sides[1])))
    chosen: list[tuple[int, int]] = []
    for places, share in zip(sides, (ours, min(len(sides[1]), count - ours)), strict=True):
        spread = np.linspace(0, len(places) - 1, share).astype(int)
        chosen += [(int(episode), int(time)) for episode, time in places[spread]]
    return chosen
