"""The physics and the label of the slide environment, for states and actions that broadcast."""

from typing import Any

import numpy as np
import numpy.typing as npt

from butfor.envs.slide import outcome


def step(state: npt.ArrayLike, action: npt.ArrayLike) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Step states [..., 4] with actions [..., 1] -> next states [..., 4], contacts [...]."""
    before = np.asarray(state, np.float32)
    push = np.asarray(action, np.float32)
    shape: Any = np.broadcast_shapes(before.shape[:-1], push.shape[:-1])
    return outcome(np.broadcast_to(before, (*shape, 4)), np.broadcast_to(push, (*shape, 1)))[:2]


def influence(state: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Exact labels [...] of states [..., 4]."""
    before = np.asarray(state, np.float32)
    return outcome(before, np.zeros_like(before[..., :1]))[2]
