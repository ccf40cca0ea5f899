"""Read the parts of a detection run: tables, side questions, diagnosis and pictures, as pages and figures show them."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from butfor.runs.reading import Array, expected_form, finite_array, read_optional

Row = dict[str, Any]
METRICS = ("auc", "ap", "f1")
NOISES = {"train_only": "noise in training only", "train_and_test": "noise in training and test"}
FORMS = {  # how the KL to the mixture is approximated
    "product": "lower bound (product)",
    "variational": "upper bound (variational)",
    "mean": "mean of both bounds (the paper’s)",
    "mean_clip_product": "mean of both bounds, the lower cut at 0",
}
SAMPLINGS = {"independent": "new actions in each state", "sobol": "one Sobol set for all states"}
IMAGES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png"}  # first bytes -> type
HALF = [2.5, 2.5]  # cm, half the width of the Fetch environments' object
MAPS = {"cai": ("nats", 1.0), "effect": ("cm", 100.0)}  # array of the map -> unit on pages, and its factor
STUDIES = ("noise", "noise_levels", "actions", "helps", "ensembles", "reference", "reference_rows", "decisions")
DIAGNOSED = {  # chart -> where its numbers are, and their names
    "reliability": ("reliability", "levels", "realised"),
    "gain": ("gain_by_score", "score", "gain", "error"),
}


def metric_columns(entry: dict[str, Any]) -> Row:
    """Return mean and standard deviation of the three metrics, as finite numbers."""
    pairs = {metric: finite_array([entry[metric]["mean"], entry[metric]["std"]], 2).tolist() for metric in METRICS}
    return {metric: {"mean": mean, "std": std, "paper": []} for metric, (mean, std) in pairs.items()}


def mark_best(rows: list[Row]) -> list[Row]:
    """Mark the best of each column in place; a tie in the digits shown is a tie."""
    for metric in METRICS:
        best = max(round(row[metric]["mean"], 3) for row in rows)
        for row in rows:
            row[metric]["best"] = round(row[metric]["mean"], 3) == best
    return rows


def detector_rows(detectors: list[dict[str, Any]], scores: dict[str, Array]) -> list[Row]:
    """Return the rows of a table of detectors, with the paper's numbers beside ours."""
    rows: list[Row] = []
    for detector in detectors:
        name = str(detector["name"])
        paper = detector.get("paper") or {}
        row: Row = {"name": name, "title": str(detector["title"]), "seeds": int(detector["seeds"])}
        row |= metric_columns(detector) | {"binary": name in scores and bool(np.isin(scores[name], (0, 1)).all())}
        for metric in METRICS:
            row[metric]["paper"] = [float(number) for number in paper.get(metric) or []]
        rows.append(row)
    if not rows:
        raise ValueError("no detectors")
    return mark_best(rows)


def thresholds_of(metrics: list[dict[str, Any]], detector: str) -> list[float]:
    """Return the thresholds of a detector's best F1 by the exact label on the test set, one per seed."""
    judged = [row for row in metrics if (row.get("set", "test"), row.get("label", "exact")) == ("test", "exact")]
    return [float(row["threshold"]) for row in judged if row["detector"] == detector]


def scores_file(states: str) -> str:
    """Return the name of the file with all detectors' scores of a set of states."""
    return "scores.npz" if states == "test" else f"scores-{states}.npz"


def read_others(run: Path, summary: dict[str, Any], arrays: dict[str, Array]) -> list[Row]:
    """Return the tables on other states or by another label; scores and label are empty where the file is missing."""
    tables: list[Row] = []
    with expected_form(run / "summary.json"):
        entries = list(summary.get("others") or [])
    for entry in entries:
        with expected_form(run / "summary.json"):
            name = str(entry["set"])
            key = {"exact": "label", "heuristic": "label_heuristic"}[entry["label"]]
            if not re.fullmatch(r"[\w-]+", name):
                raise ValueError(f"{name!r} is not the name of a set of states")
            states = int(entry["states"])
        path = run / scores_file(name)
        held = arrays if name == "test" else read_optional(path) or {}
        scores: dict[str, Array] = {}
        label = np.zeros(0, bool)
        if key in held:
            with expected_form(path):
                label = held[key].astype(bool)
                scores = {row["name"]: finite_array(held[row["name"]], None, states) for row in entry["detectors"]}
                if label.shape != (states,) or label.all() or not label.any():
                    raise ValueError(f"{key} needs both influenced and free states, {states} in all")
        with expected_form(run / "summary.json"):
            table = {"title": str(entry["title"]), "name": f"{name}-{entry['label']}", "states": states}
            paper_share = None if entry.get("paper_share") is None else float(entry["paper_share"])
            table |= {"share": float(entry["positive_share"]), "paper_share": paper_share}
            tables.append(table | {"rows": detector_rows(entry["detectors"], scores), "scores": scores, "label": label})
    return tables


