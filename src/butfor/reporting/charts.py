"""Every chart as data: what it shows, not how it is drawn.

`plotly_renderer` draws a chart on a page and `matplotlib_renderer` draws the same chart for a paper.
To add a chart, write a function here that returns a `Chart`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from butfor.analysis.arms import ReadArm
from butfor.analysis.claims import ENOUGH, Curve
from butfor.analysis.rows import COMPARED, shown_curves
from butfor.analysis.statistics import reach_summary

Array = NDArray[Any]
Row = dict[str, Any]
POINTS = 400  # of a curve: more are not visible and make the page larger
# The palette of Okabe and Ito, which colour-blind readers can tell apart.
INK, GREY, WHITE = "#222222", "#808080", "#FFFFFF"
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
STYLES: dict[str, Row] = {  # of detectors: a line and its marker
    "cai": {"colour": BLUE, "dash": "solid", "symbol": "circle"},
    "entropy": {"colour": VERMILLION, "dash": "dash", "symbol": "square"},
    "attention": {"colour": GREEN, "dash": "dashdot", "symbol": "triangle-up"},
    "contact": {"colour": PURPLE, "dash": "dot", "symbol": "diamond"},
    "moved": {"colour": ORANGE, "dash": "dot", "symbol": "star"},
    "distance": {"colour": SKY, "dash": "longdash", "symbol": "triangle-right"},
}
OTHER_STYLE: Row = {"colour": GREY, "dash": "longdash", "symbol": "cross"}  # of a detector that STYLES does not name
LINE_STYLES = [*STYLES.values(), OTHER_STYLE]
ARM_STYLES = [OTHER_STYLE, *LINE_STYLES[:4], {"colour": ORANGE, "dash": "solid", "symbol": "star"}]
DASHES = ["solid", "dash", "dashdot", "dot", "longdash"]
EVENT_STYLES = {"heuristic": (GREEN, "triangle-up"), "contact": (PURPLE, "diamond"), "influence": (ORANGE, "square")}
METRIC_NAMES = {"auc": "AUC", "ap": "average precision", "f1": "F1"}
EXPLORED = {"precision": "precision", "recall": "recall", "f1": "F1", "flagged": "flagged"}


@dataclass(frozen=True)
class Axis:
    """One axis of a chart."""

    title: str = ""
    range: tuple[float, float] | None = None
    ticks: Mapping[Any, str] | None = None
    log: bool = False
    thousands: bool = False  # write numbers as 1,000
    grid: bool = True


@dataclass(frozen=True)
class Series:
    """Values over x: a line, markers, both or bars, with a band or error bars."""

    x: Any
    y: Any
    name: str = ""
    colour: str = BLUE
    dash: str = "solid"  # "none" draws only markers
    symbol: str = "none"  # "none" draws only the line
    width: float = 2.5  # of the line, in the pixels of a page
    size: float = 8  # of the markers
    outlined: bool = False
    opacity: float = 1.0
    bars: bool = False  # draw bars instead of a line
    band: Any = None  # the lowest and the highest value at each x: [2, P]
    error: Any = None
    hover: str = ""  # the text at the pointer, in plotly's template language; empty for none
    extra: Any = None  # further values of each point, for the hover text
    group: str = ""  # the button of the page's legend that hides the series
    choice: str = ""  # the choice of the reader that shows the series: mean, iqm or seeds
    visible: bool = True
    cut_off: bool = False  # mark the last point with a cross


@dataclass(frozen=True)
class HeatMap:
    """Values [len(y), len(x)] as colours; NaN is a gap."""

    x: Array
    y: Array
    values: Array
    name: str
    unit: str
    hover: str


@dataclass(frozen=True)
class Rule:
    """A straight line across the chart at one value of an axis."""

    at: float
    axis: Literal["x", "y"]
    colour: str = INK
    dash: str = "dash"
    width: float = 1.5
    note: str = ""
    note_on_the_left: bool = False


@dataclass(frozen=True)
class Span:
    """A shaded range of an axis."""

    low: float
    high: float
    axis: Literal["x", "y"] = "x"
    colour: str = ORANGE


@dataclass(frozen=True)
class Chart:
    """What one pair of axes shows."""

    series: Sequence[Series] = ()
    x: Axis = Axis()
    y: Axis = Axis()
    title: str = ""
    heat_map: HeatMap | None = None
    rules: Sequence[Rule] = ()
    spans: Sequence[Span] = ()
    notes: Sequence[tuple[float, float, str]] = ()  # x, y and the text to the right of this point
    box: tuple[float, float] | None = None  # half the width and height of an outline around the origin
    square: bool = False  # a unit has the same length on both axes
    compare: bool = False  # the pointer shows the values of all series at its x


def detector_look(name: str) -> Row:
    """Colour, dash and symbol of a detector."""
    return STYLES.get(name, OTHER_STYLE)


def line_look(place: int) -> Row:
    """Colour, dash and symbol of the line at a place in a chart."""
    return LINE_STYLES[place % len(LINE_STYLES)]


def arm_look(place: int, count: int) -> Row:
    """Colour, dash and symbol of an arm; the first of several is grey, later ones repeat colours in new dashes."""
    styles = ARM_STYLES if count > 1 else ARM_STYLES[1:]
    look = styles[place % len(styles)]
    return look | {"dash": DASHES[(DASHES.index(look["dash"]) + place // len(styles)) % len(DASHES)]}


def guide(x: Any, y: Any, name: str = "") -> Series:
    """A thin dotted line to compare with: chance, or perfect agreement."""
    return Series(x, y, name, colour=INK, dash="dot", width=1.5)


def range_of(curves: Array) -> Array | None:
    """The lowest and the highest of curves [S, P] at each point: [2, P]; None for a single curve."""
    return np.stack([curves.min(0), curves.max(0)]) if len(curves) > 1 else None


# Detectors


def seed_curves(label: Array, scores: Array, kind: str) -> tuple[Array, Array]:
    """The ROC ("roc") or precision-recall ("pr") curve of every seed on one grid of at most POINTS: x [P], y [S, P]."""
    if kind == "roc":
        fine = np.geomspace(1e-4, 1.0, POINTS // 2 - 1)  # influence is rare, so the left end decides
        x = np.concatenate([[0.0], np.union1d(np.linspace(0.0, 1.0, POINTS // 2), fine)])
        y = np.stack([np.interp(x, *roc_curve(label, score)[:2]) for score in scores])
        y[:, 0] = 0.0  # the curve starts in the corner
        return x, y
    x = np.linspace(1.0 / POINTS, 1.0, POINTS)
    curves = [precision_recall_curve(label, score)[:2] for score in scores]
    # Precision where a recall is first reached, as in average precision: linear interpolation would be too optimistic.
    return x, np.stack([p[::-1][np.searchsorted(r[::-1], x - 1e-9)] for p, r in curves])


def seed_points(label: Array, scores: Array, kind: str) -> tuple[Array, Array]:
    """The points of each seed's yes-or-no answers [S, N] in a chart of either kind: x [S], y [S]."""
    hits = scores[:, label].sum(1)  # [S, N] -> [S]
    alarms = scores[:, ~label].sum(1)
    recall = hits / label.sum()
    if kind == "roc":
        return alarms / (~label).sum(), recall
    return recall, hits / np.maximum(hits + alarms, 1)


