"""Recorded episodes of unequal lengths as one table of states, from arrays, padded arrays or lists of episodes.

The parts of nested observations are concatenated in the order of their names, which are paths such as `robot/arm`.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from butfor.rollouts.episodes import Bool, Steps
from butfor.spaces.actions import MOST_ACTIONS
from butfor.spaces.arrays import PART
from butfor.spaces.entities import Entities, entity_columns
from butfor.spaces.observations import is_image, parts_of

Table = NDArray[Any]
Lengths = NDArray[np.int64]
LARGEST = np.finfo(np.float32).max  # the model computes in float32
DISCRETE = (
    f"discrete actions are [N], from 0 (or the space's start) on, at most {MOST_ACTIONS:,}; save others as floats"
)


@dataclass(frozen=True)
class Recording(Steps):
    """Episodes in sequence, and what is known about their columns."""

    sizes: dict[str, int]
    """number of columns of each part of the observation by its path; a plain observation has the path "" """
    action_space: gymnasium.Space[Any] | None = None
    """None: not known"""
    sampled: Bool | None = None  # [N]: the action was drawn from a known distribution with full support
    source: str = "arrays"

    def __post_init__(self) -> None:
        for what, table, rows in (("state", self.observation, slice(None)), ("action", self.action, ~self.last)):
            parts = (table[first : first + PART] for first in range(0, len(table), PART))  # for less memory
            if not all((np.abs(part) <= LARGEST).all() for part in parts):
                wrong = np.argwhere(~(np.abs(table) <= LARGEST))
                place = f"episode {self.episode[rows][wrong[0, 0]]}, step {self.time[rows][wrong[0, 0]]}"
                if what == "state":
                    columns = [(part, column) for part, size in self.sizes.items() for column in range(size)]
                    part, column = columns[wrong[0, 1]]
                    place += f", column {column}" + (f" of {part!r}" if part else "")
                count = len(np.unique(wrong[:, 0]))
                raise ValueError(
                    f"{self.source} has NaN, infinity or numbers too large for float32 in {count} {what}(s), first in "
                    f"{place}; remove these episodes."
                )

    def entities(self, entities: Entities) -> dict[str, list[int]]:
        """Columns of entities such as ["cube=3:6"] or ["cube=observation:3:6"]."""
        try:
            return entity_columns(entities, self.sizes)
        except ValueError as error:
            if entities or self.source == "arrays":
                raise
            path = shlex.quote(self.source.removeprefix("Minari dataset "))
            raise ValueError(f"{error} `butfor data {path}` lists the columns, and entities to choose.") from error


def read_arrays(
    observation: Any,
    action: Any,
    next_observation: Any = None,
    *,
    terminals: Any = None,
    timeouts: Any = None,
    length: Any = None,
    action_space: gymnasium.Space[Any] | None = None,
    sampled: Any = None,
    ignore: Sequence[str] = (),
    source: str = "arrays",
) -> Recording:
    """Read episodes from arrays with one row per step, padded arrays, or lists of episodes.

    If an episode has one observation more than actions, that is its last state. Without it and without
    `next_observation`, the last row of an episode is its last state, and the action there is not used.

    Args:
        observation: [N, D], padded [E, T, D], or a list of episodes; or a nested dictionary of such arrays.
        action: [N, A], integers [N] of discrete actions, padded [E, T, A], or a list of episodes.
        next_observation: same shape as `observation`; an episode also ends where it differs from the next row.
        terminals: whether the episode ends with this step [N] or [E, T].
        timeouts: the same for episodes cut off by a time limit.
        length: number of rows of each episode [E].
        action_space: a Box, a Dict of Boxes, or a Discrete.
        sampled: whether the action was drawn from a known distribution with full support [N] or [E, T].
        ignore: paths of parts of the observation to leave out.
        source: name of the data in messages.

    Raises:
        ValueError: the arrays do not fit together, or contain images, NaN or infinite values.
        TypeError: the arrays do not contain numbers, or the action space is of another kind.
    """
    with naming(source):
        return _read_arrays(
            observation, action, next_observation, terminals, timeouts, length, action_space, sampled, ignore, source
        )


@contextmanager
def naming(source: str) -> Iterator[None]:
    """Begin the message of an error with the name of the data, where it does not contain it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if source == "arrays" or source in str(error) or type(error) not in (ValueError, TypeError):
            raise
        raise type(error)(f"{source}: {error}") from error


