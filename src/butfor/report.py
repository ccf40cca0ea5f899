"""Run folders -> one self-contained HTML page; reads files only and never imports torch."""

import html
import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup
from numpy.typing import NDArray
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots
from sklearn.metrics import precision_recall_curve, roc_curve

Array = NDArray[Any]
Track = tuple[str, Array, str, str]  # name, values over the steps, colour, dash or symbol
PATHS = ("observation", "achieved_goal", "desired_goal")
METRICS = ("auc", "ap", "f1")
POINTS = 400  # of a curve: more cannot be seen and only makes the page heavy
# Okabe and Ito's palette, safe for colour-blind readers; DARK maps to the twin for a dark page.
INK, GREY, WHITE = "#222222", "#808080", "#FFFFFF"
BLUE, VERMILLION, GREEN, PURPLE, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
DARK = {INK: "#E8E8E8", WHITE: "#16191D", BLUE: "#56B4E9", "rgba(0,114,178,": "rgba(86,180,233,"}
STYLES = {  # detector: colour, dash of its line, symbol of its marker
    "cai": (BLUE, "solid", "circle"),
    "entropy": (VERMILLION, "dash", "square"),
    "attention": (GREEN, "dashdot", "triangle-up"),
    "contact": (PURPLE, "dot", "diamond"),
    "moved": (ORANGE, "dot", "star"),
}
OTHER_STYLE = (GREY, "longdash", "cross")  # of a detector this file does not know
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
SLIDE: dict[str, Any] = {"kind": "slide", "walls": [-5.0, 5.0], "limit": -0.5, "width": 0.2, "goal_radius": 0.5}
AGAIN = "Run `butfor detect` again."


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
    scores: dict[str, Array]  # detector -> [S, N]
    label: Array  # [N]
    data: dict[str, Array]
    valid: Array  # [E, T], true where a step was made: array[valid] has the order of label


def write_report(run: Path) -> Path:
    """Write run/report.html for a folder of kind "detection" and return its path."""
    target = Path(run) / "report.html"
    temporary = target.with_name(f".report.{os.getpid()}.html")
    page = render(read_run(Path(run)))
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def read_run(run: Path) -> Run:
    """Read a detection folder; refuse with a sentence what is missing, broken or inconsistent."""
    config = read(run / "config.json")
    if config.get("kind") != "detection":
        raise ValueError(f"{run} is a run of kind {config.get('kind')!r}, but only 'detection' has a report.")
    versions, summary, metrics = (read(run / name) for name in ("versions.json", "summary.json", "metrics.jsonl"))
    arrays, data = read(run / "scores.npz"), read(run / "data" / "test.npz")
    for name, schema in (("config.json", config.get("schema")), ("summary.json", summary.get("schema"))):
        if schema != 1:
            raise ValueError(f"{run / name} has schema {schema!r}, but this butfor reads schema 1. {AGAIN}")
    try:
        scores = {row["name"]: arrays[row["name"]] for row in summary["detectors"]}
        rows = detector_rows(summary, scores)
        main = next((row for row in rows if row["name"] == "cai"), rows[0])
        thresholds = [float(row["threshold"]) for row in metrics if row["detector"] == main["name"]]
        label, length, steps = arrays["label"].astype(bool), data["length"], data["action"].shape[1]
        valid = np.arange(steps) < length[:, None]  # [E, T]
        episode, time = valid.nonzero()  # [N], [N]
        paths = [data[key] for key in PATHS]
        # Used to see that they can be: what fails here is of an unexpected form.
        _ = [float(row[key]) for row in metrics for key in ("seed", *METRICS)], label & True, config["config"].items()
        _ = summary["world"] + summary["label"] + config["label"], json.loads(str(data.get("metadata", "{}"))).items()
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
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{run} holds a file of an unexpected form ({what}). {AGAIN}") from error
    for problem, right in checks.items():
        if not right:
            raise ValueError(f"{run} is inconsistent: {problem}. {AGAIN}")
    return Run(run, config, versions, metrics, summary, rows, main, thresholds, scores, label, data, valid)


