"""The pages of runs, of studies and of their index; a training run is shown as a study with one arm."""

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from butfor.analysis import ReadArm, ReadStudy, read_study, rows, study_names
from butfor.analysis import detection_runs as detection
from butfor.analysis.arms import (
    BEHAVIOUR,
    SMALL,
    changes,
    differing_settings,
    read_heat_map,
    read_runs,
)
from butfor.analysis.claims import ENOUGH
from butfor.analysis.statistics import episodes_to_reach, export_rliable
from butfor.analysis.table_claims import rule_of
from butfor.reporting import detection_page
from butfor.reporting.charts import MOST_POINTS, Row, arm_look, heat_chart, learning_chart, trained_chart
from butfor.reporting.detection_page import Figures, draw_curves, list_tables, show_studies
from butfor.reporting.page import data_address, render_page, write_page
from butfor.reporting.player import Packed, embed_scenes, join_scenes, player_part
from butfor.reporting.plotly_renderer import draw
from butfor.runs.printing import count_words
from butfor.runs.reading import (
    expected_form,
    read_arrays,
    read_optional,
    read_run,
)
from butfor.scenes.scene import SCENE_FILE, read_scene

MOST_BYTES = 3 * 2**20  # bytes: a larger film is linked, not embedded
MOST_EPISODES = 12  # of all arms in the player of a study
FILMS = {  # kind on the page, media type, mark in the file and its place
    "strip.png": ("image", "image/png", b"\x89PNG\r\n\x1a\n", 0),  # of earlier versions
    "watch.gif": ("image", "image/gif", b"GIF8", 0),
    "watch.mp4": ("video", "video/mp4", b"ftyp", 4),
}
FINDINGS = ("reproduced", "partly", "not reproduced", "undecided")
TRAINED = {  # of metrics.jsonl: title and unit
    "score": ("Influence in new episodes", "nats"),
    "critic_loss": ("Loss of the critic", ""),
    "actor_loss": ("Loss of the actor", ""),
    "model_loss": ("Loss of the influence model", ""),
    "training_touched": ("Training episodes that touch the object", "share"),
    "training_lifted": ("Training episodes that lift the object by 3 cm", "share"),
    "training_success": ("Training episodes that succeed", "share"),
    "value_predicted": ("Value of first states, by the critic", ""),
    "value_reached": ("Value of first states, reached by the policy", ""),
    "relay_acts": ("Steps in which the relay acts", "share"),
    "relay_reaches": ("Training episodes that reach influence", "share"),
}
REFRESH = 30  # seconds after which the open page of a running training loads itself again
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


def write_report(run: Path, out: Path | None = None, running: bool = False, baseline: Path | None = None) -> Path:
    """Write the report of a detection or training run as one self-contained HTML page.

    Args:
        run: the run folder
        out: the page, a name that ends in .html (default: report.html in the run folder)
        running: whether the training still runs: an open page then loads itself again from time to time
        baseline: another training run, whose curve is drawn beside that of a training run

    Returns:
        the path of the page

    Raises:
        FileNotFoundError: `run` is not a run folder, or a file is missing in it
        ValueError: a file of the run cannot be read, or `out` does not end in .html
    """
    target = Path(out or Path(run) / "report.html")
    if target.suffix != ".html":
        raise ValueError(f"The report {target} ends in {target.suffix!r}; expected a name that ends in .html.")
    if read_run(run)["kind"] == "training":
        runs = read_runs([Path(run)] if baseline is None else [Path(run), Path(baseline)])
        return write_page(target, render_arms(runs, target.parent, None, running))
    if baseline is not None:
        raise ValueError(f"{run} is not a training run, so it has no baseline; leave out --baseline.")
    return write_page(target, detection_page.render_detection(detection_page.read_detection_run(Path(run))))


def write_study_report(root: Path, name: str) -> Path:
    """Write ROOT/reports/NAME.html, the page of a study with what has been run of it, and return its path.

    Raises:
        ValueError: the study's file cannot be read
    """
    target = Path(root) / "reports" / f"{name}.html"
    study = read_study(Path(root), name)
    return write_page(target, render_arms(study.arms, target.parent, study))


