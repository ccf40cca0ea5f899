"""The page of a scored data set: how the scores are spread, telling episodes, and whether to trust them; no torch."""

import html
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from butfor.reporting.charts import (
    BLUE,
    DARK,
    INK,
    Array,
    gain_figure,
    look,
    plain,
    reliability_figure,
    style,
)
from butfor.reporting.page import render_page

SHOWN = 3  # episodes of either kind
MOST_POINTS = 600  # of a line: more cannot be seen and only makes the page heavy
QUANTILE_NAMES = {"0.05": "5 %", "0.25": "25 %", "0.5": "median", "0.75": "75 %", "0.95": "95 %"}


def render_scores(summary: Mapping[str, Any], scores: Mapping[str, Array], length: Array) -> str:
    """The page as text, from a summary, the scores [S] of each entity and the length [E] of each episode."""
    figures: dict[str, Any] = {}
    rows = []
    for place, (name, score) in enumerate(scores.items()):
        kinds = choose_episodes(score, length)
        top = 1.05 * max(float(score.max()), summary["threshold"])
        figures[f"spread-{place}"] = spread_figure(score, summary["threshold"])
        shown = {}
        for kind, chosen in kinds.items():
            figures[f"{kind}-{place}"] = timeline_figure(score, length, chosen, summary["threshold"], top)
            titles = [f"episode {number}" for number in chosen]
            shown[kind] = [{"title": title, "binary": False, **look("", at)} for at, title in enumerate(titles)]
        quantiles = [(QUANTILE_NAMES.get(key, key), value) for key, value in _of(summary, name)["quantiles"].items()]
        rows.append({"name": name, "place": place, "shown": shown, **_of(summary, name), "quantiles": quantiles})
    diagnosis = []
    for place, (name, found) in enumerate(summary["diagnosis"].items()):
        levels, groups = found["reliability"], found["gain_by_score"]
        figures[f"reliability-{place}"] = reliability_figure(levels["levels"], levels["realised"])
        figures[f"gain-{place}"] = gain_figure(*(np.asarray(groups[key]) for key in ("score", "gain", "error")))
        one = {"name": name, "words": found["words"], "trusted": found["trusted"]}
        diagnosis.append(one | {"reliability": f"reliability-{place}", "gain": f"gain-{place}"})
    told = ("source", "out", "model", "saved_model", "seconds", "butfor")
    about = {key: summary[key] for key in told if summary.get(key) is not None}
    return render_page(
        "scores.html.j2", {"dark": DARK, "figures": figures}, summary=summary, rows=rows, diagnosis=diagnosis,
        about=about, parts={path or "the observation": size for path, size in summary["parts"].items()},
    )  # fmt: skip


def _of(summary: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An entity's numbers."""
    found: dict[str, Any] = summary["entities"][name]
    return found


def choose_episodes(score: Array, length: Array) -> dict[str, list[int]]:
    """The episodes with the highest and with the lowest mean score, none in both: {"most": [...], "least": [...]}."""
    first = np.cumsum(length + 1) - length - 1
    order = np.argsort(-np.add.reduceat(score, first) / (length + 1), kind="stable").tolist()
    most = order[: max(1, min(SHOWN, len(order) // 2))]
    least = [number for number in order[::-1][:SHOWN] if number not in most]
    return {"most": most} | ({"least": least} if least else {})


def spread_figure(score: Array, threshold: float) -> Any:
    """A histogram of the scores as shares of all states, with a line at the threshold."""
    figure, score = go.Figure(), score.astype(float)
    low, high = min(0.0, float(score.min())), max(float(score.max()), 2 * threshold)
    edges = np.linspace(low, high, 61)
    counts = np.histogram(score, edges)[0]
    figure.add_bar(
        x=plain((edges[1:] + edges[:-1]) / 2), y=plain(100 * counts / len(score)), width=edges[1] - edges[0],
        customdata=counts.tolist(), marker={"color": BLUE, "line": {"color": BLUE, "width": 1}}, opacity=0.75,
        hovertemplate="about %{x:.2f} nats<br>%{y:.3g} % of the states: %{customdata}<extra></extra>",
    )  # fmt: skip
    figure.add_vline(x=threshold, line={"color": INK, "width": 1.5, "dash": "dash"})
    figure.add_annotation(x=threshold, y=1, yref="paper", text=f" {threshold:g} nats ", showarrow=False, xanchor="left",
                          yanchor="top")  # fmt: skip
    figure.update_layout(bargap=0).update_yaxes(type="log", dtick=1)
    return style(figure, "CAI (nats)", "% of the states")


def timeline_figure(score: Array, length: Array, chosen: list[int], threshold: float, top: float) -> Any:
    """The scores of some episodes over their steps; of long ones, the highest in each stretch."""
    figure, first = go.Figure(), np.cumsum(length + 1) - length - 1
    for place, number in enumerate(chosen):
        values = score[first[number] : first[number] + length[number] + 1]
        starts = np.arange(0, len(values), -(-len(values) // MOST_POINTS))
        drawn, name = look("", place), html.escape(f"episode {number}")
        figure.add_scatter(
            x=starts.tolist(), y=plain(np.maximum.reduceat(values, starts)), name=name, mode="lines",
            line={"color": drawn["colour"], "dash": drawn["dash"], "width": 2},
            hovertemplate=f"{name}, step %{{x}}<br>%{{y:.3f}} nats<extra></extra>",
        )  # fmt: skip
    figure.add_hline(threshold, line={"color": INK, "width": 1, "dash": "dash"})
    figure.update_yaxes(range=[-0.03 * top, top])
    return style(figure, "step", "CAI (nats)")
