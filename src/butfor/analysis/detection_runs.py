"""The parts of a detection run's folder, read and checked: what the page and the figures for papers are drawn from."""

import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from butfor.reporting.charts import GREEN, ORANGE, PURPLE, Array, Row, Track, look
from butfor.runs.reading import with_new_names

METRICS = ("auc", "ap", "f1")
AGAIN = "Run `butfor detect` again."
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
MAPS = {"cai": ("nats", 1.0), "effect": ("cm", 100.0)}  # array of the map -> the unit it is shown in, and its factor
STUDIES = ("noise", "noise_levels", "actions", "helps", "ensembles", "reference", "reference_rows", "decisions")
DIAGNOSED = {  # chart -> where its numbers stand, and their names
    "reliability": ("reliability", "levels", "realised"),
    "gain": ("gain_by_score", "score", "gain", "error"),
}


def read(path: Path, again: str = AGAIN) -> Any:
    """Read a JSON object, one JSON object a line, or the arrays of an .npz; every failure becomes a sentence."""
    try:
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        text = path.read_text(encoding="utf-8")
        values = [json.loads(part) for part in (text.splitlines() if path.suffix == ".jsonl" else [text])]
        if not all(isinstance(value, dict) for value in values):
            raise ValueError("a JSON object was expected")
        return values if path.suffix == ".jsonl" else with_new_names(values[0])
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; a report needs the whole run folder. {again}") from None
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({error}). {again}") from error


def read_optional(path: Path) -> Any:
    """What `read` reads, or None where there is no such file; another schema is refused."""
    held = read(path) if path.is_file() else None
    if path.suffix == ".json" and held and held.pop("schema", 1) != 1:
        raise ValueError(f"{path} has another schema than 1, which this butfor reads. {AGAIN}")
    return held


@contextmanager
def expected_form(path: Path, again: str = AGAIN) -> Iterator[None]:
    """Turn what fails on the content of a file or folder into one sentence that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} holds something of an unexpected form ({what}). {again}") from error


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


def thresholds_of(metrics: list[dict[str, Any]], detector: str) -> list[float]:
    """The thresholds of a detector's best F1 by the exact label on the test set, one a seed, from metrics.jsonl."""
    judged = [row for row in metrics if (row.get("set", "test"), row.get("label", "exact")) == ("test", "exact")]
    return [float(row["threshold"]) for row in judged if row["detector"] == detector]


def scores_file(states: str) -> str:
    """The file of every detector's scores of a set of states."""
    return "scores.npz" if states == "test" else f"scores-{states}.npz"


def read_others(run: Path, summary: dict[str, Any], arrays: dict[str, Array]) -> list[Row]:
    """The same detectors on other states or by another label; scores and label are empty where they are not there."""
    tables: list[Row] = []
    with expected_form(run / "summary.json"):
        entries = list(summary.get("others") or [])
    for entry in entries:
        with expected_form(run / "summary.json"):
            name, key = str(entry["set"]), {"exact": "label", "heuristic": "label_heuristic"}[entry["label"]]
            if not re.fullmatch(r"[\w-]+", name):
                raise ValueError(f"{name!r} is no name of a set of states")
            states = int(entry["states"])
        path = run / scores_file(name)
        held = arrays if name == "test" else read_optional(path) or {}
        scores, label = dict[str, Array](), np.zeros(0, bool)
        if key in held:
            with expected_form(path):
                label = held[key].astype(bool)
                scores = {row["name"]: numbers(held[row["name"]], None, states) for row in entry["detectors"]}
                if label.shape != (states,) or label.all() or not label.any():
                    raise ValueError(f"{key} needs both influenced and free states, {states} in all")
        with expected_form(run / "summary.json"):
            table = {"title": str(entry["title"]), "name": f"{name}-{entry['label']}", "states": states}
            paper_share = None if entry.get("paper_share") is None else float(entry["paper_share"])
            table |= {"share": float(entry["positive_share"]), "paper_share": paper_share}
            tables.append(table | {"rows": detector_rows(entry["detectors"], scores), "scores": scores, "label": label})
    return tables


