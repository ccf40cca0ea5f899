"""Pages of studies and of single training runs: curves, numbers, verdicts, and what is missing; no torch."""

import html
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import plotly.graph_objects as go

from butfor.analysis.arms import (
    BEHAVIOUR,
    HEAT_AGAIN,
    SMALL,
    ReadArm,
    ReadStudy,
    changes,
    count_words,
    read_heat_map,
    read_run_folder,
    read_study,
    study_names,
)
from butfor.analysis.claims import ENOUGH, Curve
from butfor.analysis.detection_runs import expected_form, read
from butfor.analysis.rows import (
    COMPARED,
    LEVELS,
    areas,
    arm_row,
    duration,
    noted,
    seconds_of,
    shared_range,
    shown_curves,
)
from butfor.analysis.statistics import episodes_to_reach, export_rliable
from butfor.reporting.charts import DARK, LOOKS, ORANGE, OTHER_STYLE, Row, band, plain, style
from butfor.reporting.page import data_address, render_page, write_page
from butfor.reporting.study_detection import detection_part

MOST_BYTES = 3 * 2**20  # bytes: a larger film is linked, not embedded
PNG = b"\x89PNG\r\n\x1a\n"
FRAMES = 12
GROUPS = ("counts", "labelled")  # how many episodes the groups of a heat map have, and how many of them a label
FILMS = {"watch.gif": ("image/gif", b"GIF8", 0), "watch.mp4": ("video/mp4", b"ftyp", 4)}  # name -> type, mark and where
FINDINGS = ("reproduced", "partly", "not reproduced", "undecided")
ARM_STYLES = (OTHER_STYLE, *LOOKS[:4], (ORANGE, "solid", "star"))  # colour, dash and symbol
DASHES = ("solid", "dash", "dashdot", "dot", "longdash")


def write_study_report(root: Path, name: str) -> Path:
    """Write ROOT/reports/NAME.html, the page of a study with what has been run of it, and return its path."""
    root = Path(root)
    target = root / "reports" / f"{name}.html"
    study = read_study(root, name)
    return write_page(target, render(study.arms, target.parent, study))


def write_rliable(root: Path, name: str) -> Path | None:
    """Write ROOT/reports/NAME-rliable.npz: success of each arm at the evaluations that all have; None where none."""
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


def write_training_report(run: Path, out: Path | None = None) -> Path:
    """Write `out` (default: run/report.html) of a single training run and return its path."""
    arm, target = read_run_folder(Path(run)), Path(out or Path(run) / "report.html")
    return write_page(target, render([arm], target.parent, None))


def write_study_index(root: Path) -> Path:
    """Write ROOT/reports/index.html, which lists all studies with their verdicts, and return its path.

    A study that cannot be read is named there, and once all is written in an error.
    """
    target, entries, problems = Path(root) / "reports" / "index.html", list[Row](), list[str]()
    for name in study_names(Path(root)):
        try:
            study = read_study(Path(root), name)
        except ValueError as error:
            problems.append(str(error))
            continue
        linked = f"{quote(name)}.html" if (target.parent / f"{name}.html").is_file() else None
        entries.append(
            {"study": study, "href": linked, "counts": verdict_counts(study), "arms": arm_counts(study.arms)}
            | {"shorter": shorter_words(study)}
        )
    page: dict[str, Any] = {"dark": DARK, "figures": {}}
    write_page(target, render_page("study_index.html.j2", page, entries=entries, problems=problems))
    if problems:
        raise ValueError(f"{' '.join(problems)} The other studies are in {target}.")
    return target


def verdict_counts(study: ReadStudy) -> dict[str, int]:
    """How many claims have which verdict, best first."""
    found = Counter[str](verdict.verdict for _, verdict, _ in study.verdicts)
    return {finding: found[finding] for finding in FINDINGS if found[finding]}


def arm_counts(arms: list[ReadArm]) -> str:
    """How many arms are finished, in words: "3 of 5 arms finished, 1 unfinished, 1 not run"."""
    states = Counter("unfinished" if arm.state == "begun" else arm.state for arm in arms)
    parts = [f"{states['finished']} of {count_words(len(arms), 'arm')} finished"]
    return ", ".join(parts + [f"{states[key]} {key}" for key in ("unfinished", "not run", "broken") if states[key]])


