"""Any goal world as the trainer sees it: how to make many, its sizes, its reward, and the entity that is watched."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from butfor.envs import ENVS, is_fetch_world, make_vector_env, short_name
from butfor.models.dynamics import ModelConfig, target_columns
from butfor.models.dynamics import target_scale as scale_of
from butfor.rollouts.errors import EnvError
from butfor.rollouts.play import PARTS, Observation, Played, episode_seed, episode_steps, play, random_policy
from butfor.spaces.actions import ActionLaw
from butfor.spaces.entities import entity_columns
from butfor.training.remarks import unit_remarks
from butfor.training.replay import Reward

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
ENTITY = {"slide": (2,)}  # columns of the observation that hold the object's position; of the Fetch worlds:
FETCH_ENTITY = (3, 4, 5)


@dataclass(frozen=True)
class GoalEnv:
    """What training needs to know of a world."""

    name: str
    make: Callable[[int], VectorEnv[Any, Any, Any]]
    steps: int  # the longest episode
    sizes: tuple[int, int, int]  # of an observation, an action and a goal
    law: ActionLaw
    reward: Reward
    capturable: bool  # whether the reward is made of tensor operations alone
    entities: Mapping[str, tuple[int, ...]]  # by name, columns of the observation whose change a model predicts
    scale: tuple[float, ...]  # of the change of each of these columns, in rising order
    evaluation_envs: int  # how many to play at once, of each replica
    reached: float = 0.0  # the world's own reward of a reached goal, which is subtracted from all its rewards
    remarks: tuple[str, ...] = ()  # what its user should know of the units of its observations
    rewards: tuple[float, float] = (-1.0, 0.0)  # the lowest and the highest of random episodes, less `reached`

    @property
    def is_fetch(self) -> bool:
        """Whether it is a built-in Fetch world, and not one of that name that a user's function makes."""
        return self.capturable and is_fetch_world(short_name(self.name))


def open_goal_env(
    name: str,
    entity: tuple[int, ...] | None = None,
    target_scale: float | None = None,
    make_env: MakeEnv | None = None,
    entities: Sequence[str] = (),
) -> GoalEnv:
    """Looks at a world by name, or at what `make_env` makes, and finds out what training needs to know.

    `entity` are columns of the observation, by default those that show the achieved goal; `entities` are several
    instead, in words such as "cube=3:6". `target_scale` is the factor on their change, by default 1 / its standard
    deviation under random actions.
    """
    built_in = make_env is None and short_name(name) in ENVS

    def make(count: int) -> VectorEnv[Any, Any, Any]:
        if make_env is None:
            return make_vector_env(name, count)
        return SyncVectorEnv([make_env] * count, autoreset_mode=AutoresetMode.DISABLED)

    probe = make(1 if built_in else 4)
    try:
        space: Any = probe.single_observation_space
        parts = getattr(space, "spaces", {})
        if not set(PARTS) <= set(parts):
            raise ValueError(
                f"{name} is no goal world: training needs observations with the parts observation, achieved_goal and "
                f"desired_goal; its observations are {space}."
            )
        shapes = [parts[part].shape for part in PARTS]
        if None in shapes:
            nested = [part for part, shape in zip(PARTS, shapes, strict=True) if shape is None]
            raise ValueError(
                f"{name} has dictionaries as {' and '.join(nested)}; training needs flat arrays. Wrap the world so "
                "that their values stand side by side, also in what compute_reward takes, as in docs/environments.md."
            )
        if any(len(shape) != 1 for shape in shapes) or shapes[1] != shapes[2]:
            raise ValueError(f"{name} has observations and goals of shapes {shapes}; expected flat ones, goals alike.")
        actions: Any = probe.single_action_space
        if not isinstance(actions, Box) or not actions.is_bounded() or len(actions.shape) != 1:
            raise ValueError(f"DDPG needs a flat Box with finite bounds as action space; {name} has {actions}.")
        if not np.issubdtype(actions.dtype, np.floating):
            raise ValueError(
                f"{name} takes whole numbers as actions, {actions}; DDPG gives any numbers between the bounds. Wrap "
                "the world by gymnasium.wrappers.TransformAction so that it takes floats and rounds them itself."
            )
        if (actions.low >= actions.high).any():
            raise ValueError(
                f"{name} has nothing to choose in column(s) {np.flatnonzero(actions.low >= actions.high).tolist()} of "
                f"its actions, whose bounds are equal: {actions}. Wrap the world by gymnasium.wrappers.TransformAction "
                "so that it takes the other columns alone and fills these in itself."
            )
        limit = episode_steps(probe)
        sizes = (shapes[0][0], actions.shape[0], shapes[1][0])
        compute = _compute_reward(name, probe)
        watched = _named(entity, entities, sizes[0])
        # None where nothing is left to be found out
        looked: Any = (None, None) if built_in and target_scale else _random_episodes(probe, limit)
        played, seen = looked
        if not watched:
            found = ENTITY.get(short_name(name), FETCH_ENTITY) if built_in else _goal_columns(name, played)
            watched = {"object": tuple(sorted(found))}
        reward, reached = (compute, 0.0) if built_in else _shifted(name, compute, played)
        scale = (target_scale,) * len(target_columns(watched)) if target_scale else _scale(played, watched)
        remarks = () if built_in else unit_remarks(seen, played.episodes.length)
        rewards = (-1.0, 0.0) if built_in else _reward_range(reward, played)
    finally:
        probe.close()
    law = ActionLaw.of(actions)
    return GoalEnv(
        name, make, limit, sizes, law, reward, built_in, watched, scale, 100 if built_in else 4, reached,
        remarks, rewards,
    )  # fmt: skip


