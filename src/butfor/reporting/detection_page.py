"""The page of a detection run: read its folder, check that the files agree, and show what they contain."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import precision_recall_curve

from butfor.analysis import detection_runs as detection
from butfor.analysis.detection_runs import METRICS, detector_rows, thresholds_of
from butfor.envs import facts_of
from butfor.reporting import charts
from butfor.reporting.charts import Array, Axis, Chart, Row, Series
from butfor.reporting.page import data_address, render_page
from butfor.reporting.plotly_renderer import draw, plain
from butfor.runs.reading import expected_form, read_arrays, read_metrics, read_object, read_run

Figures = dict[str, Any]  # name of a plot on the page -> plotly figure
FILES = ("versions.json", "summary.json", "metrics.jsonl", "scores.npz", "data/test.npz")
AGAIN = "Run `butfor detect` again."
PATHS = ("observation", "achieved_goal", "desired_goal")
SLIDE: Row = {"walls": [-5.0, 5.0], "limit": -0.5, "width": 0.2, "goal_radius": 0.5}
GOAL_COLOURS = (charts.VERMILLION, charts.BLUE, charts.GREEN, charts.PURPLE, charts.ORANGE, charts.GREY)


@dataclass(frozen=True)
class DetectionRun:
    """The content of a detection folder whose files agree with each other."""

    folder: Path
    config: dict[str, Any]
    versions: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    rows: list[Row]  # the table of detectors
    main: Row  # the row that the page is about
    thresholds: list[float]  # of the main detector's best F1, one for each seed
    arrays: dict[str, Array]  # the content of scores.npz
    scores: dict[str, Array]  # detector -> [S, N]
    label: Array  # [N]
    data: dict[str, Array]  # the content of data/test.npz
    valid: Array  # [E, T], true where a step was made: array[valid] has the order of `label`


def read_detection_run(run: Path) -> DetectionRun:
    """Read a detection folder.

    Raises:
        FileNotFoundError: a file is missing
        ValueError: a file cannot be read, or the files contradict each other
    """
    config = read_run(run)
    if config["kind"] != "detection":
        raise ValueError(f"{run} is a run of kind {config['kind']!r}; expected a run of kind 'detection'.")
    missing = [name for name in FILES if not (run / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{run} lacks {', '.join(missing)}; a report needs the whole run folder. {AGAIN}")
    versions, summary = (read_object(run / name) for name in ("versions.json", "summary.json"))
    metrics = read_metrics(run)
    arrays = read_arrays(run / "scores.npz")
    data = read_arrays(run / "data" / "test.npz")
    with expected_form(run):
        scores = {row["name"]: arrays[row["name"]] for row in summary["detectors"]}
        rows = detector_rows(summary["detectors"], scores)
        main = next((row for row in rows if row["name"] == "cai"), rows[0])
        thresholds = thresholds_of(metrics, main["name"])
        label = arrays["label"].astype(bool)
        length = data["length"]
        steps = data["action"].shape[1]
        valid = np.arange(steps) < length[:, None]  # [E, T]
        episode, time = valid.nonzero()  # [N], [N]
        paths = [data[key] for key in PATHS]
        # Used here so that an unexpected form is reported with the folder's name, not while the page is rendered.
        _ = [float(row[key]) for row in metrics for key in ("seed", *METRICS)], label & True, config["config"].items()
        _ = summary["env"] + summary["label"] + config["label"], json.loads(str(data.get("metadata", "{}"))).items()
        checks = {
            "summary.json and data/test.npz count different states": summary["states"] == len(time),
            "scores.npz and data/test.npz contain different states": np.array_equal(arrays["episode"], episode)
            and np.array_equal(arrays["time"], time) and label.shape == time.shape,
            "scores.npz needs both influenced and free states": label.any() and not label.all(),
            "scores.npz must contain finite scores of shape [seeds, states]": all(
                score.shape == (len(score), *time.shape) and np.isfinite(score).all() for score in scores.values()),
            "metrics.jsonl lacks rows": np.isfinite(thresholds).all()
            and all(len(thresholds_of(metrics, row["name"])) == row["seeds"] for row in rows),
            "data/test.npz must contain finite numbers": all(np.isfinite(path).all() for path in paths),
            "the arrays of data/test.npz differ in shape": paths[1].shape == paths[2].shape
            and {path.shape[:2] for path in paths} == {(len(length), steps + 1)}
            and data.get("contact", valid).shape == valid.shape,
        }  # fmt: skip
    for problem, is_right in checks.items():
        if not is_right:
            raise ValueError(f"{run} is inconsistent: {problem}. {AGAIN}")
    return DetectionRun(
        run, config, versions, metrics, summary, rows, main, thresholds, arrays, scores, label, data, valid
    )


def render_detection(run: DetectionRun) -> str:
    """The page as text."""
    title = run.main["title"]
    first = run.scores[run.main["name"]][0]
    others, other_figures = show_others(run)
    studies, study_figures = show_studies(run.folder)
    diagnosis, diagnosis_figures = show_diagnosis(run.folder)
    pictures, picture_figures = show_pictures(run)
    explorer = explore_thresholds(first, run.label)
    figures = {kind: draw(charts.detector_chart(run.rows, run.scores, run.label, kind)) for kind in ("roc", "pr")}
    figures["scores"] = draw(charts.score_chart(title, first, run.label, run.thresholds[0]))
    figures["explorer"] = draw(charts.explorer_chart(title, explorer), cursor=explorer["threshold"][explorer["best"]])
    figures |= other_figures | study_figures | diagnosis_figures | picture_figures
    page = {"figures": figures, "timeline": show_episodes(run), "explorer": explorer}
    page["films"] = pictures["films"] if pictures else []
    return render_page(
        "detection.html.j2", page, run=run, share=float(run.label.mean()), explored=charts.EXPLORED.values(),
        metadata=json.loads(str(run.data.get("metadata", "{}"))),
        notes=[str(note) for note in run.summary.get("notes") or []],
        others=others, studies=studies, diagnosis=diagnosis, pictures=pictures,
    )  # fmt: skip


def explore_thresholds(score: Array, label: Array) -> dict[str, Any]:
    """At most POINTS thresholds, and what flagging the states with score >= threshold gives at each of them."""
    precision, recall, thresholds = precision_recall_curve(label, score.astype(float))
    precision = precision[:-1]  # the last point has no threshold
    recall = recall[:-1]
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best = int(f1.argmax())
    chosen = np.arange(len(thresholds))
    if len(thresholds) > charts.POINTS:
        count = (
            charts.POINTS // 3
        )  # evenly by rank, by threshold and by recall, so that no move of the slider is a jump
        by_rank = np.linspace(0, len(thresholds) - 1, count).astype(int)
        by_threshold = np.searchsorted(thresholds, np.linspace(thresholds[0], thresholds[-1], count))
        by_recall = np.searchsorted(-recall, np.linspace(-recall[0], -recall[-1], count))  # recall falls
        chosen = np.unique([best, *by_rank, *by_threshold, *by_recall])
    flagged = 1.0 - np.searchsorted(np.sort(score.astype(float)), thresholds) / len(score)
    curves = {"threshold": thresholds, "precision": precision, "recall": recall, "f1": f1, "flagged": flagged}
    points = {key: plain(values[chosen]) for key, values in curves.items()}
    return points | {"best": int(np.searchsorted(chosen, best))}


def choose_episodes(label: Array, contact: Array, score: Array, threshold: float) -> dict[int, str]:
    """A handful of instructive episodes from arrays [E, T] (score is NaN after the end): number -> title."""
    chosen: dict[int, str] = {}
    influenced = label.any(1)  # [E, T] -> [E]
    touched = contact.any(1)
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


def show_episodes(run: DetectionRun) -> dict[str, Any]:
    """Episodes to step through, with the layout of the environment if the page can draw it."""
    data = run.data
    threshold = float(np.mean(run.thresholds))
    facts = facts_of(run.summary["env"])
    is_slide = facts is not None and facts.drawing == "line" and data["observation"].shape[2] == 4
    scores = np.full((len(run.scores[run.main["name"]]), *run.valid.shape), np.nan)
    scores[:, run.valid] = run.scores[run.main["name"]]  # [S, N] -> [S, E, T]
    label = np.zeros_like(run.valid)
    label[run.valid] = run.label
    contact = data.get("contact", ~run.valid).astype(bool) & run.valid
    chosen = choose_episodes(label, contact, scores.mean(0), threshold)
    top = 1.08 * max(threshold, *(float(np.nanmax(scores[:, number])) for number in chosen))
    episodes = []
    for number, title in chosen.items():
        steps = int(data["length"][number])
        obs, achieved, goal = (data[key][number, : steps + 1] for key in PATHS)
        positions = slide_positions(obs, goal) if is_slide else goal_positions(achieved, goal)
        events = {"contact": contact[number, :steps]} if "contact" in data else {}
        events["influence"] = label[number, :steps]
        score = scores[:, number, :steps]
        panels = charts.episode_charts(run.main["title"], score, events, events["influence"], top, threshold, positions)
        episodes.append({
            "title": f"Episode {number}: {title}", "length": steps,
            "figure": draw(*panels, heights=(0.48, 0.36, 0.16), cursor=0.0),
            "tracks": {track.name: plain(track.y) for track in positions.series}, "goal": plain(goal[0]),
            "score": plain(score.mean(0)), "events": {name: happened.tolist() for name, happened in events.items()},
        })  # fmt: skip
    return {"layout": SLIDE if is_slide else None, "episodes": episodes}


def slide_positions(obs: Array, goal: Array) -> Chart:
    """Agent and object of the slide environment along its track, with the goal zone and the agent's limit."""
    steps = np.arange(len(obs))
    series = [
        Series(steps, obs[:, column], name, colour, hover="%{y:.2f}")
        for name, column, colour in (("agent", 0, charts.INK), ("object", 2, charts.VERMILLION))
    ]
    middle = float(goal[0, 0])
    zone = charts.Span(middle - SLIDE["goal_radius"], middle + SLIDE["goal_radius"], "y", charts.GREEN)
    ticks = {tick: str(tick).replace("-", "−") for tick in (-4, -2, 0, 2, 4)}
    limit = charts.Rule(SLIDE["limit"], "y", charts.GREY, "dot", width=1)
    return Chart(series, y=Axis("position", (-5.3, 5.3), ticks), spans=[zone], rules=[limit])


