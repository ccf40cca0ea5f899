"""`butfor demo`: what it prints and where it writes."""

from pathlib import Path
from typing import Any

import pytest
from support.command_line import Butfor, assert_error

from butfor.datasets import demo

SUMMARY: dict[str, Any] = {
    "influenced": 0.52,
    "states": 2400,
    "detectors": [{"title": "CAI", "auc": 0.9, "ap": 0.8, "f1": 0.7}],
    "decisions": {"rate": 0.05, "called": 1201, "false": 0.016, "found": 0.95},
    "diagnosis": {"cube": {"verdict": "1 problem found: trust the order of the scores, not their size"}},
    "problems": ["The variance is too small."],
    "notes": ["Trust the order."],
    "film": False,
}


def test_a_table_the_decisions_and_the_verdict(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def stand_in(*arguments: Any) -> dict[str, Any]:
        asked.append(arguments)
        return SUMMARY

    monkeypatch.setattr(demo, "run_demo", stand_in)
    code, out, _ = butfor_command("demo", "--out", "here", "--device", "cpu")
    assert code == 0
    assert asked[0][:3] == (Path("here"), True, "cpu")
    assert "1 problem found: trust the order of the scores, not their size." in " ".join(out.split())
    for words in ("0.900", "1,201", "1.6%", "95%", "butfor[fetch]", "here/report.html"):
        assert words in out
    assert all(sentence in out for key in ("problems", "notes") for sentence in SUMMARY[key])
    assert max(map(len, out.splitlines()[:-1])) <= 80  # the last line is a command


def test_a_folder_that_cannot_be_written(butfor_command: Butfor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_error(butfor_command("demo", "--out", "file"), "file")