def shorter_words(study: ReadStudy) -> str:
    """Where runs have fewer seeds, or played fewer episodes, than their size asks: "3,000 of the paper's 20,000"."""
    parts, whose = list[str](), "the paper's" if study.size == "paper" else f"the {study.size} size's"
    begun = [arm for arm in study.arms if arm.config]
    seeds = [(arm.config["config"].get("seeds"), arm.asked[0]) for arm in begun]
    episodes = [(arm.summary.get("played"), arm.asked[1]) for arm in begun]
    for key, pairs in (("seeds", seeds), ("episodes", episodes)):
        had = [(count, asked) for count, asked in pairs if isinstance(count, int) and asked]
        if any(count < asked for count, asked in had):
            fewest, most = min(had)[0], max(min(count, asked) for count, asked in had)
            parts.append(f"{span(fewest, most)} of {whose} {max(asked for _, asked in had):,} {key}")
    return ", ".join(parts)


def render(arms: list[ReadArm], target: Path, study: ReadStudy | None) -> str:
    """The page as text: of a study, or of its only arm."""
    measured = [arm for arm in arms if arm.curve]
    places = {arm.label: place for place, arm in enumerate(arms)}
    looks = {label: arm_look(place, len(arms)) for label, place in places.items()}
    figures, heat, problems = dict[str, Any](), list[Row](), list[str]()
    if measured:
        given = [(arm, arm.curve) for arm in measured if arm.curve]
        figures["curves"] = curves_figure(given, looks, places, "success", ("mean", "iqm", "seeds"))
    shares = [key for key in BEHAVIOUR if any(key in arm.behaviour for arm in measured)]
    for key in shares:
        given = [(arm, arm.behaviour[key]) for arm in measured if key in arm.behaviour]
        figures[f"curves-{key}"] = curves_figure(given, looks, places, "share of steps", ("mean",))
    for arm in arms:
        try:
            found = {f"heat-{places[arm.label]}-{n}": figure for n, figure in enumerate(heat_maps(arm))}
            heat += [{"title": arm.label, "names": list(found), **heat_words(arm)}] if found else []
        except ValueError as error:  # a picture beside the numbers must not keep them from being shown
            problems.append(str(error))
            continue
        figures |= found
    detections = list[Row]()
    for arm in [arm for arm in arms if arm.kind == "detection" and arm.summary]:
        try:
            part, found = detection_part(study.name if study else "", arm, places[arm.label])
        except ValueError as error:
            problems.append(str(error))
            continue
        detections.append(part | {"href": link(arm.folder / "report.html", target)})
        figures |= found
    baseline, ends = arms[0] if len(arms) > 1 else None, shared_range(arms)
    rows = [arm_row(arm, baseline, ends) | {"look": looks[arm.label]} for arm in measured]
    return render_page(
        "study.html.j2",
        {"dark": DARK, "figures": figures},
        study=study,
        arms=arms,
        measured=measured,
        baseline=baseline,
        rows=rows,
        every=[row for arm in measured for row in seed_rows(arm, ends)],
        ends=ends,
        levels=LEVELS,
        compared=COMPARED,
        small=SMALL if study and study.size == "small" else "",
        enough=ENOUGH,
        counts=verdict_counts(study) if study else {},
        arm_counts=arm_counts(arms),
        shorter=shorter_words(study) if study else "",
        looks=looks,
        places=places,
        common=common_changes(arms),
        runs=[run_row(arm, target, arms) for arm in arms],
        detections=detections,
        films=[part for arm in arms for part in film_parts(arm, target)],
        heat=heat,
        problems=problems,
        shares=shares,
        duration=duration,
    )


