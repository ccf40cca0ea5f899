"""The detectors that need no model."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from butfor.detection.detectors import contact, distance, moved
from butfor.rollouts.episodes import Episodes

NO_MODELS: Any = None


def episodes(**optional: Any) -> Episodes:
    """Two episodes of 3 and 1 steps; the goal's numbers past the end are nonsense."""
    achieved = np.array([[[0, 0], [3, 4], [3, 4], [3, 5]], [[1, 1], [1, 0], [99, 99], [-99, 0]]], np.float32)
    return Episodes(
        observation=np.zeros((2, 4, 1), np.float32),
        action=np.zeros((2, 3, 1), np.float32),
        achieved_goal=achieved,
        desired_goal=np.zeros((2, 4, 2), np.float32),
        length=np.array([3, 1]),
        sampled=np.ones((2, 3), bool),
        **optional,
    )


def test_moved_is_the_distance_of_each_real_step() -> None:
    score = moved(NO_MODELS, episodes())
    assert score.dtype == np.float32
    assert score.tolist() == [[5, 0, 1, 1]]  # (3, 4), nothing, 1 up; 1 down


def test_distance_is_minus_that_of_hand_and_object_before_each_real_step() -> None:
    given = episodes()
    given.observation = np.zeros((2, 4, 25), np.float32)
    given.observation[..., 3:6] = [1, 0, 0]  # the object
    given.observation[0, :3, :3] = [[1, 0, 0], [1, 3, 4], [2, 2, 2]]  # the gripper
    models: Any = SimpleNamespace(env="pick-and-place")
    score = distance(models, given)
    assert score.dtype == np.float32
    assert score.tolist() == [[0, -5, -3, -1]]  # at the object, (3, 4), (1, 2, 2); the second episode's only step: 1


def test_contact_is_the_environments_flag_of_each_real_step() -> None:
    flags = np.array([[True, False, True], [False, True, True]])
    score = contact(NO_MODELS, episodes(contact=flags))
    assert score.dtype == np.float32
    assert score.tolist() == [[1, 0, 1, 0]]


def test_contact_without_contacts_is_refused() -> None:
    with pytest.raises(ValueError, match="contact"):
        contact(NO_MODELS, episodes())
