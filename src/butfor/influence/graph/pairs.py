"""A model of entities that touch each other: which pair touches, and what a touch does.

Each entity j moves by itself or is touched by another entity i, with a probability t_ij that depends on where the two
are and how each would move without the touch:

    p(s'_j | s, a) = (1 - t_j) N(free_j, narrow) + t_j N(free_j + push_j, wide)
    1 - t_j = product over i of (1 - t_ij)

`free_j` sees the columns of j alone, those of no entity, and the action if it drives j. `t_ij` and the push see the
relative position of i and j (now, after i has moved, and after both have), the steps that they would take, and their
other columns, such as velocities and fingers. A touch is mutual, t_ij = t_ji, unless the action drives one of the two.
The push is a free vector and a share of the way that j lacks to follow the step of i: what is held or pushed moves
along. Beyond a distance that the fit measures, t_ij is 0. The steps are first their own, then those with the touches of
third entities, so that a push passes through a row of entities. The pushes of several sources add up. The part of each
source is known: without i its factors (1 - t_ij) are 1, and its pushes are missing in the steps of others. The action
acts on an entity through the entities that it drives. `look_back` is a network beside the formula, for effects in steps
that were taken, see `edges.py`.
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

SELDOM = 1.0  # log odds against a touch of a near pair before training
RARELY = 5.0  # the same of surprises that no pair explains
NEVER = -30.0  # log odds of a touch that cannot be
STEP_SHARE = 0.3  # weight of the steps among the inputs: distances should matter more
OWN_SHARE = 0.3  # the same of velocities and other columns
FARTHEST = 5.0  # standard deviations of near pairs, to which distances are cut
SMALL = 0.58  # gain of the initial weights
SMALL_OUTPUT = 0.1

Lines = tuple[Tensor, Tensor, Tensor, Tensor]


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
    updates: int = 2000
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
    """What touches one entity: by source, on the last axis but one of pushes [..., S, d].

    The sources are all entities, of which itself and absent ones never touch, and the rest: surprises that no pair
    explains.
    """

    log_odds: Tensor  # [..., S]
    push: Tensor  # [..., S, d]
    variance: Tensor  # [..., S, d]
    free_mean: Tensor  # [..., d]
    free_variance: Tensor  # [..., d]

    def combine(self) -> Touch:
        """The mixture of the formula."""
        log_free = nn.functional.logsigmoid(-self.log_odds).sum(-1).clamp(max=-1e-7)
        log_odds = torch.log(-torch.expm1(log_free)) - log_free
        weight = self.log_odds.sigmoid()
        share = (weight / -torch.expm1(log_free).unsqueeze(-1))[..., None].clamp(max=1)  # t_ij / t_j
        push = (share * self.push).sum(-2)
        variance = (share * (self.variance + (1 - share) * self.push.square())).sum(-2)
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
    """p(s'_j | s, a) of every entity as in the module's formula, for R replicas.

    Tensors of all pairs are [R, B, source, target, ...]; entities with fewer columns than others are filled with zeros.
    """

    units: Tensor
    change_scale: Tensor
    center: Tensor
    spread: Tensor
    reach: Tensor
    mutual: Tensor

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
        self.longest = max(map(len, self.columns))
        owned = {column for columns in self.columns for column in columns}
        self.rest = [column for column in range(self.obs_size) if column not in owned]
        self.features = 3 * (2 * self.position + 1) + 1

        def network(inputs: int, outputs: int, width: int, layers: int) -> MLP:
            made = MLP([inputs, *[width] * layers, outputs], generators, activation=nn.functional.silu, gain=SMALL)
            made.layers[-1].weight.data *= SMALL_OUTPUT  # type: ignore
            return made

        self.free, self.free_variance, self.surprise = (nn.ModuleList() for _ in range(3))
        pair = self.features + 2 * self.longest + 2 * (self.longest - self.position) + 2 * len(names)
        # one for all pairs: touches are much alike. It returns pushes, variances, log odds, and how far targets follow.
        self.touch = network(pair, 2 * self.longest + 1 + self.position, config.width, config.layers)
        self.hindsight = network(pair, self.longest, config.width, config.layers)
        self.least_effect = math.sqrt(config.wide)  # effects below it are not told from none
        for name, columns in zip(names, self.columns, strict=True):
            count = len(columns)
            seen = count + len(self.rest)
            self.free.append(network(seen + units.law.size * (name in driven), count, config.motion_width, 2))
            self.free_variance.append(network(seen, count, config.width, 1))
            self.surprise.append(network(seen, 2 * count + 1, config.width, 1))
        self.register_buffer("center", torch.zeros(self.replicas, 1, self.features))
        self.register_buffer("spread", torch.ones(self.replicas, 1, self.features))
        self.register_buffer("reach", torch.full((self.replicas, 1, len(names), len(names)), 1e12))
        # What the action drives may be too heavy for a touch to show in its motion, as a robot's hand is.
        moved = torch.tensor([name not in self.driven for name in names])
        self.register_buffer("mutual", moved & moved[:, None], persistent=False)
        # buffers without replicas, which a weight file has in its header
        self.register_buffer("units", torch.tensor([units.obs_center, units.obs_spread]), persistent=False)
        self.register_buffer("change_scale", torch.tensor(units.scale, dtype=torch.float32), persistent=False)

    @property
    def widest(self) -> int:
        """Numbers per state and action that a prediction needs at once."""
        return len(self.names) ** 2 * self.config.width * 2

    def place(self, obs: Tensor, entity: int) -> Tensor:
        """The position of an entity in the data's units: [R, B, D] -> [R, B, p]."""
        center, spread = self.units
        columns = self.columns[entity][: self.position]
        place: Tensor = obs[..., columns] * spread[columns] + center[columns]
        return place

    def own(self, obs: Tensor, entity: int) -> Tensor:
        """The columns of an entity, and those of none."""
        return obs[..., self.columns[entity] + self.rest]

    def move_freely(self, obs: Tensor, action: Tensor, entity: int) -> Tensor:
        """The scaled change of an entity that nothing touches: [R, B, d]."""
        parts = [self.own(obs, entity)]
        if self.names[entity] in self.driven:
            parts.append(action)
        moved: Tensor = self.free[entity](torch.cat(parts, -1))
        return moved

    def free_steps(self, obs: Tensor, action: Tensor, tried: int = 1) -> list[Tensor]:
        """The scaled change of every entity that nothing touches; `tried` as in `pair_touches`."""
        steps = []
        for entity, name in enumerate(self.names):
            once = 1 if name in self.driven else tried
            steps.append(_repeat(self.move_freely(obs[:, ::once], action[:, ::once], entity), once))
        return steps

    def lines(self, obs: Tensor, source_steps: Tensor, target_steps: Tensor) -> Lines:
        """Where targets are relative to sources: now, after the source's step, after both, [R, B, E, E, p], and the
        closest distance on the straight lines of both steps, [R, B, E, E, 1].

        Steps are scaled, [R, B, E or 1, E or 1, longest].
        """
        count = self.position
        scale = torch.stack([self.change_scale[dims[:count]] for dims in self.dims])  # [E, p]
        places = torch.stack([self.place(obs, entity) for entity in range(len(self.names))], 2)
        now = places.unsqueeze(2) - places.unsqueeze(3)  # [R, B, source, target, p]
        moved = now - source_steps[..., :count] / scale[:, None]
        both = moved + target_steps[..., :count] / scale
        way = both - now
        passed = (-(now * way).sum(-1, keepdim=True) / way.square().sum(-1, keepdim=True).clamp_min(1e-12)).clamp(0, 1)
        return now, moved, both, (now + passed * way).norm(dim=-1, keepdim=True)

    def catch_up(self, source_steps: Tensor, target_steps: Tensor) -> Tensor:
        """The scaled change of targets' positions that would let them follow their sources: [R, B, E, E, p]."""
        count = self.position
        scale = torch.stack([self.change_scale[dims[:count]] for dims in self.dims])  # [E, p]
        return source_steps[..., :count] * scale / scale[:, None] - target_steps[..., :count]

    def judge(
        self, obs: Tensor, source_steps: Tensor, target_steps: Tensor, absent: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log odds of a touch [R, B, E, E], and the push and its raw variance [R, B, E, E, longest].

        The network is evaluated for pairs that are near each other.
        """
        lines = self.lines(obs, source_steps, target_steps)
        pairs = lines[-1].shape[1:-1]
        entities = len(self.names)
        possible = (lines[-1][..., 0] <= self.reach) & ~torch.eye(entities, dtype=torch.bool, device=obs.device)
        if absent is not None:
            possible[:, :, absent] = False
            possible[..., absent] = False
        place = torch.nonzero(possible.any(0), as_tuple=True)
        row, source, target = place
        found = self.touch(self.show_pairs(obs, lines, source_steps, target_steps, place))
        number = (row * entities + source) * entities + target
        whole = found.new_zeros(len(found), math.prod(pairs), found.shape[-1]).index_copy(1, number, found)
        sizes = [self.longest, self.longest, 1, self.position]
        push, raw, odds, follow = whole.unflatten(1, pairs).split(sizes, -1)
        following = follow * self.catch_up(source_steps, target_steps)
        push = push + nn.functional.pad(following, (0, self.longest - self.position))
        single = odds[..., 0]
        shared = torch.where(self.mutual, (single + single.transpose(2, 3)) / 2, single)
        return torch.where(possible, shared - SELDOM, NEVER), push, raw

    def show_pairs(
        self, obs: Tensor, lines: Lines, source_steps: Tensor, target_steps: Tensor, place: tuple[Tensor, ...]
    ) -> Tensor:
        """What networks see of the pairs at `place`, n rows, sources and targets: [R, n, inputs]."""
        row, source, target = place
        seen = describe_lines(*(part[:, row, source, target] for part in lines))
        shape = (len(seen), *lines[-1].shape[1:-1], self.longest)
        others = _fill([obs[..., columns[self.position :]] for columns in self.columns], self.longest - self.position)
        which = torch.eye(len(self.names), device=obs.device).expand(len(seen), -1, -1)
        parts = [
            ((seen - self.center) / self.spread).clamp(-FARTHEST, FARTHEST),
            STEP_SHARE * source_steps.expand(shape)[:, row, source, target].clamp(-5, 5),
            STEP_SHARE * target_steps.expand(shape)[:, row, source, target].clamp(-5, 5),
            OWN_SHARE * others[:, row, source].clamp(-5, 5),
            OWN_SHARE * others[:, row, target].clamp(-5, 5),
            which[:, source],
            which[:, target],
        ]
        return torch.cat(parts, -1)

    def steps_of(self, target: Tensor) -> Tensor:
        """The scaled changes [N, d] that followed, by entity: [1, N, E, longest]."""
        return _fill([target[None, :, dims] for dims in self.dims], self.longest)

    def look_back(self, obs: Tensor, steps: Tensor) -> Tensor:
        """The logarithm of the effects to be expected, plus `least_effect`, given the steps that all entities took.

        obs [R, B, D], scaled steps [R, B, E, longest] -> [R, B, E, E, longest], scaled, by column of the target.
        """
        count = len(self.names)
        source_steps, target_steps = steps.unsqueeze(3), steps.unsqueeze(2)
        lines = self.lines(obs, source_steps, target_steps)
        place = torch.ones(lines[-1].shape[1:-1], device=obs.device).nonzero(as_tuple=True)
        found = self.hindsight(self.show_pairs(obs, lines, source_steps, target_steps, place))
        effects: Tensor = found.unflatten(1, (-1, count, count)) + math.log(self.least_effect)
        return effects

    def pair_touches(
        self,
        obs: Tensor,
        action: Tensor,
        absent: int | None = None,
        free: Sequence[Tensor] | None = None,
        tried: int = 1,
    ) -> list[PairTouches]:
        """What touches each entity: obs [R, B, D], action [R, B, A].

        Args:
            obs: states in standard units.
            action: encoded actions.
            absent: an entity that touches nothing.
            free: the free steps, where they are known.
            tried: how often each state is there, one after the other, with different actions. What depends on the
                state alone is computed once.
        """
        free = self.free_steps(obs, action, tried) if free is None else free
        alone = _fill(free, self.longest)  # [R, B, E, longest]
        with torch.no_grad():
            log_odds, push, _ = self.judge(obs, alone.unsqueeze(3), alone.unsqueeze(2), absent)
            steps = alone.unsqueeze(3) + _pushed_by_others(log_odds, push)  # of one entity without the other
        log_odds, push, raw = self.judge(obs, steps, steps.transpose(2, 3), absent)
        variance = nn.functional.softplus(raw + math.log(math.e - 1)) + self.config.wide
        touches = []
        for target, columns in enumerate(self.columns):
            count = len(columns)
            own = self.own(obs[:, ::tried], target)
            surprise = _repeat(self.surprise[target](own), tried).unsqueeze(2)
            rest_push, rest_raw, rest_odds = surprise.split([count, count, 1], -1)
            rest_variance = nn.functional.softplus(rest_raw + math.log(math.e - 1)) + self.config.wide
            spread = self.config.narrow_range * torch.sigmoid(_repeat(self.free_variance[target](own), tried) - 3)
            touches.append(
                PairTouches(
                    torch.cat([log_odds[..., target], rest_odds[..., 0] - RARELY], -1),
                    torch.cat([push[:, :, :, target, :count], rest_push], 2),
                    torch.cat([variance[:, :, :, target, :count], rest_variance], 2),
                    free[target],
                    self.config.narrowest + spread,
                )
            )
        return touches

    def kind(self, target: int) -> type[Touch]:
        """The kind of mixture that an entity's prediction is."""
        return DrivenTouch if self.names[target] in self.driven else Touch

    @torch.no_grad()
    def predictor(self) -> Callable[[Tensor, Tensor], ContactPrediction]:
        """Return a function that predicts K actions in each state: obs [R, N, D], actions [R or 1, N or 1, K, A]."""

        @torch.no_grad()
        def predict(obs: Tensor, actions: Tensor) -> ContactPrediction:
            states, count = obs.shape[1], actions.shape[2]
            actions = actions.expand(self.replicas, states, -1, -1).flatten(1, 2)
            rows = obs.unsqueeze(2).expand(-1, -1, count, -1).flatten(1, 2)
            touches = {}
            for target, pairs in enumerate(self.pair_touches(rows, actions, tried=count)):
                parts = (part.unflatten(1, (states, count)) for part in pairs.combine().parts())
                touches[tuple(self.dims[target])] = self.kind(target)(*parts)
            return ContactPrediction(touches, self.target_size)

        return predict


def describe_lines(now: Tensor, moved: Tensor, both: Tensor, closest: Tensor) -> Tensor:
    """What the network of touches sees of the `lines` of pairs: [..., p] and [..., 1] -> [..., features]."""
    sizes = [torch.cat([at, at.abs(), at.norm(dim=-1, keepdim=True)], -1) for at in (now, moved, both)]
    return torch.cat([*sizes, closest], -1)


def _repeat(rows: Tensor, times: int) -> Tensor:
    """Rows [R, B, d], each several times in a row."""
    return rows if times == 1 else rows.repeat_interleave(times, 1)


def _fill(parts: Sequence[Tensor], longest: int) -> Tensor:
    """Tensors [R, B, d] of all entities as one [R, B, E, longest], filled with zeros."""
    return torch.stack([nn.functional.pad(part, (0, longest - part.shape[-1])) for part in parts], 2)


def _pushed_by_others(log_odds: Tensor, push: Tensor) -> Tensor:
    """The expected push on i by others than j: [R, B, k, i], [R, B, k, i, d] -> [R, B, i, j, d]."""
    expected = (log_odds.sigmoid().unsqueeze(-1) * push).transpose(2, 3)  # on i, by j
    return expected.sum(3, keepdim=True) - expected


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
