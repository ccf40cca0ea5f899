"""What a study shows of its detection runs: the tables, curves, side questions and episodes that belong to it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from butfor.analysis.arms import ReadArm
from butfor.analysis.detection_runs import (
    detector_rows,
    expected_form,
    image,
    numbers,
    read,
    read_optional,
    read_others,
    read_pictures,
    scores_file,
    thresholds_of,
)
from butfor.reporting import detection_page as parts
from butfor.reporting.charts import Row, curve_figure
from butfor.reporting.detection_page import Figures
from butfor.reporting.page import data_address

FRAMES = 10  # in the strip of an episode
DRAWN = "butfor report RUN --figures"


@dataclass(frozen=True)
class Shown:
    """What of a detection run belongs to a study."""

    states: str = "test"
    """the set that is judged, as summary.json names it"""
    curves: bool = False
    """ROC and precision-recall"""
    asked: tuple[str, ...] = ()
    """side questions, as studies.json names them"""
    episodes: bool = False
    """CAI along chosen ones"""


SHOWN = {
    "detection-curves": Shown(curves=True, asked=("noise", "actions")),
    "random-test-set": Shown("random", curves=True, asked=("actions",)),
    "random-training-data": Shown(asked=("helps",)),
    "trajectories": Shown(episodes=True),
}


def shown_by(study: str) -> Shown:
    """What a study shows of its detection runs; one of the small size shows the same."""
    return SHOWN.get(study.removesuffix("-small"), Shown())


def study_tables(study: str, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of a run's summary that belong to a study: all labels on the set that it judges."""
    main = {"set": "test", "title": f"Against the {summary['label']} label, on the test set"} | summary
    return [one for one in (main, *summary.get("others", [])) if one.get("set") == shown_by(study).states]


def detection_part(study: str, arm: ReadArm, place: int) -> tuple[Row, Figures]:
    """What the page of a study shows of the arm at this place; `lacking` says what its folder does not hold."""
    shown, figures, lacking = shown_by(study), Figures(), list[str]()
    part: Row = {"label": arm.label, "prefix": f"{place}-", "lacking": lacking, "films": [], "drawn": []}
    part["studies"] = dict.fromkeys(("helps", "noise", "actions"))
    with expected_form(arm.folder / "summary.json"):
        chosen = study_tables(study, arm.summary)
        part["tables"] = [_table(one, str(arm.summary["env"])) for one in chosen]
    if not chosen:
        lacking.append(f"This run judged no states of the {shown.states} set.")
    for wanted, add in ((shown.curves, _add_curves), (shown.asked, _add_questions), (shown.episodes, _add_films)):
        try:
            figures |= add(arm.folder, part, shown) if wanted else {}
        except (OSError, ValueError) as error:  # what is damaged keeps nothing else from being shown
            lacking.append(str(error))
    return part, figures


def _table(one: dict[str, Any], world: str) -> Row:
    """A table of summary.json as the page shows it, with the set and the label in words."""
    words = f"{int(one['states']):,} states of {world}, {one['label']} label"
    if one.get("positive_share") is not None:
        words += f"; {float(one['positive_share']):.1%} of them influenced"
        words += f" (paper: {float(one['paper_share']):.1%})" if one.get("paper_share") else ""
    rows = detector_rows(one["detectors"], {})
    paper = any(row["auc"]["paper"] for row in rows)
    shown: Row = {"title": str(one["title"]), "words": words, "rows": rows, "paper": paper}
    return shown | {"held": one, "plots": {}, "drawn": []}


def _add_curves(folder: Path, part: Row, shown: Shown) -> Figures:
    """ROC and precision-recall curves of each table: charts of the scores, or else figures that were drawn before."""
    figures, arrays = Figures(), read_optional(folder / "scores.npz") or {}
    for number, table in enumerate(part["tables"]):
        (found,) = read_others(folder, {"others": [table["held"]]}, arrays)
        if found["scores"]:
            plots = {kind: f"{part['prefix']}{kind}-{number}" for kind in ("roc", "pr")}
            for kind, plot in plots.items():
                figures[plot] = curve_figure(found["rows"], found["scores"], found["label"], kind)
            table |= {"rows": found["rows"], "plots": plots}
            continue
        end = "" if "env" in table["held"] else f"-{found['name']}"  # the main one has no name
        table["drawn"] = drawn_before(folder, f"roc{end}.png") + drawn_before(folder, f"precision-recall{end}.png")
    if not all(table["plots"] or table["drawn"] for table in part["tables"]):
        part["lacking"].append(
            f"No ROC and precision-recall curves where the folder holds neither the scores of the states "
            f"({scores_file(shown.states)}) nor figures of them ({DRAWN})."
        )
    return figures


def _add_questions(folder: Path, part: Row, shown: Shown) -> Figures:
    """The side questions of a study: their rows, and the charts that the run's own page has of them."""
    view, figures = parts.studies(folder)
    part["studies"] |= {name: (view or {}).get(name) for name in shown.asked}
    absent = [name for name in shown.asked if not part["studies"][name]]
    part["lacking"] += [f"This run did not ask about {name} (butfor detect --studies {name})." for name in absent]
    return {part["prefix"] + name: figure for name, figure in figures.items() if name.split("-")[0] in shown.asked}


def _add_films(folder: Path, part: Row, shown: Shown) -> Figures:
    """Episodes of a run's pictures as strips of frames over CAI, or else the figures of them that were drawn before."""
    view = read_pictures(folder)
    if not view or not view["films"]:
        part["drawn"] = drawn_before(folder, "timeline-*.png")
        if not part["drawn"]:
            part["lacking"].append(
                f"No episodes: the folder holds neither pictures of them (pictures/index.json), which a run makes at "
                f"its end where its world can be drawn, nor figures ({DRAWN})."
            )
        return {}
    metrics = read(folder / "metrics.jsonl")
    with expected_form(folder / "metrics.jsonl"):
        thresholds = numbers(thresholds_of(metrics, "cai"), None).tolist()
    figures, films = Figures(), list[Row]()
    for film, figure in zip(view["films"], parts.film_figures(view["films"], "CAI", thresholds), strict=True):
        count, name = min(FRAMES, film["length"]), f"{part['prefix']}film-{len(figures)}"
        middles = [film["frames"][int((place + 0.5) * film["length"] / count)] for place in range(count)]
        figure.layout.shapes = figure.layout.shapes[1:]  # without the cursor, which nothing moves here
        figures[name] = figure
        frames = parts.embedded(folder / "pictures", middles)
        films.append({"title": film["title"], "plot": name, "frames": frames})
    part["films"] = films
    return figures


def drawn_before(folder: Path, pattern: str) -> list[Row]:
    """Figures for papers that the run's folder holds, as addresses that hold them."""
    paths = sorted((folder / "figures").glob(pattern))
    with expected_form(folder / "figures", "Draw them again."):
        return [{"name": path.stem, "data": data_address(*image(path.parent, path.name))} for path in paths]
