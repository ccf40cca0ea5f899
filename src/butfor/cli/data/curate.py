"""`butfor curate`: keep the part of a data set that matters most."""

import shlex
from typing import Annotated, Literal

import tyro

from butfor.cli.console import live_progress, print_curation, print_next
from butfor.cli.options import Device, File, Flag, choose_device


def curate(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    keep: Annotated[float, tyro.conf.arg(metavar="SHARE")] = 0.5,
    entities: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=COLUMNS", help_behavior_hint="")] = (),
    out: Annotated[
        str | None, tyro.conf.arg(metavar="OUT", help_behavior_hint="(default: beside the data, with -kept)")
    ] = None,
    by: Literal["episodes", "frames"] = "episodes",
    rank: Literal["influence", "motion", "action", "random"] = "influence",
    approach: Annotated[int, tyro.conf.arg(metavar="N")] = 10,
    observe: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN", help_behavior_hint="(by format)")] = (),
    action: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN", help_behavior_hint="(default: by format)")] = (),
    ignore: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PART", help_behavior_hint="(default: none)")] = (),
    epochs: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: by the data)")] = None,
    seed: int = 0,
    model: File = None,
    report: File = None,
    overwrite: Flag = False,
    device: Device = "auto",
) -> None:
    """Keep the episodes or frames that show influence or lead to it; write them in the same format, and a report.

    Args:
        data: data set of any format that `butfor data` lists
        keep: share of the rows to keep
        entities: what may be influenced, and its columns of the observation: cube=3:6 ball=6:9
        out: new file, folder or Minari id
        by: keep whole episodes; or frames, of which each stretch becomes an episode
        rank: keep first what has influence, or, for comparison, motion of the entities, large actions, or at random
        approach: steps before an influenced one that the report counts as its approach
        observe: columns that make up the observation; `butfor data DATA` lists them
        action: columns that make up the action, if the format or their names do not show it
        ignore: parts of the observation, or columns of the action, to leave out
        epochs: most epochs of fitting a Gaussian network; early stopping may end it before. Other models have
            their own number of updates
        seed: seed of the fit, of the tried actions, and of the random choice
        model: saved Influence to score with, instead of fitting one; it has its own entities
        report: report file (default: beside the kept part)
        overwrite: replace existing files
    """
    from butfor.datasets.curate import CurateOptions, curate_file
    from butfor.datasets.score import Options

    if model is not None and epochs is not None:
        raise ValueError("--epochs configures a fit; --model uses a fitted one. Remove one of them.")
    options = CurateOptions(keep, by, rank, approach)
    scoring = Options(epochs=epochs, seed=seed, ignore=ignore, observe=observe, action=action)
    with live_progress() as progress:
        summary = curate_file(
            data, out, entities, options, scoring, model=model, report=report, overwrite=overwrite,
            device=choose_device(device), progress=progress,
        )  # fmt: skip
    print_curation(summary)
    print_next(f"open {shlex.quote(summary['report'])} in a browser")
