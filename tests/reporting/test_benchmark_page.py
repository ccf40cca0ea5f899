"""The page of a benchmark."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from support.benchmarks import unit
from support.browser import chromium
from support.pages import FITS, HOSTILE, page_data, section, words

from butfor.reporting.benchmark_page import write_benchmark_page
from butfor.runs.folder import versions


def write_benchmark(folder: Path, units: list[dict[str, object]]) -> Path:
    record = {"schema": 1, "settings": {"sizes": [2_000, 15_000], "states": 100}, "versions": versions("cpu")}
    (folder / "benchmark.json").write_text(json.dumps(record))
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in units))
    return folder


def units_of(task: str, **changes: Any) -> list[dict[str, object]]:
    return [
        unit(task, size, seed, auc=auc + 0.01 * seed, **changes)
        for size, auc in ((2_000, 0.8), (15_000, 0.98))
        for seed in range(2)
    ]


def test_curves_tables_and_goals(tmp_path: Path) -> None:
    units = [*units_of("nudge", moving=0.9), *units_of(HOSTILE, distance=None)]
    text = write_benchmark_page(write_benchmark(tmp_path, units)).read_text()
    assert HOSTILE not in text
    figures = page_data(text)["figures"]
    assert set(figures) == {"amount-0", "amount-1"}
    lines = [trace for trace in figures["amount-0"]["data"] if trace["mode"] != "lines"]
    assert [trace["name"] for trace in lines] == ["CAI", "distance"] * 2
    np.testing.assert_allclose(lines[0]["y"], [0.805, 0.985])
    np.testing.assert_allclose(lines[1]["y"], [0.9, 0.9])
    assert len([trace for trace in figures["amount-1"]["data"] if trace["mode"] != "lines"]) == 2
    goals = words(section(text, "goals"))
    assert goals.count("not met") == 1  # moving objects
    assert goals.count("not measured") == 1  # 5,000 transitions
    numbers = words(section(text, "numbers"))
    # log odds of 0.985 ± 12.706 x 0.005 / (0.985 x 0.015)
    assert "0.985 [0.471, 1.000] 0.900 0.950 0.900" in numbers
    assert "10.0 % 80 %" in numbers
    assert "2 of 2" in words(section(text, "fits"))


def test_an_interrupted_benchmark_has_a_page(tmp_path: Path) -> None:
    assert words(write_benchmark_page(write_benchmark(tmp_path, [])).read_text()).count("not measured") == 6


def test_results_of_several_commits_are_noted(tmp_path: Path) -> None:
    page = write_benchmark_page(write_benchmark(tmp_path, [unit(), unit(seed=1) | {"commit": "def"}]))
    assert "different commits" in page.read_text()


def test_the_page_opens_without_errors(tmp_path: Path) -> None:
    page = write_benchmark_page(write_benchmark(tmp_path, [*units_of("nudge", moving=0.9), *units_of("other")]))
    with chromium() as browser:
        wrong: list[str] = []
        for width in (1280, 400):
            view = browser.new_page(viewport={"width": width, "height": 900})
            view.on("console", lambda message: wrong.append(message.text))
            view.on("pageerror", lambda error: wrong.append(str(error)))
            view.goto(page.as_uri())
            view.wait_for_selector("#plot-amount-1 .main-svg")
            assert view.evaluate(FITS)
        assert wrong == []


def test_the_distance_keeps_a_colour_of_its_own_on_a_dark_page(tmp_path: Path) -> None:
    """The blue of CAI becomes lighter there, like that of the distance on a light page."""
    page = write_benchmark_page(write_benchmark(tmp_path, units_of("nudge")))
    colours = (
        "document.getElementById('plot-amount-0').data.filter(one => one.mode != 'lines').map(one => one.line.color)"
    )
    with chromium() as browser:
        for scheme in ("light", "dark"):
            view = browser.new_page(color_scheme=scheme)
            view.goto(page.as_uri())
            view.wait_for_selector("#plot-amount-0 .main-svg")
            assert len(set(view.evaluate(colours))) == 2, scheme
