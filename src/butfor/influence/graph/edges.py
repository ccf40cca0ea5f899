"""Influence of a source on a target in a state, from a model's predictions.

The source is the action or an entity i, the target an entity j. The influence of an entity is

    CI(i -> j, s) = KL( p(s'_j | s, a) || mixture of p(s'_j | s, a) and of p(s'_j | s with another i, a) )

with equal weights, averaged over the actions a. The other i is

- absent: with the model of pairs, i touches nobody; with other models, its columns have their mean values (nulling).
  The mixture has two parts, so that the influence is between 0 and log 2.
- or drawn from a reference: i is as in M other states. The influence is between 0 and log(M + 1), and its mean over
  states of i from the reference is the mutual information I(s'_j; s_i | the rest of s, a), up to the M draws.

Both are 0 if the model ignores i. They agree where i seldom matters: then nearly every other state of i is as good as
none. They differ where i always matters, as a table does: nulling shows it, other places of i may not.
The influence of the action is CAI, as in `scoring.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.influence.contact import ContactPrediction, Touch
from butfor.influence.gaussian import KLForm, kl_to_mixture
from butfor.influence.graph.pairs import GraphDynamics
from butfor.influence.scoring import Gaussians

ACTION = "action"
Alternative = Literal["absent", "reference"]
CHUNK = 2**18  # rows that are predicted at once


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
        if source not in self.sources or target not in self.targets:
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
    source: int,
    columns: Sequence[int],
    dims: Sequence[Sequence[int]],
    reference: Tensor | None,
    form: KLForm,
) -> Tensor:
    """CI(i -> j, s) for every target, averaged over actions: obs [R, N, D], actions [N, K, A] -> [N, J].

    Args:
        model: any fitted model.
        obs: states in standard units.
        actions: K actions for each state.
        source: the place of the entity i among the entities.
        columns: its columns.
        dims: the place of each entity's columns in what the model predicts.
        reference: columns of i in M other states of each state, [N, M, d]; None for i absent.
        form: how the KL to a mixture of Gaussians is approximated.
    """
    others = 1 if reference is None else reference.shape[1]
    count = actions.shape[1]
    size = max(1, CHUNK // (model.replicas * (others + 1) * count))
    predict = None if isinstance(model, GraphDynamics) and reference is None else model.predictor()
    parts = []
    for start in range(0, obs.shape[1], size):
        part = slice(start, start + size)
        states = obs[:, part].repeat_interleave(count, 1)  # [R, n K, D]
        tried = actions[part].flatten(0, 1).expand(model.replicas, -1, -1)
        if predict is None:
            found: Any = _without(model, states, tried, source)
        else:
            given = None if reference is None else reference[part].repeat_interleave(count, 0)
            replaced = states.unsqueeze(2).repeat(1, 1, others + 1, 1)
            replaced[:, :, 1:, list(columns)] = 0.0 if given is None else given.to(replaced)  # 0: the mean
            repeated = tried.repeat_interleave(others + 1, 1).unsqueeze(2)  # [R, n K (M + 1), 1, A]
            found = _regroup(predict(replaced.flatten(1, 2), repeated), others + 1)
        merged = found.merge(model.replicas)
        scores = torch.stack([_first_divergence(merged, target, form) for target in dims], -1)  # [n K, J]
        parts.append(scores.unflatten(0, (-1, count)).mean(1))
    return torch.cat(parts).clamp_min(0)


def touch_probabilities(model: GraphDynamics, obs: Tensor, actions: Tensor) -> Tensor:
    """Probability that a source touches a target, averaged over actions and members.

    obs [R, N, D], actions [N, K, A] -> [N, 1 + E, E]. The first source is the action: the probability that some tried
    action brings about a touch, and 1 for an entity that the action drives.
    """
    entities = len(model.names)
    count = actions.shape[1]
    size = max(1, CHUNK // (model.replicas * count * entities))
    parts = []
    with torch.no_grad():
        for start in range(0, obs.shape[1], size):
            part = slice(start, start + size)
            states = obs[:, part].repeat_interleave(count, 1)
            tried = actions[part].flatten(0, 1).expand(model.replicas, -1, -1)
            free = model.free_steps(states, tried)
            found = obs.new_full((obs[:, part].shape[1], 1 + entities, entities), math.nan)
            for target in range(entities):
                touches = model.pair_touches(states, free, target)
                by_source = touches.log_odds.sigmoid().mean(0).unflatten(0, (-1, count))  # [n, K, S]
                others = [source for source in range(entities) if source != target]
                found[:, [1 + source for source in others], target] = by_source[..., :-1].mean(1)
                some = touches.combine().log_odds.sigmoid().mean(0).unflatten(0, (-1, count)).amax(1)
                found[:, 0, target] = 1.0 if model.names[target] in model.driven else some
            parts.append(found)
    return torch.cat(parts)


def decide_by_probability(probability: NDArray[Any], false_discovery_rate: float) -> NDArray[np.bool_]:
    """Choose as many values [N] as possible whose mean probability of being false stays within the rate."""
    if not 0 < false_discovery_rate < 1:
        raise ValueError(f"false_discovery_rate must be between 0 and 1; got {false_discovery_rate}.")
    order = np.argsort(-probability, kind="stable")
    wrong = np.cumsum(1 - probability[order]) / np.arange(1, len(probability) + 1)
    chosen = np.zeros(len(probability), dtype=np.bool_)
    chosen[order[: int(np.count_nonzero(wrong <= false_discovery_rate))]] = True  # the mean rises along the order
    return chosen


def _without(model: GraphDynamics, states: Tensor, actions: Tensor, source: int) -> ContactPrediction:
    """The predictions with all entities and without one: [R, n, 2, ...]."""
    free = model.free_steps(states, actions)
    touches = {}
    for target, dims in enumerate(model.dims):
        pairs = model.pair_touches(states, free, target)
        absent = None if source == target else model.place_of_source(source, target)
        both = [pairs.combine(one).parts() for one in (None, absent)]
        touches[tuple(dims)] = Touch(*(torch.stack(parts, 2) for parts in zip(*both, strict=True)))
    return ContactPrediction(touches, model.target_size)


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

    if isinstance(prediction, tuple):
        return Gaussians(*(group(part) for part in prediction))
    touches = {dims: type(touch)(*map(group, touch.parts())) for dims, touch in prediction.touches.items()}
    return ContactPrediction(touches, prediction.target_size)