def goal_positions(achieved: Array, goal: Array) -> Chart:
    """Each coordinate of the achieved and of the desired goal."""
    steps = np.arange(len(goal))
    series = []
    for axis in range(goal.shape[1]):
        colour = GOAL_COLOURS[axis % len(GOAL_COLOURS)]
        series.append(Series(steps, achieved[:, axis], f"achieved {axis + 1}", colour, hover="%{y:.2f}"))
        series.append(Series(steps, goal[:, axis], f"goal {axis + 1}", colour, "dot", hover="%{y:.2f}"))
    return Chart(series, y=Axis("position"))


def show_others(run: DetectionRun) -> tuple[list[Row], Figures]:
    """Tables of the same detectors on other states or with another label, with curves where the scores are there."""
    tables = detection.read_others(run.folder, run.summary, run.arrays)
    figures: Figures = {}
    for place, table in enumerate(tables):
        table["plots"] = {kind: f"{kind}-{place}" for kind in ("roc", "pr")} if table["scores"] else {}
        for kind, plot in table["plots"].items():
            figures[plot] = draw(charts.detector_chart(table["rows"], table["scores"], table["label"], kind))
    return tables, figures


def show_studies(run: Path) -> tuple[dict[str, Any] | None, Figures]:
    """The studies of a run, with their charts."""
    view = detection.read_studies(run)
    figures: Figures = {}
    if not view:
        return None, figures
    for metric in METRICS if view["noise"] else ():
        figures[f"noise-{metric}"] = draw(charts.noise_chart(view["noise_levels"], view["noise"], metric))
    if view["actions"]:
        figures["actions"] = draw(charts.actions_chart(view["actions"]))
    if view["reference"]:
        clouds = [charts.cloud(row["points"], visible=place == 0) for place, row in enumerate(view["reference_rows"])]
        figures["reference"] = draw(charts.reference_chart(clouds))
        view["reference_titles"] = [f"{row['first']} actions, {row['group']}" for row in view["reference_rows"]]
    if view["decisions"]:
        figures["decisions"] = draw(charts.decisions_chart(view["decisions"]))
    return view, figures


