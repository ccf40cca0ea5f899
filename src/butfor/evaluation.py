"""How often a trained agent succeeds in fresh episodes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from butfor.agent import TrainedPolicy, load_policy
from butfor.envs import WORLDS, make_worlds, short_name
from butfor.files import load_tensors
from butfor.rollout import Act, Progress, episode_seed, play


def evaluate_run(
    run: Path | str,
    episodes: int = 100,
    device: torch.device | str = "cpu",
    progress: Progress = lambda stage, done, total, text: None,
) -> dict[int, float]:
    """The share of fresh deterministic episodes that end in success, for each seed of a training run."""
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1; got {episodes}.")
    first = load_policy(run)
    path = Path(run) / "model.safetensors" if Path(run).is_dir() else Path(run)
    seeds = load_tensors(path)[1]["seeds"]
    worlds = min(episodes, 100 if short_name(first.world) in WORLDS else 4)
    env: VectorEnv[Any, Any, Any] = make_worlds(first.world, worlds)
    success: dict[int, float] = {}
    for seed in seeds:
        act = _acting(load_policy(run, seed, device))
        wins = played = 0
        while played < episodes:
            starts = [episode_seed(seed, 3, played + index) for index in range(worlds)]
            result = play([env], act, starts)
            wins += int(result.success[: episodes - played].sum())
            played += min(worlds, episodes - played)
            progress("episodes", len(success) * episodes + played, len(seeds) * episodes, f"seed {seed}")
        success[seed] = wins / episodes
    env.close()
    return success


def _acting(policy: TrainedPolicy) -> Act:
    return lambda group, time, obs: (policy(obs), np.zeros(len(obs["observation"]), dtype=bool))
