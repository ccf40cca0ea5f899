"""`butfor score`: the influence in every state of a data set."""

import shlex
import time
from typing import Annotated, Literal

import tyro

from butfor.cli.console import live_progress, print_next, print_scores
from butfor.cli.options import Device, File, Flag, choose_device


def score(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    out: Annotated[
        str | None, tyro.conf.arg(metavar="OUT", help_behavior_hint="(default: beside the data, with -cai)")
    ] = None,
    entities: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=COLUMNS", help_behavior_hint="")] = (),
    observe: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="COLUMN", help_behavior_hint="(default: by format)")
    ] = (),
    action: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN", help_behavior_hint="(default: by format)")] = (),
    ignore: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PART", help_behavior_hint="(default: none)")] = (),
    network: Literal["choose", "paper", "steep"] = "choose",
    members: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: by the model)")] = None,
    epochs: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: by the data)")] = None,
    actions: Annotated[int, tyro.conf.arg(metavar="K")] = 64,
    extreme: Annotated[
        float | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="(default: 0, or the model's)")
    ] = None,
    graph: Flag = False,
    horizon: Annotated[int, tyro.conf.arg(metavar="K")] = 1,
    seed: int = 0,
    model: File = None,
    save_model: File = None,
    report: File = None,
    with_data: Flag = False,
    overwrite: Flag = False,
    device: Device = "auto",
) -> None:
    """Fit a model to your data, score the influence of the action in every state, and write a report.

    The scores are written to a new file or data set. The data themselves are not changed.

    Args:
        data: LeRobot folder; robomimic, LIBERO, ManiSkill or D4RL HDF5 file; id or folder of a local Minari data set;
            OGBench or other .npz file; Parquet or Feather table, or a folder of Parquet tables. Recognised by content;
            nothing is downloaded
        out: where to write the scores: FILE.npz, one row a state; or a new file, folder or Minari id for a copy of the
            data in the same format with the scores added
        entities: what may be influenced, and its columns of the observation: cube=3:6 ball=6:9, or
            cube=observation:3:6 if observations are dictionaries
        observe: columns that make up the observation, such as simulator states; `butfor data DATA` lists them
        action: columns that make up the action, if the format or their names do not show it
        ignore: parts of the observation, or columns of the action, to leave out, such as images
        network: choose a model of outcomes if the entities change in few ways, a model of touches if the data show what
            touches them, else a Gaussian network; or always a Gaussian network: paper (smooth) or steep
        members: networks in the ensemble (default: 3 for a model of touches, 1 for the others); 5 detects influence
            most reliably
        epochs: most epochs of fitting a Gaussian network; early stopping may end it before. Other models have
            their own number of updates
        actions: number K of actions that are tried in each state
        extreme: share of the tried actions' components set to their lowest or highest value; 0.75 shows what only
            strong actions do
        graph: also score the influence between entities (written as `edge SOURCE -> TARGET`); needs an entity for
            everything that moves, the agent included
        horizon: steps within which the action matters; more than 1 needs entities as --graph does
        seed: seed of the split into episodes, of the fit and of the tried actions
        model: saved Influence to score with, instead of fitting one; it has its own entities
        save_model: .safetensors file to save the fitted Influence to
        report: report file (default: beside the scores)
        with_data: for .npz data, write a copy of the data with the scores added, instead of the scores alone
        overwrite: replace existing files
    """
    from butfor.datasets.score import Options, score_file
    from butfor.models.dynamics import STEEP, ModelConfig

    if model is not None and (members is not None or epochs is not None or network != "choose" or horizon != 1):
        raise ValueError(
            "--network, --members, --epochs and --horizon configure a fit; --model uses a fitted one, with its own "
            "horizon. Remove them."
        )
    config = {"choose": None, "paper": ModelConfig(), "steep": STEEP}[network]
    options = Options(members, epochs, actions, extreme, seed, ignore, observe, config, graph, horizon, action)
    began = time.time()
    try:
        with live_progress() as progress:
            summary = score_file(
                data, out, entities, options, model=model, save_model=save_model, report=report,
                with_data=with_data, overwrite=overwrite, device=choose_device(device), progress=progress,
            )  # fmt: skip
    except KeyboardInterrupt:
        again = "The same command starts again from the beginning."
        if save_model is not None and save_model.exists() and save_model.stat().st_mtime >= began:
            again = f"The fitted model is in {save_model}: use it with --model {shlex.quote(str(save_model))}."
        raise KeyboardInterrupt(f"Interrupted; no scores were written. {again}") from None
    print_scores(summary)
    for name, edge in summary["edges"].items():
        print(f"{name}: mean {edge['mean']:.3f}, highest {edge['highest']:.3f} nats")
    saved = summary["saved_model"]
    load = f"in Python, butfor.Influence.load({saved!r})" if saved else "keep the model with --save-model FILE"
    print_next(f"open {shlex.quote(summary['report'])} in a browser", load)
