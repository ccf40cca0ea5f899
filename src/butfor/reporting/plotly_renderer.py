"""Draw charts with plotly: for a page as the JSON that plotly.js reads, or as a figure for a notebook.

On a page, the style sheet gives the colours of text and grid.
"""

import html
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from butfor.reporting.charts import BLUE, INK, SKY, WHITE, Axis, Chart, Series

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
OF_PAGES = ("font", "paper_bgcolor", "plot_bgcolor", "hoverlabel", "margin", "dragmode")  # of a layout, on pages only
GAP = 0.045  # between charts above each other, as a share of the whole height
DARK = {  # colour of a light page -> colour of a dark page
    INK: "#E8E8E8",
    WHITE: "#16191D",
    BLUE: SKY,
    SKY: "#F0E442",  # the yellow of Okabe and Ito, which a white page would hide
    "rgba(0,114,178,": "rgba(86,180,233,",
    "rgba(86,180,233,": "rgba(240,228,66,",
}

STRIPS_LOOK = {"colorscale": [[0, "rgba(230,159,0,0)"], [1, "rgba(230,159,0,1)"]], "zmin": 0, "ygap": 3}


def draw(*charts: Chart, heights: Sequence[float] = (1.0,), cursor: float | None = None) -> dict[str, Any]:
    """Charts above each other with one x-axis, as a plotly figure; `heights` are their shares of the height.

    A line across all charts at `cursor` is the first shape, which the scripts of a page move.
    """
    data: list[Any] = []
    notes: list[Any] = []
    shapes: list[Any] = []
    if cursor is not None:
        shapes.append(_across("x", cursor, cursor) | {"type": "line", "line": {"color": INK, "width": 1.5}})
    layout: dict[str, Any] = {
        "autosize": True, "showlegend": False, "dragmode": False, "barmode": "overlay", "bargap": 0,
        "hovermode": "x" if charts[0].compare else "closest", "font": {"family": FONT, "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 54 if len(charts) == 1 else 78, "r": 12, "t": 12 if len(charts) == 1 else 6, "b": 46},
        "hoverlabel": {"bgcolor": INK, "bordercolor": INK, "font": {"color": WHITE, "family": FONT}},
    }  # fmt: skip
    tops = 1.0 - np.cumsum([0.0, *heights[:-1]])
    for place, (chart, top, height) in enumerate(zip(charts, tops, heights, strict=True)):
        number = "" if place == 0 else str(place + 1)
        last = place == len(charts) - 1
        where = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        data += [trace | where for trace in _traces(chart)]
        shapes += _shapes(chart, number)
        notes += _notes(chart, where)
        layout[f"xaxis{number}"] = _axis(chart.x) | {"anchor": f"y{number}"}
        layout[f"yaxis{number}"] = _axis(chart.y) | {"anchor": f"x{number}"}
        if len(charts) > 1:
            domain = [float(top - height + (0 if last else GAP / 2)), float(top - (GAP / 2 if place else 0))]
            layout[f"yaxis{number}"]["domain"] = domain
            layout[f"xaxis{number}"] |= {"matches": "x"} if place else {}
            layout[f"xaxis{number}"]["showticklabels"] = last
        if chart.square:
            layout[f"xaxis{number}"]["constrain"] = "domain"
            layout[f"yaxis{number}"] |= {"constrain": "domain", "scaleanchor": f"x{number}"}
        if chart.heat_map:
            layout["margin"] |= {"t": 30, "r": 4}
            layout[f"yaxis{number}"] |= {} if chart.heat_map.top is None else {"automargin": True}
    return {"data": data, "layout": layout | {"shapes": shapes, "annotations": notes}}


def figure(*charts: Chart, heights: Sequence[float] = (1.0,), title: str = "") -> "Figure":
    """The same charts as a figure of plotly, in the colours and fonts of its default template."""
    import plotly.graph_objects
    import plotly.io

    drawn = draw(*charts, heights=heights)
    for trace in drawn["data"]:
        trace.setdefault("showlegend", bool(trace.get("name")))
    kept = {name: part for name, part in drawn["layout"].items() if name not in OF_PAGES}
    for name in kept:
        if name.startswith(("xaxis", "yaxis")):
            del kept[name]["fixedrange"]
    titled = {"title": {"text": _text(title)}, "showlegend": any(trace["showlegend"] for trace in drawn["data"])}
    parts = json.dumps({"data": drawn["data"], "layout": kept | titled})
    if "dark" in (plotly.io.templates.default or ""):
        parts = re.sub("|".join(map(re.escape, DARK)), lambda colour: DARK[colour[0]], parts)
    return plotly.graph_objects.Figure(json.loads(parts))


def plain(values: Any) -> Any:
    """A list of rounded numbers, which keeps the page small; None where a value is NaN."""
    rounded: Any = np.round(np.asarray(values, float), 5).astype(object)
    rounded[np.isnan(rounded.astype(float))] = None
    return rounded.tolist()


def _text(text: str) -> str:
    """Text that plotly shows as it is, with line breaks."""
    return html.escape(text).replace("\n", "<br>")


def _translucent(colour: str, alpha: float) -> str:
    """#RRGGBB with an alpha channel."""
    return f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:], 16)},{alpha})"


