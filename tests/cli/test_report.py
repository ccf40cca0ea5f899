"""`butfor report` and `butfor compare`: pages and figures of both kinds of run, and several runs beside each other."""

import os
from pathlib import Path

import pytest
from support.command_line import Butfor, Result, assert_error
from support.study_runs import FLAT, RAMP, add_phases, write_detection, write_training


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


def test_runs_are_compared_in_a_table_and_on_a_page(butfor_command: Butfor, tmp_path: Path) -> None:
    slow = write_training(tmp_path / "runs" / "slow", [FLAT] * 3)
    add_phases(write_training(tmp_path / "runs" / "fast", [RAMP] * 3, note="new"))
    code, out, _ = butfor_command("compare", "slow", "runs/fast")
    assert code == 0
    phases = next(line.split() for line in out.splitlines() if "-8.2" in line)  # slow, of before, has no such row
    assert phases == [
        "fast", "11", "(50%)", ">", "500", "(0%)", "2,001", "(25%)", "-8.2", "/", "-12.5", "15%", "/", "90%",
    ]  # fmt: skip
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["fast"])
    assert row[1:4] == ["1.00", "±", "0.00"]
    assert "300" in row  # episodes to 60 %
    assert any(line.split() == ["note", "new"] for line in out.splitlines())
    page = (tmp_path / "runs" / "comparison.html").read_text(encoding="utf-8")
    assert "Settings that differ" in page
    assert "How far the training episodes get" in page
    assert_error(butfor_command("compare", str(slow)), "2 runs", "1")
    assert_error(butfor_command("compare", str(slow), str(slow)), "slow")
    assert_error(butfor_command("compare", "slow", "fast", "--out", "page.txt"), "page.txt")


def test_only_training_runs_are_compared(butfor_command: Butfor, tmp_path: Path) -> None:
    write_training(tmp_path / "one", [RAMP])
    write_detection(tmp_path / "two")
    assert_error(butfor_command("compare", "one", "two"), "two", "detection")


def test_a_training_report_with_a_baseline(butfor_command: Butfor, tmp_path: Path) -> None:
    write_training(tmp_path / "fast", [RAMP] * 3)
    write_training(tmp_path / "slow", [FLAT] * 3, note="old")
    code, out, _ = butfor_command("report", "fast", "--baseline", "slow")
    assert code == 0, out
    page = (tmp_path / "fast" / "report.html").read_text(encoding="utf-8")
    sentence = " ".join(page.partition('class="question">')[2].partition("</p>")[0].replace("&nbsp;", " ").split())
    assert "100 %" in sentence
    assert "slow: 10 %" in sentence
    missing = page.partition('class="missing"')[2].partition("</div>")[0]
    for name in ("fast", "slow"):  # each of the two runs, and each once
        assert missing.count(f"<b>{name}</b> has only 3 seeds") == 1
    write_detection(tmp_path / "other")
    assert_error(butfor_command("report", "other", "--baseline", "slow"), "other", "--baseline")
