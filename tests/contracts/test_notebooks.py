"""The notebooks of the docs run, and contain the outputs that the docs show."""

import json
from pathlib import Path

import pytest
from run_notebook import plain_text, run_cells
from support.project import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks_for_own_data_and_for_an_agent() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own-data", "sb3-agent"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_its_outputs_and_is_small(path: Path) -> None:
    assert path.stat().st_size < 300_000
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) - 1
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])
    page = ROOT / "docs" / f"notebook-{path.stem}.md"
    assert f"<!-- notebook notebooks/{path.name} -->" in page.read_text(encoding="utf-8")


def test_cells_share_names_and_show_their_last_value() -> None:
    cells = [
        {"cell_type": "code", "source": ["a = 2\n", "print(a)"]},
        {"cell_type": "markdown", "source": ["text"]},
        {"cell_type": "code", "source": ["a + 1"]},
    ]
    first, second = run_cells({"cells": cells}, plain_text)
    assert first[0]["text"] == ["2\n"]
    assert second[0]["data"] == {"text/plain": ["3"]}


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem == "sb3-agent":
        pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    outputs = run_cells(notebook, plain_text)
    kept = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [len(found) for found in outputs] == [len(found) for found in kept]
