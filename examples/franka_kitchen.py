"""FrankaKitchen, whose goals are dictionaries, as an environment with flat goals; entities: kettle and microwave.

python examples/franka_kitchen.py --episodes 1000
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium_robotics
import numpy as np
from gymnasium import spaces

from butfor import preset
from butfor.training.run import train

gymnasium.register_envs(gymnasium_robotics)


class FlatGoals(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Joins the goals of all tasks into one array; the reward is 0 if each is within 0.3 of its goal, else -1."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        nested: Any = env.observation_space
        self.nested: dict[str, Any] = nested.spaces
        self.observation_space = spaces.Dict({name: spaces.flatten_space(part) for name, part in self.nested.items()})
        self.edges = np.cumsum([task.shape[0] for task in self.nested["desired_goal"].values()])[:-1]

    def observation(self, observation: Any) -> Any:
        """Flatten each part of the observation into one array."""
        return {name: spaces.flatten(part, observation[name]) for name, part in self.nested.items()}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Reward of one goal or many; unlike the kitchen's own, it does not depend on what was done before."""
        tasks = np.split(np.asarray(achieved_goal) - desired_goal, self.edges, axis=-1)
        done = [np.linalg.norm(task, axis=-1) < 0.3 for task in tasks]
        return np.where(np.all(done, axis=0), 0.0, -1.0)


def make_kitchen(**options: Any) -> gymnasium.Env[Any, Any]:
    """Make the kitchen with two tasks and episodes of equal length."""
    tasks = ["kettle", "microwave"]
    kitchen = gymnasium.make("FrankaKitchen-v1", tasks_to_complete=tasks, terminate_on_tasks_completed=False, **options)
    return FlatGoals(kitchen)


gymnasium.register("FlatKitchen-v1", make_kitchen, max_episode_steps=280)


def main(run: Path = Path("runs/kitchen"), **settings: Any) -> Path:
    """Train with the preset of pick-and-place; `settings` change it."""
    entities = ("microwave=31", "kettle=32:39")  # joint positions begin at column 18
    config = replace(
        preset("pick-and-place", "fast"), env="FlatKitchen-v1", entities=entities, combine="sum",
        use=("bonus", "active"),
    )  # fmt: skip
    return train(replace(config, **settings), run, overwrite=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, default=Path("runs/kitchen"))
    parser.add_argument("--episodes", type=int, default=1000)
    main(**vars(parser.parse_args()))
