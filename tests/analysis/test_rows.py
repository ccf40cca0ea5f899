"""Cells of tables say how certain a number is."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.study_runs import RAMP, write_training

from butfor.analysis.arms import read_run_folder
from butfor.analysis.claims import Curve
from butfor.analysis.rows import areas, duration, improvement_cell, noted, reach_cell
from butfor.runs.files import read_json

EPISODES = np.arange(100, 1100, 100)


def steps(*reached: float) -> Curve:
    """Seeds that succeed from the given episodes on (inf: never)."""
    return Curve(EPISODES, np.array([[float(episode >= start) for episode in EPISODES] for start in reached]), 1000)


def test_the_area_is_that_of_the_range() -> None:
    curve = Curve(np.array([0, 100, 300]), np.array([[0.0, 1.0, 1.0]]), 300)
    # From 50 to 200 the line rises from 0.5 to 1 over 50 episodes and stays at 1 for 100.
    area = areas(curve, (50, 200))
    assert area == pytest.approx([(0.75 * 50 + 1.0 * 100) / 150])
    assert areas(curve, (50, 400)) is None


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        (steps(300), {"value": "300", "spread": "one seed"}),
        (steps(np.inf), {"value": "> 1,000", "spread": "", "at": "1 of 1 never"}),
        (steps(200, 300, 500), {"value": "300", "spread": "200 to 500"}),
        (steps(200, 300, np.inf), {"value": "300", "spread": "200 to > 1,000", "at": "1 of 3 never"}),
        (steps(*[400] * 5), {"value": "400", "spread": "400 to 400"}),  # five values cover a median in 94 %
        (steps(*[400] * 6), {"value": "400", "spread": "[400, 400]"}),
        (steps(200, *[400] * 4, np.inf), {"value": "400", "spread": "[200, > 1,000]", "at": "1 of 6 never"}),
    ],
)
def test_the_episodes_to_reach_a_level(curve: Curve, expected: dict[str, str]) -> None:
    assert reach_cell(curve, 0.5) == expected


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [([30], "one shared episode"), ([30, 60], "one shared episode"), ([60], "no shared episodes")],
)
def test_an_area_needs_two_shared_episodes(episodes: list[int], expected: str) -> None:
    baseline = Curve(np.array([30]), np.zeros((6, 1)), 30)
    curve = Curve(np.array(episodes), np.zeros((6, len(episodes))), 60)
    assert improvement_cell(curve, baseline) == {"value": "–", "spread": expected}


def test_what_all_processes_of_a_run_had(tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", [RAMP])
    versions = read_json(run / "versions.json")
    versions["resumed"] = [{"commit": "def456", "device": "NVIDIA"}, {"started": "later"}]
    (run / "versions.json").write_text(json.dumps(versions))
    arm = read_run_folder(run)
    assert noted(arm, "commit") == ["abc123", "def456"]
    assert noted(arm, "device") == ["cpu", "NVIDIA"]


@pytest.mark.parametrize(("seconds", "expected"), [(100, "1 min 40 s"), (7300.0, "2 h 01 min"), (None, "–")])
def test_durations(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected
