"""Fitting a model of R replicas: optimiser steps, epochs with early stopping per replica, and a number of batches."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from butfor.models.gpu import captured, compiled, has_kernels
from butfor.models.networks import Generators
from butfor.models.tables import Table
from butfor.runs.config import check_betas, check_least, check_positive


class Fittable(nn.Module):
    """A model of R replicas that `Fitting` can train: `forward` returns the predicted mean, and something else."""

    replicas: int

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """The loss of each replica on a batch [R, B, ...]: [R]."""
        raise NotImplementedError

    def predict_mean(self, inputs: Tensor) -> Tensor:
        """The mean alone: [R, B, D + A] -> [R, B, d]."""
        mean: Tensor = self(inputs)[0]
        return mean


@dataclass(frozen=True)
class FitConfig:
    """How a model is fitted to given data. Defaults are the paper's for detection on 1DSlide."""

    batch_size: int = 1000
    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates"""
    max_epochs: int = 3000
    validate_every: int = 20
    """epochs between validations (the first and the last epoch are also validated)"""
    patience: int = 10
    """validations without a better error after which a replica stops"""
    decay: bool = False
    """decrease the learning rate to 0 over max_epochs, along half a cosine"""

    def __post_init__(self) -> None:
        check_least(self, 1, "batch_size", "max_epochs", "validate_every", "patience")
        check_positive(self, "learning_rate")
        check_betas(self)


FOR_ANY_DATA = FitConfig(batch_size=500, learning_rate=3e-3, max_epochs=300, validate_every=5, patience=20)
"""The default of `Influence.fit`: networks with spectral norm learn rare contacts sooner at a higher rate."""


class DirectAdam(torch.optim.Adam):
    """Adam on a CPU that calls torch's kernel itself: half the time of `Adam.step` for a small network is around it."""

    prepared: Any = None  # the state that the tensors below belong to; loading another one replaces it
    moments: tuple[list[Tensor], list[Tensor]]
    steps: Tensor  # of all parameters, so that one operation counts them
    counts: list[Tensor]  # the same one by one

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of every parameter; all of them have a gradient."""
        (group,) = self.param_groups
        if not self.state:
            super().step(closure)  # makes the state
            return
        if self.prepared is not self.state:
            self._prepare(group["params"])
        self.steps += 1
        gradients = [parameter.grad for parameter in group["params"]]
        beta1, beta2 = group["betas"]
        torch._fused_adam_(
            group["params"], gradients, *self.moments, [], self.counts, lr=group["lr"], beta1=beta1, beta2=beta2,
            weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
        )  # fmt: skip

    step.hooked = True  # type: ignore[attr-defined]  # torch wraps it in a record for its profiler otherwise

    def _prepare(self, parameters: list[Tensor]) -> None:
        """Collect the tensors of the state, with the counts of the steps in one tensor."""
        states = [self.state[parameter] for parameter in parameters]
        self.steps = torch.stack([state["step"] for state in states])
        for state, count in zip(states, self.steps, strict=True):
            state["step"] = count
        self.counts = list(self.steps)
        self.moments = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        self.prepared = self.state


def make_optimizer(model: nn.Module, config: FitConfig) -> torch.optim.Adam:
    """Adam over all replicas at once; being elementwise it never mixes them."""
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    # a rate that changes is a tensor, because a recorded step reads it at each replay
    rate = torch.tensor(config.learning_rate, device=device) if config.decay and on_gpu else config.learning_rate
    adam = torch.optim.Adam
    if device.type == "cpu" and hasattr(torch, "_fused_adam_"):  # private: it may change its name
        adam = DirectAdam
    elif has_kernels(device):
        from butfor.models.gpu.adam import KernelAdam  # Triton is there only with a GPU

        adam = KernelAdam
    return adam(model.parameters(), lr=rate, betas=config.betas, fused=True, capturable=on_gpu)


def set_rate(optimizer: torch.optim.Adam, rate: float) -> None:
    """Change the learning rate, in place if it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def train_step(
    loss_of: Callable[[Tensor, Tensor], Tensor], optimizer: torch.optim.Optimizer, inputs: Tensor, target: Tensor
) -> Tensor:
    """Take one optimiser step on a batch [R, B, ...]; losses are summed, so each replica has only its own gradient."""
    loss = loss_of(inputs, target)
    if loss.requires_grad:  # else it has set the gradients itself, see `training_loss`
        optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
    optimizer.step()
    return loss.detach()


