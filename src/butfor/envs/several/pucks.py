"""Pucks: an agent and three pucks in a shallow bowl that hit each other; the third one must come to the goal.

The state is position and velocity of the agent and of each puck, [x, y, velocity x, velocity y] four times. States and
actions are float32; a step computes in float64 and rounds once. An observation is therefore the complete state: it can
be stepped again with other actions, or without one of the bodies, and gives the same bits in any batch.
"""

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from butfor.envs.several.edges import action_effects
from butfor.envs.vector import Flags, Frame, GoalVectorEnv, Indices, SingleGoalEnv, sparse_reward

Array = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

BODIES = ("agent", "first", "second", "third")
PAIRS = tuple(combinations(range(len(BODIES)), 2))
COLUMNS = 4 * len(BODIES)  # of an observation
SAVED = COLUMNS + 3  # of a saved state: also the goal and the elapsed steps
TIME_STEP = 0.05
SUBSTEPS = 5  # a body moves by at most a quarter of its radius in one of them
RADIUS = 0.08  # of every body
BOX = 1.2  # centres stay within BOX - RADIUS of the middle; the slope turns almost all bodies before
START = 0.55  # largest coordinate of a start or a goal
SLOPE = 2.0  # acceleration towards the middle, per distance from it
MASS = np.array([2.0, 1.0, 1.0, 1.0])
ACCELERATION = 20.0  # of the agent by an action of 1
DRAG = 10.0  # of the agent, per second: it approaches a speed of ACCELERATION / DRAG
FRICTION = 0.8  # deceleration of a sliding puck, which rests where the slope is weaker
RESTITUTION = 0.9  # of two bodies
WALL_RESTITUTION = 0.6
SPEED_LIMIT = 4.0
GOAL_RADIUS = 0.15
CLEARANCE = 2.5 * RADIUS  # between centres at the start
COLOURS = ((20, 20, 20), (213, 94, 0), (0, 114, 178), (230, 159, 0))  # of the agent and the pucks, as in the pages
reward = partial(sparse_reward, size=2, radius=GOAL_RADIUS)


def advance(state: npt.ArrayLike, action: npt.ArrayLike, absent: int | None = None) -> tuple[Array, Flags]:
    """Step states [..., 16] with actions [..., 2]: next states, and which pairs of `PAIRS` collided [..., 6].

    The body `absent` does not collide; the others move as if it were not there.
    """
    bodies = np.asarray(state, dtype=np.float64).reshape(*np.shape(state)[:-1], len(BODIES), 4)
    push = ACCELERATION * np.clip(np.asarray(action, dtype=np.float32), -1, 1).astype(np.float64)
    shape = np.broadcast_shapes(bodies.shape[:-2], push.shape[:-1])
    x, y, u, v = (np.broadcast_to(bodies[..., part], (*shape, len(BODIES))).copy() for part in range(4))
    collided = np.zeros((*shape, len(PAIRS)), dtype=np.bool_)
    time = TIME_STEP / SUBSTEPS
    for _ in range(SUBSTEPS):
        u -= time * SLOPE * x
        v -= time * SLOPE * y
        u[..., 0] += time * (push[..., 0] - DRAG * u[..., 0])
        v[..., 0] += time * (push[..., 1] - DRAG * v[..., 0])
        speed = np.sqrt(u[..., 1:] * u[..., 1:] + v[..., 1:] * v[..., 1:])
        slower = np.maximum(1 - time * FRICTION / np.maximum(speed, 1e-12), 0)
        u[..., 1:] *= slower
        v[..., 1:] *= slower
        for number, (one, other) in enumerate(PAIRS):
            if absent not in (one, other):
                collided[..., number] |= _collide(x, y, u, v, one, other)
        np.clip(u, -SPEED_LIMIT, SPEED_LIMIT, out=u)
        np.clip(v, -SPEED_LIMIT, SPEED_LIMIT, out=v)
        x += time * u
        y += time * v
        for place, velocity in ((x, u), (y, v)):
            outside = np.abs(place) > BOX - RADIUS
            velocity[:] = np.where(outside & (velocity * place > 0), -WALL_RESTITUTION * velocity, velocity)
            np.clip(place, RADIUS - BOX, BOX - RADIUS, out=place)
    return np.stack([x, y, u, v], axis=-1).reshape(*shape, 4 * len(BODIES)).astype(np.float32), collided


def _collide(x: Floats, y: Floats, u: Floats, v: Floats, one: int, other: int) -> Flags:
    """Exchange momentum, in place, where two bodies overlap and approach each other, and push them apart."""
    away_x = x[..., other] - x[..., one]
    away_y = y[..., other] - y[..., one]
    distance = np.maximum(np.sqrt(away_x * away_x + away_y * away_y), 1e-9)
    overlap = 2 * RADIUS - distance
    touching = overlap > 0
    if not touching.any():
        return touching
    away_x /= distance
    away_y /= distance
    closing = (u[..., one] - u[..., other]) * away_x + (v[..., one] - v[..., other]) * away_y
    impulse = (1 + RESTITUTION) * np.where(touching, np.maximum(closing, 0), 0) / (1 / MASS[one] + 1 / MASS[other])
    apart = np.where(touching, overlap, 0) / (1 / MASS[one] + 1 / MASS[other])
    for body, sign in ((one, -1 / MASS[one]), (other, 1 / MASS[other])):
        u[..., body] += sign * impulse * away_x
        v[..., body] += sign * impulse * away_y
        x[..., body] += sign * apart * away_x
        y[..., body] += sign * apart * away_y
    return np.asarray(touching)


