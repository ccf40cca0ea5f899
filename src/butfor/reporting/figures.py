"""Run folders -> figures for papers, as SVG and PNG; the same run gives the same bytes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from butfor.analysis.detection_runs import (
    AGAIN,
    MAPS,
    expected_form,
    image,
    read_diagnosis,
    read_others,
    read_pictures,
    read_studies,
)
from butfor.reporting.charts import BLUE, INK, ORANGE, WHITE, Array, Row, look, seed_curves, seed_points
from butfor.reporting.report import Run, read_run
from butfor.runs.files import atomic_write

try:
    import matplotlib.style
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import imread
    from matplotlib.patches import Patch, Rectangle
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError("Figures need matplotlib; install it with: pip install 'butfor[figures]'.") from error

COLUMN, PAGE = 3.3, 6.8  # inches: the width of a column and of a page
FRAMES = 10  # in the strip of a timeline
DASHES: dict[str, Any] = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":", "longdash": (0, (8, 3))}
SYMBOLS = {"circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "star": "*", "cross": "P"}
METRIC_NAMES = {"auc": "AUC", "ap": "average precision"}
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # it comes with matplotlib: the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.2,
    "image.cmap": "cividis",
    "text.parse_math": False,  # a title may hold any sign
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "butfor",  # names inside the file do not change from call to call
}
THIN: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": ":"}


def write_figures(run: Path, out: Path | None = None) -> list[Path]:
    """Write *.svg and *.png (200 dpi) of what a detection folder holds to `out` (default: run/figures): their paths."""
    return save_figures(out or Path(run) / "figures", lambda: draw_figures(read_run(Path(run))))


def save_figures(folder: Path, draw: Callable[[], Mapping[str, Figure]]) -> list[Path]:
    """Write what a function draws, in the one style, as SVG and PNG, and return the paths."""
    paths = []
    with matplotlib.style.context(["default", STYLE]):
        for name, figure in draw().items():
            for kind, without in (("svg", ("Date", "Creator")), ("png", ("Software",))):
                path = folder / f"{name}.{kind}"
                with atomic_write(path) as temporary:
                    figure.savefig(temporary, format=kind, dpi=200, metadata=dict.fromkeys(without))
                figure.set_layout_engine("none")  # the second file keeps the layout of the first
                paths.append(path)
    return paths


def draw_figures(run: Run) -> dict[str, Figure]:
    """Name -> figure, of every part that the folder holds."""
    figures, curves = dict[str, Figure](), {"": (run.rows, run.scores, run.label)}
    for table in read_others(run.folder, run.summary, run.arrays):
        if table["scores"]:
            curves[f"-{table['name']}"] = (table["rows"], table["scores"], table["label"])
    for name, given in curves.items():
        figures |= {f"roc{name}": curve_figure(*given, "roc"), f"precision-recall{name}": curve_figure(*given, "pr")}
    return figures | draw_parts(run.folder)


def draw_parts(folder: Path) -> dict[str, Figure]:
    """Those that need no score of every state: studies, diagnosis and pictures, of what the folder holds."""
    figures, studies = dict[str, Figure](), read_studies(folder) or {}
    for name, draw in (("actions", actions_figure), ("reference", reference_figure), ("decisions", decisions_figure)):
        if studies.get(name):
            figures[name] = draw(studies[name])
    if studies.get("noise"):
        figures["noise"] = noise_figure(studies["noise_levels"], studies["noise"])
    entities = [entity for entity in read_diagnosis(folder) or [] if entity["reliability"]]
    if entities:
        figures["reliability"] = reliability_figure(entities)
    pictures = read_pictures(folder) or {"films": [], "map": None}
    top = 1.08 * max((float(film["score"].max()) for film in pictures["films"]), default=0.0)  # alike in all timelines
    for number, film in enumerate(pictures["films"], 1):
        figures[f"timeline-{number}"] = timeline_figure(folder / "pictures", film, top if top > 0 else 1.0)
    if pictures["map"]:
        figures["map"] = map_figure(**pictures["map"])
    return figures


def style_of(row: Row, marker: bool = True) -> dict[str, Any]:
    """Colour, dash and marker of a line, as in the report."""
    drawn = {"color": row["colour"], "linestyle": DASHES[row["dash"]]}
    return drawn | {"marker": SYMBOLS[row["symbol"]]} if marker else drawn


def short(text: str, most: int = 44) -> str:
    """A name that fits into a legend or a line."""
    return text if len(text) <= most else text[: most - 2] + " …"


def add_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend below all axes, where it can cover nothing."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def panels(count: int, width: float, height: float, **how: Any) -> tuple[Figure, list[Axes]]:
    """A figure with axes side by side."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False, **how)[0])


