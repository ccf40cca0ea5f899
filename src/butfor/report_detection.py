"""The parts of a detection report: reads and checks what a run folder holds, and prepares what the page shows."""

import base64
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import precision_recall_curve

from butfor.report_figures import (
    GREEN,
    ORANGE,
    POINTS,
    PURPLE,
    Array,
    Row,
    Track,
    curve_figure,
    decisions_figure,
    explorer_figure,
    film_figure,
    gain_figure,
    look,
    map_figure,
    noise_figure,
    plain,
    reference_figure,
    reliability_figure,
)

METRICS = ("auc", "ap", "f1")
AGAIN = "Run `butfor detect` again."
Figures = dict[str, Any]  # name of a plot on the page -> figure
NOISES = {"train_only": "noise in training only", "train_and_test": "noise in training and test"}
FORMS = {  # how the KL to the mixture is approximated
    "product": "lower bound (product)",
    "variational": "upper bound (variational)",
    "mean": "mean of both bounds (the paper’s)",
    "mean_clip_product": "mean of both bounds, the lower cut at 0",
}
SAMPLINGS = {"independent": "new actions in each state", "sobol": "one Sobol set for all states"}
IMAGES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png"}  # first bytes -> type
HALF = [2.5, 2.5]  # cm, half the width of the Fetch worlds' object


def read(path: Path) -> Any:
    """Read a JSON object, one JSON object a line, or the arrays of an .npz; every failure becomes a sentence."""
    try:
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        text = path.read_text(encoding="utf-8")
        values = [json.loads(part) for part in (text.splitlines() if path.suffix == ".jsonl" else [text])]
        if not all(isinstance(value, dict) for value in values):
            raise ValueError("a JSON object was expected")
        return values if path.suffix == ".jsonl" else values[0]
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; a report needs the whole run folder. {AGAIN}") from None
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({error}). {AGAIN}") from error


def read_optional(path: Path) -> Any:
    """What `read` reads, or None where there is no such file; another schema is refused."""
    held = read(path) if path.is_file() else None
    if path.suffix == ".json" and held and held.pop("schema", 1) != 1:
        raise ValueError(f"{path} has another schema than 1, which this butfor reads. {AGAIN}")
    return held


@contextmanager
def expected_form(path: Path) -> Iterator[None]:
    """Turn what fails on the content of a file or folder into one sentence that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} holds something of an unexpected form ({what}). {AGAIN}") from error


def numbers(values: Any, *shape: int | None) -> Array:
    """A finite array of a shape; None stands for any length but zero."""
    array = np.asarray(values, float)
    fits = array.ndim == len(shape)
    fits = fits and all(wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True))
    if not fits or not array.size or not np.isfinite(array).all():
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"finite numbers of shape [{wanted}] were expected, not of shape {list(array.shape)}")
    return array


def metric_columns(entry: dict[str, Any]) -> Row:
    """Mean and standard deviation of the three metrics, as finite numbers."""
    means = {metric: numbers([entry[metric][key] for key in ("mean", "std")], 2).tolist() for metric in METRICS}
    return {metric: {"mean": mean, "std": std, "paper": []} for metric, (mean, std) in means.items()}


def mark_best(rows: list[Row]) -> list[Row]:
    """The same rows with the best of each column marked; a tie in the digits shown is a tie."""
    for metric in METRICS:
        best = max(round(row[metric]["mean"], 3) for row in rows)
        for row in rows:
            row[metric]["best"] = round(row[metric]["mean"], 3) == best
    return rows


def detector_rows(detectors: list[dict[str, Any]], scores: dict[str, Array]) -> list[Row]:
    """Rows of a table of detectors: ours beside the paper's."""
    rows: list[Row] = []
    for detector in detectors:
        name, paper = str(detector["name"]), detector.get("paper") or {}
        row: Row = {"name": name, "title": str(detector["title"]), "seeds": int(detector["seeds"]), **look(name)}
        row |= metric_columns(detector) | {"binary": name in scores and bool(np.isin(scores[name], (0, 1)).all())}
        for metric in METRICS:
            row[metric]["paper"] = [float(number) for number in paper.get(metric) or []]
        rows.append(row)
    if not rows:
        raise ValueError("summary.json names no detector")
    return mark_best(rows)


