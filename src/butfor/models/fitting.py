"""How a model of R replicas is fitted: optimiser steps, and epochs with early stopping per replica."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from butfor.models.gpu import captured, compiled


class Fittable(Protocol):
    """What `Fitting` needs of a model: one loss a replica, and a mean prediction."""

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
    decay: bool = False
    """let the learning rate fall to nothing over max_epochs, along half a cosine"""

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_epochs", "validate_every", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive; got {self.learning_rate}.")


FOR_ANY_DATA = FitConfig(batch_size=500, learning_rate=3e-3, max_epochs=300, validate_every=5, patience=20)
"""Ours, where a user names nothing: networks with spectral norm learn rare touches sooner at a higher rate."""


def make_optimizer(model: nn.Module, config: FitConfig) -> torch.optim.Adam:
    """Adam over all replicas at once; being elementwise it never mixes them."""
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    # a rate that changes is a tensor, which a recorded step reads anew each time
    rate = torch.tensor(config.learning_rate, device=device) if config.decay and on_gpu else config.learning_rate
    return torch.optim.Adam(model.parameters(), lr=rate, betas=config.betas, fused=True, capturable=on_gpu)


def set_rate(optimizer: torch.optim.Adam, rate: float) -> None:
    """Changes the learning rate, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def take(data: Tensor, index: Tensor) -> Tensor:
    """Rows of shared data [N, D], or of one table a replica [R, N, D], by index [R, B] -> [R, B, D]."""
    if data.dim() == 2:
        return data[index]
    return data.gather(1, index.unsqueeze(-1).expand(-1, -1, data.shape[-1]))


def train_step(
    loss_of: Callable[[Tensor, Tensor], Tensor], optimizer: torch.optim.Optimizer, inputs: Tensor, target: Tensor
) -> Tensor:
    """One optimiser step on a batch [R, B, ...]; losses are summed, so each replica sees only its own gradient."""
    loss = loss_of(inputs, target)
    optimizer.zero_grad(set_to_none=True)
    loss.sum().backward()
    optimizer.step()
    return loss.detach()


def check_finite(loss: Tensor, what: str = "loss", stopped: Tensor | None = None) -> None:
    """Stops with a sentence naming the replicas whose loss is not a number; those that have stopped do not count."""
    broken = ~torch.isfinite(loss)
    bad = (broken if stopped is None else broken & ~stopped).nonzero().flatten().tolist()
    if bad:
        raise FloatingPointError(
            f"The {what} of replica {', '.join(map(str, bad))} became NaN or infinite. Lower the learning rate"
            + ("" if "agent" in what else ", or use spectral norm on the hidden layers")
            + "; if the data holds extreme values, rescale them."
        )


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
        for name, (inputs, _) in (("training", train), ("validation", validation)):
            if not inputs.shape[-2]:
                raise ValueError(f"There is no {name} data; give at least one transition.")
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

        def step(index: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = self.model.loss) -> Tensor:
            return train_step(loss, self.optimizer, take(inputs, index), take(target, index))

        self.module.train()
        fused = compiled(self.model.loss, inputs.device)
        example = torch.arange(size, device=inputs.device).expand(self.model.replicas, -1)
        full_step = captured(lambda index: step(index, fused), [example], [self.module, self.optimizer])
        while self.epoch < self.config.max_epochs and not bool(self.stopped.all()):
            self.module.train()
            if self.config.decay:
                done = self.epoch / self.config.max_epochs
                set_rate(self.optimizer, self.config.learning_rate * 0.5 * (1 + math.cos(math.pi * done)))
            order = torch.stack([torch.randperm(rows, generator=g, device=g.device) for g in self.generators])
            order = order.to(inputs.device)  # [R, N]
            total = torch.zeros(self.model.replicas, device=inputs.device)
            for index in order.split(size, dim=1):
                if index.shape[1] == size:
                    total += full_step(index)
                elif index.shape[1] > 1:  # a last batch of one has no batch statistics
                    total += step(index)
            check_finite(total, stopped=self.stopped)
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
        check_finite(self.error, "validation error", self.stopped)
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
        """A copy of everything that a later process needs to go on as if never interrupted."""
        names = ("epoch", "error", "best_error", "best_epoch", "stale", "best")
        found = {name: getattr(self, name) for name in names} | {
            "config": dataclasses.asdict(self.config),
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": [generator.get_state() for generator in self.generators],
        }
        return copy.deepcopy(found)

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state()`, which stays as it is."""
        if FitConfig(**state["config"]) != self.config:  # one of an earlier version lacks what has a default
            raise ValueError(f"The saved state is of a fit with {state['config']}; this one has {self.config}.")
        device = self.best_error.device
        self.epoch = state["epoch"]
        for name in ("error", "best_error", "best_epoch", "stale"):
            setattr(self, name, state[name].to(device, copy=True))
        self.best = {name: value.to(device, copy=True) for name, value in state["best"].items()}
        self.module.load_state_dict(state["model"])
        rates = [group["lr"] for group in self.optimizer.param_groups]  # set anew in every epoch
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for generator, saved in zip(self.generators, state["generators"], strict=True):
            generator.set_state(saved)