def curve_figure(rows: list[Row], detectors: dict[str, Array], label: Array, kind: str) -> Figure:
    """ROC or precision-recall: mean over seeds with their range, yes-or-no detectors as markers."""
    figure, (axes,) = panels(1, COLUMN, 3.0)
    for row in rows:
        scores, name = detectors[row["name"]], short(row["title"])
        if row["binary"]:
            marker = {"marker": SYMBOLS[row["symbol"]], "color": row["colour"], "markeredgecolor": INK}
            axes.plot(*seed_points(label, scores, kind), linestyle="none", markersize=6, markeredgewidth=0.6,
                      clip_on=False, zorder=4, label=name, **marker)  # fmt: skip
            continue
        x, curves = seed_curves(label, scores, kind)
        if len(curves) > 1:
            axes.fill_between(x, curves.min(0), curves.max(0), color=row["colour"], alpha=0.18, linewidth=0)
        axes.plot(x, curves.mean(0), label=name, **style_of(row, marker=False))
    share = float(label.mean())
    axes.plot([0, 1], [0, 1] if kind == "roc" else [share, share], label="chance", **THIN)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.02))
    names = ("false positive rate", "true positive rate") if kind == "roc" else ("recall", "precision")
    axes.set(xlabel=names[0], ylabel=names[1])
    add_legend(figure, axes, 2)
    return figure


def noise_figure(levels: Sequence[float], lines: list[Row]) -> Figure:
    """AUC and average precision over noise levels, evenly spaced: mean over seeds with their range."""
    figure, both = panels(2, PAGE, 2.4)
    x = np.arange(len(levels))
    for axes, (metric, name) in zip(both, METRIC_NAMES.items(), strict=True):
        for line in lines:
            values = line[metric]  # [L, S]
            axes.fill_between(x, values.min(1), values.max(1), color=line["colour"], alpha=0.18, linewidth=0)
            axes.plot(x, values.mean(1), label=line["title"], **style_of(line))
        axes.set(xlabel="noise level (%)", ylabel=name)
        axes.set_xticks(x, [f"{100 * level:g}" for level in levels])
    add_legend(figure, both[0], 2)
    return figure


def set_counts(axes: Axes, counts: Iterable[int]) -> None:
    """Numbers of actions on a logarithmic axis, each with its tick."""
    ticks = sorted(set(counts))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("number of actions K")


def actions_figure(groups: list[Row]) -> Figure:
    """Average precision over the number of actions, by how they are drawn and the form of the KL."""
    figure, (axes,) = panels(1, COLUMN, 2.2 + 0.28 * len(groups))
    for place, group in enumerate(groups):
        x = [int(row["first"]) * 1.02 ** (place - (len(groups) - 1) / 2) for row in group["rows"]]  # side by side
        mean, std = ([row["ap"][key] for row in group["rows"]] for key in ("mean", "std"))
        axes.errorbar(x, mean, std, elinewidth=0.8, label=group["title"].replace("; ", ";\n"),
                      **style_of(look("", place)))  # fmt: skip
    set_counts(axes, (int(row["first"]) for group in groups for row in group["rows"]))
    axes.set_ylabel(METRIC_NAMES["ap"])
    add_legend(figure, axes, 1)
    return figure


