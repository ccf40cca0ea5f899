"""`butfor augment`: transitions that never happened, but could have."""

import shlex
from pathlib import Path
from typing import Annotated

import tyro

from butfor.cli.console import print_augmentation, print_next
from butfor.cli.options import Flag


def augment(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    entities: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=COLUMNS", help_behavior_hint="")] = (),
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: beside the data, with -augmented)")
    ] = None,
    agent: str = "agent",
    observe: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="COLUMN", help_behavior_hint="(default: by format)")
    ] = (),
    action: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN", help_behavior_hint="(default: by format)")] = (),
    ignore: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PART", help_behavior_hint="(default: none)")] = (),
    count: Annotated[int, tyro.conf.arg(metavar="N")] = 10_000,
    steps: Annotated[int, tyro.conf.arg(metavar="N")] = 1,
    false_discovery_rate: Annotated[float, tyro.conf.arg(metavar="SHARE")] = 0.05,
    audit: Annotated[int, tyro.conf.arg(metavar="N")] = 0,
    seed: int = 0,
    overwrite: Flag = False,
) -> None:
    """Swap entities that nothing acts on between episodes, and write the new transitions to an .npz file.

    Args:
        data: data set of any format that `butfor data` lists
        entities: all entities, and their columns of the observation, positions first: agent=0:4 cube=4:8 (default:
            those of the built-in environment in which the data were collected). Differences and goals that follow from
            them are computed again; any other column must belong to an entity
        out: .npz file for the new transitions
        agent: the entity that the action moves; it is never swapped. For data of built-in environments it is known
        observe: columns that make up the observation, such as simulator states; `butfor data DATA` lists them
        action: columns that make up the action, if the format or their names do not show it
        ignore: parts of the observation, or columns of the action, to leave out
        count: candidates to make; those that may be impossible are left out
        steps: steps of each new stretch
        false_discovery_rate: largest expected share of impossible ones among those that are kept
        audit: number of new ones to replay in the simulator, for episode files of pucks, push, pick-and-place,
            fetch-slide, push-two and stack-two
        seed: seed of the candidates and of what is learned
        overwrite: replace an existing file
    """
    from butfor.datasets.augment import augment_file
    from butfor.rollouts.swaps import AugmentOptions

    options = AugmentOptions(count, false_discovery_rate, steps, agent, seed)
    summary = augment_file(
        data, out, entities, options, observe=observe, action=action, ignore=ignore, audit=audit, overwrite=overwrite
    )
    print_augmentation(summary)
    print_next(f"butfor data {shlex.quote(summary['out'])}")
