"""What is said where the units of a user's world, or its rewards, are too small or too large to be learned from."""

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


def reward_remarks(
    rewards: tuple[float, float], target_range: tuple[float, float] | None, discount: float
) -> tuple[str, ...]:
    """A sentence where the discounted sum of such rewards (lowest, highest) can leave the range of the critic."""
    if target_range is None:
        return ()
    low, high = (reward / (1 - discount) for reward in rewards)
    room = 1e-6 * (target_range[1] - target_range[0])
    if low >= target_range[0] - room and high <= target_range[1] + room:
        return ()
    return (
        f"rewards of random episodes, less that of a reached goal, lie between {rewards[0]:.3g} and {rewards[1]:.3g}; "
        f"with a discount of {discount:g} their sums can reach {low:.3g} to {max(high, 0):.3g}, but the critic's "
        f"targets are clipped to {target_range[0]:g} to {target_range[1]:g}: give another range by "
        "--agent.target-range LOW HIGH, or other rewards",
    )


def _named(columns: Iterable[int]) -> str:
    return ", ".join(map(str, columns))
