"""What figures show of a fitted model: where an entity goes under other actions, and scores over two columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from butfor.influence.influence import Influence

Array = NDArray[Any]
Pair = tuple[int, int | None]
"""A column of the observation, or the difference of two: the first minus the second."""
STEPS = 6.0  # standard deviations of the change that a fan shows to either side, at least
WIDE = 2.0  # standard deviations of a column that a map shows to either side


@dataclass(frozen=True)
class Fan:
    """The predicted outcomes of K actions in one state, in one or two columns of an entity."""

    columns: tuple[int, ...]  # [d]
    now: Array  # [d]
    outcomes: Array  # [K, d]: predicted means after one step
    deviation: Array  # [d]: predicted standard deviation of one outcome, mean over the actions
    ends: Array  # [d]: usual size of a change, the same for every state
    actions: Array  # [K, A], or integers [K]
    score: float  # CAI of the state, in nats


def fan_of(influence: "Influence", obs: Array, entity: str, columns: Sequence[int] | None, actions: int) -> Fan:
    """Predict where an entity goes in one state [D]; by default in the two columns whose outcomes differ most."""
    state = np.asarray(obs, dtype=np.float64)
    if state.shape != (influence.model.obs_size,):
        raise ValueError(f"obs has shape {list(state.shape)}; expected one state [{influence.model.obs_size}].")
    own = influence.entities[entity]
    law = influence.law
    drawn = law.draw_shared(actions, influence.seed, influence.device, influence.scoring.extreme)[0, 0]
    tried = law.decode(drawn).cpu().numpy()  # [K, A], or integers [K]
    mean, deviation = (part[0] for part in influence.predict(state[None], tried[None])[entity])  # [K, d] each
    usual = 1 / np.asarray(influence.units.scale)[influence.dims(entity)]
    if columns is None:
        columns = sorted(own[place] for place in np.argsort(-(mean.std(0) / usual), kind="stable")[:2])
    if unknown := [column for column in columns if column not in own]:
        raise ValueError(f"columns contains {unknown}; the columns of {entity!r} are {own}.")
    if len(columns) not in (1, 2):
        raise ValueError(f"columns has {len(columns)} entries; give one or two columns of {entity!r}.")
    places = [own.index(column) for column in columns]
    return Fan(
        columns=tuple(columns),
        now=state[list(columns)],
        outcomes=mean[:, places],
        deviation=deviation[:, places].mean(0),
        ends=STEPS * usual[places],
        actions=tried,
        score=float(influence.score(state[None])[entity][0]),
    )


def difference(states: Array, pair: Pair) -> Array:
    """A column of states [N, D], or the difference of two: [N]."""
    first, second = pair
    found: Array = states[:, first] - (0.0 if second is None else states[:, second])
    return found


def mean_in_cells(score: Array, values: Sequence[Array], size: int) -> tuple[list[Array], Array]:
    """The mean score [size, size] in each cell of two columns, NaN where there is no state, and the cells' middles."""
    edges = [np.linspace(column.min(), max(column.max(), column.min() + 1e-9), size + 1) for column in values]
    places = [
        np.clip(np.searchsorted(edge, column, "right") - 1, 0, size - 1)
        for edge, column in zip(edges, values, strict=True)
    ]
    cell = places[1] * size + places[0]
    counts = np.bincount(cell, minlength=size * size)
    totals = np.bincount(cell, np.asarray(score, dtype=np.float64), minlength=size * size)
    means = np.divide(totals, counts, out=np.full(size * size, np.nan), where=counts > 0)
    return [(edge[1:] + edge[:-1]) / 2 for edge in edges], means.reshape(size, size)


def vary_state(state: Array, pairs: Sequence[Pair], reach: Sequence[float], size: int) -> tuple[list[Array], Array]:
    """Two axes [size] of this reach to either side, and copies [size * size, D] of a state with their values.

    The values of the first axis change fastest. Of a pair, the first column is varied around the second.
    """
    axes = [
        (state[first] if second is None else 0.0) + far * np.linspace(-1, 1, size)
        for (first, second), far in zip(pairs, reach, strict=True)
    ]
    grid = np.repeat(state[None], size * size, 0)
    for values, (first, second) in zip(np.meshgrid(*axes), pairs, strict=True):
        grid[:, first] = values.ravel() + (0.0 if second is None else state[second])
    return axes, grid
