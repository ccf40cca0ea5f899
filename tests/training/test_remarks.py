"""Units that cannot be learned from are told of, by column; ordinary ones, and what only trembles, are not."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from support.small_training import TRACK, Track, small

from butfor.training.goal_env import open_goal_env, reward_remarks, unit_remarks
from butfor.training.run import train


def walk(steps: int = 30, num_envs: int = 4) -> Any:
    """Random walks [T, W, 1] with moves of 0.1."""
    return np.random.default_rng(0).normal(0, 0.1, (steps, num_envs, 1)).cumsum(0)


LENGTH = np.array([30, 12, 1, 30])


@pytest.mark.parametrize("factor", [1e-3, 1e-4, 1e-7])
def test_small_columns_are_named(factor: float) -> None:
    obs = np.concatenate([walk(), factor * walk(), np.full((30, 4, 1), 5.0), 1 + 1e-6 * walk()], -1)
    (text,) = unit_remarks(obs, LENGTH)  # the last one is hardly more than rounding
    assert text.startswith("columns 1 of the observation vary by less than 0.01 in random episodes")
    assert "TransformObservation" in text


def test_columns_whose_moves_are_rounded_are_named() -> None:
    offset = np.array([0.0, 5e5, 1e3, 1.0])
    scale = np.array([1.0, 1.0, 1.0, 1e-9])  # the last one trembles
    (text,) = unit_remarks(offset + scale * walk(), LENGTH)
    assert text.startswith("columns 1 of the observation are so large that float32 rounds their moves")


def test_only_what_was_played_counts() -> None:
    obs = walk()
    obs[12:, 1] = obs[1:, 2] = 5e5  # after the ends of these episodes
    assert unit_remarks(obs, LENGTH) == ()
    assert unit_remarks(obs[:1], np.ones(4, dtype=np.int64)) == ()


def test_rewards_that_the_critics_range_cannot_hold_are_told() -> None:
    assert reward_remarks((-1.0, 0.0), (-50.0, 0.0), 0.98) == ()
    assert reward_remarks((-9.0, 9.0), None, 0.98) == ()
    (text,) = reward_remarks((-100.0, 0.0), (-50.0, 0.0), 0.98)
    assert "can reach -5e+03 to 0, but the critic's targets are clipped to -50 to 0" in text
    assert "--agent.target-range LOW HIGH" in text
    assert reward_remarks((-1.0, 0.1), (-50.0, 0.0), 0.98)
    assert reward_remarks((-1.0, 0.0), (-50.0, 0.0), 0.99)


def test_a_users_environment_tells_of_its_rewards_before_it_is_trained_in(tmp_path: Path) -> None:
    class Dear(Track):
        def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
            return 100 * super().compute_reward(achieved_goal, desired_goal, info)

    told: list[str] = []
    config = small(env="dear", episodes=4)
    train(
        config, tmp_path / "run", make_env=lambda: gymnasium.wrappers.TimeLimit(Dear(), 10),
        progress=lambda stage, done, total, text: told.append(text) if stage == "environment" else None,
    )  # fmt: skip
    assert len(told) == 2
    assert told[1].startswith("rewards of random episodes, less that of a reached goal, lie between -100 and 0;")
    assert open_goal_env(TRACK).rewards == (-1.0, 0.0)


def test_a_users_environment_tells_of_its_units_before_it_is_trained_in(tmp_path: Path) -> None:
    class Milli(Track):
        def _observe(self) -> Any:
            return {name: value * 1e-3 for name, value in super()._observe().items()}

    told: list[str] = []
    train(
        small(env="milli", episodes=4), tmp_path / "run",
        make_env=lambda: gymnasium.wrappers.TimeLimit(Milli(), 10),
        progress=lambda stage, done, total, text: told.append(text) if stage == "environment" else None,
    )  # fmt: skip
    assert len(told) == 2
    assert told[1].startswith("columns 0, 1 of the observation vary by less than 0.01")
    assert open_goal_env(TRACK).remarks == open_goal_env("slide").remarks == ()
