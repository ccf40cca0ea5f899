"""Shares of agreement by hand, states of disagreement from both sides, and a page with their pictures."""

import sys
from pathlib import Path

import numpy as np
import pytest
from support.small_detection import made

from butfor.detection.agreement import compare, disagreements, pictures, write_agreement
from butfor.detection.collect import CollectConfig, collect_file
from butfor.rollouts.play import episode_seed


def test_shares_count_real_steps_alone() -> None:
    (row,) = compare(made())  # 7 real steps: the last of the second episode is padding
    assert (row["first"], row["second"], row["states"]) == ("exact", "contact", 7)
    assert row["both"] == pytest.approx(1 / 7)
    assert row["only_first"] == pytest.approx(2 / 7)
    assert row["only_second"] == pytest.approx(1 / 7)
    assert row["neither"] == pytest.approx(3 / 7)


def test_disagreements_come_from_both_sides() -> None:
    assert disagreements(made(), "exact", "contact", 4) == [(0, 1), (1, 2), (0, 2)]


def test_as_many_disagreements_as_asked_for_also_where_they_are_all_of_one_kind() -> None:
    episodes = made()
    assert episodes.contact is not None
    assert len(disagreements(episodes, "exact", "contact", 1)) == 1
    episodes.contact[:] = False
    assert disagreements(episodes, "exact", "contact", 2) == [(0, 0), (1, 2)]
    episodes.contact[:], episodes.label["exact"][:] = True, False
    assert disagreements(episodes, "exact", "contact", 2) == [(0, 0), (1, 0)]
    assert disagreements(episodes, "exact", "contact", 0) == []


def test_one_label_alone_is_refused() -> None:
    episodes = made()
    episodes.contact = None
    with pytest.raises(ValueError, match="needs two labels; these episodes have exact"):
        compare(episodes)


def test_the_page_shows_the_states_where_labels_differ(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    path = tmp_path / "a.npz"
    episodes = collect_file(CollectConfig("pick-and-place", "noisy-expert", 3, ("exact", "contact"), 5), path)
    page = write_agreement(episodes, path, 4).read_text()
    shown = disagreements(episodes, "exact", "contact", 4)
    assert page.count("data:image/png;base64,") == len(shown) > 0
    for episode, time in shown:
        assert f"Episode {episode}, step {time}:" in page
    frame, again = pictures(episodes, [shown[0], shown[0]])
    assert frame.shape == (360, 360, 3)
    assert np.array_equal(frame, again)


@pytest.mark.parametrize("count", [4, 0])
def test_worlds_that_are_not_drawn_have_a_page_without_pictures(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio.v3", None)  # it comes with the robot worlds
    episodes = collect_file(CollectConfig("slide", "random", 40, ("exact", "contact")), tmp_path / "a.npz")
    assert disagreements(episodes, "exact", "contact", 4)
    page = write_agreement(episodes, tmp_path / "a.npz", count).read_text()
    assert "40 episodes of slide, policy" in page
    assert "States of slide are not drawn, only those of push, pick-and-place, rot-table." in page
    assert page.count("data:image/png") == 0


def test_pictures_without_imageio_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = made()
    episodes.metadata = {"config": {"env": "push"}}
    monkeypatch.setitem(sys.modules, "imageio.v3", None)
    frame = np.zeros((2, 2, 3), np.uint8)
    monkeypatch.setattr("butfor.detection.agreement.pictures", lambda episodes, states: [frame] * len(states))
    with pytest.raises(ImportError, match=r"Pictures need imageio; install it with: pip install 'butfor\[fetch\]'"):
        write_agreement(episodes, tmp_path / "a.npz")


def test_a_file_that_names_no_world_has_a_page_without_pictures(tmp_path: Path) -> None:
    page = write_agreement(made(), tmp_path / "a.npz").read_text()
    assert "States of a world that the file does not name are not drawn" in page
    with pytest.raises(ValueError, match="pictures must be at least 0; got -2"):
        write_agreement(made(), tmp_path / "a.npz", -2)


def test_without_pictures_no_world_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = made()
    episodes.metadata = {"config": {"env": "push"}}
    monkeypatch.setattr("butfor.detection.agreement.make_vector_env", None)
    page = write_agreement(episodes, tmp_path / "a.npz", 0).read_text()
    assert "None are shown." in page


def test_a_replayed_episode_comes_through_the_stored_states(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    from butfor.envs import make_vector_env
    from butfor.rollouts.play import replay

    episodes = collect_file(CollectConfig("push", "random", 2, seed=4), tmp_path / "a.npz")
    env = make_vector_env("push", 1)
    obs = replay(env, episode_seed(4, 0, 1), episodes.action[1, :20])
    assert np.array_equal(obs["observation"][0].astype(np.float32), episodes.observation[1, 20])
    env.close()