def check_sizes(world: GoalEnv, run: Path | str, sizes: Sequence[int]) -> None:
    """Refuses a world whose observations, actions and goals do not have the sizes that a run's agent knows."""
    if tuple(sizes) != world.sizes:
        raise ValueError(
            f"The agent of {run} has learned with observations, actions and goals of sizes {tuple(sizes)}; those of "
            f"{world.name} have {world.sizes}. Give the world as it was, or train anew."
        )


def check_unchanged(world: GoalEnv, run: Path | str, memory: Mapping[str, Any], law: Mapping[str, Any] | None) -> None:
    """Refuses to go on in another world than the one that a run's memory, and its law of actions, come from."""
    parts = ("observation", "action", "achieved_goal")
    check_sizes(world, run, [memory[part].shape[-1] for part in parts])
    steps = memory["action"].shape[2]
    if steps != world.steps:
        raise ValueError(
            f"{run} was trained with episodes of at most {steps} steps; those of {world.name} now have {world.steps}. "
            "Give the world as it was (max_episode_steps), or train anew."
        )
    if law is not None and ActionLaw.from_plain(law) != world.law:
        raise ValueError(
            f"{run} was trained with actions from {law['low']} to {law['high']}; those of {world.name} now go from "
            f"{world.law.low} to {world.law.high}. Give the world as it was, or train anew."
        )


def unmoved(world: GoalEnv) -> list[str]:
    """The entities that random actions did not move, so that the size of their moves is not known."""
    moved = {column for column, scale in zip(target_columns(world.entities), world.scale, strict=True) if scale != 1}
    return [name for name, columns in world.entities.items() if not moved & set(columns)]


def found_out(world: GoalEnv) -> dict[str, Any]:
    """What was found out about a world, ready for JSON: each entity's columns and their scale, and the reward."""
    scale = dict(zip(target_columns(world.entities), world.scale, strict=True))
    entities = {
        name: {"columns": list(columns), "scale": [scale[column] for column in columns]}
        for name, columns in world.entities.items()
    }
    return {"entities": entities, "reward_of_a_reached_goal": world.reached, "longest_episode": world.steps}


def found_words(world: GoalEnv) -> str:
    """The same in words, for a line."""
    parts = [
        f"{name}: columns {', '.join(map(str, one['columns']))} of the observation, their changes times "
        + ", ".join(f"{factor:.3g}" for factor in one["scale"])
        for name, one in found_out(world)["entities"].items()
    ]
    parts += [f"reward of a reached goal: {world.reached:g}" + (", subtracted from all" if world.reached else "")]
    return "; ".join([*parts, f"episodes of at most {world.steps} steps"])


