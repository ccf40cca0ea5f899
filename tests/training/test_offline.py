"""Learning from recorded episodes: what is read, what each seed gets, and the same bits after a resume."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_training import results, small

from butfor.envs import make_vector_env
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import collect, random_policy
from butfor.training.goal_env import open_goal_env
from butfor.training.loop import Trainer
from butfor.training.offline import fill_buffer, read_episodes
from butfor.training.run import evaluate_run, resume, train
from butfor.training.settings import Config, preset

OFFLINE: dict[str, Any] = {"algorithm": "td3bc", "evaluate_every": 2, "seeds": 2}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Episodes]:
    env = make_vector_env("slide", 4)
    episodes = collect(env, random_policy(env), 12, 0)
    env.close()
    path = tmp_path_factory.mktemp("data") / "slide.npz"
    episodes.metadata["env"] = "slide"
    episodes.save(path)
    return path, episodes


def offline(path: Path, **changes: Any) -> Config:
    return small(**OFFLINE | {"data": (str(path),), "episodes": 4} | changes)


def test_a_run_learns_without_playing(recorded: tuple[Path, Episodes], tmp_path: Path) -> None:
    folder = train(offline(recorded[0]), tmp_path / "run")
    _, rows = results(folder)
    assert [row["episode"] for row in rows] == [2, 2, 4, 4]
    assert set(evaluate_run(folder, 3)) == {0, 1}


@pytest.mark.parametrize("use", [(), ("priority", "bonus")])
def test_a_resumed_run_ends_with_the_same_bits(
    recorded: tuple[Path, Episodes], tmp_path: Path, use: tuple[str, ...]
) -> None:
    """The data are not read again: they are in the checkpoint."""
    config = offline(recorded[0], use=use, data_share=0.5)
    whole = train(config, tmp_path / "whole")
    moved = tmp_path / "moved.npz"
    moved.write_bytes(recorded[0].read_bytes())
    part = train(replace(config, data=(str(moved),), episodes=2), tmp_path / "part")
    moved.unlink()
    resume(part, episodes=4)
    assert results(part) == results(whole)
    with pytest.raises(ValueError, match="1"):
        resume(part, episodes=1)


def test_each_seed_draws_its_own_share(recorded: tuple[Path, Episodes]) -> None:
    path, episodes = recorded
    goal_env = open_goal_env("slide", (), 1.0)
    config = offline(path, data_share=0.5, seeds=3)
    trainer = Trainer(config, goal_env, "cpu", 6)
    fill_buffer(trainer, read_episodes(config, goal_env))
    chosen = []
    for stored in trainer.replay.observation.numpy():
        own = [int(np.flatnonzero((episodes.observation == one).all((1, 2)))[0]) for one in stored]
        assert len(set(own)) == 6
        chosen.append(tuple(own))
    assert len(set(chosen)) == 3
    assert trainer.replay.valid().sum() == 3 * 6 * 30
    trainer.close()


def test_all_episodes_of_several_files_are_used(recorded: tuple[Path, Episodes], tmp_path: Path) -> None:
    path, episodes = recorded
    short = episodes.take(np.arange(2))
    cut = {name: value[:, :11] for name, value in short.arrays().items() if value.ndim > 1}
    for name in ("action", "sampled"):
        cut[name] = cut[name][:, :10]
    cut |= {"length": np.array([10, 7])}
    Episodes.from_arrays({name: cut[name] for name in cut if name in ("observation", "action", "achieved_goal",
                         "desired_goal", "length", "sampled")}, {}).save(tmp_path / "short.npz")  # fmt: skip
    config = offline(path, data=(str(path), str(tmp_path / "short.npz")))
    goal_env = open_goal_env("slide", (), 1.0)
    trainer = Trainer(config, goal_env, "cpu", 14)
    fill_buffer(trainer, read_episodes(config, goal_env))
    assert trainer.replay.length[0].tolist() == [30] * 12 + [10, 7]
    np.testing.assert_array_equal(trainer.replay.action[1, 13, :7].numpy(), episodes.action[1, :7])
    trainer.close()


def test_episodes_that_do_not_fit_are_refused(recorded: tuple[Path, Episodes], tmp_path: Path) -> None:
    path, episodes = recorded
    other = replace(episodes, metadata={"env": "push"})
    other.save(tmp_path / "other.npz")
    broken = replace(episodes, desired_goal=episodes.desired_goal * np.float32(np.nan))
    broken.save(tmp_path / "broken.npz")
    for name, word in (("other.npz", "push"), ("broken.npz", "NaN")):
        with pytest.raises(ValueError, match=f"{name}.*{word}"):
            train(offline(tmp_path / name), tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=re.escape("missing.npz")):
        train(offline(tmp_path / "missing.npz"), tmp_path / "run")
    with pytest.raises(ValueError, match=r"0\.01"):
        train(offline(path, data_share=0.01), tmp_path / "run")
    with pytest.raises(ValueError, match=r"kept\.npz"):
        train(offline(path), tmp_path / "run", keep_episodes=tmp_path / "kept.npz")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data_share": 0.0}, "data_share.*0.0"),
        ({"use": ("active",)}, "active"),
        ({"num_envs": 2}, "num_envs.*2"),
        ({"data": (), "data_share": 0.5}, "data_share.*0.5"),
        ({"cai": {"rescore": "newest"}}, "rescore.*newest"),
    ],
)
def test_settings_that_need_playing_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        offline(Path("data.npz"), **changes)


def test_a_signal_of_labels_reads_those_of_the_data(recorded: tuple[Path, Episodes], tmp_path: Path) -> None:
    episodes = recorded[1]
    replace(episodes, label={}).save(tmp_path / "bare.npz")
    config = offline(tmp_path / "bare.npz", use=("priority",), signal="oracle", data_share=0.5)
    goal_env = open_goal_env("slide", (), 1.0, labels=("exact",))
    with pytest.raises(ValueError, match=r"bare\.npz.*'exact'.*'oracle'"):
        read_episodes(config, goal_env)
    label = np.random.default_rng(0).random(episodes.sampled.shape) < 0.5
    replace(episodes, label={"exact": label}).save(tmp_path / "labelled.npz")
    config = replace(config, data=(str(tmp_path / "labelled.npz"),))
    trainer = Trainer(config, goal_env, "cpu", 6)
    fill_buffer(trainer, read_episodes(config, goal_env))
    for stored, score in zip(trainer.replay.observation[0].numpy(), trainer.replay.score[0].numpy(), strict=True):
        number = int(np.flatnonzero((episodes.observation == stored).all((1, 2)))[0])
        np.testing.assert_array_equal(score, label[number])
    trainer.close()


def test_what_changes_over_training_changes_over_rounds(recorded: tuple[Path, Episodes]) -> None:
    """PER's exponent of the importance weights is half way to 1 after half of its rounds."""
    config = offline(recorded[0], priority={"kind": "per", "beta": 0.4, "beta_episodes": 10})
    goal_env = open_goal_env("slide", (), 1.0)
    trainer = Trainer(config, goal_env, "cpu", 12)
    fill_buffer(trainer, read_episodes(config, goal_env))
    trainer.set_weights()
    assert trainer.importance.item() == pytest.approx(0.4)
    trainer.rounds = 5
    trainer.set_weights()
    assert trainer.importance.item() == pytest.approx(0.7)
    trainer.close()


def test_the_preset_differs_from_the_papers_in_what_it_says() -> None:
    config = preset("push", "offline")
    assert config.algorithm == "td3bc"
    assert config.replay.relative_goals
    assert config.agent.action_penalty == 0
