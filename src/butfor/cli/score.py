"""The command `butfor score`: parse, call, and print what was found in a data set."""

import time
from pathlib import Path
from typing import Annotated, Literal

import tyro

from butfor.cli.console import live_progress, print_scores
from butfor.cli.train import choose_device

OPTIONAL_FILE = tyro.conf.arg(metavar="FILE", help_behavior_hint="")


def score(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    out: Annotated[str, tyro.conf.arg(metavar="OUT")],
    entity: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=COLUMNS", help_behavior_hint="")
    ] = (),
    ignore: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="PART", help_behavior_hint="")
    ] = (),
    network: Literal["choose", "paper", "steep"] = "choose",
    members: Annotated[int, tyro.conf.arg(metavar="N")] = 1,
    epochs: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: by the data)")] = None,
    actions: Annotated[int, tyro.conf.arg(metavar="K")] = 64,
    extreme: Annotated[
        float | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="(default: 0, or the model's)")
    ] = None,
    seed: int = 0,
    model: Annotated[Path | None, OPTIONAL_FILE] = None,
    save_model: Annotated[Path | None, OPTIONAL_FILE] = None,
    report: Annotated[Path | None, OPTIONAL_FILE] = None,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """In which states of your data does the action matter? Fits the model, scores every state, writes a report.

    The scores are written to a new file or data set; what was given stays as it is.

    Args:
        data: an .npz file, or the id or folder of a local Minari data set; nothing is downloaded
        out: where the scores go: FILE.npz, one row a state, or the id of a new Minari data set such as mine/cube-cai-v0
        entity: what may be influenced, and its columns of the observation: cube=3:6, or cube=observation:3:6 where
            observations are dictionaries; give it again for further entities
        ignore: a part of the observation to leave out, such as images; give it again for further parts
        network: the paper's, which is smooth, or a steeper one, or the latter only where the former misses much
        members: networks that predict as one, unsure where they disagree: 5 tell influence best
        epochs: of fitting, at most; it ends earlier where the error no longer falls
        actions: K, the actions tried in each state
        extreme: share of their numbers that are the lowest or highest possible; 0.75 shows what only strong actions do
        seed: of the split into episodes, of the fit and of the tried actions
        model: a saved Influence to score with, instead of fitting one; it has its own entities
        save_model: keep the fitted Influence in this .safetensors file
        report: the report (default: beside the scores)
        overwrite: replace what is there
        device: where to compute; auto takes a GPU where there is one
    """
    from butfor.datasets.score import Options, score_file
    from butfor.models.dynamics import STEEP, ModelConfig

    if model is not None and (members != 1 or epochs is not None or network != "choose"):
        raise ValueError(
            "--network, --members and --epochs are for fitting; with --model there is none: leave them out."
        )
    config = {"choose": None, "paper": ModelConfig(), "steep": STEEP}[network]
    options, began = Options(members, epochs, actions, extreme, seed, tuple(ignore), config), time.time()
    try:
        with live_progress() as progress:
            summary = score_file(
                data, out, entity, options, model=model, save_model=save_model, report=report, overwrite=overwrite,
                device=choose_device(device), progress=progress,
            )  # fmt: skip
    except KeyboardInterrupt:
        again = "The same command starts anew."
        if save_model is not None and save_model.exists() and save_model.stat().st_mtime >= began:
            again = f"The fitted model is in {save_model}: go on from there with --model {save_model}."
        raise KeyboardInterrupt(f"Interrupted; no scores were written. {again}") from None
    print_scores(summary)
