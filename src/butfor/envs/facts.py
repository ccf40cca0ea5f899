"""One record of facts per built-in environment: what the library knows beyond the Gymnasium interface.

Ask `facts_of(env)` instead of testing for a name or counting columns. To add an environment, write its classes and add
a record to `BUILT_IN`; `registry.py` registers it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from butfor.envs.experts import Expert, hit, pick_and_place, push, push_into, slide_puck, stack
from butfor.envs.several.pucks import BODIES, cue
from butfor.spaces.mirrors import Mirror

Flags = npt.NDArray[np.bool_]
Columns = tuple[int, ...]

MOVED = 1e-4  # metres in one step, from which on an object counts as moved
LIFTED = 5e-3  # metres above its resting height, from which on an object counts as lifted
FLOOR = 0.03  # metres; the centre of an object on the floor lies below
OBJECT_HALF_SIZE = 0.025
ROUND_TABLE_CENTRE = (1.37, 0.75, 0.21)
ROUND_TABLE_RADIUS = 0.38
ROUND_TABLE_TOP = 0.41
GRIPPER_COLUMNS = tuple(range(10))  # of the environments with two cubes
CUBE_COLUMNS = (tuple(range(10, 25)), tuple(range(25, 40)))


@dataclass(frozen=True)
class Table:
    """The table of a robot environment."""

    resting_height: float  # of the centre of an object on the table
    is_beside: Callable[[Any, Any], Flags]  # (x, y) -> whether that place is not above the table


@dataclass(frozen=True)
class EnvFacts:
    """What the library knows about a built-in environment."""

    name: str  # short name, as on the command line
    id: str  # of Gymnasium
    entry_point: str  # module and prefix of the classes `...Env` and `...VectorEnv`
    max_episode_steps: int
    agent_position: Columns  # columns of the observation; the agent of the robots is the gripper
    object_position: Columns
    agent_velocity: Columns
    object_velocity: Columns
    full_state: Columns  # columns of the observation without those that follow from others
    expert: Expert  # the scripted policy, see `experts.scripted_action`
    labels: tuple[str, ...]  # that `make_vector_env(labels=...)` or `heuristic_label` can add to a step
    drawing: Literal["line", "plane", "robot"]  # how a state is drawn: on a line, in a plane, or by MuJoCo's camera
    partly_random_expert: bool = False  # whether the expert acts uniformly in states where its action has no use
    object_offset: Columns = ()  # columns that repeat object_position - agent_position
    relative_velocity: bool = False  # whether object_velocity is relative to agent_velocity
    forks: bool = False  # whether saved states can be forked, see `truth.Forker`
    table: Table | None = None
    several: Mapping[str, Columns] = field(default_factory=dict)  # all columns of each entity, if there are several
    single: Mapping[str, Columns] = field(default_factory=dict)  # all columns of agent and object, if there is only one
    mirrors: tuple[Mirror, ...] = ()  # in which transitions obey the same laws
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the classes

    @property
    def entities(self) -> dict[str, Columns]:
        """Columns of each entity by name, the agent first; where there is one object, those of its position."""
        return dict(self.several) or {"agent": self.agent_position, "object": self.object_position}

    @property
    def bodies(self) -> dict[str, Columns]:
        """All columns of each entity, the agent first, its position first; without those that follow from others."""
        return dict(self.several) or dict(self.single)

    def to_absolute(self, obs: Any) -> Any:
        """Observations [..., D], an array or a tensor, in which no column depends on two entities.

        Columns that repeat a difference become 0.
        """
        found = obs + 0
        # column by column: a list of columns would be copied to the GPU, which a recorded graph cannot do
        if self.relative_velocity:
            for column, of_agent in zip(self.object_velocity, self.agent_velocity, strict=True):
                found[..., column] += found[..., of_agent]
        for column in self.object_offset:
            found[..., column] = 0
        return found

    def from_absolute(self, obs: Any) -> Any:
        """The inverse of `to_absolute`; columns that repeat a difference are computed again."""
        found = obs + 0
        if self.relative_velocity:
            for column, of_agent in zip(self.object_velocity, self.agent_velocity, strict=True):
                found[..., column] -= found[..., of_agent]
        if self.object_offset:
            for column, own, of_agent in zip(
                self.object_offset, self.object_position, self.agent_position, strict=True
            ):
                found[..., column] = found[..., own] - found[..., of_agent]
        return found

    @property
    def positions(self) -> Columns:
        """Columns of the positions of agent and object."""
        return self.agent_position + self.object_position

    def distance(self, obs: Any) -> Any:
        """Compute the distance between agent and object [...] in observations [..., D], an array or a tensor."""
        between = obs[..., list(self.object_position)] - obs[..., list(self.agent_position)]
        return (between**2).sum(-1) ** 0.5

    def behaviour(self, episodes: Any) -> dict[str, npt.NDArray[np.float64]]:
        """Compute the shares of the steps of each episode [E] in which the object was moved, lifted and held.

        `episodes` are `butfor.rollouts.Episodes`. Held means lifted and touched by a finger. The result is empty
        without a table or without contacts.
        """
        if self.table is None or episodes.contact is None:
            return {}
        place = episodes.achieved_goal[:, 1:]  # [E, T, 3]
        before = episodes.achieved_goal[:, :-1]
        x, y, z = np.moveaxis(place, -1, 0)
        rest = self.table.resting_height
        beside = self.table.is_beside(x, y)
        lifted = (z > rest + LIFTED) | (beside & (z > FLOOR) & (z < rest - LIFTED))
        moved = np.linalg.norm(place - before, axis=-1) > MOVED
        steps = {"moved": moved, "lifted": lifted, "held": lifted & episodes.contact}
        return {name: (value & episodes.valid).sum(1) / episodes.valid.sum(1) for name, value in steps.items()}


def facts_of(env: str) -> EnvFacts | None:
    """Return the facts of a built-in environment (short name, id or "module:id"), or None for any other."""
    if env in BUILT_IN:
        return BUILT_IN[env]
    id = env.rpartition(":")[2]
    return next((facts for facts in BUILT_IN.values() if facts.id == id), None)


def named(**wanted: Any) -> list[str]:
    """Short names of the built-in environments whose facts have these values."""
    return [name for name, facts in BUILT_IN.items() if all(getattr(facts, key) == wanted[key] for key in wanted)]


def _beside_square(x: Any, y: Any) -> Flags:
    return np.asarray((x <= 1.19) | (x >= 1.5) | (y <= 0.59) | (y >= 0.9))


def _beside_long(x: Any, y: Any) -> Flags:
    return np.asarray((np.abs(x - 1.324) >= 0.625) | (np.abs(y - 0.75) >= 0.45))


def _beside_disc(x: Any, y: Any) -> Flags:
    return np.asarray(np.hypot(x - ROUND_TABLE_CENTRE[0], y - ROUND_TABLE_CENTRE[1]) >= ROUND_TABLE_RADIUS)


def _fetch_mirrors(x: float) -> tuple[Mirror, Mirror]:
    """The mirrors at x and at y, where the gripper starts; the first is less exact, because the arm is on one side.

    Their signs: differences and velocities, then angles and angular velocities about the axes within the mirror.
    """
    return (
        Mirror((0, 3), (0,), (0,), (6, 14, 20, 12, 13, 18, 19), middle=x),
        Mirror((1, 4), (1,), (1,), (7, 15, 21, 11, 13, 17, 19), ((9, 10), (23, 24)), _MIDDLE),
    )


def _two_cube_mirrors(x: float) -> tuple[Mirror, Mirror]:
    """The same with two cubes; entry (i, j) of a rotation matrix changes its sign if either i or j is the normal."""
    rotation = ((7, 8, 9, 13, 14), (7, 9, 11, 12, 14))  # of a cube: entries of the matrix, angular velocities
    starts = [cube[0] for cube in CUBE_COLUMNS]
    first, second = (
        Mirror(
            places=tuple(start + axis for start in (0, *starts)),
            goal_places=(axis,),
            action_signs=(axis,),
            signs=(3 + axis, *(start + column for start in starts for column in (3 + axis, *rotation[axis]))),
            swapped=((6, 7), (8, 9)) if axis == 1 else (),
            middle=(x, _MIDDLE)[axis],
        )
        for axis in (0, 1)
    )
    return first, second


def _fetch(
    name: str, id: str, table: Table, expert: Expert, heuristic: bool = True, mirrors: tuple[Mirror, ...] = ()
) -> EnvFacts:
    """The facts that all Fetch environments share; the columns are gymnasium-robotics'.

    The paper's heuristic label is about fingers around a cube.
    """
    return EnvFacts(
        name=name,
        id=id,
        entry_point="butfor.envs.fetch:Fetch",
        max_episode_steps=50,
        agent_position=(0, 1, 2),
        object_position=(3, 4, 5),
        agent_velocity=(20, 21, 22),
        object_velocity=(14, 15, 16),
        full_state=(*range(6), *range(9, 25)),
        expert=expert,
        labels=("exact", "heuristic", "contact") if heuristic else ("exact", "contact"),
        drawing="robot",
        object_offset=(6, 7, 8),
        relative_velocity=True,
        forks=True,
        table=table,
        single={"agent": (0, 1, 2, 9, 10, *range(20, 25)), "object": (3, 4, 5, *range(11, 20))},
        mirrors=mirrors,
        arguments={"task": name},
    )


def _fetch_two(name: str, id: str, expert: Expert, goal_cube: int, x: float) -> EnvFacts:
    """The facts of the Fetch environments with two cubes: which one the goal is about, and where the gripper starts."""
    first = CUBE_COLUMNS[goal_cube][0]
    return EnvFacts(
        name=name,
        id=id,
        entry_point="butfor.envs.fetch:Fetch",
        max_episode_steps=50,
        agent_position=(0, 1, 2),
        object_position=(first, first + 1, first + 2),
        agent_velocity=(3, 4, 5),
        object_velocity=(first + 3, first + 4, first + 5),
        full_state=tuple(range(40)),
        expert=expert,
        labels=("exact", "contact"),
        drawing="robot",
        table=_SQUARE_TABLE,
        mirrors=_two_cube_mirrors(x),
        several={"gripper": GRIPPER_COLUMNS, "object0": CUBE_COLUMNS[0], "object1": CUBE_COLUMNS[1]},
        arguments={"task": name},
    )


_SQUARE_TABLE = Table(0.425, _beside_square)
_MIDDLE = 0.7491  # y of the gripper at a reset
_LONG_TABLE = Table(0.42, _beside_long)
_ROUND_TABLE = Table(ROUND_TABLE_TOP + OBJECT_HALF_SIZE, _beside_disc)
BUILT_IN = {
    facts.name: facts
    for facts in (
        EnvFacts(
            name="slide",
            id="butfor/Slide-v0",
            entry_point="butfor.envs.slide:Slide",
            max_episode_steps=30,
            agent_position=(0,),
            object_position=(2,),
            agent_velocity=(1,),
            object_velocity=(3,),
            full_state=(0, 1, 2, 3),
            expert=hit,
            labels=("exact", "contact"),
            drawing="line",
            partly_random_expert=True,
            single={"agent": (0, 1), "object": (2, 3)},
        ),
        _fetch("push", "butfor/FetchPush-v0", _SQUARE_TABLE, push, mirrors=_fetch_mirrors(1.3627)),
        _fetch(
            "pick-and-place",
            "butfor/FetchPickAndPlace-v0",
            _SQUARE_TABLE,
            pick_and_place,
            mirrors=_fetch_mirrors(1.3419),
        ),
        _fetch(
            "fetch-slide",
            "butfor/FetchSlide-v0",
            _LONG_TABLE,
            slide_puck,
            False,
            (replace(_fetch_mirrors(0)[0], reflect=False), _fetch_mirrors(0)[1]),  # goals lie ahead: not seen behind
        ),
        replace(
            _fetch("rot-table", "butfor/FetchRotTable-v0", _ROUND_TABLE, pick_and_place),
            single={},  # the table moves the object, too
        ),
        EnvFacts(
            name="pucks",
            id="butfor/Pucks-v0",
            entry_point="butfor.envs.several.pucks:Pucks",
            max_episode_steps=60,
            agent_position=(0, 1),
            object_position=(12, 13),
            agent_velocity=(2, 3),
            object_velocity=(14, 15),
            full_state=tuple(range(16)),
            expert=cue,
            labels=("exact",),  # contact is in every info without a request
            drawing="plane",
            mirrors=tuple(
                Mirror(tuple(range(axis, 16, 4)), (axis,), (axis,), tuple(range(2 + axis, 16, 4)), shift=False)
                for axis in (0, 1)
            ),  # walls and a slope forbid to move it
            several={name: tuple(range(4 * place, 4 * place + 4)) for place, name in enumerate(BODIES)},
        ),
        _fetch_two("push-two", "butfor/FetchPushTwo-v0", push_into, goal_cube=1, x=1.3627),
        _fetch_two("stack-two", "butfor/FetchStackTwo-v0", stack, goal_cube=0, x=1.3419),
    )
}
