"""Which steps are replayed: every prioritisation is one array of weights [R, E, T]; a step's chance is its share.

R replicas never mix. E is the capacity of the replay buffer in episodes, T the steps of the longest; empty slots
(length 0) and the steps after an episode's end have no weight. No function waits for the device or depends on values in
its shapes, so each may be part of a CUDA graph.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from butfor.runs.config import check_between, check_choices, check_least
from butfor.training.replay import valid_steps

FLOOR = 1e-6
"""far below scores and errors that matter; with it no step of an episode is ruled out"""
GRAVITY = 9.81
LARGEST_GAIN = 0.5
"""the most energy (joule) that one step of EBP counts for"""


@dataclass(frozen=True)
class PriorityConfig:
    """How steps are drawn from the replay buffer. Defaults are the paper's."""

    kind: Literal["uniform", "per", "ebp"] = "uniform"
    """what prioritises if the signal does not: nothing, the TD error (PER), the object's energy (EBP)"""
    alpha: float = 0.6
    """PER: exponent of the error; 0 is uniform"""
    beta: float = 0.4
    """PER: exponent of the importance weights at the start"""
    beta_episodes: int = 20_000
    """PER: episodes over which that exponent rises linearly to 1"""
    rank_exponent: float = 1.0
    """use priority: an episode's weight is 1 / rank^this, by influence; 0 is uniform (the paper has 1)"""
    step_share: float = 0.0
    """use priority: share of an episode's weight that its steps have in proportion to their influence; they have the
    rest in equal parts (not in the paper)"""

    def __post_init__(self) -> None:
        check_choices(self, "kind")
        check_least(self, 0, "alpha", "rank_exponent")
        check_between(self, 0, 1, "beta", "step_share")
        check_least(self, 1, "beta_episodes")


def by_score(score: Tensor, length: Tensor, exponent: float = 1.0, step_share: float = 0.0) -> Tensor:
    """Weights by the signal: for CAI the paper's CAI-P (section 6.3), with its exponent of 1 and no `step_share`.

    An episode's weights sum to 1 / rank^exponent of its total score, 1 being the highest, independent of its length.
    Equal scores rank in the order of their slots. Its steps have the share `step_share` of this in proportion to their
    positive scores, and the rest in equal parts. Scores [R, E, T] and lengths [R, E] -> weights [R, E, T].
    """
    valid = valid_steps(length, score.shape[-1])
    total = score.where(valid, 0.0).sum(-1)  # [R, E]; may be negative, as estimates of CAI can be
    order = total.masked_fill(length == 0, -torch.inf).argsort(dim=1, descending=True, stable=True)  # empty slots last
    inverse = torch.arange(1, total.shape[1] + 1, device=total.device) ** -float(exponent)
    p = torch.empty_like(total, dtype=inverse.dtype).scatter_(1, order, inverse.expand_as(total))
    if not step_share:
        return _spread(p, length, valid)
    part = score.clamp_min(FLOOR).where(valid, 0.0)  # a floor: where no step has a score, all have the same part
    part = part / part.sum(-1, keepdim=True).clamp_min(FLOOR)
    return (1 - step_share) * _spread(p, length, valid) + step_share * part * p[..., None].float()


def by_energy(achieved_goal: Tensor, length: Tensor, time_step: float = 0.04) -> Tensor:
    """EBP: an episode's chance is the energy that its object gained: achieved_goal [R, E, T+1, 3] -> [R, E, T].

    E_t = g (z_t - z_0) + |x_t - x_{t-1}|^2 / (2 dt^2) for t = 1..T and E_0 = 0, for a mass of 1 kg; gains E_t - E_{t-1}
    are clipped to [0, 0.5] and summed. An episode without any gain is never drawn, unless no episode of its replica has
    one: then all have the same chance.
    """
    valid = valid_steps(length, achieved_goal.shape[2] - 1)
    velocity = achieved_goal.diff(dim=2) / time_step  # [R, E, T, 3]
    height = achieved_goal[..., 2]
    energy = GRAVITY * (height[..., 1:] - height[..., :1]) + velocity.square().sum(-1) / 2  # [R, E, T]
    gain = energy.diff(dim=-1, prepend=torch.zeros_like(energy[..., :1])).clamp(0, LARGEST_GAIN)
    total = gain.where(valid, 0.0).sum(-1)  # [R, E]
    nothing = (total == 0).all(1, keepdim=True)  # not "sum <= 0", which would hide a NaN
    p = (length > 0).to(total.dtype).where(nothing, total)
    return _spread(p, length, valid)


def by_error(priority: Tensor, length: Tensor, alpha: float) -> Tensor:
    """PER: max(|TD error|, 1e-6)^alpha of each stored step: priority [R, E, T], length [R, E] -> [R, E, T]."""
    return (priority.clamp_min(FLOOR) ** alpha).where(valid_steps(length, priority.shape[-1]), 0.0).float()


def importance_weights(weight: Tensor, drawn: Tensor, exponent: Tensor | float) -> Tensor:
    """(N P)^-exponent over its maximum in the replay buffer, of drawn steps: [R, B] -> [R, B].

    With P a step's share of the weights [R, E, T] this is (smallest positive weight / drawn weight)^exponent.
    """
    smallest = weight.masked_fill(weight <= 0, torch.inf).amin((1, 2))  # [R]
    # Nothing stored weighs less than the smallest; the clamp bounds a step that rounding drew at weight 0.
    return ((smallest.unsqueeze(-1) / drawn).clamp_max(1) ** exponent).float()


def beta_at(config: PriorityConfig, episode: int) -> float:
    """PER's exponent of the importance weights after so many episodes: linear from beta to 1."""
    return config.beta + (1 - config.beta) * min(episode / config.beta_episodes, 1.0)


def _spread(p: Tensor, length: Tensor, valid: Tensor) -> Tensor:
    """p [R, E] of each episode in equal parts over its steps -> [R, E, T]."""
    part = p / length.clamp(1, valid.shape[-1])
    return part.float().unsqueeze(-1).where(valid, 0.0)
