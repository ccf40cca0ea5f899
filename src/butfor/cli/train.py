"""`butfor train`: environment, preset and signal are parsed first, since the other defaults depend on them."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from butfor.cli.console import live_progress, print_next, print_training
from butfor.cli.options import Device, File, Flag, RunFolder, Seconds, choose_device
from butfor.cli.settings import parse_first, parse_settings
from butfor.runs.reading import find_run

if TYPE_CHECKING:
    from butfor.training.settings import Config

SHOWN = {
    "use", "signal", "entities", "combine", "seeds", "first_seed", "episodes", "warmup", "num_envs", "evaluate_every",
    "evaluation_episodes", "algorithm", "priority", "priority.kind", "bonus", "bonus.weight",
}  # fmt: skip
"""the settings that --help lists; --help-all lists all"""
PRESETS = (
    "settings to start from: paper, intrinsic (influence is the only reward), fast (shorter fits of the model), vime, "
    "vime-object, vime-full, disagreement, disagreement-position or disagreement-full"
)
OPTIONAL_PARTS = ("cai", "vime", "disagreement", "moved", "nearness", "td3")
"""settings that one signal or one algorithm uses"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """Where the defaults of the other options come from."""

    preset: Annotated[str, tyro.conf.arg(metavar="NAME", help=PRESETS)] = "paper"


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
    """Train agents (DDPG or TD3, with HER) that use influence as replay priority, reward bonus or for exploration.

    ENV is slide, push, pick-and-place, rot-table, or the id of any goal-conditioned Gymnasium environment.
    """
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
    from butfor.rollouts.episodes import check_episode_file
    from butfor.training.run import train as train_run
    from butfor.training.settings import Config, preset

    def start(env: str, given: list[str]) -> Config:
        """Return the preset; without one, a rival's signal brings the paper's settings for it."""
        first = parse_first(StartWithSignal, given)
        rival = first.signal if first.signal in ("vime", "disagreement") else ""
        if rival and first.preset != "paper" and not first.preset.startswith(rival):
            raise ValueError(f"--preset {first.preset} and --signal {rival} contradict each other; give one of them.")
        return preset(env, rival if rival and first.preset == "paper" else first.preset)

    config, options = parse_settings(train, arguments, start, RunOptions, SHOWN)
    _refuse_unused(config, start(arguments[0], arguments[1:]))
    if options.keep_episodes is not None:
        check_episode_file(options.keep_episodes)
    with live_progress() as progress:
        return train_run(
            config, options.run, choose_device(options.device), overwrite=options.overwrite,
            time_limit=options.time_limit, keep_episodes=options.keep_episodes, progress=progress,
        )  # fmt: skip


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
