"""How many batches the influence model of a learning agent needs: detection of the exact label, by batches.

python -m benchmarks.schedule [cuda] [--quick]   (on a CPU always quick, which only shows that it runs)
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
from butfor.training.signals.learned import BLOCK
from butfor.training.signals.transitions import TransitionTable

ENV = "pick-and-place"


def play(policy: str, count: int, seed: int, labels: tuple[str, ...] = ()) -> Episodes:
    """Episodes of a scripted policy."""
    env = make_vector_env(ENV, min(count, 64), labels)
    episodes = collect(env, make_policy(ENV, env, policy), count, seed)
    env.close()
    return episodes


def fill_replay(parts: list[Episodes], goal_env: GoalEnv, seeds: int, device: str) -> ReplayBuffer:
    """A replay buffer with the same episodes for every seed."""
    whole = concatenate(parts)
    replay = ReplayBuffer(seeds, len(whole), goal_env.steps, goal_env.sizes, device)
    names = ("observation", "action", "achieved_goal", "desired_goal", "sampled", "length")
    arrays = {name: np.repeat(getattr(whole, name)[None], seeds, 0) for name in names}
    replay.store(arrays | {"terminated": np.zeros((seeds, len(whole)), dtype=bool)})
    return replay


def print_curve(
    replay: ReplayBuffer, goal_env: GoalEnv, test: Episodes, stops: list[int], decay: bool, device: str
) -> None:
    """Print AUC and average precision (mean over seeds) by batches; `decay`: one run per stop, to a rate of zero."""
    config = preset(ENV).cai
    seeds = replay.replicas
    obs = torch.from_numpy(test.observation[:, :-1][test.valid]).to(device).expand(seeds, -1, -1)
    label = test.label["exact"][test.valid]
    model = None
    done = 0
    for stop in stops:
        if model is None or decay:
            first = make_generators(range(seeds))
            rate = replace(config, learning_rate=config.learning_rate * (2 if decay else 1))
            model = CaiSignal(rate, TransitionTable(replay, goal_env.law, goal_env.entities, goal_env.scale), first)
            for group in model.optimizer.param_groups:
                group["lr"] = torch.tensor(group["lr"], device=device)
            generators = make_generators(range(100, 100 + seeds), device)
            done = 0
        began = time.perf_counter()
        whole = model.optimizer.param_groups[0]["lr"].clone()
        while done < stop:
            if decay:
                model.optimizer.param_groups[0]["lr"].copy_(whole * (1 - done / stop))
            model.fit(min(BLOCK, stop - done), generators)
            done += min(BLOCK, stop - done)
        scores = score_states(model.model, obs, goal_env.law, [[0, 1, 2]], config.scoring, make_generators([7], device))
        rows = [evaluate(score, label) for score in scores[..., 0].cpu().numpy()]
        auc, ap = (np.mean([row[name] for row in rows]) for name in ("auc", "ap"))
        print(f"    {stop:>6} batches: AUC {auc:.3f}, AP {ap:.3f} ({time.perf_counter() - began:.1f} s)", flush=True)


def main(device: str, quick: bool) -> None:
    print(describe(device))
    goal_env = open_goal_env(ENV, target_scale=50.0)
    count, seeds, scale = (10, 1, 100) if quick else (100, 5, 1)
    test = concatenate([play(policy, count, 7, ("exact",)) for policy in ("random", "noisy-expert")])
    share = test.label["exact"][test.valid].mean()
    print(f"{ENV}: {int(test.length.sum()):,} test states, half random, half noisy expert; {share:.1%} influenced")
    stops = [max(BLOCK, stop // scale) for stop in (1_000, 2_000, 5_000, 10_000, 20_000, 40_000)]
    stages = {
        "after the warm-up: 200 random episodes": [("random", 200)],
        "later: 600 random and 600 noisy-expert episodes": [("random", 600), ("noisy-expert", 600)],
    }
    for stage, parts in stages.items():
        data = [play(policy, max(8, number // scale), 11) for policy, number in parts]
        replay = fill_replay(data, goal_env, seeds, device)
        for name, decay in (("constant rate 8e-4", False), ("rate falls from 1.6e-3 to 0", True)):
            print(f"{stage}; {name}, {seeds} seeds")
            print_curve(replay, goal_env, test, stops[1:4] if decay else stops, decay, device)


if __name__ == "__main__":
    on_gpu = "cuda" in sys.argv
    main("cuda" if on_gpu else "cpu", "--quick" in sys.argv or not on_gpu)
