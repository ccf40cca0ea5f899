"""The paper's heuristic label of the Fetch environments: can the gripper reach the object within one step?

The label is whether an ellipsoid around the gripper contains the object's centre. Its semi-axes are one step's movement
from there (looked up in `reach.npz`, which `tools/build_reach_table.py` builds) plus the sizes of fingers and object.
Labelling needs no mujoco.
"""

import functools
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import KDTree

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

REACH_TABLE = resources.files("butfor.envs") / "reach.npz"
GRIP = slice(0, 3)  # columns of an observation
THING = slice(3, 6)
FINGERS = slice(9, 11)
FINGER_VELOCITIES = slice(23, 25)
FINGER_HALF_SIZE = (0.0135, 0.007, 0.0385)  # as the gripper holds them, pointing down
OBJECT_HALF_SIZE = 0.025
FINGER_OFFSET = 0.0407  # of a closed finger's reach along y
LARGEST_OPENING = 0.054
EXTRA_HEIGHT = 0.02


def heuristic_label(observation: npt.ArrayLike, contact: npt.ArrayLike | None = None) -> Flags:
    """Compute the heuristic label [...]: sum(((object - grip) / semi-axis)^2) <= 1 before a step, or contact in it.

    `observation` is [..., 25 or more], of any Fetch environment; `contact` is bool [...] of the steps taken from there.
    """
    seen = np.asarray(observation, dtype=np.float64)
    bad = np.count_nonzero(~np.isfinite(seen))
    if seen.ndim < 1 or seen.shape[-1] < FINGER_VELOCITIES.stop or bad:
        raise ValueError(
            f"observation has shape {seen.shape} and {bad} values that are NaN or infinite; expected finite "
            f"observations of a Fetch environment [..., {FINGER_VELOCITIES.stop} or more], not their dictionary."
        )
    inside = (((seen[..., THING] - seen[..., GRIP]) / semi_axes(seen)) ** 2).sum(axis=-1) <= 1
    touched = np.zeros_like(inside) if contact is None else np.asarray(contact)
    if touched.dtype != np.bool_ or touched.shape != inside.shape:
        given = f"contact has dtype {touched.dtype} and shape {touched.shape}"
        raise ValueError(f"{given}; expected bool {inside.shape}: leave out the last observation of each episode.")
    return np.asarray(inside | touched)


def semi_axes(seen: Floats) -> Floats:
    """Compute the ellipsoid's semi-axes [..., 3]: movement + fingers + object + (0, opening, 0.02), in metres."""
    tree, movement = _table()
    _, nearest = tree.query(seen[..., GRIP])
    # Velocities in an observation are already multiplied by the length of a step.
    finger = (seen[..., FINGERS] + seen[..., FINGER_VELOCITIES]).max(axis=-1)
    axes = movement[nearest] + FINGER_HALF_SIZE + OBJECT_HALF_SIZE
    axes[..., 1] += np.clip(finger + FINGER_OFFSET, 0.0, LARGEST_OPENING)
    axes[..., 2] += EXTRA_HEIGHT
    return np.asarray(axes)


def load_table(source: Any = REACH_TABLE) -> tuple[Floats, Floats]:
    """Load the starts [n, 3] and movements [n, 3] of a look-up table; by default the one of the package."""
    with source.open("rb") as file, np.load(file, allow_pickle=False) as table:
        starts, movements = (
            np.cumsum(table[name], axis=1, dtype=np.int16).T * float(table[f"{name}_unit"])
            for name in ("start", "movement")
        )
    return np.ascontiguousarray(starts), np.ascontiguousarray(movements)


@functools.cache
def _table() -> tuple[Any, Floats]:
    """Return the starts as a KD-tree, and the movements [n, 3]."""
    starts, movements = load_table()
    return KDTree(starts), movements
