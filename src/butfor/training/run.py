"""Training runs: a folder that is filled by the training loop, saved, resumed, and evaluated."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from butfor.envs import facts_of
from butfor.models.gpu import deterministic
from butfor.models.torch_state import pinned
from butfor.rollouts.episodes import Episodes, EpisodeStream, check_episode_file
from butfor.rollouts.kept import KeptEpisodes
from butfor.rollouts.play import Played, Progress, Stream, episode_seed, play
from butfor.runs.checkpoints import latest_checkpoint, save_checkpoint_in
from butfor.runs.config import config_from, differences, plain
from butfor.runs.files import check_writable, read_json, write_json
from butfor.runs.folder import (
    Events,
    append_metrics,
    open_run,
    run_label,
    run_name,
    truncate_metrics,
    versions,
    versions_resumed,
)
from butfor.runs.locks import locked, working_on
from butfor.runs.reading import iterate_metrics, read_run
from butfor.runs.stopping import check_time_limit, stopping
from butfor.training.agents import load_policy, save_agent
from butfor.training.bonus import BonusConfig
from butfor.training.goal_env import GoalEnv, MakeEnv, add_partners, find_source, open_goal_env, reward_remarks
from butfor.training.loop import Trainer, learn
from butfor.training.offline import drawn_episodes, fill_buffer, learn_from_data, read_episodes
from butfor.training.settings import Config, check_training_memory
from butfor.training.signals import LABELS, OF_CAI


@pinned()
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
    on_evaluation: Callable[[Path], object] = lambda folder: None,
) -> Path:
    """Train all seeds of a config, fill a run folder and return its path.

    After `time_limit` seconds, or at Ctrl-C or SIGTERM, the episode is finished and a checkpoint written; `resume`
    continues from there.

    Args:
        config: the settings, see `preset`
        folder: the run folder; default: runs/ and a name made from the settings
        device: where to compute
        make_env: makes one environment, where `config.env` is not a registered id
        overwrite: replace a run that the folder contains
        time_limit: seconds after which to save and stop
        keep_episodes: an .npz file for every episode that is played
        progress: called with stage, done, total and a text
        on_evaluation: called with the run folder after every evaluation, such as to write a report

    Raises:
        FileExistsError: the folder already contains a run
    """
    check_time_limit(time_limit)
    folder = Path(folder) if folder is not None else Path("runs") / run_name("training", config)
    _refuse_begun(folder, overwrite)
    if keep_episodes is not None:
        _refuse_keeping(config, keep_episodes)
        if Path(keep_episodes).exists():
            raise FileExistsError(f"{keep_episodes} already exists; give another name for the episode file.")
        check_episode_file(keep_episodes)
    goal_env = _open_env(config, make_env)  # before anything is written: a mistake leaves no folder behind
    check_training_memory(config, goal_env, device)
    recorded = read_episodes(config, goal_env) if config.data else None
    check_writable(folder)
    kept = None if keep_episodes is None else KeptEpisodes.of_new_run(keep_episodes, folder)
    with _working(folder, kept, config, device):
        _refuse_begun(folder, overwrite)  # again: another process may just have begun it
        if kept is not None:
            kept.refuse_taken()
        open_run(folder, "training", config, overwrite, None if kept is None else asdict(kept))
        run = _Run(config, goal_env, folder, torch.device(device), None, kept, progress, recorded)
        return run.go(time_limit, on_evaluation)


@pinned()
def resume(
    folder: Path | str,
    device: torch.device | str = "cpu",
    *,
    episodes: int | None = None,
    make_env: MakeEnv | None = None,
    time_limit: float | None = None,
    keep_episodes: Path | str | None = None,
    progress: Progress = lambda stage, done, total, text: None,
    on_evaluation: Callable[[Path], object] = lambda folder: None,
) -> Path:
    """Resume a training run from its last checkpoint; return its folder.

    Args:
        folder: the run folder
        device: where to compute
        episodes: train for more episodes than the run was started with
        make_env: makes one environment, as in `train`
        time_limit: seconds after which to save and stop
        keep_episodes: the episode file that the run was started with
        progress: called with stage, done, total and a text
        on_evaluation: called with the run folder after every evaluation
    """
    check_time_limit(time_limit)
    folder = Path(folder)
    if (kind := read_run(folder)["kind"]) != "training":
        raise ValueError(f"{folder} contains a run of kind {kind!r}; only training runs can be resumed.")
    kept = KeptEpisodes.of_run(folder, keep_episodes)
    for place in (folder, folder / "checkpoint"):
        check_writable(place)
    before = config_from(Config, read_run(folder)["config"])
    if kept is not None:
        _refuse_keeping(before, kept.file)
        check_writable(kept.file)
    with _working(folder, kept, before, device):
        record = read_run(folder)  # again: another process may just have resumed it
        before = config_from(Config, record["config"])
        state = latest_checkpoint(folder)
        if state is None and _has_results(folder):
            raise ValueError(
                f"{folder} contains results but no checkpoint to resume from; copy its folder checkpoint/ as well, or "
                "start again with --overwrite (in a study: delete the folder), or in another folder."
            )
        config = before if episodes is None else replace(before, episodes=episodes)
        played = 0 if state is None else state["rounds"] if config.data else state["replay"]["stored"]
        if config.episodes < played:
            raise ValueError(f"{folder} has already finished {played} episodes or rounds; got {episodes}.")
        goal_env = _open_env(config, make_env, state)
        if state is not None:
            _check_settings(folder, before, state)
            goal_env.check_unchanged(folder, state["replay"], state.get("law"))
        if config != before:
            changed = {"label": run_label("training", config), "config": plain(config)}
            write_json(folder / "config.json", record | changed)
        recorded = read_episodes(config, goal_env) if config.data and state is None else None
        run = _Run(config, goal_env, folder, torch.device(device), state, kept, progress, recorded)
        return run.go(time_limit, on_evaluation)


@pinned()
def evaluate_run(
    run: Path | str,
    episodes: int = 100,
    device: torch.device | str = "cpu",
    progress: Progress = lambda stage, done, total, text: None,
    *,
    make_env: MakeEnv | None = None,
) -> dict[int, float]:
    """Play fresh deterministic episodes with every seed of a training run.

    Args:
        run: the run folder
        episodes: how many, per seed
        device: where to compute
        progress: called with stage, done, total and a text
        make_env: makes one environment, as it did in training

    Returns:
        The share of episodes that end in success, by seed.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1; got {episodes}.")
    first = load_policy(run)
    goal_env = open_goal_env(first.env, ["any=0"], 1.0, make_env)  # entities do not matter here
    goal_env.check_sizes(run, first.sizes)
    count = min(episodes, goal_env.evaluation_envs)
    env = goal_env.make(count)
    sampled = np.zeros(count, dtype=bool)
    success: dict[int, float] = {}
    for seed in first.seeds:
        policy = load_policy(run, seed, device)
        wins = 0
        for played in range(0, episodes, count):
            resets = [episode_seed(seed, Stream.EVALUATE_RUN, played + index) for index in range(count)]
            result = play([env], lambda group, time, obs, policy=policy: (policy(obs), sampled), resets)  # type: ignore[misc]
            wins += int(goal_env.succeeded(result)[: episodes - played].sum())
            done = len(success) * episodes + min(played + count, episodes)
            progress("episodes", done, len(first.seeds) * episodes, f"seed {seed}")
        success[seed] = wins / episodes
    env.close()
    return success


