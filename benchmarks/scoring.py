"""Scoring throughput: `score_states` against a straightforward PyTorch version of the same estimator.

python -m benchmarks.scoring [cuda]
"""

import math
import sys
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks._timing import describe, matrix_peak, medians, note
from butfor.influence.scoring import ScoreConfig, score_states
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import Activation, make_generators
from butfor.spaces.actions import ActionLaw

OBS, ACTION, TARGET, LAYERS, WIDTH = 25, 4, 3, 4, 256


class PlainModel(nn.Module):
    """The same network made of torch's own layers."""

    def __init__(self, activation: type[nn.Module]) -> None:
        super().__init__()
        sizes = [OBS + ACTION, *[WIDTH] * LAYERS]
        layers = [module for i, o in pairwise(sizes) for module in (nn.Linear(i, o), activation())]
        self.trunk = nn.Sequential(*layers)
        self.mean, self.variance = nn.Linear(WIDTH, TARGET), nn.Linear(WIDTH, TARGET)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(x)
        return self.mean(features), nn.functional.softplus(self.variance(features)) + 1e-8


@torch.no_grad()
def plain_cai(model: PlainModel, obs: Tensor, actions: int) -> Tensor:
    """Equation 3 in the obvious way: one large batch, with all pairs of actions in memory."""
    tried = torch.rand(len(obs), actions, ACTION, device=obs.device) * 2 - 1
    inputs = torch.cat([obs[:, None].expand(-1, actions, -1), tried], -1)
    mean, variance = model(inputs.flatten(0, 1))
    mean, variance = mean.view(len(obs), actions, -1), variance.view(len(obs), actions, -1)
    mean_f, mean_g, variance_f, variance_g = mean[:, :, None], mean[:, None], variance[:, :, None], variance[:, None]
    squared = (mean_f - mean_g) ** 2  # [N, K, K, d]
    divergence = 0.5 * (variance_f / variance_g + squared / variance_g - 1 + torch.log(variance_g / variance_f)).sum(-1)
    variational = math.log(actions) - torch.logsumexp(-divergence, -1)
    total = variance_f + variance_g
    overlap = -0.5 * (math.log(2 * math.pi) + torch.log(total) + squared / total).sum(-1)
    entropy = 0.5 * (math.log(2 * math.pi * math.e) + torch.log(variance)).sum(-1)
    product = math.log(actions) - entropy - torch.logsumexp(overlap, -1)
    return (0.5 * (variational + product.clamp_min(0))).mean(-1)


def main(device: str) -> None:
    peak = matrix_peak(device)
    print(describe(device))
    print(f"scoring: {LAYERS}x{WIDTH} network, {OBS}+{ACTION} inputs, {TARGET} targets; ", end="")
    print(f"matrix peak {peak / 1e9:,.0f} GFLOP/s")
    print(
        f"{'activation':<12}{'K':>4}{'plain states/s':>16}{'butfor states/s':>17}{'of peak':>9}{'ratio':>7}{'goal':>6}"
    )
    for activation, layer in (("relu", nn.ReLU), ("tanh", nn.Tanh)):
        for actions, goal in ((32, 2.0), (64, 2.5)):
            compare(activation, layer, actions, goal, peak, device)


def compare(
    activation: Activation, layer: type[nn.Module], actions: int, goal: float, peak: float, device: str
) -> None:
    config = ModelConfig(layers=LAYERS, width=WIDTH, activation=activation)
    model = GaussianDynamics(OBS, ACTION, TARGET, config, make_generators([0])).to(device).eval()
    plain = PlainModel(layer).to(device).eval()
    many, few = (500_000, 10_000) if device == "cuda" else (4000, 2000)
    obs = torch.randn(1, many, OBS, device=device)
    law, generators = ActionLaw((-1.0,) * ACTION, (1.0,) * ACTION), make_generators([0], device)
    scoring = ScoreConfig(actions=actions)
    rivals = {
        "plain": lambda: plain_cai(plain, obs[0, :few], actions),
        "butfor": lambda: score_states(model, obs, law, [[0, 1, 2]], scoring, generators),
    }
    seconds = medians(rivals, device)
    speed = {"plain": few / seconds["plain"], "butfor": many / seconds["butfor"]}
    operations = 2 * actions * (WIDTH * ACTION + (LAYERS - 1) * WIDTH**2 + WIDTH * 2 * TARGET)
    share, ratio = speed["butfor"] * operations / peak, speed["butfor"] / speed["plain"]
    print(f"{activation:<12}{actions:>4}{speed['plain']:>16,.0f}{speed['butfor']:>17,.0f}", end="")
    print(f"{share:>9.0%}{ratio:>7.2f}{goal:>6.1f}", flush=True)
    item = f"scoring on {device}, {activation}, K = {actions}"
    note(item, speed["butfor"], speed["plain"], "states/s", "plain PyTorch", goal)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
