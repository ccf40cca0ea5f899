"""The Fetch environments: FetchPush, FetchPickAndPlace, FetchSlide, FetchRotTable and, with two cubes, FetchPushTwo and
FetchStackTwo, stepped by MuJoCo's native threads.

For the same seeds and float32 actions, the first three do what gymnasium-robotics' v4 environments do, to 1e-12.
Actions are taken as float32, the dtype of the action space, so that stored actions replay exactly.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from butfor.envs.drawing import Painter
from butfor.envs.fetch_physics import TASKS, FetchPhysics, Floats
from butfor.envs.rot_table import RotTablePhysics
from butfor.envs.several.fetch_two import FetchTwoPhysics
from butfor.envs.vector import Flags, Frame, GoalVectorEnv, Indices, SingleGoalEnv, sparse_reward

PHYSICS: dict[str, Callable[..., FetchPhysics]] = {
    "push": partial(FetchPhysics, TASKS["push"]),
    "pick-and-place": partial(FetchPhysics, TASKS["pick-and-place"]),
    "fetch-slide": partial(FetchPhysics, TASKS["fetch-slide"]),
    "rot-table": RotTablePhysics,
    "push-two": partial(FetchTwoPhysics, "push-two"),
    "stack-two": partial(FetchTwoPhysics, "stack-two"),
}
reward = partial(sparse_reward, size=3, radius=0.05)


def make_physics(task: str, count: int, contacts: bool = False, threads: int = 0, **options: Any) -> FetchPhysics:
    """Make `count` simulated environments of a task; `options` are those of its class."""
    if task not in PHYSICS:
        raise ValueError(f"There is no Fetch task {task!r}; the tasks are {', '.join(PHYSICS)}.")
    return PHYSICS[task](count=count, contacts=contacts, threads=threads, **options)


class FetchVectorEnv(GoalVectorEnv):
    """Many Fetch environments stepped at once; `info` has `is_success`, `blow_ups` and the labels asked for.

    An environment whose physics blows up is truncated, counted in info["blow_ups"] and put back to its initial state;
    the observation and reward of that step are those of the last true state, so its transition is best left out.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}
    compute_reward = staticmethod(reward)

    def __init__(
        self,
        task: str = "pick-and-place",  # or another of `PHYSICS`
        num_envs: int = 1,
        max_episode_steps: int | None = 50,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        labels: Sequence[str] = (),
        threads: int = 0,  # 0 for BUTFOR_THREADS, or all processors
        width: int = 480,  # of a picture, in pixels
        height: int = 480,
        **options: Any,  # `warp_device` of `FetchPhysics`, and those of the task; "rot-table" has `timing`
    ) -> None:
        """Make environments.

        The label "contact" is whether a finger touched the object during the step. "exact", reported as `label_exact`,
        is whether the object's next position depends on the action (of two cubes, that which the goal is about); it
        forks the simulator before each step, which is slow. The arguments that are not explained are those of
        `GoalVectorEnv`.
        """
        super().__init__(num_envs, max_episode_steps, render_mode, autoreset_mode, labels)
        self.make_physics = partial(make_physics, task, **options)
        self.physics = self.make_physics(count=num_envs, contacts="contact" in labels, threads=threads)
        self.layout = self.physics.layout
        self.achieved_goal = self.physics.achieved_goal
        size = self.physics.observation_size
        goal = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        observation = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self._set_spaces(observation, goal, spaces.Box(-1, 1, (4,), np.float32))
        self._observation = self.physics.observation
        self._goal = np.zeros((num_envs, 3))
        self._blow_ups = np.zeros(num_envs, dtype=np.int64)
        self._picture_size = (width, height)
        self._painter: Painter | None = None
        self._exact_label: Any = None
        if "exact" in labels:
            from butfor.envs.truth import Forker, exact_label

            self._exact_label = partial(exact_label, Forker(self, threads=threads), sizes=False)

    def _start(self, envs: Indices, generators: Sequence[np.random.Generator]) -> None:
        places = np.empty((len(envs), 2 * self.physics.objects))
        for row, generator in enumerate(generators):
            places[row], self._goal[envs[row]] = self.physics.draw_start(generator)
        self.physics.place(envs, places)

    def _advance(
        self, action: npt.NDArray[np.float32], envs: Indices | slice
    ) -> tuple[dict[str, npt.NDArray[Any]], Flags]:
        values: dict[str, npt.NDArray[Any]] = {}
        if self._exact_label is not None:
            values["label_exact"] = self._exact_label(self.save_state(envs), action)[0]
        contact, blown = self.physics.advance(action, None if isinstance(envs, slice) else envs)
        self._blow_ups[envs] += blown
        values["blow_ups"] = self._blow_ups[envs]
        if self.physics.contacts:
            values["contact"] = contact
        return values, blown

    def save_state(self, indices: npt.ArrayLike | slice | None = None) -> Floats:
        """Save the full state of some environments (default: all), float64 [n, S]; `layout` names its columns."""
        chosen = self._indices(indices)
        return np.concatenate([self.physics.save(chosen), self._goal[chosen], self._elapsed[chosen, None]], axis=1)

    def restore_state(self, indices: npt.ArrayLike | None, states: npt.ArrayLike) -> None:
        """Restore states [n, S] of `save_state`; the environments [n] (None: all) then step as the saved ones would."""
        chosen = self._indices(indices)
        rows = check_states(states, self.layout.size)
        self.physics.restore(chosen, rows)
        self._goal[chosen] = rows[:, self.layout.desired_goal]
        self._elapsed[chosen] = rows[:, self.layout.elapsed][:, 0]
        self._started[chosen] = True
        self._finished[chosen] = False

    def render(self, indices: npt.ArrayLike | None = None) -> tuple[Frame, ...] | None:
        """Draw some environments (default: all) with their goals, or return None without a render mode."""
        chosen = self._indices(indices)
        self._check_usable("render", self._started[chosen].all())
        if self.render_mode is None:
            return None
        if self._painter is None:
            self._painter = Painter(self.physics.model.mj, *self._picture_size)
        states = self.physics.batch.state
        target = self.physics.model.target_site
        return tuple(self._painter.paint(states[env], target, self._goal[env]) for env in chosen)

    def close_extras(self, **kwargs: Any) -> None:
        """Release the graphics context."""
        if self._painter is not None:
            self._painter.close()

    def _indices(self, indices: npt.ArrayLike | slice | None) -> Indices:
        chosen: Any = slice(None) if indices is None else indices
        return np.atleast_1d(np.arange(self.num_envs)[chosen])


class FetchEnv(SingleGoalEnv):
    """One Fetch environment."""

    metadata = FetchVectorEnv.metadata
    compute_reward = staticmethod(reward)
    vector_class = FetchVectorEnv


def check_states(states: npt.ArrayLike, size: int) -> Floats:
    """Return saved states as float64 [n, size]; refuse other shapes, NaN and infinity."""
    rows = np.asarray(states, dtype=np.float64)
    bad = np.count_nonzero(~np.isfinite(rows))
    if rows.ndim != 2 or rows.shape[1] != size or bad:
        raise ValueError(
            f"states has shape {rows.shape} and {bad} values that are NaN or infinite; expected finite values of shape "
            f"[n, {size}], as save_state() of this environment returns them."
        )
    return rows
