"""Learning from recorded episodes: the replay buffer is filled once, nothing is played but the evaluation.

`learn_from_data` is the loop. The rest of a run (evaluation, checkpoints, resume, reports) is as in `run.py`; where it
counts episodes, this counts rounds of updates.
"""

from collections.abc import Callable

import numpy as np

from butfor.envs.facts import facts_of
from butfor.rollouts.episodes import VECTORS, Episodes, concatenate
from butfor.rollouts.play import Progress
from butfor.runs.stopping import Stop
from butfor.training.goal_env import GoalEnv
from butfor.training.loop import Trainer
from butfor.training.settings import Config

DRAWING = 5  # number of the random stream by which seeds draw their episodes; those of `loop.STREAMS` are before it


def learn_from_data(
    trainer: Trainer,
    stop: Stop,
    progress: Progress,
    after_updating: Callable[[], None] = lambda: None,
    after_round: Callable[[], None] = lambda: None,
) -> None:
    """Train until all rounds of updates are done or `stop` is true; called again, it resumes.

    The two functions evaluate the updated agents, and report and save.
    """
    trainer.prepare(progress)
    while trainer.rounds < trainer.config.episodes:
        trainer.fit_and_rescore(stop, progress)  # before the first round
        if trainer.interrupted:
            break
        trainer.update()
        trainer.rounds += 1
        after_updating()
        after_round()
        if stop():
            break


def read_episodes(config: Config, goal_env: GoalEnv) -> Episodes:
    """The episodes of all files of a config, checked against the environment.

    Raises:
        ValueError: they are of another environment, have other sizes, lack a label that the signal reads, or too few
            are left for each seed.
    """
    parts = []
    for path in config.data:
        part = Episodes.load(path)
        sizes = tuple(array.shape[2] for array in (part.observation, part.action, part.desired_goal))
        env = part.metadata.get("config", part.metadata).get("env")
        named = facts_of(env) if isinstance(env, str) else None
        if sizes != goal_env.sizes or (named is not None and named != goal_env.facts):
            raise ValueError(
                f"{path} has episodes of {env or 'an environment'} with observations, actions and goals of sizes "
                f"{sizes}; {config.env} has {goal_env.sizes}."
            )
        if part.action.shape[1] > goal_env.steps:
            raise ValueError(
                f"{path} has episodes of up to {part.action.shape[1]} steps; those of {config.env} have at most "
                f"{goal_env.steps}."
            )
        if not all(np.isfinite(getattr(part, name)).all() for name in VECTORS):
            raise ValueError(f"{path} contains NaN or infinite values.")
        if missing := [name for name in goal_env.labels if name not in part.labels()]:
            raise ValueError(
                f"{path} has no label {missing[0]!r}, which the signal {config.signal!r} reads; collect episodes with "
                f"`--labels {missing[0]}`, or choose another signal."
            )
        parts.append(part)
    episodes = concatenate(parts)
    if drawn_episodes(config, len(episodes)) < 1:
        raise ValueError(f"data_share is {config.data_share}, less than one of the {len(episodes)} episodes of data.")
    return episodes


def drawn_episodes(config: Config, count: int) -> int:
    """How many of `count` episodes each seed learns from."""
    return round(config.data_share * count)


def fill_buffer(trainer: Trainer, episodes: Episodes) -> None:
    """Put recorded episodes into the replay buffer; where only a share is used, each seed has its own."""
    config = trainer.config
    count = drawn_episodes(config, len(episodes))
    chosen = [np.arange(count)] * config.seeds
    if config.data_share < 1:
        generators = [np.random.default_rng((seed, DRAWING)) for seed in trainer.seeds]
        chosen = [generator.permutation(len(episodes))[:count] for generator in generators]
    missing = trainer.goal_env.steps - episodes.action.shape[1]
    fields = {name: getattr(episodes, name) for name in (*VECTORS, "sampled", "length")}
    if trainer.replay.label is not None:
        fields["label"] = episodes.labels()[trainer.goal_env.labels[0]]
    arrays = {}
    for name, value in fields.items():
        padding = [(0, 0), (0, missing), *[(0, 0)] * (value.ndim - 2)][: value.ndim]
        arrays[name] = np.stack([np.pad(value, padding)[index] for index in chosen])
    trainer.replay.store(arrays)
    trainer.error[:] = trainer.largest_error[:, None, None]
    if trainer.signal is not None and trainer.signal.learns:
        trainer.pending = trainer.round = trainer.config.fit_schedule[0][1]
    elif trainer.signal is not None:
        trainer.signal.score(trainer.replay.slots(count), trainer.generators["scores"])
