"""Pages are complete or absent, and show nested settings as rows."""

from pathlib import Path

import pytest
from support.detection_runs import write_run

from butfor.reporting.page import flatten
from butfor.reporting.study_page import write_report


def test_nested_settings_become_dotted_rows() -> None:
    nested = {"a": 1, "b": {"c": [1, 2], "d": {"e": None}}, "f": [{"g": "x"}, {"g": True}], "h": {}}
    expected = [("a", "1"), ("b.c", "[1, 2]"), ("b.d.e", "–"), ("f.0.g", "x"), ("f.1.g", "true")]
    assert flatten(nested) == expected
    (_, text), *_ = flatten({"long": "x" * 1000})
    assert len(text) < 310


def test_a_failed_write_keeps_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", episodes=6)
    (run / "report.html").write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(run)
    assert (run / "report.html").read_text() == "old"
    assert not list(run.glob(".report*"))