def arm_look(place: int, count: int) -> Row:
    """Colour, dash and symbol of an arm: the first of several is grey, later ones repeat colours with other dashes."""
    order = ARM_STYLES if count > 1 else ARM_STYLES[1:]
    colour, dash, symbol = order[place % len(order)]
    dash = DASHES[(DASHES.index(dash) + place // len(order)) % len(DASHES)]
    return {"colour": colour, "dash": dash, "symbol": symbol, "binary": False}


def curves_figure(
    given: list[tuple[ReadArm, Curve]], looks: dict[str, Row], places: dict[str, int], title: str, kinds: Sequence[str]
) -> Any:
    """Curves over episodes; `meta` says which of the reader's choices a trace belongs to: mean, iqm or seeds."""
    figure, tops = go.Figure(), [0.0]
    hover = "<b>%{fullData.name}</b><br>%{x:,} episodes<br>%{y:.2f}"
    interval = " [%{customdata[0]:.2f}, %{customdata[1]:.2f}]<extra></extra>"
    for arm, curve in given:
        shown, x, drawn = shown_curves(curve), curve.episodes.tolist(), looks[arm.label]
        common = {"name": html.escape(arm.label), "legendgroup": f"arm-{places[arm.label]}"}
        line = {"color": drawn["colour"], "dash": drawn["dash"], "width": 2.5}
        for kind in [kind for kind in kinds if kind != "seeds"]:
            chosen = common | {"meta": kind, "visible": kind == "mean"}
            edges = np.stack([shown[f"{kind}_low"], shown[f"{kind}_high"]])  # [2, E]
            tops.append(float(edges[1].max()))
            if len(curve.success) > 1:
                figure.add_scatter(**band(drawn["colour"], x, edges), **chosen)
            marker = {"symbol": [drawn["symbol"]] * len(x), "size": [6] * len(x)}
            if arm.state != "finished":  # a cross where it was cut off
                marker = {"symbol": [*marker["symbol"][:-1], "x"], "size": [*marker["size"][:-1], 11]}
            figure.add_scatter(
                x=x, y=plain(shown[kind]), mode="lines+markers", line=line, marker=marker, customdata=plain(edges.T),
                hovertemplate=hover + interval, **chosen,
            )  # fmt: skip
        for seed, values in zip(arm.seeds, curve.success, strict=True) if "seeds" in kinds else ():
            figure.add_scatter(
                x=x, y=plain(values), mode="lines", line=line | {"width": 1.2}, meta="seeds", visible=False,
                hovertemplate=f"{hover}, seed {seed}<extra></extra>", **common,
            )  # fmt: skip
            tops.append(float(values.max()))
    top, end = max(tops), max(int(curve.episodes[-1]) for _, curve in given)
    figure.update_yaxes(range=[-0.02, 1.03] if top > 0.5 else [-0.02 * top, 1.08 * top or 1.0])
    return style(figure.update_xaxes(range=[0, 1.02 * end], tickformat=","), "episodes of each seed", title)


def heat_maps(arm: ReadArm) -> list[Any]:
    """The influence score, and the exact label if it is there, over the steps of an episode as training goes on."""
    figures = []
    x, drawn = read_heat_map(arm.folder)
    for values, unit in drawn.values():
        figure = go.Figure()
        title = {"text": unit, "side": "top", "font": {"size": 13}}
        figure.add_heatmap(
            x=plain(x),
            y=list(range(len(values))),
            z=plain(values),
            colorscale="Cividis",
            colorbar={"thickness": 12, "outlinewidth": 0, "ypad": 0, "title": title},
            hovertemplate=f"%{{x:,}} episodes, step %{{y}}<br>%{{z:.3g}} {unit}<extra></extra>",
        )
        figure.update_xaxes(tickformat=",")
        figures.append(style(figure, "episodes", "step").update_layout(margin={"t": 30, "r": 4}))
    return figures


def heat_words(arm: ReadArm) -> Row:
    """Of which seed a heat map is, and of how many episodes; a file of an earlier butfor does not say all of it."""
    path = arm.folder / "heatmap.npz"
    held = read(path, HEAT_AGAIN)
    with expected_form(path, HEAT_AGAIN):
        seed = int(held["seed"]) if "seed" in held else arm.seeds[0] if arm.seeds else None
        groups = [span(*map(int, (held[key].min(), held[key].max()))) if key in held else "" for key in GROUPS]
    return {"seed": "the run’s first seed" if seed is None else f"seed {seed}, the run’s first", "groups": groups}


def span(low: int, high: int) -> str:
    """Such as "100", or "100 to 102"."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def seed_rows(arm: ReadArm, ends: tuple[int, int] | None) -> list[Row]:
    """The last success, the area and the episodes to 60 % of each seed."""
    assert arm.curve is not None
    area = areas(arm.curve, ends)
    reached = episodes_to_reach(arm.curve.episodes, arm.curve.success, 0.6)
    return [
        {"label": arm.label, "seed": seed, "end": f"{arm.curve.success[place, -1]:.2f}",
         "area": "–" if area is None else f"{area[place]:.2f}",
         "reach": f"{reached[place]:,.0f}" if np.isfinite(reached[place]) else "never"}
        for place, seed in enumerate(arm.seeds)
    ]  # fmt: skip


def common_changes(arms: list[ReadArm]) -> list[str]:
    """What all training runs that were begun change from the defaults."""
    found = [changes(str(arm.config["label"])) for arm in arms if arm.config and arm.kind == "training"]
    return [change for change in found[0] if all(change in other for other in found[1:])] if len(found) > 1 else []


def run_row(arm: ReadArm, target: Path, arms: list[ReadArm]) -> Row:
    """How an arm was run: settings of its own, hardware, time, seeds, commit."""
    common, versions = common_changes(arms), arm.versions
    own = [change for change in changes(str(arm.config.get("label", ""))) if change not in common]
    machine = [*noted(arm, "device"), f"{versions['cores']} cores" if versions.get("cores") else None]
    return {
        "label": arm.label,
        "kind": arm.kind,
        "state": arm.state,
        "words": arm.words,
        "changes": own,
        "seeds": len(arm.seeds) or (arm.config.get("config") or {}).get("seeds", "–"),
        "time": duration(seconds_of(arm)),
        "hardware": ", ".join(str(part) for part in machine if part) or "–",
        "commit": ", ".join(noted(arm, "commit")) or "–",
        "folder": arm.folder.name,
        "href": link(arm.folder / "report.html", target),
    }


def link(path: Path, folder: Path) -> str | None:
    """The address of a file as seen from a page in a folder; None where there is no such file."""
    return quote(Path(os.path.relpath(path, folder)).as_posix()) if path.is_file() else None


def film_parts(arm: ReadArm, target: Path) -> list[Row]:
    """Films and frames of a run folder: small ones as addresses that hold them, others as links."""
    parts: list[Row] = []
    strip = arm.folder / "strip.png"
    if strip.is_file() and strip.stat().st_size <= MOST_BYTES and (content := strip.read_bytes()).startswith(PNG):
        alt = described(content) or "Frames of an episode of the trained agent, with the numbers of their steps."
        parts.append({"label": arm.label, "kind": "strip", "data": data_address("image/png", content), "alt": alt})
    for name, (kind, mark, place) in FILMS.items():
        path = arm.folder / name
        if path.is_file() and path.stat().st_size <= MOST_BYTES:
            content = path.read_bytes()
            if content[place : place + len(mark)] == mark:
                parts.append({"label": arm.label, "kind": kind.partition("/")[0], "data": data_address(kind, content)})
        elif path.is_file():
            parts.append({"label": arm.label, "kind": "link", "href": link(path, target), "name": name})
    paths = sorted((arm.folder / "frames").glob("*.jpg"))
    chosen = [paths[at] for at in np.linspace(0, len(paths) - 1, min(FRAMES, len(paths))).astype(int)]
    frames = [path.read_bytes() for path in chosen if path.stat().st_size <= MOST_BYTES // FRAMES]
    frames = [content for content in frames if content.startswith(b"\xff\xd8\xff")]
    if frames:
        addresses = [data_address("image/jpeg", content) for content in frames]
        parts.append({"label": arm.label, "kind": "frames", "frames": addresses})
    return parts


def described(png: bytes) -> str:
    """The description that travels in a PNG file, in a chunk of text (tEXt) before its pixels; empty without one."""
    place = len(PNG)
    while place + 8 <= len(png) and png[place + 4 : place + 8] != b"IDAT":
        end = place + 8 + int.from_bytes(png[place : place + 4], "big")
        word, _, text = png[place + 8 : end].partition(b"\0")
        if png[place + 4 : place + 8] == b"tEXt" and word == b"Description":
            return text.decode("latin-1")
        place = end + 4  # a checksum
    return ""
