"""Which columns of an observation are swapped with an entity, and which follow from others and are computed again.

A swap takes the columns of an entity from another state. Columns that belong to no entity would keep the values of the
old state. If they are a linear function of the entities, such as a difference of two positions or an achieved goal,
they are computed again; a desired goal comes with the entity that the achieved goal is of; others are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from butfor.datasets.recording import Recording, Table
from butfor.envs.facts import EnvFacts
from butfor.rollouts.swaps import Swaps

EXACT = 1e-4  # standard deviations: the largest error of a column that follows from others
USED = 1e-3  # standard deviations: the least change by a column that counts as a source
ROWS = 20_000  # from which the functions are fitted; they are checked in all
TINY = 1e-12
DIGITS = 3  # a function that is as good with coefficients rounded to so many is that one
ACHIEVED = "achieved_goal"
DESIRED = "desired_goal"


@dataclass(frozen=True)
class SwapColumns:
    """The columns of each entity, and how those that belong to none are filled."""

    entities: dict[str, list[int]]
    facts: EnvFacts | None  # of the environment, if it is built-in
    first: int  # column with which its observation begins
    following: list[int]  # columns that are a linear function of the entities'
    sources: list[int]
    weights: Table  # [sources, following]
    offset: Table  # [following]
    goal: list[int]  # columns of the desired goal
    goal_entity: int | None  # the place of the entity that the achieved goal is of

    def hide(self, recording: Recording) -> Recording:
        """A recording without what belongs to two entities or to none: relative columns absolute or 0, others 0."""
        observation = self._absolute(recording.observation)
        observation[:, self.following + self.goal] = 0
        return replace(recording, observation=observation)

    def finish(self, observation: Table) -> Table:
        """Swapped observations [..., D] of the hidden recording as the environment would show them, without goals."""
        found = np.array(observation)
        found[..., self.following] = observation[..., self.sources] @ self.weights + self.offset
        if self.facts is not None:
            found[..., self.first :] = self.facts.from_absolute(found[..., self.first :])
        return found

    def finish_swaps(self, swaps: Swaps, recording: Recording) -> Swaps:
        """Swaps as they are written: computed columns, and the goal of the episode that the goal's object is from."""
        found = self.finish(swaps.observation)
        if self.goal:
            steps = np.where(swaps.entity == self.goal_entity, swaps.donor, swaps.base)
            rows = np.flatnonzero(~recording.last)[steps][:, None] + np.arange(found.shape[1])
            found[..., self.goal] = recording.observation[rows][..., self.goal]
        return replace(swaps, observation=found)

    def _absolute(self, observation: Table) -> Table:
        found = np.array(observation)
        if self.facts is not None:
            found[..., self.first :] = self.facts.to_absolute(found[..., self.first :])
        return found


def find_columns(recording: Recording, entities: Mapping[str, Sequence[int]], facts: EnvFacts | None) -> SwapColumns:
    """Find how the columns outside of the entities follow from them.

    Args:
        recording: the data.
        entities: columns of each entity.
        facts: of the environment, if it is built-in and the observation is all of it.

    Raises:
        ValueError: a column belongs to two entities, or is a function of two, or belongs to none and is not a function.
    """
    named = {column: name for name, own in entities.items() for column in own}
    sources = list(named)
    for name, own in entities.items():
        if twice := [column for column in own if named[column] != name]:
            words = describe_columns(twice, recording.sizes)
            raise ValueError(f"The entities {name!r} and {named[twice[0]]!r} both have {words}; name it in one.")
    first = observation_starts(recording.sizes)
    own_entities = {name: list(own) for name, own in entities.items()}
    nothing = np.zeros((len(sources), 0))
    found = SwapColumns(own_entities, facts, first, [], sources, nothing, np.zeros(0), [], None)
    table = found._absolute(recording.observation).astype(np.float64)
    episode = recording.episode
    starts = np.flatnonzero(np.diff(episode, prepend=-1))
    varies = np.ptp(table, axis=0) > 0
    moves = (table != table[starts][episode]).any(0)  # within an episode
    if facts is None:
        _check_entities(table, moves, entities, recording.sizes)
    goal = [column for column in _part(recording.sizes, DESIRED) if column not in named]
    others = [column for column in np.flatnonzero(varies).tolist() if column not in named and column not in goal]
    weights, offset, error = _fit(table[:, sources], table[:, others])
    wrong = [column for column, off in zip(others, error, strict=True) if off > EXACT or not moves[column]]
    if wrong:
        words = describe_columns(wrong, recording.sizes)
        raise ValueError(
            f"No entity has {words}, and no linear function of the entities gives what is there: a new state would "
            "keep what the old one had. Name such columns with the entity that they describe, those of the robot "
            "or of time with the agent, which keeps its own. Leave a whole part of the observation out with --ignore."
        )
    achieved = [column for column in _part(recording.sizes, ACHIEVED) if column in others]
    place = goal_entity(table, entities, table[:, achieved]) if achieved else None
    return replace(found, following=others, weights=weights, offset=offset, goal=goal, goal_entity=place)


