"""The pages of studies, of their index and of single training runs, which are studies with one arm."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from butfor.analysis import ReadArm, ReadStudy, read_run_folder, read_study, rows, study_names
from butfor.analysis import detection_runs as detection
from butfor.analysis.arms import BEHAVIOUR, SMALL, changes, count_words, read_heat_map
from butfor.analysis.claims import ENOUGH
from butfor.analysis.statistics import episodes_to_reach, export_rliable
from butfor.reporting.charts import Row, arm_look, detector_chart, heat_chart, learning_chart
from butfor.reporting.detection_page import Figures, embed_images, film_figures, show_studies
from butfor.reporting.page import data_address, render_page, write_page
from butfor.reporting.plotly_renderer import draw
from butfor.runs.reading import expected_form, finite_array, read_arrays, read_metrics, read_optional

MOST_BYTES = 3 * 2**20  # bytes: a larger film is linked, not embedded
PNG = b"\x89PNG\r\n\x1a\n"
STRIP_FRAMES = 10  # images above the score of an episode
FILMS = {"watch.gif": ("image/gif", b"GIF8", 0), "watch.mp4": ("video/mp4", b"ftyp", 4)}  # type, mark and its place
FINDINGS = ("reproduced", "partly", "not reproduced", "undecided")
DRAW = "butfor report RUN --figures"


@dataclass(frozen=True)
class Shown:
    """What a study shows of its detection runs."""

    states: str = "test"  # the set of states, as summary.json names it
    curves: bool = False  # ROC and precision-recall curves
    studies: tuple[str, ...] = ()  # parts of studies.json
    episodes: bool = False  # CAI along chosen episodes


SHOWN = {
    "detection-curves": Shown(curves=True, studies=("noise", "actions")),
    "random-test-set": Shown("random", curves=True, studies=("actions",)),
    "random-training-data": Shown(studies=("helps",)),
    "trajectories": Shown(episodes=True),
}


def write_study_report(root: Path, name: str) -> Path:
    """Write ROOT/reports/NAME.html, the page of a study with what has been run of it, and return its path.

    Raises:
        ValueError: the study's file cannot be read
    """
    target = Path(root) / "reports" / f"{name}.html"
    study = read_study(Path(root), name)
    return write_page(target, render_arms(study.arms, target.parent, study))


def write_rliable(root: Path, name: str) -> Path | None:
    """Write ROOT/reports/NAME-rliable.npz: the success of each arm at the evaluations that all arms share.

    Returns:
        the path of the file, or None if they share none
    """
    arms = [(arm, arm.curve) for arm in read_study(Path(root), name).arms if arm.curve]
    grids = [curve.episodes for _, curve in arms]
    shared = grids[0][np.all([np.isin(grids[0], grid) for grid in grids], axis=0)] if grids else np.empty(0)
    if not len(shared):
        return None
    curves = {
        arm.label: {str(arm.config["config"]["env"]): (shared, curve.success[:, np.isin(curve.episodes, shared)])}
        for arm, curve in arms
    }
    target = Path(root) / "reports" / f"{name}-rliable.npz"
    export_rliable(target, curves)
    return target


def render_training(run: Path, folder: Path) -> str:
    """The page of a training run as text, with links as seen from a folder."""
    return render_arms([read_run_folder(run)], folder, None)


def write_study_index(root: Path) -> Path:
    """Write ROOT/reports/index.html, which lists all studies with their verdicts, and return its path.

    Raises:
        ValueError: a study cannot be read; the index is written first, and lists the others
    """
    target = Path(root) / "reports" / "index.html"
    entries: list[Row] = []
    problems: list[str] = []
    for name in study_names(Path(root)):
        try:
            study = read_study(Path(root), name)
        except ValueError as error:
            problems.append(str(error))
            continue
        entries.append({
            "study": study,
            "href": f"{quote(name)}.html" if (target.parent / f"{name}.html").is_file() else None,
            "counts": count_verdicts(study),
            "arms": count_arms(study.arms),
            "shorter": describe_shortfall(study),
        })  # fmt: skip
    write_page(target, render_page("study_index.html.j2", {"figures": {}}, entries=entries, problems=problems))
    if problems:
        raise ValueError(f"{' '.join(problems)} The other studies are in {target}.")
    return target


def count_verdicts(study: ReadStudy) -> dict[str, int]:
    """How many claims have which verdict, the best first."""
    found = Counter[str](verdict.verdict for _, verdict, _ in study.verdicts)
    return {finding: found[finding] for finding in FINDINGS if found[finding]}


def count_arms(arms: list[ReadArm]) -> str:
    """Such as "3 of 5 arms finished, 1 unfinished, 1 not run"."""
    states = Counter("unfinished" if arm.state == "begun" else arm.state for arm in arms)
    parts = [f"{states['finished']} of {count_words(len(arms), 'arm')} finished"]
    return ", ".join(parts + [f"{states[key]} {key}" for key in ("unfinished", "not run", "broken") if states[key]])


def describe_shortfall(study: ReadStudy) -> str:
    """Which runs have fewer seeds or episodes than the size asks for: "3,000 of the paper's 20,000 episodes"."""
    whose = "the paper's" if study.size == "paper" else f"the {study.size} size's"
    begun = [arm for arm in study.arms if arm.config]
    seeds = [(arm.config["config"].get("seeds"), arm.asked[0]) for arm in begun]
    episodes = [(arm.summary.get("played"), arm.asked[1]) for arm in begun]
    parts = []
    for key, pairs in (("seeds", seeds), ("episodes", episodes)):
        known = [(count, asked) for count, asked in pairs if isinstance(count, int) and asked]
        if any(count < asked for count, asked in known):
            fewest = min(known)[0]
            most = max(min(count, asked) for count, asked in known)
            parts.append(f"{number_range(fewest, most)} of {whose} {max(asked for _, asked in known):,} {key}")
    return ", ".join(parts)


def number_range(low: int, high: int) -> str:
    """Such as "100", or "100 to 102"."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def render_arms(arms: list[ReadArm], folder: Path, study: ReadStudy | None) -> str:
    """The page of a study, or of a single run, as text; links are as seen from a folder."""
    measured = [arm for arm in arms if arm.curve]
    places = {arm.label: place for place, arm in enumerate(arms)}
    looks = {label: arm_look(place, len(arms)) for label, place in places.items()}
    figures: Figures = {}
    problems: list[str] = []
    if measured:
        given = [(arm, arm.curve) for arm in measured if arm.curve]
        figures["curves"] = draw(learning_chart(given, looks, "success", ("mean", "iqm", "seeds")))
    shares = [key for key in BEHAVIOUR if any(key in arm.behaviour for arm in measured)]
    for key in shares:
        given = [(arm, arm.behaviour[key]) for arm in measured if key in arm.behaviour]
        figures[f"curves-{key}"] = draw(learning_chart(given, looks, "share of steps"))
    heat: list[Row] = []
    detections: list[Row] = []
    for place, arm in enumerate(arms):
        try:  # a damaged file must not prevent the numbers from being shown
            found = draw_heat_maps(arm, place)
            heat += [{"title": arm.label, "names": list(found), **describe_heat_map(arm)}] if found else []
            figures |= found
            if arm.kind == "detection" and arm.summary:
                part, found = show_detection(study.name if study else "", arm, place)
                detections.append(part | {"href": link(arm.folder / "report.html", folder)})
                figures |= found
        except ValueError as error:
            problems.append(str(error))
    baseline = arms[0] if len(arms) > 1 else None
    ends = rows.shared_range(arms)
    return render_page(
        "study.html.j2", {"figures": figures}, study=study, arms=arms, measured=measured, baseline=baseline, ends=ends,
        rows=[rows.arm_row(arm, baseline, ends) | {"look": looks[arm.label]} for arm in measured],
        every=[row for arm in measured for row in seed_rows(arm, ends)],
        runs=[run_row(arm, folder, arms) for arm in arms], levels=rows.LEVELS, compared=rows.COMPARED, enough=ENOUGH,
        small=SMALL if study and study.size == "small" else "",
        counts=count_verdicts(study) if study else {}, shorter=describe_shortfall(study) if study else "",
        arm_counts=count_arms(arms), looks=looks, places=places, common=common_changes(arms), detections=detections,
        films=[part for arm in arms for part in film_parts(arm, folder)], heat=heat, problems=problems, shares=shares,
    )  # fmt: skip


