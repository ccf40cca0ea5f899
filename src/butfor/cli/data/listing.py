"""`butfor data`: what a data set contains."""

import shlex
from typing import Annotated

import tyro

from butfor.cli.console import print_dataset, print_next


def data(data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")], /) -> None:
    """Show what a data set contains: its format, episodes, columns, and entities that the names suggest.

    Args:
        data: LeRobot folder; robomimic, LIBERO, ManiSkill or D4RL HDF5 file; id or folder of a local Minari data set;
            OGBench or other .npz file; Parquet or Feather table, or a folder of Parquet tables. Recognised by content;
            nothing is downloaded
    """
    from butfor.datasets.formats import open_dataset

    found = open_dataset(data)
    print_dataset(found)
    if found.action:
        suggested = shlex.join(found.suggest_entities()) or "NAME=COLUMNS"
        options = ""
        if not found.has_numbers:
            options = " --observe COLUMN"
        elif found.to_ignore:
            options = f" --ignore {shlex.join(found.to_ignore)}"
        print_next(f"butfor score {shlex.quote(data)}{options} --entities {suggested}")
