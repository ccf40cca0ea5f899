"""A step of the influence model in training (draw, gather, optimise), against plain PyTorch with default Adam.

python -m benchmarks.model_step [cuda]
"""

import sys
from collections.abc import Callable

import torch
from torch import nn

from benchmarks._timing import describe, gradient_products, layer_products, matrix_products, medians, note
from benchmarks.scoring import ACTION, LAYERS, OBS, TARGET, WIDTH, PlainModel
from butfor.models.gpu import matrix_precision
from butfor.models.networks import make_generators
from butfor.spaces.actions import ActionLaw
from butfor.training.replay import ReplayBuffer
from butfor.training.signals.cai import CaiConfig, CaiSignal
from butfor.training.signals.transitions import TransitionTable

BATCH = 500
ROWS = 10_000
STEPS = 20
STEPS_PER_EPISODE = 50
GOALS = {"cpu": 0.62, "cuda": 0.6}  # shares of the products: 3.4 of 5.5 ms on 2 cores, 0.15 of 0.25 ms on an H200


def main(device: str) -> None:
    print(describe(device))
    print(f"model step: {LAYERS}x{WIDTH} tanh, batch {BATCH}")
    print(f"{'R':>4}{'plain ms':>10}{'butfor ms':>11}{'ms/replica':>14}{'ratio/replica':>17}{'of the products':>17}")
    inputs = torch.randn(ROWS, OBS + ACTION, device=device)
    target = torch.randn(ROWS, TARGET, device=device)
    plain = PlainModel(nn.Tanh).to(device)
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3)
    likelihood = nn.GaussianNLLLoss(full=True)

    def plain_steps() -> None:
        for _ in range(STEPS):
            index = torch.randint(ROWS, (BATCH,), device=device)
            mean, variance = plain(inputs[index])
            optimizer.zero_grad()
            likelihood(mean, target[index], variance).backward()
            optimizer.step()

    for replicas in (1, 4, 10):
        # as in training: spectral norm on the variance head only
        generators = make_generators(range(replicas), device)
        replay = ReplayBuffer(replicas, ROWS // STEPS_PER_EPISODE, STEPS_PER_EPISODE, (OBS, ACTION, TARGET), device)
        for name in ("observation", "action"):
            getattr(replay, name).normal_()
        replay.length.fill_(STEPS_PER_EPISODE)
        replay.stored = replay.capacity
        config = CaiConfig(learning_rate=1e-3, batch_size=BATCH)
        law = ActionLaw((-1.0,) * ACTION, (1.0,) * ACTION)
        first = make_generators(range(replicas))
        model = CaiSignal(config, TransitionTable(replay, law, {"object": range(TARGET)}, [1.0] * TARGET), first)

        def steps(model: CaiSignal = model, generators: list[torch.Generator] = generators) -> None:
            model.fit(STEPS, generators)

        layers = [OBS + ACTION, *[WIDTH] * LAYERS, 2 * TARGET]
        floor = matrix_products(replicas, layer_products(BATCH, layers) + gradient_products(BATCH, layers), device)

        def products(floor: Callable[[], None] = floor) -> None:
            for _ in range(STEPS):
                floor()

        rivals = {"plain": plain_steps, "butfor": steps, "products": products}
        with matrix_precision("high"):  # on a GPU TF32 for all, as in training
            found = medians(rivals, device)
        seconds = {name: 1000 * value / STEPS for name, value in found.items()}
        ratio = seconds["plain"] / (seconds["butfor"] / replicas)
        print(f"{replicas:>4}{seconds['plain']:>10.2f}{seconds['butfor']:>11.2f}", end="")
        share = seconds["products"] / seconds["butfor"]
        print(f"{seconds['butfor'] / replicas:>14.2f}{ratio:>17.2f}{share:>17.0%}", flush=True)
        item = f"model step on {device}, R = {replicas}"
        note(item, seconds["butfor"] / replicas, seconds["products"] / replicas, "ms", "matrix products", GOALS[device])
        note(f"{item}, plain PyTorch", seconds["butfor"] / replicas, seconds["plain"], "ms", "plain PyTorch")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