def succeeded(world: GoalEnv, played: Played) -> NDArray[np.bool_]:
    """Which episodes ended in success [N]: as the world says, or where the reward is that of a reached goal."""
    if played.told:
        return played.success
    rows, last = np.arange(len(played.episodes)), played.episodes.length
    goals = (played.episodes.achieved_goal[rows, last], played.episodes.desired_goal[rows, last])
    return np.asarray(world.reward(*map(torch.from_numpy, goals)).numpy() >= 0)


def make_evaluation_env(world: GoalEnv, count: int) -> VectorEnv[Any, Any, Any]:
    """Worlds that tell more than training needs: the built-in robot worlds tell of contacts, too."""
    return make_vector_env(world.name, count, contacts=True) if world.is_fetch else world.make(count)


def behaviour(world: GoalEnv, played: Played) -> dict[str, NDArray[np.float64]]:
    """What agents do to the object, as shares of the steps of each episode [N]; nothing for worlds without a robot.

    moved: by more than 0.1 mm in the step. lifted: 5 mm above where it rests on the table, or beside the table and off
    the floor. held: lifted, and touched by a finger during the step.
    """
    episodes = played.episodes
    if not world.is_fetch or episodes.contact is None:
        return {}
    place, before = episodes.achieved_goal[:, 1:], episodes.achieved_goal[:, :-1]  # [N, T, 3]
    x, y, z = np.moveaxis(place, -1, 0)
    if short_name(world.name) == "rot-table":
        from butfor.envs.facts import ROUND_TABLE_CENTRE, ROUND_TABLE_RADIUS, ROUND_TABLE_TOP

        beside = np.hypot(x - ROUND_TABLE_CENTRE[0], y - ROUND_TABLE_CENTRE[1]) >= ROUND_TABLE_RADIUS
        rest = ROUND_TABLE_TOP + 0.025  # half of the object's height
    else:
        beside, rest = (x <= 1.19) | (x >= 1.5) | (y <= 0.59) | (y >= 0.9), 0.425
    lifted = (z > rest + 0.005) | (beside & (z > 0.03) & (z < rest - 0.005))
    moved = np.linalg.norm(place - before, axis=-1) > 1e-4
    shares = {"moved": moved, "lifted": lifted, "held": lifted & episodes.contact}
    return {name: (value & episodes.valid).sum(1) / episodes.length for name, value in shares.items()}


def _compute_reward(name: str, env: VectorEnv[Any, Any, Any]) -> Any:
    """The world's own compute_reward(achieved_goal, desired_goal, info), or that of the outermost wrapper with one."""
    inner: Any = getattr(env, "envs", [None])[0]
    if inner is not None and inner.has_wrapper_attr("compute_reward"):
        return inner.get_wrapper_attr("compute_reward")
    compute: Any = getattr(env.unwrapped, "compute_reward", None)
    if compute is None:
        raise ValueError(f"{name} has no compute_reward(achieved_goal, desired_goal, info): hindsight needs it.")
    return compute


def _shifted(name: str, compute: Any, played: Played) -> tuple[Reward, float]:
    """A foreign world's reward, by way of numpy, shifted so that a reached goal gives 0; and by how much."""

    def one_by_one(achieved: Any, desired: Any) -> Any:
        return np.array([compute(a, d, {}) for a, d in zip(achieved, desired, strict=True)], dtype=np.float32)

    def together(achieved: Any, desired: Any) -> Any:
        return np.asarray(compute(achieved, desired, {}), dtype=np.float32)

    goals = played.episodes.achieved_goal[:, 0].astype(np.float64)  # some that exist: zeros need not be a goal
    size = goals.shape[1]
    tried = np.random.default_rng(0).normal(0, 0.1, (2, size + 3, size))  # a number of rows that is not a goal's size
    try:
        rows = together if np.array_equal(together(*tried), one_by_one(*tried)) else one_by_one
    except Exception:  # it takes only one goal at a time
        rows = one_by_one

    def asked(achieved: Any, desired: Any) -> Any:
        try:
            return rows(achieved, desired)
        except Exception as error:
            hint = " (hindsight asks with an empty info: compute_reward must do without it)"
            said = f"{error}{hint if isinstance(error, KeyError) else ''}"
            raise EnvError(f"{name} raised {type(error).__name__} in compute_reward: {said}") from error

    best = float(asked(goals, goals).max())

    def reward(achieved: Tensor, desired: Tensor) -> Tensor:
        shape = achieved.shape[:-1]
        flat = [goal.reshape(-1, size).double().cpu().numpy() for goal in (achieved, desired)]
        values = asked(*flat) - np.float32(best)
        if not np.isfinite(values).all():
            row = int(np.isfinite(values).argmin())
            raise EnvError(
                f"{name} gave {values[row]} in compute_reward for the goal {flat[1][row]} and {flat[0][row]} achieved; "
                "expected finite numbers: mend compute_reward."
            )
        return torch.from_numpy(values).reshape(shape).to(achieved.device)

    return reward, best + 0.0  # -0 becomes 0


