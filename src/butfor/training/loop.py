"""Training: the one loop that plays, stores, fits, rescores and updates."""

import os
import time
import warnings
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from butfor.envs import ENVS
from butfor.models.capture import deterministic
from butfor.rollouts.episodes import EpisodeStream
from butfor.rollouts.play import Progress
from butfor.runs.checkpoints import latest_checkpoint, save_checkpoint_in
from butfor.runs.config import config_from, plain
from butfor.runs.files import check_writable, read_json, write_json
from butfor.runs.folder import (
    append_metrics,
    open_events,
    open_run,
    run_label,
    run_name,
    truncate_metrics,
    versions,
    versions_resumed,
)
from butfor.runs.locks import locked
from butfor.runs.reading import read_metrics, read_run
from butfor.runs.stopping import check_time_limit, stopping
from butfor.training.agents.ddpg import save_agent
from butfor.training.goal_env import GoalEnv, MakeEnv, check_unchanged, found_out, found_words, open_goal_env, unmoved
from butfor.training.remarks import reward_remarks
from butfor.training.settings import Config
from butfor.training.trainer import Trainer


def train(
    config: Config,
    folder: Path | str | None = None,
    device: torch.device | str = "cpu",
    *,
    make_env: MakeEnv | None = None,
    overwrite: bool = False,
    time_limit: float | None = None,
    keep_episodes: Path | str | None = None,
    progress: Progress = lambda stage, done, total, text: None,
) -> Path:
    """Trains all seeds of a config and fills a run folder (default: runs/ and a name made from the settings).

    `make_env` makes one world where `config.env` is not to be made by name. After `time_limit` seconds, or at Ctrl-C
    or SIGTERM, the episode is finished and a checkpoint written; `resume` goes on from there.
    """
    check_time_limit(time_limit)
    folder = Path(folder) if folder is not None else Path("runs") / run_name("training", config)
    _refuse_begun(folder, overwrite)
    if keep_episodes is not None and Path(keep_episodes).exists():
        raise FileExistsError(f"{keep_episodes} exists already; give another name for the episode file.")
    if keep_episodes is not None:
        check_writable(keep_episodes)
    world = _world(config, make_env)  # before anything is written: a mistake leaves no folder behind
    check_writable(folder)
    with _alone_on(folder), _exactness(config, device):
        _refuse_begun(folder, overwrite)  # once more: another process may just have begun it
        open_run(folder, "training", config, overwrite)
        if keep_episodes is not None:  # so that going on keeps them, too
            write_json(folder / "episodes.json", {"file": str(Path(keep_episodes).resolve())})
        return _run(config, world, folder, torch.device(device), None, time_limit, keep_episodes, progress)


def _refuse_begun(folder: Path, overwrite: bool) -> None:
    """Refuses a folder that holds a run, unless that is to be overwritten."""
    if not overwrite and (folder / "config.json").is_file():
        raise FileExistsError(
            f"{folder} holds a run already; go on with it by --resume {folder}, start anew by --overwrite, or give "
            "another name by --run."
        )


def _alone_on(folder: Path) -> AbstractContextManager[None]:
    """A lock on a run folder; a study holds that of its unit already, and beside a mounted folder none can lie."""
    place = folder.resolve()
    mounted = place.is_dir() and not os.access(place.parent, os.W_OK)
    return nullcontext() if mounted else locked(place, again=True)


def resume(
    folder: Path | str,
    device: torch.device | str = "cpu",
    *,
    episodes: int | None = None,
    make_env: MakeEnv | None = None,
    time_limit: float | None = None,
    keep_episodes: Path | str | None = None,
    progress: Progress = lambda stage, done, total, text: None,
) -> Path:
    """Goes on with a run from its last checkpoint, to more episodes than first asked for where those are given."""
    check_time_limit(time_limit)
    folder = Path(folder)
    if (kind := read_run(folder)["kind"]) != "training":
        raise ValueError(f"{folder} holds a run of kind {kind!r}; only training runs can be resumed.")
    for place in (folder, folder / "checkpoint"):
        check_writable(place)
    with _alone_on(folder):
        record = read_run(folder)  # once more: another process may just have gone on with it
        config = before = config_from(Config, record["config"])
        state = latest_checkpoint(folder)
        if state is None and _was_saved(folder):
            raise ValueError(
                f"{folder} holds results but no checkpoint to go on from; copy its folder checkpoint/ as well, or "
                "start anew with --overwrite (in a study: delete the folder), or in another folder."
            )
        if (folder / "episodes.json").is_file():
            kept = read_json(folder / "episodes.json")["file"]
            if keep_episodes is not None and str(Path(keep_episodes).resolve()) != kept:
                raise ValueError(f"{folder} keeps its episodes in {kept}; it cannot go on in {keep_episodes}.")
            keep_episodes = kept
        if keep_episodes is not None:
            check_writable(keep_episodes)
        if episodes is not None and episodes != config.episodes:
            if state is not None and episodes < state["replay"]["stored"]:
                raise ValueError(f"{folder} has already played {state['replay']['stored']} episodes; got {episodes}.")
            config = replace(config, episodes=episodes)
        world = _world(config, make_env)
        if state is not None:
            check_unchanged(world, folder, state["replay"], state.get("law"))
        if config != before:
            changed = {"label": run_label("training", config), "config": plain(config)}
            write_json(folder / "config.json", record | changed)
        with _exactness(config, device):
            return _run(config, world, folder, torch.device(device), state, time_limit, keep_episodes, progress)


