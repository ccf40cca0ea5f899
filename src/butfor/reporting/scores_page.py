"""The page of a scored data set: the distribution of the scores, episodes, and whether the model can be trusted."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from butfor.reporting import charts
from butfor.reporting.charts import Array, Axis, Chart, Row
from butfor.reporting.page import render_page
from butfor.reporting.plotly_renderer import draw

SHOWN = 3  # episodes with the most and with the least influence
MOST_POINTS = 600  # of a line: more are not visible and make the page larger
QUANTILE_NAMES = {"0.05": "5 %", "0.25": "25 %", "0.5": "median", "0.75": "75 %", "0.95": "95 %"}


def render_scores(summary: Mapping[str, Any], scores: Mapping[str, Array], length: Array) -> str:
    """The page as text, from the summary that `butfor score` writes, scores [S] by entity and lengths [E]."""
    figures: dict[str, Any] = {}
    rows = []
    for place, (name, score) in enumerate(scores.items()):
        figures[f"spread-{place}"] = draw(charts.spread_chart(score, summary["threshold"]))
        shown = {}
        for kind, chosen in choose_episodes(score, length).items():
            figures[f"{kind}-{place}"] = draw(scores_chart(score, length, chosen, summary["threshold"]))
            shown[kind] = [f"episode {number}" for number in chosen]
        entity: Row = summary["entities"][name]
        quantiles = [(QUANTILE_NAMES.get(key, key), value) for key, value in entity["quantiles"].items()]
        rows.append({"name": name, "place": place, "shown": shown} | entity | {"quantiles": quantiles})
    diagnosis = []
    for place, (name, found) in enumerate(summary["diagnosis"].items()):
        levels, realised = (np.asarray(found["reliability"][key]) for key in ("levels", "realised"))
        gain = [np.asarray(found["gain_by_score"][key]) for key in ("score", "gain", "error")]
        figures[f"reliability-{place}"] = draw(charts.reliability_chart([("", levels, realised)]))
        figures[f"gain-{place}"] = draw(charts.gain_chart(*gain))
        diagnosis.append(found | {"name": name, "reliability": f"reliability-{place}", "gain": f"gain-{place}"})
    about = ("source", "out", "model", "saved_model", "seconds", "butfor")
    return render_page(
        "scores.html.j2",
        {"figures": figures},
        summary=summary,
        rows=rows,
        diagnosis=diagnosis,
        about={key: summary[key] for key in about if summary.get(key) is not None},
        parts={path or "the observation": size for path, size in summary["parts"].items()},
    )


def choose_episodes(score: Array, length: Array) -> dict[str, list[int]]:
    """The episodes with the highest and with the lowest mean score, none in both: {"most": [...], "least": [...]}."""
    first = np.cumsum(length + 1) - length - 1
    order = np.argsort(-np.add.reduceat(score, first) / (length + 1), kind="stable").tolist()
    most = order[: max(1, min(SHOWN, len(order) // 2))]
    least = [number for number in order[::-1][:SHOWN] if number not in most]
    return {"most": most} | ({"least": least} if least else {})


def scores_chart(score: Array, length: Array, chosen: list[int], threshold: float) -> Chart:
    """The scores of some episodes over their steps; of long episodes, the highest score in each interval."""
    first = np.cumsum(length + 1) - length - 1
    hover = "%{fullData.name}, step %{x}<br>%{y:.3f} nats<extra></extra>"
    series = []
    for place, number in enumerate(chosen):
        values = score[first[number] : first[number] + length[number] + 1]
        starts = np.arange(0, len(values), -(-len(values) // MOST_POINTS))
        highest = np.maximum.reduceat(values, starts)
        look = charts.line_look(place) | {"symbol": "none"}
        series.append(charts.Series(starts, highest, f"episode {number}", width=2, hover=hover, **look))
    top = 1.05 * max(float(score.max()), threshold)
    rule = charts.Rule(threshold, "y", width=1)
    return Chart(series, Axis("step"), Axis("CAI (nats)", (-0.03 * top, top)), rules=[rule])
