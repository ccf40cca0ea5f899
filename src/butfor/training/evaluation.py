"""How often a trained agent succeeds in fresh episodes."""

from pathlib import Path

import numpy as np
import torch

from butfor.rollouts.play import Act, Progress, episode_seed, play
from butfor.training.agents.ddpg import TrainedPolicy, load_policy
from butfor.training.goal_env import MakeEnv, check_sizes, open_goal_env, succeeded


def evaluate_run(
    run: Path | str,
    episodes: int = 100,
    device: torch.device | str = "cpu",
    progress: Progress = lambda stage, done, total, text: None,
    *,
    make_env: MakeEnv | None = None,
) -> dict[int, float]:
    """The share of fresh deterministic episodes that end in success, for each seed of a training run.

    `make_env` makes one world, as it did in training, where the run's world is not to be made by name.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1; got {episodes}.")
    first = load_policy(run)
    world = open_goal_env(first.env, entity=(0,), target_scale=1.0, make_env=make_env)  # which are of no interest here
    check_sizes(world, run, first.sizes)
    worlds = min(episodes, world.evaluation_envs)
    env = world.make(worlds)
    success: dict[int, float] = {}
    for seed in first.seeds:
        act = _acting(load_policy(run, seed, device))
        wins = played = 0
        while played < episodes:
            starts = [episode_seed(seed, 3, played + index) for index in range(worlds)]
            result = play([env], act, starts)
            wins += int(succeeded(world, result)[: episodes - played].sum())
            played += min(worlds, episodes - played)
            progress("episodes", len(success) * episodes + played, len(first.seeds) * episodes, f"seed {seed}")
        success[seed] = wins / episodes
    env.close()
    return success


def _acting(policy: TrainedPolicy) -> Act:
    return lambda group, time, obs: (policy(obs), np.zeros(len(obs["observation"]), dtype=bool))
