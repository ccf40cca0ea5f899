"""Charts as data: curves of known scores, and that a page and a paper show the same values."""

import json
from typing import Any

import numpy as np
import pytest

from butfor.reporting import charts, plotly_renderer
from butfor.reporting.charts import Axis, Chart, Rule, Series, Span


def test_roc_curve_of_known_scores() -> None:
    label = np.array([False, True, False, True])
    scores = np.array([[0.1, 0.9, 0.2, 0.8], [1, 1, 1, 1], [0.9, 0.1, 0.8, 0.2]])
    x, y = charts.seed_curves(label, scores, "roc")
    assert len(x) <= 400
    assert (x[0], x[-1]) == (0.0, 1.0)
    assert np.array_equal(y[:, 0], np.zeros(3))
    assert np.array_equal(y[0, 1:], np.ones(len(x) - 1))  # perfect
    assert y[1] == pytest.approx(x)  # constant scores are chance
    assert np.array_equal(y[2, x < 1.0], np.zeros((x < 1.0).sum()))  # always wrong


def test_precision_is_that_of_the_first_threshold_that_reaches_a_recall() -> None:
    label = np.array([True, False, True])
    x, y = charts.seed_curves(label, np.array([[3.0, 2.0, 1.0], [1.0, 1.0, 1.0]]), "pr")
    assert y[0] == pytest.approx(np.where(x <= 0.5, 1.0, 2.0 / 3.0))
    assert y[0].mean() == pytest.approx(0.5 * 1.0 + 0.5 * 2.0 / 3.0)  # average precision
    assert y[1] == pytest.approx(np.full(len(x), 2.0 / 3.0))


def test_influenced_steps_are_shaded_in_stretches() -> None:
    score = np.zeros((2, 4))
    above, below = charts.episode_charts("CAI", score, {}, np.array([1, 1, 0, 1]), top=1.0)
    assert [(span.low, span.high) for span in above.spans] == [(-0.5, 1.5), (2.5, 3.5)]
    assert below.spans == above.spans


ALL = Chart(
    [
        Series([0.0, 1.0, 2.0], [1.0, 3.0, 2.0], "line <b>", band=[[0.0, 2.0, 1.0], [2.0, 4.0, 3.0]], symbol="square"),
        Series([0.0, 1.0], [2.0, 2.0], "marks", dash="none", symbol="star", error=[0.1, 0.2]),
        Series([0.0, 1.0, 2.0], [5.0, 6.0, 7.0], bars=True),
        Series([0.0], [9.0], "hidden", visible=False),
    ],
    Axis("x", (0.0, 2.0), {0: "none", 2: "two"}),
    Axis("y"),
    rules=[Rule(1.5, "y")],
    spans=[Span(0.5, 1.5)],
    notes=[(1.0, 2.0, "here")],
)


def test_a_page_and_a_paper_show_the_same_chart() -> None:
    page = plotly_renderer.draw(ALL)
    json.dumps(page, allow_nan=False)
    band, line, marks, bars, hidden = page["data"]
    assert (line["x"], line["y"], line["name"]) == ([0.0, 1.0, 2.0], [1.0, 3.0, 2.0], "line &lt;b&gt;")
    assert band["y"] == [2.0, 4.0, 3.0, 1.0, 2.0, 0.0]
    assert (marks["mode"], marks["error_y"]["array"]) == ("markers", [0.1, 0.2])
    assert (bars["type"], bars["y"]) == ("bar", [5.0, 6.0, 7.0])
    assert not hidden["visible"]
    assert page["layout"]["xaxis"]["ticktext"] == ["none", "two"]
    assert [shape["type"] for shape in page["layout"]["shapes"]] == ["rect", "line"]
    assert [note["text"] for note in page["layout"]["annotations"]] == ["here"]
    renderer: Any = pytest.importorskip("butfor.reporting.matplotlib_renderer")
    figure = renderer.draw([ALL], 3.0, 3.0)
    (axes,) = figure.axes
    assert np.asarray(axes.lines[0].get_xydata()).tolist() == [[0.0, 1.0], [1.0, 3.0], [2.0, 2.0]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["line <b>", "marks"]
    assert [patch.get_height() for patch in axes.containers[-1]] == [5.0, 6.0, 7.0]
    assert axes.lines[-1].get_ydata()[0] == 1.5
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["none", "two"]
    assert [text.get_text() for text in axes.texts] == ["here"]


def test_gaps_of_a_heat_map_are_null() -> None:
    around = {"x": np.array([0.0, 1.0]), "y": np.array([0.0]), "cai": np.array([[np.nan, 0.5]]), "half": np.ones(2)}
    page = plotly_renderer.draw(charts.map_chart(around, "cai", "CAI", "nats"))
    assert page["data"][0]["z"] == [[None, 0.5]]


def test_charts_above_each_other_share_their_steps_and_a_cursor() -> None:
    page = plotly_renderer.draw(ALL, ALL, heights=(0.7, 0.3), cursor=1.0)
    layout = page["layout"]
    assert layout["xaxis2"]["matches"] == "x"
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]
    assert (layout["shapes"][0]["x0"], layout["shapes"][0]["x1"]) == (1.0, 1.0)
    assert sum(shape["type"] == "rect" for shape in layout["shapes"]) == 1  # one shade across both


def test_what_training_reports_is_drawn_as_mean_and_range() -> None:
    values = np.array([[1.0, 2.0], [3.0, 6.0]])
    looks = {"absent": charts.arm_look(0, 2), "run": charts.arm_look(1, 2)}
    (series,) = charts.trained_chart({"run": (np.array([100, 200]), values)}, looks, "nats").series
    assert series.y.tolist() == [2.0, 4.0]
    assert series.band.tolist() == [[1.0, 2.0], [3.0, 6.0]]
    assert series.group == "arm-1"  # the place among all runs, which the page's legend uses


def test_a_strip_shows_the_highest_influence_of_each_interval() -> None:
    """Rows from above, colours on one scale; `charts.edges_chart` draws at most 600 intervals."""
    values = np.zeros(1201)
    values[7] = 0.6
    drawn = plotly_renderer.draw(charts.edges_chart({"a → b": values, "b → a <i>": 0 * values}, 0.69))
    (strips,) = drawn["data"]
    assert np.shape(strips["z"]) == (2, 401)
    assert [(row, place) for row, line in enumerate(strips["z"]) for place, value in enumerate(line) if value] == [
        (0, 2)
    ]
    assert (strips["zmin"], strips["zmax"]) == (0, 0.69)
    axis = drawn["layout"]["yaxis"]
    assert axis["range"][0] > axis["range"][1]
    assert axis["ticktext"] == ["a → b", "b → a &lt;i&gt;"]
