"""Checks of settings: each config dataclass calls these in `__post_init__`, so that a wrong value names its field."""

from typing import Any, get_args, get_origin, get_type_hints


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
    """Refuse fields that are none of the values of their Literal type, or hold one that is not, or one twice."""
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
