"""Episodes of unequal lengths in several forms, and what reading them must give."""

from typing import Any

import numpy as np
from gymnasium import spaces

from butfor.datasets.recording import Recording

LENGTHS = (3, 1, 4)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float64)


def some_episodes(lengths: tuple[int, ...] = LENGTHS) -> tuple[list[Any], list[Any]]:
    """Observations [T + 1, 3] and actions [T, 2] of each episode, all numbers different."""
    random = np.random.default_rng(0)
    return [random.normal(size=(n + 1, 3)) for n in lengths], [random.uniform(-1, 1, (n, 2)) for n in lengths]


def same(found: Recording, observations: list[Any], actions: list[Any]) -> None:
    """The recording holds these episodes, in this order."""
    np.testing.assert_array_equal(found.observation, np.concatenate(observations))
    np.testing.assert_array_equal(found.action, np.concatenate(actions))
    assert found.length.tolist() == [len(one) for one in actions]


def flat(observations: list[Any], actions: list[Any]) -> dict[str, Any]:
    """One row a step, as D4RL has it."""
    rows = {"observations": [one[:-1] for one in observations], "actions": actions}
    rows |= {"next_observations": [one[1:] for one in observations]}
    rows |= {"timeouts": [np.arange(len(one)) == len(one) - 1 for one in actions]}
    return {name: np.concatenate(parts) for name, parts in rows.items()} | {
        "terminals": np.zeros(sum(map(len, actions)), bool)
    }
