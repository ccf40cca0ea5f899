"""Transitions of an environment with a hand that carries an object: where the action matters is known exactly.

Columns of the observation: the hand (0, 1), a joint angle (2), the object (3, 4), and something that
drifts by itself (5, 6).
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]

HAND, ANGLE, OBJECT, DRIFTER = [0, 1], 2, [3, 4], [5, 6]
STEP = 0.1  # of the hand, per unit of action in [-1, 1]
RADIUS = 0.15  # the hand carries the object if it is nearer than this after its step
NOISE = 0.001  # of the object's change


def states(rows: int, seed: int) -> Array:
    """Positions uniform in [-0.5, 0.5], and the angle of an arm that ends at the hand."""
    obs = np.random.default_rng(seed).uniform(-0.5, 0.5, (rows, 7))
    obs[:, ANGLE] = np.arctan2(obs[:, 1] + 1, obs[:, 0])
    return obs


def carried(obs: Array, action: Array) -> Labels:
    """Whether the hand is at the object after its step: [N]."""
    hand = obs[:, HAND] + STEP * action
    return np.asarray(np.linalg.norm(obs[:, OBJECT] - hand, axis=1) < RADIUS)


def can_be_carried(obs: Array) -> Labels:
    """Whether some action brings the hand to the object, which is where the action matters: [N]."""
    gap = np.maximum(np.abs(obs[:, OBJECT] - obs[:, HAND]) - STEP, 0)  # to the nearest point the hand can reach
    return np.asarray(np.linalg.norm(gap, axis=1) < RADIUS)


def transitions(rows: int, seed: int) -> tuple[Array, Array, Array]:
    """obs [N, 7], action [N, 2], next_obs [N, 7]; the object moves with the hand that carries it."""
    random = np.random.default_rng(seed + 1000)
    obs, action = states(rows, seed), random.uniform(-1, 1, (rows, 2))
    next_obs = obs.copy()
    next_obs[:, HAND] += STEP * action
    next_obs[:, ANGLE] = np.arctan2(next_obs[:, 1] + 1, next_obs[:, 0])
    next_obs[:, OBJECT] += STEP * action * carried(obs, action)[:, None] + NOISE * random.normal(size=(rows, 2))
    next_obs[:, DRIFTER] += 0.05 * random.normal(size=(rows, 2))
    return obs, action, next_obs