def _reward_range(reward: Reward, played: Played) -> tuple[float, float]:
    """The lowest and the highest reward of episodes with the goals that they were played for, and of a reached goal."""
    episodes = played.episodes
    shown = np.arange(episodes.achieved_goal.shape[1]) <= episodes.length[:, None]
    values = reward(*(torch.from_numpy(part[shown]) for part in (episodes.achieved_goal, episodes.desired_goal)))
    return min(float(values.min()), 0.0), max(float(values.max()), 0.0)


def _random_episodes(env: VectorEnv[Any, Any, Any], steps: int) -> tuple[Played, NDArray[np.float64]]:
    """One random episode of each world of a probe; and their observations [T, W, D] before they are rounded."""
    policy, generator = random_policy(env), np.random.default_rng(0)
    seeds = [episode_seed(0, 2, index) for index in range(env.num_envs)]
    seen: list[NDArray[np.float64]] = []

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        seen.append(np.array(obs["observation"], dtype=np.float64))
        return policy(obs, generator)

    return play([env], act, seeds, steps, "a random episode"), np.stack(seen)


def _goal_columns(name: str, played: Played) -> tuple[int, ...]:
    """The columns of the observation that show the achieved goal, up to rounding and 1e-5 of its spread."""
    episodes = played.episodes
    shown = np.arange(episodes.observation.shape[1]) <= episodes.length[:, None]
    obs, goal = episodes.observation[shown], episodes.achieved_goal[shown]
    columns, fitting = list[int](), set[int]()
    for values in goal.T:
        tolerance = 1e-5 * values.std() + np.spacing(np.abs(values).max())
        same = np.flatnonzero((np.abs(obs - values[:, None]) <= tolerance).all(0)).tolist()
        fitting |= set(same)
        equal = [column for column in same if column not in columns]
        if not equal:
            raise ValueError(
                f"The achieved goal of {name} is not part of its observation; name the columns of the observation that "
                "belong to the entity, as in entity=(3, 4, 5) or --entity 3 4 5."
            )
        columns.append(equal[0])
    if len(fitting) > len(columns):
        raise ValueError(
            f"The achieved goal of {name} has {len(columns)} numbers, and the columns {sorted(fitting)} of its "
            "observation show them: several sets of columns fit. Name those that belong to the entity, as in "
            "entity=(3, 4, 5) or --entity 3 4 5."
        )
    return tuple(columns)


def _named(entity: tuple[int, ...] | None, entities: Sequence[str], size: int) -> dict[str, tuple[int, ...]]:
    """The entities that were named, each with its columns in rising order; none where the world is to be asked."""
    if entity is None:
        parsed = entity_columns(entities, size) if entities else {}
        return {name: tuple(sorted(columns)) for name, columns in parsed.items()}
    if not entity or len(set(entity)) < len(entity) or not all(0 <= column < size for column in entity):
        raise ValueError(f"entity is {entity}; expected different columns from 0 to {size - 1} of the observation.")
    return {"object": tuple(sorted(entity))}


def _scale(played: Played, entities: Mapping[str, tuple[int, ...]]) -> tuple[float, ...]:
    """1 / standard deviation of each column's change; 1 where only rounding changed it."""
    obs, _, next_obs = (torch.from_numpy(part) for part in played.episodes.transitions())
    return tuple(scale_of((obs, obs, next_obs), entities, ModelConfig(target_scale=None)).tolist())
