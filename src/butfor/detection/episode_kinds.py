"""Kinds of robot episodes, by whether the gripper touched the object, and CAI in each kind."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.envs.facts import BUILT_IN
from butfor.rollouts.episodes import Episodes

Flags = NDArray[np.bool_]
BRIEF = 5  # steps: the longest touch that counts as brief
FAR = 0.05  # metres that a manipulated object has moved


def episode_kinds(episodes: Episodes) -> tuple[Flags, Flags, Flags]:
    """Which episodes [E] have no contact, only a brief one well before the end, and a manipulation.

    In a manipulation the object is touched for more than `BRIEF` steps and ends more than `FAR` from its start.
    """
    if episodes.contact is None:
        raise ValueError("The episodes have no contacts; collect them with the label 'contact'.")
    contact = episodes.contact & episodes.valid
    touches = contact.sum(1)
    last = np.where(contact, np.arange(contact.shape[1]), -1).max(1)
    brief = (touches > 0) & (last - contact.argmax(1) < BRIEF) & (last < episodes.length - BRIEF)
    return touches == 0, brief, (object_way(episodes) > FAR) & (touches > BRIEF)


def object_way(episodes: Episodes) -> NDArray[Any]:
    """Distance of the object at the end of each episode from where it was at the start [E]."""
    end = episodes.achieved_goal[np.arange(len(episodes)), episodes.length]
    way: NDArray[Any] = np.linalg.norm(end - episodes.achieved_goal[:, 0], axis=1)
    return way


def cai_by_kind(episodes: Episodes, cai: NDArray[Any], env: str) -> list[dict[str, Any]]:
    """Mean CAI by kind of episode and step, with its deviation over seeds; CAI [S, N] of the real steps is given.

    The list is empty for environments without a table and for episodes without contacts.
    """
    if BUILT_IN[env].table is None or episodes.contact is None:
        return []
    untouched, brief, handled = (kind[:, None] & episodes.valid for kind in episode_kinds(episodes))
    contact = episodes.contact & episodes.valid
    label = episodes.label["exact"] & episodes.valid
    around = contact.copy()
    around[:, :-1] |= contact[:, 1:]
    around[:, 1:] |= contact[:, :-1]
    steps = {
        "no contact": untouched,
        "manipulation": handled,
        "around a brief touch": brief & around,
        "the rest of these episodes": brief & ~around,
        "influenced, in contact": label & contact,
        "influenced, no contact": label & ~contact,
    }
    rows = []
    for title, chosen in steps.items():
        if chosen.any():
            means = np.asarray(cai, dtype=np.float64)[:, chosen[episodes.valid]].mean(1)
            spread = {"mean": float(means.mean()), "std": float(means.std())}
            rows.append({"title": title, "steps": int(chosen.sum()), "set": "test", "cai": spread})
    return rows