def detector_chart(rows: list[Row], scores: Mapping[str, Array], label: Array, kind: str) -> Chart:
    """ROC or precision-recall curves: the mean over seeds and their range; yes-or-no detectors are markers."""
    names = ("false positive rate", "true positive rate") if kind == "roc" else ("recall", "precision")
    hover = f"<b>%{{fullData.name}}</b><br>{names[0]} %{{x:.3f}}<br>{names[1]} %{{y:.3f}}<extra></extra>"
    series = []
    for row in rows:
        drawn = detector_look(row["name"]) | {"name": row["title"], "group": row["name"], "hover": hover}
        if row["binary"]:
            x, y = seed_points(label, scores[row["name"]], kind)
            series.append(Series(x, y, size=13, outlined=True, **drawn | {"dash": "none"}))
        else:
            x, curves = seed_curves(label, scores[row["name"]], kind)
            series.append(Series(x, curves.mean(0), band=range_of(curves), **drawn | {"symbol": "none"}))
    share = float(label.mean())
    series.append(guide([0.0, 1.0], [0.0, 1.0] if kind == "roc" else [share, share], "chance"))
    return Chart(series, Axis(names[0], (-0.02, 1.02)), Axis(names[1], (-0.02, 1.03)))


def histogram(values: Array, edges: Array, colour: str, what: str) -> Series:
    """The share of the values between edges, in percent."""
    counts = np.histogram(values, edges)[0]
    hover = f"about %{{x:.2f}}<br>%{{y:.3g}} % of {what}: %{{customdata}}<extra></extra>"
    middles = (edges[1:] + edges[:-1]) / 2
    return Series(middles, 100 * counts / len(values), "", colour, bars=True, opacity=0.65, hover=hover, extra=counts)


