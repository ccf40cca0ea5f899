"""Run folders -> one self-contained HTML page; reads files only and never imports torch."""

import html
import json
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped, unused-ignore]
from markupsafe import Markup
from numpy.typing import NDArray
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped, unused-ignore]
from plotly.subplots import make_subplots  # type: ignore[import-untyped, unused-ignore]
from sklearn.metrics import precision_recall_curve, roc_curve  # type: ignore[import-untyped, unused-ignore]

Array = NDArray[Any]
Content = TypeVar("Content")
Track = tuple[str, Array, str, str]  # name, values over the steps, colour, dash or symbol

POINTS = 400  # of a curve: more cannot be seen and only makes the page heavy
METRICS = ("auc", "ap", "f1")
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
WALLS, LIMIT, WIDTH, GOAL_RADIUS = (-5.0, 5.0), -0.5, 0.2, 0.5  # of the slide world
FILES = (
    "config.json", "versions.json", "metrics.jsonl", "summary.json", "scores.npz", "data/test.npz",
    "model.safetensors", "model.json",
)  # fmt: skip
AGAIN = "run `butfor detect` again"


@dataclass(frozen=True)
class Run:
    """The content of a detection folder, once its files were found to agree with each other."""

    folder: Path
    config: dict[str, Any]
    versions: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    scores: dict[str, Array]  # detector -> [S, N]
    label: Array  # [N]
    data: dict[str, Array]
    metadata: dict[str, Any]
    valid: Array  # [E, T], true where a step was made: array[valid] has the order of label

    @property
    def main(self) -> str:
        """The detector that the page is about."""
        return "cai" if "cai" in self.scores else next(iter(self.scores))

    def binary(self, detector: str) -> bool:
        """Whether a detector only says yes or no."""
        return bool(np.isin(self.scores[detector], (0, 1)).all())

    def thresholds(self) -> dict[int, float]:
        """Threshold of the best F1 of the main detector by seed."""
        return {int(row["seed"]): float(row["threshold"]) for row in self.metrics if row["detector"] == self.main}

    def by_step(self, values: Array) -> Array:
        """Lay the values of all states out as [E, T], with not-a-number after the end of an episode."""
        full = np.full(self.valid.shape, np.nan)
        full[self.valid] = values  # [N] -> [E, T]
        return full


def write_report(run: Path) -> Path:
    """Write run/report.html for a folder of kind "detection" and return its path."""
    run = Path(run)
    page = render(read_run(run))
    target, temporary = run / "report.html", run / f".report.{os.getpid()}.html"
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def read_run(run: Path) -> Run:
    """Read a detection folder; refuse with a sentence what is missing, broken or inconsistent."""
    config = read_file(run / "config.json", read_object)
    if config.get("kind") != "detection":
        raise ValueError(f"{run} is a run of kind {config.get('kind')!r}, but only 'detection' has a report.")
    versions = read_file(run / "versions.json", read_object)
    summary = read_file(run / "summary.json", read_object)
    for name, schema in (("config.json", config.get("schema")), ("summary.json", summary.get("schema"))):
        if schema != 1:
            raise ValueError(f"{run / name} has schema {schema!r}, but this butfor reads schema 1: {AGAIN}.")
    metrics = read_file(run / "metrics.jsonl", read_rows)
    arrays = read_file(run / "scores.npz", read_arrays)
    data = read_file(run / "data" / "test.npz", read_arrays)
    try:
        scores = {row["name"]: arrays[row["name"]] for row in detector_table(summary)}
        label, length, steps = arrays["label"].astype(bool), data["length"], np.arange(data["action"].shape[1])
        valid = steps < length[:, None]  # [E, T]
        time = np.broadcast_to(steps, valid.shape)[valid]  # [N]
        episode = np.repeat(np.arange(len(length)), length)  # [N]
        shapes = [data[key].shape for key in ("achieved_goal", "desired_goal", "observation")]
        checks = {
            "no detector in summary.json": not scores,
            "summary.json and data/test.npz count different states": summary["states"] != len(time),
            "scores.npz and data/test.npz hold different states": not (
                np.array_equal(arrays["episode"], episode) and np.array_equal(arrays["time"], time)
            ),
            "the arrays of data/test.npz differ in shape": shapes[0] != shapes[1]
            or {shape[:2] for shape in shapes} != {(len(length), len(steps) + 1)}
            or data.get("contact", valid).shape != valid.shape,
            "scores.npz needs influenced and free states": len({*label.tolist()}) != 2 or label.shape != time.shape,
            "metrics.jsonl lacks a detector": not scores.keys() <= {row["detector"] for row in metrics},
            "names are not text": not isinstance(summary["world"] + summary["label"] + config["label"], str),
        }
        for name, value in scores.items():
            checks[f"scores of {name!r} must be finite and of shape [seeds, {len(time)}]"] = (
                value.ndim != 2 or value.shape[1:] != time.shape or not np.isfinite(value).all()
            )
        _ = [float(row[key]) for row in metrics for key in ("seed", "threshold", *METRICS)]
        metadata = dict(json.loads(str(data.get("metadata", "{}"))))
        flatten({**config["config"]})
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{run} holds a file of an unexpected form ({what}): {AGAIN}.") from error
    for problem, present in checks.items():
        if present:
            raise ValueError(f"{run} is inconsistent ({problem}): {AGAIN}.")
    return Run(run, config, versions, metrics, summary, scores, label, data, metadata, valid)


