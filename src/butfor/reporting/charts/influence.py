"""Charts of influence: scores along episodes, outcomes of other actions, maps, and checks of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from butfor.reporting.charts.chart import (
    BLUE,
    EVENT_STYLES,
    GREY,
    ORANGE,
    VERMILLION,
    Array,
    Axis,
    Chart,
    HeatMap,
    Rule,
    Series,
    Span,
    guide,
    histogram,
    line_look,
    range_of,
    shorten,
)

MOST_POINTS = 600  # of a line: more are not visible and make the page larger


def episode_charts(
    title: str,
    scores: Array,
    marks: Mapping[str, Array],
    influenced: Array,
    top: float,
    threshold: float | None = None,
    positions: Chart | None = None,
) -> list[Chart]:
    """The scores [S, T] of one episode and, in a chart below, the steps where each event happens.

    Influenced steps are shaded in both, and in a chart of the T + 1 `positions` above them.
    """
    steps = scores.shape[1]
    spans = _stretches(influenced)
    mean = Series(
        np.arange(steps), scores.mean(0), "score", symbol="circle", width=2, size=5, band=range_of(scores),
        hover="%{y:.3f}",
    )  # fmt: skip
    rules = [] if threshold is None else [Rule(threshold, "y", GREY, width=1)]
    bottom = min(0.0, float(scores.min())) - 0.03 * top
    x = Axis(range=(-0.7, steps + 0.7) if positions else (-0.5, steps - 0.5))
    score = Chart([mean], x, Axis(title, (bottom, top)), rules=rules, spans=spans, compare=True)
    below = _events_chart(marks, spans, Axis("step", x.range))
    if positions is None:
        return [score, below]
    return [replace(positions, x=x, spans=[*positions.spans, *spans], compare=True), score, below]


def _stretches(influenced: Array) -> list[Span]:
    """The stretches of influenced steps [T]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], influenced.astype(bool), [False]]))).reshape(-1, 2)
    return [Span(float(first) - 0.5, float(end) - 0.5) for first, end in edges]


def _events_chart(marks: Mapping[str, Array], spans: Sequence[Span], x: Axis) -> Chart:
    """A row of markers for each kind of event, at the steps where it happens."""
    series = []
    for height, (name, happened) in enumerate(marks.items()):
        at = np.flatnonzero(happened)
        colour, symbol = EVENT_STYLES.get(name, (GREY, "circle"))
        heights = np.full(len(at), height)
        series.append(Series(at, heights, name, colour, "none", symbol, size=9, outlined=True, hover="yes"))
    y = Axis(range=(-0.7, len(marks) - 0.3), ticks=dict(enumerate(marks)), grid=False)
    return Chart(series, x, y, spans=spans)