def score_chart(title: str, scores: Array, label: Array, threshold: float) -> Chart:
    """Histograms of one seed's scores [N] of influenced and of free states, each as a share of its class."""
    scores = scores.astype(float)
    low = float(scores.min())
    high = float(scores.max())
    edges = np.linspace(low, high if high > low else low + 1.0, 61)
    influenced = histogram(scores[label], edges, ORANGE, "influenced states")
    free = histogram(scores[~label], edges, GREY, "free states")
    rule = Rule(threshold, "x", note=f"best F1 at {threshold:.2f}", note_on_the_left=threshold > (low + high) / 2)
    y = Axis("% of the states of a class", log=True)
    return Chart([influenced, free], Axis(f"{title} (first seed)"), y, rules=[rule])


def explorer_chart(title: str, points: Mapping[str, Any]) -> Chart:
    """Precision, recall, F1 and the share of flagged states over the threshold, with a line at the best F1."""
    series = [
        Series(points["threshold"], points[key], name, hover=f"{name} %{{y:.3f}}<extra></extra>",
               **line_look(place) | {"symbol": "none"})
        for place, (key, name) in enumerate(EXPLORED.items())
    ]  # fmt: skip
    best = Rule(points["threshold"][points["best"]], "x", GREY, width=1)
    x = Axis(f"threshold on {title} (first seed)")
    return Chart(series, x, Axis(range=(-0.02, 1.03)), rules=[best], compare=True)


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
    edges = np.flatnonzero(np.diff(np.concatenate([[False], influenced.astype(bool), [False]]))).reshape(-1, 2)
    spans = [Span(float(first) - 0.5, float(end) - 0.5) for first, end in edges]
    mean = Series(
        np.arange(steps), scores.mean(0), "score", symbol="circle", width=2, size=5, band=range_of(scores),
        hover="%{y:.3f}",
    )  # fmt: skip
    rules = [] if threshold is None else [Rule(threshold, "y", GREY, width=1)]
    bottom = min(0.0, float(scores.min())) - 0.03 * top
    x = Axis(range=(-0.7, steps + 0.7) if positions else (-0.5, steps - 0.5))
    score = Chart([mean], x, Axis(title, (bottom, top)), rules=rules, spans=spans, compare=True)
    series = []
    for height, (name, happened) in enumerate(marks.items()):
        at = np.flatnonzero(happened)
        colour, symbol = EVENT_STYLES[name]
        heights = np.full(len(at), height)
        series.append(Series(at, heights, name, colour, "none", symbol, size=9, outlined=True, hover="yes"))
    ticks = dict(enumerate(marks))
    events = Axis(range=(-0.7, len(marks) - 0.3), ticks=ticks, grid=False)
    below = Chart(series, Axis("step", x.range), events, spans=spans)
    if positions is None:
        return [score, below]
    return [replace(positions, x=x, spans=[*positions.spans, *spans], compare=True), score, below]


