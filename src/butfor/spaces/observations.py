"""Observations in parts: the arrays of a dictionary, concatenated to one row of numbers for a model."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

GOAL_PARTS = {"observation", "achieved_goal", "desired_goal"}
IMAGE_SIZE = 32 * 32  # numbers from which on a matrix, or a row of bytes, is treated as an image


def parts_of(space: spaces.Space[Any], path: str = "") -> dict[str, spaces.Space[Any]]:
    """The leaves of a nested dictionary space by path, sorted by name; a plain space has the path ""."""
    if not isinstance(space, spaces.Dict):
        return {path: space}
    found: dict[str, spaces.Space[Any]] = {}
    for key, part in sorted(((str(key), part) for key, part in space.items()), key=lambda pair: pair[0]):
        found |= parts_of(part, f"{path}/{key}" if path else key)
    return found


def is_image(shape: Sequence[int], is_bytes: bool) -> bool:
    """Whether an array is treated as an image: a large matrix, any matrix of bytes, or a long row of bytes."""
    large = math.prod(shape) >= IMAGE_SIZE
    return (large and is_bytes) or ((large or is_bytes) and len(shape) > 1)


def choose_parts(
    space: spaces.Space[Any], parts: Sequence[str] | None = None, columns: int | None = None
) -> dict[str, int]:
    """Choose the parts of observations that a model sees.

    Args:
        space: the observation space.
        parts: their paths; default: `observation` of a goal-conditioned environment, otherwise all.
        columns: the number of columns that an existing model was fitted on, which the parts must have.

    Returns:
        The number of columns of each part.
    """
    every = parts_of(space)
    choices = [list(every if parts is None else parts)]
    if parts is not None:
        if isinstance(parts, str) or not parts or not set(parts) <= set(every) or len(set(parts)) < len(parts):
            raise ValueError(f"parts is {parts!r}; expected a list of some of {', '.join(map(repr, every))}.")
    elif isinstance(space, spaces.Dict) and set(space) >= GOAL_PARTS:
        choices.insert(0, [part for part in every if part.split("/")[0] == "observation"])
    for choice in choices:
        sizes = {part: _part_size(part, every[part]) for part in choice}
        if columns is None or sum(sizes.values()) == columns:
            return sizes
    shown = ", ".join(f"{part or 'observation'} ({size} columns)" for part, size in sizes.items())
    raise ValueError(
        f"The Influence was fitted on observations with {columns} columns; the environment has {shown}. Select the "
        "parts that it was fitted on with parts=, or fit one on observations of this environment."
    )


def _part_size(path: str, part: spaces.Space[Any]) -> int:
    what = f"the part {path!r} of the observation" if path else "the observation"
    others = ", or select other parts with parts=" if path else ""
    if not isinstance(part, spaces.Box):
        raise TypeError(f"Influence needs numbers, but {what} is {part}. Wrap the env in FlattenObservation{others}.")
    if is_image(part.shape, part.dtype == np.uint8):
        raise TypeError(f"Influence needs states, not images, but {what} is {part}. Use a state-based env{others}.")
    return math.prod(part.shape)


def flatten_parts(obs: Any, parts: Mapping[str, int], rows: int) -> NDArray[Any]:
    """Concatenate the parts of one observation (rows = 1) or of a batch, as a copy: [rows, D]."""
    pieces = []
    for path in parts:
        value = obs
        for key in path.split("/") if path else []:
            value = value[key]
        pieces.append(np.asarray(value).reshape(rows, -1))
    return np.concatenate(pieces, axis=1)
