"""The environments of `butfor benchmark defaults`: one `Task` each, and what a simulator must be able to do.

Packages of others are imported when a task of theirs is opened. Some of the tasks are held out: nobody looks at them
while the default settings are developed.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Observation = NDArray[np.float32]
# The range over actions that counts as an effect, in metres or the unit of `object_state`. Over 2,000 to 3,000 states
# of each task, 1e-7 gave the same base rates, and 1e-5 the same or (stick, panda-stack-second) 0.0003 less.
TOLERANCE = 1e-6


class Simulation(Protocol):
    """One simulated environment with flat observations [D] and episodes of a fixed length."""

    action_space: Any  # Box [A] or Discrete
    horizon: int

    def reset(self, seed: int) -> Observation:
        """Start an episode; the same seed starts the same episode, whatever was simulated before."""

    def step(self, action: Any) -> Observation:
        """Apply an action; an episode does not terminate."""

    def save(self) -> Any:
        """Return a copy of the complete state, to be restored until the next save or reset."""

    def restore(self, saved: Any) -> None:
        """Go back to a saved state; the same actions then have the same outcomes, to the bit."""

    def object_state(self) -> NDArray[np.float64]:
        """Return the object's position, and whatever else counts as an effect on it."""

    def contact(self) -> bool | None:
        """Whether the agent touches the object now; None if the simulator does not report contacts."""

    def scripted(self, rng: np.random.Generator) -> Any:
        """Return an action that approaches and manipulates the object, computed from the true state."""


@dataclass(frozen=True)
class Task:
    """An environment of the benchmark and what a user would specify for it."""

    name: str
    package: str  # what to install
    held_out: bool  # not looked at while defaults are developed
    object: list[int]  # observation columns of the entity whose influence is detected
    hand_position: list[int] | None  # columns that the distance is computed from; None where there is no hand
    object_position: list[int] | None
    self_moving: bool  # the object also moves by itself: it slides, rolls, or another object moves it
    open: Callable[[], Simulation]
    tolerance: float = TOLERANCE


def _opener(module: str, name: str, *arguments: Any) -> Callable[[], Simulation]:
    """Return a function that imports a module of this package and makes a simulation of it."""

    def open() -> Simulation:
        with _silenced():
            made: Simulation = getattr(import_module(f"butfor.benchmarks.{module}"), name)(*arguments)
        return made

    return open


@contextmanager
def _silenced() -> Iterator[None]:
    """Discard what is written to stdout and stderr, also by compiled code: notices of PyBullet and others."""
    streams = (sys.stdout, sys.stderr)
    with open(os.devnull, "wb") as nothing:
        kept = [os.dup(number) for number in (1, 2)]
        for stream in streams:
            stream.flush()
        for number in (1, 2):
            os.dup2(nothing.fileno(), number)
        try:
            yield
        finally:
            for stream in streams:
                stream.flush()
            for number, copy in enumerate(kept, start=1):
                os.dup2(copy, number)
                os.close(copy)


def _columns(first: int, count: int = 3) -> list[int]:
    return list(range(first, first + count))


def _panda(name: str, id: str, held_out: bool, thing: str, column: int, horizon: int = 50) -> Task:
    """Return a task of panda-gym; `thing` is a body, `column` the first of its position. All of them slide."""
    open = _opener("panda", "Panda", id, thing, horizon)
    return Task(name, "panda-gym", held_out, _columns(column), _columns(0), _columns(column), True, open)


TASKS = {
    task.name: task
    for task in (
        _panda("panda-push", "PandaPush-v3", False, "object", 6),
        Task(
            name="fetch-slide",
            package="gymnasium-robotics",
            held_out=False,
            object=_columns(3),
            hand_position=_columns(0),
            object_position=_columns(3),
            self_moving=True,
            open=_opener("mujoco_tasks", "FetchSlide"),
        ),
        Task(
            name="fetch-pick-and-place",
            package="gymnasium-robotics",
            held_out=False,
            object=_columns(3),
            hand_position=_columns(0),
            object_position=_columns(3),
            self_moving=False,
            open=_opener("built_in", "PickAndPlace"),
        ),
        Task(
            name="minigrid",
            package="minigrid",
            held_out=False,
            object=_columns(4, 2),
            hand_position=_columns(0, 2),
            object_position=_columns(4, 2),
            self_moving=False,
            open=_opener("grid", "DoorKey"),
        ),
        Task(
            name="slide",
            package="butfor",
            held_out=False,
            object=[2],
            hand_position=[0],
            object_position=[2],
            self_moving=True,
            open=_opener("built_in", "Slide"),
        ),
        Task(
            name="stick",
            package="mujoco",
            held_out=False,
            object=_columns(6, 2),
            hand_position=_columns(0, 2),
            object_position=_columns(6, 2),
            self_moving=True,
            open=_opener("mujoco_tasks", "Stick"),
        ),
        _panda("panda-slide", "PandaSlide-v3", False, "object", 6, horizon=30),  # soon the puck is out of reach
        _panda("panda-pick-and-place", "PandaPickAndPlace-v3", True, "object", 7),
        _panda("panda-stack", "PandaStack-v3", True, "object1", 7),
        _panda("panda-stack-second", "PandaStack-v3", False, "object2", 19, horizon=100),
        Task(
            name="hand-block",
            package="gymnasium-robotics",
            held_out=True,
            object=_columns(54),
            hand_position=None,
            object_position=None,
            self_moving=True,
            open=_opener("mujoco_tasks", "Hand", "HandManipulateBlock-v1"),
        ),
        Task(
            name="hand-egg",
            package="gymnasium-robotics",
            held_out=False,
            object=_columns(54),
            hand_position=None,
            object_position=None,
            self_moving=True,
            open=_opener("mujoco_tasks", "Hand", "HandManipulateEgg-v1"),
        ),
        Task(
            name="kitchen",
            package="gymnasium-robotics",
            held_out=True,
            object=_columns(32),
            hand_position=None,
            object_position=None,
            self_moving=False,
            open=_opener("mujoco_tasks", "Kitchen"),
        ),
        Task(
            name="kitchen-microwave",
            package="gymnasium-robotics",
            held_out=False,
            object=[31],
            hand_position=None,
            object_position=None,
            self_moving=False,
            open=_opener("mujoco_tasks", "Kitchen", "microwave", "micro", "microhandle_site"),
        ),
        Task(
            name="ant-ball",
            package="mujoco",
            held_out=True,
            object=_columns(15),
            hand_position=_columns(0),
            object_position=_columns(15),
            self_moving=True,
            open=_opener("mujoco_tasks", "AntBall"),
        ),
    )
}
