"""One optimiser step of the transition model, per replica, against `torch.nn.Sequential` with default Adam.

python -m benchmarks.model_step [cuda]
"""

import sys

import torch
from torch import Tensor, nn

from benchmarks._timing import describe, medians
from benchmarks.scoring import ACTION, LAYERS, OBS, TARGET, WIDTH, PlainModel
from butfor.capture import captured
from butfor.dynamics import GaussianDynamics, ModelConfig
from butfor.fitting import FitConfig, make_optimizer, take, train_step
from butfor.networks import make_generators

BATCH, ROWS, STEPS = 500, 10_000, 20


def main(device: str) -> None:
    print(describe(device))
    print(f"model step: {LAYERS}x{WIDTH} tanh, batch {BATCH}")
    print(f"{'R':>4}{'plain ms':>10}{'butfor ms':>11}{'ms a replica':>14}{'ratio a replica':>17}")
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
        # as in training an agent: spectral norm on the variance head alone
        config = ModelConfig(layers=LAYERS, width=WIDTH, activation="tanh", spectral_norm_hidden=False)
        model = GaussianDynamics(OBS, ACTION, TARGET, config, make_generators(range(replicas))).to(device).train()
        adam = make_optimizer(model, FitConfig(learning_rate=1e-3))

        def eager(index: Tensor, model: GaussianDynamics = model, adam: torch.optim.Adam = adam) -> Tensor:
            return train_step(model.loss, adam, take(inputs, index), take(target, index))

        example = torch.zeros(replicas, BATCH, dtype=torch.long, device=device)
        step = captured(eager, [example], [model, adam])

        def steps(replicas: int = replicas, step: object = step) -> None:
            for _ in range(STEPS):
                step(torch.randint(ROWS, (replicas, BATCH), device=device))  # type: ignore[operator]

        seconds = {
            name: 1000 * value / STEPS
            for name, value in medians({"plain": plain_steps, "butfor": steps}, device).items()
        }
        ratio = seconds["plain"] / (seconds["butfor"] / replicas)
        print(f"{replicas:>4}{seconds['plain']:>10.2f}{seconds['butfor']:>11.2f}", end="")
        print(f"{seconds['butfor'] / replicas:>14.2f}{ratio:>17.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