def draw_heat_maps(arm: ReadArm, place: int) -> Figures:
    """CAI, and the exact label if it is there, over the steps of an episode and over training."""
    episodes, maps = read_heat_map(arm.folder)
    charts = [heat_chart(episodes, values, name, unit) for name, (values, unit) in maps.items()]
    return {f"heat-{place}-{number}": draw(chart) for number, chart in enumerate(charts)}


def describe_heat_map(arm: ReadArm) -> Row:
    """The seed of a heat map and the numbers of its episodes; files of earlier versions do not contain all of them."""
    path = arm.folder / "heatmap.npz"
    held = read_arrays(path)
    with expected_form(path):
        seed = int(held["seed"]) if "seed" in held else arm.seeds[0] if arm.seeds else None
        groups = [
            number_range(int(held[key].min()), int(held[key].max())) if key in held else ""
            for key in ("counts", "labelled")
        ]
    return {"seed": "the run’s first seed" if seed is None else f"seed {seed}, the run’s first", "groups": groups}


def seed_rows(arm: ReadArm, ends: tuple[int, int] | None) -> list[Row]:
    """The last success, the area and the episodes to 60 % of each seed."""
    assert arm.curve is not None
    area = rows.areas(arm.curve, ends)
    reached = episodes_to_reach(arm.curve.episodes, arm.curve.success, 0.6)
    found = []
    for place, seed in enumerate(arm.seeds):
        row: Row = {"label": arm.label, "seed": seed, "end": f"{arm.curve.success[place, -1]:.2f}"}
        row["area"] = "–" if area is None else f"{area[place]:.2f}"
        row["reach"] = f"{reached[place]:,.0f}" if np.isfinite(reached[place]) else "never"
        found.append(row)
    return found


