"""Several copies of an environment that can be put back into saved states, for `why.py`.

Built-in environments are stepped as a batch. Others are single environments that `butfor.fork` saves one by one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from butfor.envs import facts_of, fork, make_vector_env, restore
from butfor.rollouts.play import Observation, episode_steps
from butfor.spaces.actions import ActionLaw

SUCCESS = ("is_success", "success")  # names of it in the info of a step
MODEL_HINT = (
    "Fit a model of pairs (`Influence.fit` with `GraphConfig`) on its episodes, save it, and use "
    "`butfor why RUN|EPISODES --influence FILE`."
)


class Simulations(Protocol):
    """`count` copies of one environment."""

    count: int
    steps: int  # the time limit
    law: ActionLaw  # of random actions

    def reset(self, seed: int) -> Observation:
        """Begin the same episode in all copies."""

    def step(self, actions: NDArray[Any]) -> tuple[Observation, NDArray[np.bool_]]:
        """Step all copies: their observations, and where the episode is a success."""

    def save(self, same: bool) -> Any:
        """Save the states of all copies, which are the `same` or not."""

    def restore(self, saved: Any) -> Observation:
        """Put all copies back."""

    def close(self) -> None:
        """Close all copies."""


def make_simulations(name: str, count: int) -> Simulations:
    """Make copies of an environment whose states can be saved.

    Raises:
        ValueError: its states cannot be saved.
    """
    if not name:
        raise ValueError(
            "The file does not name the environment of its episodes (`env` in its metadata), so they cannot be "
            f"replayed. Write it, or judge by a model. {MODEL_HINT}"
        )
    env = make_vector_env(name, count)
    if facts_of(name) is not None:
        return BuiltIn(env)
    copies = getattr(env, "envs", None)
    try:
        if copies is None:
            raise TypeError
        copies[0].reset(seed=0)
        fork(copies[0])
    except TypeError:
        env.close()
        raise ValueError(
            f"{name} is neither built in nor simulated by MuJoCo, so its states cannot be saved. {MODEL_HINT}"
        ) from None
    return Singles(copies, episode_steps(env))


class BuiltIn:
    """A built-in vector environment."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.count = env.num_envs
        self.steps = episode_steps(env)
        self.law = ActionLaw.from_space(env.single_action_space)
        self.obs: Observation = {}

    def reset(self, seed: int) -> Observation:
        """Begin the same episode in all copies."""
        self.obs = self.env.reset(seed=[seed] * self.count)[0]
        return self.obs

    def step(self, actions: NDArray[Any]) -> tuple[Observation, NDArray[np.bool_]]:
        """Step all copies; success is the reward of a reached goal."""
        self.obs, reward, *_ = self.env.step(actions)
        self.env._finished[:] = False  # whoever steps decides when the episode ends
        return self.obs, np.asarray(reward) == 0

    def save(self, same: bool) -> Any:
        """Save the whole batch."""
        return fork(self.env), self.obs

    def restore(self, saved: Any) -> Observation:
        """Put the batch back."""
        state, self.obs = saved
        restore(self.env, state)
        self.env._finished[:] = False
        return self.obs

    def close(self) -> None:
        """Close the batch."""
        self.env.close()


class Singles:
    """Environments of Gymnasium with MuJoCo, one by one. A copy whose episode has ended stays as it is."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], steps: int) -> None:
        self.envs = envs
        self.count = len(envs)
        self.steps = steps
        self.law = ActionLaw.from_space(envs[0].action_space)
        self.seen: list[Mapping[str, NDArray[Any]]] = []
        self.over = [False] * self.count

    def reset(self, seed: int) -> Observation:
        """Begin the same episode in all copies."""
        self.seen = [_as_mapping(env.reset(seed=seed)[0]) for env in self.envs]
        self.over = [False] * self.count
        return self._observe()

    def step(self, actions: NDArray[Any]) -> tuple[Observation, NDArray[np.bool_]]:
        """Step all copies whose episodes go on; success is what they report."""
        success = np.zeros(self.count, dtype=np.bool_)
        for place, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            if self.over[place]:
                continue
            obs, _, terminated, truncated, info = env.step(action)
            self.seen[place] = _as_mapping(obs)
            self.over[place] = bool(terminated or truncated)
            success[place] = any(bool(info.get(name, False)) for name in SUCCESS)
        return self._observe(), success

    def save(self, same: bool) -> Any:
        """Save one state if they are the same, else all of them."""
        states = [fork(self.envs[0])] * self.count if same else [fork(env) for env in self.envs]
        return states, list(self.seen), list(self.over)

    def restore(self, saved: Any) -> Observation:
        """Put each copy back."""
        states, seen, over = saved
        for env, state in zip(self.envs, states, strict=True):
            restore(env, state)
        self.seen, self.over = list(seen), list(over)
        return self._observe()

    def close(self) -> None:
        """Close each copy."""
        for env in self.envs:
            env.close()

    def _observe(self) -> Observation:
        return {name: np.stack([np.asarray(one[name]) for one in self.seen]) for name in self.seen[0]}


def _as_mapping(obs: Any) -> Mapping[str, NDArray[Any]]:
    """The observation of an environment with goals or without."""
    return obs if isinstance(obs, Mapping) else {"observation": np.ravel(obs)}
