"""Figures for papers: which charts of a run folder or of a study go into which file."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from butfor.analysis import detection_runs as detection
from butfor.analysis.arms import BEHAVIOUR, ReadArm, read_heat_map, read_run_folder, read_study
from butfor.reporting import charts
from butfor.reporting.charts import Row
from butfor.reporting.detection_page import read_detection_run
from butfor.reporting.matplotlib_renderer import COLUMN, FRAMES, PAGE, decode_image, draw, draw_film, save_figures
from butfor.runs.reading import expected_form, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAP_NAMES = {"cai": "CAI", "effect": "effect of the action"}


def write_figures(run: Path, out: Path | None = None) -> list[Path]:
    """Write the figures of a detection or training run as SVG and PNG, by default into its folder figures."""
    folder = Path(out or Path(run) / "figures")
    if read_run(run)["kind"] != "training":
        return save_figures(folder, lambda: draw_detectors(Path(run)) | draw_parts(Path(run)))
    arm = read_run_folder(Path(run))
    if arm.curve is None:
        raise ValueError(f"{run} {arm.words}: there is nothing to draw.")
    return save_figures(folder, lambda: draw_arms([arm]))


def write_study_figures(root: Path, name: str, report: Callable[[str], object] = lambda sentence: None) -> list[Path]:
    """Write ROOT/reports/figures/NAME-*.svg and *.png of what has been run of a study, and return their paths.

    `report` receives a sentence for each detection run that cannot be drawn completely.
    """
    arms = read_study(Path(root), name).arms

    def draw_study() -> dict[str, "Figure"]:
        figures = draw_arms(arms) | draw_detection_arms(arms, report)
        return {f"{name}-{kind}": figure for kind, figure in figures.items()}

    return save_figures(Path(root) / "reports" / "figures", draw_study)


def draw_detectors(run: Path) -> dict[str, "Figure"]:
    """Name -> figure: the curves of a detection run's detectors, by each label and on each set of states."""
    figures = {}
    for place, table in enumerate(read_detection_run(run).tables):
        end = f"-{table['name']}" if place else ""
        for kind, name in (("roc", "roc"), ("pr", "precision-recall")) if table["scores"] else ():
            chart = charts.detector_chart(table["rows"], table["scores"], table["label"], kind)
            figures[name + end] = draw([chart], COLUMN, 3.0, columns=2)
    return figures


def draw_parts(folder: Path) -> dict[str, "Figure"]:
    """Name -> figure: what does not need the scores of the states, which is studies, diagnosis and pictures."""
    figures: dict[str, Figure] = {}
    studies = detection.read_studies(folder) or {}
    if groups := studies.get("actions"):
        figures["actions"] = draw([charts.actions_chart(groups)], COLUMN, 2.2 + 0.28 * len(groups))
    if groups := studies.get("reference"):
        figures["reference"] = draw_reference(groups)
    if groups := studies.get("decisions"):
        figures["decisions"] = draw_decisions(groups)
    if lines := studies.get("noise"):
        panels = [charts.noise_chart(studies["noise_levels"], lines, metric) for metric in ("auc", "ap")]
        figures["noise"] = draw(panels, PAGE, 2.4, columns=2, share_y=False)
    entities = [entity for entity in detection.read_diagnosis(folder) or [] if entity["reliability"]]
    if entities:
        named = [(entity["name"] if len(entities) > 1 else "", *entity["reliability"]) for entity in entities]
        figures["reliability"] = draw([charts.reliability_chart(named)], COLUMN, 3.1, columns=2)
    pictures = detection.read_pictures(folder) or {"films": [], "map": None}
    top = 1.08 * max((float(film["score"].max()) for film in pictures["films"]), default=0.0)  # the same in all
    for number, film in enumerate(pictures["films"], 1):
        figures[f"timeline-{number}"] = draw_episode(folder / "pictures", film, top if top > 0 else 1.0)
    if around := pictures["map"]:
        panels = [charts.map_chart(around, key, MAP_NAMES[key], unit) for key, (unit, _) in detection.MAPS.items()]
        figures["map"] = draw(panels, PAGE, 2.9)
    return figures


