"""The page of labels that differ, with and without pictures."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_detection import labelled_episodes

from butfor.detection.collect import CollectConfig, collect_file
from butfor.detection.labels import find_disagreements
from butfor.reporting.file_pages import AROUND_GRIPPER, PIXELS, draw_states, write_agreement
from butfor.rollouts.play import episode_seed


def test_the_page_shows_the_states_where_labels_differ(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    path = tmp_path / "a.npz"
    episodes = collect_file(CollectConfig("pick-and-place", "noisy-expert", 3, ("exact", "contact"), 5), path)
    page = write_agreement(episodes, path, 4).read_text()
    shown = find_disagreements(episodes, "exact", "contact", 4)
    assert page.count("data:image/png;base64,") == len(shown) > 0
    for episode, time in shown:
        gripper, thing = episodes.observation[episode, time, :6].reshape(2, 3)
        caption = page[page.index(f"Episode {episode}, step {time}:") :]
        assert f"{np.linalg.norm(gripper - thing):.3f} m." in caption[: caption.index("</figcaption>")]
    frame, again = draw_states(episodes, [shown[0], shown[0]])
    assert frame.shape == (360, 360, 3)
    assert np.array_equal(frame, again)


@pytest.mark.parametrize("count", [4, 0])
def test_environments_that_are_not_drawn_have_a_page_without_pictures(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio.v3", None)  # it comes with the robot environments
    episodes = collect_file(CollectConfig("slide", "random", 40, ("exact", "contact")), tmp_path / "a.npz")
    assert find_disagreements(episodes, "exact", "contact", 4)
    page = write_agreement(episodes, tmp_path / "a.npz", count).read_text()
    assert "40 episodes of slide, policy" in page
    assert "push, pick-and-place, " in page
    assert page.count("data:image/png") == 0


def test_pictures_without_imageio_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = labelled_episodes()
    episodes.metadata = {"config": {"env": "push"}}
    monkeypatch.setitem(sys.modules, "imageio.v3", None)
    frame = np.zeros((2, 2, 3), np.uint8)
    monkeypatch.setattr("butfor.reporting.file_pages.draw_states", lambda episodes, states: [frame] * len(states))
    with pytest.raises(ImportError, match=r"butfor\[fetch\]"):
        write_agreement(episodes, tmp_path / "a.npz")


def test_a_file_that_names_no_environment_has_a_page_without_pictures(tmp_path: Path) -> None:
    page = write_agreement(labelled_episodes(), tmp_path / "a.npz").read_text()
    assert "not drawn" in page
    with pytest.raises(ValueError, match="-2"):
        write_agreement(labelled_episodes(), tmp_path / "a.npz", -2)


def test_without_pictures_no_environment_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = labelled_episodes()
    episodes.metadata = {"config": {"env": "push"}}
    monkeypatch.setattr("butfor.reporting.file_pages.make_vector_env", None)
    page = write_agreement(episodes, tmp_path / "a.npz", 0).read_text()
    assert "None are shown." in page


def test_states_are_drawn_as_they_were(tmp_path: Path) -> None:
    """Against an environment that is stepped by hand; also from a file of before, which has no reset seeds."""
    pytest.importorskip("mujoco")
    from butfor.envs import make_vector_env

    episodes = collect_file(CollectConfig("push", "random", 2, seed=4), tmp_path / "a.npz")
    env: Any = make_vector_env("push", 1, render_mode="rgb_array", width=PIXELS, height=PIXELS)
    obs = env.reset(seed=[episode_seed(4, 0, 1)])[0]
    expected = [env.render()[0][AROUND_GRIPPER]]
    for action in episodes.action[1, :20]:
        obs = env.step(action[None])[0]
    assert np.array_equal(obs["observation"][0].astype(np.float32), episodes.observation[1, 20])
    expected.append(env.render()[0][AROUND_GRIPPER])
    env.close()
    for seeds in (episodes.reset_seed, None):
        drawn = draw_states(replace(episodes, reset_seed=seeds), [(1, 20), (0, 3), (1, 0)])
        assert np.array_equal(drawn[0], expected[1])
        assert np.array_equal(drawn[2], expected[0])
