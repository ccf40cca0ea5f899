"""1DSlide: an agent on a line hits an object once so that it slides into a goal zone it cannot reach itself.

The state is [agent position, agent velocity, object position, object velocity]. States and actions are
float32; a step computes in float64 and rounds once. So an observation is the complete state: stepping a
stored observation with its stored action gives the stored next observation bit for bit, in any batch.
"""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Array = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Observation = dict[str, Array]
Info = dict[str, Any]

TIME_STEP = 0.1
WIDTH = 0.2  # of the agent and of the object: they touch when their centres are this far apart
MASS_RATIO = 1.0 / 0.5  # agent to object: a hit adds this multiple of the agent's velocity to the object's
ACCELERATION = 5.0 * TIME_STEP / 1.0  # velocity a full action adds in one step
FRICTION = 0.15 * 9.81 * TIME_STEP  # velocity a sliding object loses in one step
SPEED_LIMIT = 5.0
WORLD_LIMIT = 5.0
AGENT_LIMIT = -0.5  # the agent's centre cannot pass it
GOAL_RADIUS = 0.5
LABEL_THRESHOLD = 1e-5
MAX_EPISODE_STEPS = 30  # of the registered world; SlideEnv itself never ends an episode


def step(state: npt.ArrayLike, action: npt.ArrayLike) -> tuple[Array, Flags]:
    """One step of the physics: state [..., 4], action [..., 1] -> next state [..., 4], contact [...]."""
    state, action = _floats("state", state, 4), _floats("action", action, 1)
    try:
        np.broadcast_shapes(state.shape[:-1], action.shape[:-1])
    except ValueError:
        raise ValueError(f"state {state.shape} and action {action.shape} differ in their leading dimensions.") from None
    next_state, contact = _advance(state, action[..., 0])
    return next_state.astype(np.float32), contact


def influence(state: npt.ArrayLike) -> Flags:
    """The exact label: action +1 or -1 makes contact and changes the object's velocity; [..., 4] -> [...]."""
    checked = _floats("state", state, 4)
    return _outcome(checked, np.zeros_like(checked[..., :1]))[2]


def reward(achieved_goal: Any, desired_goal: Any, info: Any = None) -> Any:
    """0 within 0.5 of the goal, else -1, float32; [..., 1] numpy arrays or torch tensors -> [...]; info is unused."""
    for name, goal in (("achieved", achieved_goal), ("desired", desired_goal)):
        if tuple(getattr(goal, "shape", ()))[-1:] != (1,):
            given = f"shape {tuple(goal.shape)}" if hasattr(goal, "shape") else f"type {type(goal).__name__}"
            raise ValueError(f"The {name} goal has {given}; expected a numpy array or torch tensor [..., 1].")
    success = abs(achieved_goal - desired_goal)[..., 0] <= GOAL_RADIUS
    return (success.astype(np.float32) if hasattr(success, "astype") else success.float()) - 1


