"""The default model of `Influence.fit` where entities change in few ways, as on a grid: a probability for each way.

    p(s'_j | s, a) = sum over outcomes m of p_m(s, a) N(s_j + v_m, narrow)

The outcomes v_m are the changes that the data contain, such as one cell to the left and no change. The probabilities
come from a network that sees the state, the action, and the differences between the entity's columns and all others:
with a sign, without one, and whether they are small, since on a grid much happens only next to something.

CAI is then a sum over the outcomes that needs no sampling. It is 0 where no action changes a probability.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from butfor.influence.contact import choose_columns
from butfor.influence.gaussian import log_normal
from butfor.models.fitting import Fittable, Reporter, train_on_batches
from butfor.models.networks import MLP, Generators, make_generators, single_thread
from butfor.models.tables import Table, Units
from butfor.runs.config import check_least, check_positive

MOST_OUTCOMES = 100  # of an entity
REPEATED = 5  # rows, other than those with the most frequent change, for each other change
SAME = 1e-3  # scaled units: changes that differ by less are the same outcome
NARROW = 1e-4  # variance of each outcome, in scaled units
MANY_OUTCOMES = (
    "The entities do not change in few ways, so there is no model of outcomes; give a ModelConfig, a ContactConfig, or "
    "no model."
)


@dataclass(frozen=True)
class OutcomeConfig:
    """The model of outcomes and how it is fitted."""

    width: int = 128
    """units of each hidden layer"""
    layers: int = 2
    """hidden layers"""
    updates: int = 3600
    learning_rate: float = 1e-3
    weight_decay: float = 0.5
    batch_size: int = 250

    def __post_init__(self) -> None:
        check_least(self, 1, "width", "layers", "updates", "batch_size")
        check_positive(self, "learning_rate")


def find_outcomes(target: Tensor, entities: Sequence[Sequence[int]]) -> list[Tensor] | None:
    """The changes [M, d] that each entity's columns of the target [N, D] take; None if one takes too many, or one."""
    found = []
    for dims in entities:
        values = few_values(target[:, dims])
        if values is None:
            return None
        found.append(values)
    return found


def few_values(change: Tensor) -> Tensor | None:
    """The values [M, d] of changes [N, d] in scaled units, if those other than the most frequent one repeat."""
    cells, count = torch.unique((change / SAME).round(), dim=0, return_counts=True)
    others = len(change) - int(count.max())
    if not 2 <= len(cells) <= MOST_OUTCOMES or others < REPEATED * (len(cells) - 1):
        return None
    values: Tensor = cells * SAME
    return values


class EntityOutcomes(nn.Module):
    """The probabilities of one entity's outcomes, for R replicas."""

    values: Tensor
    cell: Tensor
    spread: Tensor

    def __init__(
        self, sizes: tuple[int, int], columns: Sequence[int], count: int, config: OutcomeConfig, generators: Generators
    ) -> None:
        super().__init__()
        obs_size, action_size = sizes
        self.columns = list(columns)
        self.others = [[other for other in range(obs_size) if other != column] for column in columns]
        differences = sum(map(len, self.others))
        hidden = [config.width] * config.layers
        inputs = obs_size + 3 * differences + action_size
        self.network = MLP([inputs, *hidden, count], generators, activation=nn.functional.silu)
        replicas = len(generators)
        self.register_buffer("values", torch.zeros(replicas, count, len(columns)))
        self.register_buffer("cell", torch.ones(replicas, 1, differences))  # the smallest change of the own column
        self.register_buffer("spread", torch.ones(replicas, 1, differences))  # of the differences, in cells

    def differences(self, obs: Tensor, units: Tensor) -> Tensor:
        """The entity's columns minus each other column, in cells: [R, B, D] -> [R, B, differences]."""
        center, spread = units.split(1, 1)  # [R, 1, D]
        raw = obs * spread + center
        parts = [
            raw[..., [own]] - choose_columns(raw, others) for own, others in zip(self.columns, self.others, strict=True)
        ]
        return torch.cat(parts, -1) / self.cell

    def describe(self, obs: Tensor, units: Tensor) -> Tensor:
        """What the network sees of the states: [R, B, D] -> [R, B, D + 3 differences]."""
        differences = self.differences(obs, units)
        scaled = differences / self.spread
        return torch.cat([obs, scaled, scaled.abs(), (-differences.square()).exp()], -1)

    def log_probabilities(self, described: Tensor, action: Tensor) -> Tensor:
        """[R, B, ...] and encoded actions [R, B, A] -> [R, B, M]."""
        logits: Tensor = self.network(torch.cat([described, action], -1))
        return logits.log_softmax(-1)


