"""A detection experiment small enough for tests, and labelled episodes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.detection.settings import DetectionConfig
from butfor.influence.scoring import ScoreConfig
from butfor.models.attention import AttentionConfig
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig
from butfor.rollouts.episodes import Episodes

CONFIG = DetectionConfig(
    data="scripted",
    studies=(),
    seeds=2,
    train_episodes=11,
    validation_episodes=6,
    test_episodes=10,
    model=ModelConfig(layers=1, width=8, normalize_input=False, target_scale=1.0),
    # so fast that errors rise, too, and the last weights are not the best
    fitting=FitConfig(batch_size=100, learning_rate=0.03, max_epochs=5, validate_every=1),
    scoring=ScoreConfig(actions=4),
    attention=AttentionConfig(embedding=4, feedforward=4, layers=1),
    attention_fitting=FitConfig(batch_size=100, learning_rate=0.03, max_epochs=5, validate_every=1),
)


def labelled_episodes() -> Episodes:
    """Two episodes of 4 and 3 steps with the exact label and contacts."""
    exact = np.array([[1, 1, 0, 0], [0, 0, 1, 0]], bool)
    contact = np.array([[1, 0, 1, 0], [0, 0, 0, 1]], bool)
    shape = (2, 5, 3)
    goals, length = np.zeros(shape, np.float32), np.array([4, 3])
    return Episodes(
        np.zeros((2, 5, 25), np.float32), np.zeros((2, 4, 4), np.float32), goals, goals, length, exact, contact,
        {"exact": exact},
    )  # fmt: skip


def make_episodes(observation: NDArray[Any], action: NDArray[Any], **optional: Any) -> Episodes:
    """Episodes [E, T + 1, D] of full length, whose goals do not matter."""
    count, steps = action.shape[:2]
    goals = np.zeros((count, steps + 1, 3), np.float32)
    length = np.full(count, steps, dtype=np.int64)
    sampled = optional.pop("sampled", np.zeros((count, steps), dtype=bool))
    return Episodes(
        observation.astype(np.float32), action.astype(np.float32), goals, goals, length, sampled, **optional
    )


def separable(episodes: int, free_mean: float = 0.0, gap: float = 4.0, seed: int = 0, steps: int = 20) -> Episodes:
    """A fifth of the states are influenced; their scores are N(gap, 1), those of free ones N(free_mean, 1)."""
    generator = np.random.default_rng(seed)
    label = generator.random((episodes, steps)) < 0.2
    score = generator.normal(np.where(label, gap, free_mean), 1)
    observation = np.zeros((episodes, steps + 1, 4))
    observation[:, :-1, 0] = score
    return make_episodes(observation, np.zeros((episodes, steps, 1)), label={"exact": label})
