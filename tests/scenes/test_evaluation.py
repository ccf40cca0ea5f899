"""The episodes that a training report shows."""

from pathlib import Path

import pytest
from support.pages import Tags
from support.small_training import small

from butfor.reporting.study_page import write_report
from butfor.runs.reading import read_curves
from butfor.scenes.evaluation import TRIED, best_seed, choose_episodes, write_evaluation_scene
from butfor.scenes.scene import read_scene
from butfor.training.run import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A briefly trained run of two seeds on slide."""
    return train(small(env="slide", seeds=2), tmp_path_factory.mktemp("runs") / "run")


def test_the_best_seed_has_the_highest_success_at_the_end(run: Path) -> None:
    _, seeds, curves = read_curves(run, ["success"])
    last = dict(zip(seeds, curves["success"][:, -1], strict=True))
    assert last[best_seed(run)] == max(last.values())


def test_three_different_episodes_are_chosen(run: Path) -> None:
    chosen = choose_episodes(run, best_seed(run))
    assert list(chosen) == ["Best", "Typical", "Worst"]
    assert len(set(chosen.values())) == 3
    assert all(0 <= number < TRIED for number in chosen.values())


def test_the_report_has_the_player(run: Path) -> None:
    """The scene is written once for an agent, and the page embeds it."""
    path = write_evaluation_scene(run)
    assert [episode["title"].split()[0] for episode in read_scene(path)["episodes"]] == ["Best", "Typical", "Worst"]
    before = path.stat().st_mtime_ns
    write_evaluation_scene(run)
    assert path.stat().st_mtime_ns == before
    page = write_report(run).read_text(encoding="utf-8")
    assert len([tag for tag in Tags(page).named("div") if tag.get("class") == "bf-player"]) == 1
