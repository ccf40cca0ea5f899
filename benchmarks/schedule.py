"""How many batches does the influence model of a learning agent need? Detection against the exact label, by batches.

python -m benchmarks.schedule [cuda] [--quick]   (a CPU always takes the quick one, which only shows that it runs)
"""

import sys
import time
from dataclasses import replace

import numpy as np
import torch

from benchmarks._timing import describe
from butfor.detection.collect import make_policy
from butfor.detection.thresholds import evaluate
from butfor.envs import make_vector_env
from butfor.influence.scoring import score_states
from butfor.models.networks import make_generators
from butfor.rollouts.episodes import Episodes, concatenate
from butfor.rollouts.play import collect
from butfor.training.goal_env import GoalEnv, open_goal_env
from butfor.training.replay import ReplayBuffer
from butfor.training.settings import preset
from butfor.training.signals.cai import CaiSignal
from butfor.training.signals.transitions import BLOCK, TransitionTable

WORLD = "pick-and-place"


def episodes_of(policy: str, count: int, seed: int, labelled: bool) -> Episodes:
    """Episodes of a scripted policy, with the exact label where asked for."""
    env = make_vector_env(WORLD, min(count, 64), ("exact",) if labelled else ())
    part = collect(env, make_policy(WORLD, env, policy), count, seed)
    env.close()
    return part


def memory(parts: list[Episodes], world: GoalEnv, seeds: int, device: str) -> ReplayBuffer:
    """A memory that holds the same episodes for every seed."""
    whole = concatenate(parts)
    replay = ReplayBuffer(seeds, len(whole), world.steps, world.sizes, device)
    names = ("observation", "action", "achieved_goal", "desired_goal", "sampled", "length")
    arrays = {name: np.repeat(getattr(whole, name)[None], seeds, 0) for name in names}
    replay.store(arrays)
    return replay


def curve(
    replay: ReplayBuffer, world: GoalEnv, test: Episodes, stops: list[int], decay: bool, device: str
) -> list[str]:
    """AUC and average precision (mean over seeds) after so many batches; `decay`: one run a stop, to a rate of zero."""
    config = preset(WORLD).model
    seeds = replay.replicas
    obs = torch.from_numpy(test.observation[:, :-1][test.valid]).to(device).expand(seeds, -1, -1)
    label = test.label["exact"][test.valid]
    cells, model, done = [], None, 0
    for stop in stops:
        if model is None or decay:
            first = make_generators(range(seeds))
            rate = replace(config, learning_rate=config.learning_rate * (2 if decay else 1))
            model = CaiSignal(rate, TransitionTable(replay, world.law, world.entities, world.scale), first)
            for group in model.optimizer.param_groups:
                group["lr"] = torch.tensor(group["lr"], device=device)
            generators, done = make_generators(range(100, 100 + seeds), device), 0
            model.choose_data()
        began, whole = time.perf_counter(), model.optimizer.param_groups[0]["lr"].clone()
        while done < stop:
            if decay:
                model.optimizer.param_groups[0]["lr"].copy_(whole * (1 - done / stop))
            model.fit(min(BLOCK, stop - done), generators)
            done += min(BLOCK, stop - done)
        scores = score_states(model.model, obs, world.law, [[0, 1, 2]], config.scoring, make_generators([7], device))
        rows = [evaluate(score, label) for score in scores[..., 0].cpu().numpy()]
        auc, ap = (np.mean([row[name] for row in rows]) for name in ("auc", "ap"))
        cells.append(f"{auc:.3f}/{ap:.3f}")
        print(f"    {stop:>6} batches: AUC {auc:.3f}, AP {ap:.3f} ({time.perf_counter() - began:.1f} s)", flush=True)
    return cells


def main(device: str, quick: bool) -> None:
    print(describe(device))
    world = open_goal_env(WORLD, None, 50.0)
    count, seeds, scale = (10, 1, 100) if quick else (100, 5, 1)
    test = concatenate([episodes_of(policy, count, 7, True) for policy in ("random", "noisy-expert")])
    share = test.label["exact"][test.valid].mean()
    print(f"{WORLD}: {int(test.length.sum()):,} test states, half random, half noisy expert; {share:.1%} influenced")
    stops = [max(BLOCK, stop // scale) for stop in (1_000, 2_000, 5_000, 10_000, 20_000, 40_000)]
    stages = {
        "after the warm-up: 200 random episodes": [("random", 200)],
        "later: 600 random and 600 noisy-expert episodes": [("random", 600), ("noisy-expert", 600)],
    }
    for stage, parts in stages.items():
        data = [episodes_of(policy, max(8, number // scale), 11, False) for policy, number in parts]
        replay = memory(data, world, seeds, device)
        for name, decay in (("constant rate 8e-4", False), ("rate falls from 1.6e-3 to 0", True)):
            print(f"{stage}; {name}, {seeds} seeds")
            curve(replay, world, test, stops[1:4] if decay else stops, decay, device)


if __name__ == "__main__":
    on_gpu = "cuda" in sys.argv
    main("cuda" if on_gpu else "cpu", "--quick" in sys.argv or not on_gpu)
