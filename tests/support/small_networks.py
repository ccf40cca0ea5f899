"""Small Gaussian networks for several replicas, in each configuration that changes the computation."""

from typing import Any

import torch
from torch import Tensor

from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import make_generators

SEEDS = (3, 1, 4)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def network(seeds: tuple[int, ...] = SEEDS, dtype: torch.dtype = torch.float64, **config: Any) -> GaussianDynamics:
    """Three observations, two actions, two targets."""
    settings = ModelConfig(**{"layers": 2, "width": 6} | config)
    return GaussianDynamics(3, 2, 2, settings, make_generators(seeds)).to(dtype)


CONFIGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "tanh": {"activation": "tanh", "layers": 3},
    "one layer": {"layers": 1},
    "no input norm": {"normalize_input": False},
    "no spectral norm": {"spectral_norm_hidden": False, "spectral_norm_variance": False},
    "variance head only": {"spectral_norm_hidden": False},
    "beta": {"beta": 0.5},
}
