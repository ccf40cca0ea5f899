"""A small task of the benchmark, without a simulator, and rows of results."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from butfor.benchmarks.environments import Task

REACH = 0.3


class Nudge:
    """A hand at column 0 nudges a ball at column 1: while it is within reach, the ball moves with the action."""

    horizon = 20
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, seed: int) -> NDArray[np.float32]:
        self.state = np.random.default_rng(seed).uniform(-1, 1, 2)
        return self._obs()

    def step(self, action: Any) -> NDArray[np.float32]:
        hand, ball = self.state
        push = 0.1 * float(action[0])
        self.state = np.array([hand + push, ball + (push if abs(hand - ball) < REACH else 0.0)])
        return self._obs()

    def _obs(self) -> NDArray[np.float32]:
        return self.state.astype(np.float32)

    def save(self) -> NDArray[np.float64]:
        return self.state.copy()

    def restore(self, saved: NDArray[np.float64]) -> None:
        self.state = saved.copy()

    def object_state(self) -> NDArray[np.float64]:
        return self.state[1:].copy()

    def contact(self) -> bool:
        return bool(abs(self.state[0] - self.state[1]) < REACH)

    def scripted(self, rng: np.random.Generator) -> NDArray[np.float32]:
        return np.sign(self.state[1:] - self.state[:1]).astype(np.float32)


NUDGE = Task(
    name="nudge", package="butfor", held_out=False, object=[1], hand_position=[0], object_position=[1],
    self_moving=False, open=Nudge,
)  # fmt: skip


def unit(
    task: str = "nudge",
    size: int = 15_000,
    seed: int = 0,
    auc: float = 0.98,
    ap: float = 0.95,
    distance: float | None = 0.9,
    moving: float | None = None,
    seconds: float = 10.0,
    right: bool = True,
) -> dict[str, Any]:
    """The results of one unit; AUC and AP of the distance are the same."""
    detectors = {"cai": {"auc": auc, "ap": ap, "f1": 0.9, "threshold": 0.1}}
    if distance is not None:
        detectors["distance"] = {"auc": distance, "ap": distance, "f1": 0.8, "threshold": -0.1}
    return {
        "task": task, "size": size, "seed": seed, "held_out": False, "self_moving": moving is not None,
        "transitions": size, "states": 100, "base_rate": 0.25, "detectors": detectors,
        "moving": None if moving is None else {"share": 0.5, "detectors": {"cai": detectors["cai"] | {"auc": moving}}},
        "disagreement": None if distance is None else {"share": 0.1, "states": 10, "cai_right": 8},
        "diagnosis": {"trusted": right == (auc >= 0.95), "right": right, "problems": []},
        "fit_seconds": 1000.0, "fit_cpu_seconds": seconds, "score_seconds": 1.0,
        "peak_memory": 400.0, "memory_before": 300.0, "commit": "abc",
    }  # fmt: skip
