"""The charts of a report: arrays and numbers -> plotly figures in one look."""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots
from sklearn.metrics import precision_recall_curve, roc_curve

Array = NDArray[Any]
Row = dict[str, Any]
Track = tuple[str, Array, str, str]  # name, values over the steps, colour, dash or symbol
POINTS = 400  # of a curve: more cannot be seen and only makes the page heavy
# Okabe and Ito's palette, safe for colour-blind readers; DARK maps to the twin for a dark page.
INK, GREY, WHITE = "#222222", "#808080", "#FFFFFF"
BLUE, VERMILLION, GREEN, PURPLE, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
DARK = {INK: "#E8E8E8", WHITE: "#16191D", BLUE: "#56B4E9", "rgba(0,114,178,": "rgba(86,180,233,"}
STYLES = {  # detector: colour, dash of its line, symbol of its marker
    "cai": (BLUE, "solid", "circle"),
    "entropy": (VERMILLION, "dash", "square"),
    "attention": (GREEN, "dashdot", "triangle-up"),
    "contact": (PURPLE, "dot", "diamond"),
    "moved": (ORANGE, "dot", "star"),
}
OTHER_STYLE = (GREY, "longdash", "cross")  # of a detector this file does not know
LOOKS = [*STYLES.values(), OTHER_STYLE]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
EXPLORED = {"precision": "precision", "recall": "recall", "f1": "F1", "flagged": "flagged"}
THIN = {"color": INK, "width": 1.5, "dash": "dot"}


def look(name: str, place: int | None = None) -> dict[str, str]:
    """Colour, dash and symbol of a detector, or of the line at a place in a chart."""
    chosen = STYLES.get(name, OTHER_STYLE) if place is None else LOOKS[place % len(LOOKS)]
    return dict(zip(("colour", "dash", "symbol"), chosen, strict=True))


def plain(values: Any) -> Any:
    """A list of rounded numbers: their text is much of the page."""
    return np.round(np.asarray(values, float), 5).tolist()


def translucent(colour: str, alpha: float) -> str:
    """#RRGGBB with an alpha channel."""
    return f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:], 16)},{alpha})"


def band(colour: str, x: Any, curves: Array) -> dict[str, Any]:
    """The range of curves [S, P] over x [P] as a filled shape."""
    edge, fill = np.concatenate([curves.max(0), curves.min(0)[::-1]]), {"fill": "toself", "mode": "lines"}
    return fill | {"x": plain([*x, *x[::-1]]), "y": plain(edge), "fillcolor": translucent(colour, 0.18),
                   "line": {"width": 0}, "hoverinfo": "skip"}  # fmt: skip


def style(figure: Any, x_title: str, y_title: str) -> Any:
    """Give a figure the look of the page; the colours of text and grid come from the page's style sheet."""
    figure.update_layout(
        template="none", autosize=True, showlegend=False, dragmode=False, hovermode="closest",
        font={"family": FONT, "size": 13}, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 54, "r": 12, "t": 12, "b": 46},
        hoverlabel={"bgcolor": INK, "bordercolor": INK, "font": {"color": WHITE, "family": FONT}},
    )  # fmt: skip
    for update, title in ((figure.update_xaxes, x_title), (figure.update_yaxes, y_title)):
        update(title={"text": title, "standoff": 8, "font": {"size": 13}}, zeroline=False, fixedrange=True)
    return figure


