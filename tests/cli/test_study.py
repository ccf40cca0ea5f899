"""The command `butfor study` where something is amiss: it goes on with the rest, and says what to do about it."""

import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_training import results, small

from butfor import cli
from butfor.detection import experiment as detection
from butfor.detection.settings import detection_preset
from butfor.runs.folder import open_run
from butfor.studies import units
from butfor.studies.paper import STUDIES, Arm, Study, make_study, write_study
from butfor.studies.units import run_unit, unit_name, unit_state
from butfor.training import loop as train_library

torch.set_num_threads(1)
TINY = Study("tiny", "A tiny study", "What it is about.", (Arm("one", small()), Arm("two", small(seeds=2))))

Result = tuple[int, str, str]
Tell = Callable[..., Result]


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Tell]:
    """Runs `butfor study` in an empty folder, where there is a tiny study too: exit code, stdout, stderr."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(STUDIES, "tiny", lambda: TINY)

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["butfor", "study", *arguments])
        code, said = 0, ""
        try:
            cli.main()
        except SystemExit as ended:
            code, said = 1, str(ended.code)
        out, err = capsys.readouterr()
        return code, out, f"{err}{said}\n"

    yield run
    signal.signal(signal.SIGTERM, handler)


def folder_of(place: int) -> Path:
    """The run folder of an arm of the tiny study."""
    return Path("studies") / unit_name(TINY.arms[place].config)


def test_a_file_in_the_way_of_a_study_or_its_pages_is_told_in_a_sentence(tell: Tell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    code, _, err = tell("run", "tiny", "--root", "file")
    assert code == 1
    assert re.match("Error: file/studies .*Not a directory", err)
    write_study(make_study("tiny"), tmp_path / "studies", "paper")
    (tmp_path / "studies" / "reports").write_text("precious")
    code, _, err = tell("report", "tiny")
    assert code == 1
    assert re.match("Error: studies/reports/index.html ", err)


def test_an_option_of_a_study_that_is_given_twice_is_refused(tell: Tell, tmp_path: Path) -> None:
    code, _, err = tell("run", "tiny", "--arms", "one", "--arms", "two")
    assert (code, err) == (1, "Error: --arms is given 2 times; give it once, with all its values.\n")
    assert list(tmp_path.iterdir()) == []


def test_after_a_time_limit_nothing_is_called_done_that_is_not(tell: Tell, tmp_path: Path) -> None:
    code, out, err = tell("run", "tiny", "--time-limit", "0", "--device", "cpu")
    assert code == 0
    assert "units: 2 of 2" not in err
    assert "done" not in err
    assert "2 runs are not finished yet; the same command goes on where it was cut off." in out
    assert out.count("begun, 4 of 10 episodes") == 2
    page = (tmp_path / "studies" / "reports" / "tiny.html").read_text(encoding="utf-8")
    assert page.count("has begun and has no evaluation yet (4 of 10 episodes)") == 2
    assert "not finished yet" not in tell("run", "tiny", "--device", "cpu")[1]


def test_a_damaged_run_hides_no_other_and_says_what_to_do(tell: Tell) -> None:
    """A summary comes back from the checkpoint; settings do not, and the sentence names what to delete."""
    assert tell("run", "tiny", "--device", "cpu")[0] == 0
    first, second = (folder_of(place) for place in range(2))
    before = results(first)
    (first / "summary.json").write_text('{"fin')
    code, out, _ = tell("status", "tiny")
    assert code == 0
    assert f"begun  {first}" in out
    assert f"{first}/summary.json is damaged; butfor study run writes it anew from the checkpoint." in out
    assert f"finished, 10 of 10 episodes  {second}" in out
    code, out, _ = tell("run", "tiny", "--device", "cpu")
    assert code == 0
    assert out.count("finished, 10 of 10 episodes") == 2
    assert results(first) == before
    (second / "config.json").write_text("x")
    code, out, err = tell("status", "tiny")
    assert code == 1
    assert f"finished, 10 of 10 episodes  {first}" in out
    assert f"{second}/config.json is not valid JSON" in out
    assert f"Delete {second} to run it anew." in out
    assert "1 run cannot be read; above is what to do." in err
    (first / "summary.json").unlink()
    code, _, err = tell("run", "tiny", "--device", "cpu")
    assert code == 1
    assert f"Delete {second} to run it anew." in err
    assert (first / "summary.json").is_file()  # the other was gone on with
    shutil.rmtree(second)
    assert tell("run", "tiny", "--device", "cpu")[0] == 0


@pytest.mark.parametrize("kind", ["training", "detection"])
def test_a_damaged_summary_without_a_checkpoint_is_not_guessed(tmp_path: Path, kind: str) -> None:
    config = small() if kind == "training" else detection_preset("slide")
    folder = open_run(tmp_path / unit_name(config), kind, config)
    for text in ("", "[1]", '{"played": null}'):
        (folder / "summary.json").write_text(text)
        state = unit_state(config, tmp_path)
        assert state.state == "broken"
        wanted = folder if kind == "training" else folder / "summary.json"
        assert f"Delete {wanted} to run it anew." in state.words
        with pytest.raises(ValueError, match="to run it anew"):
            run_unit(config, tmp_path)


def test_a_run_that_fails_keeps_no_other_from_table_page_and_heat_map(
    tell: Tell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scored = small(use=("priority",))
    wrong = replace(small(), priority=replace(small().priority, kind="ebp"))  # needs positions; slide has none
    drawn = replace(TINY, name="heatmaps", arms=(Arm("right", scored), Arm("wrong", wrong), Arm("no scores", small())))
    monkeypatch.setitem(STUDIES, "heatmaps", lambda: drawn)
    code, out, err = tell("run", "heatmaps", "--device", "cpu")
    assert code == 1
    assert "finished, 10 of 10 episodes" in out
    assert "Report: studies/reports/heatmaps.html" in out
    assert (tmp_path / "studies" / unit_name(scored) / "heatmap.npz").is_file()
    assert (tmp_path / "studies" / "reports" / "index.html").is_file()
    assert "Error: 1 unit(s) failed, the others are kept: " in err
    assert "trained without influence, so there are no scores to draw." in err


def test_a_damaged_record_keeps_no_other_study_from_its_page(tell: Tell, tmp_path: Path) -> None:
    root = tmp_path / "studies"
    for name in ("tiny", "table1"):
        write_study(make_study(name), root, "paper")
    (root / "studies" / "combined.json").write_text('{"sch')
    sentence = "studies/studies/combined.json cannot be read"
    for names, pages in (((), {"table1", "tiny", "index"}), (("tiny",), {"tiny", "index"})):
        code, _, err = tell("report", *names)
        assert code == 1
        assert err.count(sentence) == 1
        assert err.rstrip().endswith("The other studies are in studies/reports/index.html.")
        assert {path.stem for path in (root / "reports").iterdir()} == pages
        index = (root / "reports" / "index.html").read_text(encoding="utf-8")
        assert sentence in index
        assert "A tiny study" in index
        shutil.rmtree(root / "reports")


def test_runs_of_other_settings_leave_the_page_not_without_a_word(tell: Tell, tmp_path: Path) -> None:
    """And the command that it names brings that page back without running anything."""
    first = ("run", "tiny", "--device", "cpu")
    assert "leave the page" not in tell(*first)[1]
    page = tmp_path / "studies" / "reports" / "tiny.html"
    out = tell(*first, "--episodes", "12", "--time-limit", "0")[1]
    told = "studies/studies/tiny.json named runs of other settings: one, two. They stay in studies and leave the page; "
    assert out.startswith(told)
    again = "butfor study run tiny --device cpu (what is finished is skipped)"
    assert f"to have it again: {again}; to keep both, give another --root." in out
    assert "0 of 2 arms finished" in page.read_text(encoding="utf-8")
    err = tell(*first)[2]
    assert "episodes: " not in err
    assert "2 of 2 arms finished" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["study run tiny", "train slide", "detect slide"])
def test_a_gpu_without_enough_memory_is_told_with_what_to_give_less_of(
    tell: Tell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    def fail(*given: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 TiB.")

    for module in (units, train_library):
        monkeypatch.setattr(module, "train", fail)
    monkeypatch.setattr(detection, "run_detection", fail)
    monkeypatch.setattr(sys, "argv", ["butfor", *command.split(), "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = f"CUDA out of memory. Tried to allocate 3 TiB. {units.FEWER}"
    assert str(ended.value.code).count(told) == (2 if command.startswith("study") else 1)
    assert "--seeds" in units.FEWER


@pytest.mark.parametrize("command", ["score a.npz --out b.npz", "evaluate run"])
def test_commands_without_seeds_are_not_told_to_give_fewer(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def fail(*given: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 TiB.")

    monkeypatch.setattr("butfor.datasets.score.score_file", fail)
    monkeypatch.setattr("butfor.training.evaluation.evaluate_run", fail)
    monkeypatch.setattr(sys, "argv", ["butfor", *command.split(), "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = "Give fewer rows or episodes, or take --device cpu."
    assert ended.value.code == f"Error: CUDA out of memory. Tried to allocate 3 TiB. {told}"


def test_single_arms_of_a_study_are_run_by_label(tell: Tell) -> None:
    code, out, err = tell("run", "tiny", "--arms", "two")
    assert (code, folder_of(0).exists(), folder_of(1).is_dir()) == (0, False, True), err
    assert re.search(r"^  two +finished", out, re.M)
    assert not re.search(r"^  one ", out, re.M)
    assert re.search(r"^  one +absent", tell("status", "tiny")[1], re.M)
    assert "one" in Path("studies/studies/tiny.json").read_text()  # the page is that of the whole study
    code, _, err = tell("run", "tiny", "--arms", "two", "three")
    assert (code, "--arms names 'three'; the arms are 'one', 'two'." in err) == (1, True)
    assert "--arms is for butfor study run and status" in tell("report", "--arms", "two")[2]
