"""Tasks of butfor's own environments."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.benchmarks.environments import Observation
from butfor.envs.experts import pick_and_place
from butfor.envs.fetch import FetchVectorEnv
from butfor.envs.slide import ACCELERATION, WIDTH, SlideVectorEnv


class PickAndPlace:
    """FetchPickAndPlace, as butfor simulates it; the script is its expert with noise."""

    horizon = 50
    noise = 0.2

    def __init__(self) -> None:
        self.env = FetchVectorEnv("pick-and-place", 1, None, labels=("contact",), threads=1)
        self.action_space: Any = self.env.single_action_space
        self.obs: Any = None
        self.touched = False

    def reset(self, seed: int) -> Observation:
        self.obs, _ = self.env.reset(seed=seed)
        self.touched = False
        return self._observe()

    def _observe(self) -> Observation:
        return np.asarray(self.obs["observation"][0], dtype=np.float32)

    def step(self, action: Any) -> Observation:
        self.obs, _, _, _, info = self.env.step(np.asarray(action)[None])
        self.touched = bool(info["contact"][0])
        return self._observe()

    def save(self) -> Any:
        return self.env.save_state(), self.obs, self.touched

    def restore(self, saved: Any) -> None:
        state, self.obs, self.touched = saved
        self.env.restore_state(None, state)

    def object_state(self) -> NDArray[np.float64]:
        return self.env.save_state()[0, self.env.layout.object_pose][:3]

    def contact(self) -> bool:
        return self.touched

    def scripted(self, rng: np.random.Generator) -> Any:
        action, _ = pick_and_place(self.obs["observation"], self.obs["desired_goal"])
        noisy = np.clip(action[0], -1, 1) + self.noise * rng.standard_normal(4)
        return np.clip(noisy, -1, 1).astype(np.float32)


class Slide:
    """1DSlide; the script nudges the object again and again, at a speed of its own in each episode."""

    horizon = 30

    def __init__(self) -> None:
        self.env = SlideVectorEnv(1, None)
        self.action_space: Any = self.env.single_action_space

    def reset(self, seed: int) -> Observation:
        self.env.reset(seed=seed)
        self.speed = np.random.default_rng(seed).uniform(0.3, 2.0)
        self.touched = False
        return self._observe()

    def _observe(self) -> Observation:
        return np.array(self.env._observation[0])

    def step(self, action: Any) -> Observation:
        info = self.env.step(np.asarray(action)[None])[-1]
        self.touched = bool(info["contact"][0])
        return self._observe()

    def save(self) -> Any:
        return self._observe(), self.touched

    def restore(self, saved: Any) -> None:
        self.env._observation[0], self.touched = saved

    def object_state(self) -> NDArray[np.float64]:
        return self.env._observation[0, 2:].astype(np.float64)

    def contact(self) -> bool:
        return self.touched

    def scripted(self, rng: np.random.Generator) -> Any:
        agent, velocity, thing, _ = self.env._observation[0].astype(np.float64)
        gap = abs(thing - agent) - WIDTH
        wanted = np.sign(thing - agent) * np.clip(2 * gap, 0.3 * self.speed, 2.0)
        return np.clip([(wanted - velocity) / ACCELERATION], -1, 1).astype(np.float32)
