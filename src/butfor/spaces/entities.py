"""Entities named in words: `cube=3:6` is columns 3, 4, 5 of an observation, `cube=observation:3:6` those of a part."""

import re
from collections.abc import Mapping, Sequence

EXAMPLE = "name=first:last or name=column,column, as in cube=3:6 (columns 3, 4 and 5)"


def parse_entities(texts: Sequence[str], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Columns of each named entity: ["cube=3:6"] -> {"cube": (3, 4, 5)}.

    `sizes` gives the size of each part of the observation, in the order in which the parts stand side by side; a part
    is named by its path in a dictionary, such as `observation` or `robot/arm`. Where there is one part, its path may be
    left out; the only part of a plain observation has the path "".
    """
    entities: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, where = text.partition("=")
        if not equals or not name.strip() or not where.strip():
            raise ValueError(f"The entity {text!r} cannot be read; expected {EXAMPLE}.")
        name = name.strip()
        if name in entities:
            raise ValueError(f"The entity {name!r} is named twice; give each a name of its own.")
        columns = _columns(text, where.strip(), sizes)
        if len(set(columns)) < len(columns):
            raise ValueError(f"The entity {text!r} names a column twice.")
        entities[name] = tuple(columns)
    return entities


def _columns(text: str, where: str, sizes: Mapping[str, int]) -> list[int]:
    """The columns that the right-hand side of an entity names; a path holds for the ranges after it."""
    columns: list[int] = []
    path = next(iter(sizes)) if len(sizes) == 1 else None
    for piece in where.split(","):
        found = re.fullmatch(r"(?:(?P<path>.*[^\d:].*?):)?(?P<first>\d*)(?P<to>:?)(?P<last>\d*)", piece.strip())
        if found is None or not (found["first"] or found["to"]):
            if piece.strip() in sizes:  # a part as a whole
                found = re.fullmatch(r"(?P<path>.*)(?P<first>)(?P<to>)(?P<last>)", piece.strip())
            if found is None or found["path"] not in sizes:
                raise ValueError(f"The entity {text!r} cannot be read at {piece.strip()!r}; expected {EXAMPLE}.")
        path = found["path"] or path
        known = ", ".join(f"{part or 'the observation'} ({size} columns)" for part, size in sizes.items())
        if path is None:
            raise ValueError(f"The entity {text!r} does not say in which part of the observation it is: {known}.")
        if path not in sizes:
            raise ValueError(f"The entity {text!r} is in {path!r}, which the observation does not have: {known}.")
        size, whole = sizes[path], not found["first"] and not found["to"]
        first = int(found["first"] or 0)
        last = size if whole else int(found["last"] or size) if found["to"] else first + 1
        if first >= last:
            raise ValueError(f"The entity {text!r} names no column: its first column {first} is not before {last}.")
        if last > size:
            place = repr(path) if path else "the observation"
            raise ValueError(f"The entity {text!r} names columns {first} to {last - 1}; {place} has 0 to {size - 1}.")
        start = sum(list(sizes.values())[: list(sizes).index(path)])
        columns += range(start + first, start + last)
    return columns