def write_comparison(runs: Sequence[Path], out: Path) -> Path:
    """Write a page that compares training runs: curves, intervals, and the settings that differ.

    Args:
        runs: run folders; the first is the baseline
        out: the page, a name that ends in .html

    Returns:
        the path of the page

    Raises:
        ValueError: there are fewer than two runs, one is not a training run or is given twice
    """
    if len(runs) < 2:
        raise ValueError(f"A comparison needs at least 2 runs; got {len(runs)}.")
    if out.suffix != ".html":
        raise ValueError(f"The page {out} ends in {out.suffix!r}; expected a name that ends in .html.")
    arms = read_runs(runs)
    envs = ", ".join(dict.fromkeys(str(arm.config["config"].get("env", "?")) for arm in arms))
    title = f"{count_words(len(arms), 'run')} on {envs}"
    compared = ReadStudy("", title, "", "", "", arms, [])
    return write_page(out, render_arms(arms, out.parent, compared))


def write_rliable(root: Path, name: str) -> Path | None:
    """Write ROOT/reports/NAME-rliable.npz: the success of each arm at the evaluations that all arms share.

    Returns:
        the path of the file, or None if they share none
    """
    arms = [(arm, arm.curve) for arm in read_study(Path(root), name).arms if arm.curve]
    shared = reduce(np.intersect1d, [curve.episodes for _, curve in arms]) if arms else np.empty(0)
    if not len(shared):
        return None
    curves = {
        arm.label: {str(arm.config["config"]["env"]): (shared, curve.success[:, np.isin(curve.episodes, shared)])}
        for arm, curve in arms
    }
    target = Path(root) / "reports" / f"{name}-rliable.npz"
    export_rliable(target, curves)
    return target


def write_study_index(root: Path) -> Path:
    """Write ROOT/reports/index.html, which lists all studies with their verdicts, and return its path.

    Raises:
        ValueError: a study cannot be read; the index is written first, and lists the others
    """
    target = Path(root) / "reports" / "index.html"
    entries: list[tuple[ReadStudy, str | None]] = []
    problems: list[str] = []
    for name in study_names(Path(root)):
        try:
            study = read_study(Path(root), name)
        except ValueError as error:
            problems.append(str(error))
            continue
        entries.append((study, link(target.with_name(f"{name}.html"), target.parent)))
    text = render_page(
        "study_index.html.j2", {"figures": {}}, entries=entries, problems=problems, count_verdicts=count_verdicts,
        count_arms=count_arms, describe_shortfall=describe_shortfall,
    )  # fmt: skip
    write_page(target, text)
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
            counts = [min(count, asked) for count, asked in known]
            parts.append(f"{number_range(counts)} of {whose} {max(asked for _, asked in known):,} {key}")
    return ", ".join(parts)


def number_range(counts: Collection[int]) -> str:
    """Such as "100", or "100 to 102"."""
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


def render_arms(arms: list[ReadArm], folder: Path, study: ReadStudy | None, running: bool = False) -> str:
    """The page of a study, or of a single run, as text; links are as seen from a folder."""
    curves = [(arm, arm.curve) for arm in arms if arm.curve]
    measured = [arm for arm, _ in curves]
    baseline = None if len(arms) < 2 else arms[0] if study else arms[1]  # of a study the first, of a run the other
    order = arms if study else arms[::-1]  # the baseline is grey
    looks = {arm.label: arm_look(order.index(arm), len(arms)) for arm in arms}
    figures: Figures = {}
    problems: list[str] = []
    if curves:
        figures["curves"] = draw(learning_chart(curves, looks, "success", ("mean", "iqm", "seeds")))
    shares = [key for key in BEHAVIOUR if any(key in arm.behaviour for arm in measured)]
    for key in shares:
        given = [(arm, arm.behaviour[key]) for arm in measured if key in arm.behaviour]
        figures[f"curves-{key}"] = draw(learning_chart(given, looks, "share of steps"))
    trained = draw_trained(measured, looks, figures)
    heat: list[Row] = []
    detections: list[Row] = []
    for place, arm in enumerate(arms):
        try:  # a damaged file must not prevent the numbers from being shown
            heat += show_heat_maps(arm, place, figures)
            if arm.kind == "detection" and arm.summary:
                part = show_detection(study.name if study else "", arm, place, figures)
                detections.append(part | {"href": link(arm.folder / "report.html", folder)})
        except ValueError as error:
            problems.append(str(error))
    scenes: dict[str, Packed] = {}
    for arm in arms if study else arms[:1]:
        try:
            if arm.kind == "training" and (path := arm.folder / SCENE_FILE).is_file():
                scenes[arm.label] = read_scene(path)
        except ValueError as error:
            problems.append(str(error))
    joined = join_scenes(scenes, MOST_EPISODES) if study else list(scenes.values())
    films = [part for arm in arms for part in film_parts(arm, folder)]
    if scenes:
        films = [part for part in films if part["name"] != "strip.png"]
    thinned = [len(curve.episodes) for _, curve in curves if len(curve.episodes) > MOST_POINTS]
    ends = rows.shared_range(arms)
    common = common_changes(arms)
    return render_page(
        "study.html.j2", {"figures": figures}, study=study, arms=arms, measured=measured, ends=ends,
        rows=[rows.arm_row(arm, baseline, ends) | {"look": looks[arm.label]} for arm in measured],
        last={arm.label: f"{100 * curve.success[:, -1].mean():.0f}" for arm, curve in curves},
        areas={arm.label: rows.areas(curve, ends) for arm, curve in curves},
        reached={arm.label: episodes_to_reach(curve.episodes, curve.success, 0.6) for arm, curve in curves},
        runs=[run_row(arm, folder, common) for arm in arms], levels=rows.LEVELS, compared=rows.COMPARED, enough=ENOUGH,
        small=SMALL if study and study.size == "small" else "",
        counts=count_verdicts(study) if study else {}, shorter=describe_shortfall(study) if study else "",
        arm_counts=count_arms(arms), rule_of=rule_of, looks=looks, common=common, detections=detections,
        player=embed_scenes([*joined, *(part["scene"] for part in detections if part["scene"])]),
        players=[player_part(scene) for scene in joined], films=films, heat=heat, problems=problems, shares=shares,
        trained=trained, phases=[found for arm in measured if (found := rows.phase_row(arm))], most=MOST_POINTS,
        thinned=number_range(thinned) if thinned else "",
        refresh=REFRESH if running else 0, baseline=baseline,
        differing=differing_settings(arms) if len(arms) > 1 and not (study and study.name) else [],
    )  # fmt: skip