def training_loss(model: Any, device: torch.device | str) -> Callable[[Tensor, Tensor], Tensor]:
    """The fastest loss for `train_step`: with written-out gradients if the model has them here; fused on a GPU."""
    direct: Callable[[Tensor, Tensor], Tensor] | None = model.direct_loss() if hasattr(model, "direct_loss") else None
    if direct is not None:
        return direct
    loss: Callable[[Tensor, Tensor], Tensor] = model.loss
    return compiled(loss, device)


def check_finite(loss: Tensor, what: str = "loss", stopped: Tensor | None = None) -> None:
    """Refuse a loss [R] that is NaN or infinite, naming the replicas; those that have `stopped` [R] do not count."""
    broken = ~torch.isfinite(loss)
    bad = (broken if stopped is None else broken & ~stopped).nonzero().flatten().tolist()
    if bad:
        raise FloatingPointError(
            f"The {what} of replica {', '.join(map(str, bad))} became NaN or infinite. Lower the learning rate; if the "
            "data contain extreme values, rescale them."
        )


class Fitting:
    """Epochs with validation, early stopping and best weights per replica.

    `run` yields after every validation, so that the caller can show progress, save `state()` or stop; `finish()` then
    loads the best weights.
    """

    def __init__(
        self, model: Fittable, train: Table, validation: Table, config: FitConfig, generators: Generators
    ) -> None:
        self.model = model
        self.train = train
        self.validation = validation
        self.config = config
        self.generators = list(generators)
        self.optimizer = make_optimizer(self.model, config)
        self.epoch = 0
        device = train[0].device
        self.error = torch.full((model.replicas,), math.inf, device=device)  # latest validation error
        self.best_error = self.error.clone()
        self.best_epoch = torch.zeros(model.replicas, dtype=torch.long, device=device)
        self.stale = torch.zeros(model.replicas, dtype=torch.long, device=device)  # validations without improvement
        self.best = {name: value.clone() for name, value in self.model.state_dict().items()}

    @property
    def epochs(self) -> int:
        """The most epochs."""
        return self.config.max_epochs

    @property
    def stopped(self) -> Tensor:
        """Which replicas have stopped early: [R]."""
        return self.stale >= self.config.patience

    def run(self) -> Iterator["Fitting"]:
        """Train until every replica has stopped; yield itself after every validation."""
        inputs, target = self.train
        size = min(self.config.batch_size, len(inputs))

        fused = training_loss(self.model, inputs.device)
        plain = self.model.loss if inputs.is_cuda else fused  # a fused loss is made for one batch size

        def step(index: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = plain) -> Tensor:
            return train_step(loss, self.optimizer, inputs[index], target[index])

        self.model.train()
        example = torch.arange(size, device=inputs.device).expand(self.model.replicas, -1)
        full_step = captured(lambda index: step(index, fused), [example], [self.model, self.optimizer])
        while self.epoch < self.config.max_epochs and not bool(self.stopped.all()):
            self.model.train()
            if self.config.decay:
                done = self.epoch / self.config.max_epochs
                set_rate(self.optimizer, self.config.learning_rate * 0.5 * (1 + math.cos(math.pi * done)))
            order = torch.stack([torch.randperm(len(inputs), generator=g, device=g.device) for g in self.generators])
            order = order.to(inputs.device)  # [R, N]
            total = torch.zeros(self.model.replicas, device=inputs.device)
            for index in order.split(size, dim=1):
                if index.shape[1] == size:
                    total += full_step(index)
                elif index.shape[1] > 1:  # a last batch of one row has no batch statistics
                    total += step(index)
            check_finite(total, stopped=self.stopped)
            self.epoch += 1
            if self.epoch == 1 or self.epoch % self.config.validate_every == 0 or self.epoch == self.config.max_epochs:
                self._validate()
                yield self
        self.finish()

    @torch.no_grad()
    def _validate(self) -> None:
        """Compute the mean squared error on the validation data; keep the best weights of each replica."""
        self.model.eval()
        inputs, target = self.validation
        squared = [
            (self.model.predict_mean(x.expand(self.model.replicas, -1, -1)) - y).square().sum((1, 2))
            for x, y in zip(inputs.split(8192), target.split(8192), strict=True)
        ]
        self.error = torch.stack(squared).sum(0) / target.numel()
        check_finite(self.error, "validation error", self.stopped)
        improved = (self.error < self.best_error) & ~self.stopped
        for name, value in self.model.state_dict().items():
            self.best[name][improved] = value[improved]
        self.best_error = torch.where(improved, self.error, self.best_error)
        self.best_epoch[improved] = self.epoch
        self.stale = torch.where(improved, 0, torch.where(self.stopped, self.stale, self.stale + 1))

    def finish(self) -> None:
        """Load each replica's best weights into the model, in evaluation mode."""
        self.model.load_state_dict(self.best)
        self.model.eval()

    def state(self) -> dict[str, Any]:
        """A copy of everything that another process needs to continue with the same bits."""
        names = ("epoch", "error", "best_error", "best_epoch", "stale", "best")
        found = {name: getattr(self, name) for name in names} | {
            "config": dataclasses.asdict(self.config),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": [generator.get_state() for generator in self.generators],
        }
        return copy.deepcopy(found)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state()`, which is not modified."""
        if FitConfig(**state["config"]) != self.config:  # files of earlier versions lack newer fields
            raise ValueError(f"The saved state belongs to a fit with {state['config']}; this one has {self.config}.")
        device = self.best_error.device
        self.epoch = state["epoch"]
        for name in ("error", "best_error", "best_epoch", "stale"):
            setattr(self, name, state[name].to(device, copy=True))
        self.best = {name: value.to(device, copy=True) for name, value in state["best"].items()}
        self.model.load_state_dict(state["model"])
        rates = [group["lr"] for group in self.optimizer.param_groups]  # set at each epoch
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for generator, saved in zip(self.generators, state["generators"], strict=True):
            generator.set_state(saved)


@dataclass
class FitProgress:
    """How far a fit is; `Fitting` has the same attributes."""

    epoch: int
    """hundreds of updates done"""
    epochs: int
    best_error: Tensor


@dataclass
class Reporter:
    """Calls `progress` after every 100 updates."""

    progress: Callable[[Any], None] | None
    updates: int
    done: int = field(default=0, init=False)

    def __call__(self, loss: Tensor) -> None:
        self.done += 1
        if self.progress is not None and self.done % 100 == 0:
            self.progress(FitProgress(self.done // 100, self.updates // 100, loss.detach()))


def train_on_batches(
    loss_of: Callable[[Tensor], Tensor],
    parameters: list[nn.Parameter],
    updates: int,
    rate: float,
    weight_decay: float,
    batch: int,
    count: int,
    generators: Generators,
    report: Callable[[Tensor], None] = lambda loss: None,
) -> None:
    """Take AdamW steps on random batches; the rate rises over 100 steps and falls along half a cosine."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=weight_decay, fused=True)
    device = parameters[0].device
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (update + 1) / 100) * 0.5 * (1 + math.cos(math.pi * update / updates))
        index = torch.stack([torch.randint(count, (batch,), generator=g) for g in generators]).to(device)
        loss = loss_of(index)
        optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        optimizer.step()
        report(loss)
    if not torch.isfinite(loss).all():
        raise FloatingPointError("The loss became NaN or infinite; if the data contain extreme values, rescale them.")
