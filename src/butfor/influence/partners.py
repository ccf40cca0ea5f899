"""Find out what touches an entity: the columns whose nearness announces that it does not move as by itself.

Nobody has to name the hand. The change of the entity is predicted without the action; where it comes as a surprise,
something has touched it. A position that is near the entity at these times, and farther away otherwise, is a partner.
Without one, a position counts near which surprises are many times as frequent as elsewhere.

It must be near this very time. Something may also seem near because each of the two has its usual place when there are
surprises, such as joint angles whose numbers are like those of a position. Then it is as near to where the entity is at
another surprise.

What the action hardly moves, such as an object that the hand pushes into another one, is a partner only if nothing else
is: when it will move is as hard to predict as the entity itself.

Within its reach, surprises are more frequent than far away. What surprises beyond it is not a touch: an object that
lands on the floor, or stops where the ground is rough.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from butfor.models.networks import MLP, make_generators, single_thread
from butfor.models.tables import Table, Transitions, Units, add_finer, uneven_columns

SURPRISE = 0.3  # standard deviations of the entity's change, beyond its free motion
FEWEST = 30  # surprises, and as many rows without
ROWS = 6_000  # rows that are looked at
UPDATES = 1_000  # of the network that predicts the free motion
LEAST_AUC = 0.7  # of nearness as a sign of surprises
NEAREST = 0.05  # share of the rows that counts as near, where most surprises have other reasons than touches
LEAST_RATIO = 8  # how many times as frequent surprises must be in the nearest rows as in the others
EXCHANGES = 20  # of the partner's positions among rows
NEARER_OWN = 0.05  # by how much more often the own partner is nearer than that of another row, at surprises than else
MOVED = 0.05  # share of the variance of a partner's step that the action explains, as a linear function
LONG_STEP = 0.99  # quantile of a partner's steps, below which its reach never is
MOST = 2  # partners of an entity
UNIT = 1e-3  # by how much the squared length of a direction may differ from 1
OBLIQUE = 0.01  # median size of the product of x and y of a direction
AGENT_UNUSED = "agent= is for the model of touches, but another model is asked for; leave out one of them."
NOTHING_TOUCHES = (
    "The data do not show what touches the entities, so there is no model of touches; give its columns with agent=, or "
    "no model."
)


@dataclass(frozen=True)
class Pair:
    """Columns of an entity's position and of its partner's, in the same order and units."""

    entity: list[int]
    partner: list[int]
    reach: float | None = None
    """distance in the data's units within which touches were recorded; None: not known"""


Partners = Mapping[str, Sequence[Pair]]
"""The partners of each entity, by its name."""

Measure = Callable[[NDArray[np.bool_], NDArray[np.float64]], float]
"""How well a score [N] announces surprises [N]."""


def partner_columns(partners: Partners, entities: Iterable[str]) -> list[int]:
    """The columns of all partners, entity by entity."""
    return [column for name in entities for pair in partners[name] for column in pair.partner]


def choose_partners(
    transitions: Transitions, table: Table, units: Units, agent: Sequence[int] | None
) -> dict[str, list[Pair]] | None:
    """The partners of each entity: the given columns of the agent, or what the data show; None if one has none.

    Discrete actions have no partners: on a grid, nearness is not what decides.
    """
    if agent is not None:
        obs_size = len(units.obs_center)
        return {name: [pair_with(agent, columns, name, obs_size)] for name, columns in units.entities.items()}
    if units.law.count:
        return None
    found = {}
    moved = moved_by_action(transitions)
    for (name, columns), dims in zip(units.entities.items(), units.dims, strict=True):
        standardized = table[0][:, : transitions[0].shape[1]]
        found[name] = find_partners(transitions[0], standardized, table[1][:, dims], columns, moved)
        if not found[name]:
            return None
    return found


def moved_by_action(transitions: Transitions) -> NDArray[np.float64]:
    """The share of the variance of each column's change that a linear function of the action explains: [D]."""
    obs, action, next_obs = (part.double().cpu().numpy() for part in transitions)
    change = next_obs - obs
    change = change - change.mean(0)
    centred = action - action.mean(0)
    explained = centred @ np.linalg.lstsq(centred, change, rcond=None)[0]
    variance = np.square(change).mean(0)
    share: NDArray[np.float64] = np.square(explained).mean(0) / np.where(variance > 0, variance, 1)
    return share


