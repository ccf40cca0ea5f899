"""The scene of a training report: the best, a typical and the worst episode of the trained agent's evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from butfor.envs import facts_of
from butfor.rollouts.play import Observation, Progress, Stream, episode_seed, play
from butfor.runs.reading import read_curves
from butfor.scenes.scene import SCENE_FILE, save_scene
from butfor.scenes.view import view_run
from butfor.training.agents.policy import load_policy
from butfor.training.goal_env import open_goal_env

TRIED = 20  # evaluation episodes among which three are chosen


def write_evaluation_scene(
    run: Path | str, progress: Progress = lambda stage, done, total, text: None, outcomes: bool = True
) -> Path:
    """Write player.json, the episodes that a training report shows, unless it is newer than the agent.

    Args:
        run: folder of a training run.
        progress: called with the stage, how much of it is done, how much there is, and a word.
        outcomes: also find the steps that decided the outcomes, which takes longer; only of built-in environments,
            because others take minutes.

    Returns:
        The path of player.json.
    """
    path = Path(run) / SCENE_FILE
    agent = Path(run) / "model.safetensors"
    if path.is_file() and agent.is_file() and path.stat().st_mtime_ns >= agent.stat().st_mtime_ns:
        return path
    seed = best_seed(run)
    chosen = choose_episodes(run, seed)
    titles = [f"{title} of {TRIED} episodes (seed {seed}, episode {number})" for title, number in chosen.items()]
    outcomes = outcomes and facts_of(load_policy(run, seed).env) is not None
    scene = view_run(run, list(chosen.values()), seed, outcomes=outcomes, progress=progress, titles=titles)
    save_scene(path, scene)
    return path


def best_seed(run: Path | str) -> int:
    """Return the seed with the highest success at the last evaluation, or the first one without evaluations."""
    _, seeds, curves = read_curves(run, ["success"])
    if "success" not in curves:
        return load_policy(run).seed
    return int(seeds[int(curves["success"][:, -1].argmax())])


def choose_episodes(run: Path | str, seed: int, tried: int = TRIED) -> dict[str, int]:
    """Play evaluation episodes and return the numbers of the best, a typical and the worst one by their titles.

    A success is better than a failure; then counts how long the goal was reached, then how near the end is to it.
    """
    policy = load_policy(run, seed)
    goal_env = open_goal_env(policy.env, entities=["any=0"], target_scale=1.0)
    env = goal_env.make(tried)

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        return policy(obs), np.zeros(len(obs["observation"]), dtype=bool)

    starts = [episode_seed(seed, Stream.EVALUATION, number) for number in range(tried)]
    played = play([env], act, starts, goal_env.steps)
    env.close()
    episodes = played.episodes
    goals = episodes.achieved_goal, episodes.desired_goal
    reached = goal_env.reward(*map(torch.from_numpy, goals)).numpy() >= 0  # [E, T + 1]
    reached[:, 1:] &= episodes.valid
    rows = np.arange(tried), episodes.length
    distance = np.linalg.norm(goals[0][rows] - goals[1][rows], axis=1)
    order = np.lexsort((distance, -reached.sum(1), ~goal_env.succeeded(played)))  # the best first
    return {"Best": int(order[0]), "Typical": int(order[tried // 2]), "Worst": int(order[-1])}
