"""`butfor report`: pages and figures of both kinds of run."""

import os
from pathlib import Path

import pytest
from support.command_line import Butfor, Result, assert_error


@pytest.mark.parametrize(("folder", "words"), [("nowhere", "nowhere"), (".", "config.json")])
def test_a_report_of_no_run(butfor_command: Butfor, folder: str, words: str) -> None:
    assert_error(butfor_command("report", folder), words)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder nobody can write to")
def test_a_report_where_nothing_can_be_written(butfor_command: Butfor) -> None:
    assert_error(butfor_command("report", "/proc"), "/proc/report.html")


def test_the_report_can_be_written_again(whole_run: tuple[Path, Result, Result], butfor_command: Butfor) -> None:
    folder = whole_run[0]
    (folder / "report.html").unlink()
    page = folder / "report.html"
    shown = f"Report: {page}\nNext: open {page} in a browser\n"
    assert butfor_command("report", str(folder)) == (0, shown, "")
    assert page.stat().st_size > 1000


@pytest.mark.parametrize("kind", ["detection", "training"])
def test_the_report_and_its_figures_can_be_written_elsewhere(
    kind: str, whole_run: tuple[Path, Result, Result], tiny_run: Path, butfor_command: Butfor, tmp_path: Path
) -> None:
    folder = whole_run[0] if kind == "detection" else tiny_run
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, out, _ = butfor_command("report", str(folder), "--figures", "--out", "new/page.html")
    page, figures = Path("new/page.html"), Path("new/page-figures")
    assert (code, out) == (0, f"Report: {page}\nFigures: {figures}\nNext: open {page} in a browser\n")
    assert (tmp_path / page).stat().st_size > 1000
    assert {path.suffix for path in (tmp_path / figures).iterdir()} == {".svg", ".png"}
    assert_error(butfor_command("report", str(folder), "--out", "page"), "page", ".html")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
