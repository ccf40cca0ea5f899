"""Parsing of `ENV [OPTIONS]` into a config, for commands whose defaults depend on the environment and a preset."""

import ast
import dataclasses
import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import tyro

T = TypeVar("T")


def parse_first(options: type[T], arguments: list[str]) -> T:
    """Parse these options alone and ignore all others."""
    return tyro.cli(options, args=arguments, return_unknown_args=True, add_help=False)[0]


def parse_settings(
    command: Callable[[list[str]], None],
    arguments: list[str],
    start: Callable[[str, list[str]], Any],
    options: type[T],
    shown: set[str],
) -> tuple[Any, T]:
    """Parse the arguments of a command.

    Args:
        command: its name is shown, and its docstring is the help
        arguments: environment and options
        start: gives the config that the options change, from the environment and all options
        options: dataclass of the options that are not settings, with help_all
        shown: the settings that --help lists, as in {"seeds", "priority", "priority.kind"}; --help-all lists all

    Returns:
        The config and the other options.
    """
    named = bool(arguments) and not arguments[0].startswith("-")
    env = arguments[0] if named else "pick-and-place"
    given = arguments[1:] if named else arguments
    base = start(env, given)
    wants_all = "--help-all" in given
    wants_help = wants_all or bool({"-h", "--help"} & set(given))
    is_shown = (lambda name: True) if wants_all else shown.__contains__
    default = _as_options(base, is_shown if wants_help else None, options)
    prog = f"butfor {command.__name__}"
    parsed = tyro.cli(
        type(default), default=default, args=["--help"] if wants_help else given,
        prog=f"{prog} {env if named else 'ENV'}",
        description=f"{inspect.getdoc(command)} The defaults below are those of {env}.",
    )  # fmt: skip
    if not named:
        raise ValueError(f"No environment was given. Use {prog} ENV, as in {prog} slide. See {prog} --help.")
    return type(base)(**{field.name: getattr(parsed, field.name) for field in dataclasses.fields(base)}), parsed


def _as_options(settings: Any, is_shown: Callable[[str], bool] | None, *bases: type, prefix: str = "") -> Any:
    """Return the settings as an object of a new class that tyro makes options of, with the fields of `bases` too.

    For a help, fields for which `is_shown` is false are no options. `env` never is: it is given before the options.
    """
    kind = type(settings)
    hints = get_type_hints(kind)
    texts = _field_texts(kind)
    fields: list[Any] = []
    for field in dataclasses.fields(settings):
        name = prefix + field.name
        value = getattr(settings, field.name)
        hint: Any = hints[field.name]
        hint = Annotated[hint, tyro.conf.arg(help=texts.get(field.name))]
        if name == "env" or (is_shown is not None and not is_shown(name)):
            hint = Annotated[hint, tyro.conf.Suppress]
        elif is_shown is not None and dataclasses.is_dataclass(value):
            value = _as_options(value, is_shown, prefix=f"{name}.")
            hint = type(value)
        fields.append((field.name, hint, dataclasses.field(default=value)))
    unchecked = {"__post_init__": lambda self: None}  # wrong values are reported when the config itself is made
    made = dataclasses.make_dataclass(kind.__name__, fields, bases=(*bases, kind), frozen=True, namespace=unchecked)
    return made()


def _field_texts(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass, each on one line; tyro would keep the line breaks."""
    definition = cast(ast.ClassDef, ast.parse(inspect.getsource(kind)).body[0])
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
