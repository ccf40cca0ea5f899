"""How often a trained agent succeeds in fresh episodes."""

from pathlib import Path

import numpy as np
import torch

from butfor.rollouts.play import Progress, Stream, episode_seed, play
from butfor.training.agents.policy import load_policy
from butfor.training.goal_env import MakeEnv, open_goal_env


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