def reference_figure(groups: list[Row]) -> Figure:
    """Estimates of CAI over reference values, by the form of the KL with most actions; and bias over their number."""
    figure, (left, right) = panels(2, PAGE, 3.3)
    most = max(int(row["first"]) for group in groups for row in group["rows"])
    ends = []
    for place, group in enumerate(groups):
        drawn = look("", place)
        for row in group["rows"]:
            if int(row["first"]) == most:
                cloud = style_of(drawn) | {"linestyle": "none", "markersize": 2.6, "markeredgewidth": 0}
                left.plot(*row["points"].T, alpha=0.5, rasterized=True, **cloud)
                ends += [row["points"].min(), row["points"].max()]
        rows = sorted(group["rows"], key=lambda row: int(row["first"]))
        right.plot([int(row["first"]) for row in rows], [row["bias"] for row in rows], label=group["title"],
                   **style_of(drawn))  # fmt: skip
    left.plot([min(ends), max(ends)], [min(ends), max(ends)], **THIN)
    left.set(xlabel="reference (nats)", ylabel=f"estimate with K = {most} (nats)", aspect="equal")
    right.axhline(0.0, **THIN)
    right.set_ylabel("bias (nats)")
    set_counts(right, (int(row["first"]) for group in groups for row in group["rows"]))
    add_legend(figure, right, 2)
    return figure


def decisions_figure(groups: list[Row]) -> Figure:
    """Realised over promised share of false discoveries, a panel a set of states; below the diagonal it is kept."""
    rows = [row for group in groups for row in group["rows"]]
    sets, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("set", "method"))
    figure, every = panels(len(sets), PAGE if len(sets) > 1 else COLUMN, 2.6 if len(sets) > 1 else 3.0, sharey=True)
    end = 1.15 * max(100 * row["target"] for row in rows)
    for axes, name in zip(every, sets, strict=True):
        axes.plot([0, end], [0, end], **THIN)
        for place, method in enumerate(methods):
            drawn = [
                row for row in rows if (row["set"], row["method"]) == (name, method) and row["realised"] is not None
            ]
            x, y, error = ([100 * (row[key] or 0.0) for row in drawn] for key in ("target", "realised", "realised_std"))
            axes.errorbar(x, y, error, elinewidth=0.8, label=short(method), **style_of(look("", place)))
        axes.set(title=short(name), xlabel="promised at most (%)", xlim=(0, end))
    every[0].set_ylim(bottom=-0.03 * every[0].get_ylim()[1])
    every[0].set_ylabel("realised (%)")
    add_legend(figure, every[0], 3 if len(sets) > 1 else 1)
    return figure


def reliability_figure(entities: list[Row]) -> Figure:
    """Realised share of outcomes over the level of the model's central intervals; the diagonal is perfect."""
    figure, (axes,) = panels(1, COLUMN, 3.1)
    axes.plot([0, 100], [0, 100], **THIN)
    for place, entity in enumerate(entities):
        levels, realised = entity["reliability"]
        axes.plot(100 * levels, 100 * realised, label=short(entity["name"]), **style_of(look("", place)))
    axes.set(xlabel="expected inside (%)", ylabel="found inside (%)", xlim=(0, 100), ylim=(0, 101), aspect="equal")
    if len(entities) > 1:
        add_legend(figure, axes, 2)
    return figure


def read_frame(folder: Path, name: str) -> Array:
    """The pixels [height, width, ...] of an image beside index.json."""
    with expected_form(folder / "index.json"):
        kind, content = image(folder, name)
    try:
        return np.asarray(imread(BytesIO(content), format=kind.removeprefix("image/")))
    except (OSError, SyntaxError, ValueError) as error:  # pillow tells of a broken PNG by a SyntaxError
        raise ValueError(f"{folder / name} is no image that can be read ({error}). {AGAIN}") from error


