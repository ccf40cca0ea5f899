"""Run folders -> one self-contained HTML page; reads files only and never imports torch."""

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from butfor.analysis.detection_runs import AGAIN, METRICS, detector_rows, expected_form, read, thresholds_of
from butfor.reporting import detection_page as parts
from butfor.reporting.charts import (
    BLUE,
    DARK,
    EXPLORED,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    VERMILLION,
    Array,
    Track,
    curve_figure,
    episode_figure,
    look,
    plain,
    score_figure,
    translucent,
)
from butfor.reporting.page import render_page, write_page
from butfor.reporting.study_page import write_training_report

PATHS = ("observation", "achieved_goal", "desired_goal")
SLIDE: dict[str, Any] = {"kind": "slide", "walls": [-5.0, 5.0], "limit": -0.5, "width": 0.2, "goal_radius": 0.5}


@dataclass(frozen=True)
class Run:
    """The content of a detection folder, once its files were found to agree with each other."""

    folder: Path
    config: dict[str, Any]
    versions: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    rows: list[dict[str, Any]]  # of the table of detectors
    main: dict[str, Any]  # the row that the page is about
    thresholds: list[float]  # of the main detector's best F1, one a seed
    arrays: dict[str, Array]  # of scores.npz
    scores: dict[str, Array]  # detector -> [S, N]
    label: Array  # [N]
    data: dict[str, Array]
    valid: Array  # [E, T], true where a step was made: array[valid] has the order of label


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write `out` (default: run/report.html) for a folder of kind "detection" or "training" and return its path."""
    run, target = Path(run), Path(out or Path(run) / "report.html")
    if target.suffix != ".html":
        raise ValueError(f"The report {target} ends in {target.suffix!r}; expected a name that ends in .html.")
    if read_config(run)["kind"] == "training":
        return write_training_report(run, target)
    return write_page(target, render(read_run(run)))


def read_config(run: Path) -> dict[str, Any]:
    """The config.json of a run of any kind; what is no run folder is refused with a sentence."""
    if not run.is_dir():
        what = f"{run} is a file" if run.exists() else f"There is no folder {run}"
        raise FileNotFoundError(f"{what}; give the folder of a run.")
    if not (run / "config.json").is_file():
        raise FileNotFoundError(f"{run} is not a run folder: it holds no config.json. Give the folder of a run.")
    config: dict[str, Any] = read(run / "config.json", "Make the run again, or give the folder of another.")
    if "kind" not in config:
        raise ValueError(f"{run} is not a run folder: its config.json is not butfor's. Give the folder of a run.")
    return config


def read_run(run: Path) -> Run:
    """Read a detection folder; refuse with a sentence what is missing, broken or inconsistent."""
    config = read_config(run)
    if config["kind"] != "detection":
        raise ValueError(f"{run} is a run of kind {config['kind']!r}, which is not drawn here; 'detection' is.")
    versions, summary, metrics = (read(run / name) for name in ("versions.json", "summary.json", "metrics.jsonl"))
    arrays, data = read(run / "scores.npz"), read(run / "data" / "test.npz")
    for name, schema in (("config.json", config.get("schema")), ("summary.json", summary.get("schema"))):
        if schema != 1:
            raise ValueError(f"{run / name} has schema {schema!r}, but this butfor reads schema 1. {AGAIN}")
    with expected_form(run):
        scores = {row["name"]: arrays[row["name"]] for row in summary["detectors"]}
        rows = detector_rows(summary["detectors"], scores)
        main = next((row for row in rows if row["name"] == "cai"), rows[0])
        thresholds = thresholds_of(metrics, main["name"])
        label, length, steps = arrays["label"].astype(bool), data["length"], data["action"].shape[1]
        valid = np.arange(steps) < length[:, None]  # [E, T]
        episode, time = valid.nonzero()  # [N], [N]
        paths = [data[key] for key in PATHS]
        # Used to see that they can be: what fails here is of an unexpected form.
        _ = [float(row[key]) for row in metrics for key in ("seed", *METRICS)], label & True, config["config"].items()
        _ = summary["env"] + summary["label"] + config["label"], json.loads(str(data.get("metadata", "{}"))).items()
        checks = {
            "summary.json and data/test.npz count different states": summary["states"] == len(time),
            "scores.npz and data/test.npz hold different states": np.array_equal(arrays["episode"], episode)
            and np.array_equal(arrays["time"], time) and label.shape == time.shape,
            "scores.npz needs both influenced and free states": label.any() and not label.all(),
            "scores.npz must hold finite scores of shape [seeds, states]": all(
                score.shape == (len(score), *time.shape) and np.isfinite(score).all() for score in scores.values()),
            "metrics.jsonl lacks the thresholds": bool(thresholds) and np.isfinite(thresholds).all(),
            "data/test.npz must hold finite numbers": all(np.isfinite(path).all() for path in paths),
            "the arrays of data/test.npz differ in shape": paths[1].shape == paths[2].shape
            and {path.shape[:2] for path in paths} == {(len(length), steps + 1)}
            and data.get("contact", valid).shape == valid.shape,
        }  # fmt: skip
    for problem, right in checks.items():
        if not right:
            raise ValueError(f"{run} is inconsistent: {problem}. {AGAIN}")
    return Run(run, config, versions, metrics, summary, rows, main, thresholds, arrays, scores, label, data, valid)


def choose_episodes(label: Array, contact: Array, score: Array, threshold: float) -> dict[int, str]:
    """A handful of telling episodes from arrays [E, T] (score is not-a-number after the end): number -> title."""
    chosen: dict[int, str] = {}
    influenced, touched = label.any(1), contact.any(1)  # [E, T] -> [E]
    missed = np.where(label & (score <= threshold), threshold - score, 0.0).max(1)
    alarm = np.where(~label & (score > threshold), score - threshold, 0.0).max(1)
    for count, title, wanted in (
        (3, "influence and contact", (label & contact).any(1)),
        (1, "influence without contact", influenced & ~touched),
        (1, "no influence", ~influenced & (alarm == 0)),
        (1, "largest miss", (missed > 0) & (missed == missed.max())),
        (1, "largest false alarm", (alarm > 0) & (alarm == alarm.max())),
    ):
        left = [number for number in np.flatnonzero(wanted).tolist() if number not in chosen]
        for place in np.linspace(0, len(left) - 1, min(count, len(left))).round().astype(int):  # spread evenly
            chosen[left[place]] = title
    return chosen or {int(influenced.argmax()): "influence"}


def timeline(run: Run) -> dict[str, Any]:
    """Episodes that a reader can scrub through, with the layout of the world where its drawing is known."""
    data, threshold = run.data, float(np.mean(run.thresholds))
    known = run.summary["env"] == "slide" and data["observation"].shape[2] == 4
    scores = np.full((len(run.scores[run.main["name"]]), *run.valid.shape), np.nan)
    scores[:, run.valid] = run.scores[run.main["name"]]  # [S, N] -> [S, E, T]
    label, contact = np.zeros_like(run.valid), data.get("contact", ~run.valid).astype(bool) & run.valid
    label[run.valid] = run.label
    chosen = choose_episodes(label, contact, scores.mean(0), threshold)
    top = 1.08 * max(threshold, *(float(np.nanmax(scores[:, number])) for number in chosen))
    episodes = []
    for number, title in chosen.items():
        steps = int(data["length"][number])
        obs, achieved, goal = (data[key][number, : steps + 1] for key in PATHS)
        columns = (("agent", 0, INK), ("object", 2, VERMILLION)) if known else ()
        tracks: list[Track] = [(name, obs[:, column], colour, "solid") for name, column, colour in columns]
        for axis in range(0 if known else goal.shape[1]):
            colour = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, GREY)[axis % 6]
            tracks.append((f"achieved {axis + 1}", achieved[:, axis], colour, "solid"))
            tracks.append((f"goal {axis + 1}", goal[:, axis], colour, "dot"))
        events: list[Track] = [("contact", contact[number, :steps], PURPLE, "diamond")] if "contact" in data else []
        events.append(("influence", label[number, :steps], ORANGE, "square"))
        figure = episode_figure(tracks, scores[:, number, :steps], events, threshold, top)
        figure.update_yaxes(title_text="position", row=1).update_yaxes(title_text=html.escape(run.main["title"]), row=2)
        if known:
            low, high = float(goal[0, 0]) - SLIDE["goal_radius"], float(goal[0, 0]) + SLIDE["goal_radius"]
            figure.add_hrect(low, high, row=1, col=1, fillcolor=translucent(GREEN, 0.2), line_width=0, layer="below")
            figure.add_hline(SLIDE["limit"], row=1, col=1, line={"color": GREY, "width": 1, "dash": "dot"})
            figure.update_yaxes(range=[-5.3, 5.3], tickvals=[-4, -2, 0, 2, 4], row=1, col=1)
        episodes.append({
            "title": f"Episode {number}: {title}", "length": steps, "figure": json.loads(figure.to_json()),
            "tracks": {name: plain(values) for name, values, *_ in tracks}, "goal": plain(goal[0]),
            "score": plain(scores[:, number, :steps].mean(0)),
            "events": {name: happened.tolist() for name, happened, *_ in events},
        })  # fmt: skip
    return {"layout": SLIDE if known else None, "episodes": episodes}


def render(run: Run) -> str:
    """The page as text."""
    title, first = run.main["title"], run.scores[run.main["name"]][0]
    others, other_figures = parts.others(run.folder, run.summary, run.arrays)
    explorer, explorer_figures = parts.explorer(title, first, run.label)
    studies, study_figures = parts.studies(run.folder)
    diagnosis, diagnosis_figures = parts.diagnosis(run.folder)
    pictures, picture_figures = parts.pictures(run.folder, title, run.thresholds)
    figures = {kind: curve_figure(run.rows, run.scores, run.label, kind) for kind in ("roc", "pr")}
    figures |= {"scores": score_figure(title, first, run.label, run.thresholds[0])} | explorer_figures
    figures |= other_figures | study_figures | diagnosis_figures | picture_figures
    page = {"dark": DARK, "figures": figures, "timeline": timeline(run), "explorer": explorer}
    page["films"] = pictures["films"] if pictures else []
    return render_page(
        "detection.html.j2", page, run=run, share=float(run.label.mean()),
        metadata=json.loads(str(run.data.get("metadata", "{}"))),
        notes=[str(note) for note in run.summary.get("notes") or []],
        explored=[{"title": name, "binary": False, **look("", place)} for place, name in enumerate(EXPLORED.values())],
        others=others, studies=studies, diagnosis=diagnosis, pictures=pictures,
    )  # fmt: skip
