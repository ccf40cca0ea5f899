"""What the command line shows of a training run: a short table, where the time went, progress without a terminal."""

import io
import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import rich.console

from butfor.cli import console
from butfor.cli.console import live_progress, print_training


def summary(folder: Path, episodes: list[int], seeds: list[int], seconds: dict[str, float] | None = None) -> Path:
    """A run folder whose success at episode e is e / 1000, with a deviation of 0.125."""
    success = {"mean": [episode / 1000 for episode in episodes], "std": [0.125] * len(episodes)}
    played = episodes[-1] if episodes else 7
    content = {"env": "slide", "seeds": seeds, "played": played, "episodes": episodes, "success": success}
    content["finished"] = True
    (folder / "summary.json").write_text(json.dumps(content | {"seconds": seconds or {}}))
    return folder


def table(text: str) -> list[list[str]]:
    """The words of the lines that begin with a number."""
    return [words for line in text.splitlines() if (words := line.split()) and words[0].isdigit()]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_the_table_shows_every_evaluation_of_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_training(summary(tmp_path, [200, 400, 500], [0, 1]))
    out = capsys.readouterr().out
    assert "slide, 2 seeds, after 500 episodes" in out
    assert table(out) == [["200", "0.200", "0.125"], ["400", "0.400", "0.125"], ["500", "0.500", "0.125"]]


def test_a_fact_about_an_environment_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"object: columns [3], 4 of {'the observation ' * 20}"
    with live_progress() as progress:
        progress("environment", 1, 1, words)
    assert capsys.readouterr().err == f"environment: {words}\n"


@pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 32, 33, 100])
def test_a_long_run_is_shown_in_at_most_16_lines_with_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    print_training(summary(tmp_path, list(range(1, count + 1)), [0]))
    episodes = [int(row[0]) for row in table(capsys.readouterr().out)]
    assert len(episodes) <= 16
    assert episodes[-1] == count
    steps = {after - before for before, after in pairwise(episodes)}
    assert steps <= {-(-count // 16)}
    assert count > 16 or len(episodes) == count


def test_one_seed_has_no_deviation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_training(summary(tmp_path, [200], [5]))
    out = capsys.readouterr().out
    assert "1 seed," in out
    assert table(out) == [["200", "0.200"]]


def test_a_run_that_was_never_evaluated_has_an_empty_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_training(summary(tmp_path, [], [0]))
    out = capsys.readouterr().out
    assert "after 7 episodes" in out
    assert table(out) == []


def test_the_times_of_learning_and_of_each_kind_of_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {"simulation": 6.04, "updates": 3.0, "scoring": 0.01, "evaluation": 2.5, "total": 12.0}
    print_training(summary(tmp_path, [200], [0], seconds))
    first, second = capsys.readouterr().out.splitlines()[-1].split("; ")
    assert first == "9.5 s without evaluation and start-up"
    assert second == "seconds by kind: simulation 6.0, updates 3.0, evaluation 2.5, total 12.0"


def test_each_stage_has_its_own_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two that report in turn do not silence each other; without words there is no comma for them."""
    now = 100.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)  # type: ignore[attr-defined]
    with live_progress() as progress:
        for passed in (0, 5, 11):
            now = 100.0 + passed
            progress("units", 0, 2, "")
            progress("episodes", 20 + passed, 120, "of each seed")
    said = ["units: 0 of 2", "episodes: 20 of 120, of each seed", "units: 0 of 2"]
    assert capsys.readouterr().err.splitlines() == [*said, "episodes: 31 of 120, of each seed, 89 s left"]


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the first call, then every ten seconds and at the end of a stage, with the time left at the pace so far."""
    now = 100.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)  # type: ignore[attr-defined]
    with live_progress() as progress:
        said: dict[float, Any] = {}
        for passed, done in ((0, 20), (5, 25), (11, 31), (15, 35), (22, 42), (30, 120)):
            now = 100.0 + passed
            progress("episodes", done, 120, f"success {done / 120:.2f}")
            said[passed] = capsys.readouterr()
        now = 131.0
        progress("episodes", 30, 60, "again")  # the stage starts again, and so does its pace
        assert capsys.readouterr().err == ""
        now = 142.0
        progress("episodes", 41, 60, "again")
        assert capsys.readouterr().err == "episodes: 41 of 60, again, 19 s left\n"
    assert all(each.out == "" for each in said.values())
    assert said[0].err == "episodes: 20 of 120, success 0.17\n"
    assert said[5].err == said[15].err == ""
    assert said[11].err == "episodes: 31 of 120, success 0.26, 89 s left\n"  # 11 in 11 seconds, 89 to go
    assert said[22].err == "episodes: 42 of 120, success 0.35, 78 s left\n"
    assert said[30].err == "episodes: 120 of 120, success 1.00, 0 s left\n"


def test_progress_on_a_terminal_shows_every_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with live_progress() as progress:
        progress("test data", 0, 10, "random")
        progress("test data", 10, 10, "scripted")
        progress("fit CAI", 3, 30, "error 1.00e-02, best epochs [20, 20]")
    out, err = capsys.readouterr()
    assert out == ""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err)
    for words in ("test data", "10/10", "scripted", "fit CAI", "3/30", "[20, 20]"):
        assert words in plain


def test_counts_and_times_stay_visible_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()

    def terminal(**options: Any) -> rich.console.Console:
        return Console(file=shown, force_terminal=True, width=80, color_system=None)

    Console = rich.console.Console
    monkeypatch.setattr(rich.console, "Console", terminal)
    with live_progress() as show:
        show("a steeper network", 1200, 3000, f"success 0.45 ± 0.10, {'and more ' * 20}")
    lines = [line for line in re.split(r"[\r\n]|\x1b\[[^A-Za-z]*[A-Za-z]", shown.getvalue()) if "network" in line]
    assert "1200/3000" in lines[-1]
    for line in lines:
        assert len(line) <= 80
        assert "a steeper network" in line
        assert "/3000" in line
        assert re.search(r"\d:\d\d:\d\d", line)
        assert "…" in line


def test_sentences_in_a_terminal_end_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "influence " * 30
    console.say(words)
    assert len(capsys.readouterr().out.splitlines()) == 1  # a file or a pipe gets the whole line
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.say(words, "  ")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert set(" ".join(lines).split()) == {"influence"}
    assert max(map(len, lines)) < 80