def _read_arrays(
    observation: Any,
    action: Any,
    next_observation: Any,
    terminals: Any,
    timeouts: Any,
    length: Any,
    action_space: gymnasium.Space[Any] | None,
    sampled: Any,
    ignore: Sequence[str],
    source: str,
) -> Recording:
    first: Any = observation[0] if isinstance(observation, list | tuple) and len(observation) else 0
    if isinstance(first, Mapping) or np.ndim(first) >= 2:  # an episode, not a row
        if any(one is not None for one in (next_observation, terminals, timeouts, length, sampled)):
            raise ValueError("A list of episodes already shows where they end; leave the other arrays out.")
        if len(observation) != len(action):
            raise ValueError(f"observation has {len(observation)} episodes and action {len(action)}.")
        return join_episodes(zip(observation, action, strict=True), action_space, ignore, source)
    space = _readable_space(action_space)
    steps = None if length is None else _read_lengths(length)
    flags = terminals if terminals is not None else timeouts
    lead = 2 if _is_padded(observation, action, flags, steps, next_observation) else 1
    acts = _read_actions(action, lead)
    given = {"terminals": terminals, "timeouts": timeouts, "sampled": sampled}
    marks = {name: _read_flags(name, flag, acts.shape[:lead]) for name, flag in given.items() if flag is not None}
    drawn = marks.pop("sampled", None)
    states, sizes = flatten_arrays(observation, lead, ignore)
    nexts = None if next_observation is None else flatten_arrays(next_observation, lead, ignore)[0]
    if nexts is not None and nexts.shape != states.shape:
        raise ValueError(f"next_observation has shape {list(nexts.shape)}; expected {list(states.shape)}.")
    ended = np.any(list(marks.values()), 0) if marks else None
    if lead == 2:
        steps = _padded_lengths(steps, ended, acts.shape[:2])
        ended = None
        more = states.shape[1] - acts.shape[1]  # 1 where episodes have a last state of their own
        real = np.arange(acts.shape[1]) < steps[:, None]  # [E, T]
        states = states[np.arange(states.shape[1]) < steps[:, None] + more]
        acts = acts[real]
        nexts = None if nexts is None else nexts[real]
        drawn = None if drawn is None else drawn[real]
    elif steps is not None and acts.ndim > 2 and len(steps) == len(acts) < steps.sum():
        given_shapes = ", ".join(str([*np.shape(part)]) for _, part in _named_parts(observation))
        raise ValueError(
            f"observation has shape {given_shapes} and action {[*acts.shape]} for {len(steps)} lengths; padded "
            "episodes [E, T, ...] have as many of each, and as many steps, or one more observation. Correct the arrays."
        )
    has_last = nexts is None and len(states) > len(acts)
    ends = _find_ends(states, nexts, ended, steps, len(acts), has_last)
    counts = np.diff(np.flatnonzero(ends), prepend=-1)  # [E]
    if nexts is not None:
        states = np.insert(states, np.flatnonzero(ends) + 1, nexts[ends], 0)
    elif not has_last:  # what the action of a last row led to is not known
        counts -= 1
        acts = acts[~ends]
        drawn = None if drawn is None else drawn[~ends]
    acts, space = _fit_actions(acts, space)
    return Recording(states, acts, counts, sizes, space, drawn, source)


def join_episodes(
    episodes: Iterable[tuple[Any, Any]], space: gymnasium.Space[Any] | None, ignore: Sequence[str], source: str
) -> Recording:
    """Join episodes of observations [T + 1, ...] and actions [T, ...]."""
    space = _readable_space(space)
    states: list[Table] = []
    actions: list[Table] = []
    sizes: dict[str, int] = {}
    for place, (observation, action) in enumerate(episodes):
        table, found = flatten_arrays(observation, 1, ignore)
        acts = _read_actions(action, 1)
        if sizes and found != sizes:
            raise ValueError(
                f"Episode {place} of {source} has the parts {found}; those before it have {sizes}. Remove this "
                "episode, or leave out the parts that differ."
            )
        if not len(table):
            raise ValueError(f"Episode {place} of {source} is empty; remove it.")
        if len(table) != len(acts) + 1:
            counts = f"{len(table)} observations and {len(acts)} actions"
            raise ValueError(f"Episode {place} of {source} has {counts}; expected one observation more than actions.")
        if actions and acts.shape[1:] != actions[0].shape[1:]:
            widths = [int(np.prod(one.shape[1:])) for one in (acts, actions[0])]
            raise ValueError(
                f"Episode {place} of {source} has actions of {widths[0]} number(s), shape {list(acts.shape)}; those "
                f"before it have {widths[1]}. Remove this episode, or give all the same actions."
            )
        sizes = found
        states.append(table)
        actions.append(acts)
    if not states:
        raise ValueError(f"{source} has no episodes.")
    acts, space = _fit_actions(np.concatenate(actions), space)
    length = np.array([len(table) - 1 for table in states], np.int64)
    return Recording(np.concatenate(states), acts, length, sizes, space, source=source)