def read_file(path: Path, read: Callable[[Path], Content]) -> Content:
    """Read one file of a run folder, turning every failure into a sentence."""
    try:
        return read(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing, and a report needs the whole folder: {AGAIN}.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({error}): {AGAIN}.") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object was expected, not {type(value).__name__}")
    return value


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object a line."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("one JSON object a line was expected")
    return rows


def read_arrays(path: Path) -> dict[str, Array]:
    """Read every array of an .npz file, never unpickling."""
    with np.load(path, allow_pickle=False) as file:
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("an .npz file was expected")
        return {name: file[name] for name in file.files}


def detector_table(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table of detectors: numbers as text, the best of each column marked."""
    rows = []
    for detector in summary["detectors"]:
        colour, dash, symbol = STYLES.get(str(detector["name"]), OTHER_STYLE)
        row = {"name": str(detector["name"]), "title": str(detector["title"]), "seeds": int(detector["seeds"])}
        paper = detector.get("paper") or {}
        for metric in METRICS:
            mean, std = float(detector[metric]["mean"]), float(detector[metric]["std"])
            spread = f" ± {std:.3f}" if row["seeds"] > 1 else ""
            theirs = [float(number) for number in paper.get(metric) or []]
            row[metric] = {
                "mean": mean,
                "ours": f"{mean:.3f}",
                "spread": spread,
                "paper": " ± ".join(f"{number:.2f}" for number in theirs),
            }
        rows.append({**row, "colour": colour, "dash": dash, "symbol": symbol})
    for metric in METRICS:
        best = max((row[metric]["mean"] for row in rows), default=0.0)
        for row in rows:  # a tie in the digits shown is a tie
            row[metric]["best"] = row[metric]["ours"] == f"{best:.3f}"
    return rows


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Rows of a readable table: nested keys joined with dots, long values cut."""
    if isinstance(value, dict) and value:
        return [row for key in value for row in flatten(value[key], f"{prefix}.{key}" if prefix else str(key))]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [(prefix, text if len(text) <= 300 else text[:300] + " …")]


def style(figure: Any, x_title: str, y_title: str) -> Any:
    """Give a figure the look of the page; the colours of text and grid come from the page's style sheet."""
    family = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
    figure.update_layout(
        template="none", autosize=True, showlegend=False, dragmode=False, hovermode="closest",
        font={"family": family, "size": 13}, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 54, "r": 12, "t": 12, "b": 46},
        hoverlabel={"bgcolor": INK, "bordercolor": INK, "font": {"color": WHITE, "family": family}},
    )  # fmt: skip
    figure.update_xaxes(title_text=x_title, title_standoff=8, zeroline=False, fixedrange=True)
    figure.update_yaxes(title_text=y_title, title_standoff=8, zeroline=False, fixedrange=True)
    return figure


def translucent(colour: str, alpha: float) -> str:
    """#RRGGBB with an alpha channel."""
    return f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:], 16)},{alpha})"


