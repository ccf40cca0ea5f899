"""The transition model p(s'_j | s, a): a Gaussian network for R replicas, and the tables it learns from."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from butfor.models.networks import ACTIVATIONS, ACTIVATIONS_IN_PLACE, Activation, InputNorm, Linear
from butfor.spaces.actions import ActionLaw
from butfor.spaces.arrays import Array, change_rounding, check_table, check_transitions

STIRRED = 1e-12  # the least spread of a column that is not constant


@dataclass(frozen=True)
class ModelConfig:
    """The Gaussian network. Defaults are the paper's for detection on Fetch; presets hold those of each world."""

    layers: int = 3
    """hidden layers"""
    width: int = 256
    """units of each hidden layer"""
    activation: Activation = "relu"
    """what follows each hidden layer"""
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
        if self.layers < 1 or self.width < 1:
            raise ValueError(f"layers and width must be at least 1; got layers={self.layers}, width={self.width}.")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation is {self.activation!r}; it must be one of {', '.join(ACTIVATIONS)}.")
        if not 0 < self.min_variance < self.max_variance:
            raise ValueError(
                f"min_variance must lie between 0 and max_variance; got {self.min_variance} and {self.max_variance}."
            )
        if self.target_scale is not None and not self.target_scale > 0:
            raise ValueError(f"target_scale must be positive; got {self.target_scale}.")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must lie between 0 (plain likelihood) and 1; got {self.beta}.")


STEEP = ModelConfig(spectral_norm_hidden=False, beta=0.5)
"""A network that may change abruptly, and a likelihood that attends to what is hard to predict."""

