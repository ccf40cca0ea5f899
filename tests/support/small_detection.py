"""A detection experiment small enough for tests, and labelled episodes."""

import numpy as np

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


def made() -> Episodes:
    exact = np.array([[1, 1, 0, 0], [0, 0, 1, 0]], bool)
    contact = np.array([[1, 0, 1, 0], [0, 0, 0, 1]], bool)
    shape = (2, 5, 3)
    goals, length = np.zeros(shape, np.float32), np.array([4, 3])
    return Episodes(
        np.zeros((2, 5, 25), np.float32), np.zeros((2, 4, 4), np.float32), goals, goals, length, exact, contact,
        {"exact": exact},
    )  # fmt: skip