def draw_trained(arms: list[ReadArm], looks: dict[str, Row], figures: Figures) -> dict[str, str]:
    """Draw losses and scores between evaluations; returns the titles of the charts by name."""
    shown = {}
    for name, (title, unit) in TRAINED.items():
        given = {
            arm.label: (arm.curve.episodes, arm.trained[name]) for arm in arms if arm.curve and name in arm.trained
        }
        if given:
            figures[f"trained-{name}"] = draw(trained_chart(given, looks, unit))
            shown[name] = title
    return shown


def show_heat_maps(arm: ReadArm, place: int, figures: Figures) -> list[Row]:
    """CAI, and the exact label if it is there, over the steps of an episode and over training; empty if there is none.

    Files of earlier versions do not contain the seed and the numbers of episodes.
    """
    episodes, maps = read_heat_map(arm.folder)
    if not maps:
        return []
    names = [f"heat-{place}-{number}" for number in range(len(maps))]
    for plot, (name, (values, unit)) in zip(names, maps.items(), strict=True):
        figures[plot] = draw(heat_chart(episodes, values, name, unit))
    path = arm.folder / "heatmap.npz"
    held = read_arrays(path)
    with expected_form(path):
        seeds = [held["seed"]] if "seed" in held else arm.seeds
        seed = f"seed {int(seeds[0])}, the run’s first" if seeds else "the run’s first seed"
        groups = [number_range(held[key]) if key in held else "" for key in ("counts", "labelled")]
    return [{"title": arm.label, "names": names, "seed": seed, "groups": groups}]


def common_changes(arms: list[ReadArm]) -> list[str]:
    """The settings that all training runs change from the defaults."""
    found = [changes(str(arm.config["label"])) for arm in arms if arm.config and arm.kind == "training"]
    return [change for change in found[0] if all(change in other for other in found[1:])] if len(found) > 1 else []


def run_row(arm: ReadArm, folder: Path, common: list[str]) -> Row:
    """How an arm was run: its own settings, hardware, time, seeds and commit."""
    cores = arm.versions.get("cores")
    machine = [*rows.noted(arm, "device"), *([f"{cores} cores"] if cores else [])]
    return {
        "arm": arm,
        "changes": [change for change in changes(str(arm.config.get("label", ""))) if change not in common],
        "seeds": len(arm.seeds) or (arm.config.get("config") or {}).get("seeds", "–"),
        "time": rows.duration(rows.seconds_of(arm)),
        "hardware": ", ".join(machine) or "–",
        "commit": ", ".join(rows.noted(arm, "commit")) or "–",
        "href": link(arm.folder / "report.html", folder),
    }


def link(path: Path, folder: Path) -> str | None:
    """The address of a file as seen from a page in a folder; None if it does not exist."""
    return quote(Path(os.path.relpath(path, folder)).as_posix()) if path.is_file() else None