def _traces(chart: Chart) -> Iterator[dict[str, Any]]:
    for series in chart.series:
        yield from _series(series)
    if heat := chart.heat_map:
        title = {"text": heat.unit, "side": "top", "font": {"size": 13}}
        yield {
            "type": "heatmap", "x": plain(heat.x), "y": plain(heat.y), "z": plain(heat.values),
            "colorscale": "Cividis", "colorbar": {"thickness": 12, "outlinewidth": 0, "ypad": 0, "title": title},
            "hoverongaps": False, "hovertemplate": heat.hover,
        } | ({} if heat.top is None else STRIPS_LOOK | {"zmax": heat.top})  # fmt: skip


def _series(series: Series) -> Iterator[dict[str, Any]]:
    """The band of a series, if it has one, and its line or markers."""
    common: dict[str, Any] = {"type": "scatter", "name": _text(series.name), "visible": series.visible}
    if series.group:
        common["legendgroup"] = series.group
    if series.choice:
        common["meta"] = series.choice
    x = plain(series.x)
    if series.band is not None:
        low, high = plain(series.band)
        yield common | {
            "x": [*x, *x[::-1]], "y": [*high, *low[::-1]], "mode": "lines", "fill": "toself",
            "fillcolor": _translucent(series.colour, 0.18), "line": {"width": 0}, "hoverinfo": "skip",
            "showlegend": False,
        }  # fmt: skip
    parts = [part for part, look in (("lines", series.dash), ("markers", series.symbol)) if look != "none"]
    trace = common | {"x": x, "y": plain(series.y), "mode": "+".join(parts), "opacity": series.opacity}
    trace |= {"hovertemplate": series.hover} if series.hover else {"hoverinfo": "skip"}
    if series.bars:
        trace |= {"type": "bar", "marker": {"color": series.colour, "line": {"color": series.colour, "width": 1}}}
    elif series.dash != "none":
        trace["line"] = {"color": series.colour, "dash": series.dash, "width": series.width}
    if series.symbol != "none":
        outline = {"color": INK, "width": 0.7 if series.outlined else 0}
        trace["marker"] = {"color": series.colour, "symbol": series.symbol, "size": series.size, "line": outline}
        trace["cliponaxis"] = series.dash != "none"
    if series.cut_off:
        symbols = [*[series.symbol] * (len(x) - 1), "x"]
        trace["marker"] |= {"symbol": symbols, "size": [*[series.size] * (len(x) - 1), 11]}
    if series.error is not None:
        trace["error_y"] = {"type": "data", "array": plain(series.error), "thickness": 1.2, "width": 4}
    if series.extra is not None:
        trace["customdata"] = plain(series.extra)
    if len(series.text):
        trace["text"] = [_text(text) for text in series.text]
    yield trace


def _across(axis: str, low: float, high: float, number: str = "") -> dict[str, Any]:
    """The place of a shape from `low` to `high` on one axis: across all charts (x), or across one chart (y)."""
    if axis == "x":
        return {"xref": "x", "yref": "paper", "x0": low, "x1": high, "y0": 0, "y1": 1}
    return {"xref": f"x{number} domain", "yref": f"y{number}", "x0": 0, "x1": 1, "y0": low, "y1": high}


def _shapes(chart: Chart, number: str) -> Iterator[dict[str, Any]]:
    for span in chart.spans:
        shade = {"type": "rect", "fillcolor": _translucent(span.colour, 0.18), "line": {"width": 0}, "layer": "below"}
        if span.axis == "y" or not number:  # charts above each other share spans of x: the first draws them for all
            yield shade | _across(span.axis, span.low, span.high, number)
    for rule in chart.rules:
        line = {"type": "line", "line": {"color": rule.colour, "width": rule.width, "dash": rule.dash}}
        yield line | _across(rule.axis, rule.at, rule.at, number)
    if chart.box:
        width, height = chart.box
        box = {"type": "rect", "x0": -width, "x1": width, "y0": -height, "y1": height}
        for colour, thickness in ((INK, 4.5), (WHITE, 2)):  # a light line in a dark one is visible on any colour
            yield box | {"line": {"color": colour, "width": thickness}}


def _notes(chart: Chart, where: dict[str, str]) -> Iterator[dict[str, Any]]:
    for rule in chart.rules:
        if rule.note:
            side = "right" if rule.note_on_the_left else "left"
            top = {"x": rule.at, "y": 1, "yref": "paper", "xanchor": side, "yanchor": "top"}
            yield top | {"text": f" {_text(rule.note)} ", "showarrow": False}
    for x, y, text in chart.notes:
        place = {"x": x, "y": y, "xref": where["xaxis"], "yref": where["yaxis"], "xanchor": "left"}
        yield place | {"text": _text(text), "showarrow": False}


def _axis(axis: Axis) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "title": {"text": _text(axis.title), "standoff": 8, "font": {"size": 13}},
        "zeroline": False, "fixedrange": True, "showgrid": axis.grid,
    }  # fmt: skip
    if axis.range:
        drawn["range"] = list(axis.range)
    if axis.log:
        drawn |= {"type": "log", "dtick": 1}
    if axis.ticks is not None:
        names = [_text(name) for name in axis.ticks.values()]
        drawn |= {"tickmode": "array", "tickvals": list(axis.ticks), "ticktext": names}
    if axis.thousands:
        drawn["tickformat"] = ","
    return drawn