def goal_entity(observation: Table, entities: Mapping[str, Sequence[int]], achieved: Table) -> int | None:
    """The place of the entity of which achieved goals [S, G] are a linear function; None if there is not one."""
    for place, own in enumerate(entities.values()):
        if (_fit(observation[:, list(own)].astype(np.float64), achieved.astype(np.float64))[2] <= EXACT).all():
            return place
    return None


def observation_starts(sizes: Mapping[str, int]) -> int:
    """The column with which the part `observation` begins, in the data of goal-conditioned environments."""
    part = _part(sizes, "observation")
    return part[0] if part else 0


def describe_columns(columns: Sequence[int], sizes: Mapping[str, int]) -> str:
    """Columns in words: "columns 6:9, 12", or "columns observation:6:9" of a dictionary."""
    pieces = []
    first = 0
    for part, size in sizes.items():
        own = sorted(column - first for column in columns if first <= column < first + size)
        runs = np.split(own, np.flatnonzero(np.diff(own) > 1) + 1) if own else []
        name = f"{part}:" if part and len(sizes) > 1 else ""
        pieces += [f"{name}{run[0]}" if len(run) == 1 else f"{name}{run[0]}:{run[-1] + 1}" for run in runs]
        first += size
    return ("columns " if len(columns) > 1 else "column ") + ", ".join(pieces)


def _part(sizes: Mapping[str, int], name: str) -> list[int]:
    """The columns of a part of the observation; none if there is no such part."""
    first = 0
    for part, size in sizes.items():
        if part == name:
            return list(range(first, first + size))
        first += size
    return []


def _fit(given: Table, wanted: Table) -> tuple[Table, Table, Table]:
    """Coefficients [K, n] and offset [n] of columns [S, n] as a linear function of others [S, K], and their errors [n].

    An error is the largest one of any row, in standard deviations of the column.
    """
    if not wanted.shape[1]:
        return np.zeros((given.shape[1], 0)), np.zeros(0), np.zeros(0)
    spreads = [np.maximum(part.std(0), TINY) for part in (given, wanted)]
    some = np.random.default_rng(0).permutation(len(given))[:ROWS]
    inputs, targets = ((part - part.mean(0))[some] / size for part, size in zip((given, wanted), spreads, strict=True))
    fitted = np.linalg.lstsq(inputs, targets, rcond=1e-9)[0] * spreads[1] / spreads[0][:, None]
    found = []
    for weights in (np.round(fitted, DIGITS), fitted):
        offset = (wanted - given @ weights).mean(0)
        offset[np.abs(offset) < EXACT * spreads[1]] = 0
        error = np.abs(wanted - given @ weights - offset).max(0) / spreads[1]
        found.append((weights, offset, error))
    simple = found[0][2] <= EXACT
    weights, offset, error = (np.where(simple, *parts) for parts in zip(*found, strict=True))
    return weights, offset, error


def _check_entities(
    table: Table, moves: Table, entities: Mapping[str, Sequence[int]], sizes: Mapping[str, int]
) -> None:
    """Refuse columns of an entity that are a linear function of columns that were named before, of another entity.

    Columns that are constant within each episode are not looked at: with few episodes they are such a function by
    chance.
    """
    owner = {column: name for name, own in entities.items() for column in own if moves[column]}
    columns = list(owner)
    if not columns:
        return
    some = np.random.default_rng(0).permutation(len(table))[:ROWS]
    rows = table[some][:, columns]
    scaled = (rows - rows.mean(0)) / np.maximum(rows.std(0), TINY)
    left = np.abs(np.diagonal(np.linalg.qr(scaled, mode="r"))) / np.sqrt(len(rows))  # not explained by those before
    for place in np.flatnonzero(left <= EXACT):
        if not place:
            continue
        before, column = columns[:place], columns[place]
        weights, _, error = _fit(table[:, before], table[:, [column]])
        size = np.abs(weights[:, 0]) * table[:, before].std(0) / max(table[:, column].std(), TINY)
        used = {owner[other] for other, share in zip(before, size, strict=True) if share > USED}
        if error[0] <= EXACT and used - {owner[column]}:
            words = describe_columns([column], sizes)
            raise ValueError(
                f"{words[0].upper()}{words[1:]} of {owner[column]!r} is a linear function of columns of "
                f"{', '.join(sorted(used))}, such as a difference of positions. Leave it out of the entities: what "
                "follows from them is computed again in the new states."
            )
