"""Parsing of `ENV [OPTIONS]` into a config, for commands whose defaults depend on the environment and a preset."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Container
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

T = TypeVar("T")


def parse_settings(
    command: Callable[[list[str]], None],
    arguments: list[str],
    start: Callable[[str, T], Any],
    options: type[T],
    shown: Container[str],
) -> tuple[Any, T]:
    """Parse the arguments of a command into a config and the other options.

    Args:
        command: its name is shown, and its docstring is the help
        arguments: environment and options
        start: gives the config that the options change, from the environment and the other options
        options: dataclass of the options that are not settings, with help_all
        shown: the settings that --help lists, as in {"seeds", "priority", "priority.kind"}; --help-all lists all
    """
    named = bool(arguments) and not arguments[0].startswith("-")
    env = arguments[0] if named else "pick-and-place"
    given = arguments[1:] if named else arguments
    rest = [word for word in given if word not in ("-h", "--help", "--help-all")]
    wants_help = rest != given
    prog = f"butfor {command.__name__} {env if named else 'ENV'}"
    first, _ = tyro.cli(options, args=rest, prog=prog, return_unknown_args=True)
    default = _as_options(start(env, first), shown if wants_help and "--help-all" not in given else None, options)
    parsed = tyro.cli(
        type(default), default=default, args=["--help"] if wants_help else given, prog=prog,
        description=f"{inspect.getdoc(command)} The defaults below are those of {env}.",
    )  # fmt: skip
    if not named:
        raise ValueError(f"No environment was given. Use {prog}, for example with slide as ENV. See {prog} --help.")
    return _checked(parsed), parsed


def _as_options(settings: Any, shown: Container[str] | None, *bases: type, prefix: str = "") -> Any:
    """Return the settings as an object of a new class that tyro makes options of, with the fields of `bases` too.

    Only fields in `shown` are options (None: all). `env` never is: it is given before the options.
    """
    kind = type(settings)
    hints = get_type_hints(kind)
    # The docstrings below the fields; tyro would keep some of their line breaks.
    texts = dict(re.findall(r'^    (\w+): .*\n    """((?s:.*?))"""$', inspect.getsource(kind), re.MULTILINE))
    fields: list[Any] = []
    for name, hint in hints.items():
        value = getattr(settings, name)
        if prefix + name == "env" or (shown is not None and prefix + name not in shown):
            hint = Annotated[hint, tyro.conf.Suppress]
        elif dataclasses.is_dataclass(value):
            value = _as_options(value, shown, prefix=f"{prefix}{name}.")
            hint = type(value)
        else:
            default = "(default: none)" if value == () else None
            text = " ".join(texts.get(name, "").split()) or None
            hint = Annotated[hint, tyro.conf.arg(help=text, help_behavior_hint=default)]
        fields.append((name, hint, dataclasses.field(default=value)))
    unchecked = {"__post_init__": lambda self: None}  # `_checked` reports wrong values, also of nested settings
    made = dataclasses.make_dataclass(kind.__name__, fields, bases=(*bases, kind), frozen=True, namespace=unchecked)
    return made()


def _checked(parsed: Any) -> Any:
    """Return options that were made of a config as that config, which checks its values."""
    kind = type(parsed).__bases__[-1]
    values = {field.name: getattr(parsed, field.name) for field in dataclasses.fields(kind)}
    return kind(
        **{name: _checked(value) if dataclasses.is_dataclass(value) else value for name, value in values.items()}
    )
