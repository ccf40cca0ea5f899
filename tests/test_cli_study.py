"""The command `butfor study` where something is amiss: it goes on with the rest, and says what to do about it."""

import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from small_training import small

from butfor import cli
from butfor.study import STUDIES, Arm, Study, make_study, write_study
from butfor.units import unit_name

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
    sentence = "Error: file/studies cannot be written: .*file takes no files .Not a directory.; give another place"
    code, _, err = tell("run", "tiny", "--root", "file")
    assert code == 1
    assert re.match(sentence, err)
    write_study(make_study("tiny"), tmp_path / "studies", "paper")
    (tmp_path / "studies" / "reports").write_text("precious")
    code, _, err = tell("report", "tiny")
    assert code == 1
    assert re.match("Error: studies/reports/tiny.html cannot be written: .*; give another place", err)


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
