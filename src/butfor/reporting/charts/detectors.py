"""Charts of detectors: their curves, scores and thresholds, and the studies of a detection run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.metrics import precision_recall_curve, roc_curve

from butfor.reporting.charts.chart import (
    GREY,
    ORANGE,
    Array,
    Axis,
    Chart,
    Row,
    Rule,
    Series,
    detector_look,
    guide,
    histogram,
    line_look,
    range_of,
)

POINTS = 400  # of a curve: more are not visible and make the page larger
METRIC_NAMES = {"auc": "AUC", "ap": "average precision", "f1": "F1"}
EXPLORED = {"precision": "precision", "recall": "recall", "f1": "F1", "flagged": "flagged"}


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
