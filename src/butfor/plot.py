"""Plots for notebooks and scripts, with the charts of the reports: `butfor.plot.timeline(influence, obs).show()`.

Each function returns a `plotly.graph_objects.Figure` in plotly's default template, which you can change, show and save.
Plotly is imported by the first call.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from butfor.influence.diagnosis import Diagnosis
    from butfor.influence.influence import Influence
    from butfor.rollouts.episodes import Episodes

__all__ = ["curves", "influence_map", "outcomes", "reliability", "timeline"]

Array = NDArray[Any]
Column = int | tuple[int, int]
"""A column of the observation; of (a, b), column a minus column b."""


def timeline(
    influence: "Influence",
    episode: "Episodes | Array",
    *,
    number: int = 0,
    entity: str | None = None,
    threshold: float | None = None,
) -> "Figure":
    """Plot the score of every step of an episode.

    Args:
        influence: a fitted `Influence`.
        episode: states [T, D], or `Episodes`, whose labels are then shown too: exact influence shaded, others below.
        number: which of the `Episodes`.
        entity: the entity to show; default: all.
        threshold: height of a dashed line, in nats.

    Returns:
        A figure of plotly.
    """
    from butfor.reporting.charts import timeline_charts
    from butfor.reporting.plotly_renderer import figure
    from butfor.rollouts.episodes import Episodes

    marks: dict[str, Array] = {}
    influenced = None
    if isinstance(episode, Episodes):
        if not -len(episode) <= number < len(episode):
            raise ValueError(f"number is {number}; there are {len(episode)} episodes, from 0 to {len(episode) - 1}.")
        steps = int(episode.length[number])
        states = episode.observation[number, :steps]
        marks = {name: flags[number, :steps] for name, flags in episode.labels().items()}
        influenced = marks.pop("exact", None)
    else:
        states = np.asarray(episode)
    scores = {name: score for name, score in influence.score(states).items() if name in _chosen(influence, entity)}
    charts = timeline_charts(scores, marks, influenced, threshold)
    heights = (0.75, 0.25) if len(charts) > 1 else (1.0,)
    title = f"Influence on {', '.join(scores)}" + (", shaded: exact label" if influenced is not None else "")
    return figure(*charts, heights=heights, title=title)


def outcomes(
    influence: "Influence",
    obs: Array,
    *,
    entity: str | None = None,
    columns: Sequence[int] | None = None,
    actions: int = 64,
    names: Sequence[str] | None = None,
) -> "Figure":
    """Plot where an entity would go under other actions, as the model predicts one step ahead: the fan of one state.

    The axes do not depend on the state unless its fan is very wide, so that two figures can be compared.

    Args:
        influence: a fitted `Influence`.
        obs: one state [D].
        entity: the entity to show; may be omitted if there is only one.
        columns: one or two of its columns; default: the two whose outcomes differ most, in their usual units.
        actions: number of actions, drawn as for the score; all of a discrete space.
        names: names of the columns; default: "column 3".

    Returns:
        A figure of plotly.
    """
    from butfor.influence.views import fan_of
    from butfor.reporting.charts import outcomes_chart
    from butfor.reporting.plotly_renderer import figure

    (name,) = _chosen(influence, entity, one=True)
    fan = fan_of(influence, obs, name, columns, actions)
    hover = [f"action {np.round(action, 2).tolist()}" for action in fan.actions]
    shown = list(names or [f"column {column}" for column in fan.columns])
    chart = outcomes_chart(fan.now, fan.outcomes, fan.deviation, fan.ends, shown, hover)
    return figure(chart, title=f"Where {name} goes under {len(hover)} actions: CAI {fan.score:.2f} nats")


def influence_map(
    influence: "Influence",
    x: Column,
    y: Column,
    obs: Array | None = None,
    *,
    entity: str | None = None,
    size: int = 41,
    adjust: Callable[[Array], Array] | None = None,
    names: tuple[str, str] | None = None,
) -> "Figure":
    """Plot the score over two columns of the observation.

    Args:
        influence: a fitted `Influence`.
        x: the column on the horizontal axis, or (a, b) for column a minus column b, such as gripper minus cube.
        y: the column on the vertical axis, in the same way.
        obs: states [N, D], of which each cell shows the mean score; or one state [D], in which x and y (of a pair: its
            first column) are varied. Default: the mean of the data that the model was fitted on, varied.
        entity: the entity to show; may be omitted if there is only one.
        size: cells on each axis.
        adjust: for a varied state, recomputes columns that depend on x and y: [N, D] -> [N, D].
        names: names of the axes.

    Returns:
        A figure of plotly.
    """
    from butfor.influence.views import WIDE, difference, mean_in_cells, vary_state
    from butfor.reporting.charts import field_chart
    from butfor.reporting.plotly_renderer import figure

    (name,) = _chosen(influence, entity, one=True)
    states = np.asarray(influence.units.obs_center if obs is None else obs, dtype=np.float64)
    pairs = [(column, None) if isinstance(column, int) else column for column in (x, y)]
    for column in (part for pair in pairs for part in pair if part is not None):
        if column not in range(influence.model.obs_size):
            raise ValueError(f"There is no column {column}; expected 0 to {influence.model.obs_size - 1}.")
    if states.ndim == 2:
        shown_values = [difference(states, pair) for pair in pairs]
        axes, values = mean_in_cells(influence.score(states)[name], shown_values, size)
    else:
        reach = [WIDE * influence.units.obs_spread[first] for first, _ in pairs]
        axes, grid = vary_state(states, pairs, reach, size)
        values = influence.score(grid if adjust is None else adjust(grid))[name].reshape(size, size)
    shown = names or tuple(f"column {a}" + ("" if b is None else f" − column {b}") for a, b in pairs)
    return figure(field_chart(axes[0], axes[1], values, (shown[0], shown[1])), title=f"Influence on {name}")


def reliability(diagnosis: "Mapping[str, Diagnosis] | Diagnosis") -> "Figure":
    """Plot whether the model's predicted variance is right: on the dotted line it is, below it is too small.

    Args:
        diagnosis: what `Influence.diagnose` returns, or the part of one entity.

    Returns:
        A figure of plotly.
    """
    from butfor.reporting.charts import reliability_chart
    from butfor.reporting.plotly_renderer import figure

    found = diagnosis if isinstance(diagnosis, Mapping) else {"": diagnosis}
    lines = [
        (name, np.asarray(one.reliability["levels"]), np.asarray(one.reliability["realised"]))
        for name, one in found.items()
    ]
    return figure(reliability_chart(lines), title="Share of held-out outcomes in the model's central intervals")


def curves(runs: Sequence[Path | str] | Path | str, measure: str = "success") -> "Figure":
    """Plot the learning curves of training runs: means over seeds and 95 % intervals (few seeds: their range).

    Args:
        runs: run folders; one will do.
        measure: "success", or what a robot does to the object: "moved", "lifted" or "held".

    Returns:
        A figure of plotly.
    """
    from butfor.analysis.arms import read_runs
    from butfor.reporting.charts import arm_look, learning_chart
    from butfor.reporting.plotly_renderer import figure

    folders = [Path(runs)] if isinstance(runs, Path | str) else [Path(run) for run in runs]
    if not folders:
        raise ValueError("There are no runs to plot; give the folder of at least one training run.")
    arms = read_runs(folders)
    looks = {arm.label: arm_look(place, len(arms)) for place, arm in enumerate(arms)}
    given = []
    for arm in arms:
        curve = arm.curve if measure == "success" else arm.behaviour.get(measure)
        if curve is None:
            known = ["success", *arm.behaviour] if arm.curve else ["nothing"]
            raise ValueError(f"{arm.folder} has no curve of {measure!r}; it has {', '.join(known)}.")
        given.append((arm, curve))
    return figure(learning_chart(given, looks, measure), title=f"{measure.capitalize()} during training")


def _chosen(influence: "Influence", entity: str | None, one: bool = False) -> list[str]:
    """The names of the entities to show."""
    if entity is not None:
        influence.dims(entity)  # refuses an unknown name
        return [entity]
    if one and len(influence.entities) > 1:
        raise ValueError(f"There are several entities; choose one with entity=: {', '.join(influence.entities)}.")
    return list(influence.entities)
