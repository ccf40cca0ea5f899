"""Episode files: every label and policy by name, whole parts that a killed process goes on from."""

import errno
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from support.small_training import TRACK, small

from butfor.datasets.files import read_data
from butfor.detection import collect as library
from butfor.detection.collect import CollectConfig, add_labels, collect_file, make_policy
from butfor.envs import make_vector_env, slide
from butfor.rollouts.episodes import Episodes
from butfor.training.agents.policy import load_policy
from butfor.training.run import train


def test_slide_episodes_carry_exact_labels_and_contacts(tmp_path: Path) -> None:
    episodes = collect_file(CollectConfig("slide", "noisy-expert", 8, ("exact", "contact"), 3), tmp_path / "a.npz")
    assert np.array_equal(episodes.label["exact"], slide.influence(episodes.observation[:, :-1]))
    assert episodes.contact is not None
    assert episodes.contact.any()
    assert episodes.metadata["config"]["policy"] == "noisy-expert"
    assert episodes.metadata["versions"]["butfor"]
    told = read_data(tmp_path / "a.npz").action_space
    assert told == gymnasium.spaces.Box(-1, 1, (1,), np.float64)  # the bounds of slide's actions


def test_a_file_cut_off_after_a_part_ends_as_an_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "EPISODES_A_PART", 3)
    config = CollectConfig("slide", "noisy-expert", 8, ("exact",), 1)
    unbroken = collect_file(config, tmp_path / "unbroken.npz")

    def stop(done: int) -> None:
        if done > 4:
            raise KeyboardInterrupt

    path = tmp_path / "cut.npz"
    with pytest.raises(KeyboardInterrupt):
        collect_file(config, path, stop)
    assert len(Episodes.load(path)) == 3  # what is there is whole
    resumed = collect_file(config, path)
    for name in ("observation", "action", "desired_goal", "sampled", "length"):
        assert np.array_equal(getattr(resumed, name), getattr(unbroken, name)), name
    assert len(np.unique(resumed.observation[:, 0], axis=0)) == 8  # every episode starts elsewhere


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (0, r"a\.npz could not be written \(No space left on device\); make room, then give the same command again\."),
        (3, r"a\.npz could not .* again: the 3 episodes saved so far stay, and it goes on from them\."),
    ],
)
def test_a_full_disk_is_told_with_what_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: int, message: str
) -> None:
    monkeypatch.setattr(library, "EPISODES_A_PART", 3)
    path, save = tmp_path / "a.npz", np.savez_compressed

    def write(file: Any, **arrays: Any) -> None:
        if len(arrays["length"]) > saved:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(file, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez_compressed", write)
        with pytest.raises(OSError, match=message):
            collect_file(CollectConfig("slide", episodes=8), path)
    assert [len(Episodes.load(one)) for one in tmp_path.iterdir()] == ([saved] if saved else [])
    assert len(collect_file(CollectConfig("slide", episodes=8), path)) == 8


def test_more_episodes_are_added_to_a_file_and_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    few = collect_file(CollectConfig("slide", episodes=2), path)
    more = collect_file(CollectConfig("slide", episodes=5), path)
    assert np.array_equal(more.observation[:2], few.observation)
    with pytest.raises(FileExistsError, match="holds other episodes"):
        collect_file(CollectConfig("slide", "expert", episodes=5), path)
    assert len(Episodes.load(path)) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"policy": "genius"},
            "no policy 'genius'; give one of random, expert, noisy-expert, or a training run's folder",
        ),
        ({"labels": ("true",)}, "no label 'true'; the labels are exact, heuristic, contact"),
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"seed": -4}, "seed must be at least 0; got -4"),
        ({"env": "CartPole-v1", "policy": "expert"}, "CartPole-v1 is not a built-in world"),
        ({"labels": ("heuristic",)}, "heuristic label is for the Fetch worlds"),
    ],
)
def test_what_cannot_be_collected_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CollectConfig(**({"env": "slide"} | settings))  # type: ignore[arg-type]


def test_fetch_labels_follow_from_the_stored_arrays_and_from_forks(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    from butfor.envs.heuristic import heuristic_label

    config = CollectConfig("pick-and-place", "expert", 3, ("exact", "heuristic", "contact"))
    episodes = collect_file(config, tmp_path / "a.npz")
    exact, contact = episodes.label["exact"], episodes.contact
    assert contact is not None
    assert exact[contact].all()  # who is touched depends on what the hand does
    assert 0.5 < exact.mean() < 1  # an expert approaches first, then holds the object
    # the approach: at the start of an episode the gripper is more than 0.1 m from the object
    assert not exact[:, 0].any()
    expected = heuristic_label(episodes.observation[:, :-1], contact)
    assert np.array_equal(episodes.label["heuristic"], expected)


# ------------------------------------------------------------------------------------- labels, afterwards


def bare(episodes: Episodes) -> Episodes:
    """The same episodes as a training run keeps them: without labels and contacts."""
    result = episodes.take(np.arange(len(episodes)))
    result.label, result.contact = {}, None
    return result


@pytest.mark.parametrize("world", ["slide", "butfor/Slide-v0"])
def test_labels_added_afterwards_are_those_of_collecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str
) -> None:
    monkeypatch.setattr(library, "WORLDS_AT_ONCE", 3)
    labels = ("exact", "contact")
    episodes = collect_file(CollectConfig(world, "noisy-expert", 8, labels, 3), tmp_path / "a.npz")
    done: list[int] = []
    given = bare(episodes)
    labelled = add_labels(given, world, labels, done.append)
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