def seed_curves(label: Array, scores: Array, kind: str) -> tuple[Array, Array]:
    """ROC ("roc") or precision-recall ("pr") curve of every seed on one grid of at most POINTS: x [P], y [S, P]."""
    if kind == "roc":
        fine = np.geomspace(1e-4, 1.0, POINTS // 2 - 1)  # influence is rare: what matters happens at the left end
        x = np.concatenate([[0.0], np.union1d(np.linspace(0.0, 1.0, POINTS // 2), fine)])
        y = np.stack([np.interp(x, *roc_curve(label, score)[:2]) for score in scores])
        y[:, 0] = 0.0  # the curve starts in the corner
        return x, y
    x = np.linspace(1.0 / POINTS, 1.0, POINTS)
    curves = [precision_recall_curve(label, score)[:2] for score in scores]
    # Precision where a recall is first reached, as in average precision: straight lines in between would flatter.
    return x, np.stack([p[::-1][np.searchsorted(r[::-1], x - 1e-9)] for p, r in curves])


def seed_points(label: Array, scores: Array, kind: str) -> tuple[Array, Array]:
    """Where each seed's yes-or-no answers [S, N] stand in a chart of either kind: x [S], y [S]."""
    hits, alarms = scores[:, label].sum(1), scores[:, ~label].sum(1)  # [S, N] -> [S]
    recall, precision = hits / label.sum(), hits / np.maximum(hits + alarms, 1)
    return (alarms / (~label).sum(), recall) if kind == "roc" else (recall, precision)


def curve_figure(rows: list[Row], detectors: dict[str, Array], label: Array, kind: str) -> Any:
    """ROC or precision-recall: mean over seeds with their range as a band, yes-or-no detectors as markers."""
    figure, share = go.Figure(), float(label.mean())
    axes = ("false positive rate", "true positive rate") if kind == "roc" else ("recall", "precision")
    hover = f"<b>%{{fullData.name}}</b><br>{axes[0]} %{{x:.3f}}<br>{axes[1]} %{{y:.3f}}<extra></extra>"
    for row in rows:
        scores, colour = detectors[row["name"]], row["colour"]
        common = {"name": html.escape(row["title"]), "legendgroup": row["name"]}
        if row["binary"]:
            x, y = seed_points(label, scores, kind)
            marker = {"color": colour, "symbol": row["symbol"], "size": 13, "line": {"color": INK, "width": 1}}
            figure.add_scatter(x=plain(x), y=plain(y), mode="markers", marker=marker, cliponaxis=False,
                               hovertemplate=hover, **common)  # fmt: skip
            continue
        x, curves = seed_curves(label, scores, kind)
        if len(scores) > 1:
            figure.add_scatter(**band(colour, x, curves), **common)
        line = {"color": colour, "dash": row["dash"], "width": 2.5}
        figure.add_scatter(x=plain(x), y=plain(curves.mean(0)), mode="lines", line=line, hovertemplate=hover, **common)
    chance = [0.0, 1.0] if kind == "roc" else [share, share]
    figure.add_scatter(x=[0.0, 1.0], y=plain(chance), mode="lines", line=THIN, hoverinfo="skip", name="chance")
    figure.update_xaxes(range=[-0.02, 1.02]).update_yaxes(range=[-0.02, 1.03])
    return style(figure, *axes)


def score_figure(title: str, scores: Array, label: Array, threshold: float) -> Any:
    """Histograms of the first seed's scores of influenced and of free states, each as a share of its own class."""
    figure, scores = go.Figure(), scores.astype(float)
    low, high = float(scores.min()), float(scores.max())
    edges = np.linspace(low, high if high > low else low + 1.0, 61)
    for name, chosen, colour in (("influenced", label, ORANGE), ("free", ~label, GREY)):
        counts = np.histogram(scores[chosen], edges)[0]
        figure.add_bar(
            x=plain((edges[1:] + edges[:-1]) / 2), y=plain(100 * counts / chosen.sum()), width=edges[1] - edges[0],
            customdata=counts.tolist(), marker={"color": colour, "line": {"color": colour, "width": 1}}, opacity=0.65,
            hovertemplate=f"about %{{x:.2f}}<br>%{{y:.3g}} % of {name} states: %{{customdata}}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0).update_yaxes(type="log", dtick=1)
    figure.add_vline(x=threshold, line={"color": INK, "width": 1.5, "dash": "dash"})
    figure.add_annotation(x=threshold, y=1, yref="paper", text=f" best F1 at {threshold:.2f} ", showarrow=False,
                          xanchor="right" if threshold > (low + high) / 2 else "left", yanchor="top")  # fmt: skip
    return style(figure, f"{html.escape(title)} (first seed)", "% of the states of a class")


def episode_figure(tracks: list[Track], scores: Array, events: list[Track], threshold: float, top: float) -> Any:
    """Tracks if any, score [S, T] and events of one episode over its steps; shape 0 is the cursor."""
    heights = [0.48, 0.36, 0.16] if tracks else [0.68, 0.32]
    figure = make_subplots(len(heights), 1, shared_xaxes=True, vertical_spacing=0.045, row_heights=heights)
    score_row, event_row = len(heights) - 1, len(heights)
    whole = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    figure.add_shape(whole | {"type": "line", "x0": 0, "x1": 0, "line": {"color": INK, "width": 1.5}})
    shade = {"type": "rect", "fillcolor": translucent(ORANGE, 0.18), "line": {"width": 0}, "layer": "below"}
    for step in np.flatnonzero(events[-1][1]).tolist():  # where there is influence
        figure.add_shape(whole | shade | {"x0": step - 0.5, "x1": step + 0.5})
    for name, values, colour, dash in tracks:
        line = {"color": colour, "dash": dash, "width": 2.5}
        figure.add_scatter(y=plain(values), name=name, mode="lines", line=line, hovertemplate="%{y:.2f}", row=1, col=1)
    figure.add_scatter(**band(BLUE, range(scores.shape[1]), scores), row=score_row, col=1)
    figure.add_scatter(y=plain(scores.mean(0)), name="score", mode="lines+markers", line={"color": BLUE, "width": 2},
                       marker={"size": 5}, hovertemplate="%{y:.3f}", row=score_row, col=1)  # fmt: skip
    figure.add_hline(threshold, row=score_row, col=1, line={"color": GREY, "width": 1, "dash": "dash"})
    for height, (name, happened, colour, symbol) in enumerate(events):
        at = np.flatnonzero(happened).tolist()
        marker = {"color": colour, "symbol": symbol, "size": 9, "line": {"color": INK, "width": 0.5}}
        figure.add_scatter(x=at, y=[height] * len(at), name=name, mode="markers", marker=marker, hovertemplate="yes",
                           row=event_row, col=1)  # fmt: skip
    style(figure, "", "").update_layout(hovermode="x", margin={"l": 78, "t": 6})
    figure.update_xaxes(range=[-0.7, scores.shape[1] + 0.7]).update_xaxes(title_text="step", row=event_row, col=1)
    figure.update_yaxes(range=[min(0.0, float(scores.min())) - 0.03 * top, top], row=score_row, col=1)
    names = {"tickvals": list(range(len(events))), "ticktext": [name for name, *_ in events], "showgrid": False}
    return figure.update_yaxes(**names, range=[-0.7, len(events) - 0.3], row=event_row, col=1)


def film_figure(title: str, scores: Array, events: list[Track], threshold: float, top: float) -> Any:
    """Score [S, T] and events under a strip of frames: each frame stands over its share of the steps."""
    figure = episode_figure([], scores, events, threshold, top).update_xaxes(range=[-0.5, scores.shape[1] - 0.5])
    return figure.update_yaxes(title_text=html.escape(title), row=1, col=1)


def explorer_figure(title: str, points: dict[str, Any]) -> Any:
    """Precision, recall, F1 and share flagged over the threshold; shape 0 is the cursor, a dashed line the best F1."""
    figure, best = go.Figure(), points["threshold"][points["best"]]
    whole = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "x0": best, "x1": best}
    figure.add_shape(whole | {"line": {"color": INK, "width": 1.5}})
    figure.add_shape(whole | {"line": {"color": GREY, "width": 1, "dash": "dash"}})
    for place, (key, name) in enumerate(EXPLORED.items()):
        drawn = look("", place)
        figure.add_scatter(
            x=points["threshold"],
            y=points[key],
            name=name,
            mode="lines",
            line={"color": drawn["colour"], "dash": drawn["dash"], "width": 2.5},
            hovertemplate=f"{name} %{{y:.3f}}<extra></extra>",
        )
    figure.update_yaxes(range=[-0.02, 1.03])
    return style(figure, f"threshold on {html.escape(title)} (first seed)", "").update_layout(hovermode="x")


def noise_figure(levels: Sequence[float], lines: list[Row], metric: str) -> Any:
    """A metric over noise levels, evenly spaced: mean over seeds with their range; lines[i][metric] is [L, S]."""
    figure, x = go.Figure(), list(range(len(levels)))
    for line in lines:
        values = line[metric].T  # [L, S] -> [S, L]
        if len(values) > 1:
            figure.add_scatter(**band(line["colour"], x, values))
        figure.add_scatter(
            x=x,
            y=plain(values.mean(0)),
            mode="lines+markers",
            name=line["title"],
            line={"color": line["colour"], "dash": line["dash"], "width": 2.5},
            marker={"symbol": line["symbol"], "size": 8},
            hovertemplate=f"{line['title']}: %{{y:.3f}}<extra></extra>",
        )
    figure.update_xaxes(tickvals=x, ticktext=[f"{100 * level:g}" for level in levels])
    return style(figure, "noise level (%)", "")


def actions_figure(groups: list[Row]) -> Any:
    """Average precision over the number of actions, by how they are drawn and the form of the KL."""
    figure, counts = go.Figure(), sorted({int(row["first"]) for group in groups for row in group["rows"]})
    for place, group in enumerate(groups):
        side = 1.02 ** (place - (len(groups) - 1) / 2)  # so that no bar hides another
        figure.add_scatter(
            x=plain([side * int(row["first"]) for row in group["rows"]]),
            customdata=[row["first"] for row in group["rows"]],
            y=plain([row["ap"]["mean"] for row in group["rows"]]),
            mode="lines+markers",
            name=html.escape(group["title"]),
            line={"color": group["colour"], "dash": group["dash"], "width": 2.5},
            marker={"symbol": group["symbol"], "size": 8},
            error_y={"type": "data", "array": plain([row["ap"]["std"] for row in group["rows"]]), "thickness": 1.2},
            hovertemplate="<b>%{fullData.name}</b><br>%{customdata} actions: %{y:.3f}<extra></extra>",
        )
    figure.update_xaxes(type="log", tickvals=counts, ticktext=[str(count) for count in counts])
    return style(figure, "number of actions K", "average precision")


def reference_figure(entries: list[Row]) -> Any:
    """Estimates over reference values, one trace an entry, only the first visible; the diagonal is perfect."""
    figure = go.Figure()
    both = np.concatenate([entry["points"].reshape(-1) for entry in entries])
    low, high = float(both.min()), float(both.max())
    edge = 0.04 * (high - low) or 1.0
    for place, entry in enumerate(entries):
        x, y = entry["points"].T
        marker = {"color": BLUE, "size": 5, "opacity": 0.55}
        figure.add_scatter(
            x=plain(x),
            y=plain(y),
            mode="markers",
            marker=marker,
            visible=place == 0,
            hovertemplate="reference %{x:.3f}<br>estimate %{y:.3f}<extra></extra>",
        )
    figure.add_scatter(x=plain([low, high]), y=plain([low, high]), mode="lines", line=THIN, hoverinfo="skip")
    figure.update_xaxes(range=[low - edge, high + edge]).update_yaxes(range=[low - edge, high + edge])
    return style(figure, "reference (nats)", "estimate (nats)")


def decisions_figure(groups: list[Row]) -> Any:
    """Realised over promised share of false discoveries; on or below the diagonal the promise is kept."""
    figure, ends = go.Figure(), [0.0]
    for group in groups:
        drawn = [row for row in group["rows"] if row["realised"] is not None]
        x, y, error = ([100 * (row[key] or 0.0) for row in drawn] for key in ("target", "realised", "realised_std"))
        figure.add_scatter(
            x=plain(x),
            y=plain(y),
            mode="lines+markers",
            name=html.escape(group["title"]),
            line={"color": group["colour"], "dash": group["dash"], "width": 2.5},
            marker={"symbol": group["symbol"], "size": 10, "line": {"color": INK, "width": 0.5}},
            error_y={"type": "data", "array": plain(error), "thickness": 1.2, "width": 4},
            hovertemplate="<b>%{fullData.name}</b><br>promised %{x:.3g} %<br>realised %{y:.3g} %<extra></extra>",
        )
        ends += x
    line = [0.0, 1.15 * max(ends)]
    figure.add_scatter(x=plain(line), y=plain(line), mode="lines", line=THIN, hoverinfo="skip")
    figure.update_xaxes(range=[-0.04 * line[1], line[1]]).update_yaxes(rangemode="tozero")
    return style(figure, "promised at most (%)", "realised (%)")


def reliability_figure(levels: Array, realised: Array) -> Any:
    """Realised share of outcomes over the level of the model's central intervals; the diagonal is perfect."""
    figure = go.Figure()
    figure.add_scatter(x=[0.0, 1.0], y=[0.0, 1.0], mode="lines", line=THIN, hoverinfo="skip")
    figure.add_scatter(
        x=plain(levels),
        y=plain(realised),
        mode="lines+markers",
        line={"color": BLUE, "width": 2.5},
        hovertemplate="interval of %{x:.0%}<br>holds %{y:.1%}<extra></extra>",
    )
    figure.update_xaxes(range=[-0.02, 1.02], tickformat=".0%").update_yaxes(range=[-0.02, 1.03], tickformat=".0%")
    return style(figure, "expected inside", "found inside")


def gain_figure(score: Array, gain: Array, error: Array) -> Any:
    """How much the taken action improves the prediction, by groups of states of rising score."""
    figure, x = go.Figure(), list(range(1, len(score) + 1))
    figure.add_hline(0.0, line={"color": INK, "width": 1})
    figure.add_scatter(
        x=x,
        y=plain(gain),
        mode="markers",
        marker={"color": BLUE, "size": 9},
        customdata=plain(score),
        error_y={"type": "data", "array": plain(error), "thickness": 1.5, "width": 4, "color": BLUE},
        hovertemplate="group %{x}, CAI about %{customdata:.3g}<br>%{y:.3g} nats<extra></extra>",
    )
    figure.update_xaxes(tickvals=x, range=[0.4, len(score) + 0.6], showgrid=False)
    return style(figure, "group of states, by rising CAI", "gain (nats)")


def map_figure(x: Array, y: Array, values: Array, half: Array, unit: str) -> Any:
    """A quantity [ny, nx] over the gripper's place in cm around the object, which is outlined."""
    figure = go.Figure()
    bar = {"thickness": 12, "outlinewidth": 0, "ypad": 0, "title": {"text": unit, "side": "top", "font": {"size": 13}}}
    figure.add_heatmap(
        x=plain(x),
        y=plain(y),
        z=plain(values),
        colorscale="Cividis",
        colorbar=bar,
        hoverongaps=False,
        hovertemplate=f"x %{{x:.3g}} cm, y %{{y:.3g}} cm<br>%{{z:.3g}} {unit}<extra></extra>",
    )
    width, depth = half.tolist()
    box = {"type": "rect", "x0": -width, "x1": width, "y0": -depth, "y1": depth}
    for colour, thickness in ((INK, 4.5), (WHITE, 2)):  # a light line in a dark one shows on every ground
        figure.add_shape(box | {"line": {"color": colour, "width": thickness}})
    style(figure, "x (cm)", "y (cm)").update_xaxes(constrain="domain", showgrid=False)
    figure.update_yaxes(scaleanchor="x", constrain="domain", showgrid=False)
    return figure.update_layout(margin={"t": 30, "r": 4})
