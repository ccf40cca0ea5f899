"""A custom environment with two objects, and an agent that explores what it can influence.

    python examples/two_objects.py

A finger pushes two pucks on a table; the red one has to reach a goal. The influence model predicts both pucks, and the
larger of the two influences is used for replay, reward and exploration.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from butfor import Influence, preset
from butfor.training.run import train


def _box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float64)


class TwoPucks(gymnasium.Env[Any, Any]):
    """A finger that moves by up to 0.1 per step, together with every puck that it touches."""

    observation_space: Any = spaces.Dict(observation=_box(6), achieved_goal=_box(2), desired_goal=_box(2))
    action_space: Any = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Place the finger in the middle, and the pucks and the goal around it."""
        super().reset(seed=seed)
        self.places, self.goal = self.np_random.uniform(-0.5, 0.5, (3, 2)), self.np_random.uniform(-0.5, 0.5, 2)
        self.places[0] = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the finger and the pucks within 0.3 of it."""
        touched = np.linalg.norm(self.places - self.places[0], axis=1) < 0.3
        self.places[touched] = np.clip(self.places[touched] + 0.1 * np.asarray(action), -1, 1)
        reward = float(self.compute_reward(self.places[1], self.goal, {}))
        return self._observe(), reward, False, False, {"is_success": reward == 0}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """0 if the red puck is within 0.15 of the goal, else -1; for one goal or many."""
        return np.where(np.linalg.norm(achieved_goal - desired_goal, axis=-1) < 0.15, 0.0, -1.0)

    def _observe(self) -> dict[str, Any]:
        """Positions of finger, red puck and blue puck; that of the red puck is the achieved goal."""
        finger_red_blue = self.places.flatten()
        return {"observation": finger_red_blue, "achieved_goal": finger_red_blue[2:4], "desired_goal": self.goal.copy()}


gymnasium.register("TwoPucks-v0", lambda **options: TwoPucks(), max_episode_steps=30)


def main(run: Path = Path("runs/two-objects"), **settings: Any) -> dict[str, Any]:
    """Train with both pucks as entities; print the influence on each at the red puck, the blue puck and neither."""
    small = preset("slide")  # small networks and few batches, enough for a small environment
    cai = replace(small.cai, network=replace(small.cai.network, target_scale=None))  # measured instead
    config = replace(
        small, env="TwoPucks-v0", entities=("red=2:4", "blue=4:6"), combine="max",
        use=("priority", "bonus", "active"), cai=cai,
    )  # fmt: skip
    train(replace(config, **settings), run, overwrite=True)
    influence = Influence.load(run / "influence.safetensors")
    places = {"at the red puck": [0.4, 0.4], "at the blue puck": [-0.4, -0.4], "at neither": [0.4, -0.4]}
    scores = influence.score(np.array([[*finger, 0.4, 0.4, -0.4, -0.4] for finger in places.values()]))
    for row, place in enumerate(places):
        print(f"{place:>16}: " + ", ".join(f"CAI of {name} {score[row]:.2f}" for name, score in scores.items()))
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, default=Path("runs/two-objects"))
    parser.add_argument("--episodes", type=int, default=400)
    main(**vars(parser.parse_args()))
