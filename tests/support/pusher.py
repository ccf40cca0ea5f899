"""A small goal-conditioned environment of MuJoCo that is not built in: a pusher on a rail, and a puck before it."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 8
MODEL = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body name="wall" pos="1 0 0"><geom type="box" size="0.02 0.2 0.1"/></body>
    <body name="pusher">
      <joint name="rail" type="slide" axis="1 0 0" damping="2"/>
      <geom type="box" size="0.05 0.1 0.05" mass="1"/>
    </body>
    <body name="puck" pos="0.15 0 0">
      <joint type="slide" axis="1 0 0" damping="0.5"/>
      <geom type="cylinder" size="0.05 0.02" mass="0.2"/>
    </body>
  </worldbody>
  <actuator><motor joint="rail" gear="20"/></actuator>
</mujoco>
"""


class Pusher(gymnasium.Env[Any, Any]):
    """Push the puck to x = 0.3 or beyond."""

    metadata: dict[str, Any] = {"render_modes": [], "render_fps": 20}

    def __init__(self, **kwargs: Any) -> None:
        import mujoco

        self.mujoco: Any = mujoco
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        box = {"observation": 4, "achieved_goal": 1, "desired_goal": 1}
        self.observation_space = spaces.Dict(
            {name: spaces.Box(-np.inf, np.inf, (size,), np.float64) for name, size in box.items()}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[0] = self.np_random.uniform(-0.2, 0.0)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.data.ctrl[:] = action
        for _ in range(5):
            self.mujoco.mj_step(self.model, self.data)
        obs = self._observation()
        return obs, float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})), False, False, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return np.where(achieved_goal[..., 0] >= desired_goal[..., 0], 0.0, -1.0)

    def _observation(self) -> dict[str, Any]:
        place = np.array([self.data.qpos[1] + 0.15])
        state = np.concatenate([self.data.qpos[:1], place, self.data.qvel])
        return {"observation": state, "achieved_goal": place, "desired_goal": np.array([0.3])}


def make_pusher() -> gymnasium.Env[Any, Any]:
    """The environment with a time limit."""
    return gymnasium.wrappers.TimeLimit(Pusher(), STEPS)


def register_pusher() -> str:
    """Register the environment, and return its id."""
    if "Pusher1D-v0" not in gymnasium.registry:
        gymnasium.register("Pusher1D-v0", Pusher, max_episode_steps=STEPS)
    return "Pusher1D-v0"