@dataclass(frozen=True)
class EntityPrediction:
    """The log probabilities of one entity's outcomes [R, n, K, M], and the outcomes [M, d]."""

    log_probability: Tensor
    values: Tensor

    def merge(self, members: int) -> "EntityPrediction":
        """The members' mean probabilities: [R, ...] -> [R / members, ...]."""
        grouped = self.log_probability.unflatten(0, (-1, members))
        return EntityPrediction(grouped.logsumexp(1) - math.log(members), self.values)

    def divergence(self, separate: bool) -> Tensor:
        """KL of each action to the mixture over all, or of the first half of them to that of the second: [R, n, K]."""
        given, mixed = self.log_probability.chunk(2, 2) if separate else (self.log_probability, self.log_probability)
        mixture = mixed.logsumexp(2, keepdim=True) - math.log(mixed.shape[2])
        # a probability of 0 counts nothing, and its logarithm is not finite
        terms = torch.where(given > -math.inf, given.exp() * (given - mixture), 0.0)
        return terms.sum(-1).clamp_min(0)

    def log_density(self, target: Tensor) -> Tensor:
        """log p(s'_j | s, a): target [n, 1, d] -> [R, n, K]."""
        variance = torch.full_like(self.values, NARROW)
        by_outcome = log_normal(target[:, :, None], self.values, variance)  # [n, 1, M]
        density: Tensor = (self.log_probability + by_outcome).logsumexp(-1)
        return density

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance: [R, n, K, d] each."""
        probability = self.log_probability.exp()
        mean = probability @ self.values
        square = probability @ self.values.square()
        return mean, (square - mean.square()).clamp_min(0) + NARROW

    def sample(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Draw an outcome of each state under its chosen action: chosen [n, K] -> [R, n, d]."""
        probability = self.log_probability[:, chosen].exp()  # [R, n, M]
        drawn = torch.multinomial(probability.flatten(0, 1), 1, generator=generator)[:, 0]
        values: Tensor = self.values[drawn].unflatten(0, probability.shape[:2])
        noise = torch.randn(values.shape, generator=generator, device=values.device)
        place: Tensor = values + NARROW**0.5 * noise
        return place


@dataclass(frozen=True)
class OutcomePrediction:
    """The predictions for K actions in each state, of each entity; see `scoring.Prediction`."""

    entities: Mapping[tuple[int, ...], EntityPrediction]
    """by the entity's place in the target"""
    target_size: int

    def change(self, function: Callable[[Tensor], Tensor]) -> "OutcomePrediction":
        """The same function of all probabilities, which changes the axes of states and actions."""
        pairs = self.entities.items()
        changed = {dims: EntityPrediction(function(found.log_probability), found.values) for dims, found in pairs}
        return OutcomePrediction(changed, self.target_size)

    def merge(self, members: int) -> "OutcomePrediction":
        """One prediction for each group of `members` replicas."""
        merged = {dims: found.merge(members) for dims, found in self.entities.items()}
        return OutcomePrediction(merged, self.target_size)

    def divergence(self, dims: Sequence[int], form: str, separate: bool = False) -> Tensor:
        """KL of each action to the mixture over all, for one entity; `form` has no effect: there is only one."""
        return self.entities[tuple(dims)].divergence(separate)

    def log_density(self, target: Tensor, dims: Sequence[int]) -> Tensor:
        """log p(target) of one entity under each action: target [n, 1, d] -> [R, n, K]."""
        return self.entities[tuple(dims)].log_density(target[..., list(dims)])

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of every predicted column: [R, n, K, d] each."""
        example = next(iter(self.entities.values())).log_probability
        shape = (*example.shape[:3], self.target_size)
        mean, variance = example.new_zeros(shape), example.new_ones(shape)
        for dims, found in self.entities.items():
            mean[..., list(dims)], variance[..., list(dims)] = found.moments()
        return mean, variance

    def sample(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Draw an outcome of each state under its chosen action: chosen [n, K] -> [R, n, d]."""
        replicas = next(iter(self.entities.values())).log_probability.shape[0]
        outcome = torch.zeros(replicas, len(chosen), self.target_size, device=chosen.device)
        for dims, found in self.entities.items():
            outcome[..., list(dims)] = found.sample(chosen, generator)
        return outcome


