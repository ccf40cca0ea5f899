"""Influence of a source on a target in a state, from a model's predictions.

The source is the action or an entity i, the target an entity j. The influence of an entity is

    CI(i -> j, s) = KL( p(s'_j | s, a) || mixture of p(s'_j | s, a) and of p(s'_j | s with another i, a) )

with equal weights, averaged over the actions a. The other i is

- absent: with the model of pairs, i touches nobody; with other models, its columns have their mean values (nulling).
  The mixture has two parts, so that the influence is between 0 and log 2.
- or drawn from a reference: i is as in M other states. The influence is between 0 and log(M + 1), and its mean over
  states of i from the reference is the mutual information I(s'_j; s_i | the rest of s, a), up to the M draws. With the
  model of pairs, i is not put nearer to another entity than it is in any state of the reference.

Both are 0 if the model ignores i. They agree where i seldom matters: then nearly every other state of i is as good as
none. They differ where i always matters, as a table does: nulling shows it, other places of i may not.
The influence of the action is CAI, as in `scoring.py`.

The size of an effect, in the units of the data, is the difference of the expected outcomes with and without i. Where
the outcome s' of the step is known, an effect must also be seen:

    seen(i -> j, s, a, s') = min( | E[s'_j | s, a] - E[s'_j | s without i, a] |, | s'_j - E[s'_j | s without i, a] | )

with the largest difference of any counted column. Free motion is predicted with errors, which look like effects. So a
network learns from all transitions what to expect of an observed effect, given how both entities moved in the step:

    hindsight(i -> j, s, s') = expectation of P( i touches j | s, a, s' ) | s'_j - E[s'_j | s without i, a] |

in which these errors average out. The effect is the geometric mean of both.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.influence.contact import Touch
from butfor.influence.gaussian import KLForm, kl_to_mixture
from butfor.influence.graph.pairs import GraphDynamics
from butfor.influence.scoring import Gaussians

ACTION = "action"
Alternative = Literal["absent", "reference"]
CHUNK = 2**18  # rows that are predicted at once
FAINTEST = 0.1  # least size in hindsight, in least effects: what is seen counts also where none is expected


@dataclass(frozen=True)
class Graph:
    """One value for each state, source and target.

    >>> graph["first", "third"]  # [N]

    Attributes:
        values: [N, source, target]; NaN where source and target are the same entity.
        sources: "action", then the entities.
        targets: the entities.
    """

    values: Any
    sources: tuple[str, ...]
    targets: tuple[str, ...]

    def __getitem__(self, edge: tuple[str, str]) -> Any:
        source, target = edge
        if edge not in self.edges():
            raise KeyError(
                f"There is no edge from {source!r} to {target!r}; the sources are {', '.join(self.sources)}, the "
                f"targets {', '.join(self.targets)}."
            )
        return self.values[:, self.sources.index(source), self.targets.index(target)]

    def edges(self) -> list[tuple[str, str]]:
        """All pairs of a source and another target."""
        return [(source, target) for source in self.sources for target in self.targets if source != target]


@torch.no_grad()
def score_entity_source(
    model: Any,
    obs: Tensor,
    actions: Tensor,
    columns: Sequence[int],
    dims: Sequence[Sequence[int]],
    reference: Tensor | None,
    form: KLForm,
) -> Tensor:
    """CI(i -> j, s) for every target, averaged over actions: obs [R, N, D], actions [N, K, A] -> [N, J].

    Args:
        model: any fitted model; that of pairs with a reference, see `score_absences` without one.
        obs: states in standard units.
        actions: K actions for each state.
        columns: those of the entity i.
        dims: the place of each entity's columns in what the model predicts.
        reference: columns of i in M other states of each state, [N, M, d]; None for its mean.
        form: how the KL to a mixture of Gaussians is approximated.
    """
    others = 1 if reference is None else reference.shape[1]
    count = actions.shape[1]
    size = max(1, CHUNK // (model.replicas * (others + 1) * count))
    predict = model.predictor()
    parts = []
    for start in range(0, max(1, obs.shape[1]), size):
        part = slice(start, start + size)
        states = obs[:, part].repeat_interleave(count, 1)  # [R, n K, D]
        tried = actions[part].flatten(0, 1).expand(model.replicas, -1, -1)
        given = None if reference is None else reference[part].repeat_interleave(count, 0)
        replaced = states.unsqueeze(2).repeat(1, 1, others + 1, 1)
        replaced[:, :, 1:, list(columns)] = 0.0 if given is None else given.to(replaced)  # 0: the mean
        repeated = tried.repeat_interleave(others + 1, 1).unsqueeze(2)  # [R, n K (M + 1), 1, A]
        merged = _regroup(predict(replaced.flatten(1, 2), repeated), others + 1).merge(model.replicas)
        scores = torch.stack([_first_divergence(merged, target, form) for target in dims], -1)  # [n K, J]
        parts.append(scores.unflatten(0, (-1, count)).mean(1))
    return torch.cat(parts).clamp_min(0)


def score_absences(model: GraphDynamics, obs: Tensor, actions: Tensor, sources: Sequence[int]) -> Tensor:
    """CI(i -> j, s) of some sources with i absent, averaged over actions: [R, N, D], [N, K, A] -> [N, S, E]."""

    def divergence(whole: Touch, without: Touch, dims: Sequence[int], goal: Tensor | None) -> Tensor:
        both = Touch(*(torch.stack(parts, 2) for parts in zip(whole.parts(), without.parts(), strict=True)))
        return both.divergence()[0, :, 0]

    count = actions.shape[1]
    repeated = obs.repeat_interleave(count, 1)
    found = _compare_absences(model, repeated, actions.flatten(0, 1), None, divergence, sources, count)
    by_action: Tensor = found.unflatten(0, (-1, count))
    return by_action.mean(1)


def effect_sizes(model: GraphDynamics, obs: Tensor, action: Tensor, target: Tensor | None, counted: int) -> Tensor:
    """Effects of every source on every target, in the units of the data: [N, E, E].

    Args:
        model: the model of pairs.
        obs: states [R, N, D] in standard units.
        action: the encoded actions taken [N, A].
        target: the scaled changes that followed [N, d], if they are known; hindsight then counts, too.
        counted: how many of the first columns of each entity count.
    """

    def effect(whole: Touch, without: Touch, dims: Sequence[int], goal: Tensor | None) -> Tensor:
        scale = model.change_scale[dims[:counted]]
        mean, alone = (touch.moments()[0][0][:, :counted] for touch in (whole, without))
        predicted = ((mean - alone) / scale).abs().amax(-1)
        if goal is None:
            return predicted
        return torch.minimum(predicted, ((goal[:, :counted] - alone) / scale).abs().amax(-1))

    found = _compare_absences(model, obs, action, target, effect)
    if target is None:
        return found
    learned = hindsight_sizes(model, obs, target)
    sizes = [
        (learned[:, :, place, : len(dims[:counted])] / model.change_scale[dims[:counted]]).amax(-1)
        for place, dims in enumerate(model.dims)
    ]
    return (found * torch.stack(sizes, -1)).sqrt()


def observed_effects(model: GraphDynamics, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
    """The probability of a touch, given the outcome, times | s'_j - E[s'_j | s without i, a] |, scaled, by column.

    obs [R, N, D], action [N, A], target [N, d] -> [N, E, E, longest]. What `GraphDynamics.look_back` learns.
    """

    def deviation(whole: Touch, without: Touch, dims: Sequence[int], goal: Tensor | None) -> Tensor:
        assert goal is not None
        size = (goal - without.moments()[0][0]).abs()
        return torch.nn.functional.pad(size, (0, model.longest - len(dims)))

    deviations = _compare_absences(model, obs, action, target, deviation)
    touched = touch_probabilities(model, obs, action.unsqueeze(1), target).nan_to_num()
    return deviations * touched.unsqueeze(-1)


@torch.no_grad()
def hindsight_sizes(model: GraphDynamics, obs: Tensor, target: Tensor) -> Tensor:
    """What `look_back` expects `observed_effects` to be, the geometric mean of the members: [N, E, E, longest]."""
    size = max(1, CHUNK // (model.replicas * len(model.names) ** 2))
    parts = []
    for start in range(0, max(1, obs.shape[1]), size):
        part = slice(start, start + size)
        steps = model.steps_of(target[part]).expand(model.replicas, -1, -1, -1)
        found = model.look_back(obs[:, part], steps).mean(0).exp()
        parts.append((found - model.least_effect).clamp_min(FAINTEST * model.least_effect))
    return torch.cat(parts)


def touch_evidence(model: GraphDynamics, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
    """log p(s'_j | s, a) - log p(s'_j | s without i, a) of observed changes, as in `effect_sizes`: [N, E, E]."""

    def evidence(whole: Touch, without: Touch, dims: Sequence[int], goal: Tensor | None) -> Tensor:
        assert goal is not None
        return (whole.log_density(goal[None]) - without.log_density(goal[None]))[0]

    return _compare_absences(model, obs, action, target, evidence)


@torch.no_grad()
def _compare_absences(
    model: GraphDynamics,
    obs: Tensor,
    action: Tensor,
    target: Tensor | None,
    compare: Callable[[Touch, Touch, Sequence[int], Tensor | None], Tensor],
    sources: Sequence[int] | None = None,
    tried: int = 1,
) -> Tensor:
    """Compare the prediction of every entity with that without each source, or each of some: [N, S, E, ...].

    Each state is there `tried` times in a row.
    """
    size = max(1, CHUNK // (model.replicas * len(model.names) ** 2 * tried)) * tried
    left_out = range(len(model.names)) if sources is None else sources
    parts = []
    for start in range(0, max(1, obs.shape[1]), size):
        part = slice(start, start + size)
        states = obs[:, part]
        taken = action[part].expand(model.replicas, -1, -1)
        free = model.free_steps(states, taken, tried)
        whole, *without = (
            [pairs.combine().merge(model.replicas) for pairs in model.pair_touches(states, taken, absent, free, tried)]
            for absent in (None, *left_out)
        )
        goals = [None if target is None else target[part][:, dims] for dims in model.dims]
        rows = [list(map(compare, whole, others, model.dims, goals)) for others in without]
        parts.append(torch.stack([torch.stack(row, 1) for row in rows], 1))  # [n, S, E, ...]
    return torch.cat(parts)


@torch.no_grad()
def touch_probabilities(model: GraphDynamics, obs: Tensor, actions: Tensor, target: Tensor | None = None) -> Tensor:
    """Probability that an entity touches another one, averaged over actions and members.

    obs [R, N, D], actions [N, K, A] -> [N, E, E]. With the scaled changes that followed [N, d], it is the probability
    after having seen them, by Bayes' rule; also of a touch through other entities.
    """
    parts = []
    for part, by_action in _touches_by_action(model, obs, actions):
        found = by_action.mean(1)
        if target is not None:
            # p(not touched by i | s') = (1 - t_ij) p(s' | without i) / p(s')
            evidence = touch_evidence(model, obs[:, part], actions[part, 0], target[part])
            found = (1 - (1 - found) * (-evidence).exp()).clamp(0, 1)
        place = torch.arange(len(model.names), device=found.device)
        found[:, place, place] = math.nan
        parts.append(found)
    return torch.cat(parts)


@torch.no_grad()
def action_probabilities(model: GraphDynamics, obs: Tensor, actions: Tensor) -> Tensor:
    """Probability that some tried action matters for an entity: obs [R, N, D], actions [N, K, A] -> [N, E].

    It matters for what it drives, and for what is touched by something that it matters for:

        m_j(a) = 1 - product over i of (1 - t_ij(a) m_i(a)),   m_j = 1 if the action drives j

    A touch by anything else does not count, for it would have happened with any action.
    """
    count = len(model.names)
    drives = torch.tensor([name in model.driven for name in model.names], device=obs.device)
    parts = []
    for _, touched in _touches_by_action(model, obs, actions):
        matters = drives.to(touched).expand(*touched.shape[:2], count)
        for _ in range(count - 1):  # a chain of touches passes each entity once
            reached = 1 - (1 - touched * matters.unsqueeze(-1)).prod(2)
            matters = torch.where(drives, 1.0, reached)
        parts.append(matters.amax(1))
    return torch.cat(parts)


def _touches_by_action(model: GraphDynamics, obs: Tensor, actions: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Parts of the states, and the probability of a touch under each action: [n, K, source, target]."""
    count = actions.shape[1]
    size = max(1, CHUNK // (model.replicas * count * len(model.names)))
    for start in range(0, max(1, obs.shape[1]), size):
        part = slice(start, start + size)
        states = obs[:, part].repeat_interleave(count, 1)
        tried = actions[part].flatten(0, 1).expand(model.replicas, -1, -1)
        touches = model.pair_touches(states, tried, tried=count)
        by_target = [one.log_odds[..., :-1].sigmoid().mean(0).unflatten(0, (-1, count)) for one in touches]
        yield part, torch.stack(by_target, -1)


def decide_by_probability(probability: NDArray[Any], false_discovery_rate: float) -> NDArray[np.bool_]:
    """Choose as many values [N] as possible whose mean probability of being false stays within the rate."""
    if not 0 < false_discovery_rate < 1:
        raise ValueError(f"false_discovery_rate must be between 0 and 1; got {false_discovery_rate}.")
    order = np.argsort(-probability, kind="stable")
    wrong = np.cumsum(1 - probability[order]) / np.arange(1, len(probability) + 1)
    chosen = np.zeros(len(probability), dtype=np.bool_)
    chosen[order[: int(np.count_nonzero(wrong <= false_discovery_rate))]] = True  # the mean rises along the order
    return chosen


def _first_divergence(prediction: Any, dims: Sequence[int], form: KLForm) -> Tensor:
    """KL of the first of several alternatives to the mixture over all, for one entity: [1, n, M + 1, ...] -> [n]."""
    if not isinstance(prediction, Gaussians):
        first: Tensor = prediction.divergence(dims, form)[0, :, 0]
        return first
    mean, variance = (part[0][..., list(dims)] for part in prediction)
    return kl_to_mixture(mean[:, :1], variance[:, :1], mean, variance, form=form)[:, 0]


def _regroup(prediction: Any, count: int) -> Any:
    """Predictions of single actions [R, n count, 1, ...] as those of `count` alternatives in each state."""

    def group(part: Tensor) -> Tensor:
        grouped: Tensor = part.squeeze(2).unflatten(1, (-1, count))
        return grouped

    return Gaussians(*map(group, prediction)) if isinstance(prediction, tuple) else prediction.change(group)
