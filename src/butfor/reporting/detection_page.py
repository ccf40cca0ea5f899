"""The parts of a detection report: what the page shows of what a run folder holds, with its charts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import precision_recall_curve

from butfor.analysis.detection_runs import (
    MAPS,
    METRICS,
    expected_form,
    image,
    read_diagnosis,
    read_others,
    read_pictures,
    read_studies,
)
from butfor.reporting.charts import (
    POINTS,
    Array,
    Row,
    actions_figure,
    curve_figure,
    decisions_figure,
    explorer_figure,
    film_figure,
    gain_figure,
    map_figure,
    noise_figure,
    plain,
    reference_figure,
    reliability_figure,
)
from butfor.reporting.page import data_address

Figures = dict[str, Any]  # name of a plot on the page -> figure


def others(run: Path, summary: dict[str, Any], arrays: dict[str, Array]) -> tuple[list[Row], Figures]:
    """Tables of the same detectors on other states or by another label, with curves where their scores are there."""
    tables, figures = read_others(run, summary, arrays), Figures()
    for place, table in enumerate(tables):
        table["plots"] = {kind: f"{kind}-{place}" for kind in ("roc", "pr")} if table["scores"] else {}
        for kind, plot in table["plots"].items():
            figures[plot] = curve_figure(table["rows"], table["scores"], table["label"], kind)
    return tables, figures


def explorer(title: str, score: Array, label: Array) -> tuple[dict[str, Any], Figures]:
    """At most POINTS thresholds with what each of them gives when states of score >= threshold are flagged."""
    precision, recall, thresholds = precision_recall_curve(label, score.astype(float))
    precision, recall = precision[:-1], recall[:-1]  # the last point has no threshold
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best, chosen = int(f1.argmax()), np.arange(len(thresholds))
    if len(thresholds) > POINTS:
        count = POINTS // 3  # evenly by rank, by threshold and by recall: no move of the slider is a jump
        by_rank = np.linspace(0, len(thresholds) - 1, count).astype(int)
        by_threshold = np.searchsorted(thresholds, np.linspace(thresholds[0], thresholds[-1], count))
        by_recall = np.searchsorted(-recall, np.linspace(-recall[0], -recall[-1], count))  # recall falls
        chosen = np.unique([best, *by_rank, *by_threshold, *by_recall])
    flagged = 1.0 - np.searchsorted(np.sort(score.astype(float)), thresholds) / len(score)
    curves = {"threshold": thresholds, "precision": precision, "recall": recall, "f1": f1, "flagged": flagged}
    points = {key: plain(values[chosen]) for key, values in curves.items()}
    points["best"] = int(np.searchsorted(chosen, best))
    return points, {"explorer": explorer_figure(title, points)}


def studies(run: Path) -> tuple[dict[str, Any] | None, Figures]:
    """The studies of a run, with a chart of those that have one."""
    view, figures = read_studies(run), Figures()
    if not view:
        return None, figures
    if view["noise"]:
        levels = view["noise_levels"]
        figures |= {f"noise-{metric}": noise_figure(levels, view["noise"], metric) for metric in METRICS}
    if view["actions"]:
        figures["actions"] = actions_figure(view["actions"])
    if view["reference"]:
        figures["reference"] = reference_figure(view["reference_rows"])
        view["reference_titles"] = [f"{row['first']} actions, {row['group']}" for row in view["reference_rows"]]
    if view["decisions"]:
        figures["decisions"] = decisions_figure(view["decisions"])
    return view, figures


def diagnosis(run: Path) -> tuple[list[Row] | None, Figures]:
    """Whether the model can be trusted, for each entity: words, and the charts behind them."""
    entities, figures = read_diagnosis(run), Figures()
    for place, entity in enumerate(entities or []):
        if entity["reliability"]:
            figures[f"reliability-{place}"] = reliability_figure(*entity["reliability"])
            entity["reliability"] = f"reliability-{place}"
        if entity["gain"]:
            figures[f"gain-{place}"] = gain_figure(*entity["gain"])
            entity["gain"] = f"gain-{place}"
    return entities, figures


def film_figures(films: list[Row], title: str, thresholds: list[float]) -> list[Any]:
    """A chart of the score along each film; its height is alike in all."""
    threshold = float(np.mean(thresholds))
    top = 1.08 * max([threshold, *(float(film["score"].max()) for film in films)])
    return [film_figure(title, film["score"], film["events"], threshold, top) for film in films]


def embedded(folder: Path, names: list[str]) -> list[str]:
    """Images beside index.json as addresses that hold them."""
    with expected_form(folder / "index.json"):
        return [data_address(*image(folder, name)) for name in names]


def pictures(run: Path, title: str, thresholds: list[float]) -> tuple[dict[str, Any] | None, Figures]:
    """Films of episodes, cards of failures and the map of influence."""
    view, figures, folder = read_pictures(run), Figures(), run / "pictures"
    if not view:
        return None, figures
    for film, figure in zip(view["films"], film_figures(view["films"], title, thresholds), strict=True):
        film["frames"] = embedded(folder, film["frames"])
        film["events"] = {name: happened.tolist() for name, happened, *_ in film["events"]}
        film |= {"score": plain(film["score"].mean(0)), "figure": json.loads(figure.to_json())}
    for card in view["failures"]:
        card["image"] = data_address(*card["image"])
    for key, (unit, _) in MAPS.items() if view["map"] else ():
        around = view["map"]
        figures[f"map-{key}"] = map_figure(around["x"], around["y"], around[key], around["half"], unit)
    groups = [{"title": "Missed", "cards": [card for card in view["failures"] if card["kind"] == "missed"]}]
    groups.append({"title": "False alarms", "cards": [card for card in view["failures"] if card["kind"] != "missed"]})
    shown = {"films": view["films"], "failures": [group for group in groups if group["cards"]]}
    return shown | {"map": bool(view["map"])}, figures
