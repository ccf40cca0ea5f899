"""The default model of `Influence.fit` where an entity is moved by something that comes near: a hand, a foot, a tool.

An entity either moves by itself or is touched, with a probability t that depends on the action:

    p(s'_j | s, a) = (1 - t(s, a)) N(free(s), narrow) + t(s, a) N(free(s) + push(s, a), wide)

`free` does not see the action. It sees columns with most values close together also on a finer scale. `t` and `push`
see only where the entity is relative to its partners (`partners.py`): now, after the predicted step of the partner, and
after both have moved. In a plane they also see it along and across each direction in the observation, such as that of a
stick. The action acts through that step alone, so far from its partners an entity is hardly influenced,
whatever else varies. Beyond the reach of the recorded touches it is not influenced at all: the step there is that of no
action. What surprises there still has a probability, which is the same for every action.

CAI is computed with the touch as part of the outcome. It is then a sum that needs no sampling: how much the action
changes the probability of a touch, and how much it changes the push. Both are zero where the action changes nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from butfor.influence.gaussian import kl_between, log_normal
from butfor.influence.partners import Pair, Partners, find_directions, partner_columns
from butfor.models.fitting import Fittable, Reporter, train_on_batches
from butfor.models.networks import MLP, Generators, make_generators, single_thread
from butfor.models.tables import SMALLEST_DEVIATION, Table, Transitions, Units, add_finer, uneven_columns
from butfor.runs.config import check_least, check_positive

STEP_SHARE = 0.3  # weight of the partner's predicted step among the inputs: the distance should matter more
SMALL = 0.58  # gain of the initial weights: networks that start smooth stay smoother
SMALL_OUTPUT = 0.1
FULLY = 2.0  # times the reach within which the action counts in full: a step can come nearer
TURNED_SHARE = 0.5  # weight of positions along and across directions: fits of few transitions vary less with it
TURNED = 5  # numbers that describe a relative position along and across a direction
SELDOM = 2.0  # log odds against a touch before training
MANY = 15_000  # transitions from which on the weights decay as configured
MOST_DECAY = 1.0  # with few transitions, unless more is configured
FOLLOWED = 200  # batches that the units of a model that learns along are about


@dataclass(frozen=True)
class ContactConfig:
    """The model of touches and how it is fitted. Variances are in units of the variance of the entity's change."""

    width: int = 32
    """units of each hidden layer of the network of touches"""
    layers: int = 3
    """hidden layers of it"""
    motion_width: int = 64
    """units of the two hidden layers of the networks of free motion and of the partners' steps"""
    narrowest: float = 1e-4
    """smallest variance of free motion"""
    narrow_range: float = 1e-2
    """by how much the variance of free motion may exceed the smallest one"""
    wide: float = 0.1
    """smallest variance of a touched entity's change; larger than that of free motion, so that the two never swap"""
    updates: int = 4000
    """updates of the network of touches"""
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    """of the network of touches with 15,000 transitions or more; with fewer it is larger, see `decay`"""
    motion_updates: int = 6000
    """updates of the networks of free motion and of the partners' steps"""
    motion_learning_rate: float = 3e-3
    batch_size: int = 500
    running: bool = False
    """units of the inputs follow the batches of a model that learns along, instead of being measured once"""

    def __post_init__(self) -> None:
        check_least(self, 1, "width", "layers", "motion_width", "updates", "motion_updates", "batch_size")
        check_positive(self, "narrowest", "narrow_range", "wide", "learning_rate", "motion_learning_rate")

    def decay(self, transitions: int) -> float:
        """The weight decay of a fit: the fewer transitions there are, the smoother the network has to be."""
        return max(self.weight_decay, min(MOST_DECAY, self.weight_decay * MANY / transitions))


ALONG = ContactConfig(running=True, weight_decay=0.5)
"""The model of touches that learns along with an agent."""


