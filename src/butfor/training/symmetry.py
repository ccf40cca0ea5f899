"""Samples seen in the environment's mirrors and moved along them: other transitions that obey the same laws."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from butfor.spaces.mirrors import Mirror
from butfor.training.replay import Batch, ReplayConfig


@dataclass(frozen=True)
class Reflection:
    """One mirror, for what agents see: observation, goal and perhaps what is left to the goal, [D + G (+ G)]."""

    order: Tensor  # [I]: the column that each one comes from
    sign: Tensor  # [I]
    added: Tensor  # [I]
    place: Tensor  # [I]: 1 for positions along the mirror's normal, else 0
    action_sign: Tensor  # [A]


class Symmetry:
    """Changes the batches that agents learn from, each sample by chance.

    With `mirror`, each mirror reflects half of the samples. With `shift`, each sample is moved along the normal of each
    mirror that allows it by a uniform amount of at most that size.
    """

    def __init__(
        self, mirrors: Sequence[Mirror], config: ReplayConfig, sizes: tuple[int, int, int], device: torch.device
    ) -> None:
        """`sizes` are columns of an observation, an action and a goal."""
        found = [(mirror, _reflection(mirror, sizes, config.relative_goals, device)) for mirror in mirrors]
        self.reflections = [one for mirror, one in found if mirror.reflect and config.mirror]
        self.movable = [one for mirror, one in found if mirror.shift and config.shift]
        self.shift = config.shift
        self.noise_size = len(self.reflections) + len(self.movable)

    def __call__(self, batch: Batch, noise: Tensor) -> Batch:
        """The batch, changed by uniform numbers [R, B, noise_size]."""
        now, then, action = batch.inputs, batch.next_inputs, batch.action
        numbers = iter(noise.split(1, -1))  # [R, B, 1] each
        for one in self.reflections:
            reflects = next(numbers) < 0.5
            now, then = (torch.where(reflects, x[..., one.order] * one.sign + one.added, x) for x in (now, then))
            action = torch.where(reflects, action * one.action_sign, action)
        for one in self.movable:
            moved = (2 * next(numbers) - 1) * self.shift * one.place
            now, then = now + moved, then + moved
        return replace(batch, inputs=now, next_inputs=then, action=action)


def _reflection(mirror: Mirror, sizes: tuple[int, int, int], relative: bool, device: torch.device) -> Reflection:
    obs_size, action_size, goal_size = sizes
    places = [*mirror.places, *(obs_size + column for column in mirror.goal_places)]
    signs = list(mirror.signs)
    if relative:  # the last columns are a difference of positions
        signs += [obs_size + goal_size + column for column in mirror.goal_places]
    order = torch.arange(obs_size + goal_size * (2 if relative else 1))
    for one, other in mirror.swapped:
        order[one], order[other] = other, one
    place = torch.zeros(len(order)).index_fill(0, torch.tensor(places), 1.0)
    sign = torch.ones(len(order)).index_fill(0, torch.tensor([*places, *signs]), -1.0)
    action_sign = torch.ones(action_size).index_fill(0, torch.tensor(mirror.action_signs), -1.0)
    tensors = (order, sign, 2 * mirror.middle * place, place, action_sign)
    return Reflection(*(tensor.to(device) for tensor in tensors))
