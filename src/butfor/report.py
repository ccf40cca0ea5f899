"""Run folders -> one self-contained HTML page; reads files only and never imports torch."""

import html
import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup
from numpy.typing import NDArray
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots
from sklearn.metrics import precision_recall_curve, roc_curve

from butfor.files import written

Array = NDArray[Any]
Content = TypeVar("Content")
Track = tuple[str, Array, str, str]  # name, values over the steps, colour, dash or symbol

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
WALLS, LIMIT, WIDTH, GOAL_RADIUS = (-5.0, 5.0), -0.5, 0.2, 0.5  # of the slide world
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
    scores: dict[str, Array]  # detector -> [S, N]
    label: Array  # [N]
    data: dict[str, Array]
    valid: Array  # [E, T], true where a step was made: array[valid] has the order of label

    @property
    def main(self) -> dict[str, Any]:
        """The detector that the page is about."""
        return next((row for row in self.rows if row["name"] == "cai"), self.rows[0])

    @property
    def thresholds(self) -> dict[int, float]:
        """Threshold of the main detector's best F1, by seed."""
        mine = [row for row in self.metrics if row["detector"] == self.main["name"]]
        return {int(row["seed"]): float(row["threshold"]) for row in mine}

    def by_step(self, values: Array) -> Array:
        """Lay the values of all states out as [E, T], with not-a-number after the end of an episode."""
        full = np.full(self.valid.shape, np.nan)
        full[self.valid] = values  # [N] -> [E, T]
        return full


def write_report(run: Path) -> Path:
    """Write run/report.html for a folder of kind "detection" and return its path."""
    page = render(read_run(Path(run)))
    with written(Path(run) / "report.html") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Path(run) / "report.html"


def read_run(run: Path) -> Run:
    """Read a detection folder; refuse with a sentence what is missing, broken or inconsistent."""
    config = read_file(run / "config.json", read_object)
    if config.get("kind") != "detection":
        raise ValueError(f"{run} is a run of kind {config.get('kind')!r}, but only 'detection' has a report.")
    versions, summary = (read_file(run / name, read_object) for name in ("versions.json", "summary.json"))
    for name, schema in (("config.json", config.get("schema")), ("summary.json", summary.get("schema"))):
        if schema != 1:
            raise ValueError(f"{run / name} has schema {schema!r}, but this butfor reads schema 1. {AGAIN}")
    metrics = read_file(run / "metrics.jsonl", read_rows)
    arrays, data = (read_file(run / name, read_arrays) for name in ("scores.npz", "data/test.npz"))
    try:
        rows = detector_rows(summary)
        scores = {row["name"]: arrays[row["name"]] for row in rows}
        label, length, steps = arrays["label"].astype(bool), data["length"], np.arange(data["action"].shape[1])
        valid = steps < length[:, None]  # [E, T]
        episode, time = valid.nonzero()  # [N], [N]
        trajectories = [data[key] for key in ("achieved_goal", "desired_goal", "observation")]
        numbers = [float(row[key]) for row in metrics for key in ("seed", "threshold", *METRICS)]
        same_states = [np.array_equal(arrays["episode"], episode), np.array_equal(arrays["time"], time)]
        checks = {
            "summary.json names no detector": not rows,
            "summary.json and data/test.npz count different states": summary["states"] != len(time),
            "scores.npz and data/test.npz hold different states": not all(same_states) or label.shape != time.shape,
            "scores.npz needs influenced and free states": label.all() or not label.any(),
            "metrics.jsonl lacks a detector": not scores.keys() <= {row["detector"] for row in metrics},
            "metrics.jsonl must hold finite numbers": not np.isfinite(numbers).all(),
            "data/test.npz must hold finite numbers": not all(np.isfinite(array).all() for array in trajectories),
            "the arrays of data/test.npz differ in shape": trajectories[0].shape != trajectories[1].shape
            or {array.shape[:2] for array in trajectories} != {(len(length), len(steps) + 1)}
            or data.get("contact", valid).shape != valid.shape,
        }
        for name, value in scores.items():
            wrong = value.ndim != 2 or value.shape[1:] != time.shape or not np.isfinite(value).all()
            checks[f"scores of {name!r} must be finite and of shape [seeds, {len(time)}]"] = wrong
        _ = summary["world"] + summary["label"] + config["label"], flatten(config["config"]), metadata(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{run} holds a file of an unexpected form ({what}). {AGAIN}") from error
    for problem, present in checks.items():
        if present:
            raise ValueError(f"{run} is inconsistent: {problem}. {AGAIN}")
    return Run(run, config, versions, metrics, summary, rows, scores, label, data, valid)


def read_file(path: Path, read: Callable[[Path], Content]) -> Content:
    """Read one file of a run folder, turning every failure into a sentence."""
    try:
        return read(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; a report needs the whole run folder. {AGAIN}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({error}). {AGAIN}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    return read_rows(path, whole=True)[0]


def read_rows(path: Path, whole: bool = False) -> list[dict[str, Any]]:
    """Read one JSON object a line, or the whole file as one."""
    text = path.read_text(encoding="utf-8")
    rows = [json.loads(part) for part in ([text] if whole else text.splitlines())]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a JSON object was expected")
    return rows


def read_arrays(path: Path) -> dict[str, Array]:
    """Read every array of an .npz file, never unpickling."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def metadata(data: dict[str, Array]) -> dict[str, Any]:
    """What an episode file says about itself."""
    return {**json.loads(str(data.get("metadata", "{}")))}


def detector_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table of detectors, the best of each column marked; a tie in the digits shown is a tie."""
    rows: list[dict[str, Any]] = []
    for detector in summary["detectors"]:
        row = {key: str(detector[key]) for key in ("name", "title")} | {"seeds": int(detector["seeds"])}
        row |= dict(zip(("colour", "dash", "symbol"), STYLES.get(row["name"], OTHER_STYLE), strict=True))
        for metric in METRICS:
            paper = [float(number) for number in (detector.get("paper") or {}).get(metric) or []]
            row[metric] = {key: float(detector[metric][key]) for key in ("mean", "std")} | {"paper": paper}
        rows.append(row)
    for metric in METRICS:
        best = max((round(row[metric]["mean"], 3) for row in rows), default=0.0)
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


def plain(values: Any, digits: int = 5) -> list[Any]:
    """A list of rounded numbers, as short as JSON allows."""
    return np.round(np.asarray(values, float), digits).tolist()


def translucent(colour: str, alpha: float) -> str:
    """#RRGGBB with an alpha channel."""
    return f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:], 16)},{alpha})"


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
    """ROC ("roc") or precision-recall curve of every seed on one grid of at most POINTS: x [P], y [S, P]."""
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


