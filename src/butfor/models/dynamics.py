"""The transition model p(s'_j | s, a): a network for R replicas that predicts Gaussians."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from butfor.models.direct_gaussian import DirectGaussian, KernelGaussian
from butfor.models.fitting import Fittable
from butfor.models.gpu import has_kernels
from butfor.models.networks import ACTIVATIONS, ACTIVATIONS_IN_PLACE, Activation, Generators, InputNorm, Linear
from butfor.models.tables import Table
from butfor.runs.config import check_between, check_choices, check_least, check_positive


@dataclass(frozen=True)
class ModelConfig:
    """The Gaussian network. Defaults are the paper's for detection on Fetch; presets have those of each environment."""

    layers: int = 3
    """hidden layers"""
    width: int = 256
    """units of each hidden layer"""
    activation: Activation = "relu"
    """activation after each hidden layer"""
    normalize_input: bool = True
    """batch normalisation of states and actions, without learnable parameters"""
    spectral_norm_hidden: bool = True
    """spectral norm on the hidden layers"""
    spectral_norm_variance: bool = True
    """spectral norm on the variance head (never on the mean head)"""
    min_variance: float = 1e-8
    """smallest predicted variance, in scaled units"""
    max_variance: float = 200.0
    """largest predicted variance, in scaled units"""
    target_scale: float | None = None
    """factor on the change s'_j - s_j (the paper: 50 on Fetch, 1 on slide); None: 1 / its standard deviation"""
    beta: float = 0.0
    """beta-NLL: each dimension's term is weighted by its detached variance to this power (0: plain likelihood)"""

    def __post_init__(self) -> None:
        check_least(self, 1, "layers", "width")
        check_choices(self, "activation")
        check_positive(self, "min_variance")
        check_between(self, 0, 1, "beta")
        if not self.min_variance < self.max_variance:
            raise ValueError(
                f"ModelConfig.min_variance must be less than max_variance; got {self.min_variance} and "
                f"{self.max_variance}."
            )
        if self.target_scale is not None:
            check_positive(self, "target_scale")


STEEP = ModelConfig(spectral_norm_hidden=False, beta=0.5)
"""A network whose predictions may change abruptly, with a loss that gives hard-to-predict changes more weight."""

