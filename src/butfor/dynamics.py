"""The transition model p(s'_j | s, a): a Gaussian network for R replicas, and how any such network is fitted."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from butfor.capture import captured
from butfor.networks import ACTIVATIONS, ACTIVATIONS_IN_PLACE, Activation, InputNorm, Linear


@dataclass(frozen=True)
class ModelConfig:
    """The Gaussian network. Defaults are the paper's for Fetch; `study.py` holds those of each world."""

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
        self.norm = InputNorm(inputs, self.replicas) if config.normalize_input else None
        sizes = [inputs, *[config.width] * config.layers]
        self.hidden = nn.ModuleList(
            Linear(size, config.width, generators, config.spectral_norm_hidden) for size in sizes[:-1]
        )
        self.mean_head = Linear(config.width, target_size, generators)
        self.variance_head = Linear(config.width, target_size, generators, config.spectral_norm_variance)
        # softplus(offset) + min_variance = 1, so the untrained variance is about 1
        self.variance_offset = math.log(math.expm1(1 - config.min_variance)) if config.min_variance < 1 else 0.0

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
            x = from_obs.unsqueeze(2) + from_action.unflatten(1, (-1, count))  # [R, N, K, width]
            x = activation_(x).flatten(1, 2)  # [R, N * K, width]
            for weight, bias in layers[1:]:
                x = activation_(torch.baddbmm(bias, x, weight))
            output = torch.baddbmm(head_bias, head_weight, x.mT)  # [R, 2d, N * K], each dimension a plane
            mean, raw = output.view(self.replicas, -1, states, count).movedim(1, -1).split(self.target_size, -1)
            return mean, self._variance(raw)

        return predict


class Fittable(Protocol):
    """What `Fitting` and `fit_batches` need of a model: one loss a replica, and a mean prediction."""

    replicas: int

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor: ...
    def predict_mean(self, inputs: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class FitConfig:
    """How a model is fitted to given data. Defaults are the paper's for 1DSlide's detection experiment."""

    batch_size: int = 1000
    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates"""
    max_epochs: int = 3000
    validate_every: int = 20
    """epochs between validations (there is one after the first epoch and one at the end, too)"""
    patience: int = 10
    """validations without a better error after which a replica's training ends"""

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_epochs", "validate_every", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive; got {self.learning_rate}.")


def make_optimizer(model: nn.Module, config: FitConfig) -> torch.optim.Adam:
    """Adam over all replicas at once; being elementwise it never mixes them."""
    on_gpu = next(model.parameters()).device.type == "cuda"
    return torch.optim.Adam(
        model.parameters(), lr=config.learning_rate, betas=config.betas, fused=True, capturable=on_gpu
    )


def take(data: Tensor, index: Tensor) -> Tensor:
    """Rows of shared data [N, D], or of one table a replica [R, N, D], by index [R, B] -> [R, B, D]."""
    if data.dim() == 2:
        return data[index]
    return data.gather(1, index.unsqueeze(-1).expand(-1, -1, data.shape[-1]))


def train_step(model: Fittable, optimizer: torch.optim.Optimizer, inputs: Tensor, target: Tensor) -> Tensor:
    """One optimiser step on a batch [R, B, ...]; losses are summed, so each replica sees only its own gradient."""
    loss = model.loss(inputs, target)
    optimizer.zero_grad(set_to_none=True)
    loss.sum().backward()
    optimizer.step()
    return loss.detach()


def check_finite(loss: Tensor) -> None:
    """Stops with a sentence naming the replicas whose loss is not a number."""
    bad = (~torch.isfinite(loss)).nonzero().flatten().tolist()
    if bad:
        raise FloatingPointError(
            f"The loss of replica {', '.join(map(str, bad))} became NaN or infinite. Lower the learning rate, or use "
            "spectral norm on the hidden layers; if the data holds extreme values, rescale them."
        )


def fit_batches(
    model: Fittable,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    target: Tensor,
    batches: int,
    batch_size: int,
    generators: Sequence[torch.Generator],
) -> Tensor:
    """Batches drawn with replacement, for online use; the optimiser keeps its state between calls. Mean loss -> [R]."""
    module: nn.Module = model  # type: ignore[assignment]
    module.train()
    rows = inputs.shape[-2]
    total = torch.zeros(model.replicas, device=inputs.device)

    def eager(index: Tensor) -> Tensor:
        return train_step(model, optimizer, take(inputs, index), take(target, index))

    example = torch.zeros(model.replicas, batch_size, dtype=torch.long, device=inputs.device)
    step = captured(eager, example, module, optimizer)
    for _ in range(batches):
        index = torch.stack([torch.randint(rows, (batch_size,), generator=g, device=g.device) for g in generators])
        total += step(index.to(inputs.device))  # [R, B]
    module.eval()
    check_finite(total)
    return total / max(batches, 1)


