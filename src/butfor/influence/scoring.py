"""The core of CAI, for R replicas: scores of states and of actions from a model's predictions for K actions.

    CAI_j(s) = mean over K actions a of KL( p(s'_j | s, a) || mixture of p(s'_j | s, a') over the K actions a' )

(the paper's equation 3).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from butfor.influence.gaussian import KL_FORMS, KLForm, entropy, kl_to_mixture
from butfor.models.dynamics import GaussianDynamics
from butfor.spaces.actions import ActionLaw


@dataclass(frozen=True)
class ScoreConfig:
    """How CAI is estimated from a fitted model."""

    actions: int = 64
    """K, the actions tried in each state (discrete action spaces: all of them)"""
    sampling: Literal["independent", "sobol"] = "independent"
    """fresh actions for each state, or one shared low-discrepancy (Sobol) set for all states"""
    extreme: float = 0.0
    """share of the actions' numbers that are the lowest or highest possible, the rest is uniform; 0.75 shows influence
    that only strong actions have (discrete action spaces: without effect)"""
    separate_mixture: bool = False
    """draw another K actions for the mixture, instead of using the same K for the mean and the mixture"""
    form: KLForm = "mean_clip_product"
    """how the KL to the mixture is approximated"""

    def __post_init__(self) -> None:
        if self.actions < 2:
            raise ValueError(f"actions must be at least 2, to compare an action with others; got {self.actions}.")
        if self.form not in KL_FORMS:
            raise ValueError(f"form is {self.form!r}; it must be one of {', '.join(KL_FORMS)}.")
        if self.sampling not in ("independent", "sobol"):
            raise ValueError(f"sampling is {self.sampling!r}; it must be 'independent' or 'sobol'.")
        if not 0 <= self.extreme <= 1:
            raise ValueError(f"extreme must lie between 0 (uniform actions) and 1; got {self.extreme}.")


def score_states(
    model: GaussianDynamics,
    obs: Tensor,
    law: ActionLaw,
    entities: Sequence[Sequence[int]],
    config: ScoreConfig,
    generators: Sequence[torch.Generator],
    members: int = 1,
) -> Tensor:
    """CAI of each state for J entities from one forward pass (equation 3): obs [R, N, D] -> [R / members, N, J].

    One generator serves all replicas with the same actions; R generators give each replica its own. Every `members`
    replicas in turn are an ensemble, whose predictions are one Gaussian.
    """

    def influence(mean: Tensor, variance: Tensor) -> Tensor:
        mean, variance = merge_members(mean, variance, members)
        scores = []
        for dims in map(list, entities):
            f, g = (mean[..., dims], variance[..., dims]), ()
            if config.separate_mixture and not law.count:  # the second half of the actions is the mixture
                f, g = zip(*(half.chunk(2, 2) for half in f), strict=True)
            scores.append(kl_to_mixture(*f, *g, form=config.form).mean(-1))
        return torch.stack(scores, -1)

    return _in_chunks(model, obs, *action_drawer(law, config, generators), influence)


def merge_members(mean: Tensor, variance: Tensor, members: int) -> tuple[Tensor, Tensor]:
    """The Gaussian with mean and variance of the members' equal mixture: [R, ...] -> [R / members, ...].

    Where members disagree the variance is large: what only some of them take for an effect of the action counts little.
    """
    if members == 1:
        return mean, variance
    means, variances = (part.unflatten(0, (-1, members)) for part in (mean, variance))
    return means.mean(1), variances.mean(1) + means.var(1, correction=0)


def score_actions(
    model: GaussianDynamics,
    obs: Tensor,
    actions: Tensor,
    entities: Sequence[Sequence[int]],
    form: KLForm,
    members: int = 1,
) -> Tensor:
    """KL of each given action to the mixture over them: obs [R, N, D], actions [R or 1, N, K, A] -> [R, N, K, J].

    With an ensemble of `members` replicas each, [R / members, N, K, J].
    """

    def divergence(mean: Tensor, variance: Tensor) -> Tensor:
        mean, variance = merge_members(mean, variance, members)
        return torch.stack([kl_to_mixture(mean[..., j], variance[..., j], form=form) for j in map(list, entities)], -1)

    return _in_chunks(model, obs, actions.shape[2], lambda start, stop: actions[:, start:stop], divergence)


def combine_scores(scores: Tensor, how: str) -> Tensor:
    """One score from those of J entities, their sum or their maximum ("max"): [..., J] -> [...]."""
    if scores.shape[-1] == 1:
        return scores[..., 0]
    return scores.amax(-1) if how == "max" else scores.sum(-1)


def best_tried(
    model: GaussianDynamics,
    obs: Tensor,
    law: ActionLaw,
    dims: Sequence[int],
    config: ScoreConfig,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """The action with the highest score of K tried ones, ties broken at random: obs [R, N, D] -> [N, A], score [N]."""
    config = dataclasses.replace(config, separate_mixture=False)
    chosen, highest = [], []
    for block in obs.split(8192, 1):  # [R, n, D]
        _, draw = action_drawer(law, config, [generator])
        tried = draw(0, block.shape[1]).expand(1, block.shape[1], -1, -1)
        scores = score_actions(model, block, tried, [dims], config.form, model.replicas)[0, ..., 0]  # [n, K]
        best = scores.amax(1, keepdim=True)
        lots = torch.rand(scores.shape, generator=generator, device=generator.device)
        index = torch.where(scores == best, lots, -1.0).argmax(1)
        chosen.append(tried[0, torch.arange(len(index), device=index.device), index])
        highest.append(best[:, 0])
    return torch.cat(chosen), torch.cat(highest)


def score_entropy(
    model: GaussianDynamics,
    obs: Tensor,
    law: ActionLaw,
    dims: Sequence[int],
    config: ScoreConfig,
    generators: Sequence[torch.Generator],
) -> Tensor:
    """The entropy rival: H(s'_j | s) as the mean over K actions of the predicted entropy: [R, N, D] -> [R, N]."""
    drawer = action_drawer(law, dataclasses.replace(config, separate_mixture=False), generators)
    return _in_chunks(model, obs, *drawer, lambda mean, variance: entropy(variance[..., list(dims)]).mean(-1))


def hide_among_redrawn(
    law: ActionLaw, taken: Tensor, redraws: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Each taken action [N, A] at a random place among M fresh ones: actions [N, M + 1, A], which was taken [N, M + 1].

    The place is random so that rounding, which may depend on it, cannot favour the taken action.
    """
    if redraws < 1:
        raise ValueError(f"redraws must be at least 1; got {redraws}.")
    states, count = len(taken), redraws + 1
    if law.count:
        fresh = torch.randint(law.count, (states, count), generator=generator, device=generator.device)
        actions = law.encode(fresh)
    else:
        actions = law.draw(states, count, [generator])[0]
    place = torch.randint(count, (states, 1), generator=generator, device=generator.device)
    is_taken = torch.arange(count, device=place.device) == place
    actions[is_taken] = taken
    return actions, is_taken


@torch.no_grad()
def log_density(model: GaussianDynamics, obs: Tensor, actions: Tensor, target: Tensor, dims: Sequence[int]) -> Tensor:
    """log of the members' mean of p(s'_j | s, a): obs [R, N, D], actions [R or 1, N, M, A], target [N, d] -> [N, M]."""
    predict, columns, parts = model.predictor(), list(dims), []
    size = chunk_states(model, actions.shape[2], obs.device)
    for states, tried, seen in zip(obs.split(size, 1), actions.split(size, 1), target.split(size), strict=True):
        mean, variance = (part[..., columns] for part in predict(states, tried))  # [R, n, M, d of the entity]
        squared = (seen[:, None, columns] - mean).square() / variance
        by_member = -0.5 * (squared + variance.log() + math.log(2 * math.pi)).sum(-1)  # [R, n, M]
        parts.append(by_member.logsumexp(0) - math.log(model.replicas))
    return torch.cat(parts)


def predict_moments(model: GaussianDynamics, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the members' mixture for one action a state: [R, N, D], [N, A] -> [N, d] each."""

    def moments(mean: Tensor, variance: Tensor) -> Tensor:  # [R, n, 1, d] -> [1, n, d, 2]
        return torch.stack([part[0] for part in merge_members(mean, variance, model.replicas)], -1).movedim(1, 0)

    mean, variance = _in_chunks(model, obs, 1, lambda start, stop: action[None, start:stop, None], moments)[0].unbind(
        -1
    )
    return mean, variance


def action_drawer(
    law: ActionLaw, config: ScoreConfig, generators: Sequence[torch.Generator]
) -> tuple[int, Callable[[int, int], Tensor]]:
    """How many actions a state gets, and what draws those of the states from `start` to `stop`."""
    count = law.count or config.actions * (2 if config.separate_mixture else 1)
    if law.count or config.sampling == "sobol":
        seeds = [int(torch.randint(2**31, (1,), generator=g, device=g.device)) for g in generators]
        sets = [
            law.draw_shared(count, seed, g.device, config.extreme) for seed, g in zip(seeds, generators, strict=True)
        ]
        shared = torch.cat(sets)  # [generators, 1, K, A]
        return count, lambda start, stop: shared
    return count, lambda start, stop: law.draw(stop - start, count, generators, config.extreme)


def chunk_states(model: GaussianDynamics, actions: int, device: torch.device) -> int:
    """States scored at a time: what stays in the processor's cache, or in 4 GiB of a GPU's memory."""
    width = max(model.config.width, 2 * model.target_size)
    numbers = model.replicas * actions * (3 * width + 6 * actions)  # activations and pairs of one state
    return max(1, (2**30 if device.type == "cuda" else 3 * 2**21) // numbers)


@torch.no_grad()
def _in_chunks(
    model: GaussianDynamics,
    obs: Tensor,
    actions: int,
    draw: Callable[[int, int], Tensor],
    reduce: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Predicts for `actions` actions in each state and reduces, chunk by chunk of states, so that memory is bounded."""
    predict = model.predictor()
    size, states = chunk_states(model, actions, obs.device), obs.shape[1]
    edges = [(start, min(start + size, states)) for start in range(0, max(states, 1), size)]
    result: Tensor | None = None
    for start, stop in edges:
        part = reduce(*predict(obs[:, start:stop], draw(start, stop)))
        if result is None:  # one block for all: many small ones would keep the freed memory in pieces
            result = part.new_empty(part.shape[0], states, *part.shape[2:])
        result[:, start:stop] = part
    assert result is not None
    return result