class PucksWorld:
    """The simulator as `edges` uses it: a state is an observation or a row of `save_state`."""

    entities: tuple[str, ...] = BODIES
    action_size = 2
    tolerance = 1e-6
    goal_radius = GOAL_RADIUS

    def step(self, states: npt.NDArray[Any], actions: Array, absent: int | None = None) -> npt.NDArray[Any]:
        """Step states [n, 16 or 19]; the body `absent` touches nothing. Goal and elapsed steps stay as they are."""
        stepped = advance(self.observation(states), actions, absent)[0]
        return stepped if states.shape[1] == COLUMNS else np.concatenate([stepped, states[:, COLUMNS:]], axis=1)

    def outcome(self, states: npt.NDArray[Any]) -> Floats:
        """Position and velocity of each body: [n, 4, 4]."""
        return self.observation(states).reshape(len(states), len(BODIES), 4).astype(np.float64)

    def observation(self, states: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The first 16 columns."""
        if states.ndim != 2 or states.shape[1] not in (COLUMNS, SAVED):
            raise ValueError(
                f"states has shape {list(states.shape)}; expected [n, {COLUMNS}], observations of pucks, or "
                f"[n, {SAVED}], as save_state() returns them."
            )
        return states[:, :COLUMNS]

    def contacts(self, states: npt.NDArray[Any]) -> Flags:
        """Which bodies touch each other, to a hundredth of their radius: [n, 4, 4]."""
        places = self.outcome(states)[..., :2]
        gaps = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)
        return np.asarray((gaps <= 2.01 * RADIUS) & ~np.eye(len(BODIES), dtype=np.bool_))

    def replaced(
        self, states: npt.NDArray[Any], source: int, others: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], Flags]:
        """States with one body as in other states, and where it does not overlap with another one."""
        bodies = self.observation(states).reshape(len(states), len(BODIES), 4).copy()
        bodies[:, source] = self.observation(others).reshape(len(others), len(BODIES), 4)[:, source]
        gap = np.hypot(*np.moveaxis(bodies[..., :2] - bodies[:, source, None, :2], -1, 0))
        gap[:, source] = np.inf
        moved = np.concatenate([bodies.reshape(len(states), COLUMNS), states[:, COLUMNS:]], axis=1)
        return moved, np.asarray((gap >= 2 * RADIUS).all(axis=1))


def cue(observation: npt.ArrayLike, desired_goal: npt.ArrayLike) -> tuple[Floats, Flags]:
    """Drive the first puck into the third one if the goal is on the left, else the second one.

    The agent goes around that puck to the side away from the third one, and pushes. The script shows pucks that hit
    pucks; it does not aim the third one at the goal, but rests once it is there.
    """
    bodies = np.asarray(observation, dtype=np.float64).reshape(-1, len(BODIES), 4)
    goal = np.asarray(desired_goal, dtype=np.float64).reshape(-1, 2)
    agent = bodies[:, 0]
    struck = np.where(goal[:, :1] < 0, bodies[:, 1], bodies[:, 2])
    line = bodies[:, 3, :2] - struck[:, :2]
    line /= np.maximum(np.linalg.norm(line, axis=1, keepdims=True), 1e-9)
    offset = agent[:, :2] - struck[:, :2]
    along = (offset * line).sum(1, keepdims=True)
    aside = offset - along * line
    lateral = np.linalg.norm(aside, axis=1, keepdims=True)
    side = aside / np.maximum(lateral, 1e-9)
    around = struck[:, :2] + 3 * RADIUS * side - 1.5 * RADIUS * line
    behind = struck[:, :2] - 3 * RADIUS * line
    ready = (along < -RADIUS) & (lateral < 0.5 * RADIUS)
    ahead = (along > -RADIUS) & (lateral < 3 * RADIUS)  # the puck is in the way to the place behind it
    target = np.where(ready, struck[:, :2] + line, np.where(ahead, around, behind))
    wanted = np.clip(8 * (target - agent[:, :2]), -2, 2)
    action = (wanted - agent[:, 2:]) * 0.5 + wanted * DRAG / ACCELERATION
    reached = np.linalg.norm(bodies[:, 3, :2] - goal, axis=1) <= GOAL_RADIUS
    action = np.where(reached[:, None], -0.5 * agent[:, 2:], action)
    shape = np.shape(observation)[:-1]
    return np.clip(action, -1, 1).reshape(*shape, 2), np.ones(shape, dtype=np.bool_)


def draw(state: npt.ArrayLike, desired_goal: npt.ArrayLike) -> Frame:
    """Draw one state as a picture [240, 240, 3]: agent black, pucks green, blue and yellow, the goal zone red."""
    size = 240
    bodies = np.asarray(state, dtype=np.float64).reshape(len(BODIES), 4)
    goal = np.asarray(desired_goal, dtype=np.float64)
    frame = np.full((size, size, 3), 255.0)
    x = (np.arange(size) + 0.5) / size * 2 * BOX - BOX
    y = -x[:, None]  # rows go down

    def fill(place: npt.ArrayLike, radius: float, colour: tuple[int, int, int]) -> None:
        """Fill a disc with an anti-aliased edge."""
        column, row = np.asarray(place)
        cover = np.clip((radius - np.hypot(x - column, y - row)) * size / (2 * BOX) + 0.5, 0, 1)[..., None]
        frame[:] += cover * (np.array(colour) - frame)

    fill(goal, GOAL_RADIUS, (178, 226, 213))
    for body, colour in zip(bodies, COLOURS, strict=True):
        fill(body[:2], RADIUS, colour)
    return np.asarray(np.rint(frame), dtype=np.uint8)


class PucksVectorEnv(GoalVectorEnv):
    """Many bowls of pucks at once; `info` always has `contact` (agent and third puck) and, if asked, `label_exact`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    compute_reward = staticmethod(reward)
    achieved_goal = slice(12, 14)

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = 60,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        labels: Sequence[str] = (),
    ) -> None:
        """Make environments; the label "exact" is whether the third puck's next state depends on the action."""
        super().__init__(num_envs, max_episode_steps, render_mode, autoreset_mode, labels)
        reach = BOX - RADIUS
        high = np.tile(np.array([reach, reach, SPEED_LIMIT, SPEED_LIMIT], dtype=np.float32), len(BODIES))
        goal = spaces.Box(-BOX, BOX, (2,), np.float32)
        self._set_spaces(spaces.Box(-high, high, dtype=np.float32), goal, spaces.Box(-1, 1, (2,), np.float32))
        self._observation = np.zeros((num_envs, 4 * len(BODIES)), dtype=np.float32)
        self._goal = np.zeros((num_envs, 2), dtype=np.float32)
        self._labels = tuple(labels)

    def _start(self, envs: Indices, generators: Sequence[np.random.Generator]) -> None:
        for env, generator in zip(envs, generators, strict=True):
            places: list[Floats] = []
            while len(places) < len(BODIES):
                place = generator.uniform(-START, START, 2)
                if all(np.hypot(*(place - other)) > CLEARANCE for other in places):
                    places.append(place)
            self._observation[env] = np.pad(np.array(places), ((0, 0), (0, 2))).ravel()
            self._goal[env] = generator.uniform(-START, START, 2)

    def _advance(self, action: Array, envs: Indices | slice) -> tuple[dict[str, npt.NDArray[Any]], Flags]:
        values: dict[str, npt.NDArray[Any]] = {}
        if "exact" in self._labels:
            values["label_exact"] = action_effects(PucksWorld(), self._observation[envs])[1][:, 0, -1] > 0
        self._observation[envs], collided = advance(self._observation[envs], action)
        values["contact"] = collided[:, PAIRS.index((0, 3))]
        return values, np.zeros(len(action), dtype=np.bool_)

    def save_state(self, indices: npt.ArrayLike | slice | None = None) -> Floats:
        """Save the full state of some environments (default: all): observation, goal, elapsed steps [n, 19]."""
        chosen = self._indices(indices)
        parts = [self._observation[chosen], self._goal[chosen], self._elapsed[chosen, None]]
        return np.concatenate(parts, axis=1).astype(np.float64)

    def restore_state(self, indices: npt.ArrayLike | None, states: npt.ArrayLike) -> None:
        """Restore states [n, 19] of `save_state`; the environments [n] (None: all) then step as the saved ones."""
        chosen = self._indices(indices)
        rows = np.asarray(states, dtype=np.float64)
        if rows.shape != (len(chosen), 19) or not np.isfinite(rows).all():
            raise ValueError(f"states has shape {rows.shape}; expected finite values of shape [{len(chosen)}, 19].")
        self._observation[chosen] = rows[:, :16]
        self._goal[chosen] = rows[:, 16:18]
        self._elapsed[chosen] = rows[:, 18]
        self._started[chosen] = True
        self._finished[chosen] = False

    def _indices(self, indices: npt.ArrayLike | slice | None) -> Indices:
        chosen: Any = slice(None) if indices is None else indices
        return np.atleast_1d(np.arange(self.num_envs)[chosen])

    def render(self) -> tuple[Frame, ...] | None:
        """Return the current picture of every environment, or None without a render mode."""
        self._check_usable("render", self._started.all())
        return tuple(map(draw, self._observation, self._goal)) if self.render_mode else None


class PucksEnv(SingleGoalEnv):
    """One bowl of pucks; `info` has `contact`, `is_success` and the label asked for."""

    metadata = PucksVectorEnv.metadata
    compute_reward = staticmethod(reward)
    vector_class = PucksVectorEnv
