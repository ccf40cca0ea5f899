"""A model of entities that touch each other: which pair touches, and what a touch does.

Each entity j moves by itself or is touched by another entity i, with a probability t_ij that depends on where the two
are and how each would move by itself:

    p(s'_j | s, a) = (1 - t_j) N(free_j, narrow) + t_j N(free_j + push_j, wide)
    1 - t_j = product over i of (1 - t_ij)

`free_j` sees the columns of j alone, those of no entity, and the action if it drives j. `t_ij` and the push see only
the relative position of i and j: now, after i has moved by itself, and after both have. So the part of each source is
known: without i the factor (1 - t_ij) is 1. The action acts on an entity through the entities that it drives.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from butfor.influence.contact import ContactPrediction, Touch
from butfor.influence.gaussian import kl_between
from butfor.models.networks import MLP, Generators
from butfor.models.tables import Units
from butfor.runs.config import check_least, check_positive

SELDOM = 4.0  # log odds against a touch before training: there are several pairs
SMALL = 0.58  # gain of the initial weights
SMALL_OUTPUT = 0.1


@dataclass(frozen=True)
class GraphConfig:
    """The model of pairs and how it is fitted. Variances are in units of the variance of the entity's change."""

    position_size: int = 0
    """how many of the first columns of each entity are its position; 0: all if the smallest has up to three, else half
    of them, at most three"""
    width: int = 64
    """units of each hidden layer of the networks of touches"""
    layers: int = 2
    """hidden layers of them"""
    motion_width: int = 64
    """units of the two hidden layers of the networks of free motion"""
    narrowest: float = 1e-4
    """smallest variance of free motion"""
    narrow_range: float = 1e-2
    """by how much the variance of free motion may exceed the smallest one"""
    wide: float = 0.02
    """smallest variance of a touched entity's change"""
    updates: int = 3000
    """updates of the networks of touches"""
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    motion_updates: int = 2000
    """updates of the networks of free motion"""
    motion_learning_rate: float = 3e-3
    batch_size: int = 256

    def __post_init__(self) -> None:
        check_least(self, 0, "position_size")
        check_least(self, 1, "width", "layers", "motion_width", "updates", "motion_updates", "batch_size")
        check_positive(self, "narrowest", "narrow_range", "wide", "learning_rate", "motion_learning_rate")


@dataclass(frozen=True)
class PairTouches:
    """What touches one entity: per source, on the last axis but one of pushes [..., S, d]; the last source is none.

    That last source is the rest: surprises that no pair explains.
    """

    log_odds: Tensor  # [..., S]
    push: Tensor  # [..., S, d]
    variance: Tensor  # [..., S, d]
    free_mean: Tensor  # [..., d]
    free_variance: Tensor  # [..., d]

    def combine(self, absent: int | None = None) -> Touch:
        """The mixture of the formula, without one of the sources if it is absent."""
        spared = nn.functional.logsigmoid(-self.log_odds)  # log(1 - t_ij)
        weight = self.log_odds.sigmoid()
        if absent is not None:
            present = torch.ones(spared.shape[-1], device=spared.device)
            present[absent] = 0
            spared, weight = spared * present, weight * present
        log_free = spared.sum(-1).clamp(max=-1e-7)
        log_odds = torch.log(-torch.expm1(log_free)) - log_free
        share = (weight / weight.sum(-1, keepdim=True).clamp_min(1e-12))[..., None]
        push = (share * self.push).sum(-2)
        variance = (share * (self.variance + (self.push - push.unsqueeze(-2)).square())).sum(-2)
        return Touch(log_odds, self.free_mean + push, variance, self.free_mean, self.free_variance)


class DrivenTouch(Touch):
    """The mixture of an entity that the action drives: its free motion differs between actions, too."""

    def merge(self, members: int) -> "DrivenTouch":
        """One mixture for each group of members."""
        return DrivenTouch(*super().merge(members).parts())

    def divergence(self, mixture: Touch | None = None) -> Tensor:
        """KL of each action's outcome, the touch included, to the mixture over all, or over M others: [..., K]."""
        others = mixture or self
        spared, weights = ((-part.log_odds).sigmoid().clamp(1e-7, 1 - 1e-7) for part in (self, others))
        log_share = (weights / weights.sum(-1, keepdim=True)).log().unsqueeze(-2)  # [..., 1, M]
        between = kl_between(self.free_mean, self.free_variance, others.free_mean, others.free_variance)
        free = -torch.logsumexp(log_share - between, -1)
        return super().divergence(mixture) + (spared * free).clamp_min(0)


