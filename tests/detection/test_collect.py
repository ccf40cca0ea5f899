"""Episode files: every label and policy by name, whole parts that a killed process goes on from."""

import errno
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from support import slide
from support.small_training import TRACK, small

from butfor.datasets.files import read_data
from butfor.detection import collect as library
from butfor.detection.collect import CollectConfig, collect_file, make_policy
from butfor.envs import make_vector_env
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
        (0, r"a\.npz .*No space left.* 0"),
        (3, r"a\.npz .*No space left.* 3"),
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
    with pytest.raises(FileExistsError, match=r"a\.npz"):
        collect_file(CollectConfig("slide", "expert", episodes=5), path)
    assert len(Episodes.load(path)) == 5


def test_a_file_of_an_earlier_version_is_extended(tmp_path: Path) -> None:
    """The environment was called `world` in its metadata."""
    path = tmp_path / "a.npz"
    few = collect_file(CollectConfig("slide", episodes=2), path)
    few.metadata["config"]["world"] = few.metadata["config"].pop("env")
    few.save(path)
    assert Episodes.load(path).metadata["config"]["env"] == "slide"
    assert np.array_equal(collect_file(CollectConfig("slide", episodes=4), path).observation[:2], few.observation)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "genius"}, "'genius'.* random, expert, noisy-expert"),
        ({"labels": ("true",)}, "'true'.* exact, heuristic, contact"),
        ({"episodes": 0}, "episodes .*0"),
        ({"seed": -4}, "seed .*-4"),
        ({"env": "CartPole-v1", "policy": "expert"}, "CartPole-v1.*expert"),
        ({"labels": ("heuristic",)}, "slide .*'heuristic'"),
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


def test_the_expert_of_each_environment_acts_within_bounds() -> None:
    pytest.importorskip("mujoco")
    for env_name in ("slide", "push", "pick-and-place", "rot-table"):
        env = make_vector_env(env_name, 2)
        obs, _ = env.reset(seed=0)
        for name, always in (("random", True), ("expert", False), ("noisy-expert", None)):
            action, sampled = make_policy(env_name, env, name)(obs, np.random.default_rng(0))
            space = env.single_action_space
            assert isinstance(space, gymnasium.spaces.Box)
            assert action.shape == (2, *space.shape)
            assert (np.abs(action) <= 1).all()
            assert always is None or env_name == "slide" or sampled.all() == always
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
    with pytest.raises(FileExistsError, match=r"a\.npz"):
        collect_file(CollectConfig("slide", str(run), 4, agent_seed=4), path)
    assert len(collect_file(CollectConfig("slide", str(run), 4, agent_seed=3), path)) == 4


def test_an_agent_that_cannot_act_there_is_refused(tmp_path: Path, run: Path) -> None:
    with pytest.raises(ValueError, match=r"seed 5.*\[3, 4\]"):
        collect_file(CollectConfig("slide", str(run), 2, agent_seed=5), tmp_path / "a.npz")
    with pytest.raises(ValueError, match=f"slide.*{TRACK}"):
        collect_file(CollectConfig(TRACK, str(run), 2), tmp_path / "a.npz")
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        collect_file(CollectConfig("slide", str(tmp_path), 2), tmp_path / "a.npz")
    assert list(tmp_path.iterdir()) == []


def test_an_agent_of_a_foreign_environment_acts_in_it(tmp_path: Path) -> None:
    run = train(small(env=TRACK), tmp_path / "run")
    episodes = collect_file(CollectConfig(TRACK, str(run), 6), tmp_path / "a.npz")
    assert len(set(episodes.length.tolist())) > 1
    obs = {name: getattr(episodes, name)[:, 0] for name in ("observation", "desired_goal")}
    assert np.allclose(episodes.action[:, 0], load_policy(run)(obs), atol=1e-6)
