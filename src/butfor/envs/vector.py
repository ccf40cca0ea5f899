"""What the built-in environments share: resets, seeds, time limits, autoreset, infos, rewards, and single environments.

A built-in environment is a subclass of `GoalVectorEnv`, which keeps the states of all its environments in arrays.
`SingleGoalEnv` makes an ordinary Gymnasium environment of it.
"""

import os
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Flags = npt.NDArray[np.bool_]
Frame = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Observation = dict[str, npt.NDArray[Any]]
Info = dict[str, Any]

STEP_LABELS = ("exact", "contact")  # that an environment can report in the info of a step


class GoalVectorEnv(VectorEnv[Observation, Any, npt.NDArray[Any]]):
    """Many goal-conditioned environments stepped at once, in each of Gymnasium's autoreset modes.

    Environment i with a seed does exactly what a single environment does with that seed. A subclass has the first
    three attributes, sets the other two with the spaces in `_set_spaces`, and gives `_start` and `_advance`.
    """

    metadata: dict[str, Any]
    compute_reward: Callable[..., Any]  # see `sparse_reward`
    achieved_goal: slice  # columns of the observation
    _observation: npt.NDArray[Any]  # [N, D], changed in place by every step
    _goal: npt.NDArray[Any]  # [N, G]

    def __init__(
        self,
        num_envs: int,
        max_episode_steps: int | None,  # time limit; None or -1 for none
        render_mode: str | None,  # "rgb_array" or None
        autoreset_mode: AutoresetMode | str,
        labels: Sequence[str],  # of `STEP_LABELS`, which `info` then reports
    ) -> None:
        """Make environments that must be reset before their first step."""
        if num_envs < 1 or (max_episode_steps is not None and max_episode_steps < 1 and max_episode_steps != -1):
            given = f"num_envs is {num_envs} and max_episode_steps {max_episode_steps}"
            raise ValueError(f"{given}; expected at least 1 (max_episode_steps None or -1 for no limit).")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; expected 'rgb_array' or None.")
        if not set(labels) <= set(STEP_LABELS):
            raise ValueError(f"labels is {labels!r}; expected any of {', '.join(STEP_LABELS)}.")
        self.num_envs = num_envs
        self.max_episode_steps = None if max_episode_steps == -1 else max_episode_steps
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]
        self._started = np.zeros(num_envs, dtype=np.bool_)
        self._finished = np.zeros(num_envs, dtype=np.bool_)
        self._elapsed = np.zeros(num_envs, dtype=np.int64)

    def _set_spaces(self, observation: spaces.Box, goal: spaces.Box, action: spaces.Box) -> None:
        """Set the spaces of one environment and of the batch."""
        self.single_observation_space = spaces.Dict(achieved_goal=goal, desired_goal=goal, observation=observation)
        self.single_action_space = action
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(action, self.num_envs)

    def _start(self, envs: Indices, generators: Sequence[np.random.Generator]) -> None:
        """Draw and set the initial states and goals of some environments, each from its own generator."""
        raise NotImplementedError

    def _advance(
        self, action: npt.NDArray[np.float32], envs: Indices | slice
    ) -> tuple[dict[str, npt.NDArray[Any]], Flags]:
        """Step some environments with actions [n, A]; return values for `info` and which episodes are broken off."""
        raise NotImplementedError

    def _observe(self) -> Observation:
        """Return the observations of all environments, in new arrays."""
        return {
            "observation": self._observation.copy(),
            "achieved_goal": self._observation[:, self.achieved_goal].copy(),
            "desired_goal": self._goal.copy(),
        }

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Info | None = None
    ) -> tuple[Observation, Info]:
        """Start new episodes and return all observations, with an empty info.

        `seed` is one seed per environment, or that of the first (the others count up); None continues the streams.
        Without options["reset_mask"] (bool [N]) all environments are reset, else the others keep their state.
        """
        self._check_usable("reset", started=True)
        if isinstance(seed, int | np.integer):
            seed = range(int(seed), int(seed) + self.num_envs)
        seeds = [None] * self.num_envs if seed is None else list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"Got {len(seeds)} seeds for {self.num_envs} environments; expected one (or None) each.")
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_)))
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            given = f"reset_mask has dtype {mask.dtype} and shape {mask.shape}"
            raise ValueError(f"{given}; expected a bool array [{self.num_envs}] with at least one True.")
        if not (mask | self._started).all():
            raise ResetNeeded("The reset_mask of the first reset() leaves environments out; reset all of them first.")
        for env in np.flatnonzero(mask):
            if (one := seeds[env]) is not None:
                self._generators[env] = seeding.np_random(index(one))[0]
        self._restart(mask)
        return self._observe(), {}

    def step(self, actions: npt.ArrayLike) -> tuple[Observation, npt.NDArray[Any], Flags, Flags, Info]:
        """Step all environments with actions [N, A], which are clipped to the bounds.

        Finished environments are reset instead (NEXT_STEP) or refused (DISABLED). Rewards, terminated (never) and
        truncated are [N]; infos have `is_success` and the labels.
        """
        self._check_usable("step", self._started.all())
        action = self._check_actions(actions)
        resetting = self._finished.copy()
        if self.autoreset_mode is AutoresetMode.DISABLED and resetting.any():
            raise ResetNeeded(
                f"The episodes of environments {np.flatnonzero(resetting).tolist()} have ended; reset them first with "
                "reset(options={'reset_mask': terminated | truncated})."
            )
        if not resetting.any():
            values, broken = self._advance(action, slice(None))
        else:
            values = {}
            broken = np.zeros_like(resetting)
            if len(envs := np.flatnonzero(~resetting)):
                found, broken[envs] = self._advance(action[envs], envs)
                for name, value in found.items():
                    values[name] = np.zeros(self.num_envs, dtype=value.dtype)
                    values[name][envs] = value
            self._restart(resetting)
        self._elapsed = np.where(resetting, 0, self._elapsed + 1)
        obs = self._observe()
        rewards = np.where(resetting, np.float32(0), self.compute_reward(obs["achieved_goal"], obs["desired_goal"]))
        values["is_success"] = rewards == 0
        truncated = (self._elapsed >= (self.max_episode_steps or np.inf)) | broken
        infos = _masked(values, ~resetting)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and truncated.any():
            infos = _masked(values, ~truncated) | self._final(obs, values, truncated)
            self._restart(truncated)
            obs = self._observe()
        else:
            self._finished = truncated.copy()
        return obs, rewards, np.zeros_like(truncated), truncated, infos

    def _restart(self, mask: Flags) -> None:
        """Start new episodes in the environments of the mask."""
        chosen = np.flatnonzero(mask)
        self._start(chosen, [self._generators[env] for env in chosen])
        self._elapsed[chosen] = 0
        self._started[chosen] = True
        self._finished[chosen] = False

    def _final(self, obs: Observation, values: dict[str, npt.NDArray[Any]], finished: Flags) -> Info:
        """Return final_obs and final_info of environments that are reset in the step that finished them."""
        final_obs = np.full(self.num_envs, None, dtype=object)
        for env in np.flatnonzero(finished):
            final_obs[env] = {name: value[env] for name, value in obs.items()}
        final = {"final_obs": final_obs, "final_info": _masked(values, finished)}
        return final | {f"_{name}": finished.copy() for name in final}

    def _check_usable(self, verb: str, started: Any) -> None:
        """Refuse to use environments that were closed or never reset."""
        if self.closed:
            raise ClosedEnvironmentError(f"{verb}() was called after close(); make a new environment.")
        if not started:
            raise ResetNeeded(f"{verb}() was called before reset(); call reset() first.")

    def _check_actions(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return the actions as float32 [N, A] within the bounds; refuse wrong shapes and NaN."""
        array = np.asarray(values, dtype=np.float32)
        expected = self.action_space.shape
        if array.shape != expected:
            raise ValueError(f"The actions have shape {array.shape}; expected {expected}.")
        bad = np.flatnonzero(np.isnan(array).any(axis=1))
        if len(bad):
            raise ValueError(f"The actions of environments {bad.tolist()} contain NaN; check what computed them.")
        return np.clip(array, -1, 1)


class SingleGoalEnv(gymnasium.Env[Observation, Any]):
    """One environment: a vector environment of size one. `gymnasium.make` adds the time limit."""

    vector_class: type[GoalVectorEnv]

    def __init__(self, **options: Any) -> None:
        """Make an environment; `options` are those of the vector environment."""
        batch: dict[str, Any] = {"num_envs": 1, "max_episode_steps": None, "autoreset_mode": AutoresetMode.DISABLED}
        self.vector: Any = self.vector_class(**batch, **options)
        self.render_mode = self.vector.render_mode
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        """Start an episode with a new initial state and goal."""
        super().reset(seed=seed)
        self.vector._generators = [self.np_random]
        obs, _ = self.vector.reset()
        return {name: value[0] for name, value in obs.items()}, {}

    def step(self, action: npt.ArrayLike) -> tuple[Observation, float, bool, bool, Info]:
        """Make one step; it is truncated only where the physics failed."""
        if np.shape(action) != self.action_space.shape:
            raise ValueError(f"The action has shape {np.shape(action)}; expected {self.action_space.shape}.")
        obs, rewards, _, truncated, infos = self.vector.step(np.asarray(action)[None])
        info = {name: value[0].item() for name, value in infos.items() if not name.startswith("_")}
        return {name: value[0] for name, value in obs.items()}, float(rewards[0]), False, bool(truncated[0]), info

    def render(self) -> Frame | None:
        """Return the current picture, or None without a render mode."""
        frames = self.vector.render()
        return frames[0] if frames else None

    def close(self) -> None:
        """Close the environment; further calls are refused."""
        self.vector.close()


def sparse_reward(achieved_goal: Any, desired_goal: Any, info: Any = None, *, size: int, radius: float) -> Any:
    """Compute rewards [...] of goals [..., size], arrays or tensors: 0 within the radius, else -1; `info` is unused."""
    for name, goal in (("achieved", achieved_goal), ("desired", desired_goal)):
        if tuple(getattr(goal, "shape", ()))[-1:] != (size,):  # it would broadcast into nonsense
            given = f"shape {tuple(goal.shape)}" if hasattr(goal, "shape") else f"type {type(goal).__name__}"
            raise ValueError(f"The {name} goal has {given}; expected a numpy array or torch tensor [..., {size}].")
    difference = achieved_goal - desired_goal
    distance = abs(difference)[..., 0] if size == 1 else (difference**2).sum(-1) ** 0.5
    reached = distance <= radius
    return (reached.astype(np.float32) if hasattr(reached, "astype") else reached.float()) - 1


def processors() -> int:
    """Return how many processors of the machine this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """Return the number of threads in BUTFOR_THREADS, or all processors where it is not set."""
    given = os.environ.get("BUTFOR_THREADS") or str(processors())
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"BUTFOR_THREADS is {given!r}; expected a whole number of at least 1, or leave it unset.")
    return int(given)


def _masked(values: dict[str, npt.NDArray[Any]], mask: Flags) -> Info:
    """Return Gymnasium's vector infos: each array, zero outside the mask, and the mask under "_name"."""
    if not mask.any():
        return {}
    masks = {f"_{name}": mask.copy() for name in values}
    return {name: value * mask for name, value in values.items()} | masks