def read_studies(run: Path) -> dict[str, Any] | None:
    """The studies of a run: noise, number of actions, what helps, against reference values, decisions."""
    path = run / "studies.json"
    document, view = read_optional(path), dict[str, Any].fromkeys(STUDIES)
    if not document:
        return None
    with expected_form(path):
        if noise := document.get("noise"):
            levels, lines = numbers(noise["levels"], None), list[Row]()
            for place, key in enumerate(key for key in NOISES if key in noise):
                values = {metric: numbers(noise[key][metric], len(levels), None) for metric in METRICS}
                lines.append({"title": NOISES[key], **look("", place), "binary": False, **values})
            view["noise"], view["noise_levels"] = lines, levels.tolist()
        if document.get("actions"):
            rows = [action_row(entry) | metric_columns(entry) for entry in document["actions"]]
            view["actions"] = looking(grouped(mark_best(rows)))
        for name, named in (("helps", lambda entry: ""), ("ensembles", ensemble_group)):
            if document.get(name):
                rows = [
                    {"first": str(entry["title"]), "group": named(entry)} | metric_columns(entry)
                    for entry in document[name]
                ]
                view[name] = [group | {"rows": mark_best(group["rows"])} for group in grouped(rows)]
        if view["ensembles"]:
            view["ensembles"] += at_paper_share(document["ensembles"])
        if document.get("reference"):
            rows = [reference_row(entry) for entry in document["reference"]]
            view["reference"], view["reference_rows"] = grouped(rows), rows
        if decisions := (document.get("decisions") or {}).get("rows"):
            view["decisions"] = looking(grouped([decision_row(entry) for entry in decisions]))
    return view if any(view.values()) else None


def ensemble_group(entry: dict[str, Any]) -> str:
    """On which states and against which label an ensemble is judged."""
    which = "Exact label" if entry["label"] == "exact" else "The paper's label"
    return f"{which}, {'test set' if entry['set'] == 'test' else 'random policy'}"


def at_paper_share(entries: list[dict[str, Any]]) -> list[Row]:
    """The same with states weighted as if as many were influenced as in the paper's sets."""
    rows = [
        {
            "first": str(entry["title"]),
            "group": f"{ensemble_group(entry)}, as if {100 * share['share']:g} % were influenced",
        }
        | metric_columns(share)
        for entry in entries
        if (share := entry.get("at_paper_share"))
    ]
    return [group | {"rows": mark_best(group["rows"])} for group in grouped(rows)]


def action_row(entry: dict[str, Any]) -> Row:
    """What a row of the study of actions is called, and the group that it belongs to."""
    sampling, form = str(entry["sampling"]), str(entry["form"])
    group = f"{SAMPLINGS.get(sampling, sampling)}; {FORMS.get(form, form)}"
    return {
        "first": f"{int(entry['actions'])}",
        "group": group[0].upper() + group[1:],
        "set": str(entry.get("set", "")),
    }


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
    row |= {"method": method[:1].upper() + method[1:], "set": f"{entry['set']} states", "seeds": int(entry["seeds"])}
    return row | {"group": f"{row['method']}, on {row['set']}"}


def grouped(rows: list[Row]) -> list[Row]:
    """Rows by their group, groups in the order of their first row."""
    names = dict.fromkeys(row["group"] for row in rows)
    return [{"title": name, "rows": [row for row in rows if row["group"] == name]} for name in names]


def looking(groups: list[Row]) -> list[Row]:
    """Groups with the look of their lines in a chart."""
    return [group | look("", place) | {"binary": False} for place, group in enumerate(groups)]


def read_diagnosis(run: Path) -> list[Row] | None:
    """Whether the model can be trusted, for each entity: words, and the numbers behind them where they are there."""
    path = run / "diagnosis.json"
    document, entities = read_optional(path), list[Row]()
    if not document:
        return None
    with expected_form(path):
        for name, found in document.items():
            words = [str(sentence) for sentence in found["words"]]
            entity: Row = {"name": name, "words": words, "trusted": bool(found["trusted"])}
            for chart, (key, first, *others) in DIAGNOSED.items():
                entity[chart] = None
                if given := found.get(key):
                    values = numbers(given[first], None)
                    entity[chart] = [values, *(numbers(given[other], len(values)) for other in others)]
            entities.append(entity)
    return entities


