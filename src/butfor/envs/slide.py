"""1DSlide: an agent on a line hits an object once so that it slides into a goal zone that the agent cannot reach.

The state is [agent position, agent velocity, object position, object velocity]. States and actions are float32; a step
computes in float64 and rounds once. An observation is therefore the complete state: stepping a stored observation with
its stored action gives the stored next observation bit for bit, in any batch.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from butfor.envs.vector import Flags, Frame, GoalVectorEnv, Indices, SingleGoalEnv, sparse_reward

Array = npt.NDArray[np.float32]

TIME_STEP = 0.1
WIDTH = 0.2  # of the agent and of the object: they touch when their centres are this far apart
MASS_RATIO = 1.0 / 0.5  # agent to object: a hit adds this multiple of the agent's velocity to the object's
ACCELERATION = 5.0 * TIME_STEP / 1.0  # velocity a full action adds in one step
FRICTION = 0.15 * 9.81 * TIME_STEP  # velocity a sliding object loses in one step
SPEED_LIMIT = 5.0
LINE_LIMIT = 5.0
AGENT_LIMIT = -0.5  # the agent's centre cannot pass it
GOAL_RADIUS = 0.5
LABEL_THRESHOLD = 1e-5
reward = partial(sparse_reward, size=1, radius=GOAL_RADIUS)


def draw(state: npt.ArrayLike, desired_goal: npt.ArrayLike) -> Frame:
    """Draw one state as a picture [120, 480, 3], 40 pixels a unit: goal zone red, object green, agent black."""
    agent, _, body, _ = np.asarray(state, np.float32)
    (goal,) = np.asarray(desired_goal, np.float32)
    frame = np.full((120, 480, 3), 255.0)

    def fill(left: float, right: float, top: int, bottom: int, colour: tuple[int, int, int]) -> None:
        """Fill a rectangle given in units of the line across and in pixels down; its side edges are anti-aliased."""
        column = np.arange(480)
        cover = np.clip(np.minimum(240 + 40 * right, column + 1) - np.maximum(240 + 40 * left, column), 0, 1)
        frame[top:bottom] += cover[:, None] * (np.array(colour) - frame[top:bottom])

    half = WIDTH / 2
    fill(goal - GOAL_RADIUS, goal + GOAL_RADIUS, 30, 90, (178, 226, 213))
    fill(goal - 0.025, goal + 0.025, 30, 90, (0, 158, 115))
    for top in range(14, 90, 8):
        fill(AGENT_LIMIT - 0.025, AGENT_LIMIT + 0.025, top, top + 4, (120, 120, 120))
    fill(-LINE_LIMIT - half, LINE_LIMIT + half, 90, 93, (60, 60, 60))
    for wall in (-LINE_LIMIT - WIDTH, LINE_LIMIT + WIDTH):  # walls stop centres: half a width further in
        fill(wall - half, wall + half, 14, 93, (150, 150, 150))
    fill(body - half, body + half, 74, 90, (213, 94, 0))
    fill(agent - half, agent + half, 74, 90, (20, 20, 20))
    return np.asarray(np.rint(frame), dtype=np.uint8)


def _advance(state: Array, push: Array) -> tuple[npt.NDArray[np.float64], Flags]:
    """Compute one step in this order: push (clipped to [-1, 1]), move, contact, friction, slide, walls."""
    agent, agent_velocity, body, velocity = np.moveaxis(state.astype(np.float64), -1, 0)
    side = np.sign(body - agent)
    pushed = agent_velocity + ACCELERATION * np.clip(push, -1, 1).astype(np.float64)
    agent_velocity = np.clip(pushed, -SPEED_LIMIT, SPEED_LIMIT)
    agent = agent + TIME_STEP * agent_velocity

    contact = side * (agent - body) + WIDTH >= 0  # against the object's place before it moves
    velocity = np.where(contact, velocity + MASS_RATIO * agent_velocity, velocity)
    agent = np.where(contact, body - side * WIDTH, agent)
    agent_velocity = np.where(contact, 0.0, agent_velocity)

    velocity = np.where(velocity > 0, np.maximum(velocity - FRICTION, 0.0), velocity)
    body = body + TIME_STEP * velocity

    velocity = np.where(body >= LINE_LIMIT, 0.0, velocity)
    body = np.minimum(body, LINE_LIMIT)
    # The wall at +5 stops the agent as well, but it lies behind the agent's own limit.
    agent_velocity = np.where((agent >= AGENT_LIMIT) | (agent <= -LINE_LIMIT), 0.0, agent_velocity)
    agent = np.clip(agent, -LINE_LIMIT, AGENT_LIMIT)
    return np.stack(np.broadcast_arrays(agent, agent_velocity, body, velocity), axis=-1), contact


def outcome(state: Array, action: Array) -> tuple[Array, Flags, Flags]:
    """Step states [..., 4] with actions [..., 1]: return next states, contacts [...] and exact labels [...].

    The label of a state does not depend on the action: +1 or -1 makes contact and changes the object's velocity.
    """
    one = np.ones_like(action[..., 0])
    after, contact = _advance(state, np.stack([action[..., 0], one, -one]))  # [3, ..., 4]
    changed = contact[1:] & (np.abs(after[1:, ..., 3] - state[..., 3]) > LABEL_THRESHOLD)
    return after[0].astype(np.float32), contact[0], np.asarray(changed.any(axis=0))


class SlideVectorEnv(GoalVectorEnv):
    """Many slide environments at once; `info` always has `contact` and `label_exact` of the state before the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    compute_reward = staticmethod(reward)
    achieved_goal = slice(2, 3)

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = 30,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        labels: Sequence[str] = (),
    ) -> None:
        """Make environments; `labels` changes nothing, because `exact` and `contact` are always reported."""
        super().__init__(num_envs, max_episode_steps, render_mode, autoreset_mode, labels)
        # The agent only catches objects slower than itself, so a hit leaves them below 5 + 2 x 5.
        high = np.array([LINE_LIMIT, SPEED_LIMIT, LINE_LIMIT, 3 * SPEED_LIMIT], dtype=np.float32)
        goal = spaces.Box(-LINE_LIMIT, LINE_LIMIT, (1,), np.float32)
        self._set_spaces(spaces.Box(-high, high, dtype=np.float32), goal, spaces.Box(-1, 1, (1,), np.float32))
        self._observation = np.zeros((num_envs, 4), dtype=np.float32)
        self._goal = np.zeros((num_envs, 1), dtype=np.float32)

    def _start(self, envs: Indices, generators: Sequence[np.random.Generator]) -> None:
        draws = np.stack([generator.uniform(-1, 1, 3) for generator in generators])
        agent = -3.9 + draws[:, 0]
        body = agent + 1.5 + 0.5 * draws[:, 1]
        rest = np.zeros_like(agent)
        self._observation[envs] = np.stack([agent, rest, body, rest], axis=-1)
        self._goal[envs, 0] = 2.5 + 2.0 * draws[:, 2]

    def _advance(self, action: Array, envs: Indices | slice) -> tuple[dict[str, npt.NDArray[Any]], Flags]:
        self._observation[envs], contact, label = outcome(self._observation[envs], action)
        return {"contact": contact, "label_exact": label}, np.zeros(len(action), dtype=np.bool_)

    def render(self) -> tuple[Frame, ...] | None:
        """Return the current picture of every environment, or None without a render mode."""
        self._check_usable("render", self._started.all())
        return tuple(map(draw, self._observation, self._goal)) if self.render_mode else None


class SlideEnv(SingleGoalEnv):
    """One slide environment; `info` has `contact`, `label_exact` and `is_success`."""

    metadata = SlideVectorEnv.metadata
    compute_reward = staticmethod(reward)
    vector_class = SlideVectorEnv
