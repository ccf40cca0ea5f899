"""`butfor detect`: compare detectors of influence with the exact answer."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from butfor.cli.console import live_progress, print_detection, print_next
from butfor.cli.options import Device, Env, Flag, RunFolder, choose_device

PRESET = "(default: the preset's)"
Count = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint=PRESET)]
DataSource = Annotated[
    Literal["scripted", "agents"] | None, tyro.conf.arg(metavar="{scripted,agents}", help_behavior_hint=PRESET)
]
KLForm = Annotated[
    Literal["product", "variational", "mean", "mean_clip_product"] | None,
    tyro.conf.arg(metavar="{product,variational,mean,mean_clip_product}", help_behavior_hint=PRESET),
]


def detect(
    env: Env,
    /,
    preset: Literal["paper", "reduced", "demo"] = "paper",
    data: DataSource = None,
    studies: Annotated[str | None, tyro.conf.arg(metavar="NAMES", help_behavior_hint=PRESET)] = None,
    seeds: Count = None,
    train_episodes: Count = None,
    validation_episodes: Count = None,
    test_episodes: Count = None,
    random_episodes: Count = None,
    agent_episodes: Count = None,
    agent_envs: Count = None,
    extra_episodes: Count = None,
    split_agent: Flag = False,
    max_epochs: Count = None,
    decay: Flag = False,
    actions: Count = None,
    form: KLForm = None,
    run: RunFolder = None,
    pictures: bool = True,
    overwrite: Flag = False,
    device: Device = "auto",
) -> None:
    """Measure how well influence is detected, state by state, against the simulator's exact answer.

    Collects episodes, fits the influence model and its rivals for several seeds at once, compares all detectors, and
    writes a run folder with a report. The same command resumes an interrupted run.

    Args:
        env: environment: slide or pick-and-place
        preset: settings to start from: paper, reduced (minutes on a GPU) or demo (minutes on two CPU cores)
        data: source of the episodes: scripted policies, or agents during their training (DDPG with HER)
        studies: further comparisons, separated by commas: actions, decisions, ensembles, helps, noise, reference; or
            none
        seeds: number of independent models, fitted together as one batch
        train_episodes: episodes to fit the models on
        validation_episodes: episodes for early stopping
        test_episodes: episodes to score
        random_episodes: further episodes to score, played by a random policy
        agent_episodes: training length of the data-collecting agents, in episodes (with --data agents)
        agent_envs: environments that each data-collecting agent plays in at once
        extra_episodes: episodes of each further policy in the decisions study
        split_agent: use two tokens for the agent in the Transformer of pick-and-place, as in the authors' release
        max_epochs: upper bound of the epochs of the influence models and of the Transformer; early stopping may end
            them before
        decay: decay the learning rate of the influence models to zero; a few hundred epochs are then enough
        actions: number K of actions that are tried in each state
        form: approximation of the KL divergence from a Gaussian to a mixture
        pictures: render episodes, failures and a map of influence for the report (pick-and-place)
        overwrite: replace the run in the run folder
    """
    from butfor.detection.experiment import run_detection
    from butfor.detection.settings import detection_preset
    from butfor.envs import ENVS, short_name
    from butfor.reporting.pictures import illustrate
    from butfor.runs.folder import run_name

    base = detection_preset(short_name(env) if env in ENVS.values() else env, preset)
    names = None if studies is None else tuple(name for name in re.split("[ ,]+", studies) if name not in ("", "none"))
    config = _changed(
        base,
        data=data,
        studies=names,
        seeds=seeds,
        train_episodes=train_episodes,
        validation_episodes=validation_episodes,
        test_episodes=test_episodes,
        random_episodes=random_episodes,
        agent_episodes=agent_episodes,
        agent_envs=agent_envs,
        extra_episodes=extra_episodes,
        split_agent=split_agent or None,
        attention_fitting=_changed(
            base.attention_fitting, max_epochs=max_epochs and min(max_epochs, base.attention_fitting.max_epochs)
        ),
        fitting=_changed(base.fitting, max_epochs=max_epochs, decay=decay or None),
        scoring=_changed(base.scoring, actions=actions, form=form),
    )
    folder = run or Path("runs") / run_name("detection", config)
    with live_progress() as progress:
        run_detection(config, folder, choose_device(device), overwrite, progress)
    print_detection(folder)
    with live_progress() as progress:
        page, problems = illustrate(folder, pictures, progress)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"\nReport: {page}" if page else f"\nRun: {folder}")
    print_next(f"open {page} in a browser" if page else f"butfor report {folder}")


def _changed(config: Any, **changes: Any) -> Any:
    """Return the config with those fields replaced that are not None."""
    return dataclasses.replace(config, **{name: value for name, value in changes.items() if value is not None})
