"""The page of a detection run: read its folder, and show what it contains."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import precision_recall_curve

from butfor.analysis import detection_runs as detection
from butfor.analysis.detection_runs import METRICS, thresholds_of
from butfor.envs import facts_of
from butfor.reporting import charts
from butfor.reporting.charts import Array, Axis, Chart, Row, Series
from butfor.reporting.page import data_address, render_page
from butfor.reporting.player import embed_scene
from butfor.reporting.plotly_renderer import draw, plain
from butfor.runs.reading import expected_form, finite_array, read_arrays, read_metrics, read_object, read_run
from butfor.scenes.scene import SCENE_FILE

Figures = dict[str, Any]  # name of a plot on the page -> plotly figure
FILES = ("versions.json", "summary.json", "metrics.jsonl", "scores.npz", "data/test.npz")
PATHS = ("observation", "achieved_goal", "desired_goal")
SLIDE: Row = {"walls": [-5.0, 5.0], "limit": -0.5, "width": 0.2, "goal_radius": 0.5}
GOAL_COLOURS = (charts.VERMILLION, charts.BLUE, charts.GREEN, charts.PURPLE, charts.ORANGE, charts.GREY)


@dataclass(frozen=True)
class DetectionRun:
    """The content of a detection folder."""

    folder: Path
    config: dict[str, Any]
    versions: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    tables: list[Row]  # of detectors: by the exact label on the test set, and by other labels or on other states
    main: Row  # the row of the first table that the page is about
    thresholds: list[float]  # of the main detector's best F1, one for each seed
    data: dict[str, Array]  # the content of data/test.npz
    valid: Array  # [E, T], true where a step was made: array[valid] has the order of the label


def read_detection_run(run: Path) -> DetectionRun:
    """Read a detection folder; a file that is missing or damaged raises an error that names it."""
    config = read_run(run)
    if config["kind"] != "detection":
        raise ValueError(f"{run} is a run of kind {config['kind']!r}; expected a run of kind 'detection'.")
    missing = [name for name in FILES if not (run / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{run} lacks {', '.join(missing)}, which a report needs. Run `butfor detect` again.")
    versions = read_object(run / "versions.json")
    summary = read_object(run / "summary.json")
    metrics = read_metrics(run)
    arrays = read_arrays(run / "scores.npz")
    data = read_arrays(run / "data" / "test.npz")
    with expected_form(run / "summary.json"):
        entries = list_tables(summary)
    tables = detection.read_others(run, {"others": entries}, arrays)
    rows = tables[0]["rows"]
    main = next((row for row in rows if row["name"] == "cai"), rows[0])
    with expected_form(run / "metrics.jsonl"):
        found = {row["name"]: finite_array(thresholds_of(metrics, row["name"]), row["seeds"]) for row in rows}
    with expected_form(run):
        valid = np.arange(data["action"].shape[1]) < data["length"][:, None]  # [E, T]
        if not np.array_equal([arrays["episode"], arrays["time"]], valid.nonzero()):
            raise ValueError("scores.npz and data/test.npz contain different states")
    thresholds = found[main["name"]].tolist()
    return DetectionRun(run, config, versions, metrics, summary, tables, main, thresholds, data, valid)


def list_tables(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of summary.json: of its own label and states, and the others."""
    title = f"Against the {summary['label']} label, on the test set"
    return [{"set": "test", "title": title} | summary, *(summary.get("others") or [])]


