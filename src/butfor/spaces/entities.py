"""Entities: named sets of observation columns, given as a mapping or as text such as `cube=3:6`."""

import operator
import re
from collections.abc import Mapping, Sequence

Entities = Mapping[str, Sequence[int]] | Sequence[str] | str
"""What users write: {"cube": [3, 4, 5]}, "cube=3:6", or ["cube=observation:3:6", "hand=0:3"]."""

LONGEST_NAME = 100  # bytes of an entity's name, which becomes part of the names of arrays and files
EXAMPLE = "name=first:last or name=column,column, as in cube=3:6 (columns 3, 4 and 5)"
PIECE = re.compile(r"(?:(?P<part>.*[^\d:].*?):)?(?:(?P<first>\d*)(?P<range>:)(?P<last>\d*)|(?P<column>\d+))")


def entity_columns(entities: Entities, sizes: Mapping[str, int] | int) -> dict[str, list[int]]:
    """Read which columns belong to each entity: "cube=3:6" -> {"cube": [3, 4, 5]}.

    Args:
        entities: a mapping from names to columns, one text, or a sequence of texts.
        sizes: the number of columns of the observation, or of each of its parts in the order in which they are
            concatenated. A part is named by its path in a dictionary, such as `observation` or `robot/arm`. With one
            part the path may be omitted.

    Returns:
        The columns of each entity in the concatenated parts, in the given order.

    Raises:
        TypeError: `entities` is neither a mapping to columns nor text.
        ValueError: an entity cannot be read, or its columns do not exist or occur twice.
    """
    parts = {"": sizes} if isinstance(sizes, int) else sizes
    sizes = {part or "observation": size for part, size in parts.items()}
    if isinstance(entities, str):
        entities = [entities]
    if isinstance(entities, Mapping):
        found = {name: _listed_columns(name, columns, sum(sizes.values())) for name, columns in entities.items()}
    elif isinstance(entities, Sequence) and all(isinstance(text, str) for text in entities):
        found = {}
        for text in entities:
            name, columns = _parse(text, sizes)
            if name in found:
                raise ValueError(f"The entity {name!r} is given twice; use different names.")
            found[name] = columns
    else:
        raise TypeError(f'entities is {entities!r}; expected {{"cube": [3, 4, 5]}} or text such as "cube=3:6".')
    if not found:
        raise ValueError(f"entities is empty; name at least one, {EXAMPLE}. The observation has {_in_words(sizes)}.")
    for name, columns in found.items():
        if not str(name).isprintable() or len(str(name).encode()) > LONGEST_NAME:
            raise ValueError(
                f"The entity name {name!r:.60} has characters that cannot be printed, or more than {LONGEST_NAME} "
                "bytes; choose another one."
            )
        if not columns or len(set(columns)) < len(columns):
            raise ValueError(f"The entity {name!r} has columns {columns}; expected at least one, each once.")
    return found


def _listed_columns(name: str, given: Sequence[int], size: int) -> list[int]:
    try:
        columns = [operator.index(column) for column in given]
        if any(isinstance(column, bool) for column in given):
            raise TypeError("a mask is not a list of columns")
    except TypeError as error:
        raise TypeError(f"The entity {name!r} has columns {given!r}; expected a list of integers.") from error
    for column in columns:
        if not 0 <= column < size:
            raise ValueError(f"The entity {name!r} has column {column}; observations have columns 0 to {size - 1}.")
    return columns


def _parse(text: str, sizes: Mapping[str, int]) -> tuple[str, list[int]]:
    """Name and columns of one text; a part's path also applies to the ranges after it."""
    name, _, where = (piece.strip() for piece in text.partition("="))
    if not name or not where:
        raise ValueError(f"The entity {text!r} cannot be read; expected {EXAMPLE}.")
    part = next(iter(sizes)) if len(sizes) == 1 else None
    columns: list[int] = []
    for piece in map(str.strip, where.split(",")):
        match = PIECE.fullmatch(piece)
        if piece in sizes:  # the whole part
            part, first, last = piece, 0, sizes[piece]
        elif match is None:
            raise ValueError(f"The entity {text!r} cannot be read at {piece!r}; expected {EXAMPLE}.")
        else:
            part = match["part"] or part
            if part is None or part not in sizes:
                where = "does not name its part of the observation" if part is None else f"is in part {part!r}"
                raise ValueError(
                    f"The entity {text!r} {where}; the observation has {_in_words(sizes)}. Name parts as in "
                    f"{name}={','.join(list(sizes)[:2])}, or {name}={next(iter(sizes))}:0:1 for some of its columns."
                )
            first = int(match["first"] or match["column"] or 0)
            last = int(match["last"] or sizes[part]) if match["range"] else first + 1
        if not first < last <= sizes[part]:
            reached = f"columns {first} to {last - 1}"
            raise ValueError(f"The entity {text!r} has {reached}; the observation has {_in_words(sizes)}.")
        start = sum(list(sizes.values())[: list(sizes).index(part)])
        columns += range(start + first, start + last)
    return name, columns


def _in_words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{part} (columns 0 to {size - 1})" for part, size in sizes.items())