def others(run: Path, summary: dict[str, Any], arrays: dict[str, Array]) -> tuple[list[Row], Figures]:
    """Tables of the same detectors on other states or by another label, with curves where their scores are there."""
    tables: list[Row] = []
    figures: Figures = {}
    with expected_form(run / "summary.json"):
        entries = list(summary.get("others") or [])
    for place, entry in enumerate(entries):
        with expected_form(run / "summary.json"):
            name, key = str(entry["set"]), {"exact": "label", "heuristic": "label_heuristic"}[entry["label"]]
            if not re.fullmatch(r"[\w-]+", name):
                raise ValueError(f"{name!r} is no name of a set of states")
            states = int(entry["states"])
        path = run / ("scores.npz" if name == "test" else f"scores-{name}.npz")
        held = arrays if name == "test" else read_optional(path) or {}
        scores: dict[str, Array] = {}
        if key in held:
            with expected_form(path):
                label = held[key].astype(bool)
                scores = {row["name"]: numbers(held[row["name"]], None, states) for row in entry["detectors"]}
                if label.shape != (states,) or label.all() or not label.any():
                    raise ValueError(f"{key} needs both influenced and free states, {states} in all")
        with expected_form(run / "summary.json"):
            rows = detector_rows(entry["detectors"], scores)
            paper_share = None if entry.get("paper_share") is None else float(entry["paper_share"])
            shares = {"share": float(entry["positive_share"]), "paper_share": paper_share}
            tables.append({"title": str(entry["title"]), "states": states, "rows": rows, **shares, "plots": None})
        if scores:
            tables[-1]["plots"] = {kind: f"{kind}-{place}" for kind in ("roc", "pr")}
            figures |= {plot: curve_figure(rows, scores, label, kind) for kind, plot in tables[-1]["plots"].items()}
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
    """The studies of a run: noise, number of actions, what helps, against reference values, decisions."""
    path = run / "studies.json"
    keys = ("noise", "actions", "helps", "reference", "reference_titles", "decisions")
    document, view, figures = read_optional(path), dict[str, Any].fromkeys(keys), Figures()
    if not document:
        return None, figures
    with expected_form(path):
        if noise := document.get("noise"):
            levels, lines = numbers(noise["levels"], None), list[Row]()
            for place, key in enumerate(key for key in NOISES if key in noise):
                values = {metric: numbers(noise[key][metric], len(levels), None) for metric in METRICS}
                lines.append({"title": NOISES[key], **look("", place), "binary": False, **values})
            view["noise"] = lines
            figures |= {f"noise-{metric}": noise_figure(levels.tolist(), lines, metric) for metric in METRICS}
        if document.get("actions"):
            rows = [action_row(entry) | metric_columns(entry) for entry in document["actions"]]
            view["actions"] = grouped(mark_best(rows))
        if document.get("helps"):
            rows = [{"first": str(entry["title"]), "group": ""} | metric_columns(entry) for entry in document["helps"]]
            view["helps"] = grouped(mark_best(rows))
        if document.get("reference"):
            entries = [reference_row(entry) for entry in document["reference"]]
            view["reference"], figures["reference"] = grouped(entries), reference_figure(entries)
            view["reference_titles"] = [f"{entry['first']} actions, {entry['group']}" for entry in entries]
        if decisions := (document.get("decisions") or {}).get("rows"):
            groups = grouped([decision_row(entry) for entry in decisions])
            groups = [group | look("", place) | {"binary": False} for place, group in enumerate(groups)]
            view["decisions"], figures["decisions"] = groups, decisions_figure(groups)
    return view if any(view.values()) else None, figures


def action_row(entry: dict[str, Any]) -> Row:
    """What a row of the study of actions is called, and the group that it belongs to."""
    sampling, form = str(entry["sampling"]), str(entry["form"])
    group = f"{SAMPLINGS.get(sampling, sampling)}; {FORMS.get(form, form)}"
    return {"first": f"{int(entry['actions'])}", "group": group[0].upper() + group[1:]}


def reference_row(entry: dict[str, Any]) -> Row:
    """One estimator against reference values: its points, bias and rank correlation."""
    points, form = numbers(entry["scatter"], None, 2), str(entry["form"])
    chosen = np.linspace(0, len(points) - 1, min(len(points), 1000)).astype(int)
    bias, correlation = numbers([entry["bias"], entry["rank_correlation"]], 2).tolist()
    row = {"first": f"{int(entry['actions'])}", "group": FORMS.get(form, form), "points": points[chosen]}
    return row | {"bias": bias, "rank_correlation": correlation}


def decision_row(entry: dict[str, Any]) -> Row:
    """One procedure at one promised rate: what was realised, found and flagged; a number that is null stays away."""
    keys = ("target", "realised", "realised_std", "found", "rejected")
    row: Row = {key: None if key != "target" and entry.get(key) is None else float(numbers(entry[key])) for key in keys}
    method = str(entry["method"]).replace("_", " ")
    return row | {"group": f"{method[:1].upper()}{method[1:]}, on {entry['set']} states", "seeds": int(entry["seeds"])}


def grouped(rows: list[Row]) -> list[Row]:
    """Rows by their group, groups in the order of their first row."""
    names = dict.fromkeys(row["group"] for row in rows)
    return [{"title": name, "rows": [row for row in rows if row["group"] == name]} for name in names]


