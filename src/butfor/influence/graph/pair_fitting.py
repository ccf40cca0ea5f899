"""Fitting the model of pairs: what the action drives, how entities move by themselves, and who touches whom."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from butfor.influence.contact_fitting import Reporter, train_on_batches
from butfor.influence.graph.pairs import GraphConfig, GraphDynamics, check_graph_entities
from butfor.models.networks import MLP, Generators, make_generators, single_thread
from butfor.models.tables import Table, Units

DRIVEN = 0.7  # an entity is driven if the action reduces the median error of its predicted motion to this share
PROBE_UPDATES = 400
SURPRISE = 0.2  # standard deviations of the entity's change, beyond its free motion
REACH = 0.95  # share of the surprises that lie within the distance from which on an entity counts as alone
MARGIN = 1.2  # on that distance
FEWEST = 30  # surprises
FEWEST_ALONE = 500  # rows to fit free motion to


def fit_graph(
    table: Table,
    units: Units,
    config: GraphConfig,
    seeds: Sequence[int],
    progress: Callable[[Any], None] | None = None,
) -> GraphDynamics:
    """Fit one replica per seed: first which entities the action drives, then free motion, then touches."""
    check_graph_entities(units.entities, config)
    inputs, target = table
    generators = make_generators(seeds)
    obs, action = inputs.tensor_split([len(units.obs_center)], 1)
    with single_thread():
        driven = find_driven(obs, action, target, units)
        model = GraphDynamics(units, driven, config, generators).to(inputs.device)
        report = Reporter(progress, len(model.names) * 2 * config.motion_updates + config.updates)
        surprised = []
        for entity in range(len(model.names)):
            surprised.append(_fit_motion(model, entity, obs, action, target, generators, report))
        _fit_touches(model, obs, action, target, surprised, generators, report)
    return model.eval()


def _fit_motion(
    model: GraphDynamics, entity: int, obs: Tensor, action: Tensor, target: Tensor, generators: Generators,
    report: Reporter,
) -> Tensor:  # fmt: skip
    """Fit the free motion of an entity, where it is alone; returns where it moves otherwise [N].

    A pushed entity moves on as long as it is pushed, and would look free. So the first fit, to all rows, only shows
    where the motion comes as a surprise, and so how near others are then; the second fit is to rows in which nobody is
    that near.
    """
    config = model.config
    goal = target[:, model.dims[entity]]
    nearest = _nearest(model, entity, obs, target)

    def fit(rows: Tensor) -> Tensor:
        def loss(index: Tensor) -> Tensor:
            chosen = rows[index]
            error = model.move_freely(obs[chosen], action[chosen], entity) - goal[chosen]
            return error.abs().mean((1, 2))  # the median is that of the untouched

        settings = (config.motion_updates, config.motion_learning_rate, 0.0, config.batch_size)
        train_on_batches(loss, list(model.free[entity].parameters()), *settings, len(rows), generators, report)
        with torch.no_grad():
            moved = model.move_freely(*_expand(obs, action, model), entity)
        return (moved - goal).abs().amax(-1).amin(0) > SURPRISE

    everything = torch.arange(len(obs), device=obs.device)
    surprised = fit(everything)
    if int(surprised.sum()) >= FEWEST:
        reach = torch.quantile(nearest[surprised], REACH)
        alone = torch.nonzero(nearest > MARGIN * reach)[:, 0]
        if len(alone) >= FEWEST_ALONE:
            return fit(alone)
    return fit(everything)


def _fit_touches(
    model: GraphDynamics, obs: Tensor, action: Tensor, target: Tensor, surprised: Sequence[Tensor],
    generators: Generators, report: Reporter,
) -> None:  # fmt: skip
    """Fit the networks of touches of all entities; half of each batch is drawn from rows with a surprise."""
    config = model.config
    entities = range(len(model.names))
    with torch.no_grad():
        states, actions = _expand(obs, action, model)
        free = model.free_steps(states, actions)
        every = torch.cat(
            [model.describe(states, free, one)[..., : model.features].flatten(1, 2) for one in entities], 1
        )
        model.center.copy_(every.mean(1, keepdim=True))
        model.spread.copy_(every.std(1, keepdim=True).clamp_min(1e-12))
        shown = [model.describe(states, free, one) for one in entities]
        own = [model.own(states, one) for one in entities]
    replica = torch.arange(model.replicas, device=obs.device)[:, None]
    goals = [target[:, dims] for dims in model.dims]
    rows = [torch.nonzero(found)[:, 0] for found in surprised]
    # each row counts by its share in the data over its probability of being drawn
    rates = [max(len(found), 1) / len(obs) for found in rows]
    weights = [torch.where(found, 2 / (1 + 1 / rate), 2.0) for found, rate in zip(surprised, rates, strict=True)]

    def loss(index: Tensor) -> Tensor:
        total = torch.zeros(model.replicas, device=index.device)
        half = index.shape[1] // 2
        for one in entities:
            chosen, weight = index, None
            if len(rows[one]) >= FEWEST:
                chosen = torch.cat([index[:, :half], rows[one][index[:, half:] % len(rows[one])]], 1)
                weight = weights[one][chosen]
            seen = (shown[one][replica, chosen], own[one][replica, chosen], free[one][replica, chosen])
            density = model.judge(*seen, one).combine().log_density(goals[one][chosen])
            total = total - (density if weight is None else density * weight).mean(1)
        return total

    networks = (model.touch, model.push, model.surprise, model.free_variance)
    trained = [parameter for network in networks for parameter in network.parameters()]
    settings = (config.updates, config.learning_rate, config.weight_decay, config.batch_size)
    train_on_batches(loss, trained, *settings, len(obs), generators, report)


def _nearest(model: GraphDynamics, entity: int, obs: Tensor, target: Tensor) -> Tensor:
    """The distance of an entity to the nearest other one, now or after the step, whichever is less: [N]."""
    count = model.position
    before = [model.place(obs, other) for other in range(len(model.names))]
    steps = [target[:, dims[:count]] / model.change_scale[dims[:count]] for dims in model.dims]
    after = [place + step for place, step in zip(before, steps, strict=True)]
    gaps = [
        (places[other] - places[entity]).norm(dim=-1)
        for places in (before, after)
        for other in range(len(model.names))
        if other != entity
    ]
    return torch.stack(gaps).amin(0)


def find_driven(obs: Tensor, action: Tensor, target: Tensor, units: Units) -> list[str]:
    """The entities whose own motion the action changes, wherever they are: the hand, not what it touches."""
    owned = {column for columns in units.entities.values() for column in columns}
    rest = [column for column in range(obs.shape[1]) if column not in owned]
    found = []
    for (name, columns), dims in zip(units.entities.items(), units.dims, strict=True):
        own = obs[:, list(columns) + rest]
        goal = target[:, dims]
        errors = []
        for inputs in (own, torch.cat([own, action], 1)):
            generators = make_generators([0])
            network = MLP([inputs.shape[1], 64, 64, len(dims)], generators, activation=nn.functional.silu)
            network.to(obs.device)

            def loss(index: Tensor, network: MLP = network, inputs: Tensor = inputs, goal: Tensor = goal) -> Tensor:
                error: Tensor = network(inputs[index]) - goal[index]
                return error.abs().mean((1, 2))

            train_on_batches(loss, list(network.parameters()), PROBE_UPDATES, 3e-3, 0.0, 500, len(obs), generators)
            with torch.no_grad():
                errors.append(float((network(inputs[None])[0] - goal).abs().mean(1).median()))
        if errors[1] < DRIVEN * errors[0] and errors[0] > 0.05:  # in standard deviations: rest is not motion
            found.append(name)
    return found


def _expand(obs: Tensor, action: Tensor, model: GraphDynamics) -> tuple[Tensor, Tensor]:
    return obs.expand(model.replicas, -1, -1), action.expand(model.replicas, -1, -1)
