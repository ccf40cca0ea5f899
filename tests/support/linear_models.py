"""Gaussian networks with known weights: linear ones, untrained ones, and ones that ignore the action."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig, score_states
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import make_generators
from butfor.models.tables import Units
from butfor.spaces.actions import ActionLaw

Array = NDArray[np.float64]
UNIT = ActionLaw((-1.0,), (1.0,))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def generator(seed: int = 0) -> torch.Generator:
    return make_generators([seed])[0]


def linear_model(gains: list[float], noise: float, obs_size: int = 1) -> GaussianDynamics:
    """One action, and s'_j = s_j + gain_j a + noise n exactly: weights by hand, as a = relu(a) - relu(-a)."""
    config = ModelConfig(
        layers=1, width=2, normalize_input=False, spectral_norm_hidden=False, spectral_norm_variance=False
    )
    model = GaussianDynamics(obs_size, 1, len(gains), config, make_generators([0])).eval()
    first: Any = model.hidden[0]
    for parameter in model.parameters():
        parameter.data.zero_()
    first.weight.data[0, -1] = torch.tensor([1.0, -1.0])
    model.mean_head.weight.data[0] = torch.tensor([gains, [-gain for gain in gains]])
    model.variance_head.bias.data.fill_(math.log(math.expm1(noise**2 - config.min_variance)) - model.variance_offset)
    mean, variance = model(torch.tensor([[[0.0] * obs_size + [0.5]]]))
    torch.testing.assert_close(mean[0, 0], 0.5 * torch.tensor(gains))
    torch.testing.assert_close(variance, torch.full_like(variance, noise**2))
    return model


def random_model(replicas: int = 1, targets: int = 3, obs_size: int = 4, **config: Any) -> GaussianDynamics:
    """An untrained network with running statistics other than the initial ones, and outcomes that depend on actions."""
    settings = ModelConfig(**{"layers": 2, "width": 16} | config)
    model = GaussianDynamics(obs_size, 2, targets, settings, make_generators(range(replicas)))
    model.train()(2 * normal(replicas, 50, obs_size + 2) + 1)
    model.mean_head.weight.data *= 3
    return model.eval()


def ignore_actions(model: GaussianDynamics) -> GaussianDynamics:
    first: Any = model.hidden[0]
    first.weight.data[:, model.obs_size :] = 0
    return model


BOX = ActionLaw((-1.0, 0.0), (1.0, 3.0))


def raw_influence(
    model: GaussianDynamics,
    law: ActionLaw,
    entities: dict[str, list[int]],
    scale: list[float],
    scoring: ScoreConfig = ScoreConfig(),
    seed: int = 0,
) -> Influence:
    """An `Influence` whose network sees observations as they are."""
    return Influence(model, Units.raw(law, entities, scale, model.obs_size), scoring, seed)


def linear_score(ratio: float, **config: Any) -> Tensor:
    states = config.pop("states", 1)
    model = linear_model([ratio * 0.1], 0.1)
    return score_states(model, torch.zeros(1, states, 1), UNIT, [[0]], ScoreConfig(**config), [generator()])[0, :, 0]