def _was_saved(folder: Path) -> bool:
    """Whether a run got as far as to leave models or be finished, so that starting anew would destroy something."""
    summary = folder / "summary.json"
    return (folder / "model.safetensors").exists() or (summary.is_file() and bool(read_json(summary)["finished"]))


def _exactness(config: Config, device: torch.device | str) -> AbstractContextManager[None]:
    """Bits that repeat, where they are asked for; a CPU's always do."""
    return deterministic(config.deterministic and torch.device(device).type == "cuda")


def _world(config: Config, make_env: MakeEnv | None) -> GoalEnv:
    if make_env is not None and config.env in (*ENVS, *ENVS.values()):
        raise ValueError(
            f"config.env is {config.env!r}, a built-in world, but make_env makes another; give it a name of its "
            "own, as in preset('my-world')."
        )
    scale = config.model.network.target_scale
    world = open_goal_env(config.env, config.entity, scale, make_env, config.entities)
    if config.needs_model and scale is None and (still := unmoved(world)):
        warnings.warn(
            f"A few random episodes of {world.name} did not move the {' and the '.join(still)}, so the size of its "
            "moves is not known; give the factor that makes them about 1 by --model.network.target-scale (the paper: "
            "50 for objects that move by centimetres).",
            stacklevel=3,
        )
    if config.priority.kind == "ebp" and world.sizes[2] != 3:
        raise ValueError(
            f"priority.kind is 'ebp', which needs goals that are positions (x, y, z); those of {world.name} have "
            f"{world.sizes[2]} numbers. Use another kind of priority in this world."
        )
    return world


def _run(
    config: Config,
    world: GoalEnv,
    folder: Path,
    device: torch.device,
    state: dict[str, Any] | None,
    time_limit: float | None,
    keep_episodes: Path | str | None,
    progress: Progress,
) -> Path:
    """The loop: play, store, train the model and rescore when due, update the agent, evaluate, save."""
    started = time.monotonic()
    write_json(folder / "versions.json", versions(device) if state is None else versions_resumed(folder, device))
    if not world.capturable:  # it is not built in: its user does not know what random episodes have shown
        clipped = reward_remarks(world.rewards, config.agent.target_range, config.agent.discount)
        for words in (found_words(world), *world.remarks, *clipped):
            progress("environment", 1, 1, words)
    trainer = Trainer(config, world, device)
    if state is not None:
        trainer.restore(state)
    trainer.prepare()
    replay = trainer.replay
    evaluated = replay.stored - trainer.interrupted  # stopped within a round, the evaluation was still to come
    truncate_metrics(folder, evaluated)
    events = open_events(folder, evaluated)
    kept = EpisodeStream(keep_episodes, replay.stored) if keep_episodes is not None else None
    saved, began, text = time.monotonic(), (time.monotonic(), replay.stored), ""
    before_this_process = trainer.seconds.get("total", 0.0)

    def note_time() -> None:
        trainer.seconds["total"] = before_this_process + time.monotonic() - began[0]

    def save() -> None:
        trainer.check()
        note_time()
        if kept is not None:
            kept.flush(replay.stored)
        save_checkpoint_in(folder, replay.stored, trainer.state())

    # the limit counts from the start: recording a GPU's steps can take a minute
    with closing(trainer), closing(events), stopping(time_limit, started) as stop:
        while replay.stored < config.episodes or trainer.interrupted:
            if not trainer.interrupted:
                before = replay.stored
                if before < config.warmup:
                    played = trainer.play_random(min(config.warmup - before, world.evaluation_envs, replay.capacity))
                else:
                    played = trainer.play()
                trainer.store(played)
                if kept is not None:
                    kept.add(played.episodes, config.seeds)
                if "updates" in config.overlap:
                    trainer.refresh_acting()  # the next episode is played by the policy from before these updates
                trainer.begin_round(before)
            trainer.interrupted = False

            while trainer.pending:
                trainer.fit_model()
                if not trainer.pending:
                    trainer.rescore()
                if trainer.quota:  # a spread round: this was the episode's share
                    break
                if stop():
                    trainer.interrupted = True
                    break
                progress("model", trainer.round - trainer.pending, trainer.round, f"after episode {replay.stored}")
            if trainer.interrupted:
                break

            if replay.stored >= config.warmup:
                trainer.update()
                if "updates" not in config.overlap:
                    trainer.refresh_acting()
                if replay.stored % config.evaluate_every < config.num_envs or replay.stored >= config.episodes:
                    note_time()
                    text = _evaluate(trainer, folder, events)

            speed = (replay.stored - began[1]) / max(time.monotonic() - began[0], 1e-9)
            rate = f"{speed * config.seeds * world.steps:,.0f} steps/s"
            progress("episodes", replay.stored, config.episodes, f"{text}{rate}")
            if stop():
                break
            if time.monotonic() - saved > config.checkpoint_seconds:
                save()
                saved = time.monotonic()
        save()
        _finish(trainer, folder)
        if kept is not None and replay.stored >= config.episodes:
            kept.join(
                {"env": config.env, "seeds": trainer.seeds, "order": "episode by episode, the seeds in turn"}
                | {"action_low": list(world.law.low), "action_high": list(world.law.high)}
            )
        if stop.signalled and (replay.stored < config.episodes or trainer.interrupted):
            raise KeyboardInterrupt(f"Stopped after episode {replay.stored}; go on by --resume {folder}")
    return folder