def test_episodes_that_cannot_be_played_again_are_refused(tmp_path: Path) -> None:
    episodes = collect_file(CollectConfig("slide", episodes=3), tmp_path / "a.npz")
    forgotten = episodes.take(np.arange(3))
    forgotten.reset_seed = None
    with pytest.raises(ValueError, match="reset seeds"):
        add_labels(forgotten, "slide", ("exact",))
    for name, change in (("observation", 0.01), ("action", 0.5), ("reset_seed", 1)):
        other = episodes.take(np.arange(3))
        array = getattr(other, name)
        array[1] = array[1] + change if name != "action" else -array[1]
        with pytest.raises(ValueError, match="Episode 1"):
            add_labels(other, "slide", ("exact",))
    nearly = episodes.take(np.arange(3))
    nearly.observation += np.float32(1e-4)  # another processor may round otherwise
    assert np.array_equal(add_labels(nearly, "slide", ("exact",)).observation, nearly.observation)


def test_episodes_of_another_world_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    episodes = collect_file(CollectConfig("slide", episodes=2), tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"\(4, 1\).*FetchPush-v0.*\(25, 4\)"):
        add_labels(episodes, "push", ("exact",))
    push = collect_file(CollectConfig("push", episodes=2), tmp_path / "b.npz")
    with pytest.raises(ValueError, match="FetchPickAndPlace-v0"):
        add_labels(push, "pick-and-place", ("contact",))


@pytest.mark.parametrize(("labels", "message"), [(("true",), "no label 'true'"), (("heuristic",), "Fetch worlds")])
def test_labels_that_a_world_does_not_have_are_not_added(tmp_path: Path, labels: tuple[str, ...], message: str) -> None:
    episodes = collect_file(CollectConfig("slide", episodes=2), tmp_path / "a.npz")
    with pytest.raises(ValueError, match=message):
        add_labels(episodes, "slide", labels)


def test_the_expert_of_each_world_acts_within_bounds() -> None:
    pytest.importorskip("mujoco")
    for world in ("slide", "push", "pick-and-place", "rot-table"):
        env = make_vector_env(world, 2)
        obs, _ = env.reset(seed=0)
        for name, always in (("random", True), ("expert", False), ("noisy-expert", None)):
            action, sampled = make_policy(world, env, name)(obs, np.random.default_rng(0))
            space = env.single_action_space
            assert isinstance(space, gymnasium.spaces.Box)
            assert action.shape == (2, *space.shape)
            assert (np.abs(action) <= 1).all()
            assert always is None or world == "slide" or sampled.all() == always
        env.close()


# ------------------------------------------------------------------------------------- a trained agent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run on slide with the seeds 3 and 4."""
    return train(small(seeds=2, first_seed=3), tmp_path_factory.mktemp("runs") / "slide")


@pytest.mark.parametrize("seed", [None, 3, 4])
def test_a_trained_agent_acts_as_it_learned_from_starts_of_its_own(tmp_path: Path, run: Path, seed: int | None) -> None:
    config = CollectConfig("slide", str(run), 5, ("exact", "contact"), 7, seed)
    episodes = collect_file(config, tmp_path / "a.npz")
    policy = load_policy(run, seed)
    assert policy.seed == (seed or 3)
    for t in range(30):
        obs = {name: getattr(episodes, name)[:, t] for name in ("observation", "desired_goal")}
        assert np.allclose(episodes.action[:, t], policy(obs), atol=1e-6)
    assert not episodes.sampled.any()  # its actions come from no known law
    assert np.array_equal(episodes.label["exact"], slide.influence(episodes.observation[:, :-1]))
    random = collect_file(CollectConfig("slide", episodes=5, seed=7), tmp_path / "b.npz")
    assert not np.array_equal(episodes.observation[:, 0], random.observation[:, 0])  # not those it trained with
    assert Episodes.load(tmp_path / "a.npz").metadata["config"]["policy"] == str(run)
    assert Episodes.load(tmp_path / "a.npz").metadata["config"]["agent_seed"] == seed


def test_the_episodes_of_one_agent_are_not_added_to_those_of_another(tmp_path: Path, run: Path) -> None:
    path = tmp_path / "a.npz"
    collect_file(CollectConfig("slide", str(run), 2, agent_seed=3), path)
    with pytest.raises(FileExistsError, match="holds other episodes"):
        collect_file(CollectConfig("slide", str(run), 4, agent_seed=4), path)
    assert len(collect_file(CollectConfig("slide", str(run), 4, agent_seed=3), path)) == 4


def test_an_agent_that_cannot_act_there_is_refused(tmp_path: Path, run: Path) -> None:
    with pytest.raises(ValueError, match=r"seed 5.*\[3, 4\]"):
        collect_file(CollectConfig("slide", str(run), 2, agent_seed=5), tmp_path / "a.npz")
    with pytest.raises(ValueError, match=f"The agent of .* was trained on slide; it cannot act in {TRACK}"):
        collect_file(CollectConfig(TRACK, str(run), 2), tmp_path / "a.npz")
    with pytest.raises(FileNotFoundError, match="holds no trained agent"):
        collect_file(CollectConfig("slide", str(tmp_path), 2), tmp_path / "a.npz")
    assert list(tmp_path.iterdir()) == []


def test_an_agent_of_a_foreign_world_acts_in_it(tmp_path: Path) -> None:
    run = train(small(env=TRACK), tmp_path / "run")
    episodes = collect_file(CollectConfig(TRACK, str(run), 6), tmp_path / "a.npz")
    assert len(set(episodes.length.tolist())) > 1
    obs = {name: getattr(episodes, name)[:, 0] for name in ("observation", "desired_goal")}
    assert np.allclose(episodes.action[:, 0], load_policy(run)(obs), atol=1e-6)
