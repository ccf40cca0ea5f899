"""What is said where a world fails: an error of its own, or numbers that are none."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray


class EnvError(RuntimeError):
    """A world failed; the sentence names the world, what was played, and the error."""


def env_name(env: VectorEnv[Any, Any, Any]) -> str:
    """The id of the worlds, or else the name of their class."""
    inner: Any = getattr(env, "envs", [env])[0].unwrapped
    return str(inner.spec.id if inner.spec is not None else type(inner).__name__)


def raised(env: VectorEnv[Any, Any, Any], error: Exception, what: str) -> EnvError:
    """An error of a world's own as a sentence that says in what it happened."""
    text = " ".join(str(error).split()) or "no more is said."
    return EnvError(f"{env_name(env)} raised {type(error).__name__} in {what}: {text}")


def all_finite(reward: NDArray[Any]) -> bool:
    """Whether all rewards [W] are numbers; a dot product is the fastest way to look at all (it may err towards no)."""
    return math.isfinite(np.dot(reward, reward))


def check_numbers(
    env: VectorEnv[Any, Any, Any],
    parts: Mapping[str, NDArray[Any]],
    action: NDArray[Any],
    episode: Callable[[int], str],
    reward: NDArray[Any] | None = None,
    step: NDArray[Any] | int = 0,
) -> None:
    """Raises where worlds gave NaN or infinity in a part [E, T + 1, D] or as the reward [E] of a step.

    What follows an action [E, T, A] of that kind is not the worlds' fault. `episode` names each of the E episodes.
    """
    looked = dict(parts)
    if reward is not None:
        looked["reward"] = np.zeros((len(action), action.shape[1] + 1, 1))
        looked["reward"][np.arange(len(action)), step, 0] = reward
    for name, numbers in looked.items():
        if np.isfinite(numbers).all():
            continue
        bad = ~np.isfinite(numbers)
        for row in bad.any((1, 2)).nonzero()[0]:
            time = int(bad[row].any(1).argmax())
            if np.isfinite(action[row, :time]).all():
                column = int(bad[row, time].argmax())
                what = "as its reward" if name == "reward" else f"in column {column} of {name}"
                when = f"after step {time}" if time else "at the start"
                raise EnvError(
                    f"{env_name(env)} gave {numbers[row, time, column]} {what} {when} of {episode(row)}; expected "
                    "finite numbers: nothing can be learned from others, so mend the world."
                )
