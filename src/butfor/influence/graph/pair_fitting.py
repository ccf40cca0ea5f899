"""Fitting the model of pairs: what the action drives, how entities move by themselves, and who touches whom."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from butfor.influence.graph.edges import hindsight_sizes, observed_effects
from butfor.influence.graph.pairs import GraphConfig, GraphDynamics, _fill, check_graph_entities, describe_lines
from butfor.models.fitting import Reporter, train_on_batches
from butfor.models.networks import MLP, Generators, make_generators, single_thread
from butfor.models.tables import Table, Units

DRIVEN = 0.7  # an entity is driven if the action reduces the median error of its predicted motion to this share
PROBE_UPDATES = 400
SURPRISE = 0.2  # standard deviations of the entity's change, beyond its free motion
MARGIN = 1.2  # on the distance that best separates surprises from free motion
FEWEST = 30  # surprises
NEAR_SHARE = 0.75  # of a batch
UNTOUCHED = 0.05  # standard deviations of the entity's change: so little may others displace it in hindsight
FEWEST_ALONE = 500  # rows to fit free motion to


def fit_graph(
    table: Table,
    units: Units,
    config: GraphConfig,
    seeds: Sequence[int],
    progress: Callable[[Any], None] | None = None,
) -> GraphDynamics:
    """Fit one replica per seed: first which entities the action drives, then free motion, touches and hindsight.

    Few steps of a moving entity are far from all others. Hindsight shows more in which nothing touches it, also near
    others. Free motion is fitted again with these, and then touches and hindsight.
    """
    check_graph_entities(units.entities, config)
    inputs, target = table
    generators = make_generators(seeds)
    obs, action = inputs.tensor_split([len(units.obs_center)], 1)
    with single_thread():
        driven = find_driven(obs, action, target, units)
        model = GraphDynamics(units, driven, config, generators).to(inputs.device)
        first = config.updates // 2
        report = Reporter(progress, 3 * len(model.names) * config.motion_updates + 2 * (first + config.updates))
        rows = (obs, action, target)
        gaps = [_gaps(model, entity, obs, target) for entity in range(len(model.names))]
        alone = _fit_motions(model, gaps, *rows, generators, report)
        _fit_touches(model, *rows, first, generators, report)
        _fit_hindsight(model, *rows, first, generators, report)
        for entity, free in enumerate(_find_untouched(model, obs, target)):
            _fit_motion(model, entity, torch.nonzero(alone[entity] | free)[:, 0], *rows, generators, report)
        _fit_touches(model, *rows, config.updates, generators, report)
        _fit_hindsight(model, *rows, config.updates, generators, report)
    return model.eval()


def _fit_motions(
    model: GraphDynamics, gaps: Sequence[Tensor], obs: Tensor, action: Tensor, target: Tensor, generators: Generators,
    report: Reporter,
) -> list[Tensor]:  # fmt: skip
    """Fit the free motion of each entity, where it is alone, and measure how near others are if it is not.

    A pushed entity moves on as long as it is pushed, and would look free. So the first fit, to all rows, only shows
    where the motion comes as a surprise, and so how near others are then; the second fit is to rows in which nobody is
    that near, which are returned for each entity, [N].
    """
    count = len(model.names)
    everything = torch.arange(len(obs), device=obs.device)
    reach = model.reach[0, 0].clone()  # [source, target]
    sharpness = torch.full_like(reach, -1)
    starts = [{name: value.clone() for name, value in network.state_dict().items()} for network in model.free]
    for entity in range(count):
        surprised = _fit_motion(model, entity, everything, obs, action, target, generators, report)
        if int(surprised.sum()) >= FEWEST:
            reach[:, entity], sharpness[:, entity] = _find_reach(gaps[entity], surprised)
    reach = _make_mutual(reach, sharpness)
    model.reach.copy_(MARGIN * reach)
    free = []
    for entity in range(count):
        # what the first fit learned of touches would stay where data are few
        model.free[entity].load_state_dict(starts[entity])
        alone = (gaps[entity] > reach[:, entity]).all(1)
        free.append(alone if int(alone.sum()) >= FEWEST_ALONE else torch.ones_like(alone))
        _fit_motion(model, entity, torch.nonzero(free[-1])[:, 0], obs, action, target, generators, report)
    return free


def _fit_motion(
    model: GraphDynamics, entity: int, rows: Tensor, obs: Tensor, action: Tensor, target: Tensor,
    generators: Generators, report: Reporter,
) -> Tensor:  # fmt: skip
    """Fit the free motion of an entity to some rows; return which of all come as a surprise then: [N]."""
    config = model.config
    goal = target[:, model.dims[entity]]
    network = model.free[entity]
    moving = rows[goal[rows].abs().amax(1) > SURPRISE]

    def loss(index: Tensor) -> Tensor:
        chosen = rows[index]
        if len(moving) >= FEWEST:  # rest is easy, and often most of the data
            half = index.shape[1] // 2
            chosen = torch.cat([chosen[:, :half], moving[index[:, half:] % len(moving)]], 1)
        error = (model.move_freely(obs[chosen], action[chosen], entity) - goal[chosen]).abs()
        # the median is that of the untouched; positions, which effects are about, count as much as all columns together
        return error.mean((1, 2)) + error[..., : model.position].mean((1, 2))

    settings = (config.motion_updates, config.motion_learning_rate, 0.0, config.batch_size)
    train_on_batches(loss, list(network.parameters()), *settings, len(rows), generators, report)
    with torch.no_grad():
        moved = model.move_freely(*_expand(obs, action, model), entity)
    return (moved - goal).abs().amax(-1).amin(0) > SURPRISE


def _fit_touches(
    model: GraphDynamics, obs: Tensor, action: Tensor, target: Tensor, updates: int, generators: Generators,
    report: Reporter,
) -> None:  # fmt: skip
    """Fit the networks of touches; most of each batch is drawn from states in which a pair is near."""
    config = model.config
    with torch.no_grad():
        states, actions = _expand(obs, action, model)
        free = model.free_steps(states, actions)
        filled = _fill(free, model.longest)
        shown = describe_lines(*model.lines(states, filled.unsqueeze(3), filled.unsqueeze(2)))
        others = ~torch.eye(len(model.names), dtype=torch.bool, device=obs.device)
        every = shown[:, :, others]  # [R, N, E (E - 1), F]
        near = shown[..., -1] <= model.reach
        close = every[(near[:, :, others]).unsqueeze(-1).expand_as(every)].unflatten(0, (-1, every.shape[-1]))
        used = close if len(close) >= FEWEST else every.flatten(0, 2)
        model.center.copy_(used.mean(0).expand_as(model.center))
        model.spread.copy_(used.std(0).clamp_min(1e-12).expand_as(model.spread))
        rows = torch.nonzero(near[:, :, others].any(-1).any(0))[:, 0]
    replica = torch.arange(model.replicas, device=obs.device)[:, None]
    goals = [target[:, dims] for dims in model.dims]
    rows = rows if len(rows) >= FEWEST else torch.arange(len(obs), device=obs.device)

    def loss(index: Tensor) -> Tensor:
        part = int(NEAR_SHARE * index.shape[1])
        chosen = torch.cat([rows[index[:, :part] % len(rows)], index[:, part:]], 1)
        known = [one[replica, chosen] for one in free]
        found = model.pair_touches(obs[chosen], action[chosen], free=known)
        total = torch.zeros(model.replicas, device=index.device)
        for pairs, goal in zip(found, goals, strict=True):
            total = total - pairs.combine().log_density(goal[chosen]).mean(1)
        return total

    networks = (model.touch, model.surprise, model.free_variance)
    trained = [parameter for network in networks for parameter in network.parameters()]
    settings = (updates, config.learning_rate, config.weight_decay, config.batch_size)
    train_on_batches(loss, trained, *settings, len(obs), generators, report)


def _fit_hindsight(
    model: GraphDynamics, obs: Tensor, action: Tensor, target: Tensor, updates: int, generators: Generators,
    report: Reporter,
) -> None:  # fmt: skip
    """Fit the logarithm of observed effects, from how both entities of a pair moved; batches as for touches."""
    config = model.config
    found = observed_effects(model, obs.expand(model.replicas, -1, -1), action, target)
    goal = (found + model.least_effect).log()  # [N, E, E, longest]
    steps = model.steps_of(target)  # [1, N, E, longest]
    others = ~torch.eye(len(model.names), dtype=torch.bool, device=obs.device)
    closest = model.lines(obs[None], steps.unsqueeze(3), steps.unsqueeze(2))[-1]
    near = closest[0, ..., 0] <= model.reach[0]
    rows = torch.nonzero(near[:, others].any(-1))[:, 0]
    rows = rows if len(rows) >= FEWEST else torch.arange(len(obs), device=obs.device)

    def loss(index: Tensor) -> Tensor:
        part = int(NEAR_SHARE * index.shape[1])
        chosen = torch.cat([rows[index[:, :part] % len(rows)], index[:, part:]], 1)
        error = (model.look_back(obs[chosen], steps[0, chosen]) - goal[chosen])[:, :, others].square()
        return error.mean((1, 2, 3)) + error[..., : model.position].mean((1, 2, 3))

    settings = (updates, config.learning_rate, config.weight_decay, config.batch_size)
    train_on_batches(loss, list(model.hindsight.parameters()), *settings, len(obs), generators, report)


@torch.no_grad()
def _find_untouched(model: GraphDynamics, obs: Tensor, target: Tensor) -> Tensor:
    """In which steps nobody displaces an entity, in hindsight: [E, N]."""
    others = ~torch.eye(len(model.names), dtype=torch.bool, device=obs.device)
    found = hindsight_sizes(model, obs.expand(model.replicas, -1, -1), target)[..., : model.position].amax(-1)
    return ((found * others).amax(1) < UNTOUCHED).T


def _gaps(model: GraphDynamics, entity: int, obs: Tensor, target: Tensor) -> Tensor:
    """The distance of an entity to each other one, now or after the step, whichever is less: [N, E]."""
    count = model.position
    before = torch.stack([model.place(obs, other) for other in range(len(model.names))], 1)  # [N, E, p]
    after = before + torch.stack([target[:, dims[:count]] / model.change_scale[dims[:count]] for dims in model.dims], 1)
    gaps = torch.stack([(places - places[:, entity, None]).norm(dim=-1) for places in (before, after)]).amin(0)
    gaps[:, entity] = torch.inf
    return gaps


def _find_reach(gaps: Tensor, surprised: Tensor) -> tuple[Tensor, Tensor]:
    """How near each other entity must be to touch, and how sharply that separates: [N, E] -> [E], [E].

    Of the states in which it is the nearest one, the distance that best tells surprises from free motion. So what
    pushes through a third entity, which is nearer, does not count. Without enough surprises: that of all together, with
    sharpness 0.
    """
    nearest = gaps.amin(1)
    first = gaps.argmin(1)
    reach = _best_cut(nearest, surprised)[0].repeat(gaps.shape[1])
    sharpness = torch.zeros_like(reach)
    for other in range(gaps.shape[1]):
        rows = first == other
        if int(surprised[rows].sum()) >= FEWEST and int((~surprised[rows]).sum()) >= FEWEST:
            reach[other], sharpness[other] = _best_cut(nearest[rows], surprised[rows])
    return reach, sharpness


def _best_cut(distance: Tensor, surprised: Tensor) -> tuple[Tensor, Tensor]:
    """The distance with the largest share of surprises below it minus the share of the others, and that difference."""
    order = distance.argsort()
    found = surprised[order].double()
    below = found.cumsum(0) / found.sum() - (1 - found).cumsum(0) / (1 - found).sum().clamp_min(1)
    return distance[order][below.argmax()], below.max()


def _make_mutual(reach: Tensor, sharpness: Tensor) -> Tensor:
    """One reach for both directions of a pair, as a touch is mutual: that of the sharper direction, [E, E]."""
    return torch.where(sharpness >= sharpness.T, reach, reach.T)


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
