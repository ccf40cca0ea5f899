"""What a score costs: CAI, VIME and disagreement on FetchPickAndPlace's sizes, a training round and 1,000 transitions.

python -m benchmarks.curiosity [cuda]
"""

import sys
from dataclasses import replace
from typing import Any

import torch

from benchmarks._timing import describe, medians
from butfor.models.bayesian import VimeConfig
from butfor.models.networks import make_generators
from butfor.spaces.actions import ActionLaw
from butfor.training.replay import ReplayBuffer
from butfor.training.signals.cai import CaiConfig, CaiSignal
from butfor.training.signals.disagreement import DisagreementSignal, EnsembleConfig
from butfor.training.signals.transitions import TransitionTable
from butfor.training.signals.vime import VimeSignal

EPISODES, STEPS, BATCHES = 20, 50, 20  # 1,000 transitions
SIZES, POSITIONS = (25, 4, 3), range(6)


def main(device: str) -> None:
    replicas = 10 if device == "cuda" else 1
    print(describe(device))
    replay = ReplayBuffer(replicas, EPISODES, STEPS, SIZES, device)
    for name in ("observation", "action"):
        getattr(replay, name).normal_()
    replay.length.fill_(STEPS)
    replay.stored = EPISODES
    law = ActionLaw((-1.0,) * 4, (1.0,) * 4)

    def parts(columns: Any) -> tuple[Any, ...]:
        return TransitionTable(replay, law, {"object": columns}, [50.0] * len(columns)), make_generators(
            range(replicas)
        )

    second_order = replace(VimeConfig(), method="second_order")
    rivals = {  # the paper's settings: batches of a round, and episodes from one round to the next
        "CAI, K = 32": (CaiSignal(CaiConfig(), *parts(range(3, 6))), 10_000, 100),
        "VIME": (VimeSignal(VimeConfig(), *parts(POSITIONS)), 100, 1),
        "VIME, second order": (VimeSignal(second_order, *parts(POSITIONS)), 100, 1),
        "disagreement, object": (DisagreementSignal(EnsembleConfig(), *parts(range(3, 6))), 5_000, 100),
        "disagreement, full": (DisagreementSignal(EnsembleConfig(), *parts([*range(6), *range(9, 25)])), 500, 10),
    }
    streams = make_generators(range(replicas), device)
    slots = torch.arange(EPISODES, device=device)
    work: dict[str, Any] = {}
    for name, (model, _, _) in rivals.items():
        model.choose_data()
        work[f"{name}: fit"] = lambda model=model: model.fit(BATCHES, streams)
        work[f"{name}: score"] = lambda model=model: model.score(slots, streams)
    seconds = medians(work, device, runs=5)
    print(f"{replicas} replica(s); ms for 1,000 transitions of each, and for an episode's share of the training")
    print(f"{'':<24}{'score 1,000':>12}{'a batch':>10}{'a round':>10}{'an episode':>12}")
    for name, (_, batches, every) in rivals.items():
        batch, score = 1000 * seconds[f"{name}: fit"] / BATCHES, 1000 * seconds[f"{name}: score"]
        print(f"{name:<24}{score:>12.1f}{batch:>10.2f}{batch * batches:>10.0f}{batch * batches / every:>12.1f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
