"""The parts of a chart, and how lines look: colours, dashes and symbols are the same on every page and figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Row = dict[str, Any]
# The palette of Okabe and Ito, which colour-blind readers can tell apart.
INK, GREY, WHITE = "#222222", "#808080", "#FFFFFF"
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
STYLES: dict[str, Row] = {  # of detectors: a line and its marker
    "cai": {"colour": BLUE, "dash": "solid", "symbol": "circle"},
    "entropy": {"colour": VERMILLION, "dash": "dash", "symbol": "square"},
    "attention": {"colour": GREEN, "dash": "dashdot", "symbol": "triangle-up"},
    "contact": {"colour": PURPLE, "dash": "dot", "symbol": "diamond"},
    "moved": {"colour": ORANGE, "dash": "dot", "symbol": "star"},
    "distance": {"colour": SKY, "dash": "longdash", "symbol": "triangle-right"},
}
OTHER_STYLE: Row = {"colour": GREY, "dash": "longdash", "symbol": "cross"}  # of a detector that STYLES does not name
LINE_STYLES = [*STYLES.values(), OTHER_STYLE]
ARM_STYLES = [OTHER_STYLE, *LINE_STYLES[:4], {"colour": ORANGE, "dash": "solid", "symbol": "star"}]
DASHES = ["solid", "dash", "dashdot", "dot", "longdash"]
MOST_POINTS = 1_000  # of a line over training
EVENT_STYLES = {"heuristic": (GREEN, "triangle-up"), "contact": (PURPLE, "diamond"), "influence": (ORANGE, "square")}


@dataclass(frozen=True)
class Axis:
    """One axis of a chart."""

    title: str = ""
    range: tuple[float, float] | None = None
    ticks: Mapping[Any, str] | None = None
    log: bool = False
    thousands: bool = False  # write numbers as 1,000
    grid: bool = True


@dataclass(frozen=True)
class Series:
    """Values over x: a line, markers, both or bars, with a band or error bars."""

    x: Any
    y: Any
    name: str = ""
    colour: str = BLUE
    dash: str = "solid"  # "none" draws only markers
    symbol: str = "none"  # "none" draws only the line
    width: float = 2.5  # of the line, in the pixels of a page
    size: float = 8  # of the markers
    outlined: bool = False
    opacity: float = 1.0
    bars: bool = False  # draw bars instead of a line
    band: Any = None  # the lowest and the highest value at each x: [2, P]
    error: Any = None
    hover: str = ""  # the text at the pointer, in plotly's template language; empty for none
    extra: Any = None  # further values of each point, for the hover text
    text: Sequence[str] = ()  # a text for each point, for the hover text
    group: str = ""  # the button of the page's legend that hides the series
    choice: str = ""  # the choice of the reader that shows the series: mean, iqm or seeds
    visible: bool = True
    cut_off: bool = False  # mark the last point with a cross


@dataclass(frozen=True)
class HeatMap:
    """Values [len(y), len(x)] as colours; NaN is a gap."""

    x: Array
    y: Array
    values: Array
    name: str
    unit: str
    hover: str
    top: float | None = None  # draw strips with gaps between them, from transparent at 0 to orange at this value


@dataclass(frozen=True)
class Rule:
    """A straight line across the chart at one value of an axis."""

    at: float
    axis: Literal["x", "y"]
    colour: str = INK
    dash: str = "dash"
    width: float = 1.5
    note: str = ""
    note_on_the_left: bool = False


@dataclass(frozen=True)
class Span:
    """A shaded range of an axis."""

    low: float
    high: float
    axis: Literal["x", "y"] = "x"
    colour: str = ORANGE


@dataclass(frozen=True)
class Chart:
    """What one pair of axes shows."""

    series: Sequence[Series] = ()
    x: Axis = Axis()
    y: Axis = Axis()
    title: str = ""
    heat_map: HeatMap | None = None
    rules: Sequence[Rule] = ()
    spans: Sequence[Span] = ()
    notes: Sequence[tuple[float, float, str]] = ()  # x, y and the text to the right of this point
    box: tuple[float, float] | None = None  # half the width and height of an outline around the origin
    square: bool = False  # a unit has the same length on both axes
    compare: bool = False  # the pointer shows the values of all series at its x


def detector_look(name: str) -> Row:
    """Colour, dash and symbol of a detector."""
    return STYLES.get(name, OTHER_STYLE)


def line_look(place: int) -> Row:
    """Colour, dash and symbol of the line at a place in a chart."""
    return LINE_STYLES[place % len(LINE_STYLES)]


def arm_look(place: int, count: int) -> Row:
    """Colour, dash and symbol of an arm; the first of several is grey, later ones repeat colours in new dashes."""
    styles = ARM_STYLES if count > 1 else ARM_STYLES[1:]
    look = styles[place % len(styles)]
    return look | {"dash": DASHES[(DASHES.index(look["dash"]) + place // len(styles)) % len(DASHES)]}


def drawn_places(count: int) -> Array:
    """Which of `count` points of a line are drawn: all, or evenly spaced ones where a screen cannot show more."""
    return np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int)


def guide(x: Any, y: Any, name: str = "") -> Series:
    """A thin dotted line to compare with: chance, or perfect agreement."""
    return Series(x, y, name, colour=INK, dash="dot", width=1.5)


def range_of(curves: Array) -> Array | None:
    """The lowest and the highest of curves [S, P] at each point: [2, P]; None for a single curve."""
    return np.stack([curves.min(0), curves.max(0)]) if len(curves) > 1 else None


def shorten(text: str, most: int = 44) -> str:
    """A name that fits into a legend or a line."""
    return text if len(text) <= most else text[: most - 2] + " …"


def histogram(values: Array, edges: Array, colour: str, what: str) -> Series:
    """The share of the values between edges, in percent."""
    counts = np.histogram(values, edges)[0]
    hover = f"about %{{x:.2f}}<br>%{{y:.3g}} % of {what}: %{{customdata}}<extra></extra>"
    middles = (edges[1:] + edges[:-1]) / 2
    return Series(middles, 100 * counts / len(values), "", colour, bars=True, opacity=0.65, hover=hover, extra=counts)
