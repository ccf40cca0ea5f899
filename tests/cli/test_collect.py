"""`butfor collect` and `butfor labels`: episode files and their labels."""

import re
from pathlib import Path

import minari
import pytest
from support.command_line import Butfor
from support.small_training import TRACK, Track

from butfor.rollouts.episodes import Episodes


def test_collect_by_a_trained_agent(tiny_run: Path, butfor_command: Butfor, tmp_path: Path) -> None:
    arguments = ["--policy", str(tiny_run), "--episodes", "3", "--labels", "exact", "--agent-seed", "1"]
    code, out, err = butfor_command("collect", "slide", *arguments)
    assert code == 0, err
    path = "data/slide-tiny.npz"
    assert out.splitlines()[-2:] == [f"Episodes: {path}", f"Next: butfor labels {path}"]
    episodes = Episodes.load(tmp_path / "data/slide-tiny.npz")
    shares = ", ".join(f"{name} {value.mean():.1%}" for name, value in episodes.labels().items())
    assert out.startswith(f"3 episodes, 90 states: {shares}\n")
    assert set(episodes.labels()) == {"exact", "contact"}
    assert episodes.metadata["config"]["agent_seed"] == 1


def test_after_an_error_of_the_environment_the_same_command_resumes_the_file(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("butfor.detection.collect.EPISODES_A_PART", 4)
    command = ("collect", TRACK, "--episodes", "9", "--out", "a.npz")
    with monkeypatch.context() as patch:
        patch.setattr(Track, "steps", 0)
        patch.setattr(Track, "breaks_at", 150)  # nine at once, with up to ten steps in an episode
        code, out, err = butfor_command(*command)
    assert (code, out) == (1, "")
    assert re.match(rf"Error: {TRACK} .*ZeroDivisionError.*the track has no length", err.splitlines()[-1])
    assert "Traceback" not in err
    assert len(Episodes.load(tmp_path / "a.npz")) == 4
    code, out, err = butfor_command(*command)
    assert code == 0, err
    assert len(Episodes.load(tmp_path / "a.npz")) == 9


def test_labels_of_an_environment_that_is_not_drawn(butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = butfor_command("collect", "slide", "--labels", "exact, contact", "--episodes", "5", "--out", "s.npz")
    assert code == 0, err
    once = iter([Episodes.load])
    with monkeypatch.context() as patch:
        patch.setattr(Episodes, "load", lambda path: next(once)(path))  # read a second time, the file would be an error
        code, out, err = butfor_command("labels", "s.npz")
    assert (code, err) == (0, "")
    assert out.startswith("exact and contact: agree in ")
    assert "No pictures: " in out
    assert out.endswith("Page: s.html\nNext: open s.html in a browser\n")
    code, out, _ = butfor_command("labels", "s.npz", "--pictures", "0")
    assert code == 0
    assert "No pictures" not in out


def test_a_minari_data_set_has_exact_labels_without_asking(
    butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    code, out, err = butfor_command("collect", "pucks", "--episodes", "2", "--minari", "mine/pucks-v0")
    assert code == 0, err
    assert "Minari data set: " in out
    assert set(minari.load_dataset("mine/pucks-v0")[0].infos) == {"label_exact", "contact"}
    code, _, err = butfor_command("collect", TRACK, "--episodes", "2", "--minari", "mine/track-v0")  # it has no labels
    assert code == 0, err
    assert not minari.load_dataset("mine/track-v0")[0].infos