def common_changes(arms: list[ReadArm]) -> list[str]:
    """The settings that all training runs change from the defaults."""
    found = [changes(str(arm.config["label"])) for arm in arms if arm.config and arm.kind == "training"]
    return [change for change in found[0] if all(change in other for other in found[1:])] if len(found) > 1 else []


def run_row(arm: ReadArm, folder: Path, arms: list[ReadArm]) -> Row:
    """How an arm was run: its own settings, hardware, time, seeds and commit."""
    common = common_changes(arms)
    cores = arm.versions.get("cores")
    machine = [*rows.noted(arm, "device"), *([f"{cores} cores"] if cores else [])]
    return {
        "label": arm.label,
        "kind": arm.kind,
        "state": arm.state,
        "words": arm.words,
        "changes": [change for change in changes(str(arm.config.get("label", ""))) if change not in common],
        "seeds": len(arm.seeds) or (arm.config.get("config") or {}).get("seeds", "–"),
        "time": rows.duration(rows.seconds_of(arm)),
        "hardware": ", ".join(machine) or "–",
        "commit": ", ".join(rows.noted(arm, "commit")) or "–",
        "folder": arm.folder.name,
        "href": link(arm.folder / "report.html", folder),
    }


def link(path: Path, folder: Path) -> str | None:
    """The address of a file as seen from a page in a folder; None if there is no such file."""
    return quote(Path(os.path.relpath(path, folder)).as_posix()) if path.is_file() else None


def film_parts(arm: ReadArm, folder: Path) -> list[Row]:
    """Films of a run folder: small ones as data addresses, others as links."""
    parts: list[Row] = []
    strip = arm.folder / "strip.png"
    if strip.is_file() and strip.stat().st_size <= MOST_BYTES and (content := strip.read_bytes()).startswith(PNG):
        alt = described(content) or "Frames of an episode of the trained agent, with the numbers of their steps."
        parts.append({"kind": "strip", "data": data_address("image/png", content), "alt": alt})
    for name, (kind, mark, place) in FILMS.items():
        path = arm.folder / name
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            parts.append({"kind": "link", "href": link(path, folder), "name": name})
        elif path.is_file() and (content := path.read_bytes())[place : place + len(mark)] == mark:
            parts.append({"kind": kind.partition("/")[0], "data": data_address(kind, content)})
    return [part | {"label": arm.label} for part in parts]


def described(png: bytes) -> str:
    """The description in a PNG file, in a text chunk (tEXt) before its pixels; empty if there is none."""
    place = len(PNG)
    while place + 8 <= len(png) and png[place + 4 : place + 8] != b"IDAT":
        end = place + 8 + int.from_bytes(png[place : place + 4], "big")
        word, _, text = png[place + 8 : end].partition(b"\0")
        if png[place + 4 : place + 8] == b"tEXt" and word == b"Description":
            return text.decode("latin-1")
        place = end + 4  # a checksum
    return ""


# Detection runs of a study


def shown_by(study: str) -> Shown:
    """What a study shows of its detection runs; its small size shows the same."""
    return SHOWN.get(study.removesuffix("-small"), Shown())