def spread_chart(scores: Array, threshold: float) -> Chart:
    """A histogram of a data set's scores, with a line at the threshold."""
    scores = scores.astype(float)
    edges = np.linspace(min(0.0, float(scores.min())), max(float(scores.max()), 2 * threshold), 61)
    bars = histogram(scores, edges, BLUE, "the states")
    rule = Rule(threshold, "x", note=f"{threshold:g} nats")
    return Chart([bars], Axis("CAI (nats)"), Axis("% of the states", log=True), rules=[rule])


def amount_charts(rows: Sequence[Row], lowest: Mapping[str, float], goals: Mapping[str, float]) -> list[Chart]:
    """AUC and, in a chart below, average precision over the transitions that a model is fitted on.

    Each of `rows` has a `size` and, of the `detectors` cai and distance, mean, low and high over seeds. The axes begin
    at `lowest` of each metric; dotted lines are at its goal.
    """
    sizes = [row["size"] for row in rows]
    ticks = {size: f"{size:,}" for size in sizes}
    hover = "<b>%{fullData.name}</b>, %{x:,} transitions: %{y:.3f}<extra></extra>"
    found = []
    for metric, bottom in lowest.items():
        series = []
        for name, title in (("cai", "CAI"), ("distance", "distance")):
            values = [row["detectors"][name][metric] for row in rows if name in row["detectors"]]
            if values:
                mean, low, high = (np.array([value[key] for value in values]) for key in ("mean", "low", "high"))
                band = np.stack([low, high]) if (high - low).max() > 1e-9 else None
                series.append(Series(sizes, mean, title, band=band, hover=hover, **detector_look(name)))
        y = Axis(METRIC_NAMES[metric], (bottom, 1 + 0.03 * (1 - bottom)))
        rule = Rule(goals[metric], "y", GREY, "dot", width=1)
        found.append(Chart(series, Axis(ticks=ticks, log=True), y, rules=[rule]))
    return [*found[:-1], replace(found[-1], x=replace(found[-1].x, title="transitions"))]


# Studies of a detection run


def noise_chart(levels: Sequence[float], lines: list[Row], metric: str) -> Chart:
    """A metric over evenly spaced noise levels: mean and range over seeds; lines[i][metric] is [L, S]."""
    series = [
        Series(np.arange(len(levels)), line[metric].mean(1), line["title"], band=range_of(line[metric].T),
               hover="%{fullData.name}: %{y:.3f}<extra></extra>", **line_look(place))
        for place, line in enumerate(lines)
    ]  # fmt: skip
    ticks = {place: f"{100 * level:g}" for place, level in enumerate(levels)}
    return Chart(series, Axis("noise level (%)", ticks=ticks), Axis(METRIC_NAMES[metric]))


def count_axis(groups: list[Row]) -> Axis:
    """A logarithmic axis with a tick at each number of actions."""
    counts = sorted({int(row["first"]) for group in groups for row in group["rows"]})
    return Axis("number of actions K", ticks={count: str(count) for count in counts}, log=True)


def actions_chart(groups: list[Row]) -> Chart:
    """Average precision over the number of actions, one line for each way of sampling and form of the KL."""
    series = []
    for place, group in enumerate(groups):
        counts = np.array([int(row["first"]) for row in group["rows"]])
        aside = 1.02 ** (place - (len(groups) - 1) / 2)  # so that error bars do not hide each other
        mean, std = ([row["ap"][key] for row in group["rows"]] for key in ("mean", "std"))
        hover = "<b>%{fullData.name}</b><br>%{customdata} actions: %{y:.3f}<extra></extra>"
        title = group["title"].replace("; ", ";\n")
        series.append(Series(aside * counts, mean, title, error=std, hover=hover, extra=counts, **line_look(place)))
    return Chart(series, count_axis(groups), Axis(METRIC_NAMES["ap"]))