def draw_reference(groups: list[Row]) -> "Figure":
    """Estimates of CAI with the most actions over reference values, and the bias over the number of actions."""
    most = max(int(row["first"]) for group in groups for row in group["rows"])
    clouds = [
        charts.cloud(row["points"], **charts.line_look(place))
        for place, group in enumerate(groups)
        for row in group["rows"]
        if int(row["first"]) == most
    ]
    panels = [charts.reference_chart(clouds, f"estimate with K = {most} (nats)"), charts.bias_chart(groups)]
    return draw(panels, PAGE, 3.3, columns=2, share_y=False)


def draw_decisions(groups: list[Row]) -> "Figure":
    """The realised share of false discoveries over its limit, one chart for each set of states."""
    rows = [row for group in groups for row in group["rows"]]
    sets, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("set", "method"))
    panels = []
    for name in sets:
        chosen = [row for row in rows if row["set"] == name]
        by_method = [{"title": one, "rows": [row for row in chosen if row["method"] == one]} for one in methods]
        panels.append(charts.decisions_chart(by_method, title=name))
    if len(sets) > 1:
        return draw(panels, PAGE, 2.6, columns=3)
    return draw(panels, COLUMN, 3.0)


def draw_episode(folder: Path, film: Row, top: float) -> "Figure":
    """Frames of an episode over its CAI; influence is shaded, other events are marked below."""
    marks = dict(film["events"])
    influenced = marks.pop("influence")
    panels = charts.episode_charts("CAI (nats)", film["score"], marks, influenced, top)
    count = min(FRAMES, film["length"])
    edges = np.linspace(-0.5, film["length"] - 0.5, count + 1)  # each frame is drawn over its share of the steps
    middles = np.ceil((edges[1:] + edges[:-1]) / 2 - 0.5).astype(int)
    names = [film["frames"][step] for step in middles]
    with expected_form(folder / "index.json"):
        images = [detection.image(folder, name) for name in names]
    frames = [decode_image(folder / name, *image) for name, image in zip(names, images, strict=True)]
    return draw_film(film["title"], frames, *panels)


def draw_detection_arms(arms: list[ReadArm], report: Callable[[str], object]) -> dict[str, "Figure"]:
    """ARM-KIND -> figure, of every detection run of a study."""
    figures: dict[str, Figure] = {}
    for arm in (arm for arm in arms if arm.kind == "detection"):
        if not arm.summary:
            report(f"nothing of {arm.label}, which {arm.words}")
            continue
        for part, draw_part in (("curves of its detectors", draw_detectors), ("studies and pictures", draw_parts)):
            try:
                drawn = draw_part(arm.folder)
                figures |= {f"{file_name(arm.label)}-{kind}": figure for kind, figure in drawn.items()}
            except (OSError, ValueError) as error:
                report(f"{arm.label} without {part}: {error}")
    return figures


def file_name(label: str) -> str:
    """An arm's label as a part of a file's name."""
    return re.sub(r"[^\w.]+", "-", label)[:60].strip("-.") or "arm"


def draw_arms(arms: list[ReadArm]) -> dict[str, "Figure"]:
    """Kind -> figure: learning curves, episodes to reach 60 % success, behaviour and heat maps of training runs."""
    looks = {arm.label: charts.arm_look(place, len(arms)) for place, arm in enumerate(arms)}
    given = [(arm, arm.curve) for arm in arms if arm.curve]
    if not given:
        return {}
    height = 2.5 + 0.17 * len(given)
    figures = {"curves": draw([charts.learning_chart(given, looks, "success")], COLUMN, height, markers=False)}
    figures["reach"] = draw([charts.reach_chart(given, looks)], PAGE, 0.7 + 0.24 * len(given))
    behaviour = {name: [(arm, arm.behaviour[name]) for arm, _ in given if name in arm.behaviour] for name in BEHAVIOUR}
    panels = [
        charts.learning_chart(curves, looks, "share of an episode's steps", title=name)
        for name, curves in behaviour.items()
        if curves
    ]
    if panels:
        figures["behaviour"] = draw(panels, PAGE, height - 0.3, markers=False)
    for place, arm in enumerate(arms):
        episodes, drawn = read_heat_map(arm.folder)
        panels = [charts.heat_chart(episodes, values, name, unit) for name, (values, unit) in drawn.items()]
        if panels:
            name = f"heat-map-{place + 1}" if len(arms) > 1 else "heat-map"
            figures[name] = draw(panels, PAGE if len(panels) > 1 else COLUMN, 2.4)
    return figures