def timeline_figure(folder: Path, film: Row, top: float) -> Figure:
    """Frames of an episode over its CAI with the range over seeds; influence shaded, other events as marks below."""
    *marks, (_, influenced, *_) = film["events"]
    score, steps = film["score"], film["length"]  # [S, T]
    count = min(FRAMES, steps)
    edges = np.linspace(-0.5, steps - 0.5, count + 1)  # each frame stands over its share of the steps
    middles = np.ceil((edges[1:] + edges[:-1]) / 2 - 0.5).astype(int)
    frames = [read_frame(folder, film["frames"][step]) for step in middles]
    left, right, gap = 0.72, 0.08, 0.06  # inches, like what follows
    width = PAGE - left - right
    rows = [0.4, 0.16 * len(marks) or 0.02, 1.1, width / FRAMES * max(len(f) / f.shape[1] for f in frames), 0.24]
    height = sum(rows) + 2 * gap
    figure = Figure(figsize=(PAGE, height))
    bottoms = np.cumsum(rows)[:3] + gap * np.arange(3)
    below, middle, strip = (
        figure.add_axes((left / PAGE, bottom / height, width / PAGE, size / height))
        for bottom, size in zip(bottoms, rows[1:4], strict=True)
    )
    for start, end, frame in zip(edges[:-1], edges[1:], frames, strict=True):
        centre, half = (start + end) / 2, 0.48 * steps / FRAMES
        strip.imshow(frame, extent=(centre - half, centre + half, 0, 1), aspect="auto")
    strip.set(ylim=(0, 1))
    strip.set_axis_off()
    x = np.arange(steps)
    for first, end in stretches(influenced):
        for axes in (below, middle):
            axes.axvspan(first - 0.5, end - 0.5, color=ORANGE, alpha=0.25, linewidth=0, zorder=0)
    (line,) = middle.plot(x, score.mean(0), color=BLUE, label="mean over seeds")
    handles: list[Any] = [line, Patch(color=ORANGE, alpha=0.25, linewidth=0, label="influence")]
    if len(score) > 1:
        area: dict[str, Any] = {"color": BLUE, "alpha": 0.25, "linewidth": 0, "label": "range over seeds"}
        handles.insert(1, middle.fill_between(x, score.min(0), score.max(0), **area))
    middle.set(ylabel="CAI (nats)", ylim=(min(0.0, float(score.min())), top))
    middle.tick_params(labelbottom=False, length=0, axis="x")
    for place, (_, happened, colour, symbol) in enumerate(marks):
        at = np.flatnonzero(happened)
        below.plot(at, np.full(len(at), place), SYMBOLS[symbol], color=colour, markersize=3.5, clip_on=False)
    below.set_yticks(range(len(marks)), [name for name, *_ in marks])
    below.set_xlabel("step", loc="left")
    below.set(ylim=(-0.6, len(marks) - 0.4))
    below.tick_params(axis="y", length=0)
    below.grid(visible=False)
    for axes in (below, middle, strip):
        axes.set_xlim(-0.5, steps - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.text(left / PAGE, 1 - 0.05 / height, short(film["title"], 90), va="top")
    figure.legend(handles=handles, loc="lower right", bbox_to_anchor=(1 - right / PAGE, 0), ncols=3,
                  borderaxespad=0.1)  # fmt: skip
    return figure


def stretches(flags: Array) -> Array:
    """First place and end of every unbroken stretch of true values: [n, 2]."""
    changes: Array = np.flatnonzero(np.diff(np.concatenate([[False], flags.astype(bool), [False]])))
    return changes.reshape(-1, 2)


def map_figure(x: Array, y: Array, half: Array, **values: Array) -> Figure:
    """CAI and the exact effect of the action over the gripper's place around the object, which is outlined."""
    figure, both = panels(2, PAGE, 2.9, sharey=True)
    width, depth = half.tolist()
    for axes, (key, (unit, _)), title in zip(both, MAPS.items(), ("CAI", "effect of the action"), strict=True):
        axes.set_facecolor("#D9D9D9")  # of the gaps
        axes.grid(visible=False)
        shown = np.ma.masked_invalid(values[key])
        low = min(0.0, float(shown.min())) if shown.count() else 0.0
        mesh = axes.pcolormesh(x, y, shown, shading="nearest", rasterized=True, vmin=low)
        for colour, line in ((INK, 2.4), (WHITE, 1.0)):  # a light line in a dark one shows on every ground
            box = Rectangle((-width, -depth), 2 * width, 2 * depth, fill=False, edgecolor=colour, linewidth=line)
            axes.add_patch(box)
        axes.set(xlabel="x (cm)", aspect="equal")
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10])
        bar = figure.colorbar(mesh, cax=axes.inset_axes((1.04, 0, 0.05, 1)), label=f"{title} ({unit})", ticks=ticks)
        bar.outline.set_visible(False)
    both[0].set_ylabel("y (cm)")
    return figure