def read(path: Path) -> Any:
    """Read a JSON object, one JSON object a line, or the arrays of an .npz; every failure becomes a sentence."""
    try:
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        text = path.read_text(encoding="utf-8")
        values = [json.loads(part) for part in (text.splitlines() if path.suffix == ".jsonl" else [text])]
        if not all(isinstance(value, dict) for value in values):
            raise ValueError("a JSON object was expected")
        return values if path.suffix == ".jsonl" else values[0]
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; a report needs the whole run folder. {AGAIN}") from None
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({error}). {AGAIN}") from error


def detector_rows(summary: dict[str, Any], scores: dict[str, Array]) -> list[dict[str, Any]]:
    """Rows of the table of detectors, the best of each column marked; a tie in the digits shown is a tie."""
    rows: list[dict[str, Any]] = []
    for detector in summary["detectors"]:
        name, paper = str(detector["name"]), detector.get("paper") or {}
        row: dict[str, Any] = {"name": name, "title": str(detector["title"]), "seeds": int(detector["seeds"])}
        row |= dict(zip(("colour", "dash", "symbol"), STYLES.get(name, OTHER_STYLE), strict=True))
        for metric in METRICS:
            row[metric] = {key: float(detector[metric][key]) for key in ("mean", "std")}
            row[metric]["paper"] = [float(number) for number in paper.get(metric) or []]
        rows.append(row | {"binary": bool(np.isin(scores[name], (0, 1)).all())})
    if not rows:
        raise ValueError("summary.json names no detector")
    for metric in METRICS:
        best = max(round(row[metric]["mean"], 3) for row in rows)
        for row in rows:
            row[metric]["best"] = round(row[metric]["mean"], 3) == best
    return rows


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Rows of a readable table: nested keys joined with dots, long values cut."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return [row for key in value for row in flatten(value[key], f"{prefix}.{key}" if prefix else str(key))]
    text = value if isinstance(value, str) else "–" if value is None else json.dumps(value, ensure_ascii=False)
    return [(prefix, text if len(text) <= 300 else text[:300] + " …")]


def plain(values: Any) -> Any:
    """A list of rounded numbers: their text is much of the page."""
    return np.round(np.asarray(values, float), 5).tolist()


def translucent(colour: str, alpha: float) -> str:
    """#RRGGBB with an alpha channel."""
    return f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:], 16)},{alpha})"


def band(colour: str, x: Any, curves: Array) -> dict[str, Any]:
    """The range of curves [S, P] over x [P] as a filled shape."""
    edge, fill = np.concatenate([curves.max(0), curves.min(0)[::-1]]), {"fill": "toself", "mode": "lines"}
    return fill | {"x": plain([*x, *x[::-1]]), "y": plain(edge), "fillcolor": translucent(colour, 0.18),
                   "line": {"width": 0}, "hoverinfo": "skip"}  # fmt: skip


def style(figure: Any, x_title: str, y_title: str) -> Any:
    """Give a figure the look of the page; the colours of text and grid come from the page's style sheet."""
    figure.update_layout(
        template="none", autosize=True, showlegend=False, dragmode=False, hovermode="closest",
        font={"family": FONT, "size": 13}, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 54, "r": 12, "t": 12, "b": 46},
        hoverlabel={"bgcolor": INK, "bordercolor": INK, "font": {"color": WHITE, "family": FONT}},
    )  # fmt: skip
    for update, title in ((figure.update_xaxes, x_title), (figure.update_yaxes, y_title)):
        update(title={"text": title, "standoff": 8, "font": {"size": 13}}, zeroline=False, fixedrange=True)
    return figure