def diagnosis(run: Path) -> tuple[list[Row] | None, Figures]:
    """Whether the model can be trusted, for each entity: words, and the charts behind them."""
    path = run / "diagnosis.json"
    document, entities, figures = read_optional(path), list[Row](), Figures()
    if not document:
        return None, figures
    with expected_form(path):
        for place, (name, found) in enumerate(document.items()):
            words = [str(sentence) for sentence in found["words"]]
            entity: Row = {"name": name, "words": words, "trusted": bool(found["trusted"])}
            entity |= {"reliability": None, "gain": None}  # names of plots
            if given := found.get("reliability"):
                levels = numbers(given["levels"], None)
                entity["reliability"] = f"reliability-{place}"
                figures[f"reliability-{place}"] = reliability_figure(levels, numbers(given["realised"], len(levels)))
            if given := found.get("gain_by_score"):
                score = numbers(given["score"], None)
                entity["gain"] = f"gain-{place}"
                figures[f"gain-{place}"] = gain_figure(
                    score, *(numbers(given[key], len(score)) for key in ("gain", "error"))
                )
            entities.append(entity)
    return entities, figures


def picture(folder: Path, name: str) -> str:
    """An image of the folder as a data address; a name that leads elsewhere is refused."""
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"{name!r} is no name of a file beside index.json")
    if not (folder / name).is_file():
        raise ValueError(f"the image {name} is missing")
    content = (folder / name).read_bytes()
    kind = next((kind for start, kind in IMAGES.items() if content.startswith(start)), None)
    if kind is None:
        raise ValueError(f"{name} is neither a JPEG nor a PNG image")
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def films(folder: Path, entries: list[dict[str, Any]], title: str, threshold: float) -> list[Row]:
    """Episodes with a frame a step: score [S, T] and events under them, the height of the score alike in all."""
    scores = [numbers(entry["score"], None, None) for entry in entries]
    top = 1.08 * max([threshold, *(float(score.max()) for score in scores)])
    shown: list[Row] = []
    for entry, score in zip(entries, scores, strict=True):
        steps = score.shape[1]
        marks = [("heuristic", "heuristic", GREEN, "triangle-up"), ("contact", "contact", PURPLE, "diamond")]
        events: list[Track] = [
            (name, numbers(entry[key], steps) != 0, colour, symbol)
            for key, name, colour, symbol in [*marks, ("label", "influence", ORANGE, "square")]
            if key == "label" or entry.get(key) is not None
        ]
        if len(entry["frames"]) not in (steps, steps + 1):
            raise ValueError(f"{len(entry['frames'])} frames for {steps} steps")
        figure = film_figure(title, score, events, threshold, top)
        shown.append({
            "title": f"Episode {int(entry['episode'])}: {entry['title']}", "length": steps,
            "score": plain(score.mean(0)), "figure": json.loads(figure.to_json()),
            "frames": [picture(folder, name) for name in entry["frames"][:steps]],
            "events": {name: happened.tolist() for name, happened, *_ in events},
        })  # fmt: skip
    return shown


def failure(folder: Path, entry: dict[str, Any]) -> Row:
    """A card: a state that the detector gets wrong, with its numbers; the effect may be unknown."""
    row: Row = {key: float(numbers(entry[key])) for key in ("score", "spread", "distance")}
    row["effect"] = None if entry["effect"] is None else float(numbers(entry["effect"]))
    row |= {key: int(entry[key]) for key in ("episode", "time")} | {
        key: bool(entry[key]) for key in ("exact", "contact")
    }
    return row | {"kind": str(entry["kind"]), "image": picture(folder, entry["image"])}


def pictures(run: Path, title: str, threshold: float) -> tuple[dict[str, Any] | None, Figures]:
    """Films of episodes, cards of failures and the map of influence around the object."""
    folder = run / "pictures"
    index, figures = read_optional(folder / "index.json"), Figures()
    if not index:
        return None, figures
    with expected_form(folder / "index.json"):
        shown = films(folder, index.get("timelines") or [], title, threshold)
        cards = [failure(folder, entry) for entry in index.get("failures") or []]
        path = folder / Path(str((index.get("map") or {}).get("file", "map.npz"))).name
    arrays = read_optional(path)
    if arrays:
        with expected_form(path):
            x, y, half = numbers(arrays["x"], None), numbers(arrays["y"], None), numbers(arrays.get("half", HALF), 2)
            for key, unit, factor in (("cai", "nats", 1.0), ("effect", "cm", 100.0)):
                numbers(np.where(np.isnan(arrays[key]), 0.0, arrays[key]), len(y), len(x))  # there may be gaps
                figures[f"map-{key}"] = map_figure(x, y, factor * arrays[key], half, unit)
    groups = [{"title": "Missed", "cards": [card for card in cards if card["kind"] == "missed"]}]
    groups.append({"title": "False alarms", "cards": [card for card in cards if card["kind"] != "missed"]})
    return {"films": shown, "failures": [group for group in groups if group["cards"]], "map": bool(arrays)}, figures
