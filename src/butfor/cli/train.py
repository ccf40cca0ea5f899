"""The command `butfor train`: its defaults depend on the world and the preset, so it parses its own arguments."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from butfor.cli.console import live_progress, print_training

USED_BY_RIVALS = ("network.target_scale",)  # of the settings of the influence model


@dataclasses.dataclass
class RunOptions:
    """Where a training run goes and how long it may take."""

    run: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """the run folder (default: runs/ and a name made from the settings)"""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = None
    """go on with this run instead; only --episodes, --device, --time-limit and --keep-episodes may be given with it"""
    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "paper"
    """settings to start from: paper (those for the world), intrinsic (influence is the only reward),
    fast (shorter rounds of the model), or a rival: vime, vime-object, vime-full, disagreement, disagreement-position,
    disagreement-full"""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """start anew where the run folder holds a run already"""
    time_limit: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None
    """finish the episode, save and stop after so long"""
    keep_episodes: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """write every episode that is played to this .npz file"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where to compute; auto takes a GPU where there is one"""


@dataclasses.dataclass
class ResumeOptions:
    """Go on with a training run from its last checkpoint."""

    resume: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """the run folder"""
    episodes: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: as first asked for)")] = (
        None
    )
    """go on to more episodes than first asked for"""
    time_limit: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None
    """finish the episode, save and stop after so long"""
    keep_episodes: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """the file given to the run at first"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where to compute; auto takes a GPU where there is one"""


def train_command(arguments: list[str], description: str) -> None:
    """Parses and runs `butfor train`: its defaults depend on the world and the preset."""
    from butfor.envs import ENVS
    from butfor.rollouts.episodes import check_episode_file
    from butfor.training.run import resume as resume_run
    from butfor.training.run import train as train_run
    from butfor.training.settings import Config, preset

    arguments = [re.sub(r"^--priority(?=$|=)", "--priority.kind", word) for word in arguments]
    refuse_repeated(arguments)
    if any(word.split("=")[0] == "--resume" for word in arguments):
        going_on, unknown = tyro.cli(ResumeOptions, args=arguments, prog="butfor train", return_unknown_args=True)
        if unknown:
            *others, last = (f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(ResumeOptions)[1:])
            raise ValueError(
                f"{' '.join(unknown)} cannot be given with --resume: the run goes on with its own settings; only "
                f"{', '.join(others)} and {last} go with it."
            )
        device = choose_device(going_on.device)
        with live_progress() as progress:
            folder = resume_run(
                going_on.resume, device, episodes=going_on.episodes, time_limit=going_on.time_limit,
                keep_episodes=going_on.keep_episodes, progress=progress,
            )  # fmt: skip
    else:
        named = bool(arguments) and not arguments[0].startswith("-")
        world = arguments[0] if named else "pick-and-place"
        joined = " ".join(arguments)
        chosen = re.search(r"--preset[= ]([\w-]+)", joined)
        rival = re.search(r"--signal[= ](vime|disagreement)", joined)  # brings the paper's settings for it along
        name = chosen[1] if chosen else "paper"
        if rival and name != "paper" and not name.startswith(rival[1]):
            raise ValueError(f"--preset {name} and --signal {rival[1]} do not go together; choose one of them.")
        base = preset(world, rival[1] if rival and name == "paper" else name)

        def command(
            config: Annotated[Config, tyro.conf.arg(name="")] = base,
            options: Annotated[RunOptions, tyro.conf.arg(name="")] = RunOptions(),  # noqa: B008
        ) -> tuple[Config, RunOptions]:
            return config, options

        worlds = f"{', '.join(ENVS)}, or the id of any Gymnasium goal world"
        text = f"{description}\n\nWORLD is {worlds}; the defaults below are those of {world}."
        given, prog = (arguments[1:], f"butfor train {world}") if named else (arguments, "butfor train WORLD")
        config, options = tyro.cli(command, args=given, prog=prog, description=text)
        if config.env != base.env:
            raise ValueError(f"Which world, {world} or {config.env}? Name it once: butfor train WORLD.")
        if not named:
            raise ValueError(f"Which world? Say butfor train WORLD, where WORLD is {worlds}.")
        if config.signal != "cai":
            _refuse_unused(config, base)
        if options.keep_episodes is not None:
            check_episode_file(options.keep_episodes)
        with live_progress() as progress:
            folder = train_run(
                config, options.run, choose_device(options.device), overwrite=options.overwrite,
                time_limit=options.time_limit, keep_episodes=options.keep_episodes, progress=progress,
            )  # fmt: skip
    if not print_training(folder):
        print(f"Stopped at the time limit; go on by: butfor train --resume {folder}")
    print(f"Run: {folder}")


def refuse_repeated(arguments: list[str]) -> None:
    """Refuses an option that is given twice: the parser would take the last one alone, without a word."""
    options = [word.split("=")[0].replace("_", "-") for word in arguments if word.startswith("--")]
    for option in options:
        if options.count(option) > 1:
            raise ValueError(f"{option} is given {options.count(option)} times; give it once, with all its values.")


def _refuse_unused(config: Any, base: Any) -> None:
    """Settings of the influence model that a rival in its place would not look at."""
    from butfor.runs.config import flat

    pairs = zip(flat(config.cai), flat(base.cai), strict=True)
    unused = [name for (name, mine), (_, other) in pairs if mine != other and name not in USED_BY_RIVALS]
    if unused:
        options, used = (", ".join(f"--cai.{name}" for name in names) for names in (unused, USED_BY_RIVALS))
        own = f"--{config.signal}"
        raise ValueError(
            f"{options.replace('_', '-')}: {config.signal} has no influence model to use this; of its settings only "
            f"{used.replace('_', '-')} count, the others of {config.signal} are {own}.*."
        )


def choose_device(name: str) -> str:
    """The device to compute on; `auto` takes a GPU where there is one."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no CUDA GPU here; use --device cpu.")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"
