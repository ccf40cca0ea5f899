"""What several commands share: types of their options, the device to compute on, and checks of the arguments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

Env = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
Run = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="RUN", help="run folder, the beginning of its name in runs/, or latest"),
]
RunFolder = Annotated[
    Path | None,
    tyro.conf.arg(
        metavar="FOLDER", help="run folder (default: runs/ and a name made from the settings)", help_behavior_hint=""
    ),
]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Seed = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: the first of the run)")]
Seconds = Annotated[
    float | None,
    tyro.conf.arg(
        metavar="SECONDS",
        help="stop each training run after this time and save it",
        help_behavior_hint="(default: no limit)",
    ),
]
ImportModule = Annotated[
    bool,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.arg(help="import the module of the run's environment MODULE:ID, which runs its code"),
]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], tyro.conf.arg(help="device to compute on; auto uses a GPU if there is one")
]


def choose_device(name: str) -> str:
    """Return "cuda" or "cpu"; "auto" is a GPU if there is one."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA GPU on this machine. Use --device cpu.")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def refuse_repeated(arguments: Sequence[str]) -> None:
    """Refuse an option that is given twice: the parser would silently use the last one."""
    options = [word.split("=")[0].replace("_", "-") for word in arguments if word.startswith("--")]
    for option in options:
        if options.count(option) > 1:
            raise ValueError(f"{option} is given {options.count(option)} times. Give it once, with all its values.")