class OutcomeDynamics(Fittable):
    """p(s'_j | s, a) of every entity as in the module's formula, for R replicas."""

    units: Tensor

    def __init__(self, units: Units, counts: Sequence[int], config: OutcomeConfig, generators: Generators) -> None:
        super().__init__()
        self.obs_size = len(units.obs_center)
        self.target_size = len(units.scale)
        self.replicas = len(generators)
        self.config = config
        self.dims = units.dims
        self.counts = list(counts)  # outcomes of each entity
        sizes = (self.obs_size, units.law.size)
        pairs = zip(units.entities.values(), self.counts, strict=True)
        self.entities = nn.ModuleList(
            EntityOutcomes(sizes, columns, count, config, generators) for columns, count in pairs
        )
        # not part of a weight file, which has them in its header
        both = torch.tensor([units.obs_center, units.obs_spread]).repeat(self.replicas, 1, 1)  # [R, 2, D]
        self.register_buffer("units", both, persistent=False)

    @property
    def widest(self) -> int:
        """Numbers per state and action that a prediction needs at once."""
        described: int = max(entity.network.layers[0].weight.shape[1] for entity in self.entities)  # type: ignore
        return max(self.config.width, described)

    @torch.no_grad()
    def predictor(self) -> Callable[[Tensor, Tensor], OutcomePrediction]:
        """Return a function that predicts K actions in each state: obs [R, N, D], actions [R or 1, N or 1, K, A]."""

        @torch.no_grad()
        def predict(obs: Tensor, actions: Tensor) -> OutcomePrediction:
            states, count = obs.shape[1], actions.shape[2]
            actions = actions.expand(self.replicas, states, -1, -1).flatten(1, 2)
            found = {}
            for dims, entity in zip(self.dims, self.entities, strict=True):
                assert isinstance(entity, EntityOutcomes)
                described = entity.describe(obs, self.units).unsqueeze(2).expand(-1, -1, count, -1).flatten(1, 2)
                logs = entity.log_probabilities(described, actions).unflatten(1, (states, count))
                found[tuple(dims)] = EntityPrediction(logs, entity.values[0])
            return OutcomePrediction(found, self.target_size)

        return predict


def fit_outcomes(
    table: Table,
    units: Units,
    outcomes: Sequence[Tensor],
    config: OutcomeConfig,
    seeds: Sequence[int],
    progress: Callable[[Any], None] | None = None,
) -> OutcomeDynamics:
    """Fit one replica per seed to the outcomes [M, d] of each entity that `find_outcomes` found."""
    generators = make_generators(seeds)
    inputs, target = table
    model = OutcomeDynamics(units, [len(values) for values in outcomes], config, generators).to(inputs.device)
    obs, action = inputs.tensor_split([model.obs_size], 1)
    report = Reporter(progress, len(model.entities) * config.updates)
    schedule = (config.updates, config.learning_rate, config.weight_decay, config.batch_size)
    with single_thread():
        for dims, entity, values in zip(model.dims, model.entities, outcomes, strict=True):
            assert isinstance(entity, EntityOutcomes)
            _measure(entity, obs, values, model.units, torch.tensor(units.scale)[dims])
            happened = torch.cdist(target[:, dims], values).argmin(1)

            def loss_of(index: Tensor) -> Tensor:
                described = entity.describe(obs[index], model.units)  # noqa: B023
                logs = entity.log_probabilities(described, action[index])  # noqa: B023
                return -logs.gather(-1, happened[index][..., None]).mean((1, 2))  # noqa: B023

            train_on_batches(loss_of, list(entity.parameters()), *schedule, len(obs), generators, report)
    return model.eval()


def _measure(entity: EntityOutcomes, obs: Tensor, values: Tensor, units: Tensor, scale: Tensor) -> None:
    """Set the outcomes, the size of a cell, and the spread of the differences."""
    entity.values.copy_(values)
    raw = (values / scale.to(values)).abs()
    smallest = torch.where(raw > 0, raw, math.inf).amin(0)  # of each own column
    cells = [
        size if math.isfinite(size) else 1.0
        for size, others in zip(smallest.tolist(), entity.others, strict=True)
        for _ in others
    ]
    entity.cell.copy_(torch.tensor(cells))
    deviation = entity.differences(obs[None], units).std(1, keepdim=True)
    entity.spread.copy_(torch.where(deviation > 0, deviation, 1.0))