def reference_chart(clouds: Sequence[Series], title: str = "estimate (nats)") -> Chart:
    """Estimates over reference values; on the diagonal they are equal."""
    both = np.concatenate([np.concatenate([cloud.x, cloud.y]) for cloud in clouds])
    low = float(both.min())
    high = float(both.max())
    margin = 0.04 * (high - low) or 1.0
    ends = (low - margin, high + margin)
    series = [*clouds, guide([low, high], [low, high])]
    return Chart(series, Axis("reference (nats)", ends), Axis(title, ends))


def cloud(points: Array, **options: Any) -> Series:
    """Points [P, 2] of a chart of references."""
    x, y = points.T
    hover = "reference %{x:.3f}<br>estimate %{y:.3f}<extra></extra>"
    return Series(x, y, hover=hover, size=5, opacity=0.55, **{"symbol": "circle"} | options | {"dash": "none"})


def bias_chart(groups: list[Row]) -> Chart:
    """The bias of the estimate over the number of actions."""
    series = []
    for place, group in enumerate(groups):
        rows = sorted(group["rows"], key=lambda row: int(row["first"]))
        counts = [int(row["first"]) for row in rows]
        series.append(Series(counts, [row["bias"] for row in rows], group["title"], **line_look(place)))
    return Chart(series, count_axis(groups), Axis("bias (nats)"), rules=[Rule(0.0, "y", dash="dot")])


def decisions_chart(groups: list[Row], title: str = "") -> Chart:
    """The realised share of false discoveries over its limit; on or below the diagonal the limit is kept."""
    end = 1.15 * max(100 * row["target"] for group in groups for row in group["rows"])
    top = end
    series = []
    for place, group in enumerate(groups):
        known = [row for row in group["rows"] if row["realised"] is not None]
        x, y, error = (
            np.array([100 * (row[key] or 0.0) for row in known]) for key in ("target", "realised", "realised_std")
        )
        top = max([top, *(y + error)])
        hover = "<b>%{fullData.name}</b><br>limit %{x:.3g} %<br>realised %{y:.3g} %<extra></extra>"
        series.append(
            Series(x, y, group["title"], size=10, outlined=True, error=error, hover=hover, **line_look(place))
        )
    series.append(guide([0.0, end], [0.0, end]))
    x_axis = Axis("limit (%)", (-0.04 * end, end))
    return Chart(series, x_axis, Axis("realised (%)", (-0.03 * top, 1.05 * top)), title)


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


def map_chart(around: Mapping[str, Array], key: str, name: str, unit: str) -> Chart:
    """A quantity [ny, nx] over the gripper's position around the object, which is outlined; lengths in cm."""
    hover = f"x %{{x:.3g}} cm, y %{{y:.3g}} cm<br>%{{z:.3g}} {unit}<extra></extra>"
    heat = HeatMap(around["x"], around["y"], around[key], name, unit, hover)
    width, depth = around["half"].tolist()
    x = Axis("x (cm)", grid=False)
    return Chart(x=x, y=Axis("y (cm)", grid=False), heat_map=heat, box=(width, depth), square=True)


# Training runs


