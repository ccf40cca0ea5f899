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

from butfor.entities import parse_entities
from butfor.episodes import Bool

Table = NDArray[Any]
IMAGE = 32 * 32  # numbers in a step: from here on a matrix, or a row of bytes, is taken for an image


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

    def entities(self, texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Columns of entities that are named in words, such as ["cube=3:6"] or ["cube=observation:3:6"]."""
        return parse_entities(texts, self.sizes)


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
    if isinstance(observation, list | tuple) and len(observation) and _is_episode(observation[0]):
        return join_episodes(zip(observation, action, strict=True), action_space, ignore, source)
    acts = flat_table(action, 1, what="action")[0] if isinstance(action, Mapping) else np.asarray(action)
    flags = [np.asarray(flag).astype(bool) for flag in (terminals, timeouts) if flag is not None]
    steps = None if length is None else np.asarray(length).astype(np.int64).reshape(-1)  # [E]
    lead = 2 if _is_padded(observation, acts) else 1
    for flag in flags:
        if flag.size != np.prod(acts.shape[:lead]):
            shape = f"expected {list(acts.shape[:lead])}, as the actions have"
            raise ValueError(f"terminals or timeouts have shape {list(flag.shape)}; {shape}.")
    ended = np.any([flag.reshape(acts.shape[:lead]) for flag in flags], 0) if flags else None
    states, sizes = flat_table(observation, lead, ignore)
    nexts = None if next_observation is None else flat_table(next_observation, lead, ignore)[0]
    drawn = None if sampled is None else np.asarray(sampled, bool)
    if nexts is not None and nexts.shape != states.shape:
        raise ValueError(f"next_observation has shape {list(nexts.shape)}; expected {list(states.shape)}.")
    if lead == 2:
        real = _real(acts.shape[1], ended, steps, len(acts))  # [E, T]
        if nexts is None and states.shape[1] > acts.shape[1]:
            states, nexts = states[:, :-1], states[:, 1:]
        states, acts, nexts = states[real], acts[real], None if nexts is None else nexts[real]  # -> [N, ...]
        ended, steps, drawn = None, real.sum(1), None if drawn is None else drawn[real]
    if nexts is None and len(states) > len(acts):  # the last states stand among the others
        steps = np.array([len(acts)]) if steps is None and len(states) == len(acts) + 1 else steps
        if steps is None or steps.sum() != len(acts) or len(states) != len(acts) + len(steps):
            told = "no length" if steps is None else f"length with the sum {steps.sum()} over {len(steps)} episodes"
            raise ValueError(f"There are {len(states)} observations, {len(acts)} actions and {told}; they do not fit.")
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
    parts = dict(_parts(tree, "", what))
    if unknown := [path for path in ignore if path not in parts]:
        known = ", ".join(sorted(parts)) or "nothing"
        raise ValueError(f"ignore names {', '.join(unknown)}, but the {what} has {known}.")
    columns: dict[str, Table] = {}
    for path, array in parts.items():
        name = f"{what} {path!r}" if path else what
        if path in ignore:
            continue
        shape = array.shape[lead:]
        size = int(np.prod(shape))
        if (size >= IMAGE or array.dtype == np.uint8) and (
            len(shape) > 1 or (size >= IMAGE and array.dtype == np.uint8)
        ):
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


def _parts(tree: Any, path: str, what: str) -> Iterable[tuple[str, Table]]:
    """The arrays of a nested dictionary with their paths, by the order of the names at every level."""
    if isinstance(tree, Mapping):
        for name in sorted(tree, key=str):
            yield from _parts(tree[name], f"{path}/{name}" if path else str(name), what)
        return
    named = f"{what} {path!r}" if path else what
    array = np.asarray(tree) if not isinstance(tree, tuple) else np.empty(0, object)
    if array.dtype.kind not in "fiub" or not array.ndim:
        kind = "a tuple" if isinstance(tree, tuple) else f"of type {array.dtype}"
        raise TypeError(f"{named} is {kind}; expected arrays of numbers, or dictionaries of such (no text, no graphs).")
    yield path, array


def _actions(actions: Table, space: gymnasium.Space[Any] | None) -> tuple[Table, gymnasium.Space[Any] | None]:
    """Actions [N, A] or whole numbers [N] from 0 on, with their space where it has bounds."""
    if not len(actions):
        raise ValueError("There is no step to learn from; give episodes with actions.")
    if actions.dtype.kind not in "fiub":
        raise TypeError(f"action is of type {actions.dtype}; expected numbers.")
    if isinstance(space, spaces.Discrete):
        return actions.reshape(len(actions)).astype(np.int64) - int(space.start), spaces.Discrete(int(space.n))
    boxes = _boxes(space)
    if space is not None and boxes is None:
        raise TypeError(f"The action space is {space}; expected a Box, a dictionary of Boxes, or a Discrete.")
    columns = actions.reshape(len(actions), -1)  # [N, A]
    if boxes is None:
        if actions.dtype.kind in "iub" and columns.shape[1] == 1:
            return columns[:, 0].astype(np.int64), None
        return columns, None
    low, high = (
        np.concatenate([getattr(box, side).ravel() for box in boxes]).astype(float) for side in ("low", "high")
    )
    bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
    dtype = np.float64 if columns.dtype.kind in "iub" else columns.dtype
    return columns.astype(dtype, copy=False), spaces.Box(low, high, dtype=np.float64) if bounded else None


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


def _is_padded(observation: Any, actions: Table) -> bool:
    """Whether arrays are [E, T, ...]: an observation has as many steps as the actions, or one more."""
    while isinstance(observation, Mapping) and observation:
        observation = next(iter(observation.values()))
    shape = np.shape(observation)
    return actions.ndim >= 2 and len(shape) >= 3 and shape[0] == len(actions) and 0 <= shape[1] - actions.shape[1] <= 1


def _real(steps: int, ended: Bool | None, length: NDArray[np.int64] | None, episodes: int) -> Bool:
    """Which steps of padded episodes are real: up to `length`, or to the first at which the episode ended: [E, T]."""
    if length is None:
        length = np.full(episodes, steps) if ended is None else np.where(ended.any(1), ended.argmax(1) + 1, steps)
    if len(length) != episodes or length.min(initial=0) < 0 or length.max(initial=0) > steps:
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
        raise ValueError(
            "Nothing says where the episodes end; give terminals or timeouts [N], or the length of each episode, or "
            "next_observation."
        )
    ends = np.zeros(len(states), bool) if ended is None else ended.copy()
    ends[-1:] = True
    if length is not None:
        if length.min(initial=0) < 0 or length.sum() != len(actions):
            raise ValueError(f"length has the sum {length.sum()}; expected {len(actions)}, the number of actions.")
        ends[np.cumsum(length[length > 0]) - 1] = True
    if nexts is not None:
        after, here = nexts[:-1], states[1:]
        ends[:-1] |= ((after != here) & ~(np.isnan(after) & np.isnan(here))).any(1)
    return ends


def _checked(recording: Recording) -> Recording:
    """Refuses what is not finite, with its place."""
    bad = np.argwhere(~np.isfinite(recording.observation))
    if len(bad):
        row, column = bad[0].tolist()
        place = f"episode {recording.episode[row]}, step {recording.time[row]}, {_named_column(recording, column)}"
        count = len(np.unique(bad[:, 0]))
        raise ValueError(
            f"{recording.source} holds NaN or infinity in {count} state(s), first in {place}; remove those episodes."
        )
    if not np.isfinite(recording.action).all():
        row = int(np.argwhere(~np.isfinite(recording.action))[0, 0])
        states = np.flatnonzero(~recording.last)[row]
        place = f"episode {recording.episode[states]}, step {recording.time[states]}"
        raise ValueError(f"{recording.source} holds an action with NaN or infinity in {place}; remove that episode.")
    return recording


def _named_column(recording: Recording, column: int) -> str:
    """A column of all parts as one of its own part."""
    for path, size in recording.sizes.items():
        if column < size:
            return f"column {column} of {path!r}" if path else f"column {column}"
        column -= size
    return f"column {column}"