def seed_curves(label: Array, scores: Array, kind: str) -> tuple[Array, Array]:
    """ROC ("roc") or precision-recall ("pr") curve of every seed on one grid of at most POINTS: x [P], y [S, P]."""
    if kind == "roc":
        fine = np.geomspace(1e-4, 1.0, POINTS // 2 - 1)  # influence is rare: what matters happens at the left end
        x = np.concatenate([[0.0], np.union1d(np.linspace(0.0, 1.0, POINTS // 2), fine)])
        y = np.stack([np.interp(x, *roc_curve(label, score)[:2]) for score in scores])
        y[:, 0] = 0.0  # the curve starts in the corner
        return x, y
    x = np.linspace(1.0 / POINTS, 1.0, POINTS)
    curves = [precision_recall_curve(label, score)[:2] for score in scores]
    # Precision where a recall is first reached, as in average precision: straight lines in between would flatter.
    return x, np.stack([p[::-1][np.searchsorted(r[::-1], x - 1e-9)] for p, r in curves])


def curve_figure(run: Run, kind: str) -> Any:
    """ROC or precision-recall: mean over seeds with their range as a band, yes-or-no detectors as markers."""
    figure, label, share = go.Figure(), run.label, float(run.label.mean())
    axes = ("false positive rate", "true positive rate") if kind == "roc" else ("recall", "precision")
    hover = f"<b>%{{fullData.name}}</b><br>{axes[0]} %{{x:.3f}}<br>{axes[1]} %{{y:.3f}}<extra></extra>"
    for row in run.rows:
        scores, colour = run.scores[row["name"]], row["colour"]
        common = {"name": html.escape(row["title"]), "legendgroup": row["name"]}
        if row["binary"]:
            hits, alarms = scores[:, label].sum(1), scores[:, ~label].sum(1)  # [S, N] -> [S]
            recall, precision = hits / label.sum(), hits / np.maximum(hits + alarms, 1)
            x, y = (alarms / (~label).sum(), recall) if kind == "roc" else (recall, precision)
            marker = {"color": colour, "symbol": row["symbol"], "size": 13, "line": {"color": INK, "width": 1}}
            figure.add_scatter(x=plain(x), y=plain(y), mode="markers", marker=marker, cliponaxis=False,
                               hovertemplate=hover, **common)  # fmt: skip
            continue
        x, curves = seed_curves(label, scores, kind)
        if len(scores) > 1:
            figure.add_scatter(**band(colour, x, curves), **common)
        line = {"color": colour, "dash": row["dash"], "width": 2.5}
        figure.add_scatter(x=plain(x), y=plain(curves.mean(0)), mode="lines", line=line, hovertemplate=hover, **common)
    chance, line = ([0.0, 1.0] if kind == "roc" else [share, share]), {"color": INK, "width": 1.5, "dash": "dot"}
    figure.add_scatter(x=[0.0, 1.0], y=plain(chance), mode="lines", line=line, hoverinfo="skip", name="chance")
    figure.update_xaxes(range=[-0.02, 1.02]).update_yaxes(range=[-0.02, 1.03])
    return style(figure, *axes)


def score_figure(run: Run) -> Any:
    """Histograms of the first seed's scores of influenced and of free states, each as a share of its own class."""
    figure, scores, threshold = go.Figure(), run.scores[run.main["name"]][0].astype(float), run.thresholds[0]
    low, high = float(scores.min()), float(scores.max())
    edges = np.linspace(low, high if high > low else low + 1.0, 61)
    for name, chosen, colour in (("influenced", run.label, ORANGE), ("free", ~run.label, GREY)):
        counts = np.histogram(scores[chosen], edges)[0]
        figure.add_bar(
            x=plain((edges[1:] + edges[:-1]) / 2), y=plain(100 * counts / chosen.sum()), width=edges[1] - edges[0],
            customdata=counts.tolist(), marker={"color": colour, "line": {"color": colour, "width": 1}}, opacity=0.65,
            hovertemplate=f"about %{{x:.2f}}<br>%{{y:.3g}} % of {name} states: %{{customdata}}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0).update_yaxes(type="log", dtick=1)
    figure.add_vline(x=threshold, line={"color": INK, "width": 1.5, "dash": "dash"})
    figure.add_annotation(x=threshold, y=1, yref="paper", text=f" best F1 at {threshold:.2f} ", showarrow=False,
                          xanchor="right" if threshold > (low + high) / 2 else "left", yanchor="top")  # fmt: skip
    return style(figure, f"{html.escape(run.main['title'])} (first seed)", "% of the states of a class")


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
    known = run.summary["world"] == "slide" and data["observation"].shape[2] == 4
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


def episode_figure(tracks: list[Track], scores: Array, events: list[Track], threshold: float, top: float) -> Any:
    """Tracks, score [S, T] and events of one episode over its steps; shape 0 is the cursor."""
    figure = make_subplots(rows=3, shared_xaxes=True, vertical_spacing=0.045, row_heights=[0.48, 0.36, 0.16])
    whole = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    figure.add_shape(whole | {"type": "line", "x0": 0, "x1": 0, "line": {"color": INK, "width": 1.5}})
    shade = {"type": "rect", "fillcolor": translucent(ORANGE, 0.18), "line": {"width": 0}, "layer": "below"}
    for step in np.flatnonzero(events[-1][1]).tolist():  # where there is influence
        figure.add_shape(whole | shade | {"x0": step - 0.5, "x1": step + 0.5})
    for name, values, colour, dash in tracks:
        line = {"color": colour, "dash": dash, "width": 2.5}
        figure.add_scatter(y=plain(values), name=name, mode="lines", line=line, hovertemplate="%{y:.2f}", row=1, col=1)
    figure.add_scatter(**band(BLUE, range(scores.shape[1]), scores), row=2, col=1)
    figure.add_scatter(y=plain(scores.mean(0)), name="score", mode="lines+markers", line={"color": BLUE, "width": 2},
                       marker={"size": 5}, hovertemplate="%{y:.3f}", row=2, col=1)  # fmt: skip
    figure.add_hline(threshold, row=2, col=1, line={"color": GREY, "width": 1, "dash": "dash"})
    for height, (name, happened, colour, symbol) in enumerate(events):
        at = np.flatnonzero(happened).tolist()
        marker = {"color": colour, "symbol": symbol, "size": 9, "line": {"color": INK, "width": 0.5}}
        figure.add_scatter(x=at, y=[height] * len(at), name=name, mode="markers", marker=marker, hovertemplate="yes",
                           row=3, col=1)  # fmt: skip
    style(figure, "", "").update_layout(hovermode="x", margin={"l": 78, "t": 6})
    figure.update_xaxes(range=[-0.7, scores.shape[1] + 0.7]).update_xaxes(title_text="step", row=3, col=1)
    figure.update_yaxes(range=[min(0.0, float(scores.min())) - 0.03 * top, top], row=2, col=1)
    names = {"tickvals": list(range(len(events))), "ticktext": [name for name, *_ in events], "showgrid": False}
    return figure.update_yaxes(**names, range=[-0.7, len(events) - 0.3], row=3, col=1)


def render(run: Run) -> str:
    """The page as text."""
    figures = {"roc": curve_figure(run, "roc"), "pr": curve_figure(run, "pr"), "scores": score_figure(run)}
    drawn = {name: json.loads(figure.to_json()) for name, figure in figures.items()}
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined,
                                     trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    return environment.get_template("detection.html.j2").render(
        run=run, share=float(run.label.mean()), metadata=json.loads(str(run.data.get("metadata", "{}"))),
        page={"dark": DARK, "figures": drawn, "timeline": timeline(run)}, plotly=Markup(get_plotlyjs()),
        flatten=flatten, notes=[str(note) for note in run.summary.get("notes") or []],
    )  # fmt: skip
