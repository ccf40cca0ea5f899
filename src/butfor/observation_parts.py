"""Observations in parts: a dictionary's arrays side by side, as one table of numbers that a model sees."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from butfor.entities import parse_entities

GOAL_PARTS = {"observation", "achieved_goal", "desired_goal"}


def part_sizes(space: spaces.Space[Any], path: str = "") -> dict[str, int]:
    """How many numbers each part of an observation has, by its path, in the order of the parts' names."""
    if isinstance(space, spaces.Dict):
        named = sorted(((str(key), part) for key, part in space.items()), key=lambda pair: pair[0])
        parts = [part_sizes(part, f"{path}/{key}" if path else key) for key, part in named]
        return {name: size for sizes in parts for name, size in sizes.items()}
    what = f"the part {path!r} of the observation" if path else "the observation"
    if not isinstance(space, spaces.Box):
        raise TypeError(f"Influence needs states that are numbers; {what} is {space}. Wrap it in FlattenObservation.")
    return {path: math.prod(space.shape)}


def choose_parts(
    space: spaces.Space[Any], parts: Sequence[str] | None = None, columns: int | None = None
) -> dict[str, int]:
    """The parts that a model sees, with their sizes: those named, else `observation` of a goal world, else all.

    `columns` is how many numbers the model was fitted on, where it is there already; theirs must be as many.
    """
    every = part_sizes(space)
    if parts is not None:
        if isinstance(parts, str) or not parts or not set(parts) <= set(every) or len(set(parts)) < len(parts):
            raise ValueError(f"parts is {parts!r}; expected a list of some of {', '.join(map(repr, every))}.")
        choices = [tuple(parts)]
    else:
        choices = [("observation",), tuple(every)] if set(every) >= GOAL_PARTS else [tuple(every)]
    for choice in choices:
        if columns is None or sum(every[part] for part in choice) == columns:
            for part in choice:
                _refuse_images(space, part)
            return {part: every[part] for part in choice}
    shown = ", ".join(f"{part or 'the observation'} ({size} columns)" for part, size in every.items())
    raise ValueError(
        f"The Influence was fitted on states of {columns} columns; the world has {shown}. Name the parts that it was "
        "fitted on by parts=, or fit one on this world's states."
    )


def entity_columns(
    texts: Sequence[str] | str, sizes: Mapping[str, int], space: spaces.Space[Any]
) -> dict[str, tuple[int, ...]]:
    """Columns of entities in words, such as "cube=observation:3:6", in the parts that the model sees."""
    try:
        return parse_entities([texts] if isinstance(texts, str) else texts, sizes)
    except ValueError as error:
        unseen = [part for part in part_sizes(space) if part not in sizes]
        hint = f" The model sees {', '.join(unseen)} only where parts= names them." if unseen else ""
        raise ValueError(f"{error}{hint}") from error


def flatten_parts(obs: Any, parts: Mapping[str, int], rows: int) -> NDArray[Any]:
    """The parts of one observation (rows = 1) or of a batch, side by side, as a copy: [rows, D]."""
    pieces = []
    for path in parts:
        value = obs
        for key in path.split("/") if path else []:
            value = value[key]
        pieces.append(np.asarray(value).reshape(rows, -1))
    return np.concatenate(pieces, axis=1)


def _refuse_images(space: spaces.Space[Any], path: str) -> None:
    """CAI is of states: whole numbers up to 255 in two dimensions or more are pixels."""
    found: Any = space
    for key in path.split("/") if path else []:
        found = found[key]
    if len(found.shape) > 1 and found.dtype == np.uint8:
        what = f"the part {path!r} of the observation" if path else "the observation"
        raise TypeError(f"Influence needs states, not images; {what} is {found}. Name other parts by parts=.")
