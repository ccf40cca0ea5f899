"""What is printed, and shown in a notebook, of models, diagnoses, decisions and episodes; progress of a fit."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.linear_models import UNIT, linear_model

from butfor.influence.decisions import Calibration, Decisions
from butfor.influence.display import fit_progress
from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig
from butfor.models.tables import Units
from butfor.rollouts.episodes import Episodes


def moved(name: str = "cube") -> Influence:
    units = Units.raw(UNIT, {name: [0]}, [1.0], 2)
    return Influence(linear_model([1.0], 0.5, 2), units, ScoreConfig())


def held_out(rows: int, gain: float = 1.0) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    obs, action = random.normal(size=(rows, 2)), random.uniform(-1, 1, (rows, 1))
    return obs, action, obs + gain * action + 0.5 * random.normal(size=obs.shape)


def test_an_influence_says_what_it_is_about() -> None:
    influence = moved()
    assert "cube" in repr(influence)
    assert "not calibrated" in repr(influence)
    influence.calibrate(free_obs=np.zeros((300, 2)))
    assert "300" in repr(influence)
    assert len(repr(influence).splitlines()) < 10
    assert influence._repr_html_().count("<tr>") == len(repr(influence).splitlines()) - 1


def test_a_diagnosis_is_a_verdict_and_a_small_table() -> None:
    found = moved().diagnose(*held_out(2000))
    text = repr(found)
    assert text.splitlines()[0] == "cube: no problem found"
    assert "2,000" in text
    assert len(text.splitlines()) < 12
    assert max(map(len, text.splitlines())) <= 80
    wrong = moved().diagnose(*held_out(2000, gain=0.0))
    assert not wrong["cube"].trusted
    assert "found" in repr(wrong["cube"]).splitlines()[0]
    problems = [line for line in repr(wrong).splitlines() if line.startswith("  ! ")]
    assert len(problems) == sum(not finding.fine for finding in wrong["cube"].findings)
    assert wrong._repr_html_().count("<p>") == len(problems)


def test_names_are_escaped_in_a_notebook() -> None:
    name = "<script>alert(1)</script>"
    assert "<script>" not in moved(name)._repr_html_()
    assert "<script>" not in moved(name).diagnose(*held_out(600))._repr_html_()
    assert "<script>" not in Decisions({name: np.ones(3, bool)})._repr_html_()


def test_decisions_are_counted() -> None:
    decided = moved().calibrate(free_obs=np.zeros((300, 2))).decide(np.zeros((40, 2)))
    assert isinstance(decided, dict)
    assert decided["cube"].shape == (40,)
    assert repr(decided).splitlines()[1].split() == ["cube", "0", "40", "0.0%"]
    assert "3" in repr(Calibration(np.zeros(3)))


def test_episodes_are_summarised() -> None:
    flags = np.array([[True, False, False, False]])
    states = np.zeros((1, 5, 2), np.float32)
    episodes = Episodes(
        states, np.zeros((1, 4, 1), np.float32), states, states, np.array([4]), flags, label={"exact": flags},
        metadata={"config": {"env": "push"}},
    )  # fmt: skip
    assert "exact 25.0%" in repr(episodes)
    assert "push" in repr(episodes)
    assert "exact 25.0%" in episodes._repr_html_()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    with fit_progress(True) as report:
        assert report is not None
        report(SimpleNamespace(epoch=30, epochs=60))
    assert "30/60" in shown.getvalue()
    assert shown.getvalue().endswith("\r\x1b[K")


def test_without_a_terminal_or_with_false_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with fit_progress(True) as report:
        assert report is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    with fit_progress(False) as report:
        assert report is None
    calls: list[Any] = []
    with fit_progress(calls.append) as report:
        assert report == calls.append


def test_a_notebook_shows_a_bar_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[str] = []
    handle = SimpleNamespace(update=updates.append)
    display = SimpleNamespace(HTML=str, display=lambda content, display_id: handle)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with fit_progress(True) as report:
        assert report is not None
        report(SimpleNamespace(epoch=1, epochs=4))
    assert 'value="1" max="4"' in updates[0]
    assert updates[-1] == ""
