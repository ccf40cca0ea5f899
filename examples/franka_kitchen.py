"""FrankaKitchen, whose goals are dictionaries, as a flat goal world: kettle and microwave are watched.

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
    """The goals of all tasks side by side; the reward is 0 where each is within 0.3 of its goal, else -1."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        nested: Any = env.observation_space
        self.nested: dict[str, Any] = nested.spaces
        self.observation_space = spaces.Dict({name: spaces.flatten_space(part) for name, part in self.nested.items()})
        self.edges = np.cumsum([task.shape[0] for task in self.nested["desired_goal"].values()])[:-1]

    def observation(self, observation: Any) -> Any:
        """Each part as one array."""
        return {name: spaces.flatten(part, observation[name]) for name, part in self.nested.items()}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Of the goals alone, where the kitchen's own counts what was done before, too; for one goal or for many."""
        tasks = np.split(np.asarray(achieved_goal) - desired_goal, self.edges, axis=-1)
        done = [np.linalg.norm(task, axis=-1) < 0.3 for task in tasks]
        return np.where(np.all(done, axis=0), 0.0, -1.0)


def make_kitchen(**options: Any) -> gymnasium.Env[Any, Any]:
    """The kitchen with two tasks, in episodes of equal length."""
    tasks = ["kettle", "microwave"]
    kitchen = gymnasium.make("FrankaKitchen-v1", tasks_to_complete=tasks, terminate_on_tasks_completed=False, **options)
    return FlatGoals(kitchen)


gymnasium.register("FlatKitchen-v1", make_kitchen, max_episode_steps=280)


def main(run: Path = Path("runs/kitchen"), **settings: Any) -> Path:
    """Trains in the kitchen with the settings for another world of a robot arm; `settings` change them."""
    entities = ("microwave=31", "kettle=32:39")  # joint positions stand from column 18 on
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
