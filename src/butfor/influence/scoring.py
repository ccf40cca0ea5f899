"""The core of CAI, for R replicas: scores of states and of actions from a model's predictions for K actions.

    CAI_j(s) = mean over K actions a of KL( p(s'_j | s, a) || mixture of p(s'_j | s, a') over the K actions a' )

(the paper's equation 3).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from butfor.influence.contact import ContactDynamics
from butfor.influence.gaussian import KLForm, entropy, kl_to_mixture, log_normal
from butfor.influence.graph.pairs import GraphDynamics
from butfor.influence.outcomes import OutcomeDynamics
from butfor.models.dynamics import GaussianDynamics
from butfor.models.networks import Generators
from butfor.models.tables import StandardizedStates, Table
from butfor.runs.config import check_between, check_choices, check_least
from butfor.runs.memory import check_memory
from butfor.spaces.actions import ActionLaw

Dynamics = GaussianDynamics | ContactDynamics | OutcomeDynamics | GraphDynamics
"""A transition model: `predictor()` returns a function from states and actions to a `Prediction`."""
DRAWS = 8  # outcomes from which a model's promise is computed, in each state
EntityDims = Sequence[Sequence[int]]
"""Dimensions of the model's prediction that belong to each of J entities."""


class Prediction(Protocol):
    """What a model predicts for K actions in each of n states, for R replicas."""

    def merge(self, members: int) -> "Prediction":
        """One prediction for each group of `members` replicas."""

    def divergence(self, dims: Sequence[int], form: KLForm, separate: bool = False) -> Tensor:
        """KL of each action's outcome to the mixture over all, for one entity: [R, n, K]."""

    def log_density(self, target: Tensor, dims: Sequence[int]) -> Tensor:
        """log p(s'_j | s, a) of one entity: target [n, 1, d] -> [R, n, K]."""

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of every predicted column: [R, n, K, d] each."""

    def sample(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Draw an outcome of each state under its chosen action, of which `chosen` [n, K] has one: [R, n, d]."""


Reduce = Callable[[Any, slice], Tensor]
"""A `Prediction` and which states it is about -> [R', n, ...]."""


@dataclass(frozen=True)
class ScoreConfig:
    """How CAI is estimated from a fitted model."""

    actions: int = 64
    """K, the actions tried in each state (discrete action spaces: all of them)"""
    sampling: Literal["independent", "sobol"] = "independent"
    """new actions for each state, or one shared low-discrepancy (Sobol) set for all states"""
    extreme: float = 0.0
    """share of the actions' numbers that are at a bound, the rest is uniform; 0.75 shows influence that only strong
    actions have (discrete action spaces: no effect)"""
    separate_mixture: bool = False
    """draw another K actions for the mixture, instead of using the same K for the mean and the mixture"""
    form: KLForm = "mean_clip_product"
    """how the KL to the mixture is approximated"""

    def __post_init__(self) -> None:
        check_least(self, 2, "actions")
        check_choices(self, "form", "sampling")
        check_between(self, 0, 1, "extreme")


def score_states(
    model: Dynamics,
    obs: Tensor | StandardizedStates,
    law: ActionLaw,
    entities: EntityDims,
    config: ScoreConfig,
    generators: Generators,
    members: int = 1,
) -> Tensor:
    """CAI of each state for J entities from one forward pass (equation 3): obs [R, N, D] -> [R / members, N, J].

    One generator gives all replicas the same actions; R generators give each replica its own. Each group of `members`
    replicas is an ensemble, whose predictions are merged into one Gaussian.
    """

    separate = config.separate_mixture and not law.count

    def influence(prediction: Prediction, part: slice) -> Tensor:
        merged = prediction.merge(members)
        return torch.stack([merged.divergence(dims, config.form, separate).mean(-1) for dims in entities], -1)

    return _in_chunks(model, obs, *_action_drawer(law, config, generators), influence)


