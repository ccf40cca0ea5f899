"""Cost of the signals CAI, VIME and disagreement with FetchPickAndPlace's sizes: a fit, and 1,000 scores.

python -m benchmarks.signals [cuda]
"""

import sys
from dataclasses import replace
from typing import Any

import torch

from benchmarks._timing import describe, medians
from butfor.envs.facts import BUILT_IN
from butfor.models.bayesian import VimeConfig
from butfor.models.networks import make_generators
from butfor.spaces.actions import ActionLaw
from butfor.training.replay import ReplayBuffer
from butfor.training.signals.cai import CaiConfig, CaiSignal
from butfor.training.signals.disagreement import DisagreementSignal, EnsembleConfig
from butfor.training.signals.transitions import TransitionTable
from butfor.training.signals.vime import VimeSignal

EPISODES, STEPS = 20, 50  # 1,000 transitions
BATCHES = 20
FACTS = BUILT_IN["pick-and-place"]


def main(device: str) -> None:
    replicas = 10 if device == "cuda" else 1
    print(describe(device))
    replay = ReplayBuffer(replicas, EPISODES, STEPS, (25, 4, 3), device)
    for name in ("observation", "action"):
        getattr(replay, name).normal_()
    replay.length.fill_(STEPS)
    replay.stored = EPISODES
    law = ActionLaw((-1.0,) * 4, (1.0,) * 4)

    def parts(columns: tuple[int, ...]) -> tuple[Any, ...]:
        table = TransitionTable(replay, law, {"object": columns}, [50.0] * len(columns))
        return table, make_generators(range(replicas))

    second_order = replace(VimeConfig(), method="second_order")
    rivals = {  # with the paper's batches per round, and episodes between rounds
        "CAI, K = 32": (CaiSignal(CaiConfig(), *parts(FACTS.object_position)), 10_000, 100),
        "VIME": (VimeSignal(VimeConfig(), *parts(FACTS.positions)), 100, 1),
        "VIME, second order": (VimeSignal(second_order, *parts(FACTS.positions)), 100, 1),
        "disagreement, object": (DisagreementSignal(EnsembleConfig(), *parts(FACTS.object_position)), 5_000, 100),
        "disagreement, full": (DisagreementSignal(EnsembleConfig(), *parts(FACTS.full_state)), 500, 10),
    }
    streams = make_generators(range(replicas), device)
    slots = torch.arange(EPISODES, device=device)
    work: dict[str, Any] = {}
    for name, (model, _, _) in rivals.items():
        work[f"{name}: fit"] = lambda model=model: model.fit(BATCHES, streams)
        work[f"{name}: score"] = lambda model=model: model.score(slots, streams)
    seconds = medians(work, device, runs=5)
    print(f"{replicas} replica(s); ms of all replicas; the last column is the fitting per episode")
    print(f"{'':<24}{'score 1,000':>12}{'batch':>10}{'round':>10}{'per episode':>12}")
    for name, (_, batches, every) in rivals.items():
        batch = 1000 * seconds[f"{name}: fit"] / BATCHES
        score = 1000 * seconds[f"{name}: score"]
        print(f"{name:<24}{score:>12.1f}{batch:>10.2f}{batch * batches:>10.0f}{batch * batches / every:>12.1f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