def pair_with(agent: Sequence[int], columns: Sequence[int], name: str, obs_size: int) -> Pair:
    """The agent's position beside the first columns of an entity."""
    if not 1 <= len(agent) <= len(columns):
        raise ValueError(
            f"agent has {len(agent)} columns; expected 1 to {len(columns)}, as many as the position of {name!r} has, "
            "in the same order and units."
        )
    for column in agent:
        if column not in range(obs_size) or column in columns:
            raise ValueError(
                f"agent contains column {column}; expected columns from 0 to {obs_size - 1} that are not of {name!r}."
            )
    return Pair(list(columns[: len(agent)]), list(agent))


def find_partners(
    obs: Tensor, standardized: Tensor, target: Tensor, columns: Sequence[int], moved: NDArray[np.float64] | None = None
) -> list[Pair]:
    """Find the positions that announce surprises of an entity, best first; empty if there are none.

    Args:
        obs: observations [N, D] in the data's units.
        standardized: the same in standard units.
        target: the entity's scaled change [N, d].
        columns: the entity's columns.
        moved: how much of each column's change the action explains [D]; None: not known.
    """
    # where touches are few, the network of finer columns may surprise too often to show them
    for finer in (True, False):
        states, surprised = _some_surprises(obs, standardized, target, finer)
        if FEWEST <= surprised.sum() <= len(states) - FEWEST:
            found = _announce(states, surprised, columns, moved)
            if found:
                return found
    return []


def _announce(
    states: NDArray[np.float64],
    surprised: NDArray[np.bool_],
    columns: Sequence[int],
    moved: NDArray[np.float64] | None,
) -> list[Pair]:
    """The positions that announce surprises [N] in states [N, D]; see `find_partners`."""
    size = min(3, len(columns))
    pairs = [
        Pair(place, other)
        for place in _windows(columns, size)
        for other in _windows([c for c in range(states.shape[1]) if c not in columns], size)
    ]

    def announcing(measure: Measure, least: float) -> list[tuple[float, Pair]]:
        """The pairs whose nearness announces surprises, and not only by where either of them is."""
        found = []
        for pair in pairs:
            near = -np.linalg.norm(states[:, pair.entity] - states[:, pair.partner], axis=1)
            value = measure(surprised, near)
            if value <= least:
                continue
            by_chance = nearer_own(states[~surprised], pair)
            if nearer_own(states[surprised], pair) > by_chance + NEARER_OWN:
                found.append((value, pair))
        return found

    # an entity may also surprise far from everything, such as a puck that falls off a table
    candidates = announcing(_auc, LEAST_AUC) or announcing(_ratio, LEAST_RATIO)
    if moved is not None:
        candidates = [(value, pair) for value, pair in candidates if moved[pair.partner].mean() >= MOVED] or candidates
    chosen: list[Pair] = []
    for _, pair in sorted(candidates, key=lambda candidate: -candidate[0]):
        if not any(set(pair.partner) & set(other.partner) for other in chosen):
            chosen.append(pair)
    return chosen[:MOST]


def measure_reach(transitions: Transitions, table: Table, units: Units, partners: Partners) -> dict[str, list[Pair]]:
    """The same partners with the reach that the data show. Discrete actions have none: nearness is not what decides."""
    if units.law.count:
        return {name: list(pairs) for name, pairs in partners.items()}
    obs = transitions[0]
    found: dict[str, list[Pair]] = {}
    for name, dims in zip(units.entities, units.dims, strict=True):
        states, surprised = _some_surprises(obs, table[0][:, : obs.shape[1]], table[1][:, dims])
        found[name] = []
        for pair in partners[name]:
            reach = find_reach(states, surprised, pair)
            step = (transitions[2][:, pair.partner].double() - obs[:, pair.partner].double()).norm(dim=1)
            # what it can get to in a step is not out of reach, though most touches may be of what it holds already
            least = float(np.quantile(step.cpu().numpy(), LONG_STEP))
            found[name].append(pair if reach is None else replace(pair, reach=max(reach, least)))
    return found


