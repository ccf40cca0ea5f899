"""Config dataclasses: checks of their values, JSON there and back, and how they differ from the defaults.

Every config is a frozen dataclass beside the code that uses it, and calls the checks in `__post_init__`.
"""

import dataclasses
import json
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def check_least(config: Any, least: float, *names: str) -> None:
    """Refuse fields below `least`, and NaN."""
    for name in names:
        if not getattr(config, name) >= least:
            raise ValueError(f"{_field(config, name)} must be at least {least}; got {getattr(config, name)}.")


def check_positive(config: Any, *names: str) -> None:
    """Refuse fields that are zero, negative or NaN."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{_field(config, name)} must be positive; got {getattr(config, name)}.")


def check_between(config: Any, low: float, high: float, *names: str, open_end: bool = False) -> None:
    """Refuse fields outside [low, high], or [low, high) with `open_end`."""
    for name in names:
        value = getattr(config, name)
        if not low <= value <= high or (open_end and value == high):
            interval = f"[{low}, {high}{')' if open_end else ']'}"
            raise ValueError(f"{_field(config, name)} must lie in {interval}; got {value}.")


def check_choices(config: Any, *names: str) -> None:
    """Refuse values that the field's Literal type, or tuple of a Literal type, does not list; and repeated ones."""
    for name in names:
        hint = get_type_hints(type(config))[name]
        value = getattr(config, name)
        several = get_origin(hint) is tuple
        known = get_args(get_args(hint)[0] if several else hint)
        given = tuple(value) if several else (value,)
        if not set(given) <= set(known) or len(set(given)) < len(given):
            expected = f"{'any of' if several else 'one of'} {', '.join(map(repr, known))}"
            raise ValueError(
                f"{_field(config, name)} is {value!r}; expected {expected}{', each once' if several else ''}."
            )


def _field(config: Any, name: str) -> str:
    return f"{type(config).__name__}.{name}"


def plain(config: Any) -> Any:
    """Return a config dataclass as JSON would read it back."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flat(config: Any) -> list[tuple[str, Any]]:
    """Return all fields of a config dataclass and their values; nested names are joined by dots."""
    rows: list[tuple[str, Any]] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            rows += [(f"{field.name}.{name}", inner) for name, inner in flat(value)]
        else:
            rows.append((field.name, value))
    return rows


def differences(config: Any) -> list[tuple[str, Any]]:
    """Return the fields of a config dataclass that differ from its defaults; nested names are joined by dots."""
    found: list[tuple[str, Any]] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if dataclasses.is_dataclass(value):
            if not dataclasses.is_dataclass(default):  # None by default
                found.append((field.name, "on"))
                default = type(value)()  # type: ignore[misc]
            pairs = zip(flat(value), flat(default), strict=True)
            found += [(f"{field.name}.{name}", mine) for (name, mine), (_, other) in pairs if mine != other]
        elif value != default:
            found.append((field.name, value))
    return found


def config_from(kind: type[T], data: Any) -> T:
    """Return the config dataclass that `plain` made JSON of. Missing fields take their defaults, so older runs load.

    Raises:
        ValueError: a field is unknown, missing without a default, or has a value of another type.
    """
    config: T = _dataclass_from(kind, data, "")
    return config


def _dataclass_from(kind: Any, data: Any, name: str) -> Any:
    """Return a dataclass from a JSON object; `name` is the field that holds it."""
    if not isinstance(data, dict):
        raise ValueError(f"{name or 'The config'} must be an object with fields of {kind.__name__}; got {data!r}.")
    prefix = f"{name}." if name else ""
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in data:
        if key not in fields:
            raise ValueError(f"{prefix}{key} is not a field of {kind.__name__}; its fields are {', '.join(fields)}.")
    for key, field in fields.items():
        if key not in data and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{prefix}{key} is missing, and {kind.__name__} has no default for it; give a value.")
    return kind(**{key: _value_from(hints[key], value, prefix + key) for key, value in data.items()})


def _value_from(hint: Any, value: Any, name: str) -> Any:
    """Return a JSON value as its field's type: lists as tuples, whole numbers as floats, objects as dataclasses."""
    origin = get_origin(hint)
    options = get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass_from(hint, value, name)
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