def _refuse_begun(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that contains a run, unless that is to be overwritten."""
    if not overwrite and (folder / "config.json").is_file():
        raise FileExistsError(
            f"{folder} already contains a run. Resume it with --resume {folder}, replace it with --overwrite, or give "
            "another folder with --run."
        )


def _refuse_keeping(config: Config, file: Path | str) -> None:
    """Refuse to keep episodes where none are played."""
    if config.data:
        raise ValueError(f"keep_episodes is {str(file)!r}; a run that learns from data plays no episodes to keep.")


@contextmanager
def _working(folder: Path, kept: KeptEpisodes | None, config: Config, device: torch.device | str) -> Iterator[None]:
    """Hold the locks of the run folder and of the episode file, with the run's settings of torch."""
    deterministic_cuda = config.deterministic and torch.device(device).type == "cuda"
    with working_on(folder), nullcontext() if kept is None else locked(kept.file), deterministic(deterministic_cuda):
        yield


def _has_results(folder: Path) -> bool:
    """Whether starting again would destroy models, or the summary of a finished run."""
    summary = folder / "summary.json"
    return (folder / "model.safetensors").exists() or (summary.is_file() and bool(read_json(summary)["finished"]))


def _check_settings(folder: Path, config: Config, state: Mapping[str, Any]) -> None:
    """Refuse a config.json with other settings than the checkpoint; checkpoints of before have none."""
    if "config" not in state:
        return
    saved = config_from(Config, state["config"])
    changed = [name for name, _ in differences(config, saved) if name not in ("episodes", "checkpoint_seconds")]
    if changed:
        raise ValueError(
            f"config.json of {folder} differs from the checkpoint in {', '.join(changed)}. A run keeps its settings; "
            "restore config.json from a copy, or start another run."
        )


def _open_env(config: Config, make_env: MakeEnv | None, state: dict[str, Any] | None = None) -> GoalEnv:
    """The environment of a config, checked against its settings; with a checkpoint it has the same partners."""
    if make_env is not None and facts_of(config.env) is not None:
        raise ValueError(f"{config.env!r} is a built-in environment; with make_env, choose another name as config.env.")
    scale = config.cai.network.target_scale
    labels = LABELS.get(config.signal, ()) if config.use else ()
    goal_env = open_goal_env(config.env, config.entities, scale, make_env, labels)
    if config.priority.kind == "ebp" and goal_env.sizes[2] != 3:
        size = goal_env.sizes[2]
        raise ValueError(f"priority.kind 'ebp' needs goals (x, y, z); those of {goal_env.name} have {size} column(s).")
    if config.replay.mirror or config.replay.shift:
        goal_env.check_mirrors(config.replay.shift)
    touches = config.use and config.signal in OF_CAI and config.cai.model != "gaussian"
    if touches and state is not None:
        goal_env = goal_env.with_touching(state["touching"])
    elif touches:
        agent = find_source(goal_env, config.cai.source) if config.cai.source else config.cai.agent
        goal_env = add_partners(goal_env, agent, config.cai.model == "touch", measure=scale is None)
    if config.use and scale is None and (still := goal_env.unmoved()):
        warnings.warn(
            f"A few random episodes of {goal_env.name} did not move {' and '.join(still)}, so the size of its moves is "
            "not known; give the factor that makes them about 1 with --cai.network.target-scale (the paper: 50 for "
            "objects that move by centimetres).",
            stacklevel=3,
        )
    if touches and goal_env.partners and state is None:
        _warn_of_small_bonus(config)
    return goal_env


def _warn_of_small_bonus(config: Config) -> None:
    """Warn of a bonus by a model of touches that has the weight for the paper's network, or less."""
    weight = config.bonus.weight
    if "bonus" in config.use and weight <= BonusConfig().weight and not config.cai.source:
        warnings.warn(
            "The scores of a model of touches are 10 to 40 times smaller than those of the paper's network, so that a "
            f"bonus with the weight {weight:g} adds next to nothing. Give a larger --bonus.weight (which one has "
            "not been measured), or use priority and active, which need only the order of the scores.",
            stacklevel=4,
        )


def _restore(trainer: Trainer, state: Mapping[str, Any], folder: Path) -> None:
    """Put back a checkpoint; one that does not fit the settings is refused with a sentence."""
    try:
        trainer.restore(state)
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        problem = " ".join(str(error).split())
        raise ValueError(
            f"The checkpoint of {folder} does not fit the settings in its config.json ({problem:.300}). A run keeps "
            "its settings; restore config.json from a copy, or start another run."
        ) from error


class _Run:
    """One process of a training run: what surrounds the loop."""

    def __init__(
        self,
        config: Config,
        goal_env: GoalEnv,
        folder: Path,
        device: torch.device,
        state: dict[str, Any] | None,
        kept: KeptEpisodes | None,
        progress: Progress,
        recorded: Episodes | None = None,
    ) -> None:
        """Make the trainer, restored from a checkpoint where there is one."""
        self.started = time.monotonic()  # a time limit counts from here: recording a GPU's steps can take a minute
        self.config = config
        self.folder = folder
        self.progress = progress
        # a run that was killed before its first checkpoint starts again: what it ran with before does not count
        write_json(folder / "versions.json", versions(device) if state is None else versions_resumed(folder, device))
        if goal_env.facts is None:  # its user does not know what random episodes have shown
            clipped = reward_remarks(goal_env.rewards, config.agent.target_range, config.agent.discount)
            for words in (goal_env.describe_in_words(), *goal_env.remarks, *clipped):
                progress("environment", 1, 1, words)
        capacity = None if recorded is None else drawn_episodes(config, len(recorded))
        if config.data and state is not None:  # the checkpoint has them
            capacity = state["replay"]["length"].shape[1]
        self.trainer = Trainer(config, goal_env, device, capacity)
        if state is not None:
            _restore(self.trainer, state, folder)
        elif recorded is not None:
            fill_buffer(self.trainer, recorded)
        self.replay = self.trainer.replay
        evaluated = self.trainer.done - self.trainer.interrupted  # an interrupted round precedes its evaluation
        truncate_metrics(folder, evaluated, 0 if state is None else state.get("rows", 0))
        self.events = Events(folder, evaluated)
        self.kept: EpisodeStream | None = None
        if kept is not None:
            self.kept = EpisodeStream(kept.file, self.replay.stored, kept.id)
            write_json(folder / "episodes.json", asdict(kept))  # a resumed run may have been given it, or moved
        success: dict[int, list[float]] = {}  # of each seed, by episode
        if (folder / "metrics.jsonl").is_file():
            for row in iterate_metrics(folder):
                success.setdefault(row["episode"], []).append(row["success"])
        # mean and standard deviation over seeds, by episode
        self.curve = {episode: (float(np.mean(each)), float(np.std(each))) for episode, each in success.items()}
        self.text = ""
        self.began = time.monotonic()
        self.first_episode = self.trainer.done
        self.saved = time.monotonic()
        self.seconds_before = self.trainer.seconds.get("total", 0.0)

    def go(self, time_limit: float | None, on_evaluation: Callable[[Path], object]) -> Path:
        """Train, then write models and summary."""
        trainer = self.trainer
        self.on_evaluation = on_evaluation
        with closing(trainer), closing(self.events), stopping(time_limit, self.started) as stop:
            if self.config.data:
                learn_from_data(trainer, stop, self.progress, self.evaluate_when_due, self.end_episode)
            else:
                learn(trainer, stop, self.progress, self.keep, self.evaluate_when_due, self.end_episode)
            self.save()
            config = self.config
            goal_env = trainer.goal_env
            law = goal_env.law
            path = self.folder / "model.safetensors"
            tensors = trainer.agent.state_dict()
            relative = config.replay.relative_goals
            save_agent(path, tensors, config.agent, law, goal_env.sizes, config.env, trainer.seeds, relative)
            if trainer.signal is not None:
                trainer.signal.save(self.folder, config.first_seed)
            played = trainer.done >= config.episodes
            finished = played and not trainer.interrupted
            self.summarize(finished)
            if self.kept is not None and played:
                self.kept.join(
                    {"env": config.env, "seeds": trainer.seeds, "order": "episode by episode, the seeds in turn"}
                    | {"action_low": list(law.low), "action_high": list(law.high)}
                )
            if stop.signalled and not finished:
                raise KeyboardInterrupt(
                    f"Stopped after episode {trainer.done}. Resume it with: butfor train --resume {self.folder}"
                )
        return self.folder

    def keep(self, played: Played) -> None:
        """Add episodes to the file that keeps them."""
        if self.kept is not None:
            self.kept.add(played.episodes, self.config.seeds)

    def evaluate_when_due(self) -> None:
        """Evaluate all seeds, and write a row of metrics for each."""
        config = self.config
        trainer = self.trainer
        episode = trainer.done
        if episode % config.evaluate_every >= config.num_envs and episode < config.episodes:
            return
        self.note_time()
        losses = trainer.report()
        success, behaviour = trainer.evaluate(config.evaluation_episodes, episode)
        kinds = ("simulation", "updates", "model", "scoring")
        spent = round(sum(trainer.seconds.get(name, 0.0) for name in kinds), 2)
        rows = [
            {"episode": episode, "seed": seed, "success": float(success[r])}
            | {name: float(shares[r]) for name, shares in behaviour.items()}
            | losses[r]
            | {"seconds": spent}
            for r, seed in enumerate(trainer.seeds)
        ]
        append_metrics(self.folder, rows)
        self.curve[episode] = (float(np.mean(success.tolist())), float(np.std(success.tolist())))
        values = {"success/mean": float(success.mean())}
        shown = [name for name in rows[0] if name not in ("episode", "seed", "seconds")]
        values |= {f"{name}/seed {row['seed']}": row[name] for row in rows for name in shown}
        self.events.add(values, episode)
        self.summarize(finished=False, with_curve=False)  # for a process that is killed
        spread = f" ± {success.std():.2f}" if len(success) > 1 else ""
        self.text = f"success {success.mean():.2f}{spread}, "
        self.on_evaluation(self.folder)

    def end_episode(self) -> None:
        """Report progress, and save where that is due."""
        done = self.trainer.done
        speed = (done - self.first_episode) / max(time.monotonic() - self.began, 1e-9)
        config = self.config
        rate = f"{speed * config.seeds * self.trainer.goal_env.steps:,.0f} steps/s"
        if config.data:
            rate = f"{speed * config.agent.updates:,.0f} updates/s"
        self.progress("rounds" if config.data else "episodes", done, config.episodes, f"{self.text}{rate}")
        if time.monotonic() - self.saved > self.config.checkpoint_seconds:
            self.save()
            self.saved = time.monotonic()

    def save(self) -> None:
        """Write a checkpoint."""
        self.trainer.check()
        self.note_time()
        if self.kept is not None:
            self.kept.flush(self.replay.stored)
        rows = len(self.curve) * self.config.seeds  # of metrics.jsonl: a resume notices if some are lost
        state = self.trainer.state() | {"config": plain(self.config), "rows": rows}
        save_checkpoint_in(self.folder, self.trainer.done, state)

    def note_time(self) -> None:
        """Add up the time of all processes of this run."""
        self.trainer.seconds["total"] = self.seconds_before + time.monotonic() - self.began

    def summarize(self, finished: bool, with_curve: bool = True) -> None:
        """Write summary.json: how far the run is, where the time went, and the curve of success.

        While a run trains it is written without the curve, which metrics.jsonl contains: else every evaluation would
        write all evaluations before it again.
        """
        config = self.config
        episodes = sorted(self.curve) if with_curve else []
        summary = {
            "schema": 1,
            "env": config.env,
            "label": run_label("training", config),
            "seeds": self.trainer.seeds,
            "found": self.trainer.goal_env.describe(),
            "finished": finished,
            "played": self.trainer.done,
            "episodes": episodes,
            "success": {name: [self.curve[one][i] for one in episodes] for i, name in enumerate(("mean", "std"))},
            "seconds": {name: round(value, 2) for name, value in self.trainer.seconds.items()},
        }
        write_json(self.folder / "summary.json", summary)
