"""MiniGrid-DoorKey-8x8: an agent that turns, walks, picks up a key, drops it and opens a door with it.

The observation is the full state, not a picture: agent x, y; direction dx, dy; key x, y; whether the key is carried;
door x, y; whether the door is locked, and open. A carried key is where the agent is.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from butfor.benchmarks.environments import Observation


class DoorKey:
    """One MiniGrid-DoorKey-8x8 environment."""

    horizon = 50

    def __init__(self) -> None:
        import minigrid  # noqa: F401  # registers the environments

        made: Any = gymnasium.make("MiniGrid-DoorKey-8x8-v0")
        self.env: Any = made.unwrapped
        self.action_space: Any = self.env.action_space

    def reset(self, seed: int) -> Observation:
        self.env.reset(seed=seed)
        cells = [cell for cell in self.env.grid.grid if cell is not None]
        self.door = next(cell for cell in cells if cell.type == "door")
        self.key = next(cell for cell in cells if cell.type == "key")
        return self._observe()

    def _observe(self) -> Observation:
        env = self.env
        values = [*env.agent_pos, *env.dir_vec, *self.object_state(), env.carrying is not None, *self.door.cur_pos]
        return np.array([*values, self.door.is_locked, self.door.is_open], dtype=np.float32)

    def step(self, action: Any) -> Observation:
        self.env.step(int(action))
        return self._observe()

    def save(self) -> Any:
        env = self.env
        key = None if env.carrying is not None else tuple(int(place) for place in self.key.cur_pos)
        return tuple(env.agent_pos), env.agent_dir, key, self.door.is_locked, self.door.is_open

    def restore(self, saved: Any) -> None:
        env = self.env
        if env.carrying is None:
            env.grid.set(*self.key.cur_pos, None)
        env.agent_pos, env.agent_dir, key, self.door.is_locked, self.door.is_open = saved
        env.carrying = self.key if key is None else None
        self.key.cur_pos = np.array((-1, -1) if key is None else key)
        if key is not None:
            env.grid.set(*key, self.key)

    def object_state(self) -> NDArray[np.float64]:
        place = self.env.agent_pos if self.env.carrying is not None else self.key.cur_pos
        return np.array(place, dtype=np.float64)

    def contact(self) -> None:
        return None

    def scripted(self, rng: np.random.Generator) -> int:
        env = self.env
        actions = env.actions
        if env.carrying is not None:
            front = env.grid.get(*env.front_pos)
            if front is self.door and (self.door.is_locked or not self.door.is_open):
                return int(actions.toggle)
            return int(rng.choice([actions.forward, actions.forward, actions.left, actions.right, actions.drop]))
        way = np.array(self.key.cur_pos) - np.array(env.agent_pos)
        if tuple(env.front_pos) == tuple(self.key.cur_pos):
            return int(actions.pickup)
        ahead = int(way @ env.dir_vec)
        if ahead > 0 and env.grid.get(*env.front_pos) is None:
            return int(actions.forward)
        return int(actions.right if way @ env.right_vec > 0 else actions.left)
