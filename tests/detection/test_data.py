"""The data of a detection study: of scripted policies and of agents, each part its own, and the same after a kill."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import slide
from support.small_training import small

from butfor.detection import data as detection_data
from butfor.detection.data import POLICY_SEEDS, SPLITS, STRATUM, ExperimentData, choose_evenly, choose_states
from butfor.detection.settings import DetectionConfig
from butfor.rollouts.episodes import ARRAYS, Episodes
from butfor.rollouts.play import Progress, episode_seed

torch.set_num_threads(1)

Call = tuple[str, int, int, str]
PLAYED = 20  # episodes of each small agent
COUNTS = {"train": 9, "validation": 7, "test": 11}


class Stop(Exception):
    """What a test breaks off with."""


def silent(stage: str, done: int, total: int, text: str) -> None:
    pass


def stop_when(condition: Callable[[str, int], bool]) -> Progress:
    def progress(stage: str, done: int, total: int, text: str) -> None:
        if condition(stage, done):
            raise Stop(stage)

    return progress


@pytest.fixture(autouse=True)
def small_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of a few units, with a checkpoint after every episode."""
    monkeypatch.setattr(detection_data, "preset", lambda env: small(env=env, checkpoint_seconds=0.0))


def make(folder: Path, source: Any = "agents", progress: Progress = silent) -> ExperimentData:
    counts: dict[str, Any] = {f"{name}_episodes": count for name, count in COUNTS.items()}
    return ExperimentData(DetectionConfig(data=source, agent_episodes=PLAYED, **counts), folder, progress)


def all_of(data: ExperimentData) -> dict[str, Episodes]:
    return {name: data.episodes(name, count) for name, count in COUNTS.items()}


def assert_same(one: Episodes, other: Episodes) -> None:
    for name in ARRAYS:
        left, right = getattr(one, name), getattr(other, name)
        assert (left is None) == (right is None), name
        assert left is None or left.tobytes() == right.tobytes(), name
    assert one.label.keys() == other.label.keys()
    assert all(one.label[name].tobytes() == other.label[name].tobytes() for name in one.label)
    assert one.metadata == other.metadata


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    """All three parts of small agents, made without a break, and the calls of their progress."""
    folder, calls = tmp_path_factory.mktemp("agents"), list[Call]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection_data, "preset", lambda env: small(env=env, checkpoint_seconds=0.0))
        all_of(make(folder, progress=lambda *call: calls.append(call)))
    return folder, calls


@pytest.fixture(scope="module")
def agents(unbroken: tuple[Path, list[Call]]) -> dict[str, Episodes]:
    return {name: Episodes.load(unbroken[0] / f"{name}.npz") for name in SPLITS}


# ------------------------------------------------------------------------------------------------- equal shares


