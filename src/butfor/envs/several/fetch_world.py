"""The simulators of the Fetch robot with one or two objects, as `edges` uses them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from butfor.envs.facts import MOVED
from butfor.envs.fetch_physics import TASKS as ONE_OBJECT
from butfor.envs.fetch_physics import FetchPhysics, Floats, mujoco
from butfor.envs.several.fetch_two import ENTITIES, TASKS, FetchTwoPhysics, leave_out
from butfor.envs.vector import Flags

APART = 0.075  # distance of two cubes' centres at which they cannot touch
REACH = 0.12  # distance of object and gripper at which they cannot touch
_LEFT_OUT = {
    (name, absent): replace(task, edit=partial(leave_out, absent=absent))
    for name, task in ONE_OBJECT.items()
    for absent in ENTITIES[:2]
}


def _make_one(name: str, absent: str | None = None, **options: Any) -> FetchPhysics:
    """The simulator of a task with one object; `absent` is an entity that touches nothing."""
    return FetchPhysics(ONE_OBJECT[name] if absent is None else _LEFT_OUT[name, absent], **options)


VARIANTS: dict[str, Callable[..., FetchPhysics]] = {
    **{name: partial(_make_one, name) for name in ONE_OBJECT},
    **{name: partial(FetchTwoPhysics, name) for name in TASKS},
}


class FetchWorld:
    """The simulator as `edges` uses it: a state is a row of `FetchVectorEnv.save_state`, an outcome a position."""

    action_size = 4
    tolerance = MOVED
    goal_radius = 0.05

    def __init__(self, task: str, slots: int = 256, threads: int = 0, warp_device: str | None = None) -> None:
        """Prepare `slots` environments of a task, and more for each entity that is left out once it is.

        With a `warp_device`, such as "cuda", MuJoCo Warp steps them there, in float32.

        Raises:
            ValueError: the task is of another environment.
        """
        if task not in VARIANTS:
            raise ValueError(f"There is no simulator of {task!r} with its entities; expected {', '.join(VARIANTS)}.")
        self.task = task
        self.slots = slots
        self.threads = threads
        self.warp_device = warp_device
        self._physics: dict[str | None, FetchPhysics] = {}
        self.layout = self._variant(None).layout
        model = self._variant(None).model
        objects = range(self._variant(None).objects)
        self.entities: tuple[str, ...] = ENTITIES[: 1 + len(objects)]
        self._poses = [self.layout.qpos.start + model.object_qpos + 7 * number for number in objects]
        self._velocities = [self.layout.qvel.start + model.object_dof + 6 * number for number in objects]

    def _variant(self, absent: str | None) -> FetchPhysics:
        if absent not in self._physics:
            options = {"count": self.slots, "threads": self.threads, "warp_device": self.warp_device}
            self._physics[absent] = VARIANTS[self.task](absent, **options)
        return self._physics[absent]

    def step(
        self, states: npt.NDArray[Any], actions: npt.NDArray[np.float32], absent: int | None = None
    ) -> npt.NDArray[Any]:
        """Step states [n, S]; rows in which the physics blew up are NaN."""
        physics = self._variant(None if absent is None else self.entities[absent])
        result = np.array(states, dtype=np.float64)
        lost = np.isnan(result[:, 0])
        for first in range(0, len(result), self.slots):
            rows = np.arange(first, min(first + self.slots, len(result)))
            rows = rows[~lost[rows]]
            slots = np.arange(len(rows))
            physics.restore(slots, result[rows])
            _, blown = physics.advance(np.clip(actions[rows], -1, 1).astype(np.float32), slots)
            moved = physics.save(slots)
            moved[blown] = np.nan
            result[rows, : moved.shape[1]] = moved
        return result

    def outcome(self, states: npt.NDArray[Any]) -> Floats:
        """Positions [n, E, 3] of gripper and objects; those of the objects are one substep newer than the gripper's."""
        grip = states[:, self.layout.observation][:, :3]
        return np.stack([grip, *(states[:, pose : pose + 3] for pose in self._poses)], axis=1)

    def contacts(self, states: npt.NDArray[Any]) -> Flags:
        """Which of gripper and objects touch each other, by MuJoCo's contacts: [n, E, E]."""
        mj = self._variant(None).model.mj
        data = mujoco.MjData(mj)
        names = [mj.body(body).name for body in mj.geom_bodyid]
        prefixes = ("robot0:", *self.entities[1:])
        owner = np.array([next((i for i, one in enumerate(prefixes) if name.startswith(one)), -1) for name in names])
        found = np.zeros((len(states), len(prefixes), len(prefixes)), dtype=np.bool_)
        for row, state in enumerate(states):
            data.qpos[:] = state[self.layout.qpos]
            mujoco.mj_kinematics(mj, data)
            mujoco.mj_collision(mj, data)
            one, other = owner[data.contact.geom].T
            touching = (one >= 0) & (other >= 0) & (one != other)
            found[row, one[touching], other[touching]] = found[row, other[touching], one[touching]] = True
        return found

    def replaced(
        self, states: npt.NDArray[Any], source: int, others: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], Flags]:
        """States with one entity as in other states, and where it is clear of the others."""
        result = np.array(states if source else others, dtype=np.float64)
        taken, numbers = (others, [source - 1]) if source else (states, range(len(self._poses)))
        for number in numbers:
            for first, size in ((self._poses[number], 7), (self._velocities[number], 6)):
                result[:, first : first + size] = taken[:, first : first + size]
        grip, *objects = np.moveaxis(self.outcome(result), 1, 0)
        possible = np.ones(len(result), dtype=np.bool_)
        for number in numbers:
            possible &= np.linalg.norm(grip - objects[number], axis=1) >= REACH
            for other in objects[:number] + objects[number + 1 :] if source else ():
                possible &= np.linalg.norm(objects[number] - other, axis=1) >= APART
        return result, possible

    def observation(self, states: npt.NDArray[Any]) -> Floats:
        """What the environment observes [n, D]; in states that were not stepped to, what was observed before."""
        return np.asarray(states[:, self.layout.observation])
