"""Fitting the model of touches: in one go to given data, or batch by batch to data that grow along."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from butfor.influence.contact import ContactConfig, ContactDynamics, EntityContact, choose_columns
from butfor.influence.partners import Partners
from butfor.models.networks import Generators, make_generators, single_thread
from butfor.models.tables import Table, Transitions, Units, uneven_columns


@dataclass
class FitProgress:
    """How far a fit is; `butfor.models.Fitting` has the same attributes."""

    epoch: int
    """hundreds of updates done"""
    epochs: int
    best_error: Tensor


def fit_contact(
    transitions: Transitions,
    table: Table,
    units: Units,
    pairs: Partners,
    config: ContactConfig,
    seeds: Sequence[int],
    progress: Callable[[Any], None] | None = None,
) -> ContactDynamics:
    """Fit one replica per seed: first free motion and the partners' steps, then touches."""
    generators = make_generators(seeds)
    inputs, target = table
    obs, action = inputs.tensor_split([len(units.obs_center)], 1)
    uneven, medians = uneven_columns(obs)
    model = ContactDynamics(units, pairs, config, generators, uneven).to(inputs.device)
    changes = (transitions[2].double() - transitions[0].double()).to(inputs.device)
    report = Reporter(progress, len(model.entities) * (2 * config.motion_updates + config.updates))
    with single_thread():
        for dims, entity in zip(model.dims, model.entities, strict=True):
            assert isinstance(entity, EntityContact)
            entity.medians.copy_(medians)
            _fit_one(entity, (obs, action, target[:, dims]), changes, model, dims, generators, report)
    return model.eval()


def _fit_one(
    entity: EntityContact, rows: tuple[Tensor, Tensor, Tensor], changes: Tensor, model: ContactDynamics,
    dims: Sequence[int], generators: Generators, report: "Reporter",
) -> None:  # fmt: skip
    """Fit the networks of one entity, one after the other."""
    obs, action, target = rows
    config = entity.config
    steps = changes[:, entity.partner_columns]
    deviation = steps.std(0)
    entity.step_scale.copy_(torch.where(deviation > 1e-12, deviation, 1.0))
    scaled_steps = (steps / entity.step_scale[0, 0]).float()
    geometry = entity.describe(obs[None], model.units)[0]
    entity.center.copy_(geometry.mean(0))
    entity.spread.copy_(geometry.std(0).clamp_min(1e-12))

    def free_loss(index: Tensor) -> Tensor:
        error = entity.move_freely(obs[index]) - target[index]
        return error.abs().mean((1, 2))  # most rows are not touched, and the median is theirs

    def step_loss(index: Tensor) -> Tensor:
        both = torch.cat([obs[index], action[index]], -1)
        error: Tensor = entity.partner_step(both) - scaled_steps[index]
        return error.abs().mean((1, 2))

    def touch_loss(index: Tensor) -> Tensor:
        with torch.no_grad():
            free = entity.move_freely(obs[index])
        found = entity.predict(obs[index], action[index], free, model.units, choose_columns(model.change_scale, dims))
        return -found.log_density(target[index]).mean(1)

    count = len(obs)
    motion = (config.motion_updates, config.motion_learning_rate, 0.0, config.batch_size)
    train_on_batches(free_loss, list(entity.free.parameters()), *motion, count, generators, report)
    train_on_batches(step_loss, list(entity.partner_step.parameters()), *motion, count, generators, report)
    trained = [*entity.touch.parameters(), *entity.free_variance.parameters()]
    touching = (config.updates, config.learning_rate, config.weight_decay, config.batch_size)
    train_on_batches(touch_loss, trained, *touching, count, generators, report)


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


def make_contact_optimizer(
    model: ContactDynamics, learning_rate: float, betas: tuple[float, float]
) -> torch.optim.AdamW:
    """AdamW for a model that learns along: the weights of touches decay, those of motions do not."""
    touching = [p for name, p in model.named_parameters() if name.split(".")[2] in ("touch", "free_variance")]
    moving = [p for name, p in model.named_parameters() if name.split(".")[2] in ("free", "partner_step")]
    groups = [
        {"params": moving, "weight_decay": 0.0},
        {"params": touching, "weight_decay": model.config.weight_decay},
    ]
    on_gpu = moving[0].device.type == "cuda"
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True, capturable=on_gpu)
