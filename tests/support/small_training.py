"""Training runs small enough for tests, and what their folders hold."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import ModelConfig
from butfor.runs.reading import read_metrics
from butfor.training.agents.policy import AgentConfig
from butfor.training.exploration import ExploreConfig
from butfor.training.settings import Config, Use
from butfor.training.signals.cai import CaiConfig

ALL_USES: tuple[Use, ...] = ("priority", "bonus", "active")
SMALL = Config(
    env="slide",
    episodes=10,
    warmup=4,
    evaluate_every=3,
    evaluation_episodes=3,
    agent=AgentConfig(layers=2, width=8, batch_size=8, updates=2, normalizer_batches=2),
    explore=ExploreConfig(candidates=4),
    fit_every=3,
    fit_schedule=((4, 30), (1000, 10)),
    cai=CaiConfig(
        ModelConfig(layers=2, width=8, activation="tanh", spectral_norm_hidden=False, target_scale=1.0),
        ScoreConfig(actions=4),
        batch_size=8,
        newest_from=6,
    ),
)


def changed(config: Any, **changes: Any) -> Any:
    """A config with some fields replaced; a dict stands for changes within a field."""
    values = {
        name: changed(getattr(config, name), **value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return dataclasses.replace(config, **values)


def small(**changes: Any) -> Config:
    """Ten episodes of slide, the first four random, in a quarter of a second."""
    config: Config = changed(SMALL, **changes)
    return config


def brief(config: Config, **changes: Any) -> Config:
    """Any settings, with only so much work that everything happens: two rounds of the model, updates, an evaluation."""
    short: Config = changed(
        config, episodes=7, warmup=4, evaluate_every=10, evaluation_episodes=1,
        agent={"updates": 2, "normalizer_batches": 1}, fit_every=2, fit_schedule=((4, 3), (1000, 2)),
    )  # fmt: skip
    result: Config = changed(short, **changes)
    return result


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without the times, which no two runs share."""
    rows = read_metrics(folder)
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def models(folder: Path) -> list[bytes]:
    """The bytes of the trained models of a run."""
    paths = [folder / name for name in ("model.safetensors", "influence.safetensors")]
    return [path.read_bytes() for path in paths if path.exists()]


def results(folder: Path) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Everything that must be the same to the bit after an interruption."""
    return models(folder), metrics(folder)


def copy_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """What a module holds now."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


class Track(gymnasium.Env[Any, Any]):
    """A point on a line, pushed about; episodes end after 3 to 12 steps, 10 at most. It breaks when it is told to."""

    observation_space: spaces.Space[Any] = spaces.Dict(
        {name: spaces.Box(-np.inf, np.inf, (size,), np.float64) for name, size in
         (("observation", 2), ("achieved_goal", 1), ("desired_goal", 1))}
    )  # fmt: skip
    action_space: spaces.Space[Any] = spaces.Box(-1, 1, (1,), np.float32)
    steps = 0
    breaks_at: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal, self.time = *self.np_random.normal(size=2), 0
        self.end = int(self.np_random.integers(3, 13))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Track.steps += 1
        if Track.steps == Track.breaks_at:
            raise ZeroDivisionError("the track has no length")
        self.place, self.time = self.place + 0.3 * float(action[0]), self.time + 1
        reached = abs(self.place - self.goal) < 0.3
        return self._observe(), 0.0, self.time == self.end, False, {"is_success": reached}

    def _observe(self) -> Any:
        place, goal = np.array([self.place]), np.array([self.goal])
        return {"observation": np.array([self.time, self.place]), "achieved_goal": place, "desired_goal": goal}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -(np.abs(achieved_goal - desired_goal)[..., 0] >= 0.3).astype(np.float32)


TRACK = "butfor-test/Track-v0"
gymnasium.register(TRACK, Track, max_episode_steps=10)  # type: ignore[arg-type]