def find_directions(obs: Tensor) -> list[list[int]]:
    """Adjacent columns of [N, D] that are x and y of a unit vector, the cosine and sine of an angle.

    Two columns of which one is always 0, such as flags, are not a direction.
    """
    states = obs.double()
    length = states[:, :-1].square() + states[:, 1:].square()
    unit = ((length - 1).abs() < UNIT).all(0)
    oblique = (states[:, :-1] * states[:, 1:]).abs().median(0).values > OBLIQUE
    return [[column, column + 1] for column in (unit & oblique).nonzero()[:, 0].tolist()]


def find_reach(states: NDArray[np.float64], surprised: NDArray[np.bool_], pair: Pair) -> float | None:
    """The distance that best separates surprises [N] from other states [N, D]; None if few surprises are within it.

    The share of the surprises within it exceeds that of all states the most (as in the Kolmogorov-Smirnov test).
    """
    distance = np.linalg.norm(states[:, pair.entity] - states[:, pair.partner], axis=1)
    order = np.argsort(distance, kind="stable")
    by_distance = surprised[order]
    last = int(np.cumsum(by_distance - by_distance.mean()).argmax())
    reach = float(distance[order[last]])
    return reach if reach > 0 and by_distance[: last + 1].sum() >= FEWEST else None


def _some_surprises(
    obs: Tensor, standardized: Tensor, target: Tensor, finer: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Some of the states in the data's units, in random order, and where the change was a surprise: [N, D], [N]."""
    rows = torch.randperm(len(obs), generator=torch.Generator().manual_seed(0))[:ROWS]
    surprised = find_surprises(standardized, target, finer)[rows.numpy()]
    return obs[rows].double().cpu().numpy(), surprised


def find_surprises(standardized: Tensor, target: Tensor, finer: bool = True) -> NDArray[np.bool_]:
    """Where the change [N, d] differs from what is usual in a state [N, D], whatever the action: [N].

    `finer`: what is usual is learned with uneven columns on a finer scale, too.
    """
    generators = make_generators([0])
    if finer:
        standardized = add_finer(standardized, *uneven_columns(standardized))
    network = MLP([standardized.shape[1], 64, 64, target.shape[1]], generators, activation=nn.functional.silu)
    network.to(target.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, fused=True)
    with single_thread():
        for _ in range(UPDATES):
            index = torch.randint(len(target), (1, 500), generator=generators[0]).to(target.device)
            loss = (network(standardized[index]) - target[index]).abs().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        error = (network(standardized[None])[0] - target).abs().amax(1)
    found: NDArray[np.bool_] = (error > SURPRISE).cpu().numpy()
    return found


def nearer_own(states: NDArray[np.float64], pair: Pair) -> float:
    """How often the entity is nearer to its partner than to where that is in another of the states [N, D].

    The order of the states must be random. It is 1/2 if the two positions have nothing to do with each other.
    """
    place, other = states[:, pair.entity], states[:, pair.partner]
    own = np.linalg.norm(place - other, axis=1)
    exchanged = [np.linalg.norm(place - np.roll(other, shift, 0), axis=1) for shift in range(1, EXCHANGES + 1)]
    return float((own < np.stack(exchanged)).mean())


def _windows(columns: Sequence[int], size: int) -> list[list[int]]:
    """All runs of `size` adjacent columns among the given ones."""
    runs = [list(columns[first : first + size]) for first in range(len(columns) - size + 1)]
    return [run for run in runs if run[-1] - run[0] == size - 1]


def _auc(surprised: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    return float(roc_auc_score(surprised, score))


def _ratio(surprised: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """How many times as frequent surprises are in the rows with the highest scores as in the others."""
    count = int(NEAREST * len(score))
    order = np.argsort(-score)
    return float(surprised[order[:count]].mean() / max(surprised[order[count:]].mean(), 1 / len(score)))
