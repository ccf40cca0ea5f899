"""Anyone's episodes, of unequal lengths, as one table of states: from arrays, padded arrays or lists of episodes.

Observations may be dictionaries, also nested: their parts stand side by side in the order of their names, each with its
path (`robot/arm`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from butfor.rollouts.episodes import Bool
from butfor.spaces.actions import MOST_ACTIONS
from butfor.spaces.entities import Entities, entity_columns
from butfor.spaces.observations import is_image

Table = NDArray[Any]
LARGEST = np.finfo(np.float32).max  # the model computes in single precision


@dataclass(frozen=True)
class Recording:
    """E episodes one after the other, N steps in all; each has one state more than steps, so there are S = N + E."""

    observation: Table  # [S, D]
    action: Table  # [N, A], or whole numbers [N] of discrete actions
    length: NDArray[np.int64]  # [E], in steps
    sizes: dict[str, int]
    """how many columns each part of the observation has, by its path; "" is the path of a plain observation"""
    action_space: gymnasium.Space[Any] | None = None
    """None: the smallest that holds the actions"""
    sampled: Bool | None = None  # [N]: the action came from a known law with full support
    source: str = "arrays"

    def __len__(self) -> int:
        return len(self.length)

    @property
    def episode(self) -> NDArray[np.int64]:
        """The episode of each state: [S]."""
        return np.repeat(np.arange(len(self.length)), self.length + 1)

    @property
    def time(self) -> NDArray[np.int64]:
        """The step of each state within its episode: [S]."""
        first = np.cumsum(self.length + 1) - self.length - 1
        return np.arange(len(self.observation)) - np.repeat(first, self.length + 1)

    @property
    def last(self) -> Bool:
        """Which states end an episode, so that no action was taken in them: [S]."""
        ends: Bool = self.time == np.repeat(self.length, self.length + 1)
        return ends

    def transitions(self, chosen: Bool | None = None) -> tuple[Table, Table, Table]:
        """obs [n, D], action [n, A] or [n] and next_obs [n, D] of all steps, or of the `chosen` [N]."""
        before = np.flatnonzero(~self.last)  # [N]: the rows in which a step begins
        rows = np.arange(len(before)) if chosen is None else np.flatnonzero(chosen)
        return self.observation[before[rows]], self.action[rows], self.observation[before[rows] + 1]

    def entities(self, entities: Entities) -> dict[str, list[int]]:
        """Columns of entities that are named in words, such as ["cube=3:6"] or ["cube=observation:3:6"]."""
        return entity_columns(entities, self.sizes)


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
    """Episodes from arrays; observations may be nested dictionaries of arrays.

    They have one row a step, [N, D], and episodes end at `terminals` or `timeouts` [N], or after `length` [E] rows, or
    where `next_observation` is not the following row. Or they are padded, [E, T, D], with `length`; or they are lists
    of episodes. Where an episode has one observation more than actions, that is its last state. Without it and without
    `next_observation` an episode's last row is its last state, and the action there is not used.
    """
    _check_space(action_space)
    if isinstance(observation, list | tuple) and len(observation) and _is_episode(observation[0]):
        if any(one is not None for one in (next_observation, terminals, timeouts, length, sampled)):
            raise ValueError("A list of episodes tells by itself where they end; leave the other arrays out.")
        if len(observation) != len(action):
            raise ValueError(f"There are {len(observation)} episodes of observations and {len(action)} of actions.")
        return join_episodes(zip(observation, action, strict=True), action_space, ignore, source)
    steps, told = None if length is None else _lengths(length), terminals if terminals is not None else timeouts
    lead = 2 if _is_padded(observation, action, told, steps, next_observation) else 1
    acts = flat_table(action, lead, what="action")[0] if isinstance(action, Mapping) else np.asarray(action)
    if acts.ndim < lead:
        raise ValueError("action is a single number; expected one row a step.")
    flags = {"terminals": terminals, "timeouts": timeouts, "sampled": sampled}
    marks = {name: _flags(name, flag, acts.shape[:lead]) for name, flag in flags.items() if flag is not None}
    drawn = marks.pop("sampled", None)
    ended = np.any(list(marks.values()), 0) if marks else None
    states, sizes = flat_table(observation, lead, ignore)
    nexts = None if next_observation is None else flat_table(next_observation, lead, ignore)[0]
    if nexts is not None and nexts.shape != states.shape:
        raise ValueError(f"next_observation has shape {list(nexts.shape)}; expected {list(states.shape)}.")
    if lead == 2:
        real = _real(acts.shape[1], ended, steps, len(acts))  # [E, T]
        if nexts is None and states.shape[1] > acts.shape[1]:
            states, nexts = states[:, :-1], states[:, 1:]
        states, acts, nexts = states[real], acts[real], None if nexts is None else nexts[real]  # -> [N, ...]
        ended, steps, drawn = None, real.sum(1), None if drawn is None else drawn[real]
    if nexts is None and len(states) > len(acts):  # the last states stand among the others
        if steps is None:
            edges = np.flatnonzero(ended[:-1]) if ended is not None else np.array([], int)
            steps = np.diff(edges, prepend=-1, append=len(acts) - 1)
        if steps.sum() != len(acts) or len(states) != len(acts) + len(steps):
            text = f"There are {len(states)} observations and {len(acts)} actions; {len(steps)} episode(s) of"
            wanted = f"{steps.sum() + len(steps)} and {steps.sum()}: one observation more than actions in each"
            raise ValueError(f"{text} {steps.sum()} steps in all have {wanted}. Correct length or terminals.")
        before = np.delete(np.arange(len(states)), np.cumsum(steps + 1) - 1)
        states, nexts = states[before], states[before + 1]
    ends = _ends(states, acts, nexts, ended, steps)
    rows, keep = np.flatnonzero(ends), np.ones(len(acts), bool)
    counts = np.diff(rows, prepend=-1)  # [E]
    if nexts is None:  # the action of a last row led to nothing that is known
        table, keep, counts = states, ~ends, counts - 1
    else:
        table = np.insert(states, rows + 1, nexts[ends], 0)  # [N, D] -> [S, D]
    acts, space = _actions(acts[keep], action_space)
    return _checked(Recording(table, acts, counts, sizes, space, None if drawn is None else drawn[keep], source))


def join_episodes(
    episodes: Iterable[tuple[Any, Any]], space: gymnasium.Space[Any] | None, ignore: Sequence[str], source: str
) -> Recording:
    """Episodes of observations [T + 1, ...] and actions [T, ...] one after the other."""
    _check_space(space)
    states, actions, sizes = list[Table](), list[Table](), dict[str, int]()
    for place, (observation, action) in enumerate(episodes):
        table, found = flat_table(observation, 1, ignore)
        acts = flat_table(action, 1, what="action")[0] if isinstance(action, Mapping) else np.asarray(action)
        if sizes and found != sizes:
            raise ValueError(f"Episode {place} of {source} has the parts {found}, those before it {sizes}.")
        if len(table) != len(acts) + 1:
            counts = f"{len(table)} observations and {len(acts)} actions"
            raise ValueError(f"Episode {place} of {source} has {counts}; expected one observation more than actions.")
        sizes = found
        states.append(table)
        actions.append(acts)
    if not states:
        raise ValueError(f"{source} holds no episode.")
    acts, space = _actions(np.concatenate(actions), space)
    length = np.array([len(table) - 1 for table in states], np.int64)
    return _checked(Recording(np.concatenate(states), acts, length, sizes, space, source=source))


def flat_table(
    tree: Any, lead: int, ignore: Sequence[str] = (), what: str = "observation"
) -> tuple[Table, dict[str, int]]:
    """Arrays of a nested dictionary side by side by the order of their names: [..., D], and their sizes by path."""
    parts = dict(_parts(tree))
    if unknown := [path for path in ignore if path not in parts]:
        known = ", ".join(filter(None, parts)) or "no parts"
        raise ValueError(f"ignore names {', '.join(unknown)}, but the {what} has {known}.")
    columns: dict[str, Table] = {}
    for path in (path for path in parts if path not in ignore):
        name = f"{what} {path!r}" if path else what
        array = _numbers(parts[path], name, f", or leave it out: --ignore {path}" if path else "")
        if array.ndim < lead:
            raise ValueError(f"{name} has shape {list(array.shape)}; expected one row a step.")
        shape = array.shape[lead:]
        size = int(np.prod(shape))
        if is_image(shape, array.dtype == np.uint8):
            advice = "give states, as positions and velocities" + (
                f", or leave it out: --ignore {path}" if path else ""
            )
            raise ValueError(f"{name} holds images ({list(shape)} a step); influence is measured on states: {advice}.")
        columns[path] = array.reshape(*array.shape[:lead], size)
    if not columns:
        raise ValueError(f"The {what} has no part left; ignore fewer.")
    if len({array.shape[:lead] for array in columns.values()}) > 1:
        shapes = ", ".join(f"{path} {list(array.shape)}" for path, array in columns.items())
        raise ValueError(f"The parts of the {what} differ in their number of rows: {shapes}.")
    kind = np.result_type(np.float32, *columns.values())
    table = np.concatenate([array.astype(kind, copy=False) for array in columns.values()], -1)
    return table, {path: array.shape[-1] for path, array in columns.items()}


def _parts(tree: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    """What stands at the ends of a nested dictionary, with its path, by the order of the names at every level."""
    if not isinstance(tree, Mapping):
        yield path, tree
        return
    for name in sorted(tree, key=str):
        yield from _parts(tree[name], f"{path}/{name}" if path else str(name))


def _numbers(value: Any, name: str, advice: str = "") -> Table:
    """An array of numbers; a tuple, which may hold anything, and texts are refused."""
    array = np.asarray(value) if not isinstance(value, tuple) else np.empty(0, object)
    if array.dtype.kind not in "fiub":
        kind = "a tuple" if isinstance(value, tuple) else f"of type {array.dtype}"
        expected = "expected arrays of numbers, or dictionaries of such (no text, no graphs)"
        raise TypeError(f"{name} is {kind}; {expected}{advice}.")
    return array


def _actions(actions: Table, space: gymnasium.Space[Any] | None) -> tuple[Table, gymnasium.Space[Any] | None]:
    """Actions [N, A] or whole numbers [N] from 0 on, with their space where it has bounds."""
    if not len(actions):
        raise ValueError("There is no step to learn from; give episodes with actions.")
    if actions.dtype.kind not in "fiub":
        raise TypeError(f"action is of type {actions.dtype}; expected numbers.")
    columns, whole = actions.reshape(len(actions), -1), actions.dtype.kind in "iub"  # [N, A]
    if isinstance(space, spaces.Discrete) or (space is None and whole):
        if columns.shape[1] != 1:
            text = f"action holds whole numbers in {columns.shape[1]} columns; several discrete actions at once are"
            raise ValueError(f"{text} not read. Save continuous actions as floats, and a discrete one as [N].")
        start = 0 if space is None else int(space.start)
        found = columns[:, 0].astype(np.int64) - start
        if found.min() < 0 or found.max() >= MOST_ACTIONS:
            text = f"action holds whole numbers from {columns.min()} to {columns.max()}; discrete actions run from"
            raise ValueError(f"{text} {start} on, {MOST_ACTIONS:,} at most. Save continuous actions as floats.")
        return found, None if space is None else spaces.Discrete(int(space.n))
    boxes = _boxes(space)
    if boxes is None:
        return columns, None
    low, high = (
        np.concatenate([getattr(box, side).ravel() for box in boxes]).astype(float) for side in ("low", "high")
    )
    bounded = bool((high - low < LARGEST).all())  # a Box without bounds may have the largest number there is
    dtype = np.float64 if whole else columns.dtype
    return columns.astype(dtype, copy=False), spaces.Box(low, high, dtype=np.float64) if bounded else None


def _check_space(space: gymnasium.Space[Any] | None) -> None:
    """Refuses a space of actions over which there is no uniform law here."""
    if space is not None and not isinstance(space, spaces.Discrete) and _boxes(space) is None:
        text = f"The action space is {space}; expected a Box, a dictionary of Boxes, or a Discrete"
        raise TypeError(f"{text}. Bring the actions into one of these.")


def _boxes(space: gymnasium.Space[Any] | None) -> list[spaces.Box] | None:
    """The Boxes of a space, in the order of `flat_table`; None where it holds something else."""
    if isinstance(space, spaces.Box):
        return [space]
    if not isinstance(space, spaces.Dict):
        return None
    inner = [_boxes(space[name]) for name in sorted(space.keys())]
    return None if any(boxes is None for boxes in inner) else [box for boxes in inner for box in boxes or ()]


def _is_episode(one: Any) -> bool:
    """Whether an item of a list is an episode of observations, not a row."""
    return isinstance(one, Mapping) or np.ndim(one) >= 2


def _is_padded(observation: Any, action: Any, ended: Any, length: NDArray[np.int64] | None, nexts: Any) -> bool:
    """Whether arrays are [E, T, ...]: an observation has as many steps as the actions, or one more."""
    acts = np.shape(next((part for _, part in _parts(action)), 0))
    shapes = [np.shape(part) for _, part in _parts(observation) if not isinstance(part, tuple)]
    fitting = [(acts[0], steps) for steps in (acts[1], acts[1] + 1)] if len(acts) > 1 else []
    if not all(shape[:2] in fitting for shape in shapes) or max(map(len, shapes), default=0) < 3:
        return False
    if ended is not None:  # matrices [N, A, B] with actions [N, A] look the same; what tells the ends decides
        return bool(np.size(ended) == acts[0] * acts[1])
    return len(acts) > 2 or (nexts is None if length is None else len(length) == acts[0])


def _flags(name: str, given: Any, shape: tuple[int, ...]) -> Bool:
    """Booleans, or the numbers 0 and 1, as booleans [N] or [E, T]; nothing else is taken for true."""
    flags = np.asarray(given)
    if flags.size != np.prod(shape):
        raise ValueError(f"{name} has shape {list(flags.shape)}; expected {list(shape)}, as the actions have.")
    flags = (flags if flags.dtype.kind in "fiub" else flags.astype(object)).reshape(shape)
    right = (flags == 0) | (flags == 1)
    if not right.all():
        row = ", ".join(map(str, np.argwhere(~right)[0]))
        raise ValueError(f"{name} holds {flags[~right].tolist()[0]!r} in row {row}; give booleans, or 0 and 1.")
    return flags.astype(bool)


def _lengths(length: Any) -> NDArray[np.int64]:
    """The number of rows of each episode: [E]."""
    given = np.asarray(length).reshape(-1)
    if given.dtype.kind not in "fiu" or not ((given >= 1) & (given % 1 == 0)).all():
        raise ValueError("length holds not only whole numbers from 1 on; give one for each episode that has steps.")
    return given.astype(np.int64)


def _real(steps: int, ended: Bool | None, length: NDArray[np.int64] | None, episodes: int) -> Bool:
    """Which steps of padded episodes are real: up to `length`, or to the first at which the episode ended: [E, T]."""
    if length is None:
        length = np.full(episodes, steps) if ended is None else np.where(ended.any(1), ended.argmax(1) + 1, steps)
    if len(length) != episodes or length.max(initial=0) > steps:
        shown = f"{len(length)} numbers up to {length.max(initial=0)}"
        raise ValueError(f"length holds {shown}; expected one for each of {episodes} episodes, up to {steps}.")
    real: Bool = np.arange(steps) < length[:, None]
    return real


def _ends(
    states: Table, actions: Table, nexts: Table | None, ended: Bool | None, length: NDArray[np.int64] | None
) -> Bool:
    """Which rows [N] end an episode."""
    if len(states) != len(actions):
        raise ValueError(f"There are {len(states)} observations and {len(actions)} actions; expected the same number.")
    if ended is None and length is None and nexts is None:
        advice = "give terminals or timeouts [N], or the length of each episode, or next_observation"
        raise ValueError(f"Nothing says where the episodes end; {advice}.")
    ends = np.zeros(len(states), bool) if ended is None else ended.copy()
    ends[-1:] = True
    if length is not None:
        if length.sum() != len(actions):
            raise ValueError(f"length has the sum {length.sum()}; expected {len(actions)}, the number of actions.")
        ends[np.cumsum(length[length > 0]) - 1] = True
    if nexts is not None:
        after, here = nexts[:-1], states[1:]
        ends[:-1] |= ((after != here) & ~(np.isnan(after) & np.isnan(here))).any(1)
    return ends


def _checked(recording: Recording) -> Recording:
    """Refuses what is not finite in single precision, with its place."""
    what = "NaN, infinity or a number too large for single precision"
    bad = np.argwhere(~(np.abs(recording.observation) <= LARGEST))
    if len(bad):
        row, column = bad[0].tolist()
        place = f"episode {recording.episode[row]}, step {recording.time[row]}, {_named_column(recording, column)}"
        count = len(np.unique(bad[:, 0]))
        raise ValueError(f"{recording.source} holds {what} in {count} state(s), first in {place}; leave those out.")
    bad = np.argwhere(~(np.abs(recording.action) <= LARGEST))
    if len(bad):
        row = np.flatnonzero(~recording.last)[bad[0, 0]]
        place = f"episode {recording.episode[row]}, step {recording.time[row]}"
        raise ValueError(f"{recording.source} holds an action with {what} in {place}; leave that episode out.")
    return recording


def _named_column(recording: Recording, column: int) -> str:
    """A column of all parts as one of its own part."""
    for path, size in recording.sizes.items():
        if column < size:
            return f"column {column} of {path!r}" if path else f"column {column}"
        column -= size
    return f"column {column}"