class EntityContact(nn.Module):
    """The model of one entity for R replicas; see the module's formula."""

    obs_center: Tensor
    obs_spread: Tensor
    center: Tensor
    spread: Tensor
    step_scale: Tensor
    batches: Tensor
    medians: Tensor

    def __init__(
        self, sizes: tuple[int, int], columns: Sequence[int], pairs: Sequence[Pair], config: ContactConfig,
        generators: Generators, uneven: Sequence[int] = (), directions: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        obs_size, action_size = sizes
        self.uneven = list(uneven)  # columns of the observation that free motion also sees on a finer scale
        self.columns = list(columns)  # of the observation
        self.pairs = list(pairs)
        self.partner_columns = [column for pair in self.pairs for column in pair.partner]
        self.config = config
        count = len(self.columns)
        steps = len(self.partner_columns)
        planar = [place for place, pair in enumerate(self.pairs) if len(pair.entity) == 2]
        between = [(one, other) for one, other in combinations(planar, 2) if pairs[one].entity == pairs[other].entity]
        self.planar = planar  # pairs of positions in a plane
        self.between = between  # two pairs of one position of the entity: partners that are relative to each other, too
        self.directions = [list(columns) for columns in directions]
        straight = sum(3 * (2 * len(pair.entity) + 1) for pair in self.pairs)
        turned = TURNED * len(self.directions) * (len(planar) + len(between))
        self.geometry_sizes = [straight, turned]
        geometry = straight + turned

        def network(inputs: int, outputs: int, width: int, layers: int) -> MLP:
            sizes = [inputs, *[width] * layers, outputs]
            made = MLP(sizes, generators, activation=nn.functional.silu, gain=SMALL)
            made.layers[-1].weight.data *= SMALL_OUTPUT  # type: ignore
            return made

        self.free = network(obs_size + len(self.uneven), count, config.motion_width, 2)
        self.free_variance = network(obs_size, count, config.width, 2)
        self.partner_step = network(obs_size + action_size, steps, config.motion_width, 2)
        self.touch = network(geometry + steps, 2 * count + 1, config.width, config.layers)
        replicas = len(generators)
        self.register_buffer("center", torch.zeros(replicas, 1, geometry))
        self.register_buffer("spread", torch.ones(replicas, 1, geometry))
        self.register_buffer("step_scale", torch.ones(replicas, 1, steps))
        self.register_buffer("medians", torch.zeros(replicas, 1, len(self.uneven)), persistent=bool(self.uneven))
        if config.running:
            self.register_buffer("obs_center", torch.zeros(replicas, 1, obs_size))
            self.register_buffer("obs_spread", torch.ones(replicas, 1, obs_size))
            self.register_buffer("batches", torch.zeros(replicas, 1, 1))

    def positions(self, obs: Tensor, units: Tensor) -> list[Tensor]:
        """Where the entity is relative to each partner, in the data's units: [R, B, D] -> [R, B, k] each.

        `units` [R, 2, D] are center and spread of the observation.
        """
        center, spread = units.split(1, 1)  # [R, 1, D]
        found = []
        for pair in self.pairs:
            own, other = (
                choose_columns(obs, columns) * choose_columns(spread, columns)
                for columns in (pair.entity, pair.partner)
            )
            offset = choose_columns(center, pair.entity) - choose_columns(center, pair.partner)
            found.append(own - other + offset)
        return found

    def reached(self, places: Sequence[Tensor]) -> Tensor:
        """How much of the action's part in each partner's step counts: [R, B, k] each -> [R, B, steps], 0 to 1.

        All of it within FULLY times the pair's reach, none beyond FULLY + 1 times.
        """
        shares = []
        for pair, place in zip(self.pairs, places, strict=True):
            reaches = place.norm(dim=-1, keepdim=True) / (pair.reach or math.inf)
            shares.append((FULLY + 1 - reaches).clamp(0, 1).expand_as(place))
        return torch.cat(shares, -1)

    @torch.no_grad()
    def follow(self, obs: Tensor, steps: Tensor, units: Tensor) -> None:
        """Let the units of the inputs follow a batch: [R, B, D] and the partners' changes [R, B, steps].

        All batches count alike at first, later the latest `FOLLOWED`.
        """
        self.batches.add_(1)
        share = (1 / self.batches).clamp_min(1 / FOLLOWED)
        geometry = self.describe(obs, units)
        for batch, center, spread in ((obs, self.obs_center, self.obs_spread), (geometry, self.center, self.spread)):
            center.lerp_(batch.mean(1, keepdim=True), share)
            spread.lerp_(_deviation(batch), share)
        self.step_scale.lerp_(_deviation(steps), share)

    def describe(self, obs: Tensor, units: Tensor) -> Tensor:
        """The geometry of states, without steps, which are short beside it: [R, B, D] -> [R, B, G]."""
        places = self.positions(obs, units)
        straight = [_describe(place) for place in places for _ in range(3)]
        return torch.cat(straight + self.turn(obs, places, units), -1)

    def turn(self, obs: Tensor, places: Sequence[Tensor], units: Tensor) -> list[Tensor]:
        """Relative positions in a plane along and across each direction: [R, B, k] each -> [R, B, TURNED] each.

        Those of the entity to its partners, and those of the partners to each other.
        """
        seen = [places[one] for one in self.planar] + [places[other] - places[one] for one, other in self.between]
        center, spread = units.split(1, 1)  # [R, 1, D]
        turned = []
        for columns in self.directions:
            direction = choose_columns(obs, columns) * choose_columns(spread, columns) + choose_columns(center, columns)
            x, y = direction.unbind(-1)
            for place in seen:
                right, up = place.unbind(-1)
                turned.append(_describe(torch.stack([x * right + y * up, x * up - y * right], -1)))
        return turned

    def seen(self, obs: Tensor) -> Tensor:
        """The observation as the networks see it: [R, B, D]."""
        return (obs - self.obs_center) / self.obs_spread if self.config.running else obs

    def move_freely(self, obs: Tensor) -> Tensor:
        """The change of an entity that nothing touches: [R, B, D] -> [R, B, d]."""
        found: Tensor = self.free(add_finer(self.seen(obs), self.uneven, self.medians))
        return found

    def inputs(self, obs: Tensor, action: Tensor, free: Tensor, units: Tensor, change_scale: Tensor) -> Tensor:
        """What the network of touches sees: [R, B, D], [R, B, A] and the free change [R, B, d] -> [R, B, G + steps]."""
        places = self.positions(obs, units)
        scaled_step = self.partner_step(torch.cat([self.seen(obs), action], -1))
        if any(pair.reach is not None for pair in self.pairs):
            usual = self.partner_step(torch.cat([self.seen(obs), torch.zeros_like(action)], -1))
            scaled_step = torch.lerp(usual, scaled_step, self.reached(places))
        steps = (scaled_step * self.step_scale).split([len(pair.partner) for pair in self.pairs], -1)
        free_change = free / change_scale
        features = []
        for pair, now, step in zip(self.pairs, places, steps, strict=True):
            own = choose_columns(free_change, [self.columns.index(column) for column in pair.entity])
            for place in (now, now - step, now - step + own):
                features.append(_describe(place))
        features += self.turn(obs, places, units)
        geometry = (torch.cat(features, -1) - self.center) / self.spread
        straight, turned = geometry.split(self.geometry_sizes, -1)
        return torch.cat([straight, TURNED_SHARE * turned, STEP_SHARE * scaled_step], -1)

    def predict(self, obs: Tensor, action: Tensor, free: Tensor, units: Tensor, change_scale: Tensor) -> "Touch":
        """The prediction for one action per row, given the free change, which has no gradient here."""
        with torch.no_grad():
            seen = self.inputs(obs, action, free, units, change_scale)
        count = len(self.columns)
        push, raw, odds = self.touch(seen).split([count, count, 1], -1)
        variance = nn.functional.softplus(raw + math.log(math.e - 1)) + self.config.wide  # 1 + wide before training
        narrow = self.config.narrowest + self.config.narrow_range * torch.sigmoid(
            self.free_variance(self.seen(obs)) - 3
        )
        return Touch(odds[..., 0] - SELDOM, free + push, variance, free, narrow)

    def loss(
        self, obs: Tensor, action: Tensor, target: Tensor, steps: Tensor, units: Tensor, change_scale: Tensor
    ) -> Tensor:
        """The loss of a batch, with the partners' changes in the data's units; see `ContactDynamics.loss`: [R]."""
        seen = self.seen(obs)
        free = self.move_freely(obs)
        step = self.partner_step(torch.cat([seen, action], -1))
        found = self.predict(obs, action, free.detach(), units, change_scale)
        loss: Tensor = (free - target).abs().mean((1, 2))  # most rows are not touched, and the median is theirs
        loss = loss + (step - steps / self.step_scale).abs().mean((1, 2))
        return loss - found.log_density(target).mean(1)


@dataclass(frozen=True)
class Touch:
    """The predicted mixture of one entity: log odds of a touch [...], and mean, variance [..., d] with and without."""

    log_odds: Tensor
    mean: Tensor
    variance: Tensor
    free_mean: Tensor
    free_variance: Tensor

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """All of it, in order."""
        return self.log_odds, self.mean, self.variance, self.free_mean, self.free_variance

    def log_density(self, target: Tensor) -> Tensor:
        """log p(target): [..., d] -> [...]."""
        touched = nn.functional.logsigmoid(self.log_odds) + log_normal(target, self.mean, self.variance)
        free = nn.functional.logsigmoid(-self.log_odds) + log_normal(target, self.free_mean, self.free_variance)
        return torch.logaddexp(touched, free)

    def merge(self, members: int) -> "Touch":
        """One mixture for each group of members, [R, ...] -> [R / members, ...], with their mean probability."""
        if members == 1:
            return self
        log_odds = self.log_odds.unflatten(0, (-1, members))
        probability = log_odds.sigmoid()
        share = nn.functional.logsigmoid(log_odds).softmax(1)[..., None]  # also where every probability rounds to 0
        mean, variance = _merge(share, *(part.unflatten(0, (-1, members)) for part in (self.mean, self.variance)))
        equal = torch.full((), 1 / members, device=mean.device)
        free = [part.unflatten(0, (-1, members)) for part in (self.free_mean, self.free_variance)]
        return Touch(torch.logit(probability.mean(1), 1e-7), mean, variance, *_merge(equal, *free))

    def divergence(self, mixture: "Touch | None" = None) -> Tensor:
        """KL of each action's outcome, the touch included, to the mixture over all, or over M others: [..., K]."""
        mixture = mixture or self
        touched, others = (part.log_odds.sigmoid().clamp(1e-7, 1 - 1e-7) for part in (self, mixture))
        mean_touched = others.mean(-1, keepdim=True)
        whether = touched * (touched / mean_touched).log()
        whether = whether + (1 - touched) * ((1 - touched) / (1 - mean_touched)).log()
        log_share = (others / others.sum(-1, keepdim=True)).log().unsqueeze(-2)  # [..., 1, M]
        between = kl_between(self.mean, self.variance, mixture.mean, mixture.variance)  # [..., K, M]
        push = -torch.logsumexp(log_share - between, -1)
        return (whether + touched * push).clamp_min(0)

    def presence(self) -> Tensor:
        """KL to the equal mixture of this outcome and the one without what touches: [...], at most log 2.

        Without it a touch has probability 0, so only the probability of a touch matters.
        """
        touched = self.log_odds.sigmoid().clamp(1e-7, 1 - 1e-7)
        return touched * math.log(2) + (1 - touched) * ((1 - touched) / (1 - touched / 2)).log()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the mixture: [..., d] each."""
        touched = self.log_odds.sigmoid()[..., None]
        mean = torch.lerp(self.free_mean, self.mean, touched)
        variance = touched * (self.variance + (self.mean - mean).square())
        return mean, variance + (1 - touched) * (self.free_variance + (self.free_mean - mean).square())

    def sample(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Draw an outcome of each state under its chosen action: chosen [n, K] -> [R, n, d]."""
        device = generator.device
        log_odds, *parts = (part[:, chosen] for part in vars(self).values())
        touched = torch.rand(log_odds.shape, generator=generator, device=device) < log_odds.sigmoid()
        mean, variance, free_mean, free_variance = parts
        noise = torch.randn(mean.shape, generator=generator, device=device)
        touched = touched[..., None]
        deviation = torch.where(touched, variance, free_variance).sqrt()
        return torch.where(touched, mean, free_mean) + deviation * noise


@dataclass(frozen=True)
class ContactPrediction:
    """The predictions for K actions in each state, of each entity; see `scoring.Prediction`."""

    touches: Mapping[tuple[int, ...], Touch]
    """by the entity's place in the target; [R, n, K, ...] each"""
    target_size: int

    def change(self, function: Callable[[Tensor], Tensor]) -> "ContactPrediction":
        """The same function of all tensors, which changes the axes of states and actions."""
        changed = {dims: type(touch)(*map(function, touch.parts())) for dims, touch in self.touches.items()}
        return ContactPrediction(changed, self.target_size)

    def merge(self, members: int) -> "ContactPrediction":
        """One prediction for each group of `members` replicas."""
        merged = {dims: touch.merge(members) for dims, touch in self.touches.items()}
        return ContactPrediction(merged, self.target_size)

    def divergence(self, dims: Sequence[int], form: str, separate: bool = False) -> Tensor:
        """KL of each action to the mixture over all, for one entity; if `separate`, the second half is the mixture.

        `form` has no effect: there is only one.
        """
        touch = self.touches[tuple(dims)]
        if not separate:
            return touch.divergence()
        given, mixture = zip(*(part.chunk(2, 2) for part in touch.parts()), strict=True)
        return type(touch)(*given).divergence(type(touch)(*mixture))

    def log_density(self, target: Tensor, dims: Sequence[int]) -> Tensor:
        """log p(target) of one entity under each action: target [n, 1, d] -> [R, n, K]."""
        return self.touches[tuple(dims)].log_density(target[..., list(dims)])

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of every predicted column: [R, n, K, d] each."""
        example = next(iter(self.touches.values()))
        shape = (*example.log_odds.shape, self.target_size)
        mean, variance = example.mean.new_zeros(shape), example.mean.new_ones(shape)
        for dims, touch in self.touches.items():
            mean[..., list(dims)], variance[..., list(dims)] = touch.moments()
        return mean, variance

    def sample(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Draw an outcome of each state under its chosen action: chosen [n, K] -> [R, n, d]."""
        drawn = {dims: touch.sample(chosen, generator) for dims, touch in self.touches.items()}
        outcome = next(iter(drawn.values())).new_zeros(*next(iter(drawn.values())).shape[:2], self.target_size)
        for dims, part in drawn.items():
            outcome[..., list(dims)] = part
        return outcome


class ContactDynamics(Fittable):
    """p(s'_j | s, a) of every entity as in the module's formula, for R replicas."""

    units: Tensor
    change_scale: Tensor

    def __init__(
        self, units: Units, pairs: Partners, config: ContactConfig, generators: Generators,
        uneven: Sequence[int] = (), directions: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self.obs_size = len(units.obs_center)
        self.target_size = len(units.scale)
        self.replicas = len(generators)
        self.config = config
        self.dims = units.dims
        self.pairs = {name: list(found) for name, found in pairs.items()}
        self.uneven = list(uneven)
        self.directions = [list(columns) for columns in directions]
        sizes = (self.obs_size, units.law.size)
        parts = [
            EntityContact(sizes, columns, pairs[name], config, generators, uneven, directions)
            for name, columns in units.entities.items()
        ]
        self.entities = nn.ModuleList(parts)
        self.partner_columns = partner_columns(pairs, units.entities)
        self.step_counts = [len(part.partner_columns) for part in parts]
        # not part of a weight file, which has them in its header
        both = torch.tensor([units.obs_center, units.obs_spread]).repeat(self.replicas, 1, 1)  # [R, 2, D]
        self.register_buffer("units", both, persistent=False)
        scale = torch.tensor(units.scale, dtype=torch.float32).repeat(self.replicas, 1, 1)  # [R, 1, d]
        self.register_buffer("change_scale", scale, persistent=False)

    @property
    def widest(self) -> int:
        """Numbers per state and action that a prediction needs at once."""
        return 2 * self.config.motion_width

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch of data that grow along, of each replica: [R].

        It is the sum of three, which train networks of their own: the error of free motion, that of the partners'
        steps, and the negative log-likelihood of touches.

        Args:
            inputs: observations and actions [R, B, D + A].
            target: the scaled changes of the entities and the changes of `partner_columns`, [R, B, d + steps].
        """
        obs, action = inputs.tensor_split([self.obs_size], -1)
        changes, all_steps = target.tensor_split([self.target_size], -1)
        total = torch.zeros(self.replicas, device=inputs.device)
        by_entity = all_steps.split(self.step_counts, -1)
        for dims, entity, steps in zip(self.dims, self.entities, by_entity, strict=True):
            assert isinstance(entity, EntityContact)
            if self.training and self.config.running:
                entity.follow(obs, steps, self.units)
            scale = choose_columns(self.change_scale, dims)
            total = total + entity.loss(obs, action, choose_columns(changes, dims), steps, self.units, scale)
        return total

    @torch.no_grad()
    def predictor(self) -> Callable[[Tensor, Tensor], ContactPrediction]:
        """Return a function that predicts K actions in each state: obs [R, N, D], actions [R or 1, N or 1, K, A]."""

        @torch.no_grad()
        def predict(obs: Tensor, actions: Tensor) -> ContactPrediction:
            states, count = obs.shape[1], actions.shape[2]
            actions = actions.expand(self.replicas, states, -1, -1).flatten(1, 2)
            rows = obs.unsqueeze(2).expand(-1, -1, count, -1).flatten(1, 2)
            touches = {}
            for dims, entity in zip(self.dims, self.entities, strict=True):
                assert isinstance(entity, EntityContact)
                free = entity.move_freely(obs).unsqueeze(2).expand(-1, -1, count, -1).flatten(1, 2)
                found = entity.predict(rows, actions, free, self.units, choose_columns(self.change_scale, dims))
                touches[tuple(dims)] = Touch(*(part.unflatten(1, (states, count)) for part in found.parts()))
            return ContactPrediction(touches, self.target_size)

        return predict


def choose_columns(values: Tensor, columns: Sequence[int]) -> Tensor:
    """Some columns of [..., n]; without an index tensor, whose copy to a GPU could not be recorded."""
    return torch.stack([values[..., column] for column in columns], -1)


def _deviation(batch: Tensor) -> Tensor:
    """The standard deviation of each column [R, B, n] -> [R, 1, n]; 1 where it is constant."""
    deviation = batch.std(1, keepdim=True)
    return torch.where(deviation > SMALLEST_DEVIATION, deviation, 1.0)


def _describe(place: Tensor) -> Tensor:
    """A relative position, its sizes along the axes, and its length: [..., k] -> [..., 2 k + 1]."""
    return torch.cat([place, place.abs(), place.norm(dim=-1, keepdim=True)], -1)


def _merge(share: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of a mixture over axis 1 with these shares."""
    merged = (share * mean).sum(1, keepdim=True)
    return merged[:, 0], (share * (variance + (mean - merged).square())).sum(1)


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
    directions = find_directions(transitions[0])
    model = ContactDynamics(units, pairs, config, generators, uneven, directions).to(inputs.device)
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
    dims: Sequence[int], generators: Generators, report: Reporter,
) -> None:  # fmt: skip
    """Fit the networks of one entity, one after the other."""
    obs, action, target = rows
    config = entity.config
    steps = changes[:, entity.partner_columns]
    deviation = steps.std(0)
    entity.step_scale.copy_(torch.where(deviation > 1e-12, deviation, 1.0))
    scaled_steps = (steps / entity.step_scale[0, 0]).float()
    # far away geometry varies by much more than where it decides about a touch
    near = entity.reached(entity.positions(obs[None], model.units))[0].amax(-1) > 0
    geometry = entity.describe(obs[None, near], model.units)[0]
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
    touching = (config.updates, config.learning_rate, config.decay(count), config.batch_size)
    train_on_batches(touch_loss, trained, *touching, count, generators, report)


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
