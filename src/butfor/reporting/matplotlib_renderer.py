"""Draw charts for papers with matplotlib, and write them as SVG and PNG; the same charts give the same bytes."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from butfor.reporting.charts import BLUE, INK, ORANGE, WHITE, Array, Axis, Chart, HeatMap, Series, shorten
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
FRAMES = 10  # above the charts of an episode
DASHES: dict[str, Any] = {
    "solid": "-", "dash": "--", "dashdot": "-.", "dot": ":", "longdash": (0, (8, 3)), "none": "none"
}  # fmt: skip
SYMBOLS = {
    "circle": "o", "square": "s", "triangle-up": "^", "triangle-right": ">", "diamond": "D", "star": "*",
    "cross": "P", "none": "none",
}  # fmt: skip
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # it comes with matplotlib: the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 8,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "errorbar.capsize": 2,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.2,
    "image.cmap": "cividis",
    "text.parse_math": False,  # a title may contain any character
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "butfor",  # identifiers in the file do not change from call to call
}


def save_figures(folder: Path, draw: Callable[[], Mapping[str, Figure]]) -> list[Path]:
    """Write what a function draws in the style of butfor's figures as SVG and PNG (200 dpi), and return the paths."""
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


def draw(
    charts: Sequence[Chart], width: float, height: float, columns: int = 1, markers: bool = True, share_y: bool = True
) -> Figure:
    """Charts side by side in a figure of a size in inches, with one legend of `columns` below them.

    Without `markers`, series that have a line show only the line.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    share_y = share_y and len(charts) > 1
    panels = figure.subplots(1, len(charts), squeeze=False, sharey=share_y)[0]
    entries: dict[str, Any] = {}
    for axes, chart in zip(panels, charts, strict=True):
        draw_chart(axes, chart, markers)
        handles, labels = axes.get_legend_handles_labels()
        entries = dict(zip(labels, handles, strict=True)) | entries
    ranges = [chart.y.range for chart in charts if chart.y.range]
    if share_y:
        for axes in panels[1:]:
            axes.set_ylabel("")
        if ranges:
            panels[0].set_ylim(min(low for low, _ in ranges), max(high for _, high in ranges))
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)
    return figure


def decode_image(path: Path, kind: str, content: bytes) -> Array:
    """The pixels [height, width, ...] of the content of an image file of a media type such as image/png."""
    try:
        return np.asarray(imread(BytesIO(content), format=kind.removeprefix("image/")))
    except (OSError, SyntaxError) as error:  # pillow raises a SyntaxError for a broken PNG
        raise ValueError(f"{path} is not a valid image ({error}). Run `butfor detect` again.") from error


def draw_film(title: str, frames: Sequence[Array], score: Chart, marks: Chart) -> Figure:
    """Frames of an episode above charts of its score and of its events, with a legend of what the score shows."""
    left, right, gap = 0.72, 0.08, 0.06  # inches, as all lengths below
    width = PAGE - left - right
    frame_height = width / FRAMES * max(len(frame) / frame.shape[1] for frame in frames)
    rows = [0.4, 0.16 * len(marks.series) or 0.02, 1.1, frame_height, 0.24]
    height = sum(rows) + 2 * gap
    figure = Figure(figsize=(PAGE, height))
    bottoms = np.cumsum(rows)[:3] + gap * np.arange(3)
    below, middle, strip = (
        figure.add_axes((left / PAGE, bottom / height, width / PAGE, size / height))
        for bottom, size in zip(bottoms, rows[1:4], strict=True)
    )
    assert score.x.range is not None
    first, last = score.x.range
    edges = np.linspace(first, last, len(frames) + 1)
    half = 0.48 * (last - first) / FRAMES
    for centre, frame in zip((edges[1:] + edges[:-1]) / 2, frames, strict=True):
        strip.imshow(frame, extent=(centre - half, centre + half, 0, 1), aspect="auto")
    strip.set(xlim=(first, last), ylim=(0, 1))
    strip.set_axis_off()
    draw_chart(middle, score, markers=False)
    middle.tick_params(labelbottom=False, length=0, axis="x")
    draw_chart(below, marks)
    below.set_xlabel(marks.x.title, loc="left")
    below.tick_params(axis="y", length=0)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    (line,) = middle.lines
    line.set_label("mean over seeds")
    handles: list[Any] = [line, Patch(color=ORANGE, alpha=0.25, linewidth=0, label="influence")]
    if score.series[0].band is not None:
        handles.insert(1, Patch(color=BLUE, alpha=0.18, linewidth=0, label="range over seeds"))
    figure.text(left / PAGE, 1 - 0.05 / height, shorten(title, 90), va="top")
    figure.legend(handles=handles, loc="lower right", bbox_to_anchor=(1 - right / PAGE, 0), ncols=3, borderaxespad=0.1)
    return figure


def draw_chart(axes: Axes, chart: Chart, markers: bool = True) -> None:
    """Draw one chart into axes."""
    _set_axis(axes, axes.xaxis, chart.x)
    _set_axis(axes, axes.yaxis, chart.y)
    axes.set_title(shorten(chart.title))
    for span in chart.spans:
        shade = axes.axvspan if span.axis == "x" else axes.axhspan
        shade(span.low, span.high, color=span.colour, alpha=0.25, linewidth=0, zorder=0)
    for series in chart.series:
        if series.visible:
            _draw_series(axes, series, markers)
    if chart.heat_map:
        _draw_heat_map(axes, chart.heat_map)
    for rule in chart.rules:
        line = axes.axvline if rule.axis == "x" else axes.axhline
        line(rule.at, color=rule.colour, linewidth=rule.width / 2, linestyle=DASHES[rule.dash])
    for x, y, text in chart.notes:
        axes.annotate(text, (x, y), va="center", xytext=(4, 0), textcoords="offset points")
    if chart.box:
        width, height = chart.box
        for colour, thickness in ((INK, 2.4), (WHITE, 1.0)):  # a light line in a dark one is visible on any colour
            look: dict[str, Any] = {"edgecolor": colour, "linewidth": thickness}
            axes.add_patch(Rectangle((-width, -height), 2 * width, 2 * height, fill=False, **look))
    if chart.square:
        axes.set_aspect("equal")


def _draw_series(axes: Axes, series: Series, markers: bool) -> None:
    look: dict[str, Any] = {"color": series.colour, "alpha": series.opacity, "linestyle": DASHES[series.dash]}
    look["linewidth"] = series.width / 2  # series are measured in the pixels of a page
    if series.symbol != "none" and (markers or series.dash == "none"):
        look |= {"marker": SYMBOLS[series.symbol], "markersize": series.size / 2, "markeredgewidth": 0.6}
    if series.outlined:
        look["markeredgecolor"] = INK
    if series.dash == "none":
        look |= {"clip_on": False, "zorder": 4, "rasterized": len(series.x) > 100}
    label = "\n".join(shorten(line) for line in series.name.split("\n")) or None
    if series.band is not None:
        axes.fill_between(series.x, *series.band, color=series.colour, alpha=0.18, linewidth=0)
    if series.bars:
        axes.bar(series.x, series.y, series.x[1] - series.x[0], color=series.colour, alpha=series.opacity)
    elif series.error is not None:
        axes.errorbar(series.x, series.y, series.error, elinewidth=0.8, label=label, **look)
    else:
        axes.plot(series.x, series.y, label=label, **look)
    if series.cut_off:
        axes.plot(series.x[-1:], series.y[-1:], "X", color=series.colour, markersize=6, clip_on=False)


def _draw_heat_map(axes: Axes, heat: HeatMap) -> None:
    axes.set_facecolor("#D9D9D9")  # the colour of gaps
    values = np.ma.masked_invalid(heat.values)
    low = min(0.0, float(values.min())) if values.count() else 0.0
    mesh = axes.pcolormesh(cell_edges(heat.x), cell_edges(heat.y), values, rasterized=True, vmin=low, vmax=heat.top)
    bar = axes.figure.colorbar(
        mesh,
        cax=axes.inset_axes((1.04, 0, 0.05, 1)),
        label=f"{heat.name} ({heat.unit})",
        ticks=MaxNLocator(6, steps=[1, 2, 5, 10]),
    )
    bar.outline.set_visible(False)


def cell_edges(centres: Array) -> Array:
    """The borders of cells with these centres; a single cell reaches from 0 to twice its centre."""
    if len(centres) == 1:
        half = centres[0] or 0.5
        return np.array([centres[0] - half, centres[0] + half])
    middles = (centres[1:] + centres[:-1]) / 2
    return np.array([2 * centres[0] - middles[0], *middles, 2 * centres[-1] - middles[-1]])


def _set_axis(axes: Axes, drawn: Any, axis: Axis) -> None:
    name = drawn.axis_name
    drawn.set_label_text(axis.title)
    drawn.grid(visible=axis.grid)
    if axis.log:
        axes.set(**{f"{name}scale": "log"})
        drawn.minorticks_off()
    if axis.ticks is not None:
        drawn.set_ticks(list(axis.ticks), labels=list(axis.ticks.values()))
    elif name == "x" and not axis.log:
        axes.locator_params(axis="x", nbins=6)
    if axis.thousands:
        drawn.set_major_formatter("{x:,.0f}")
    if axis.range:
        axes.set(**{f"{name}lim": axis.range})
