"""Labels added to episodes are those of collecting; shares of agreement by hand; disagreements of both kinds."""

from pathlib import Path

import numpy as np
import pytest
from support import slide
from support.small_detection import labelled_episodes

from butfor.detection import labels as labels_module
from butfor.detection.collect import CollectConfig, collect_file
from butfor.detection.labels import add_labels, compare_labels, find_disagreements
from butfor.rollouts.episodes import Episodes


def test_shares_count_real_steps_alone() -> None:
    (row,) = compare_labels(labelled_episodes())  # 7 real steps: the last of the second episode is padding
    assert (row["first"], row["second"], row["states"]) == ("exact", "contact", 7)
    assert row["both"] == pytest.approx(1 / 7)
    assert row["only_first"] == pytest.approx(2 / 7)
    assert row["only_second"] == pytest.approx(1 / 7)
    assert row["neither"] == pytest.approx(3 / 7)


def test_disagreements_come_from_both_sides() -> None:
    assert find_disagreements(labelled_episodes(), "exact", "contact", 4) == [(0, 1), (1, 2), (0, 2)]


def test_as_many_disagreements_as_asked_for_also_where_they_are_all_of_one_kind() -> None:
    episodes = labelled_episodes()
    assert episodes.contact is not None
    assert len(find_disagreements(episodes, "exact", "contact", 1)) == 1
    episodes.contact[:] = False
    assert find_disagreements(episodes, "exact", "contact", 2) == [(0, 0), (1, 2)]
    episodes.contact[:], episodes.label["exact"][:] = True, False
    assert find_disagreements(episodes, "exact", "contact", 2) == [(0, 0), (1, 0)]
    assert find_disagreements(episodes, "exact", "contact", 0) == []


def test_one_label_alone_is_refused() -> None:
    episodes = labelled_episodes()
    episodes.contact = None
    with pytest.raises(ValueError, match="exact"):
        compare_labels(episodes)


def bare(episodes: Episodes) -> Episodes:
    """The same episodes as a training run keeps them: without labels and contacts."""
    result = episodes.take(np.arange(len(episodes)))
    result.label, result.contact = {}, None
    return result


@pytest.mark.parametrize("env_name", ["slide", "butfor/Slide-v0"])
def test_labels_added_afterwards_are_those_of_collecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env_name: str
) -> None:
    monkeypatch.setattr(labels_module, "ENVS_AT_ONCE", 3)
    labels = ("exact", "contact")
    episodes = collect_file(CollectConfig(env_name, "noisy-expert", 8, labels, 3), tmp_path / "a.npz")
    done: list[int] = []
    given = bare(episodes)
    labelled = add_labels(given, env_name, labels, done.append)
    assert labelled.contact is not None
    assert labelled.contact.any()
    assert np.array_equal(labelled.contact, episodes.contact)  # type: ignore[arg-type]
    assert np.array_equal(labelled.label["exact"], slide.influence(episodes.observation[:, :-1]))
    assert np.array_equal(labelled.observation, episodes.observation)
    assert np.array_equal(labelled.reset_seed, episodes.reset_seed)  # type: ignore[arg-type]
    assert labelled.metadata == episodes.metadata
    assert done == [3, 6, 8]
    assert given.label == {}  # those that were given stay without


def test_fetch_labels_added_afterwards_are_those_of_collecting(tmp_path: Path) -> None:
    """Also where an episode has ended before the others: what lies past its end is not labelled."""
    pytest.importorskip("mujoco")
    labels = ("exact", "heuristic", "contact")
    episodes = collect_file(CollectConfig("pick-and-place", "noisy-expert", 2, labels, 3), tmp_path / "a.npz")
    short = bare(episodes)
    short.length[1] = 30
    labelled = add_labels(short, "pick-and-place", labels)
    valid = short.valid
    assert labelled.contact is not None
    assert episodes.contact is not None
    assert np.array_equal(labelled.contact[valid], episodes.contact[valid])
    for name in ("exact", "heuristic"):
        assert np.array_equal(labelled.label[name][valid], episodes.label[name][valid])
        assert labelled.label[name][valid].any()
    assert not labelled.label["exact"][~valid].any()


def test_episodes_that_cannot_be_replayed_are_refused(tmp_path: Path) -> None:
    episodes = collect_file(CollectConfig("slide", episodes=3), tmp_path / "a.npz")
    forgotten = episodes.take(np.arange(3))
    forgotten.reset_seed = None
    with pytest.raises(ValueError, match="reset seeds"):
        add_labels(forgotten, "slide", ("exact",))
    for name, change in (("observation", 0.01), ("observation", 0.002), ("action", 0.5), ("reset_seed", 1)):
        other = episodes.take(np.arange(3))
        array = getattr(other, name)
        array[1] = array[1] + change if name != "action" else -array[1]
        with pytest.raises(ValueError, match="Episode 1"):
            add_labels(other, "slide", ("exact",))
    nearly = episodes.take(np.arange(3))
    nearly.observation += np.float32(1e-4)  # another processor may round otherwise
    assert np.array_equal(add_labels(nearly, "slide", ("exact",)).observation, nearly.observation)


def test_episodes_of_another_environment_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    episodes = collect_file(CollectConfig("slide", episodes=2), tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"\(4, 1\).*FetchPush-v0.*\(25, 4\)"):
        add_labels(episodes, "push", ("exact",))
    push = collect_file(CollectConfig("push", episodes=2), tmp_path / "b.npz")
    with pytest.raises(ValueError, match="FetchPickAndPlace-v0"):
        add_labels(push, "pick-and-place", ("contact",))


@pytest.mark.parametrize(("labels", "message"), [(("true",), "'true'"), (("heuristic",), "slide .*'heuristic'")])
def test_labels_that_an_environment_does_not_have_are_not_added(
    tmp_path: Path, labels: tuple[str, ...], message: str
) -> None:
    episodes = collect_file(CollectConfig("slide", episodes=2), tmp_path / "a.npz")
    with pytest.raises(ValueError, match=message):
        add_labels(episodes, "slide", labels)