class GraphDynamics(nn.Module):
    """p(s'_j | s, a) of every entity as in the module's formula, for R replicas."""

    units: Tensor
    change_scale: Tensor
    center: Tensor
    spread: Tensor

    def __init__(self, units: Units, driven: Sequence[str], config: GraphConfig, generators: Generators) -> None:
        super().__init__()
        names = list(units.entities)
        self.obs_size = len(units.obs_center)
        self.target_size = len(units.scale)
        self.replicas = len(generators)
        self.config = config
        self.names = names
        self.driven = list(driven)
        self.dims = units.dims
        self.columns = [list(columns) for columns in units.entities.values()]
        self.position = config.position_size or _position_size(self.columns)
        owned = {column for columns in self.columns for column in columns}
        self.rest = [column for column in range(self.obs_size) if column not in owned]
        features = 3 * (2 * self.position + 1) + 1
        self.features = features

        def network(inputs: int, outputs: int, width: int, layers: int) -> MLP:
            made = MLP([inputs, *[width] * layers, outputs], generators, activation=nn.functional.silu, gain=SMALL)
            made.layers[-1].weight.data *= SMALL_OUTPUT  # type: ignore
            return made

        self.free, self.free_variance, self.push, self.surprise = (nn.ModuleList() for _ in range(4))
        pair = features + 2 * self.position + 2 * len(names)
        self.touch = network(pair, 1, config.width, config.layers)  # one for all pairs: touches are much alike
        for name, columns in zip(names, self.columns, strict=True):
            count = len(columns)
            seen = count + len(self.rest)
            self.free.append(network(seen + units.law.size * (name in driven), count, config.motion_width, 2))
            self.free_variance.append(network(seen, count, config.width, 1))
            self.push.append(network(pair, 2 * count, config.width, config.layers))
            self.surprise.append(network(seen, 2 * count + 1, config.width, 1))
        self.register_buffer("center", torch.zeros(self.replicas, 1, features))
        self.register_buffer("spread", torch.ones(self.replicas, 1, features))
        # buffers without replicas, which a weight file has in its header
        self.register_buffer("units", torch.tensor([units.obs_center, units.obs_spread]), persistent=False)
        self.register_buffer("change_scale", torch.tensor(units.scale, dtype=torch.float32), persistent=False)

    @property
    def widest(self) -> int:
        """Numbers per state and action that a prediction needs at once."""
        return (len(self.names) + 1) * self.config.width * 2

    def place(self, obs: Tensor, entity: int) -> Tensor:
        """The position of an entity in the data's units: [R, B, D] -> [R, B, p]."""
        center, spread = self.units
        columns = self.columns[entity][: self.position]
        place: Tensor = obs[..., columns] * spread[columns] + center[columns]
        return place

    def move_freely(self, obs: Tensor, action: Tensor, entity: int) -> Tensor:
        """The scaled change of an entity that nothing touches: [R, B, d]."""
        parts = [self.own(obs, entity)]
        if self.names[entity] in self.driven:
            parts.append(action)
        moved: Tensor = self.free[entity](torch.cat(parts, -1))
        return moved

    def free_steps(self, obs: Tensor, action: Tensor) -> list[Tensor]:
        """The scaled change of every entity that nothing touches."""
        return [self.move_freely(obs, action, entity) for entity in range(len(self.names))]

    def describe_pair(self, obs: Tensor, free: Sequence[Tensor], source: int, target: int) -> Tensor:
        """Where the target is relative to the source: now, after the source's own step, after both, at their closest.

        The result is [R, B, F + 2 p].
        """
        count = self.position
        scales = [self.change_scale[self.dims[entity]][:count] for entity in (source, target)]
        source_step, target_step = free[source][..., :count] / scales[0], free[target][..., :count] / scales[1]
        now = self.place(obs, target) - self.place(obs, source)
        places = (now, now - source_step, now - source_step + target_step)
        sizes = [torch.cat([place, place.abs(), place.norm(dim=-1, keepdim=True)], -1) for place in places]
        way = places[2] - now
        passed = (-(now * way).sum(-1, keepdim=True) / way.square().sum(-1, keepdim=True).clamp_min(1e-12)).clamp(0, 1)
        closest = (now + passed * way).norm(dim=-1, keepdim=True)  # on the straight line of both own steps
        shown = torch.cat([*sizes, closest], -1)
        steps = torch.cat([free[source][..., :count], free[target][..., :count]], -1)
        return torch.cat([(shown - self.center) / self.spread, 0.3 * steps.clamp(-5, 5)], -1)

    def describe(self, obs: Tensor, free: Sequence[Tensor], target: int) -> Tensor:
        """What the network of touches sees of each source of a target: [R, B, E - 1, F + 2 p + 2 E]."""
        shown = []
        for source in range(len(self.names)):
            if source != target:
                seen = self.describe_pair(obs, free, source, target)
                which = nn.functional.one_hot(torch.tensor([source, target]), len(self.names)).flatten().to(seen)
                shown.append(torch.cat([seen, which.expand(*seen.shape[:-1], -1)], -1))
        return torch.stack(shown, -2)

    def judge(self, shown: Tensor, own: Tensor, free: Tensor, target: int) -> PairTouches:
        """What touches the target, from `describe`, its own and the rest's columns, and its free change."""
        count = len(self.columns[target])
        sources = shown.shape[2]
        each = shown.flatten(1, 2)
        pairs = torch.cat([self.push[target](each), self.touch(each)], -1).unflatten(1, (-1, sources))
        push, raw, odds = torch.cat([pairs, self.surprise[target](own).unsqueeze(2)], 2).split([count, count, 1], -1)
        variance = nn.functional.softplus(raw + math.log(math.e - 1)) + self.config.wide
        narrow = self.config.narrowest + self.config.narrow_range * torch.sigmoid(self.free_variance[target](own) - 3)
        return PairTouches(odds[..., 0] - SELDOM, push, variance, free, narrow)

    def own(self, obs: Tensor, target: int) -> Tensor:
        """The columns of an entity, and those of none."""
        return obs[..., self.columns[target] + self.rest]

    def pair_touches(self, obs: Tensor, free: Sequence[Tensor], target: int) -> PairTouches:
        """What touches the target, given the free steps of all: obs [R, B, D]."""
        return self.judge(self.describe(obs, free, target), self.own(obs, target), free[target], target)

    def kind(self, target: int) -> type[Touch]:
        """The kind of mixture that an entity's prediction is."""
        return DrivenTouch if self.names[target] in self.driven else Touch

    def place_of_source(self, source: int, target: int) -> int:
        """The place of a source among those of a target's `PairTouches`."""
        return source - (source > target)

    @torch.no_grad()
    def predictor(self) -> Callable[[Tensor, Tensor], ContactPrediction]:
        """Return a function that predicts K actions in each state: obs [R, N, D], actions [R or 1, N or 1, K, A]."""

        @torch.no_grad()
        def predict(obs: Tensor, actions: Tensor) -> ContactPrediction:
            states, count = obs.shape[1], actions.shape[2]
            actions = actions.expand(self.replicas, states, -1, -1).flatten(1, 2)
            rows = obs.unsqueeze(2).expand(-1, -1, count, -1).flatten(1, 2)
            free = self.free_steps(rows, actions)
            touches = {}
            for target, dims in enumerate(self.dims):
                found = self.pair_touches(rows, free, target).combine()
                parts = (part.unflatten(1, (states, count)) for part in found.parts())
                touches[tuple(dims)] = self.kind(target)(*parts)
            return ContactPrediction(touches, self.target_size)

        return predict


def check_graph_entities(entities: Mapping[str, Sequence[int]], config: GraphConfig) -> None:
    """Refuse entities that the model of pairs cannot have."""
    if len(entities) < 2:
        raise ValueError(f"Influence between entities needs at least two of them; got {', '.join(entities)}.")
    columns = [column for entity in entities.values() for column in entity]
    shared = sorted({column for column in columns if columns.count(column) > 1})
    if shared:
        raise ValueError(f"The columns {shared} belong to several entities; each column must belong to one at most.")
    smallest = min(map(len, entities.values()))
    if config.position_size > smallest:
        raise ValueError(f"position_size is {config.position_size}, but the smallest entity has {smallest} columns.")


def _position_size(columns: Sequence[Sequence[int]]) -> int:
    smallest = min(map(len, columns))
    return smallest if smallest <= 3 else min(3, smallest // 2)