def flatten_arrays(
    tree: Any, lead: int, ignore: Sequence[str] = (), what: str = "observation"
) -> tuple[Table, dict[str, int]]:
    """Concatenate the arrays of a nested dictionary in the order of their names: [..., D], and their sizes by path.

    The first `lead` axes are those of rows, or of episodes and steps.
    """
    parts = dict(_named_parts(tree))
    if unknown := [path for path in ignore if path not in parts]:
        known = ", ".join(filter(None, parts)) or "no parts"
        raise ValueError(f"ignore names {', '.join(unknown)}, but the {what} has {known}.")
    columns: dict[str, Table] = {}
    for path in (path for path in parts if path not in ignore):
        name = f"{what} {path!r}" if path else what
        advice = f", or leave it out with --ignore {path}" if path else ""
        value = parts[path]
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise ValueError(f"{name} is a masked array with masked values; remove or fill them{advice}.")
        array = np.empty(0, object) if isinstance(value, tuple) else np.asarray(value)
        if array.dtype.kind not in "fiub":
            kind = f"{type(value).__name__} of type {array.dtype}"
            raise TypeError(f"{name} is a {kind}; expected numbers or dictionaries of numbers{advice}.")
        if array.ndim < lead:
            raise ValueError(f"{name} has shape {list(array.shape)}; expected one row per step.")
        shape = array.shape[lead:]
        if is_image(shape, array.dtype == np.uint8):
            advice = advice or "; choose other columns of a file with --observe"
            raise ValueError(f"{name} holds images {list(shape)}; influence needs positions and velocities{advice}.")
        columns[path] = array.reshape(*array.shape[:lead], int(np.prod(shape)))
    if not columns:
        raise ValueError(f"The {what} has no part left; ignore fewer.")
    rows = {path: array.shape[:lead] for path, array in columns.items()}
    if len(set(rows.values())) > 1:
        raise ValueError(f"The parts of the {what} differ in their number of rows: {rows}.")
    dtype = np.result_type(np.float32, *columns.values())
    table = np.concatenate([array.astype(dtype, copy=False) for array in columns.values()], -1)
    if not table.shape[-1]:
        raise ValueError(f"{what} has shape {list(table.shape)}, without any number; give at least one column.")
    return table, {path: array.shape[-1] for path, array in columns.items()}