def _evaluate(trainer: Trainer, folder: Path, events: Any) -> str:
    """Evaluates all seeds, writes a line of metrics each; the success in words."""
    config, episode = trainer.config, trainer.replay.stored
    losses = trainer.report()
    success = trainer.evaluate(config.evaluation_episodes, episode)
    spent = round(sum(trainer.seconds.get(name, 0.0) for name in ("simulation", "updates", "model", "scoring")), 2)
    rows = [
        {"episode": episode, "seed": seed, "success": float(success[r])}
        | {name: float(shares[r]) for name, shares in trainer.behaviour.items()}
        | losses[r]
        | {"seconds": spent}
        for r, seed in enumerate(trainer.seeds)
    ]
    append_metrics(folder, rows)
    values = {"success/mean": float(success.mean())}
    shown = [name for name in rows[0] if name not in ("episode", "seed", "seconds")]
    values |= {f"{name}/seed {row['seed']}": row[name] for row in rows for name in shown}
    events.add(values, episode)
    _summarize(trainer, folder, finished=False)  # for a process that is killed
    spread = f" ± {success.std():.2f}" if len(success) > 1 else ""
    return f"success {success.mean():.2f}{spread}, "


def _finish(trainer: Trainer, folder: Path) -> None:
    """The models, and a summary of the run so far."""
    config, world = trainer.config, trainer.world
    save_agent(folder / "model.safetensors", trainer.agent, world.law, world.sizes, config.env, trainer.seeds)
    if trainer.model is not None:
        name = "influence" if config.curiosity == "none" else config.curiosity
        trainer.model.save(folder / f"{name}.safetensors", config.first_seed)
    _summarize(trainer, folder, finished=trainer.replay.stored >= config.episodes and not trainer.interrupted)


def _summarize(trainer: Trainer, folder: Path, finished: bool) -> None:
    """summary.json: the curve of success so far, and where the time went."""
    config = trainer.config
    rows = read_metrics(folder) if (folder / "metrics.jsonl").is_file() else []
    episodes = sorted({row["episode"] for row in rows})
    curve = [[row["success"] for row in rows if row["episode"] == episode] for episode in episodes]
    summary = {
        "schema": 1,
        "env": config.env,
        "label": run_label("training", config),
        "seeds": trainer.seeds,
        "found": found_out(trainer.world),
        "finished": finished,
        "played": trainer.replay.stored,
        "episodes": episodes,
        "success": {"mean": [float(np.mean(v)) for v in curve], "std": [float(np.std(v)) for v in curve]},
        "seconds": {name: round(value, 2) for name, value in trainer.seconds.items()},
    }
    write_json(folder / "summary.json", summary)