def scores_chart(lines: Mapping[str, Array], threshold: float | None = None, top: float | None = None) -> Chart:
    """Scores over steps, one line for each name; of long episodes, the highest score in each interval."""
    hover = "%{fullData.name}, step %{x}<br>%{y:.3f} nats<extra></extra>"
    series = []
    for place, (name, values) in enumerate(lines.items()):
        starts = np.arange(0, len(values), -(-len(values) // MOST_POINTS))
        highest = np.maximum.reduceat(values, starts)
        series.append(Series(starts, highest, name, width=2, hover=hover, **line_look(place) | {"symbol": "none"}))
    top = top or 1.05 * max([threshold or 0.0, 1e-9, *(float(values.max()) for values in lines.values())])
    rules = [] if threshold is None else [Rule(threshold, "y", width=1)]
    return Chart(series, Axis("step"), Axis("CAI (nats)", (-0.03 * top, top)), rules=rules)


def edges_chart(edges: Mapping[str, Array], top: float) -> Chart:
    """A strip over steps for each edge, the first above; of long episodes, the highest score in each interval.

    The colour is full at `top`.
    """
    steps = len(next(iter(edges.values())))
    starts = np.arange(0, steps, -(-steps // MOST_POINTS))
    values = np.stack([np.maximum.reduceat(value, starts) for value in edges.values()])
    rows = np.arange(len(edges))
    names = [shorten(name, 30) for name in edges]
    hover = "step %{x}<br>%{z:.3f} nats<extra></extra>"
    heat = HeatMap(starts, rows, values, "influence", "nats", hover, max(top, 1e-9))
    y = Axis(range=(len(edges) - 0.5, -0.5), ticks=dict(enumerate(names)), grid=False)
    return Chart(x=Axis("step"), y=y, heat_map=heat)


def timeline_charts(
    scores: Mapping[str, Array],
    marks: Mapping[str, Array] = {},
    influenced: Array | None = None,
    threshold: float | None = None,
) -> list[Chart]:
    """The scores [T] of one episode by entity and, in a chart below, the steps of events; influenced ones are shaded.

    There is no chart below without `marks`.
    """
    steps = max(len(values) for values in scores.values())
    spans = [] if influenced is None else _stretches(influenced)
    x = Axis("step", (-0.5, steps - 0.5))
    above = replace(scores_chart(scores, threshold), x=x, spans=spans)
    return [replace(above, x=replace(x, title="")), _events_chart(marks, spans, x)] if marks else [above]


def outcomes_chart(
    now: Array, outcomes: Array, deviation: Array, ends: Array, names: Sequence[str], hover: Sequence[str]
) -> Chart:
    """Where an entity goes under each of K actions: a fan where they matter, one line where they do not.

    Args:
        now: its one or two columns [d] in the present state.
        outcomes: predicted means [K, d] after one step.
        deviation: predicted standard deviation [d] of one outcome, drawn dotted.
        ends: half the length [d] of the axes, which must not depend on the outcomes: else each fan would look as wide.
        names: names [d] of the columns.
        hover: a text [K] for each action.
    """
    gap = np.full(len(outcomes), np.nan)
    reach = np.maximum(ends, 1.1 * np.abs(outcomes - now).max(0))
    if len(now) == 1:
        start, end = np.zeros(len(outcomes)), np.ones(len(outcomes))
        paths = [np.stack([start, end, gap], 1), np.stack([np.full(len(outcomes), now[0]), outcomes[:, 0], gap], 1)]
        points = (end, outcomes[:, 0])
        middle = outcomes.mean(0)[0]
        noise = guide([1.06, 1.06], [middle - deviation[0], middle + deviation[0]], "noise, ± 1 standard deviation")
        here = ([0.0], [now[0]])
        x = Axis(range=(-0.1, 1.15), ticks={0: "now", 1: "next step"}, grid=False)
        y = Axis(names[0], (now[0] - reach[0], now[0] + reach[0]))
    else:
        paths = [np.stack([np.full(len(outcomes), now[j]), outcomes[:, j], gap], 1) for j in (0, 1)]
        points = (outcomes[:, 0], outcomes[:, 1])
        angle = np.linspace(0, 2 * np.pi, 49)
        centre = outcomes.mean(0)
        ring = (centre[0] + deviation[0] * np.cos(angle), centre[1] + deviation[1] * np.sin(angle))
        noise = guide(*ring, "noise, 1 standard deviation")
        here = ([now[0]], [now[1]])
        x, y = (Axis(names[j], (now[j] - reach[j], now[j] + reach[j])) for j in (0, 1))
    series = [
        Series(paths[0].ravel(), paths[1].ravel(), colour=ORANGE, width=1, opacity=0.6),
        Series(*points, "under another action", ORANGE, "none", "circle", size=6, hover="%{text}<extra></extra>",
               text=hover),
        noise,
        Series(*here, "now", VERMILLION, "none", "square", size=12, outlined=True),
    ]  # fmt: skip
    return Chart(series, x, y)


def spread_chart(scores: Array, threshold: float) -> Chart:
    """A histogram of a data set's scores, with a line at the threshold."""
    scores = scores.astype(float)
    edges = np.linspace(min(0.0, float(scores.min())), max(float(scores.max()), 2 * threshold), 61)
    bars = histogram(scores, edges, BLUE, "the states")
    rule = Rule(threshold, "x", note=f"{threshold:g} nats")
    return Chart([bars], Axis("CAI (nats)"), Axis("% of the states", log=True), rules=[rule])


def reliability_chart(entities: Sequence[tuple[str, Array, Array]]) -> Chart:
    """The realised share of outcomes over the level of the model's central intervals; the diagonal is perfect."""
    series = [guide([0.0, 100.0], [0.0, 100.0])]
    for place, (name, levels, realised) in enumerate(entities):
        hover = "interval of %{x:.0f} %<br>holds %{y:.1f} %<extra></extra>"
        series.append(Series(100 * levels, 100 * realised, name, hover=hover, **line_look(place)))
    return Chart(series, Axis("expected inside (%)", (-2, 102)), Axis("found inside (%)", (-2, 103)))


def gain_chart(score: Array, gain: Array, error: Array) -> Chart:
    """How much the taken action improves the prediction, in groups of states of rising score."""
    groups = np.arange(1, len(score) + 1)
    hover = "group %{x}, CAI about %{customdata:.3g}<br>%{y:.3g} nats<extra></extra>"
    series = [Series(groups, gain, dash="none", symbol="circle", size=9, error=error, hover=hover, extra=score)]
    ticks = {int(group): str(group) for group in groups}
    x = Axis("group of states, by rising CAI", (0.4, len(score) + 0.6), ticks, grid=False)
    return Chart(series, x, Axis("gain (nats)"), rules=[Rule(0.0, "y", dash="solid", width=1)])


def field_chart(
    x: Array, y: Array, values: Array, names: tuple[str, str], name: str = "CAI", unit: str = "nats"
) -> Chart:
    """A quantity [ny, nx] over two columns of the observation."""
    hover = f"{names[0]} %{{x:.3g}}, {names[1]} %{{y:.3g}}<br>%{{z:.3g}} {unit}<extra></extra>"
    heat = HeatMap(x, y, values, name, unit, hover)
    return Chart(x=Axis(names[0], grid=False), y=Axis(names[1], grid=False), heat_map=heat)


def map_chart(around: Mapping[str, Array], key: str, name: str, unit: str) -> Chart:
    """A quantity [ny, nx] over the gripper's position around the object, which is outlined; lengths in cm."""
    width, depth = around["half"].tolist()
    chart = field_chart(around["x"], around["y"], around[key], ("x (cm)", "y (cm)"), name, unit)
    return replace(chart, box=(width, depth), square=True)