def study_tables(study: str, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of a run's summary that a study shows: all labels on its set of states."""
    main = {"set": "test", "title": f"Against the {summary['label']} label, on the test set"} | summary
    return [one for one in (main, *summary.get("others", [])) if one.get("set") == shown_by(study).states]


def show_detection(study: str, arm: ReadArm, place: int) -> tuple[Row, Figures]:
    """What the page of a study shows of the arm at a place; `lacking` lists what its folder does not contain."""
    shown = shown_by(study)
    lacking: list[str] = []
    part: Row = {"label": arm.label, "prefix": f"{place}-", "lacking": lacking, "films": [], "drawn": []}
    part["studies"] = dict.fromkeys(("helps", "noise", "actions"))
    with expected_form(arm.folder / "summary.json"):
        chosen = study_tables(study, arm.summary)
        part["tables"] = [show_table(table, str(arm.summary["env"])) for table in chosen]
    if not chosen:
        lacking.append(f"This run did not evaluate states of the {shown.states} set.")
    figures: Figures = {}
    for wanted, add in ((shown.curves, add_curves), (shown.studies, add_studies), (shown.episodes, add_films)):
        try:
            figures |= add(arm.folder, part, shown) if wanted else {}
        except (OSError, ValueError) as error:  # a damaged file must not prevent the rest from being shown
            lacking.append(str(error))
    return part, figures


def show_table(table: dict[str, Any], env: str) -> Row:
    """A table of summary.json as the page shows it, with a sentence on its states and label."""
    words = f"{int(table['states']):,} states of {env}, {table['label']} label"
    if table.get("positive_share") is not None:
        words += f"; {float(table['positive_share']):.1%} of them influenced"
        words += f" (paper: {float(table['paper_share']):.1%})" if table.get("paper_share") else ""
    rows = detection.detector_rows(table["detectors"], {})
    has_paper = any(row["auc"]["paper"] for row in rows)
    shown: Row = {"title": str(table["title"]), "words": words, "rows": rows, "paper": has_paper}
    return shown | {"held": table, "plots": {}, "drawn": []}


def add_curves(folder: Path, part: Row, shown: Shown) -> Figures:
    """ROC and precision-recall curves of each table: charts if the scores are there, else figures drawn before."""
    figures: Figures = {}
    arrays = read_optional(folder / "scores.npz") or {}
    for number, table in enumerate(part["tables"]):
        (found,) = detection.read_others(folder, {"others": [table["held"]]}, arrays)
        if found["scores"]:
            plots = {kind: f"{part['prefix']}{kind}-{number}" for kind in ("roc", "pr")}
            table |= {"rows": found["rows"], "plots": plots}
            for kind, plot in plots.items():
                figures[plot] = draw(detector_chart(found["rows"], found["scores"], found["label"], kind))
            continue
        end = "" if "env" in table["held"] else f"-{found['name']}"  # the figures of the main table have no suffix
        table["drawn"] = drawn_before(folder, f"roc{end}.png") + drawn_before(folder, f"precision-recall{end}.png")
    if not all(table["plots"] or table["drawn"] for table in part["tables"]):
        part["lacking"].append(
            f"No ROC and precision-recall curves: the folder contains neither the scores of the states "
            f"({detection.scores_file(shown.states)}) nor figures of them ({DRAW})."
        )
    return figures


def add_studies(folder: Path, part: Row, shown: Shown) -> Figures:
    """The parts of studies.json that a study shows, with the charts of the run's own page."""
    view, figures = show_studies(folder)
    part["studies"] |= {name: (view or {}).get(name) for name in shown.studies}
    absent = [name for name in shown.studies if not part["studies"][name]]
    part["lacking"] += [f"This run did not study {name} (butfor detect --studies {name})." for name in absent]
    return {part["prefix"] + name: figure for name, figure in figures.items() if name.split("-")[0] in shown.studies}


def add_films(folder: Path, part: Row, shown: Shown) -> Figures:
    """Episodes as strips of frames over their CAI: charts if the pictures are there, else figures drawn before."""
    view = detection.read_pictures(folder)
    if not view or not view["films"]:
        part["drawn"] = drawn_before(folder, "timeline-*.png")
        if not part["drawn"]:
            part["lacking"].append(
                f"No episodes: the folder contains neither pictures of them (pictures/index.json), which a run renders "
                f"at its end if its environment can be drawn, nor figures ({DRAW})."
            )
        return {}
    metrics = read_metrics(folder)
    with expected_form(folder / "metrics.jsonl"):
        thresholds = finite_array(detection.thresholds_of(metrics, "cai"), None).tolist()
    figures: Figures = {}
    for film, figure in zip(view["films"], film_figures(view["films"], "CAI", thresholds), strict=True):
        count = min(STRIP_FRAMES, film["length"])
        middles = [film["frames"][int((place + 0.5) * film["length"] / count)] for place in range(count)]
        plot = f"{part['prefix']}film-{len(figures)}"
        figures[plot] = figure
        frames = embed_images(folder / "pictures", middles)
        part["films"].append({"title": film["title"], "plot": plot, "frames": frames})
    return figures


def drawn_before(folder: Path, pattern: str) -> list[Row]:
    """Figures for papers in a run folder, as data addresses."""
    paths = sorted((folder / "figures").glob(pattern))
    with expected_form(folder / "figures"):
        return [{"name": path.stem, "data": data_address(*detection.image(path.parent, path.name))} for path in paths]
