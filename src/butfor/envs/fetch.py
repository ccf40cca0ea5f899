"""FetchPush and FetchPickAndPlace: N worlds of one model, stepped by MuJoCo's native threads.

For the same seeds and float32 actions a world does what gymnasium-robotics' v4 world does, to 1e-12. Actions are
taken as float32, the dtype of the action space, so that stored actions replay exactly.
"""

from collections.abc import Sequence
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

from butfor.envs.fetch_expert import scripted_action
from butfor.envs.fetch_model import TASKS, FetchState, Floats, draw_start
from butfor.envs.fetch_physics import FetchPhysics

__all__ = ["TASKS", "FetchEnv", "FetchPhysics", "FetchState", "FetchVectorEnv", "reward", "scripted_action"]

Flags = npt.NDArray[np.bool_]
Frame = npt.NDArray[np.uint8]
Observation = dict[str, Floats]

MAX_EPISODE_STEPS = 50
GOAL_RADIUS = 0.05
METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 25}


def reward(achieved_goal: Any, desired_goal: Any, info: Any = None) -> Any:
    """0 within 0.05 of the goal, else -1, float32; [..., 3] numpy arrays or torch tensors -> [...]; info is unused."""
    for name, goal in (("achieved", achieved_goal), ("desired", desired_goal)):
        if tuple(getattr(goal, "shape", ()))[-1:] != (3,):
            given = f"shape {tuple(goal.shape)}" if hasattr(goal, "shape") else f"type {type(goal).__name__}"
            raise ValueError(f"The {name} goal has {given}; expected a numpy array or torch tensor [..., 3].")
    success = ((achieved_goal - desired_goal) ** 2).sum(-1) ** 0.5 <= GOAL_RADIUS
    return (success.astype(np.float32) if hasattr(success, "astype") else success.float()) - 1


