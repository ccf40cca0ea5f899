"""Observations in parts: a dictionary's arrays side by side, as one table of numbers that a model sees."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

GOAL_PARTS = {"observation", "achieved_goal", "desired_goal"}
IMAGE = 32 * 32  # numbers in a step: from here on a matrix, or a row of bytes, is taken for an image


def parts_of(space: spaces.Space[Any], path: str = "") -> dict[str, spaces.Space[Any]]:
    """What stands at the ends of a nested dictionary, by its path, in the order of the parts' names."""
    if not isinstance(space, spaces.Dict):
        return {path: space}
    named = sorted(((str(key), part) for key, part in space.items()), key=lambda pair: pair[0])
    parts = [parts_of(part, f"{path}/{key}" if path else key) for key, part in named]
    return {name: part for found in parts for name, part in found.items()}


def is_image(shape: Sequence[int], is_bytes: bool) -> bool:
    """Whether what a step shows is taken for an image: a large matrix, any matrix of bytes, or a long row of bytes."""
    large = math.prod(shape) >= IMAGE
    return (large and is_bytes) or ((large or is_bytes) and len(shape) > 1)


def part_size(path: str, part: spaces.Space[Any]) -> int:
    """How many numbers a part of an observation has; what is no state is refused."""
    what = f"the part {path!r} of the observation" if path else "the observation"
    others = "; or name the other parts by parts=" if path else ""
    if not isinstance(part, spaces.Box):
        raise TypeError(
            f"Influence needs states that are numbers; {what} is {part}. Wrap the world in FlattenObservation{others}."
        )
    if is_image(part.shape, part.dtype == np.uint8):
        raise TypeError(f"Influence needs states, not images; {what} is {part}{others}.")
    return math.prod(part.shape)


def choose_parts(
    space: spaces.Space[Any], parts: Sequence[str] | None = None, columns: int | None = None
) -> dict[str, int]:
    """The parts that a model sees, with their sizes: those named, else `observation` of a goal world, else all.

    `columns` is how many numbers the model was fitted on, where it is there already; theirs must be as many.
    """
    every = parts_of(space)
    if parts is not None:
        if isinstance(parts, str) or not parts or not set(parts) <= set(every) or len(set(parts)) < len(parts):
            raise ValueError(f"parts is {parts!r}; expected a list of some of {', '.join(map(repr, every))}.")
        choices = [list(parts)]
    else:
        choices = [list(every)]
        if isinstance(space, spaces.Dict) and set(space) >= GOAL_PARTS:
            choices.insert(0, [part for part in every if part.split("/")[0] == "observation"])
    for choice in choices:
        sizes = {part: part_size(part, every[part]) for part in choice}
        if columns is None or sum(sizes.values()) == columns:
            return sizes
    shown = ", ".join(f"{part or 'the observation'} ({size} columns)" for part, size in sizes.items())
    raise ValueError(
        f"The Influence was fitted on states of {columns} columns; the world has {shown}. Name the parts that it was "
        "fitted on by parts=, or fit one on this world's states."
    )


def flatten_parts(obs: Any, parts: Mapping[str, int], rows: int) -> NDArray[Any]:
    """The parts of one observation (rows = 1) or of a batch, side by side, as a copy: [rows, D]."""
    pieces = []
    for path in parts:
        value = obs
        for key in path.split("/") if path else []:
            value = value[key]
        pieces.append(np.asarray(value).reshape(rows, -1))
    return np.concatenate(pieces, axis=1)
