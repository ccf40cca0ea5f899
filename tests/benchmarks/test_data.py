"""Collection and labels, on a line whose labels are known by construction."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from butfor.benchmarks.data import RANDOM_SHARE, alternatives, collect, label
from butfor.benchmarks.environments import Task


class Line:
    """A hand on a line; an object follows the action while the hand is within 0.5 of it, and drifts otherwise."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)
    horizon = 20

    def reset(self, seed: int) -> NDArray[np.float32]:
        self.hand, self.thing = np.random.default_rng(seed).uniform(-1, 1, 2)
        return self.obs()

    def obs(self) -> NDArray[np.float32]:
        return np.array([self.hand, self.thing], dtype=np.float32)

    def step(self, action: Any) -> NDArray[np.float32]:
        if self.contact():
            self.thing += 0.1 * float(action[0])
        self.thing += 0.01
        self.hand += 0.1 * float(action[0])
        return self.obs()

    def save(self) -> Any:
        return self.hand, self.thing

    def restore(self, saved: Any) -> None:
        self.hand, self.thing = saved

    def object_state(self) -> NDArray[np.float64]:
        return np.array([self.thing])

    def contact(self) -> bool:
        return bool(abs(self.hand - self.thing) < 0.5)

    def scripted(self, rng: np.random.Generator) -> Any:
        return np.sign([self.thing - self.hand]).astype(np.float32)


LINE = Task("line", "butfor", False, [1], [0], [1], True, Line)


def test_labels_are_those_of_the_construction() -> None:
    labelled = label(LINE, 300, seed=0)
    within = np.abs(labelled.obs[:, 0] - labelled.obs[:, 1]) < 0.5
    np.testing.assert_array_equal(labelled.label, within)
    np.testing.assert_allclose(labelled.effect, np.where(within, 0.2, 0.0), atol=1e-12)
    assert 0 < within.mean() < 1


def test_moved_is_the_step_taken_and_forks_leave_no_trace() -> None:
    labelled = label(LINE, 300, seed=0)
    way = np.abs(labelled.next_obs[:, 1] - labelled.obs[:, 1])
    np.testing.assert_allclose(labelled.moved, way, atol=1e-6)
    np.testing.assert_allclose(labelled.next_obs[:, 0] - labelled.obs[:, 0], 0.1 * labelled.action[:, 0], atol=1e-6)
    assert labelled.contact is not None
    assert labelled.contact[labelled.label].all()


def test_collected_transitions_are_whole_episodes_in_order() -> None:
    data = collect(LINE, 95, seed=0)
    np.testing.assert_array_equal(data.episode, np.arange(95) // 20)
    inside = data.episode[1:] == data.episode[:-1]
    np.testing.assert_array_equal(data.next_obs[:-1][inside], data.obs[1:][inside])


def test_the_same_seed_gives_the_same_data() -> None:
    first, again, other = (collect(LINE, 60, seed=seed) for seed in (1, 1, 2))
    for name in ("obs", "action", "next_obs", "episode", "sampled"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.obs, other.obs)
    np.testing.assert_array_equal(label(LINE, 60, seed=1).obs, label(LINE, 60, seed=1).obs)


def test_fewer_transitions_are_the_first_of_more() -> None:
    np.testing.assert_array_equal(collect(LINE, 40, seed=1).obs, collect(LINE, 80, seed=1).obs[:40])


def test_sampled_actions_are_uniform_whatever_the_state() -> None:
    """8,000 transitions: the share of random steps within 5 standard errors, and no correlation with the state."""
    data = collect(LINE, 8000, seed=0)
    scripted = data.episode % 2 == 1
    count = scripted.sum()
    assert abs(data.sampled[scripted].mean() - RANDOM_SHARE) < 5 * np.sqrt(RANDOM_SHARE * (1 - RANDOM_SHARE) / count)
    drawn = data.action[data.sampled, 0]
    assert abs(drawn.mean()) < 5 * np.sqrt(1 / 3 / len(drawn))
    assert abs(drawn.var() - 1 / 3) < 5 * np.sqrt(4 / 45 / len(drawn))
    between = (data.obs[:, 1] - data.obs[:, 0])[data.sampled]
    assert abs(np.corrcoef(between, drawn)[0, 1]) < 5 / np.sqrt(len(drawn))
    script = np.sign(data.obs[:, 1] - data.obs[:, 0])
    np.testing.assert_array_equal(data.action[scripted & ~data.sampled, 0], script[scripted & ~data.sampled])


@pytest.mark.parametrize("size", [1, 4])
def test_all_corners_are_tried_where_they_are_few(size: int) -> None:
    tried = np.array(alternatives(spaces.Box(-2, 1, (size,), np.float32)))
    assert len(np.unique(tried, axis=0)) == 2**size
    assert set(tried.ravel().tolist()) == {-2.0, 1.0}


def test_of_many_corners_some_are_tried_and_both_ends_of_each_axis() -> None:
    tried = np.array(alternatives(spaces.Box(-1, 1, (8,), np.float32)))
    assert len(np.unique(tried, axis=0)) == 16 + 2 * 8
    ends = tried[(np.abs(tried).sum(axis=1) == 1)]
    np.testing.assert_array_equal(np.sort(ends @ np.arange(1, 9)), [*range(-8, 0), *range(1, 9)])
    np.testing.assert_array_equal(tried, alternatives(spaces.Box(-1, 1, (8,), np.float32)))


def test_all_discrete_actions_are_tried() -> None:
    assert alternatives(spaces.Discrete(7)) == list(range(7))