def render_detection(run: DetectionRun) -> str:
    """The page as text."""
    table = run.tables[0]
    label = table["label"]
    title = run.main["title"]
    first = table["scores"][run.main["name"]][0]
    explorer = explore_thresholds(first, label)
    figures: Figures = {
        kind: draw(charts.detector_chart(table["rows"], table["scores"], label, kind)) for kind in ("roc", "pr")
    }
    draw_curves(run.tables[1:], figures)
    figures["scores"] = draw(charts.score_chart(title, first, label, run.thresholds[0]))
    figures["explorer"] = draw(charts.explorer_chart(title, explorer), cursor=explorer["threshold"][explorer["best"]])
    pictures = show_pictures(run, figures)
    player = embed_scene(run.folder / SCENE_FILE)
    films = [] if player else pictures["films"]  # runs of earlier versions have films only
    page = {"figures": figures, "timeline": show_episodes(run), "explorer": explorer, "films": films}
    return render_page(
        "detection.html.j2", page, run=run, share=float(label.mean()), explored=charts.EXPLORED.values(),
        metadata=json.loads(str(run.data.get("metadata", "{}"))), pictures=pictures, player=player,
        studies=show_studies(run.folder, figures), diagnosis=show_diagnosis(run.folder, figures),
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
        # Evenly by rank, by threshold and by recall, so that no move of the slider is a jump.
        count = charts.POINTS // 3
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
    given = run.tables[0]["scores"][run.main["name"]]
    scores = np.full((len(given), *run.valid.shape), np.nan)
    scores[:, run.valid] = given  # [S, N] -> [S, E, T]
    label = np.zeros_like(run.valid)
    label[run.valid] = run.tables[0]["label"]
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


def draw_curves(tables: list[Row], figures: Figures, prefix: str = "") -> None:
    """Draw the curves of each table of detectors whose scores are there; `plots` of a table names them."""
    for place, table in enumerate(tables):
        table["plots"] = {kind: f"{prefix}{kind}-{place}" for kind in ("roc", "pr")} if table["scores"] else {}
        for kind, plot in table["plots"].items():
            figures[plot] = draw(charts.detector_chart(table["rows"], table["scores"], table["label"], kind))


def show_studies(run: Path, figures: Figures) -> dict[str, Any] | None:
    """The studies of a run; their charts go into `figures`."""
    view = detection.read_studies(run)
    if not view:
        return None
    for metric in METRICS if view["noise"] else ():
        figures[f"noise-{metric}"] = draw(charts.noise_chart(view["noise_levels"], view["noise"], metric))
    if view["actions"]:
        figures["actions"] = draw(charts.actions_chart(view["actions"]))
    if view["reference"]:
        clouds = [charts.cloud(row["points"], visible=place == 0) for place, row in enumerate(view["reference_rows"])]
        figures["reference"] = draw(charts.reference_chart(clouds))
    if view["decisions"]:
        figures["decisions"] = draw(charts.decisions_chart(view["decisions"]))
    return view


def show_diagnosis(run: Path, figures: Figures) -> list[Row]:
    """Whether the model can be trusted, for each entity: sentences, and the names of the charts behind them."""
    entities = detection.read_diagnosis(run) or []
    for place, entity in enumerate(entities):
        if entity["reliability"]:
            figures[f"reliability-{place}"] = draw(charts.reliability_chart([("", *entity["reliability"])]))
            entity["reliability"] = f"reliability-{place}"
        if entity["gain"]:
            figures[f"gain-{place}"] = draw(charts.gain_chart(*entity["gain"]))
            entity["gain"] = f"gain-{place}"
    return entities


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


def show_pictures(run: DetectionRun, figures: Figures) -> dict[str, Any]:
    """Films of episodes, cards of failures by title, and whether there is a map of influence."""
    view = detection.read_pictures(run.folder) or {"films": [], "failures": [], "map": None}
    drawn = film_figures(view["films"], run.main["title"], run.thresholds, cursor=0.0)
    for film, figure in zip(view["films"], drawn, strict=True):
        film["frames"] = embed_images(run.folder / "pictures", film["frames"])
        film["events"] = {name: happened.tolist() for name, happened in film["events"].items()}
        film |= {"score": plain(film["score"].mean(0)), "figure": figure}
    failures: dict[str, list[Row]] = {"Missed": [], "False alarms": []}
    for card in view["failures"]:
        cards = failures["Missed" if card["kind"] == "missed" else "False alarms"]
        cards.append(card | {"image": data_address(*card["image"])})
    for key, (unit, _) in detection.MAPS.items() if view["map"] else ():
        figures[f"map-{key}"] = draw(charts.map_chart(view["map"], key, key, unit))
    return {"films": view["films"], "failures": failures if view["failures"] else {}, "map": view["map"] is not None}
