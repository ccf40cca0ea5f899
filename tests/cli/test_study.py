"""`butfor study`: what its commands ask for, and how they deal with runs that fail or are damaged."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import Butfor, Result, assert_error
from support.small_training import results, small

from butfor.detection.settings import detection_preset
from butfor.runs.folder import open_run
from butfor.studies import units
from butfor.studies.paper import STUDIES, Study, make_study, write_study
from butfor.studies.units import run_unit, unit_name, unit_state

torch.set_num_threads(1)
TINY = Study("tiny", "A tiny study", "What it is about.", {"one": small(), "two": small(seeds=2)})


@pytest.fixture
def run_study(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> Butfor:
    """`butfor study` in an empty folder, with one more study, which is tiny."""
    monkeypatch.setitem(STUDIES, "tiny", TINY)
    return lambda *arguments: butfor_command("study", *arguments)


def folder_of(place: int) -> Path:
    """The run folder of an arm of the tiny study."""
    return Path("studies") / unit_name(list(TINY.arms.values())[place])


def test_a_file_in_place_of_a_folder_is_an_error(run_study: Butfor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    assert_error(run_study("run", "tiny", "--root", "file"), "file/studies")
    write_study(make_study("tiny"), tmp_path / "studies", "paper")
    (tmp_path / "studies" / "reports").write_text("precious")
    assert_error(run_study("report", "tiny"), "studies/reports/index.html")


def test_an_option_of_a_study_that_is_given_twice_is_refused(run_study: Butfor, tmp_path: Path) -> None:
    assert_error(run_study("run", "tiny", "--arms", "one", "--arms", "two"), "--arms", "2 times")
    assert list(tmp_path.iterdir()) == []


def test_after_a_time_limit_nothing_is_called_done_that_is_not(run_study: Butfor, tmp_path: Path) -> None:
    code, out, err = run_study("run", "tiny", "--time-limit", "0", "--device", "cpu")
    assert code == 0
    assert "units: 2 of 2" not in err
    assert "done" not in err
    assert "not finished: 2" in out
    assert out.count("begun, 4 of 10 episodes") == 2
    page = (tmp_path / "studies" / "reports" / "tiny.html").read_text(encoding="utf-8")
    assert page.count("(4 of 10 episodes)") == 2
    assert "not finished" not in run_study("run", "tiny", "--device", "cpu")[1]


def test_a_damaged_run_hides_no_other(run_study: Butfor) -> None:
    """A summary comes back from the checkpoint; settings do not, and the sentence names what to delete."""
    assert run_study("run", "tiny", "--device", "cpu")[0] == 0
    first, second = (folder_of(place) for place in range(2))
    before = results(first)
    (first / "summary.json").write_text('{"fin')
    code, out, _ = run_study("status", "tiny")
    assert code == 0
    assert f"begun  {first}" in out
    assert f"{first}/summary.json" in out
    assert f"finished, 10 of 10 episodes  {second}" in out
    code, out, _ = run_study("run", "tiny", "--device", "cpu")
    assert code == 0
    assert out.count("finished, 10 of 10 episodes") == 2
    assert results(first) == before
    (second / "config.json").write_text("x")
    code, out, err = run_study("status", "tiny")
    assert code == 1
    assert f"finished, 10 of 10 episodes  {first}" in out
    assert f"{second}/config.json" in out
    assert f"Delete {second}" in out
    assert "runs: 1" in err
    (first / "summary.json").unlink()
    code, _, err = run_study("run", "tiny", "--device", "cpu")
    assert code == 1
    assert f"Delete {second}" in err
    assert (first / "summary.json").is_file()  # the other was resumed
    shutil.rmtree(second)
    assert run_study("run", "tiny", "--device", "cpu")[0] == 0


@pytest.mark.parametrize("kind", ["training", "detection"])
def test_a_damaged_summary_without_a_checkpoint_is_not_guessed(tmp_path: Path, kind: str) -> None:
    config = small() if kind == "training" else detection_preset("slide")
    folder = open_run(tmp_path / unit_name(config), kind, config)
    for text in ("", "[1]", '{"played": null}'):
        (folder / "summary.json").write_text(text)
        state = unit_state(config, tmp_path)
        assert state.state == "broken"
        wanted = folder if kind == "training" else folder / "summary.json"
        assert f"Delete {wanted}" in state.words
        with pytest.raises(ValueError, match="Delete"):
            run_unit(config, tmp_path)


def test_a_run_that_fails_keeps_no_other_from_table_page_and_heat_map(
    run_study: Butfor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scored = small(use=("priority",))
    wrong = replace(small(), priority=replace(small().priority, kind="ebp"))  # needs positions; slide has none
    drawn = replace(TINY, name="heatmaps", arms={"right": scored, "wrong": wrong, "no scores": small()})
    monkeypatch.setitem(STUDIES, "heatmaps", drawn)
    code, out, err = run_study("run", "heatmaps", "--device", "cpu")
    assert code == 1
    assert "finished, 10 of 10 episodes" in out
    assert "Report: studies/reports/heatmaps.html" in out
    assert (tmp_path / "studies" / unit_name(scored) / "heatmap.npz").is_file()
    assert (tmp_path / "studies" / "reports" / "index.html").is_file()
    assert f"{unit_name(wrong)}" in err
    assert f"{unit_name(small())}" in err


def test_a_damaged_record_keeps_no_other_study_from_its_page(run_study: Butfor, tmp_path: Path) -> None:
    root = tmp_path / "studies"
    for name in ("tiny", "table1"):
        write_study(make_study(name), root, "paper")
    (root / "studies" / "combined.json").write_text('{"sch')
    damaged = "studies/studies/combined.json"
    for names, pages in (((), {"table1", "tiny", "index"}), (("tiny",), {"tiny", "index"})):
        code, _, err = run_study("report", *names)
        assert code == 1
        assert err.count(damaged) == 1
        assert "studies/reports/index.html" in err
        assert {path.stem for path in (root / "reports").iterdir()} == pages
        index = (root / "reports" / "index.html").read_text(encoding="utf-8")
        assert damaged in index
        assert "A tiny study" in index
        shutil.rmtree(root / "reports")


def test_runs_with_other_settings_that_leave_the_page_are_named(run_study: Butfor, tmp_path: Path) -> None:
    """The printed command brings that page back without running anything."""
    first = ("run", "tiny", "--device", "cpu")
    assert "other settings" not in run_study(*first)[1]
    page = tmp_path / "studies" / "reports" / "tiny.html"
    out = run_study(*first, "--episodes", "12", "--time-limit", "0")[1]
    assert re.match(r"studies/studies/tiny.json .*: one, two.*\n.*: butfor study run tiny --device cpu ", out)
    assert "0 of 2 arms finished" in page.read_text(encoding="utf-8")
    err = run_study(*first)[2]
    assert "episodes: " not in err
    assert "2 of 2 arms finished" in page.read_text(encoding="utf-8")


def test_a_study_that_runs_out_of_gpu_memory(run_study: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 TiB.")

    monkeypatch.setattr(units, "train", fail)
    code, _, err = run_study("run", "tiny", "--device", "cpu")
    assert (code, err.count("3 TiB"), err.count(units.FEWER)) == (1, 2, 2)


def test_single_arms_of_a_study_are_run_by_label(run_study: Butfor) -> None:
    code, out, err = run_study("run", "tiny", "--arms", "two")
    assert (code, folder_of(0).exists(), folder_of(1).is_dir()) == (0, False, True), err
    assert re.search(r"^  two +finished", out, re.M)
    assert not re.search(r"^  one ", out, re.M)
    assert re.search(r"^  one +absent", run_study("status", "tiny")[1], re.M)
    assert "one" in Path("studies/studies/tiny.json").read_text()  # the page is that of the whole study
    assert_error(run_study("run", "tiny", "--arms", "two", "three"), "--arms", "'three'", "'one', 'two'")
    assert run_study("report", "--arms", "two")[0] == 2  # it has no such option


def test_study_list_has_a_line_for_each(butfor_command: Butfor) -> None:
    code, out, err = butfor_command("study", "list")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == [*STUDIES, "Next:"]


@pytest.mark.parametrize(("options", "processes"), [([], 1), (["--processes", "3"], 3)])
def test_study_run_asks_for_its_runs_and_prints_how_far_they_are(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, options: list[str], processes: int
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(units, "run_here", lambda *given: asked.append(given))
    size = ["--size", "small", "--seeds", "2", "--episodes", "300"]
    code, out, _ = butfor_command("study", "run", "partial-rescoring", *size, "--device", "cpu", *options)
    assert code == 0
    configs = list(make_study("partial-rescoring", "small", seeds=2, episodes=300).arms.values())
    assert asked[0][:4] == (configs, Path("studies"), ["cpu"] * processes, None)
    assert "Rescoring in part" in out
    assert "Report: studies/reports/partial-rescoring-small.html" in out
    code, again, _ = butfor_command("study", "status", "partial-rescoring", *size)
    assert code == 0
    assert again.partition("Next:")[0].strip() in out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run"], ["combined"]),
        (["status"], ["combined"]),
        (["run", "combine"], ["combine"]),
        (["run", "combined", "--processes", "0"], ["--processes is 0"]),
        (["run", "combined", "--processes", "2", "--ray"], ["--processes is 2"]),
        (["run", "combined", "--ray-address", "auto", "--device", "cuda"], ["--gpus"]),
        (["run", "combined", "--cpus", "2"], ["--cpus", "--ray"]),
        (["run", "combined", "--time-limit", "-1"], ["-1"]),
        (["report", "--root", "nothing"], ["nothing"]),
    ],
)
def test_a_mistake_in_a_study_is_one_sentence(butfor_command: Butfor, arguments: list[str], parts: list[str]) -> None:
    assert_error(butfor_command("study", *arguments), *parts)


@pytest.mark.parametrize("action", ["report", "films"])
def test_pages_of_a_study_that_was_not_run_name_the_right_command(
    butfor_command: Butfor, tmp_path: Path, action: str
) -> None:
    def write(*arguments: str) -> Result:
        return butfor_command("study", action, *arguments, "--root", "st")

    write_study(make_study("heatmaps", "small"), tmp_path / "st", "small")
    write_study(make_study("table1"), tmp_path / "st", "paper")
    assert_error(write("heatmap"), "heatmap ", "heatmaps-small", "table1")
    assert_error(write("heatmaps", "table1"), "heatmaps ", "heatmaps-small", "butfor study run ")