@pytest.mark.parametrize(
    ("length", "count", "shares"),
    [(30_000, 7_500, [250] * 30), (30_000, 5_000, None), (2_000, 1_000, [500, 500]), (2_500, 1_000, [400, 400, 200])],
)
def test_every_thousand_gives_an_equal_share(length: int, count: int, shares: list[int] | None) -> None:
    chosen = choose_evenly(length, count, np.random.default_rng(0))
    found = np.bincount(chosen // STRATUM, minlength=-(-length // STRATUM))
    assert found.sum() == count
    if shares is None:  # 5,000 / 30 is no whole number
        assert set(found.tolist()) == {166, 167}
    else:
        assert found.tolist() == shares


@given(st.integers(1, 5_500), st.floats(0, 1), st.integers(0, 3))
def test_never_an_episode_twice_and_always_in_order(length: int, share: float, seed: int) -> None:
    count = round(share * length)
    chosen = choose_evenly(length, count, np.random.default_rng(seed))
    assert len(chosen) == count
    assert (np.diff(chosen) > 0).all()
    assert not count or (chosen[0] >= 0 and chosen[-1] < length)
    sizes = np.minimum(STRATUM, length - np.arange(0, length, STRATUM))
    found = np.bincount(chosen // STRATUM, minlength=len(sizes))
    assert (np.abs(found - sizes * count / length) <= 1).all()  # of its stratum, but for rounding


def test_the_choice_is_the_generators_and_reaches_every_episode() -> None:
    chosen = [choose_evenly(50, 10, np.random.default_rng(seed)).tolist() for seed in range(60)]
    assert chosen[0] == choose_evenly(50, 10, np.random.default_rng(0)).tolist()
    assert chosen[0] != chosen[1]
    assert {number for one in chosen for number in one} == set(
        range(50)
    )  # one is left out 60 times with a chance of 0.8^60 = 2e-6


# ------------------------------------------------------------------------------------------------------ agents


def test_an_agents_episodes_are_those_that_it_played(unbroken: tuple[Path, list[Call]]) -> None:
    """The kept file has the seeds in turn; the parts say which episodes of it they are."""
    folder = unbroken[0]
    kept = Episodes.load(folder / "agents.npz")
    assert len(kept) == 3 * PLAYED
    for seed, (name, count) in enumerate(COUNTS.items()):
        episodes = Episodes.load(folder / f"{name}.npz")
        assert len(episodes) == count
        who = episodes.metadata["parts"][-1]
        assert (who["seed"], who["of"]) == (seed, PLAYED)
        own = episodes.take(np.arange(count - len(who["episode"]), count))  # of test, the others are random
        assert own.reset_seed is not None
        assert own.reset_seed.tolist() == [episode_seed(seed, 0, number) for number in who["episode"]]
        same = kept.take(3 * np.array(who["episode"]) + seed)
        for array in ("observation", "action", "desired_goal", "sampled", "length"):
            np.testing.assert_array_equal(getattr(own, array), getattr(same, array))
    assert episodes.metadata["env"] == "slide"


def test_slides_test_episodes_are_half_random_and_all_labelled(agents: dict[str, Episodes]) -> None:
    test = agents["test"]
    assert [part["policy"] for part in test.metadata["parts"]] == ["random", "DDPG+HER while it learns"]
    assert test.sampled[:6].all()  # 11 - 11 // 2
    assert len(test.metadata["parts"][1]["episode"]) == 5
    assert test.contact is not None
    for name in SPLITS:
        labels = slide.influence(agents[name].observation[:, :-1])
        np.testing.assert_array_equal(agents[name].label["exact"], labels)


@pytest.mark.parametrize("source", ["agents", "scripted"])
def test_no_two_parts_share_an_episode_or_even_a_start(tmp_path: Path, unbroken: Any, source: str) -> None:
    shutil.copytree(unbroken[0], tmp_path / "data")
    if source == "scripted":
        for name in SPLITS:
            (tmp_path / "data" / f"{name}.npz").unlink()
    data = make(tmp_path / "data", source)
    parts = list(all_of(data).values()) + [data.episodes(name, 5) for name in POLICY_SEEDS]
    seeds = [part.reset_seed for part in parts if part.reset_seed is not None]
    starts = np.concatenate([part.observation[:, 0] for part in parts])
    assert len(np.unique(np.concatenate(seeds))) == len(starts) == sum(COUNTS.values()) + 5 * len(POLICY_SEEDS)
    assert len(np.unique(starts, axis=0)) == len(starts)


def test_nothing_but_the_parts_and_the_training_run_is_left(unbroken: tuple[Path, list[Call]]) -> None:
    names = {path.name for path in unbroken[0].iterdir()}
    assert names == {"train.npz", "validation.npz", "test.npz", "agents.npz", "agents"}


def test_each_stage_of_the_progress_ends_with_all_done(unbroken: tuple[Path, list[Call]]) -> None:
    last = {stage: (done, total) for stage, done, total, _ in unbroken[1]}
    expected = {"test data": 6, "test labels": 5, "validation labels": 7, "episodes": PLAYED}
    assert {name: last[name] for name in expected} == {name: (count, count) for name, count in expected.items()}


def test_one_test_episode_needs_no_agent(tmp_path: Path) -> None:
    test = make(tmp_path).episodes("test", 1)
    assert test.sampled.all()
    assert not (tmp_path / "agents").exists()


# ------------------------------------------------------------------------------------------- broken off, resumed


@pytest.mark.parametrize(
    ("stage", "done"),
    [("episodes", 2), ("episodes", 13), ("episodes", PLAYED), ("test labels", 5), ("validation labels", 7)],
)
def test_a_kill_anywhere_changes_nothing(tmp_path: Path, agents: dict[str, Episodes], stage: str, done: int) -> None:
    with pytest.raises(Stop, match=stage):
        all_of(make(tmp_path, progress=stop_when(lambda at, count: (at, count) >= (stage, done) and at == stage)))
    for name, episodes in all_of(make(tmp_path)).items():
        assert_same(episodes, agents[name])
        assert_same(Episodes.load(tmp_path / f"{name}.npz"), agents[name])


def test_ctrl_c_during_the_training_does_not_speak_of_training(tmp_path: Path, agents: dict[str, Episodes]) -> None:
    """`train` says how to go on with a training run; whoever detects goes on by the same command."""

    def interrupt(stage: str, done: int, total: int, text: str) -> None:
        if stage == "episodes" and done == 9:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        all_of(make(tmp_path, progress=interrupt))
    assert caught.value.args == ()
    for name, episodes in all_of(make(tmp_path)).items():
        assert_same(episodes, agents[name])


def test_a_training_run_killed_before_it_said_where_its_episodes_go(
    tmp_path: Path, agents: dict[str, Episodes]
) -> None:
    with pytest.raises(Stop):
        all_of(make(tmp_path, progress=stop_when(lambda stage, done: stage == "episodes")))
    (tmp_path / "agents" / "episodes.json").unlink()
    assert_same(make(tmp_path).episodes("train", COUNTS["train"]), agents["train"])


def test_what_is_there_is_not_made_again(tmp_path: Path, unbroken: tuple[Path, list[Call]]) -> None:
    for name in SPLITS:
        shutil.copy(unbroken[0] / f"{name}.npz", tmp_path)
    again = all_of(make(tmp_path, progress=stop_when(lambda stage, done: True)))
    assert {name: len(episodes) for name, episodes in again.items()} == COUNTS
    with pytest.raises(ValueError, match=r"train\.npz has 9 .* 8"):
        make(tmp_path).episodes("train", 8)


# --------------------------------------------------------------------------------------------- scripted policies


def test_scripted_parts_are_half_random_half_noisy_expert(tmp_path: Path) -> None:
    calls: list[Call] = []
    data = make(tmp_path, "scripted", lambda *call: calls.append(call))
    for name, episodes in all_of(data).items():
        count = COUNTS[name]
        parts = episodes.metadata["parts"]
        assert [(part["policy"], part["episodes"]) for part in parts] == [
            ("random", count - count // 2),
            ("noisy-expert", count // 2),
        ]
        assert episodes.sampled[: count - count // 2].all()
        done = [call[1:3] for call in calls if call[0] == f"{name} data"]
        assert done == sorted(done)
        assert done[-1] == (count, count)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.npz", "train.npz", "validation.npz"]
    assert len(make(tmp_path / "one", "scripted").episodes("train", 1)) == 1


def test_a_policys_file_goes_on_growing(tmp_path: Path) -> None:
    data = make(tmp_path, "scripted")
    few, more = data.episodes("noisy-expert", 3), data.episodes("noisy-expert", 5)
    np.testing.assert_array_equal(more.observation[:3], few.observation)
    assert more.metadata["config"]["seed"] == POLICY_SEEDS["noisy-expert"]
    assert data.episodes("random-train", 2).metadata["config"]["policy"] == "random"


def test_the_labels_are_those_of_the_environment(tmp_path: Path) -> None:
    assert make(tmp_path).labels == ("exact", "contact")
    data = ExperimentData(DetectionConfig("pick-and-place", data="scripted"), tmp_path, silent)
    assert data.labels == ("exact", "heuristic", "contact")


# ------------------------------------------------------------------------------------------------- states to fork


def labelled(label: NDArray[np.bool_], length: NDArray[np.int64]) -> Episodes:
    episodes, steps = label.shape
    zeros = np.zeros((episodes, steps + 1, 3), np.float32)
    actions, flags = np.zeros((episodes, steps, 4), np.float32), np.zeros((episodes, steps), dtype=bool)
    return Episodes(zeros, actions, zeros, zeros, length, flags, label={"exact": label})


@pytest.mark.parametrize(("influenced", "expected"), [(30, 10), (4, 4), (0, 0)])
def test_half_of_the_forked_states_are_influenced_if_so_many_are(influenced: int, expected: int) -> None:
    generator = np.random.default_rng(1)
    length = generator.integers(3, 9, 40)
    label = np.zeros((40, 8), dtype=bool)
    label[np.arange(influenced), generator.integers(0, length[:influenced])] = True
    label[np.arange(8) >= length[:, None]] = True  # what lies past the end does not count
    chosen = choose_states(labelled(label, length), 20, np.random.default_rng(0))
    episode, time = chosen.T
    assert chosen.shape == (20, 2)
    assert len(set(episode.tolist())) == 20  # different episodes
    assert (time < length[episode]).all()
    assert label[episode, time][:expected].all()
    assert label[episode, time].sum() >= expected
    assert (episode[:expected] < influenced).all()