Predictor = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""obs [R, N, D], actions [R or 1, N or 1, K, A] -> mean, variance [R, N, K, d] of the scaled change."""


class GaussianDynamics(Fittable):
    """p(s'_j | s, a) = N(mean, diagonal variance) for R replicas: a trunk with a mean head and a variance head."""

    def __init__(
        self, obs_size: int, action_size: int, target_size: int, config: ModelConfig, generators: Generators
    ) -> None:
        super().__init__()
        self.obs_size = obs_size
        self.target_size = target_size
        self.config = config
        self.replicas = len(generators)
        self.prior: Callable[[Tensor, Tensor], Tensor] | None = None  # a user's prediction, see `prior.py`
        inputs = obs_size + action_size
        self.norm = InputNorm(inputs, self.replicas, obs_size) if config.normalize_input else None
        sizes = [inputs, *[config.width] * config.layers]
        self.hidden = nn.ModuleList(
            Linear(size, config.width, generators, config.spectral_norm_hidden) for size in sizes[:-1]
        )
        self.mean_head = Linear(config.width, target_size, generators)
        self.variance_head = Linear(config.width, target_size, generators, config.spectral_norm_variance)
        # softplus(variance_offset) + min_variance = start, the untrained variance: 1, or midway if 1 is out of range
        start = 1.0
        if not config.min_variance < 1 < config.max_variance / 2:
            start = (config.min_variance + config.max_variance) / 2
        rise = start - config.min_variance
        self.variance_offset = rise + math.log(-math.expm1(-rise))  # the inverse of softplus, without overflow

    @property
    def widest(self) -> int:
        """Numbers per state and action that a prediction needs at once."""
        return self.config.width

    def _variance(self, raw: Tensor) -> Tensor:
        variance = nn.functional.softplus(raw + self.variance_offset) + self.config.min_variance
        return variance.clamp(self.config.min_variance, self.config.max_variance)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Concatenated states and actions [R, B, D + A] -> mean, variance [R, B, d] of the scaled change."""
        activation = ACTIVATIONS[self.config.activation]
        x = inputs if self.norm is None else self.norm(inputs)
        for layer in self.hidden:
            x = activation(layer(x))
        return self.mean_head(x), self._variance(self.variance_head(x))

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Gaussian NLL (equation 4), summed over dimensions, averaged over the batch: [R]."""
        mean, variance = self(inputs)
        terms = 0.5 * ((target - mean).square() / variance + variance.log() + math.log(2 * math.pi))
        if self.config.beta:
            terms = terms * variance.detach() ** self.config.beta
        loss: Tensor = terms.sum(-1).mean(-1)
        return loss

    def direct_loss(self) -> DirectGaussian | KernelGaussian | None:
        """The same loss, which sets the gradients without autograd, where there is one."""
        device = self.mean_head.weight.device
        if device.type == "cpu":
            return DirectGaussian(self)
        return KernelGaussian(self) if has_kernels(device) and KernelGaussian.takes(self) else None

    @torch.no_grad()
    def predictor(self) -> Predictor:
        """Prepare the weights once and return a function that predicts K actions in each state, without gradients.

        The first layer is affine, so its state part is computed once per state, except where a kernel computes whole
        layers; the two heads are one product.
        """
        if self.training:
            raise RuntimeError("predictor was called in training mode; call .eval() on the model first.")
        layers: list[tuple[Tensor, Tensor]] = [(layer.effective_weight(), layer.bias) for layer in self.hidden]  # type: ignore
        heads = (self.mean_head, self.variance_head)
        head_weight = torch.cat([head.effective_weight() for head in heads], -1).mT.contiguous()  # [R, 2d, width]
        head_bias = torch.cat([head.bias for head in heads], -1).mT  # [R, 2d, 1]
        first, first_bias = layers[0]
        activation_ = ACTIVATIONS_IN_PLACE[self.config.activation]
        layer: Callable[[Tensor, Any, Tensor, str | None], Tensor] | None = None
        prepared: list[tuple[Any, Tensor]] = []
        if has_kernels(first.device) and first.dtype == torch.float32:
            from butfor.models.gpu import kernels  # Triton is there only with a GPU

            layer = kernels.layer
            prepared = [(kernels.split(weight), bias) for weight, bias in layers]

        @torch.no_grad()
        def predict(obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
            states, count = obs.shape[1], actions.shape[2]
            # the replicas of a model with a prior are one ensemble, which sees the same states and actions
            known = None if self.prior is None else self.prior(obs[0], actions[0])  # [N, K, d]
            actions = actions.expand(self.replicas, -1, -1, -1).flatten(1, 2)  # [R, N * K or K, A]
            if self.norm is not None:
                obs, actions = self.norm.frozen(obs, 0), self.norm.frozen(actions, self.obs_size)
            if layer is not None:
                tried = actions.unflatten(1, (-1, count)).expand(-1, states, -1, -1)
                x = torch.cat([obs.unsqueeze(2).expand(-1, -1, count, -1), tried], -1).flatten(1, 2)
                for split, bias in prepared:
                    x = layer(x, split, bias, self.config.activation)  # [R, N * K, width]
            else:
                from_obs = torch.baddbmm(first_bias, obs, first[:, : self.obs_size])  # [R, N, width]
                from_action = torch.bmm(actions, first[:, self.obs_size :])  # [R, N * K or K, width]
                by_state = from_action.unflatten(1, (from_action.shape[1] // count, count))  # [R, N or 1, K, width]
                x = from_obs.unsqueeze(2) + by_state  # [R, N, K, width]
                x = activation_(x).flatten(1, 2)  # [R, N * K, width]
                for weight, bias in layers[1:]:
                    x = activation_(torch.baddbmm(bias, x, weight))
            output = torch.baddbmm(head_bias, head_weight, x.mT)  # [R, 2d, N * K], each dimension a plane
            output = output.view(self.replicas, 2 * self.target_size, states, count).movedim(1, -1)
            mean, raw_variance = output.split(self.target_size, -1)
            return mean if known is None else mean + known, self._variance(raw_variance)

        return predict


def make_network(obs_size: int, table: Table, config: ModelConfig, generators: Generators) -> GaussianDynamics:
    """An untrained network on the device of its table; its bias already predicts the mean change.

    Action columns that never vary get a running variance of 0, so that they have no effect from the first batch on:
    the running statistics start at a variance of 1, and the best weights may be early ones.
    """
    inputs, target = table
    actions = inputs[:, obs_size:]
    network = GaussianDynamics(obs_size, actions.shape[1], target.shape[1], config, generators).to(target.device)
    with torch.no_grad():
        network.mean_head.bias.copy_(target.mean(0))
        if network.norm is not None:
            network.norm.variance[..., obs_size:] *= (actions != actions[:1]).any(0)
    return network
