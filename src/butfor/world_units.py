"""What is said where the numbers of a user's world are too small, or too far from zero, to be learned from."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

SMALLEST = 0.01  # the agent's normaliser divides by no smaller deviation
TREMBLING = 1e-6  # smaller moves are those of things at rest
ADVICE = "give the world other units by gymnasium.wrappers.TransformObservation, so that they vary by about 1"


def unit_remarks(obs: NDArray[np.float64], length: NDArray[np.int64]) -> tuple[str, ...]:
    """Sentences on columns of observations [T, W, D], as W worlds gave them in episodes of these lengths [W].

    A column is small where it varies, by less than `SMALLEST`; it is coarse where the rounding to float32 is more than
    1 % of the deviation of its moves.
    """
    shown = np.arange(len(obs))[:, None] < length
    spread, size = obs[shown].std(0), np.abs(obs[shown]).max(0)
    rounding = np.spacing(size.astype(np.float32)).astype(np.float64)
    small = (spread > 64 * rounding) & (spread < SMALLEST)
    remarks = []
    if small.any():
        remarks.append(
            f"columns {_named(small.nonzero()[0])} of the observation vary by less than {SMALLEST:g} in random "
            f"episodes, which agents and models hardly see; if they matter, {ADVICE}"
        )
    if shown[1:].any():
        moves = np.diff(obs, axis=0)[shown[1:]].std(0)
        coarse = (moves > np.maximum(TREMBLING, 1e-4 * spread)) & (rounding / 2 > 0.01 * moves)
        if coarse.any():
            remarks.append(
                f"columns {_named(coarse.nonzero()[0])} of the observation are so large that float32 rounds their "
                f"moves; if they matter, subtract what is common to all, or {ADVICE}"
            )
    return tuple(remarks)


def _named(columns: Iterable[int]) -> str:
    return ", ".join(map(str, columns))