def image(folder: Path, name: str) -> tuple[str, bytes]:
    """The type and the content of an image of the folder; a name that leads elsewhere is refused."""
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"{name!r} is no name of a file beside index.json")
    if not (folder / name).is_file():
        raise ValueError(f"the image {name} is missing")
    content = (folder / name).read_bytes()
    kind = next((kind for start, kind in IMAGES.items() if content.startswith(start)), None)
    if kind is None:
        raise ValueError(f"{name} is neither a JPEG nor a PNG image")
    return kind, content


def film(entry: dict[str, Any]) -> Row:
    """An episode with the name of a frame a step: score [S, T] and events, of which the last is influence."""
    score = numbers(entry["score"], None, None)
    steps = score.shape[1]
    marks = [("heuristic", "heuristic", GREEN, "triangle-up"), ("contact", "contact", PURPLE, "diamond")]
    events: list[Track] = [
        (name, numbers(entry[key], steps) != 0, colour, symbol)
        for key, name, colour, symbol in [*marks, ("label", "influence", ORANGE, "square")]
        if key == "label" or entry.get(key) is not None
    ]
    if len(entry["frames"]) not in (steps, steps + 1):
        raise ValueError(f"{len(entry['frames'])} frames for {steps} steps")
    title = f"Episode {int(entry['episode'])}: {entry['title']}"
    return {"title": title, "length": steps, "score": score, "events": events, "frames": entry["frames"][:steps]}


def failure(folder: Path, entry: dict[str, Any]) -> Row:
    """A state that the detector gets wrong, with its numbers; the effect may be unknown."""
    row: Row = {key: float(numbers(entry[key])) for key in ("score", "spread", "distance")}
    row["effect"] = None if entry["effect"] is None else float(numbers(entry["effect"]))
    row |= {key: int(entry[key]) for key in ("episode", "time")} | {
        key: bool(entry[key]) for key in ("exact", "contact")
    }
    return row | {"kind": str(entry["kind"]), "image": image(folder, entry["image"])}


def read_pictures(run: Path) -> Row | None:
    """Films of episodes, failures and the map of influence around the object: lengths in cm, CAI in nats."""
    folder = run / "pictures"
    index = read_optional(folder / "index.json")
    if not index:
        return None
    with expected_form(folder / "index.json"):
        view: Row = {"films": [film(entry) for entry in index.get("timelines") or []], "map": None}
        view["failures"] = [failure(folder, entry) for entry in index.get("failures") or []]
        path = folder / Path(str((index.get("map") or {}).get("file", "map.npz"))).name
    if arrays := read_optional(path):
        with expected_form(path):
            x, y, half = numbers(arrays["x"], None), numbers(arrays["y"], None), numbers(arrays.get("half", HALF), 2)
            view["map"] = {"x": x, "y": y, "half": half}
            for key, (_, factor) in MAPS.items():
                numbers(np.where(np.isnan(arrays[key]), 0.0, arrays[key]), len(y), len(x))  # there may be gaps
                view["map"][key] = factor * arrays[key]
    return view


def side_rows(summary: dict[str, Any], studies: dict[str, Any]) -> dict[str, list[Row]]:
    """The rows of a detection run's side questions, each with a title: sets, episodes, noise, actions, helps."""
    tables = [{"set": "test"} | summary, *summary.get("others", [])]
    sets = [
        {"title": f"{one['set']} set", **{metric: row[metric] for metric in METRICS}}
        for one in tables
        if one.get("label") == "exact"
        for row in one.get("detectors", [])
        if row["name"] == "cai"
    ]
    actions = [
        row | {"title": f"{row['actions']}, {row['sampling']}, {row['form']}"} for row in studies.get("actions") or []
    ]
    noise = noise_rows(studies.get("noise"))
    helps, episodes = studies.get("helps") or [], summary.get("episodes") or []
    return {"sets": sets, "episodes": episodes, "noise": noise, "actions": actions, "helps": helps}


def noise_rows(noise: dict[str, Any] | None) -> list[Row]:
    """The study of noise as rows: mean and deviation over seeds at each level."""
    rows = []
    for where, words in (("train_only", "seen in training"), ("train_and_test", "also in testing")):
        for place, level in enumerate(noise["levels"] if noise else ()):
            row: Row = {"title": f"{100 * level:g} %, {words}"}
            for metric in METRICS:
                values = np.asarray(noise[where][metric][place])  # type: ignore[index]
                row[metric] = {"mean": float(values.mean()), "std": float(values.std())}
            rows.append(row)
    return rows
