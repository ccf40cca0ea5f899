"""results/add_distance.py: a run of before the distance gets what a new run has, or stays as it is."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from add_distance import main
from support.small_detection import CONFIG

from butfor.detection.experiment import run_detection
from butfor.rollouts.episodes import Episodes
from butfor.runs.files import read_json, write_json
from butfor.runs.folder import write_metrics
from butfor.runs.reading import read_metrics


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_detection(replace(CONFIG, seeds=1), tmp_path_factory.mktemp("runs") / "new")


@pytest.fixture
def old(new: Path, tmp_path: Path) -> Path:
    """The same run without the distance."""
    run = Path(shutil.copytree(new, tmp_path / "old"))
    write_metrics(run, [row for row in read_metrics(run) if row["detector"] != "distance"])
    summary = read_json(run / "summary.json")
    rows = [row for row in summary["detectors"] if row["name"] != "distance"]
    write_json(run / "summary.json", summary | {"detectors": rows})
    return run


def test_the_distance_is_that_of_a_new_run(new: Path, old: Path, tmp_path: Path) -> None:
    assert read_metrics(old) != read_metrics(new)
    main(old, tmp_path / "collected again", "cpu")
    assert read_metrics(old) == read_metrics(new)
    assert read_json(old / "summary.json") == read_json(new / "summary.json")
    assert [one["detector"] for one in read_json(old / "versions.json")["added"]] == ["distance"]
    main(old, tmp_path / "collected again", "cpu")  # a second time changes nothing
    assert read_metrics(old) == read_metrics(new)


def test_other_states_than_those_of_the_run_are_refused(old: Path, tmp_path: Path) -> None:
    episodes = Episodes.load(old / "data" / "test.npz")
    episodes.achieved_goal[0, 0] += 1e-6  # seen only by the detector moved
    episodes.save(tmp_path / "data" / "test.npz")
    before = [(old / name).read_bytes() for name in ("metrics.jsonl", "summary.json", "versions.json")]
    with pytest.raises(SystemExit, match="test and exact"):
        main(old, tmp_path / "data", "cpu")
    assert before == [(old / name).read_bytes() for name in ("metrics.jsonl", "summary.json", "versions.json")]