def operating_point(label: Array, said: Array) -> tuple[float, float, float]:
    """False positive rate, recall and precision of yes-or-no answers [N]."""
    hits, alarms = int((said & label).sum()), int((said & ~label).sum())
    return alarms / int((~label).sum()), hits / int(label.sum()), hits / max(hits + alarms, 1)


def curve_figure(run: Run, kind: str) -> Any:
    """ROC or precision-recall: mean over seeds with their range as a band, yes-or-no detectors as markers."""
    figure, share = go.Figure(), float(run.label.mean())
    axes = ("false positive rate", "true positive rate") if kind == "roc" else ("recall", "precision")
    hover = f"<b>%{{fullData.name}}</b><br>{axes[0]} %{{x:.3f}}<br>{axes[1]} %{{y:.3f}}<extra></extra>"
    for row in run.rows:
        scores, colour = run.scores[row["name"]], row["colour"]
        common = {"name": html.escape(row["title"]), "legendgroup": row["name"]}
        if row["binary"]:
            x, y = zip(*(operating_point(run.label, score > 0)[slice(2) if kind == "roc" else slice(1, 3)]
                         for score in scores), strict=True)  # fmt: skip
            marker = {"color": colour, "symbol": row["symbol"], "size": 13, "line": {"color": INK, "width": 1}}
            figure.add_scatter(x=plain(x), y=plain(y), mode="markers", marker=marker, cliponaxis=False,
                               hovertemplate=hover, **common)  # fmt: skip
            continue
        x, curves = seed_curves(run.label, scores, kind)
        if len(scores) > 1:
            edge = plain(np.concatenate([curves.max(0), curves.min(0)[::-1]]))
            figure.add_scatter(x=plain([*x, *x[::-1]]), y=edge, fill="toself", fillcolor=translucent(colour, 0.15),
                               mode="lines", line={"width": 0}, hoverinfo="skip", **common)  # fmt: skip
        line = {"color": colour, "dash": row["dash"], "width": 2.5}
        figure.add_scatter(x=plain(x), y=plain(curves.mean(0)), mode="lines", line=line, hovertemplate=hover, **common)
    chance, line = ([0.0, 1.0] if kind == "roc" else [share, share]), {"color": INK, "width": 1.5, "dash": "dot"}
    figure.add_scatter(x=[0.0, 1.0], y=plain(chance), mode="lines", line=line, hoverinfo="skip", name="chance")
    figure.update_xaxes(range=[-0.02, 1.02]).update_yaxes(range=[-0.02, 1.03])
    return style(figure, *axes)


def score_figure(run: Run) -> Any:
    """Histograms of the first seed's scores of influenced and of free states, each as a share of its own class."""
    scores, threshold = run.scores[run.main["name"]][0].astype(float), next(iter(run.thresholds.values()))
    low, high = float(scores.min()), float(scores.max())
    edges = np.linspace(low, high if high > low else low + 1.0, 61)
    figure = go.Figure()
    for name, chosen, colour in (("free", ~run.label, GREY), ("influenced", run.label, ORANGE)):
        counts = np.histogram(scores[chosen], edges)[0]
        figure.add_bar(
            x=plain((edges[1:] + edges[:-1]) / 2), y=plain(100 * counts / chosen.sum()), width=edges[1] - edges[0],
            customdata=counts.tolist(), marker={"color": colour, "line": {"color": colour, "width": 1}}, opacity=0.65,
            hovertemplate=f"about %{{x:.2f}}<br>%{{y:.3g}} % of {name} states: %{{customdata}}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0).update_yaxes(type="log", dtick=1)
    figure.add_vline(x=threshold, line={"color": INK, "width": 1.5, "dash": "dash"})
    side = "right" if threshold > (low + high) / 2 else "left"
    figure.add_annotation(x=threshold, y=1, yref="paper", text=f" best F1 at {threshold:.2f} ", showarrow=False,
                          xanchor=side, yanchor="top")  # fmt: skip
    return style(figure, f"{html.escape(run.main['title'])} (first seed)", "% of the states of a class")
