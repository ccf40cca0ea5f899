"""`butfor train`: environment, preset and signal are parsed first, since the other defaults depend on them."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import tyro

from butfor.cli.console import live_progress, print_next, print_training
from butfor.cli.options import Device, File, Flag, RunFolder, Seconds, choose_device
from butfor.runs.reading import find_run

if TYPE_CHECKING:
    from butfor.training.settings import Config

SHOWN = {
    "use", "signal", "entities", "combine", "seeds", "first_seed", "episodes", "warmup", "num_envs", "evaluate_every",
    "evaluation_episodes", "algorithm", "priority", "priority.kind", "bonus", "bonus.weight",
}  # fmt: skip
"""the settings that --help lists; --help-all lists all"""
OPTIONAL_PARTS = ("cai", "vime", "disagreement", "moved", "nearness", "td3")
"""settings that one signal or one algorithm uses"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """Where the defaults of the other options come from."""

    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "paper"
    """settings to start from: paper, intrinsic (influence is the only reward), fast (shorter fits of the model), vime,
    vime-object, vime-full, disagreement, disagreement-position or disagreement-full"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartWithSignal(Start):
    """The same, with the setting that selects a rival's preset."""

    signal: str = "cai"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """Options that hold for this process only."""

    time_limit: Seconds = None
    keep_episodes: File = None
    """.npz file to write every played episode to"""
    device: Device = "auto"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(Start, Session):
    """Options of a new run, beside its settings."""

    run: RunFolder = None
    resume: Annotated[str | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = None
    """run to resume instead; `butfor train --resume RUN --help` lists the options"""
    overwrite: Flag = False
    """replace the run in the run folder"""
    help_all: Flag = False
    """list all settings and exit"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumeOptions(Session):
    """Resume a training run from its last checkpoint."""

    resume: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """run folder, the beginning of its name in runs/, or latest"""
    episodes: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: as before)")] = None
    """number of episodes to train to"""


def train(arguments: list[str]) -> None:
    """Train agents (DDPG with HER) that use influence as replay priority, reward bonus or for exploration."""
    if any(word.split("=")[0] == "--resume" for word in arguments):
        folder = _resume(arguments)
    else:
        folder = _start(arguments)
    finished = print_training(folder)
    print(f"Run: {folder}")
    if finished:
        print_next(f"butfor report {folder}", f"butfor watch {folder}")
    else:
        print_next(f"butfor train --resume {folder} (the time limit was reached)")


def _resume(arguments: list[str]) -> Path:
    from butfor.training.run import resume

    options, unknown = tyro.cli(ResumeOptions, args=arguments, prog="butfor train", return_unknown_args=True)
    if unknown:
        allowed = ", ".join(f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(ResumeOptions))
        raise ValueError(
            f"{' '.join(unknown)} cannot be given with --resume: the run keeps its settings. Allowed are {allowed}."
        )
    with live_progress() as progress:
        return resume(
            find_run(options.resume), choose_device(options.device), episodes=options.episodes,
            time_limit=options.time_limit, keep_episodes=options.keep_episodes, progress=progress,
        )  # fmt: skip


def _start(arguments: list[str]) -> Path:
    from butfor.envs import ENVS
    from butfor.rollouts.episodes import check_episode_file
    from butfor.training.run import train as train_run
    from butfor.training.settings import Config, preset

    named = bool(arguments) and not arguments[0].startswith("-")
    env = arguments[0] if named else "pick-and-place"
    given = arguments[1:] if named else arguments
    base = preset(env, _preset_name(given))
    envs = f"{', '.join(ENVS)}, or the id of any goal-conditioned Gymnasium environment"
    text = f"{train.__doc__}\n\nENV is {envs}. The defaults below are those of {env}."
    wants_help = {"-h", "--help", "--help-all"} & set(given)
    shown = SHOWN if wants_help and "--help-all" not in given else None
    options = _as_options(base, shown, (RunOptions,))
    parsed = tyro.cli(
        type(options), default=options, args=["--help"] if wants_help else given,
        prog=f"butfor train {env if named else 'ENV'}", description=text,
    )  # fmt: skip
    if not named:
        raise ValueError(f"No environment was given. Use butfor train ENV, where ENV is {envs}.")
    config = Config(**{field.name: getattr(parsed, field.name) for field in dataclasses.fields(Config)})
    _refuse_unused(config, base)
    if parsed.keep_episodes is not None:
        check_episode_file(parsed.keep_episodes)
    with live_progress() as progress:
        return train_run(
            config, parsed.run, choose_device(parsed.device), overwrite=parsed.overwrite,
            time_limit=parsed.time_limit, keep_episodes=parsed.keep_episodes, progress=progress,
        )  # fmt: skip


def _preset_name(arguments: list[str]) -> str:
    """Return --preset; without it a rival's signal selects the paper's settings for it."""
    start, _ = tyro.cli(StartWithSignal, args=arguments, prog="butfor train", return_unknown_args=True, add_help=False)
    if start.signal not in ("vime", "disagreement"):
        return start.preset
    if start.preset != "paper" and not start.preset.startswith(start.signal):
        raise ValueError(f"--preset {start.preset} and --signal {start.signal} contradict each other; give one.")
    return start.signal if start.preset == "paper" else start.preset


def _as_options(settings: Any, shown: set[str] | None, bases: tuple[type, ...] = (), prefix: str = "") -> Any:
    """Return the settings as an object of a class that tyro makes options of, with the fields of `bases` too.

    Fields that are not in `shown` (None: all are) are no options. `env` never is: it is given before the options.
    """
    kind = type(settings)
    hints = get_type_hints(kind)
    fields: list[Any] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        hint = hints[field.name]
        if field.name == "env" or (shown is not None and prefix + field.name not in shown):
            hint = Annotated[hint, tyro.conf.Suppress]
        elif shown is not None and dataclasses.is_dataclass(value):
            value = _as_options(value, shown, prefix=f"{field.name}.")
            hint = type(value)
        fields.append((field.name, hint, dataclasses.field(default=value)))
    unchecked = {"__post_init__": lambda self: None}  # wrong values are reported when the config itself is made
    made = dataclasses.make_dataclass(kind.__name__, fields, bases=(*bases, kind), frozen=True, namespace=unchecked)
    return made()


def _refuse_unused(config: "Config", base: "Config") -> None:
    """Refuse changed settings of a signal or an algorithm that is not chosen."""
    from butfor.runs.config import flat

    for part in set(OPTIONAL_PARTS) - {config.signal, config.algorithm}:
        pairs = zip(flat(getattr(config, part)), flat(getattr(base, part)), strict=True)
        changed = [f"{part}.{name}" for (name, mine), (_, other) in pairs if mine != other]
        unused = [f"--{name}".replace("_", "-") for name in changed if name != "cai.network.target_scale"]  # of all
        if unused:
            used = f"--signal {config.signal} --algorithm {config.algorithm}"
            raise ValueError(f"{', '.join(unused)}: not used with {used}. Remove it, or choose {part}.")
