"""Config dataclasses: checks of their values, JSON there and back, and how they differ from the defaults.

Every config is a frozen dataclass beside the code that uses it, and calls the checks in `__post_init__`.
"""

import dataclasses
import json
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
LARGEST = 3.4e38  # of the numbers that networks compute with, float32
REMOVED = {
    "priority.distribution": "rank",
    "priority.power": 1.0,
    "priority.importance": 0.0,
    "priority.within_episode": False,
    "replay.goals_by_score": False,
    "bonus.kind": "additive",
    "bonus.threshold": 0.5,
    "bonus.anneal_episodes": None,
    "explore.choice": "best",
}
"""options of training that older runs have recorded, with the only value that is left"""


def check_least(config: Any, least: float, *names: str) -> None:
    """Refuse fields below `least`, and NaN."""
    for name in names:
        if not getattr(config, name) >= least:
            _refuse(config, name, f"at least {least}")


def check_positive(config: Any, *names: str) -> None:
    """Refuse fields that are zero, negative or NaN."""
    for name in names:
        if not getattr(config, name) > 0:
            _refuse(config, name, "positive")


def check_between(config: Any, low: float, high: float, *names: str, open_end: bool = False) -> None:
    """Refuse fields outside [low, high], or [low, high) with `open_end`."""
    for name in names:
        value = getattr(config, name)
        if not low <= value <= high or (open_end and value == high):
            _refuse(config, name, f"in [{low}, {high}{')' if open_end else ']'}")


def check_betas(config: Any) -> None:
    """Refuse decay rates of Adam outside [0, 1)."""
    if not all(0 <= beta < 1 for beta in config.betas):
        _refuse(config, "betas", "two numbers in [0, 1)")


def check_finite(config: Any, name: str = "") -> None:
    """Refuse NaN, and what is infinite in float32, in every field; also of nested configs, whose names dots join."""
    if isinstance(config, float):
        if not abs(config) <= LARGEST:
            raise ValueError(f"{name} must be a finite number, at most {LARGEST:.1e}; got {config}.")
    elif isinstance(config, tuple):
        for value in config:
            check_finite(value, name)
    elif dataclasses.is_dataclass(config):
        for field in dataclasses.fields(config):
            check_finite(getattr(config, field.name), f"{name}.{field.name}" if name else field.name)


def check_choices(config: Any, *names: str) -> None:
    """Refuse values that the field's Literal type, or tuple of a Literal type, does not list; and repeated ones."""
    for name in names:
        hint = get_type_hints(type(config))[name]
        several = get_origin(hint) is tuple
        known = get_args(get_args(hint)[0] if several else hint)
        given = tuple(getattr(config, name)) if several else (getattr(config, name),)
        if not set(given) <= set(known) or len(set(given)) < len(given):
            choices = ", ".join(map(repr, known))
            _refuse(config, name, f"any of {choices}, each once" if several else f"one of {choices}")


def _refuse(config: Any, name: str, expected: str) -> None:
    raise ValueError(f"{type(config).__name__}.{name} must be {expected}; got {getattr(config, name)!r}.")


def plain(config: Any) -> Any:
    """Return a config dataclass as JSON would read it back."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def differences(config: Any, default: Any = None) -> list[tuple[str, Any]]:
    """Return the fields of a config dataclass that differ from another or its defaults; dots join nested names."""
    found: list[tuple[str, Any]] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if default is not None:
            usual = getattr(default, field.name)
        elif field.default_factory is not dataclasses.MISSING:
            usual = field.default_factory()
        else:
            usual = field.default
        if not dataclasses.is_dataclass(value):
            found += [(field.name, value)] if value != usual else []
            continue
        if not dataclasses.is_dataclass(usual):  # None by default
            found.append((field.name, "on"))
            usual = None
        found += [(f"{field.name}.{name}", inner) for name, inner in differences(value, usual)]
    return found


def config_from(kind: type[T], data: Any, name: str = "") -> T:
    """Return the config dataclass that `plain` made JSON of.

    Older runs load: missing fields take their defaults, and removed ones are left out.

    Args:
        name: the field that holds it, for messages.

    Raises:
        ValueError: a field is unknown, missing without a default, or has a value of another type; or a removed one has
            another value than the one that is left.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{name or 'The config'} must be an object with fields of {kind.__name__}; got {data!r}.")
    prefix = f"{name}." if name else ""
    hints = get_type_hints(kind)
    data = {key: value for key, value in data.items() if not _is_removed(prefix + key, value)}
    for key in data:
        if key not in hints:
            raise ValueError(f"{prefix}{key} is not a field of {kind.__name__}; its fields are {', '.join(hints)}.")
    values = {key: _value_from(hints[key], value, prefix + key) for key, value in data.items()}
    try:
        return kind(**values)
    except TypeError as error:  # a field without a default is missing
        raise ValueError(f"{name or 'The config'} is incomplete: {error}.") from error


def _is_removed(name: str, value: Any) -> bool:
    """Whether a field is an option that was removed; refuse one with another value than the one that is left."""
    if name in REMOVED and value != REMOVED[name]:
        raise ValueError(
            f"{name} is {value!r}, but this option was removed: only {REMOVED[name]!r} is left. The run's results can "
            "still be shown; to resume or score it, use the version of butfor that its versions.json names."
        )
    return name in REMOVED


def _value_from(hint: Any, value: Any, name: str) -> Any:
    """Return a JSON value as its field's type: lists as tuples, whole numbers as floats, objects as dataclasses."""
    origin = get_origin(hint)
    options = get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return config_from(hint, value, name)
    if origin in (Union, UnionType):
        possible = [option for option in options if (option is NoneType) == (value is None)]
        if len(possible) == 1:
            return _value_from(possible[0], value, name)
        for option in possible:
            if not dataclasses.is_dataclass(option):  # JSON does not show which of several dataclasses it was
                with suppress(ValueError):
                    return _value_from(option, value, name)
    if origin is tuple and isinstance(value, list):
        kinds = options[:1] * len(value) if options[1:] == (...,) else options
        if len(kinds) == len(value):
            return tuple(_value_from(kinds[i], one, f"{name}[{i}]") for i, one in enumerate(value))
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is hint or (origin is Literal and any(one == value and type(one) is type(value) for one in options)):
        return value
    wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
    raise ValueError(f"{name} must be {wanted}; got {value!r}.")