def read_studies(run: Path) -> dict[str, Any] | None:
    """Return the side questions of a run: noise, number of actions, what helps, reference values, decisions."""
    path = run / "studies.json"
    document = read_optional(path)
    view = dict[str, Any].fromkeys(STUDIES)
    if not document:
        return None
    with expected_form(path):
        if noise := document.get("noise"):
            levels = finite_array(noise["levels"], None)
            view["noise_levels"] = levels.tolist()
            view["noise"] = [
                {"title": title} | {metric: finite_array(noise[key][metric], len(levels), None) for metric in METRICS}
                for key, title in NOISES.items()
                if key in noise
            ]
        if document.get("actions"):
            rows = [action_row(entry) | metric_columns(entry) for entry in document["actions"]]
            view["actions"] = grouped(mark_best(rows))
        if helps := document.get("helps"):
            view["helps"] = judged_groups((entry, entry, "") for entry in helps)
        if ensembles := document.get("ensembles"):
            shares = [(entry, entry["at_paper_share"]) for entry in ensembles if entry.get("at_paper_share")]
            weighted = judged_groups(  # states weighted to the paper's share of influenced ones
                (entry, share, f"{ensemble_group(entry)}, as if {100 * share['share']:g} % were influenced")
                for entry, share in shares
            )
            view["ensembles"] = [*judged_groups((one, one, ensemble_group(one)) for one in ensembles), *weighted]
        if document.get("reference"):
            rows = [reference_row(entry) for entry in document["reference"]]
            view |= {"reference": grouped(rows), "reference_rows": rows}
        if decisions := (document.get("decisions") or {}).get("rows"):
            view["decisions"] = grouped([decision_row(entry) for entry in decisions])
    return view if any(view.values()) else None


def ensemble_group(entry: dict[str, Any]) -> str:
    """Return on which states and against which label an ensemble is judged."""
    which = "Exact label" if entry["label"] == "exact" else "The paper's label"
    return f"{which}, {'test set' if entry['set'] == 'test' else 'random policy'}"


def judged_groups(given: Iterable[tuple[Row, Row, str]]) -> list[Row]:
    """Return tables of (entry with a title, entry with the metrics, group), the best of each group marked."""
    rows = [{"first": str(one["title"]), "group": group} | metric_columns(numbers) for one, numbers, group in given]
    return [group | {"rows": mark_best(group["rows"])} for group in grouped(rows)]


def action_row(entry: dict[str, Any]) -> Row:
    """Return the name, the group and the set of a row of the study of actions."""
    sampling = str(entry["sampling"])
    form = str(entry["form"])
    group = f"{SAMPLINGS.get(sampling, sampling)}; {FORMS.get(form, form)}"
    group = group[0].upper() + group[1:]
    return {"first": f"{int(entry['actions'])}", "group": group, "set": str(entry.get("set", ""))}


def reference_row(entry: dict[str, Any]) -> Row:
    """Return an estimator against reference values: its points, bias and rank correlation."""
    points, form = finite_array(entry["scatter"], None, 2), str(entry["form"])
    chosen = np.linspace(0, len(points) - 1, min(len(points), 1000)).astype(int)
    bias, correlation = finite_array([entry["bias"], entry["rank_correlation"]], 2).tolist()
    row = {"first": f"{int(entry['actions'])}", "group": FORMS.get(form, form), "points": points[chosen]}
    return row | {"bias": bias, "rank_correlation": correlation}


def decision_row(entry: dict[str, Any]) -> Row:
    """Return a procedure at a promised rate: what was realised, found and flagged; unknown numbers are None."""
    keys = ("realised", "realised_std", "found", "rejected")
    row: Row = {key: None if entry.get(key) is None else float(finite_array(entry[key])) for key in keys}
    row["target"] = float(entry["target"])
    method = str(entry["method"]).replace("_", " ")
    row |= {"method": method[:1].upper() + method[1:], "set": f"{entry['set']} states", "seeds": int(entry["seeds"])}
    return row | {"group": f"{row['method']}, on {row['set']}"}


def grouped(rows: list[Row]) -> list[Row]:
    """Return rows by their group, groups in the order of their first row."""
    names = dict.fromkeys(row["group"] for row in rows)
    return [{"title": name, "rows": [row for row in rows if row["group"] == name]} for name in names]