def _named_parts(tree: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    """The leaves of a nested dictionary with their paths, in the order of the names at every level."""
    if not isinstance(tree, Mapping):
        yield path, tree
        return
    for name in sorted(tree, key=str):
        yield from _named_parts(tree[name], f"{path}/{name}" if path else str(name))


def _read_actions(action: Any, lead: int) -> Table:
    if isinstance(action, Mapping):
        return flatten_arrays(action, lead, what="action")[0]
    if np.ndim(action) < lead:
        raise ValueError(f"action is {action!r}; expected one row per step.")
    return np.asarray(action)


def _readable_space(space: gymnasium.Space[Any] | None) -> spaces.Discrete | spaces.Box | None:
    """A Discrete as it is, the Boxes of another space as one, in the order of `flatten_arrays`."""
    if space is None or isinstance(space, spaces.Discrete):
        return space
    boxes = list(parts_of(space).values())
    if not all(isinstance(box, spaces.Box) for box in boxes):
        raise TypeError(f"The action space is {space}; expected a Box, a Dict of Boxes, or a Discrete.")
    low, high = (np.concatenate([getattr(box, side).ravel() for box in boxes]) for side in ("low", "high"))
    return spaces.Box(low.astype(float), high.astype(float), dtype=np.float64)


def _fit_actions(
    actions: Table, space: spaces.Discrete | spaces.Box | None
) -> tuple[Table, spaces.Discrete | spaces.Box | None]:
    """Actions [N, A], or integers [N] from 0 on, and their space if it is bounded."""
    if not len(actions):
        raise ValueError("There are no steps; give episodes with actions.")
    if actions.dtype.kind not in "fiub":
        raise TypeError(f"action is of type {actions.dtype}; expected numbers.")
    columns = actions.reshape(len(actions), int(np.prod(actions.shape[1:])))  # [N, A]
    if not columns.shape[1]:
        raise ValueError(f"action has shape {list(actions.shape)}, without any number; give at least one column.")
    whole = actions.dtype.kind in "iub"
    if isinstance(space, spaces.Discrete) or (space is None and whole):
        if columns.shape[1] != 1:
            raise ValueError(f"action has integers in {columns.shape[1]} columns; {DISCRETE}.")
        start = 0 if space is None else int(space.start)
        found = columns[:, 0].astype(np.int64) - start
        if found.min() < 0 or found.max() >= MOST_ACTIONS:
            raise ValueError(f"action has integers from {columns.min()} to {columns.max()}; {DISCRETE}.")
        return found, None if space is None else spaces.Discrete(int(space.n))
    if space is None:
        return columns, None
    bounded = bool((space.high - space.low < LARGEST).all())  # some environments use the largest float for no bound
    return columns.astype(np.float64 if whole else columns.dtype, copy=False), space if bounded else None


def _is_padded(observation: Any, action: Any, ended: Any, length: Lengths | None, nexts: Any) -> bool:
    """Whether arrays are [E, T, ...]: an observation has as many steps as the actions, or one more."""
    acts = np.shape(next((part for _, part in _named_parts(action)), 0))
    shapes = [np.shape(part) for _, part in _named_parts(observation) if not isinstance(part, tuple)]
    fitting = [(acts[0], steps) for steps in (acts[1], acts[1] + 1)] if len(acts) > 1 else []
    if not all(shape[:2] in fitting for shape in shapes) or max(map(len, shapes), default=0) < 3:
        return False
    # Matrices [N, A, B] with actions [N, A] have the same shapes as episodes; what marks the ends decides.
    if ended is not None:
        return bool(np.size(ended) == acts[0] * acts[1])
    return len(acts) > 2 or (nexts is None if length is None else len(length) == acts[0])


def _read_flags(name: str, given: Any, shape: tuple[int, ...]) -> Bool:
    """Booleans, or the numbers 0 and 1, as booleans [N] or [E, T]."""
    flags = np.asarray(given)
    if flags.size != np.prod(shape):
        raise ValueError(f"{name} has shape {list(flags.shape)}; expected {list(shape)} like action.")
    flags = (flags if flags.dtype.kind in "fiub" else flags.astype(object)).reshape(shape)
    right = (flags == 0) | (flags == 1)
    if not right.all():
        row = ", ".join(map(str, np.argwhere(~right)[0]))
        raise ValueError(f"{name} has {flags[~right].tolist()[0]!r} in row {row}; expected booleans, or 0 and 1.")
    return flags.astype(bool)


def _read_lengths(length: Any) -> Lengths:
    """The number of rows of each episode [E]."""
    given = np.asarray(length).reshape(-1)
    if given.dtype.kind not in "fiu" or not ((given >= 1) & (given % 1 == 0)).all():
        raise ValueError(f"length is {length!r}; expected integers of at least 1, one for each episode.")
    return given.astype(np.int64)


def _padded_lengths(length: Lengths | None, ended: Bool | None, shape: tuple[int, int]) -> Lengths:
    """The number of steps [E] of padded episodes [E, T]: `length`, or up to the first step at which one ended."""
    episodes, steps = shape
    if length is None:
        return np.full(episodes, steps) if ended is None else np.where(ended.any(1), ended.argmax(1) + 1, steps)
    if len(length) != episodes or length.max(initial=0) > steps:
        found = f"{len(length)} numbers up to {length.max(initial=0)}"
        raise ValueError(f"length has {found}; expected one for each of {episodes} episodes, up to {steps}.")
    return length


def _find_ends(
    states: Table, nexts: Table | None, ended: Bool | None, length: Lengths | None, steps: int, has_last: bool
) -> Bool:
    """Which steps [N] end an episode; `has_last`: each episode has one state more than steps."""
    if ended is None and length is None and nexts is None and not has_last:
        raise ValueError("Episodes have no known ends; give terminals, timeouts, length or next_observation.")
    ends = np.zeros(steps, bool) if ended is None or (has_last and length is not None) else ended.copy()
    ends[-1:] = True
    if length is not None:
        if length.sum() != steps:
            raise ValueError(f"length has the sum {length.sum()}; expected {steps}, the number of actions.")
        ends[np.cumsum(length) - 1] = True
    if len(states) != steps + has_last * ends.sum():
        raise ValueError(
            f"There are {len(states)} observations and {steps} actions in {ends.sum()} episode(s); expected as many "
            "observations as actions, or one more for each episode. Correct length or terminals."
        )
    if nexts is not None:
        after = nexts[:-1]
        here = states[1:]
        ends[:-1] |= ((after != here) & ~(np.isnan(after) & np.isnan(here))).any(1)
    return ends