def seed_curves(label: Array, scores: Array, kind: str) -> tuple[Array, Array]:
    """Curve of every seed on one grid of at most POINTS abscissas: x [P], y [S, P]."""
    if kind == "roc":
        fine = np.geomspace(1e-4, 1.0, POINTS // 2 - 1)  # influence is rare: the interesting end is the left one
        x = np.concatenate([[0.0], np.union1d(np.linspace(0.0, 1.0, POINTS // 2), fine)])
        y = np.stack([np.interp(x, *roc_curve(label, score)[:2]) for score in scores])
        y[:, 0] = 0.0  # the curve starts in the corner
        return x, y
    x = np.linspace(1.0 / POINTS, 1.0, POINTS)
    curves = [precision_recall_curve(label, score)[:2] for score in scores]
    # The precision where a recall is first reached, as average precision has it: lines in between would flatter.
    y = np.stack([p[::-1][np.searchsorted(r[::-1], x - 1e-9)] for p, r in curves])
    return x, y


def curve_figure(run: Run, kind: str) -> Any:
    """ROC or precision-recall curves: mean over seeds with the range as a band, yes/no detectors as markers."""
    figure, share = go.Figure(), float(run.label.mean())
    chance = [0.0, 1.0] if kind == "roc" else [share, share]
    line = {"color": GREY, "width": 1, "dash": "dot"}
    figure.add_scatter(x=[0.0, 1.0], y=chance, mode="lines", line=line, hoverinfo="skip")
    axes = ("false positive rate", "true positive rate") if kind == "roc" else ("recall", "precision")
    hover = f"<b>%{{fullData.name}}</b><br>{axes[0]} %{{x:.3f}}<br>{axes[1]} %{{y:.3f}}<extra></extra>"
    for row in detector_table(run.summary):
        scores, common = run.scores[row["name"]], {"name": html.escape(row["title"]), "legendgroup": row["name"]}
        if run.binary(row["name"]):
            hits, alarms = (scores[:, run.label] == 1).sum(1), (scores[:, ~run.label] == 1).sum(1)  # [S, N] -> [S]
            recall, precision = hits / run.label.sum(), hits / np.maximum(hits + alarms, 1)
            points = (alarms / (~run.label).sum(), recall) if kind == "roc" else (recall, precision)
            marker = {"color": row["colour"], "symbol": row["symbol"], "size": 13, "line": {"color": INK, "width": 1}}
            x, y = (np.round(values, 5).tolist() for values in points)
            figure.add_scatter(x=x, y=y, mode="markers", marker=marker, hovertemplate=hover, **common)
            continue
        abscissa, curves = seed_curves(run.label, scores, kind)
        x, mean, low, high = (
            np.round(v, 5).tolist() for v in (abscissa, curves.mean(0), curves.min(0), curves.max(0))
        )
        if len(scores) > 1:
            band = {"fill": "toself", "fillcolor": translucent(row["colour"], 0.15), "line": {"width": 0}}
            figure.add_scatter(x=x + x[::-1], y=high + low[::-1], hoverinfo="skip", mode="lines", **band, **common)
        line = {"color": row["colour"], "dash": row["dash"], "width": 2.5}
        figure.add_scatter(x=x, y=mean, mode="lines", line=line, hovertemplate=hover, **common)
    if kind == "pr":
        figure.add_annotation(x=0.0, y=share, text=f"chance {share:.1%}", showarrow=False, xanchor="left",
                              yanchor="bottom", font={"size": 12})  # fmt: skip
    figure.update_xaxes(range=[-0.02, 1.02]).update_yaxes(range=[-0.02, 1.03])
    return style(figure, *axes)


def score_figure(run: Run) -> Any:
    """Histograms of seed 0's scores of influenced and of free states, each as a share of its own class."""
    scores, threshold = run.scores[run.main][0].astype(float), run.thresholds().get(0, float("nan"))
    low, high = float(scores.min()), float(scores.max())
    edges = np.linspace(low, high if high > low else low + 1.0, 61)
    figure = go.Figure()
    for name, chosen, colour in (("free", ~run.label, GREY), ("influenced", run.label, ORANGE)):
        counts = np.histogram(scores[chosen], edges)[0]
        figure.add_bar(
            x=np.round((edges[1:] + edges[:-1]) / 2, 5).tolist(), y=np.round(100 * counts / chosen.sum(), 5).tolist(),
            width=float(edges[1] - edges[0]), name=name, customdata=counts.tolist(), opacity=0.65,
            marker={"color": colour, "line": {"color": colour, "width": 1}},
            hovertemplate=f"score %{{x:.2f}}<br>%{{y:.3g}} % of {name} states (%{{customdata}})<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0)
    figure.update_yaxes(type="log", dtick=1)
    style(figure, "score of the state (seed 0)", "% of the states of a class")
    if np.isfinite(threshold):
        figure.add_vline(x=threshold, line={"color": INK, "width": 1.5, "dash": "dash"})
        right = threshold > (low + high) / 2
        figure.add_annotation(x=threshold, y=1, yref="paper", text=f" best F1 at {threshold:.2f} ", showarrow=False,
                              xanchor="right" if right else "left", yanchor="top")  # fmt: skip
    return figure


def choose_episodes(label: Array, contact: Array, score: Array, threshold: float) -> dict[int, str]:
    """A handful of telling episodes from arrays [E, T] (score is not-a-number after the end): number -> title."""
    chosen: dict[int, str] = {}

    def take(candidates: Array, count: int, title: str) -> None:
        """Take up to count episodes, evenly spread over the candidates that are not taken yet."""
        left = [int(number) for number in candidates if int(number) not in chosen]
        for position in np.linspace(0, len(left) - 1, min(count, len(left))).round().astype(int):
            chosen[left[position]] = title

    influenced = label.any(1)  # [E, T] -> [E]
    missed = np.where(label & (score <= threshold), threshold - score, 0.0).max(1)
    alarm = np.where(~label & (score > threshold), score - threshold, 0.0).max(1)
    take(np.flatnonzero((label & contact).any(1)), 3, "influence and contact")
    take(np.flatnonzero(influenced & ~contact.any(1)), 1, "influence without contact")
    take(np.flatnonzero(~influenced & (alarm == 0)), 1, "no influence")
    for worst, title in ((missed, "largest miss of the score"), (alarm, "largest false alarm of the score")):
        if worst.max() > 0:
            take(np.array([worst.argmax()]), 1, title)
    return chosen


def timeline(run: Run) -> dict[str, Any]:
    """Episodes that a reader can scrub through, with the layout of the world where its drawing is known."""
    data, scores = run.data, np.stack([run.by_step(score) for score in run.scores[run.main]])  # [S, E, T]
    known = run.summary["world"] == "slide" and data["observation"].shape[2] == 4
    label = run.by_step(run.label) == 1
    contact = data["contact"].astype(bool) & run.valid if "contact" in data else np.zeros_like(label)
    threshold = float(np.mean(list(run.thresholds().values())))
    chosen = choose_episodes(label, contact, scores.mean(0), threshold)
    top = 1.08 * max(threshold, *(float(np.nanmax(scores[:, number])) for number in chosen))
    episodes = []
    for number, title in chosen.items():
        length = int(data["length"][number])
        obs, achieved, goal = (
            data[key][number, : length + 1] for key in ("observation", "achieved_goal", "desired_goal")
        )
        tracks: list[Track] = []
        if known:
            tracks = [("agent", obs[:, 0], INK, "solid"), ("object", obs[:, 2], VERMILLION, "solid")]
        for axis in range(0 if known else goal.shape[1]):
            colour = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, GREY)[axis % 6]
            tracks.append((f"achieved {axis + 1}", achieved[:, axis], colour, "solid"))
            tracks.append((f"goal {axis + 1}", goal[:, axis], colour, "dot"))
        events: list[Track] = [("influence", label[number, :length], ORANGE, "square")]
        if "contact" in data:
            events.insert(0, ("contact", contact[number, :length], PURPLE, "diamond"))
        figure = episode_figure(tracks, scores[:, number, :length], events, threshold, top)
        if known:
            zone = {"y0": float(goal[0, 0]) - GOAL_RADIUS, "y1": float(goal[0, 0]) + GOAL_RADIUS, "line_width": 0}
            figure.add_hrect(**zone, row=1, col=1, fillcolor=translucent(GREEN, 0.2), layer="below")
            figure.add_hline(LIMIT, row=1, col=1, line={"color": GREY, "width": 1, "dash": "dot"})
            figure.update_yaxes(range=[WALLS[0] - 0.3, WALLS[1] + 0.3], tickvals=[-4, -2, 0, 2, 4], row=1, col=1)
        episodes.append({
            "title": f"Episode {number}: {title}", "length": length, "figure": json.loads(figure.to_json()),
            "tracks": {name: np.round(values, 4).tolist() for name, values, *_ in tracks},
            "goal": np.round(goal[0], 4).tolist(), "score": np.round(scores[:, number, :length].mean(0), 4).tolist(),
            "events": {name: happened.tolist() for name, happened, *_ in events},
        })  # fmt: skip
    layout = {"kind": "slide", "walls": WALLS, "limit": LIMIT, "width": WIDTH, "goal_radius": GOAL_RADIUS}
    return {"layout": layout if known else None, "threshold": threshold, "episodes": episodes}


def episode_figure(tracks: list[Track], scores: Array, events: list[Track], threshold: float, top: float) -> Any:
    """Tracks, score [S, T] and events of one episode over its steps; shape 0 is the cursor."""
    figure = make_subplots(rows=3, shared_xaxes=True, vertical_spacing=0.045, row_heights=[0.48, 0.36, 0.16])
    whole = {"type": "rect", "xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    figure.add_shape({**whole, "type": "line", "x0": 0, "x1": 0, "line": {"color": INK, "width": 1.5}})
    for at in np.flatnonzero(events[-1][1]).tolist():  # steps with influence
        shade = {"fillcolor": translucent(ORANGE, 0.18), "line": {"width": 0}, "layer": "below"}
        figure.add_shape({**whole, "x0": at - 0.5, "x1": at + 0.5, **shade})
    for name, values, colour, dash in tracks:
        figure.add_scatter(
            x=list(range(len(values))), y=np.round(values, 4).tolist(), name=name, mode="lines", row=1, col=1,
            line={"color": colour, "dash": dash, "width": 2.5}, hovertemplate="%{y:.2f}",
        )  # fmt: skip
    steps = list(range(scores.shape[1]))
    mean, low, high = (np.round(v, 4).tolist() for v in (scores.mean(0), scores.min(0), scores.max(0)))
    figure.add_scatter(
        x=steps + steps[::-1], y=high + low[::-1], fill="toself", fillcolor=translucent(BLUE, 0.22), mode="lines",
        line={"width": 0}, hoverinfo="skip", row=2, col=1,
    )  # fmt: skip
    figure.add_scatter(
        x=steps, y=mean, name="score", mode="lines+markers", row=2, col=1, line={"color": BLUE, "width": 2},
        marker={"size": 5}, hovertemplate="%{y:.3f}",
    )  # fmt: skip
    figure.add_hline(threshold, row=2, col=1, line={"color": GREY, "width": 1, "dash": "dash"})
    for height, (name, happened, colour, symbol) in enumerate(events):
        at = np.flatnonzero(happened).tolist()
        marker = {"color": colour, "symbol": symbol, "size": 9, "line": {"color": INK, "width": 0.5}}
        figure.add_scatter(
            x=at, y=[height] * len(at), name=name, mode="markers", marker=marker, hovertemplate="yes", row=3, col=1
        )
    style(figure, "", "").update_layout(hovermode="x", margin={"l": 78, "t": 6})
    figure.update_xaxes(range=[-0.7, len(steps) + 0.7]).update_xaxes(title_text="step", row=3, col=1)
    figure.update_yaxes(title_text="position", row=1, col=1)
    figure.update_yaxes(title_text="score", range=[min(0.0, *low) - 0.03 * top, top], row=2, col=1)
    names = [name for name, *_ in events]
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, range=[-0.7, len(names) - 0.3], showgrid=False, row=3, col=1
    )
    return figure


def provenance(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """Tables of what was run: title and rows; empty ones are left out."""
    versions = dict(run.versions)
    about = {key: versions.pop(key) for key in ("command", "started", "seconds") if versions.get(key) is not None}
    if isinstance(about.get("seconds"), int | float):
        minutes, seconds = divmod(round(about.pop("seconds")), 60)
        hours, minutes = divmod(minutes, 60)
        about["duration"] = (f"{hours} h " if hours else "") + (f"{minutes} min " if minutes or hours else "")
        about["duration"] += f"{seconds} s"
    try:
        about["started"] = datetime.fromisoformat(str(about["started"])).strftime("%d %B %Y, %H:%M %Z").strip(" ,")
    except (KeyError, ValueError):
        pass  # shown as it is
    seeds = sorted({int(row["seed"]) for row in run.metrics if row["detector"] == run.main})
    about |= {"seeds": ", ".join(map(str, seeds)), "run label": run.config["label"], "folder": run.folder.resolve().name}
    hardware = {key: versions.pop(key) for key in ("processor", "platform", "device", "threads") if key in versions}
    tables = {"Run": about, "Hardware": hardware, "Software": versions, "Test episodes": run.metadata}
    return [(title, flatten(rows)) for title, rows in tables.items() if rows]


def render(run: Run) -> str:
    """The page as text."""
    rows = [{**row, "binary": run.binary(row["name"])} for row in detector_table(run.summary)]
    page = {
        "dark": DARK,
        "figures": {
            name: json.loads(figure.to_json())
            for name, figure in (
                ("roc", curve_figure(run, "roc")), ("pr", curve_figure(run, "pr")), ("scores", score_figure(run))
            )
        },
        "timeline": timeline(run),
    }  # fmt: skip
    templates = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=templates, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("detection.html.j2").render(
        summary=run.summary,
        run_label=run.config["label"],
        share=float(run.label.mean()),
        count=run.valid.shape[0],
        rows=rows,
        main=next(row for row in rows if row["name"] == run.main),
        metrics=run.metrics,
        notes=[str(note) for note in run.summary.get("notes") or []],
        config=flatten(run.config["config"]),
        tables=provenance(run),
        files=[name for name in FILES if (run.folder / name).is_file()],
        page=page,
        plotly=Markup(get_plotlyjs()),
    )