Predictor = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""obs [R, N, D], actions [R or 1, N or 1, K, A] -> mean, variance [R, N, K, d] of the scaled change."""


class GaussianDynamics(nn.Module):
    """p(s'_j | s, a) = N(mean, diagonal variance) for R replicas: a trunk with a mean head and a variance head."""

    def __init__(
        self,
        obs_size: int,
        action_size: int,
        target_size: int,
        config: ModelConfig,
        generators: Sequence[torch.Generator],
    ) -> None:
        super().__init__()
        self.obs_size, self.target_size, self.config = obs_size, target_size, config
        self.replicas = len(generators)
        inputs = obs_size + action_size
        self.norm = InputNorm(inputs, self.replicas, obs_size) if config.normalize_input else None
        sizes = [inputs, *[config.width] * config.layers]
        self.hidden = nn.ModuleList(
            Linear(size, config.width, generators, config.spectral_norm_hidden) for size in sizes[:-1]
        )
        self.mean_head = Linear(config.width, target_size, generators)
        self.variance_head = Linear(config.width, target_size, generators, config.spectral_norm_variance)
        # softplus(offset) + min_variance = start, so the untrained variance is about 1, or midway where 1 is no option
        start = (
            1.0
            if config.min_variance < 1 < config.max_variance / 2
            else (config.min_variance + config.max_variance) / 2
        )
        rise = start - config.min_variance
        self.variance_offset = rise + math.log(-math.expm1(-rise))  # the inverse of softplus, without overflow

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

    def predict_mean(self, inputs: Tensor) -> Tensor:
        """The mean alone: [R, B, D + A] -> [R, B, d]."""
        mean: Tensor = self(inputs)[0]
        return mean

    @torch.no_grad()
    def predictor(self) -> Predictor:
        """Prepares the weights once and gives what predicts K actions in each state, without gradients.

        The first layer is affine, so its state part is computed once a state; the two heads are one narrow product.
        """
        if self.training:
            raise RuntimeError("predictor was called in training mode; call .eval() on the model first.")
        layers: list[tuple[Tensor, Tensor]] = [(layer.effective_weight(), layer.bias) for layer in self.hidden]  # type: ignore
        heads = (self.mean_head, self.variance_head)
        head_weight = torch.cat([head.effective_weight() for head in heads], -1).mT.contiguous()  # [R, 2d, width]
        head_bias = torch.cat([head.bias for head in heads], -1).mT  # [R, 2d, 1]
        first, first_bias = layers[0]
        activation_ = ACTIVATIONS_IN_PLACE[self.config.activation]

        @torch.no_grad()
        def predict(obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
            states, count = obs.shape[1], actions.shape[2]
            actions = actions.expand(self.replicas, -1, -1, -1).flatten(1, 2)  # [R, N * K or K, A]
            if self.norm is not None:
                obs, actions = self.norm.frozen(obs, 0), self.norm.frozen(actions, self.obs_size)
            from_obs = torch.baddbmm(first_bias, obs, first[:, : self.obs_size])  # [R, N, width]
            from_action = torch.bmm(actions, first[:, self.obs_size :])  # [R, N * K or K, width]
            x = from_obs.unsqueeze(2) + from_action.unflatten(
                1, (from_action.shape[1] // count, count)
            )  # [R, N, K, width]
            x = activation_(x).flatten(1, 2)  # [R, N * K, width]
            for weight, bias in layers[1:]:
                x = activation_(torch.baddbmm(bias, x, weight))
            output = torch.baddbmm(head_bias, head_weight, x.mT)  # [R, 2d, N * K], each dimension a plane
            mean, raw = (
                output.view(self.replicas, 2 * self.target_size, states, count)
                .movedim(1, -1)
                .split(self.target_size, -1)
            )
            return mean, self._variance(raw)

        return predict


Transitions = tuple[Tensor, Tensor, Tensor]
"""obs [N, D], action [N, A] or integers [N], next_obs [N, D]."""
Table = tuple[Tensor, Tensor]
"""What a model learns from: inputs [N, D + A] and targets [N, d]."""


def begin_network(
    obs_size: int, table: Table, config: ModelConfig, generators: Sequence[torch.Generator]
) -> GaussianDynamics:
    """A fresh network on the device of the table that it is to learn; a steady drift it need not learn.

    Numbers of the action that never vary count for nothing from the first batch on, not only once the running
    statistics, which start at a variance of 1, have forgotten their start: the best weights may be early ones.
    """
    inputs, target = table
    actions = inputs[:, obs_size:]
    network = GaussianDynamics(obs_size, actions.shape[1], target.shape[1], config, generators).to(target.device)
    with torch.no_grad():
        network.mean_head.bias.copy_(target.mean(0))
        if network.norm is not None:
            network.norm.variance[..., obs_size:] *= (actions != actions[:1]).any(0)
    return network


def target_columns(entities: Mapping[str, Sequence[int]]) -> list[int]:
    """The columns of next_obs that the model predicts: the union of the entities' columns."""
    return sorted({column for entity in entities.values() for column in entity})


def entity_dims(entities: Mapping[str, Sequence[int]]) -> list[list[int]]:
    """Where each entity's columns stand in what the model predicts."""
    columns = target_columns(entities)
    return [[columns.index(column) for column in entity] for entity in entities.values()]


def target_scale(transitions: Transitions, entities: Mapping[str, Sequence[int]], config: ModelConfig) -> Tensor:
    """The factor on each target: as configured, or 1 / standard deviation (1 where only rounding varies) -> [d]."""
    obs, next_obs = (table[:, target_columns(entities)] for table in transitions[::2])
    deviation = (next_obs.double() - obs.double()).std(0)
    if config.target_scale is not None:
        return torch.full_like(deviation, config.target_scale)
    return torch.where(deviation > change_rounding(obs, next_obs), 1 / deviation, 1.0)


def obs_range(obs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (1 where constant) of each column in float64, so that units do not matter: [D].

    A column that varies by less than `STIRRED`, as velocities at rest do, counts as constant: it may be 1 later.
    """
    deviation = obs.double().std(0)
    return obs.double().mean(0), torch.where(deviation > STIRRED, deviation, 1.0)


def training_table(
    transitions: Transitions,
    law: ActionLaw,
    entities: Mapping[str, Sequence[int]],
    scale: Tensor,
    device: torch.device | str,
    center: Tensor | float = 0.0,
    spread: Tensor | float = 1.0,
) -> Table:
    """Inputs, centred and divided by their spread, and scaled relative targets; all before rounding to float32."""
    obs, action, next_obs = transitions
    target = (next_obs - obs)[:, target_columns(entities)] * scale
    inputs = torch.cat([((obs - center) / spread).float(), law.encode(action)], 1)
    return inputs.to(device), target.float().to(device)


def split_table(table: Table, share: float, seed: int) -> tuple[Table, Table]:
    """A random share of the rows held out for validation: (train, validation)."""
    inputs, target = table
    held_out = max(1, round(share * len(inputs))) if 0 < share < 1 else 0
    if not 0 < held_out < len(inputs):
        raise ValueError(f"validation is {share}; expected a share of the transitions that leaves some on both sides.")
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed)).to(inputs.device)
    rest, chosen = order.split([len(order) - held_out, held_out])
    return (inputs[rest], target[rest]), (inputs[chosen], target[chosen])


def checked_table(
    what: str,
    given: Sequence[Array],
    law: ActionLaw,
    entities: Mapping[str, Sequence[int]],
    device: torch.device | str,
    units: Sequence[Tensor],
) -> Table:
    """Other transitions as a table, in units (scale, center, spread); what is wrong with them is named as theirs."""
    try:
        obs, action, next_obs = given
        transitions = check_transitions(obs, action, next_obs, fewest=1)
        check_table("obs", obs, len(units[1]))
        law.check("action", transitions[1])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what} (obs, action, next_obs): {error}") from error
    scale, center, spread = (part.to(transitions[0].device) for part in units)
    return training_table(transitions, law, entities, scale, device, center, spread)