class Fitting:
    """Epochs with validation, early stopping and best weights per replica; `run` yields after every validation.

    The caller's loop over `run()` shows progress, saves `state()`, or breaks off; `finish()` puts the best weights in.
    """

    def __init__(
        self,
        model: Fittable,
        train: tuple[Tensor, Tensor],
        validation: tuple[Tensor, Tensor],
        config: FitConfig,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.model, self.config, self.generators = model, config, list(generators)
        self.module: nn.Module = model  # type: ignore[assignment]
        self.train, self.validation = train, validation
        self.optimizer = make_optimizer(self.module, config)
        self.epoch = 0
        device = train[0].device
        self.error = torch.full((model.replicas,), math.inf, device=device)  # latest validation error
        self.best_error = self.error.clone()
        self.best_epoch = torch.zeros(model.replicas, dtype=torch.long, device=device)
        self.stale = torch.zeros(model.replicas, dtype=torch.long, device=device)  # validations without improvement
        self.best = {name: value.clone() for name, value in self.module.state_dict().items()}

    @property
    def stopped(self) -> Tensor:
        """Which replicas have ended early: [R]."""
        return self.stale >= self.config.patience

    def run(self) -> Iterator["Fitting"]:
        """Trains on; yields itself after every validation until every replica has stopped."""
        inputs, target = self.train
        rows, size = inputs.shape[-2], min(self.config.batch_size, inputs.shape[-2])

        def step(index: Tensor) -> Tensor:
            return train_step(self.model, self.optimizer, take(inputs, index), take(target, index))

        self.module.train()
        example = torch.arange(size, device=inputs.device).expand(self.model.replicas, -1)
        full_step = captured(step, example, self.module, self.optimizer)
        while self.epoch < self.config.max_epochs and not bool(self.stopped.all()):
            self.module.train()
            order = torch.stack([torch.randperm(rows, generator=g, device=g.device) for g in self.generators])
            order = order.to(inputs.device)  # [R, N]
            total = torch.zeros(self.model.replicas, device=inputs.device)
            for index in order.split(size, dim=1):
                if index.shape[1] == size:
                    total += full_step(index)
                elif index.shape[1] > 1:  # a last batch of one has no batch statistics
                    total += step(index)
            check_finite(total)
            self.epoch += 1
            if self.epoch == 1 or self.epoch % self.config.validate_every == 0 or self.epoch == self.config.max_epochs:
                self._validate()
                yield self
        self.finish()

    @torch.no_grad()
    def _validate(self) -> None:
        """Mean squared error of the mean on the validation data; keeps the best weights of each replica."""
        self.module.eval()
        inputs, target = self.validation
        squared = [
            (self.model.predict_mean(x.expand(self.model.replicas, -1, -1)) - y).square().sum((1, 2))
            for x, y in zip(inputs.split(8192, dim=-2), target.split(8192, dim=-2), strict=True)
        ]
        self.error = torch.stack(squared).sum(0) / (target.shape[-2] * target.shape[-1])
        improved = (self.error < self.best_error) & ~self.stopped
        for name, value in self.module.state_dict().items():
            self.best[name][improved] = value[improved]
        self.best_error = torch.where(improved, self.error, self.best_error)
        self.best_epoch[improved] = self.epoch
        self.stale = torch.where(improved, 0, torch.where(self.stopped, self.stale, self.stale + 1))

    def finish(self) -> None:
        """Puts each replica's best weights into the model, in evaluation mode."""
        self.module.load_state_dict(self.best)
        self.module.eval()

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to go on as if never interrupted."""
        names = ("epoch", "error", "best_error", "best_epoch", "stale", "best")
        return {name: getattr(self, name) for name in names} | {
            "config": dataclasses.asdict(self.config),
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": [generator.get_state() for generator in self.generators],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state()`."""
        for name in ("epoch", "error", "best_error", "best_epoch", "stale", "best"):
            setattr(self, name, state[name])
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for generator, saved in zip(self.generators, state["generators"], strict=True):
            generator.set_state(saved)