def read_diagnosis(run: Path) -> list[Row] | None:
    """Return for each entity whether the model can be trusted, in words, and the numbers behind them."""
    path = run / "diagnosis.json"
    document = read_optional(path)
    entities: list[Row] = []
    if not document:
        return None
    with expected_form(path):
        for name, found in document.items():
            words = [str(sentence) for sentence in found["words"]]
            entity: Row = {"name": name, "words": words, "trusted": bool(found["trusted"])}
            entity["size_trusted"] = bool(found.get("size_trusted", entity["trusted"]))
            judged = "no problem found" if entity["trusted"] else "a problem was found"  # before there was a verdict
            entity["verdict"] = str(found.get("verdict", judged))
            for chart, (key, first, *others) in DIAGNOSED.items():
                entity[chart] = None
                if given := found.get(key):
                    values = finite_array(given[first], None)
                    entity[chart] = [values, *(finite_array(given[other], len(values)) for other in others)]
            entities.append(entity)
    return entities


def image(folder: Path, name: str) -> tuple[str, bytes]:
    """Return the type and the content of an image in the folder; refuse a name that leads elsewhere."""
    if Path(name).name != name or not (folder / name).is_file():
        raise ValueError(f"{name!r} is not the name of a file in {folder}")
    content = (folder / name).read_bytes()
    kind = next((kind for start, kind in IMAGES.items() if content.startswith(start)), None)
    if kind is None:
        raise ValueError(f"{name} is neither a JPEG nor a PNG image")
    return kind, content


def film(entry: dict[str, Any]) -> Row:
    """Return an episode of the pictures: score [S, T], events by name [T], and the name of a frame per step."""
    score = finite_array(entry["score"], None, None)
    steps = score.shape[1]
    given = [key for key in ("heuristic", "contact") if entry.get(key) is not None]
    events = {key: finite_array(entry[key], steps) != 0 for key in given}
    events["influence"] = finite_array(entry["label"], steps) != 0
    if len(entry["frames"]) not in (steps, steps + 1):
        raise ValueError(f"{len(entry['frames'])} frames for {steps} steps")
    title = f"Episode {int(entry['episode'])}: {entry['title']}"
    return {"title": title, "length": steps, "score": score, "events": events, "frames": entry["frames"][:steps]}


def failure(folder: Path, entry: dict[str, Any]) -> Row:
    """Return a state that the detector gets wrong, with its numbers; the effect may be unknown."""
    row: Row = {key: float(finite_array(entry[key])) for key in ("score", "spread", "distance")}
    row["effect"] = None if entry["effect"] is None else float(finite_array(entry["effect"]))
    row |= {key: int(entry[key]) for key in ("episode", "time")}
    row |= {key: bool(entry[key]) for key in ("exact", "contact")}
    return row | {"kind": str(entry["kind"]), "image": image(folder, entry["image"])}


def read_pictures(run: Path) -> Row | None:
    """Return films of episodes, failures and the map of influence around the object: lengths in cm, CAI in nats."""
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
            x = finite_array(arrays["x"], None)
            y = finite_array(arrays["y"], None)
            view["map"] = {"x": x, "y": y, "half": finite_array(arrays.get("half", HALF), 2)}
            for key, (_, factor) in MAPS.items():
                finite_array(np.where(np.isnan(arrays[key]), 0.0, arrays[key]), len(y), len(x))  # there may be gaps
                view["map"][key] = factor * arrays[key]
    return view


def side_rows(summary: dict[str, Any], studies: dict[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of a detection run's side questions, each with a title: sets, episodes, noise, actions, helps."""
    tables = [{"set": "test"} | summary, *summary.get("others", [])]
    exact = [(one["set"], row) for one in tables if one.get("label") == "exact" for row in one.get("detectors", [])]
    actions = studies.get("actions") or []
    return {
        "sets": [row | {"title": f"{name} set"} for name, row in exact if row["name"] == "cai"],
        "noise": noise_rows(studies.get("noise")),
        "actions": [row | {"title": f"{row['actions']}, {row['sampling']}, {row['form']}"} for row in actions],
        "episodes": summary.get("episodes") or [],
        "helps": studies.get("helps") or [],
    }


def noise_rows(noise: dict[str, Any] | None) -> list[Row]:
    """Return the study of noise as rows: mean and standard deviation over seeds at each level."""
    rows = []
    for where, words in (("train_only", "seen in training"), ("train_and_test", "also in testing")):
        for place, level in enumerate(noise["levels"] if noise else ()):
            row: Row = {"title": f"{100 * level:g} %, {words}"}
            for metric in METRICS:
                values = np.asarray(noise[where][metric][place])  # type: ignore[index]
                row[metric] = {"mean": float(values.mean()), "std": float(values.std())}
            rows.append(row)
    return rows