def learning_chart(
    given: Sequence[tuple[ReadArm, Curve]],
    looks: Mapping[str, Row],
    measure: str,
    choices: Sequence[str] = ("mean",),
    title: str = "",
) -> Chart:
    """Curves over episodes; `choices` of mean, iqm and seeds are drawn, of which the mean is visible at first."""
    hover = "<b>%{fullData.name}</b><br>%{x:,} episodes<br>%{y:.2f}"
    interval = " [%{customdata[0]:.2f}, %{customdata[1]:.2f}]<extra></extra>"
    places = {label: place for place, label in enumerate(looks)}
    series: list[Series] = []
    tops = [0.0]
    for arm, curve in given:
        shown = shown_curves(curve)
        seeds = len(curve.success)
        name = f"{shorten(arm.label, 36)}, {seeds} seed{'' if seeds == 1 else 's'}"
        name += ", range" if 1 < seeds < ENOUGH else ""
        common: Row = {**looks[arm.label], "group": f"arm-{places[arm.label]}"}
        for choice in [choice for choice in choices if choice != "seeds"]:
            edges = np.stack([shown[f"{choice}_low"], shown[f"{choice}_high"]])  # [2, E]
            tops.append(float(edges[1].max()))
            series.append(Series(
                curve.episodes, shown[choice], name, size=6, band=edges if seeds > 1 else None, extra=edges.T,
                hover=hover + interval, choice=choice, visible=choice == "mean", cut_off=arm.state != "finished",
                **common,
            ))  # fmt: skip
        for seed, values in zip(arm.seeds, curve.success, strict=True) if "seeds" in choices else ():
            tops.append(float(values.max()))
            series.append(Series(
                curve.episodes, values, name, width=1.2, hover=f"{hover}, seed {seed}<extra></extra>", choice="seeds",
                visible=False, **common | {"symbol": "none"},
            ))  # fmt: skip
    top = max(tops)
    end = max(int(curve.episodes[-1]) for _, curve in given)
    y_range = (-0.02, 1.03) if top > 0.5 else (-0.02 * top, 1.08 * top or 1.0)
    x = Axis("episodes of each seed", (0, 1.02 * end), thousands=True)
    return Chart(series, x, Axis(measure, y_range), title)


def reach_chart(given: Sequence[tuple[ReadArm, Curve]], looks: Mapping[str, Row]) -> Chart:
    """Episodes to reach 60 % success: median and 95 % interval; an arrow if the median seed did not reach it."""
    series = []
    notes = []
    for height, (arm, curve) in enumerate(reversed(given)):
        reach = reach_summary(curve.episodes, curve.success, COMPARED)
        colour = looks[arm.label]["colour"]
        low, high = (min(reach.each), max(reach.each)) if len(reach.each) < ENOUGH else (reach.low, reach.high)
        ends = [min(low, reach.limit), high if math.isfinite(high) else reach.limit]
        series.append(Series(ends, [height, height], colour=colour, width=4.8, opacity=0.45))
        symbol = "triangle-right" if reach.is_bound else looks[arm.label]["symbol"]
        series.append(Series([reach.value], [height], colour=colour, dash="none", symbol=symbol, size=12))
        text = f"  > {reach.limit:,}" if reach.is_bound else f"  {reach.value:,.0f}"
        notes.append((max(ends[1], reach.value), height, text))
    end = 1.15 * max(x for x, _, _ in notes)  # with space for the notes
    ticks = {height: shorten(arm.label) for height, (arm, _) in enumerate(reversed(given))}
    x = Axis(f"episodes to {100 * COMPARED:g} % success, median seed", (0, end), thousands=True)
    return Chart(series, x, Axis(range=(-0.6, len(given) - 0.4), ticks=ticks, grid=False), notes=notes)


def heat_chart(episodes: Array, values: Array, name: str, unit: str) -> Chart:
    """A quantity [T, x] over the steps of an episode and groups of episodes."""
    hover = f"%{{x:,}} episodes, step %{{y}}<br>%{{z:.3g}} {unit}<extra></extra>"
    heat = HeatMap(episodes, np.arange(len(values)), values, name, unit, hover)
    return Chart(x=Axis("episodes", thousands=True, grid=False), y=Axis("step", grid=False), heat_map=heat)


def shorten(text: str, most: int = 44) -> str:
    """A name that fits into a legend or a line."""
    return text if len(text) <= most else text[: most - 2] + " …"