def film_parts(arm: ReadArm, folder: Path) -> list[Row]:
    """Films of a run folder: small ones as data addresses, others as links."""
    parts: list[Row] = []
    for name, (kind, media, mark, place) in FILMS.items():
        path = arm.folder / name
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            parts.append({"label": arm.label, "kind": "link", "href": link(path, folder), "name": name})
        elif path.is_file() and (content := path.read_bytes())[place : place + len(mark)] == mark:
            data = data_address(media, content)
            parts.append({"label": arm.label, "kind": kind, "data": data, "name": name})
    return parts


# Detection runs of a study


def shown_by(study: str) -> Shown:
    """What a study shows of its detection runs; its small size shows the same."""
    return SHOWN.get(study.removesuffix("-small"), Shown())


def study_tables(study: str, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of a run's summary that a study shows: all labels on its set of states."""
    return [one for one in list_tables(summary) if one["set"] == shown_by(study).states]


def show_detection(study: str, arm: ReadArm, place: int, figures: Figures) -> Row:
    """What the page of a study shows of the arm at a place; `lacking` lists what its folder does not contain."""
    shown = shown_by(study)
    with expected_form(arm.folder / "summary.json"):
        entries = study_tables(study, arm.summary)
    lacking = [] if entries else [f"This run did not evaluate states of the {shown.states} set."]
    without_scores = {"others": [entry | {"set": "test"} for entry in entries]}
    part: Row = {
        "label": arm.label, "summary": arm.summary, "prefix": f"{place}-", "lacking": lacking, "entries": entries,
        "tables": detection.read_others(arm.folder, without_scores, {}), "scene": None, "drawn": [],
        "studies": dict.fromkeys(("helps", "noise", "actions")),
    }  # fmt: skip
    for wanted, add in ((shown.curves, add_curves), (shown.studies, add_studies), (shown.episodes, add_episodes)):
        try:
            if wanted:
                add(arm.folder, part, shown, figures)
        except (OSError, ValueError) as error:  # a damaged file must not prevent the rest from being shown
            lacking.append(str(error))
    return part


def add_curves(folder: Path, part: Row, shown: Shown, figures: Figures) -> None:
    """ROC and precision-recall curves of each table: charts if the scores are there, else figures drawn before."""
    arrays = read_optional(folder / "scores.npz") or {}
    tables = detection.read_others(folder, {"others": part["entries"]}, arrays)
    draw_curves(tables, figures, part["prefix"])
    for table, entry in zip(tables, part["entries"], strict=True):
        if not table["plots"]:
            end = "" if "env" in entry else f"-{table['name']}"  # the figures of the main table have no suffix
            table["drawn"] = drawn_before(folder, f"roc{end}.png") + drawn_before(folder, f"precision-recall{end}.png")
    part["tables"] = tables
    if not all(table["plots"] or table["drawn"] for table in tables):
        part["lacking"].append(
            f"No ROC and precision-recall curves: the folder contains neither the scores of the states "
            f"({detection.scores_file(shown.states)}) nor figures of them ({DRAW})."
        )


def add_studies(folder: Path, part: Row, shown: Shown, figures: Figures) -> None:
    """The parts of studies.json that a study shows, with the charts of the run's own page."""
    drawn: Figures = {}
    view = show_studies(folder, drawn) or {}
    part["studies"] |= {name: view.get(name) for name in shown.studies}
    absent = [name for name in shown.studies if not view.get(name)]
    part["lacking"] += [f"This run did not study {name} (butfor detect --studies {name})." for name in absent]
    figures |= {part["prefix"] + name: chart for name, chart in drawn.items() if name.split("-")[0] in shown.studies}


def add_episodes(folder: Path, part: Row, shown: Shown, figures: Figures) -> None:
    """Episodes in the player if the run has its scene, else figures drawn before."""
    if (folder / SCENE_FILE).is_file():
        part["scene"] = read_scene(folder / SCENE_FILE)
        part["player"] = player_part(part["scene"])
        return
    part["drawn"] = drawn_before(folder, "timeline-*.png")
    if not part["drawn"]:
        part["lacking"].append(
            f"No episodes: the folder contains neither the scene of the player ({SCENE_FILE}), which "
            f"`butfor report RUN --player` writes, nor figures of episodes ({DRAW})."
        )


def drawn_before(folder: Path, pattern: str) -> list[Row]:
    """Figures for papers in a run folder, as data addresses."""
    paths = sorted((folder / "figures").glob(pattern))
    with expected_form(folder / "figures"):
        return [{"name": path.stem, "data": data_address(*detection.image(path.parent, path.name))} for path in paths]