def impact_speed(distance: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The agent's speed at impact after which a resting object slides exactly this far.

    Hit to u = 2 speed, the object moves TIME_STEP (u - k FRICTION) in its k-th step, k = 1 .. n with
    n = floor(u / FRICTION). For u = n FRICTION the sum is TIME_STEP FRICTION n (n - 1) / 2, which gives n for
    a distance; solving the sum for u then gives the speed.
    """
    steps_worth = np.asarray(distance, dtype=np.float64) / TIME_STEP
    n = np.floor((1 + np.sqrt(1 + 8 * steps_worth / FRICTION)) / 2)
    return np.asarray((steps_worth / n + FRICTION * (n + 1) / 2) / MASS_RATIO)


def scripted_action(
    observation: Mapping[str, npt.ArrayLike] | npt.ArrayLike,
    generator: np.random.Generator,
    desired_goal: npt.ArrayLike | None = None,
    *,
    noise: float = 0.0,
    random_share: float = 0.0,
) -> tuple[Array, Flags]:
    """A memoryless hitter: (action [..., 1], sampled [...]), sampled marking actions drawn uniformly.

    While the object rests, left of its goal zone and within the agent's reach, the agent steers towards the
    impact speed that lets it slide to the goal, with Gaussian noise of standard deviation `noise`; otherwise,
    and with probability `random_share`, it acts uniformly at random. `observation` is an observation dict, or
    states [..., 4] together with desired_goal [..., 1].
    """
    if not noise >= 0 or not 0 <= random_share <= 1:
        raise ValueError(f"noise is {noise}, random_share {random_share}; expected noise >= 0, 0 <= share <= 1.")
    states = observation["observation"] if isinstance(observation, Mapping) else observation
    desired_goal = observation["desired_goal"] if isinstance(observation, Mapping) else desired_goal
    if desired_goal is None:
        raise ValueError("Got states without goals; pass desired_goal [..., 1] or an observation dict.")
    state, goal = _floats("observation", states, 4), _floats("desired_goal", desired_goal, 1)[..., 0]
    agent_velocity, position, velocity = state[..., 1], state[..., 2], state[..., 3]
    can_hit = (velocity == 0) & (position < goal - GOAL_RADIUS) & (position - WIDTH <= AGENT_LIMIT)
    needed = (impact_speed(np.maximum(goal - position, 0)) - agent_velocity) / ACCELERATION
    # Every draw is made for every world, so one world's situation never shifts the draws of another.
    uniform = generator.uniform(-1, 1, can_hit.shape)
    steered = np.clip(np.clip(needed, -1, 1) + noise * generator.standard_normal(can_hit.shape), -1, 1)
    sampled = ~can_hit | (generator.random(can_hit.shape) < random_share)
    return np.where(sampled, uniform, steered).astype(np.float32)[..., None], sampled


def draw(state: npt.ArrayLike, desired_goal: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """A picture [120, 480, 3] of one world, 40 pixels a unit: goal zone red, object green, agent black."""
    agent, _, body, _ = _floats("state", state, 4, leading=())
    (goal,) = _floats("desired_goal", desired_goal, 1, leading=())
    frame = np.full((120, 480, 3), 255.0)

    def fill(left: float, right: float, top: int, bottom: int, colour: tuple[int, int, int]) -> None:
        """Fill a rectangle given in world units across and pixels down; its side edges are anti-aliased."""
        column = np.arange(480)
        cover = np.clip(np.minimum(240 + 40 * right, column + 1) - np.maximum(240 + 40 * left, column), 0, 1)
        frame[top:bottom] += cover[:, None] * (np.array(colour) - frame[top:bottom])

    half = WIDTH / 2
    fill(goal - GOAL_RADIUS, goal + GOAL_RADIUS, 30, 90, (250, 205, 200))
    fill(goal - 0.025, goal + 0.025, 30, 90, (205, 60, 50))
    for top in range(14, 90, 8):
        fill(AGENT_LIMIT - 0.025, AGENT_LIMIT + 0.025, top, top + 4, (120, 120, 120))
    fill(-WORLD_LIMIT - half, WORLD_LIMIT + half, 90, 93, (60, 60, 60))
    for wall in (-WORLD_LIMIT - WIDTH, WORLD_LIMIT + WIDTH):  # walls stop centres: half a width further in
        fill(wall - half, wall + half, 14, 93, (150, 150, 150))
    fill(body - half, body + half, 74, 90, (40, 150, 80))
    fill(agent - half, agent + half, 74, 90, (20, 20, 20))
    return np.asarray(np.rint(frame), dtype=np.uint8)


def _advance(state: Array, push: Array) -> tuple[npt.NDArray[np.float64], Flags]:
    """The order of one step: push (clipped to [-1, 1]), move, contact, friction, slide, walls."""
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

    velocity = np.where(body >= WORLD_LIMIT, 0.0, velocity)
    body = np.minimum(body, WORLD_LIMIT)
    # The world's wall at +5 stops the agent as well, but it lies behind the agent's own limit.
    agent_velocity = np.where((agent >= AGENT_LIMIT) | (agent <= -WORLD_LIMIT), 0.0, agent_velocity)
    agent = np.clip(agent, -WORLD_LIMIT, AGENT_LIMIT)
    return np.stack(np.broadcast_arrays(agent, agent_velocity, body, velocity), axis=-1), contact


def _outcome(state: Array, action: Array) -> tuple[Array, Flags, Flags]:
    """Next state, contact and the exact influence label of the state before the step, in one pass."""
    one = np.ones_like(action[..., 0])
    after, contact = _advance(state, np.stack([action[..., 0], one, -one]))  # [3, ..., 4]
    changed = contact[1:] & (np.abs(after[1:, ..., 3] - state[..., 3]) > LABEL_THRESHOLD)
    return after[0].astype(np.float32), contact[0], np.asarray(changed.any(axis=0))


def _start(generators: Sequence[np.random.Generator]) -> tuple[Array, Array]:
    """Initial states [N, 4] and goals [N, 1], three draws from each world's generator."""
    draws = np.stack([generator.uniform(-1, 1, 3) for generator in generators])
    agent = -3.9 + draws[:, 0]
    body = agent + 1.5 + 0.5 * draws[:, 1]
    rest = np.zeros_like(agent)
    goal = 2.5 + 2.0 * draws[:, 2]
    return np.stack([agent, rest, body, rest], axis=-1).astype(np.float32), goal[:, None].astype(np.float32)


def _floats(name: str, values: npt.ArrayLike, width: int, leading: tuple[int, ...] | None = None) -> Array:
    """The values as float32 [..., width] or [*leading, width] without NaN, or an error that says what was given."""
    array = np.asarray(values, dtype=np.float32)
    if array.shape[-1:] != (width,) or leading not in (None, array.shape[:-1]):
        expected = f"[..., {width}]" if leading is None else f"{(*leading, width)}"
        raise ValueError(f"{name} has shape {array.shape}; expected {expected}.")
    if np.isnan(array).any():
        raise ValueError(f"{name} contains NaN; expected finite numbers, check what computed it.")
    return array


def _observe(state: Array, goal: Array) -> Observation:
    """The observation dict, in arrays of its own."""
    return {"observation": state.copy(), "achieved_goal": state[..., 2:3].copy(), "desired_goal": goal.copy()}


def _check_usable(verb: str, closed: bool, started: bool) -> None:
    """Refuse to step or render a world that was closed or never reset."""
    if closed:
        raise ClosedEnvironmentError(f"{verb}() after close(); make a new world.")
    if not started:
        raise ResetNeeded(f"{verb}() before reset(); call reset() first.")


class SlideEnv(gymnasium.Env[Observation, Array]):
    """One slide world; gymnasium.make limits its episodes to 30 steps, it never terminates itself."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    compute_reward = staticmethod(reward)

    def __init__(self, render_mode: str | None = None) -> None:
        """Make a world that has to be reset before its first step."""
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; expected 'rgb_array' or None.")
        self.render_mode = render_mode
        # The agent only catches objects slower than itself, so a hit leaves them below 5 + 2 x 5.
        high = np.array([WORLD_LIMIT, SPEED_LIMIT, WORLD_LIMIT, 3 * SPEED_LIMIT], dtype=np.float32)
        goal = spaces.Box(-WORLD_LIMIT, WORLD_LIMIT, (1,), np.float32)
        state = spaces.Box(-high, high, dtype=np.float32)
        parts: dict[str, spaces.Space[Any]] = {"observation": state, "achieved_goal": goal, "desired_goal": goal}
        self.observation_space: spaces.Space[Any] = spaces.Dict(parts)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._state, self._goal = np.zeros(4, dtype=np.float32), np.zeros(1, dtype=np.float32)
        self._started = self._closed = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        """Start an episode with agent, object and goal drawn anew."""
        _check_usable("reset", self._closed, started=True)
        super().reset(seed=seed)
        states, goals = _start([self.np_random])
        self._state, self._goal, self._started = states[0], goals[0], True
        return _observe(self._state, self._goal), {}

    def step(self, action: npt.ArrayLike) -> tuple[Observation, float, bool, bool, Info]:
        """One step; info holds contact, label_exact (of the state before the step) and is_success."""
        _check_usable("step", self._closed, self._started)
        self._state, contact, label = _outcome(self._state, _floats("action", action, 1, leading=()))
        value = float(reward(self._state[2:3], self._goal))
        info = {"contact": bool(contact), "label_exact": bool(label), "is_success": value == 0}
        return _observe(self._state, self._goal), value, False, False, info

    def render(self) -> npt.NDArray[np.uint8] | None:
        """The current picture, or None without a render mode."""
        _check_usable("render", self._closed, self._started)
        return draw(self._state, self._goal) if self.render_mode else None

    def close(self) -> None:
        """Refuse further use."""
        self._closed = True


class SlideVectorEnv(VectorEnv[Observation, Array, npt.NDArray[Any]]):
    """Many slide worlds at once; world i with a seed does exactly what SlideEnv does with that seed."""

    compute_reward = staticmethod(reward)

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = MAX_EPISODE_STEPS,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        """Make worlds to be reset before their first step; max_episode_steps None or -1 means no limit."""
        if num_envs < 1 or max_episode_steps == 0 or (max_episode_steps or 0) < -1:
            given = f"num_envs is {num_envs} and max_episode_steps {max_episode_steps}"
            raise ValueError(f"{given}; expected at least 1 (max_episode_steps None or -1 for no limit).")
        self.num_envs, self.render_mode = num_envs, render_mode
        self.max_episode_steps = None if max_episode_steps == -1 else max_episode_steps
        self._limit = self.max_episode_steps or np.inf
        one = SlideEnv(render_mode)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**SlideEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.single_action_space = one.observation_space, one.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators: list[np.random.Generator] = []
        self._state = np.zeros((num_envs, 4), dtype=np.float32)
        self._goal = np.zeros((num_envs, 1), dtype=np.float32)
        self._elapsed = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Info | None = None
    ) -> tuple[Observation, Info]:
        """Reset all worlds or those of options["reset_mask"]; the others keep their state and observation."""
        _check_usable("reset", self.closed, started=True)
        if isinstance(seed, int | np.integer):
            seed = range(int(seed), int(seed) + self.num_envs)
        seeds = [None] * self.num_envs if seed is None else [one if one is None else index(one) for one in seed]
        if len(seeds) != self.num_envs:
            raise ValueError(f"Got {len(seeds)} seeds for {self.num_envs} worlds; expected one per world.")
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_)))
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] is {mask.dtype} of shape {mask.shape} with {np.count_nonzero(mask)} "
                f"worlds set; expected a bool array of shape ({self.num_envs},) with at least one True."
            )
        if not self._generators and not mask.all():
            raise ResetNeeded("The first reset() has a reset_mask that leaves worlds out; reset all first.")
        generators = self._generators or [seeding.np_random()[0] for _ in seeds]
        self._generators = [
            seeding.np_random(seeds[world])[0] if mask[world] and seeds[world] is not None else generator
            for world, generator in enumerate(generators)
        ]
        self._restart(mask)
        return _observe(self._state, self._goal), {}

    def step(self, actions: npt.ArrayLike) -> tuple[Observation, Array, Flags, Flags, Info]:
        """Step all worlds; finished ones are reset instead (NEXT_STEP) or refused (DISABLED)."""
        _check_usable("step", self.closed, bool(self._generators))
        action = _floats("actions", actions, 1, leading=(self.num_envs,))
        resetting = self._elapsed >= self._limit  # the worlds that finished in the last step
        if self.autoreset_mode is AutoresetMode.DISABLED and resetting.any():
            finished = np.flatnonzero(resetting).tolist()
            raise ResetNeeded(f"Worlds {finished} have finished; reset them first, by options={{'reset_mask': ...}}.")
        self._state, contact, label = _outcome(self._state, action)
        self._elapsed += 1
        if resetting.any():
            self._restart(resetting)
        rewards = np.where(resetting, np.float32(0), reward(self._state[:, 2:3], self._goal))
        truncated = self._elapsed >= self._limit
        values = {"contact": contact, "label_exact": label, "is_success": rewards == 0}
        infos = _infos(values, ~resetting)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and truncated.any():
            infos = {**_infos(values, ~truncated), **self._final(values, truncated)}
            self._restart(truncated)
        return _observe(self._state, self._goal), rewards, np.zeros_like(truncated), truncated, infos

    def render(self) -> tuple[npt.NDArray[np.uint8], ...] | None:
        """The current picture of every world, or None without a render mode."""
        _check_usable("render", self.closed, bool(self._generators))
        return tuple(map(draw, self._state, self._goal)) if self.render_mode else None

    def _restart(self, mask: Flags) -> None:
        """Start new episodes in the worlds of the mask."""
        chosen = np.flatnonzero(mask)
        self._state[chosen], self._goal[chosen] = _start([self._generators[world] for world in chosen])
        self._elapsed[chosen] = 0

    def _final(self, values: dict[str, Flags], finished: Flags) -> Info:
        """final_obs and final_info of worlds that are about to be reset in the step that finished them."""
        final_obs = np.full(self.num_envs, None, dtype=object)
        for world in np.flatnonzero(finished):
            final_obs[world] = _observe(self._state[world], self._goal[world])
        final = {"final_obs": final_obs, "final_info": _infos(values, finished)}
        return final | {f"_{name}": finished.copy() for name in final}


def _infos(values: dict[str, Flags], mask: Flags) -> Info:
    """Gymnasium's vector infos: each array, False outside the mask, with the mask under "_name"."""
    if not mask.any():
        return {}
    masks = {f"_{name}": mask.copy() for name in values}
    return {name: value & mask for name, value in values.items()} | masks