class FetchVectorEnv(VectorEnv[Observation, Any, npt.NDArray[Any]]):
    """Many Fetch worlds stepped at once; info holds is_success, blow_ups and, if asked for, contact."""

    compute_reward = staticmethod(reward)

    def __init__(
        self,
        task: str = "pick_and_place",
        num_envs: int = 1,
        max_episode_steps: int | None = MAX_EPISODE_STEPS,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        contacts: bool = False,
        threads: int = 0,
        width: int = 480,
        height: int = 480,
    ) -> None:
        """Make worlds that have to be reset before their first step.

        `contacts` measures whether a finger touches the object, at some cost; `threads` 0 takes all processors;
        `max_episode_steps` None or -1 never truncates.
        """
        if num_envs < 1 or (max_episode_steps is not None and max_episode_steps < 1 and max_episode_steps != -1):
            raise ValueError(
                f"num_envs is {num_envs} and max_episode_steps {max_episode_steps}; expected both to be at least 1 "
                "(max_episode_steps None or -1 for no limit)."
            )
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; expected 'rgb_array' or None.")
        self.num_envs = num_envs
        self.max_episode_steps = None if max_episode_steps == -1 else max_episode_steps
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**METADATA, "autoreset_mode": self.autoreset_mode}
        self.physics = self._make_physics(task, contacts, threads)
        self.layout = self.physics.layout
        observation = spaces.Box(-np.inf, np.inf, (self.physics.observation_size,), np.float64)
        goal = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.single_observation_space = spaces.Dict(observation=observation, achieved_goal=goal, desired_goal=goal)
        self.single_action_space = spaces.Box(-1, 1, (4,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._started = np.zeros(num_envs, dtype=np.bool_)
        self._finished = np.zeros(num_envs, dtype=np.bool_)
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._blow_ups = np.zeros(num_envs, dtype=np.int64)
        self._goal = np.zeros((num_envs, 3))
        self._picture_size = (width, height)
        self._painter: Any = None

    def _make_physics(self, task: str, contacts: bool, threads: int) -> FetchPhysics:
        """The simulated worlds of the task with this name."""
        if task not in TASKS:
            raise ValueError(f"There is no Fetch task {task!r}; the tasks are {', '.join(TASKS)}.")
        return FetchPhysics(TASKS[task], self.num_envs, contacts, threads)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset all worlds or those of options["reset_mask"]; the others keep their state and observation."""
        _check_usable("reset", self.closed, started=True)
        if isinstance(seed, int | np.integer):
            seed = range(int(seed), int(seed) + self.num_envs)
        seeds = [None] * self.num_envs if seed is None else [one if one is None else index(one) for one in seed]
        if len(seeds) != self.num_envs:
            raise ValueError(f"Got {len(seeds)} seeds for {self.num_envs} worlds; expected one (or None) per world.")
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_)))
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] has dtype {mask.dtype}, shape {mask.shape} and {np.count_nonzero(mask)} worlds "
                f"set; expected a bool array of shape ({self.num_envs},) with at least one True."
            )
        if not (mask | self._started).all():
            raise ResetNeeded("The first reset() has a reset_mask that leaves worlds out; reset all worlds first.")
        for world in np.flatnonzero(mask):
            if seeds[world] is not None:
                self._generators[world] = seeding.np_random(seeds[world])[0]
        self._restart(mask)
        return self._observe(), {}

    def step(self, actions: npt.ArrayLike) -> tuple[Observation, Any, Flags, Flags, dict[str, Any]]:
        """Step all worlds; worlds that finished before are reset instead (NEXT_STEP) or refused (DISABLED).

        A world whose physics blows up is truncated, counted in info["blow_ups"] and put back to its initial state; the
        observation and reward of that step are those of the last true state, so its transition is best left out.
        """
        _check_usable("step", self.closed, self._started.all())
        action = _actions(actions, self.num_envs)
        resetting = self._finished.copy()
        if self.autoreset_mode is AutoresetMode.DISABLED and resetting.any():
            raise ResetNeeded(
                f"Worlds {np.flatnonzero(resetting).tolist()} have finished their episodes; reset them first with "
                "reset(options={'reset_mask': terminated | truncated})."
            )
        contact, blown = np.zeros_like(resetting), np.zeros_like(resetting)
        moving = np.flatnonzero(~resetting)
        if len(moving):
            worlds = moving if resetting.any() else None
            contact[moving], blown[moving] = self.physics.advance(action[moving], worlds)
        self._elapsed += 1
        if resetting.any():
            self._restart(resetting)
        rewards = np.where(resetting, np.float32(0), reward(self.physics.observation[:, 3:6], self._goal))
        truncated = (self._elapsed >= (self.max_episode_steps or np.inf)) | blown
        self._blow_ups += blown
        values = {"is_success": rewards == 0, "blow_ups": self._blow_ups}
        if self.physics.contacts:
            values["contact"] = contact
        infos = _infos(values, ~resetting)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and truncated.any():
            infos = {**_infos(values, ~truncated), **self._final(values, truncated)}
            self._restart(truncated)
        else:
            self._finished = truncated.copy()
        return self._observe(), rewards, np.zeros_like(truncated), truncated, infos

    def save_state(self, indices: npt.ArrayLike | None = None) -> Floats:
        """The full state of some worlds (default: all), float64 [n, S]; `layout` names its columns."""
        chosen = self._indices(indices)
        return np.concatenate([self.physics.save(chosen), self._goal[chosen], self._elapsed[chosen, None]], axis=1)

    def restore_state(self, indices: npt.ArrayLike | None, states: npt.ArrayLike, refresh: bool = False) -> None:
        """Put saved states [n, S] into worlds (None: all); they then step as the saved ones would, to the bit.

        `refresh` recomputes gripper and observation from qpos, for states whose columns were edited.
        """
        chosen, rows = self._indices(indices), np.asarray(states, dtype=np.float64)
        if rows.shape != (len(chosen), self.layout.size) or not np.isfinite(rows).all():
            raise ValueError(
                f"states has shape {rows.shape} and {np.count_nonzero(~np.isfinite(rows))} numbers that are not "
                f"finite; expected finite numbers of shape {(len(chosen), self.layout.size)}, as save_state gives them."
            )
        self.physics.restore(chosen, rows)
        self._goal[chosen] = rows[:, self.layout.desired_goal]
        self._elapsed[chosen] = rows[:, self.layout.elapsed][:, 0]
        self._started[chosen], self._finished[chosen] = True, False
        if refresh:
            self.physics.refresh(np.unique(chosen))

    def render(self, indices: npt.ArrayLike | None = None) -> tuple[Frame, ...] | None:
        """Pictures of some worlds (default: all) with their goals, or None without a render mode."""
        chosen = self._indices(indices)
        _check_usable("render", self.closed, self._started[chosen].all())
        if self.render_mode is None:
            return None
        if self._painter is None:
            from butfor.envs.drawing import Painter

            self._painter = Painter(self.physics.model.mj, *self._picture_size)
        states, target = self.physics.batch.state, self.physics.model.target_site
        return tuple(self._painter.paint(states[world], target, self._goal[world]) for world in chosen)

    def close_extras(self, **kwargs: Any) -> None:
        """Give back the graphics context."""
        if self._painter is not None:
            self._painter.close()

    def _indices(self, indices: npt.ArrayLike | None) -> npt.NDArray[np.int64]:
        """World indices [n] within range, or an error that says what was given."""
        if indices is None:
            return np.arange(self.num_envs)
        chosen = np.asarray(indices)
        whole = chosen.ndim == 1 and (np.issubdtype(chosen.dtype, np.integer) or not chosen.size)
        if not whole or ((chosen < 0) | (chosen >= self.num_envs)).any():
            raise ValueError(f"indices is {indices!r}; expected a list of worlds from 0 to {self.num_envs - 1}.")
        return chosen.astype(np.int64)

    def _restart(self, mask: Flags) -> None:
        """Start new episodes in the worlds of the mask."""
        chosen = np.flatnonzero(mask)
        places = np.empty((len(chosen), 2))
        for row, world in enumerate(chosen):
            generator = self._generators[world] or seeding.np_random()[0]
            places[row], self._goal[world] = draw_start(self.physics.model, generator)
            self._generators[world] = generator
        self.physics.place(chosen, places)
        self._elapsed[chosen] = 0
        self._started[chosen], self._finished[chosen] = True, False

    def _observe(self) -> Observation:
        """The observation dict, in arrays of its own."""
        observation = self.physics.observation.copy()
        goals = {"achieved_goal": observation[:, 3:6].copy(), "desired_goal": self._goal.copy()}
        return {"observation": observation, **goals}

    def _final(self, values: dict[str, npt.NDArray[Any]], finished: Flags) -> dict[str, Any]:
        """final_obs and final_info of worlds that are about to be reset in the step that finished them."""
        final_obs, observations = np.full(self.num_envs, None, dtype=object), self._observe()
        for world in np.flatnonzero(finished):
            final_obs[world] = {name: value[world] for name, value in observations.items()}
        final_info = _infos(values, finished)
        return _infos({"final_obs": final_obs}, finished) | {"final_info": final_info, "_final_info": finished.copy()}


class FetchEnv(gymnasium.Env[Observation, Any]):
    """One Fetch world, a batch of one; gymnasium.make limits its episodes to 50 steps, it never terminates itself."""

    metadata = METADATA
    compute_reward = staticmethod(reward)
    vector_env: type[FetchVectorEnv] = FetchVectorEnv

    def __init__(self, **options: Any) -> None:
        """Make a world that has to be reset before its first step; options are those of the vector environment."""
        self.worlds = self.vector_env(
            num_envs=1, max_episode_steps=None, autoreset_mode=AutoresetMode.DISABLED, **options
        )
        self.render_mode = self.worlds.render_mode
        self.observation_space = self.worlds.single_observation_space
        self.action_space = self.worlds.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode with object and goal drawn anew."""
        super().reset(seed=seed)
        self.worlds._generators = [self.np_random]
        observations, _ = self.worlds.reset()
        return {name: value[0] for name, value in observations.items()}, {}

    def step(self, action: npt.ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One step; truncated only if the physics blew up, after which the world has to be reset."""
        shape = np.shape(action)
        if shape != (4,):
            raise ValueError(f"The action has shape {shape}; expected (4,): x, y, z and the fingers.")
        observations, rewards, _, truncated, infos = self.worlds.step(np.asarray(action)[None])
        info = {name: value[0].item() for name, value in infos.items() if not name.startswith("_")}
        observation = {name: value[0] for name, value in observations.items()}
        return observation, float(rewards[0]), False, bool(truncated[0]), info

    def render(self) -> Frame | None:
        """The current picture, or None without a render mode."""
        frames = self.worlds.render()
        return frames[0] if frames else None

    def close(self) -> None:
        """Refuse further use."""
        self.worlds.close()


def _check_usable(verb: str, closed: bool, started: Any) -> None:
    """Refuse to use worlds that were closed or never reset."""
    if closed:
        raise ClosedEnvironmentError(f"{verb}() after close(); make new worlds.")
    if not started:
        raise ResetNeeded(f"{verb}() before reset(); call reset() first.")


def _actions(values: npt.ArrayLike, count: int) -> npt.NDArray[np.float32]:
    """The actions as float32 [count, 4] within [-1, 1], or an error that names the worlds at fault."""
    array = np.asarray(values, dtype=np.float32)
    if array.shape != (count, 4):
        raise ValueError(f"The actions have shape {array.shape}; expected {(count, 4)}: x, y, z and fingers per world.")
    bad = np.flatnonzero(np.isnan(array).any(axis=1))
    if len(bad):
        raise ValueError(
            f"The actions of worlds {bad.tolist()} contain NaN; no world was stepped. Check what computed them."
        )
    return np.clip(array, -1, 1)


def _infos(values: dict[str, npt.NDArray[Any]], mask: Flags) -> dict[str, Any]:
    """Gymnasium's vector infos: each array, empty outside the mask, with the mask under "_name"."""
    if not mask.any():
        return {}
    infos: dict[str, Any] = {}
    for name, value in values.items():
        infos[name] = value if value.dtype == object else np.where(mask, value, np.zeros((), dtype=value.dtype))
        infos[f"_{name}"] = mask.copy()
    return infos
