"""`butfor benchmark`: the table and page at the end, and errors."""

from pathlib import Path
from typing import Any

import pytest
from support.benchmarks import NUDGE, unit
from support.command_line import Butfor, assert_error

from butfor.benchmarks import environments, run


@pytest.fixture(autouse=True)
def one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "TASKS", {"nudge": NUDGE})


def test_table_goals_and_page(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measure(request: Any) -> dict[str, Any]:
        found = unit(auc=0.961 + 0.01 * request.seed)
        return {name: value for name, value in found.items() if name not in ("task", "size", "seed")}

    monkeypatch.setattr(run, "_measure_apart", measure)
    command = ("benchmark", "defaults", "--sizes", "500", "15000", "--seeds", "2", "--out", "found")
    code, out, err = butfor_command(*command)
    assert code == 0, err
    assert "transitions: 31000 of 31000" in err
    line = next(line for line in out.splitlines() if line.split()[:1] == ["15,000"])
    assert line.split() == ["15,000", "0.966", "0.900", "0.950", "0.900", "10%", "80%", "10", "2/2"]
    assert "Goal not met: AUC is at least 0.97" in out
    assert "nudge (AUC 0.966, AP 0.950)" in out
    assert (tmp_path / "found" / "index.html").is_file()
    code, again, _ = butfor_command(*command)
    assert (code, again) == (0, out)


def test_errors(butfor_command: Butfor, tmp_path: Path) -> None:
    assert_error(butfor_command("benchmark", "defaults", "--tasks", "frob"), "frob", "nudge")
    (tmp_path / "mine").write_text("a file")
    assert_error(butfor_command("benchmark", "defaults", "--out", "mine"), "mine")
    assert_error(butfor_command("benchmark", "defaults", "--sizes", "0"), "0")
    assert butfor_command("benchmark", "speed")[0] == 2


def test_detectors_of_edges_have_a_table_and_a_page(butfor_command: Butfor, tmp_path: Path) -> None:
    options = ("--tasks", "pucks", "--sizes", "300", "--seeds", "2", "--states", "900", "--out", "found")
    code, out, err = butfor_command("benchmark", "influence", *options, "--detectors", "moved", "distance")
    assert code == 0, err
    rows = [line.split() for line in out.splitlines() if line.startswith("pucks")]
    assert [row[2] for row in rows] == ["distance", "moved"]  # the better one first
    assert {row[-1] for row in rows} == {"2"}
    page = (tmp_path / "found" / "index.html").read_text()
    assert f"<b>{rows[0][3]}</b>" in page
    assert "900" in (tmp_path / "found" / "results.jsonl").read_text()