def show_diagnosis(run: Path) -> tuple[list[Row] | None, Figures]:
    """Whether the model can be trusted, for each entity: sentences, and the charts behind them."""
    entities = detection.read_diagnosis(run)
    figures: Figures = {}
    for place, entity in enumerate(entities or []):
        if entity["reliability"]:
            figures[f"reliability-{place}"] = draw(charts.reliability_chart([("", *entity["reliability"])]))
            entity["reliability"] = f"reliability-{place}"
        if entity["gain"]:
            figures[f"gain-{place}"] = draw(charts.gain_chart(*entity["gain"]))
            entity["gain"] = f"gain-{place}"
    return entities, figures


def film_figures(films: list[Row], title: str, thresholds: list[float], cursor: float | None = None) -> list[Any]:
    """A chart of the score and events of each film, with the same range of scores in all."""
    threshold = float(np.mean(thresholds))
    top = 1.08 * max([threshold, *(float(film["score"].max()) for film in films)])
    figures = []
    for film in films:
        events = film["events"]
        panels = charts.episode_charts(title, film["score"], events, events["influence"], top, threshold)
        figures.append(draw(*panels, heights=(0.68, 0.32), cursor=cursor))
    return figures


def embed_images(folder: Path, names: list[str]) -> list[str]:
    """Images beside index.json as data addresses."""
    with expected_form(folder / "index.json"):
        return [data_address(*detection.image(folder, name)) for name in names]


def show_pictures(run: DetectionRun) -> tuple[dict[str, Any] | None, Figures]:
    """Films of episodes, cards of failures and the map of influence."""
    view = detection.read_pictures(run.folder)
    figures: Figures = {}
    if not view:
        return None, figures
    drawn = film_figures(view["films"], run.main["title"], run.thresholds, cursor=0.0)
    for film, figure in zip(view["films"], drawn, strict=True):
        film["frames"] = embed_images(run.folder / "pictures", film["frames"])
        film["events"] = {name: happened.tolist() for name, happened in film["events"].items()}
        film |= {"score": plain(film["score"].mean(0)), "figure": figure}
    groups: dict[str, list[Row]] = {"Missed": [], "False alarms": []}
    for card in view["failures"]:
        group = "Missed" if card["kind"] == "missed" else "False alarms"
        groups[group].append(card | {"image": data_address(*card["image"])})
    failures = [{"title": title, "cards": cards} for title, cards in groups.items() if cards]
    for key, (unit, _) in detection.MAPS.items() if view["map"] else ():
        figures[f"map-{key}"] = draw(charts.map_chart(view["map"], key, key, unit))
    return {"films": view["films"], "failures": failures, "map": bool(view["map"])}, figures