def score_actions(
    model: Dynamics, obs: Tensor, actions: Tensor, entities: EntityDims, form: KLForm, members: int = 1
) -> Tensor:
    """KL of each action to their mixture: obs [R, N, D], actions [R or 1, N, K, A] -> [R / members, N, K, J]."""

    def divergence(prediction: Prediction, part: slice) -> Tensor:
        merged = prediction.merge(members)
        return torch.stack([merged.divergence(dims, form) for dims in entities], -1)

    return _in_chunks(model, obs, actions.shape[2], lambda part: actions[:, part], divergence)


def combine_scores(scores: Tensor, how: str) -> Tensor:
    """One score from those of J entities, their sum or their maximum ("max"): [..., J] -> [...]."""
    if scores.shape[-1] == 1:
        return scores[..., 0]
    return scores.amax(-1) if how == "max" else scores.sum(-1)


def find_best_action(
    model: Dynamics,
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
        states = block.shape[1]
        _, draw = _action_drawer(law, config, [generator])
        tried = draw(slice(0, states)).expand(1, states, -1, -1)
        scores = score_actions(model, block, tried, [dims], config.form, model.replicas)[0, ..., 0]  # [n, K]
        best = scores.amax(1, keepdim=True)
        lots = torch.rand(scores.shape, generator=generator, device=generator.device)
        index = torch.where(scores == best, lots, -1.0).argmax(1)
        chosen.append(tried[0, torch.arange(states, device=index.device), index])
        highest.append(best[:, 0])
    return torch.cat(chosen), torch.cat(highest)


def score_entropy(
    model: GaussianDynamics,
    obs: Tensor,
    law: ActionLaw,
    dims: Sequence[int],
    config: ScoreConfig,
    generators: Generators,
) -> Tensor:
    """The entropy baseline: H(s'_j | s) as the mean over K actions of the predicted entropy: [R, N, D] -> [R, N]."""
    drawer = _action_drawer(law, dataclasses.replace(config, separate_mixture=False), generators)
    return _in_chunks(model, obs, *drawer, lambda found, part: entropy(found.variance[..., list(dims)]).mean(-1))


def hide_among_redrawn(
    law: ActionLaw, taken: Tensor, redraws: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Put each taken action [N, A] at a random place among M new ones: actions [N, M + 1, A], is taken [N, M + 1].

    The place is random so that rounding, which may depend on it, cannot favour the taken action.
    """
    if redraws < 1:
        raise ValueError(f"redraws must be at least 1; got {redraws}.")
    states, count = len(taken), redraws + 1
    if law.count:
        actions = law.encode(torch.randint(law.count, (states, count), generator=generator, device=generator.device))
    else:
        actions = law.draw(states, count, [generator])[0]
    place = torch.randint(count, (states, 1), generator=generator, device=generator.device)
    is_taken = torch.arange(count, device=place.device) == place
    actions[is_taken] = taken
    return actions, is_taken


def log_density(
    model: Dynamics,
    obs: Tensor,
    actions: Tensor,
    target: Tensor,
    dims: Sequence[int],
    noise: float = 1.0,
) -> Tensor:
    """log of the members' mean of p(s'_j | s, a): obs [R, N, D], actions [R or 1, N, M, A], target [N, d] -> [N, M].

    `noise` multiplies the variances that a network predicts.
    """

    def density(prediction: Prediction, part: slice) -> Tensor:
        by_member = prediction.log_density(target[part, None], dims)  # [R, n, M]
        return (by_member.logsumexp(0) - math.log(model.replicas))[None]

    return _in_chunks(model, obs, actions.shape[2], lambda part: actions[:, part], density, noise)[0]


def split_inputs(model: Dynamics, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Split inputs [N, D + A] into states, expanded for the replicas [R, N, D], and actions [N, A]."""
    obs, action = inputs.tensor_split([model.obs_size], 1)
    return obs.expand(model.replicas, -1, -1), action


@dataclass(frozen=True)
class HeldOut:
    """Held-out transitions as a model sees them."""

    obs: Tensor  # [R, N, D]
    action: Tensor  # [N, A]
    target: Tensor  # [N, d]
    tried: Tensor  # [N, M + 1, A], the taken action at a random place among redrawn ones
    is_taken: Tensor  # [N, M + 1]
    densities: dict[str, tuple[Tensor, Tensor]]  # log p(s'_j | s, a) of the taken action [N], of redrawn ones [N, M]


def hold_out(
    model: Dynamics,
    table: Table,
    law: ActionLaw,
    entities: Mapping[str, Sequence[int]],
    redraws: int,
    generator: torch.Generator,
) -> HeldOut:
    """Compute the likelihood of what happened under the taken and under redrawn actions, for entities by name."""
    inputs, target = table
    obs, action = split_inputs(model, inputs)
    tried, is_taken = hide_among_redrawn(law, action, redraws, generator)
    densities = {}
    for name, dims in entities.items():
        density = log_density(model, obs, tried[None], target, dims)  # [N, M + 1]
        densities[name] = split_taken(density, is_taken)
    return HeldOut(obs, action, target, tried, is_taken, densities)


def split_taken(values: Tensor, is_taken: Tensor) -> tuple[Tensor, Tensor]:
    """Split what belongs to M + 1 tried actions into that of the taken one [N] and those of the others [N, M]."""
    return values[is_taken], values[~is_taken].unflatten(0, (-1, is_taken.shape[1] - 1))


class Evidence(NamedTuple):
    """What held-out transitions say of an entity's scores, and what the model itself expects."""

    log_likelihood: Tensor  # log p(s'_j | s, a) of the taken action [N]
    log_redrawn: Tensor  # of redrawn ones [N, M]
    promise: Tensor  # expected gain [N]
    promised_rank: Tensor  # expected rank [N]


def find_evidence(
    model: Dynamics, held_out: HeldOut, name: str, dims: Sequence[int], generator: torch.Generator, noise: float = 1.0
) -> Evidence:
    """Compute the evidence about an entity; `noise` multiplies the variances that a network predicts."""
    tried, is_taken = held_out.tried[None], held_out.is_taken
    if noise == 1:
        taken, redrawn = held_out.densities[name]
    else:
        density = log_density(model, held_out.obs, tried, held_out.target, dims, noise)
        taken, redrawn = split_taken(density, is_taken)
    return Evidence(taken, redrawn, *promised_effect(model, held_out.obs, tried, is_taken, dims, generator, noise))


def promised_effect(
    model: Dynamics,
    obs: Tensor,
    actions: Tensor,
    is_taken: Tensor,
    dims: Sequence[int],
    generator: torch.Generator,
    noise: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The effect of the taken action that the model itself expects: [N] each.

    The first is the gain log p(s'_j | s, a) - log p(s'_j | s), where p(s'_j | s) is the mean over all M actions. The
    second is the rank: the share of the others that make s'_j less likely. Both are means over some outcomes s' that
    are drawn from the model: obs [R, N, D], actions [1, N, M, A], `is_taken` [N, M]. `noise` multiplies the
    variances that a network predicts.
    """

    def promise(prediction: Prediction, part: slice) -> Tensor:
        chosen = is_taken[part]
        others = chosen.shape[1] - 1
        states = torch.arange(len(chosen), device=chosen.device)
        gain, rank = torch.zeros(2, len(chosen), device=chosen.device)
        for _ in range(DRAWS):
            member = torch.randint(model.replicas, (len(chosen),), generator=generator, device=generator.device)
            outcome = prediction.sample(chosen, generator)[member, states]
            density = prediction.log_density(outcome[:, None], dims).logsumexp(0)  # [n, M]
            taken = density[chosen]
            gain += taken - density.logsumexp(1)
            equal = (density == taken[:, None]).sum(1) - 1
            rank += ((density < taken[:, None]).sum(1) + 0.5 * equal) / others
        return torch.stack([gain / DRAWS + math.log(chosen.shape[1]), rank / DRAWS])

    gain, rank = _in_chunks(model, obs, actions.shape[2], lambda part: actions[:, part], promise, noise)
    return gain, rank


def predict_moments(model: Dynamics, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the members' mixture for one action per state: [R, N, D], [N, A] -> [N, d] each."""

    def moments(prediction: Prediction, part: slice) -> Tensor:
        merged = prediction.merge(model.replicas).moments()  # [1, n, 1, d] each
        return torch.stack([one[:, :, 0] for one in merged], -1)

    mean, variance = _in_chunks(model, obs, 1, lambda part: action[None, part, None], moments)[0].unbind(-1)
    return mean, variance


def chunk_states(model: Dynamics, actions: int, device: torch.device) -> int:
    """The number of states scored at a time: what fits into a processor's cache, or into 4 GiB of a GPU."""
    width = max(model.widest, 2 * model.target_size)
    if device.type == "cuda":  # a kernel reads the state once for each action
        width = max(width, model.obs_size)
    numbers = model.replicas * actions * (3 * width + 6 * actions)  # activations and pairs of one state
    if numbers > 2**28 and device.type == "cpu":
        check_memory(4.0 * numbers, f"Comparing {actions:,} actions in one state", "Try fewer actions.")
    return max(1, (2**30 if device.type == "cuda" else 3 * 2**21) // numbers)


class Gaussians(NamedTuple):
    """The `Prediction` of a `GaussianDynamics`."""

    mean: Tensor
    variance: Tensor

    def merge(self, members: int) -> "Gaussians":
        """The Gaussian with mean and variance of the members' equal mixture: [R, ...] -> [R / members, ...].

        Where members disagree the variance is large, so an effect that only some of them predict counts little.
        """
        if members == 1:
            return self
        means, variances = (part.unflatten(0, (-1, members)) for part in self)
        return Gaussians(means.mean(1), variances.mean(1) + means.var(1, correction=0))

    def divergence(self, dims: Sequence[int], form: KLForm, separate: bool = False) -> Tensor:
        """KL of each action to the mixture over all; if `separate`, the second half of the actions is the mixture."""
        columns = list(dims)
        given, mixture = (self.mean[..., columns], self.variance[..., columns]), ()
        if separate:
            given, mixture = zip(*(half.chunk(2, 2) for half in given), strict=True)
        return kl_to_mixture(*given, *mixture, form=form)

    def log_density(self, target: Tensor, dims: Sequence[int]) -> Tensor:
        """log p(s'_j | s, a): target [n, 1, d] -> [R, n, K]."""
        columns = list(dims)
        return log_normal(target[..., columns], self.mean[..., columns], self.variance[..., columns])

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance."""
        return self.mean, self.variance

    def sample(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Draw an outcome of each state under its chosen action."""
        mean, variance = self.mean[:, chosen], self.variance[:, chosen]
        return mean + variance.sqrt() * torch.randn(mean.shape, generator=generator, device=mean.device)


def _action_drawer(
    law: ActionLaw, config: ScoreConfig, generators: Generators
) -> tuple[int, Callable[[slice], Tensor]]:
    """The number of actions per state, and a function that draws those of some states."""
    count = law.count or config.actions * (2 if config.separate_mixture else 1)
    if law.count or config.sampling == "sobol":
        sets = []
        for generator in generators:
            seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
            sets.append(law.draw_shared(count, seed, generator.device, config.extreme))
        shared = torch.cat(sets)  # [generators, 1, K, A]
        return count, lambda part: shared
    return count, lambda part: law.draw(part.stop - part.start, count, generators, config.extreme)


@torch.no_grad()
def _in_chunks(
    model: Dynamics,
    obs: Tensor | StandardizedStates,
    actions: int,
    draw: Callable[[slice], Tensor],
    reduce: Reduce,
    noise: float = 1.0,
) -> Tensor:
    """Predict for `actions` actions in each state and reduce, chunk by chunk of states, so that memory is bounded.

    `noise` multiplies the variances that a network predicts.
    """
    predict = model.predictor()
    states = obs.shape[1]
    size = chunk_states(model, actions, obs.device)
    result: Tensor | None = None
    for start in range(0, max(states, 1), size):
        part = slice(start, min(start + size, states))
        predicted = predict(obs[:, part], draw(part))
        if noise != 1:
            assert isinstance(predicted, tuple)  # of a network
            predicted = predicted[0], predicted[1] * noise
        reduced = reduce(Gaussians(*predicted) if isinstance(predicted, tuple) else predicted, part)
        if result is None:  # one block for all: many small ones would fragment the memory
            result = reduced.new_empty(reduced.shape[0], states, *reduced.shape[2:])
        result[:, part] = reduced
    assert result is not None
    return result
