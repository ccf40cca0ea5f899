"""A goal-conditioned environment as training sees it: how to make many, its sizes, its reward, and its entities."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from butfor.envs import EnvFacts, env_id, facts_of, make_vector_env
from butfor.envs.facts import BUILT_IN
from butfor.influence.partners import ROWS, Pair, Partners, choose_partners, pair_with
from butfor.models.tables import Units, move_scale, target_columns
from butfor.models.tables import target_scale as scale_of
from butfor.rollouts.episodes import STATES
from butfor.rollouts.play import (
    EnvError,
    Observation,
    Played,
    Stream,
    collect,
    episode_seed,
    episode_steps,
    play,
    random_policy,
)
from butfor.spaces.actions import ActionLaw
from butfor.spaces.entities import entity_columns
from butfor.spaces.mirrors import Mirror, check_mirrors
from butfor.training.replay import Reward

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
SMALLEST = 0.01  # the agent's normaliser divides by no smaller deviation
ALIKE = 0.999  # correlation from which on a column is said to follow a goal
TREMBLING = 1e-6  # smaller moves are those of things at rest
ADVICE = "rescale them with gymnasium.wrappers.TransformObservation so that they vary by about 1"


@dataclass(frozen=True)
class GoalEnv:
    """What training needs to know of an environment."""

    name: str
    make: Callable[[int], VectorEnv[Any, Any, Any]]  # this many environments, which reset only on request
    steps: int  # the longest episode
    sizes: tuple[int, int, int]  # columns of an observation, an action and a goal
    law: ActionLaw
    reward: Reward  # achieved and desired goals [..., G] -> rewards [...], 0 where the goal is reached
    facts: EnvFacts | None  # None: not built in
    entities: Mapping[str, tuple[int, ...]]  # columns of the observation whose change a model predicts
    scale: tuple[float, ...]  # factor on the change of each of these columns, in rising order
    evaluation_envs: int = 100  # how many to play at once, for each replica
    reached: float = 0.0  # the environment's own reward of a reached goal, which is subtracted from all its rewards
    remarks: tuple[str, ...] = ()  # on the units of the observations
    rewards: tuple[float, float] = (-1.0, 0.0)  # the lowest and the highest of random episodes, less `reached`
    partners: Partners | None = None  # what touches each entity, for a model of touches
    labels: tuple[str, ...] = ()  # that the environments report, for a signal that reads the first of them
    mirrors: tuple[Mirror, ...] = ()  # in which its laws stay the same

    @property
    def built_in(self) -> EnvFacts:
        """The facts, for a signal that needs to know which columns are the agent's and the object's."""
        if self.facts is None:
            raise ValueError(f"The signal 'nearness' needs a built-in environment; use another signal for {self.name}.")
        return self.facts

    def check_mirrors(self, shift: float) -> None:
        """Refuse an environment without mirrors, for options that need some, or one that samples cannot be moved in."""
        if not self.mirrors:
            known = ", ".join(name for name, facts in BUILT_IN.items() if facts.mirrors)
            raise ValueError(
                f"replay.mirror and replay.shift need mirrors, and {self.name} declares none; of the built-in "
                f"environments {known} do. Your own declares them as an attribute: mirrors = (butfor.Mirror(...),)."
            )
        if shift and not any(mirror.shift for mirror in self.mirrors):
            raise ValueError(
                f"replay.shift is {shift}, but {self.name} does not obey the same laws elsewhere, as between walls or "
                "on a slope: its mirrors declare shift=False. Leave it at 0; replay.mirror can be used."
            )

    def make_evaluation_env(self, count: int) -> VectorEnv[Any, Any, Any]:
        """Make environments that also report contacts, where they can, to show what agents do to the object."""
        reports = self.facts is not None and "contact" in self.facts.labels
        return make_vector_env(self.name, count, labels=("contact",)) if reports else self.make(count)

    def succeeded(self, played: Played) -> NDArray[np.bool_]:
        """Which episodes ended in success [N]: as the environment reports, or by the reward of a reached goal."""
        if played.reports_success:
            return played.success
        rows = np.arange(len(played.episodes))
        last = played.episodes.length
        goals = (played.episodes.achieved_goal[rows, last], played.episodes.desired_goal[rows, last])
        return np.asarray(self.reward(*map(torch.from_numpy, goals)).numpy() >= 0)

    def check_sizes(self, run: Path | str, sizes: Sequence[int]) -> None:
        """Refuse an environment whose observations, actions and goals have other sizes than those of a run's agent."""
        if tuple(sizes) != self.sizes:
            raise ValueError(
                f"The agent of {run} was trained with observations, actions and goals of sizes {tuple(sizes)}; "
                f"{self.name} has {self.sizes}. Use the environment of the run, or train a new agent."
            )

    def check_unchanged(self, run: Path | str, stored: Mapping[str, Any], law: Mapping[str, Any] | None) -> None:
        """Refuse to resume in another environment than the one that a run's replay buffer comes from."""
        self.check_sizes(run, [stored[part].shape[-1] for part in ("observation", "action", "achieved_goal")])
        bounds = (self.law.low, self.law.high)
        before = (stored["action"].shape[2], bounds if law is None else (tuple(law["low"]), tuple(law["high"])))
        if before != (self.steps, bounds):
            raise ValueError(
                f"{run} was trained with max_episode_steps and action bounds {before}; {self.name} now has "
                f"{(self.steps, bounds)}. Use the environment as it was, or train a new agent."
            )

    def touching(self) -> dict[str, Any]:
        """What `add_partners` added, for a checkpoint."""
        partners = {name: [asdict(pair) for pair in pairs] for name, pairs in (self.partners or {}).items()}
        return {"partners": partners, "scale": list(self.scale)}

    def with_touching(self, saved: Mapping[str, Any]) -> "GoalEnv":
        """The environment with what `touching` returned."""
        partners = {name: [Pair(**pair) for pair in pairs] for name, pairs in saved["partners"].items()}
        return replace(self, partners=partners or None, scale=tuple(saved["scale"]))

    def unmoved(self) -> list[str]:
        """The entities that random actions did not move, so that the size of their moves is not known."""
        return [name for name, one in self.describe()["entities"].items() if set(one["scale"]) == {1.0}]

    def describe(self) -> dict[str, Any]:
        """What was found out about an environment, for summary.json."""
        scale = dict(zip(target_columns(self.entities), self.scale, strict=True))
        entities = {
            name: {"columns": list(columns), "scale": [scale[column] for column in columns]}
            | ({"touched_by": [pair.partner for pair in self.partners[name]]} if self.partners else {})
            for name, columns in self.entities.items()
        }
        return {"entities": entities, "reward_of_a_reached_goal": self.reached, "longest_episode": self.steps}

    def describe_in_words(self) -> str:
        """The same in one line."""
        parts = [
            f"{name}: columns {', '.join(map(str, one['columns']))} of the observation, their changes times "
            + ", ".join(f"{factor:.3g}" for factor in one["scale"])
            + "".join(f", touched by columns {', '.join(map(str, other))}" for other in one.get("touched_by", ()))
            for name, one in self.describe()["entities"].items()
        ]
        shifted = ", subtracted from all rewards" if self.reached else ""
        parts += [f"reward of a reached goal: {self.reached:g}{shifted}"]
        return "; ".join([*parts, f"episodes of at most {self.steps} steps"])


def open_goal_env(
    name: str,
    entities: Sequence[str] = (),
    target_scale: float | None = None,
    make_env: MakeEnv | None = None,
    labels: tuple[str, ...] = (),
) -> GoalEnv:
    """Find out what training needs to know of an environment, by its spaces and a few random episodes.

    Args:
        name: of a built-in or registered environment, or the user's own name for what `make_env` makes
        entities: columns of the observation by name, such as "cube=3:6"; default: those that show the achieved goal
        target_scale: factor on their change; default: 1 / its standard deviation under random actions
        make_env: makes one environment that has no registered id
        labels: what the environment must report, such as "exact" or "contact"

    Raises:
        ValueError: the environment is not goal-conditioned, or does not have a bounded Box of actions
    """
    facts = facts_of(env_id(name)) if make_env is None else None
    if labels and (facts is None or not set(labels) <= set(facts.labels)):
        raise ValueError(f"{name} does not report the labels {', '.join(labels)}, which the signal needs.")

    def make(count: int) -> VectorEnv[Any, Any, Any]:
        if make_env is not None:
            return SyncVectorEnv([make_env] * count, autoreset_mode=AutoresetMode.DISABLED)
        return make_vector_env(name, count, labels)

    probe = make(1 if facts else 4)
    try:
        sizes = _check_spaces(name, probe)
        steps = episode_steps(probe)
        compute = _compute_reward(name, probe)
        law = ActionLaw.from_space(probe.single_action_space)
        columns = entity_columns(entities, sizes[0]) if entities else {}
        reported: Any = {"labels": labels, "mirrors": check_mirrors(_mirrors(probe, facts), sizes, name)}
        if facts is not None:
            columns = columns or {"object": list(facts.object_position)}
            if target_scale:  # there is nothing to measure
                watched = {key: tuple(sorted(value)) for key, value in columns.items()}
                scale = (target_scale,) * len(target_columns(watched))
                return GoalEnv(name, make, steps, sizes, law, compute, facts, watched, scale, **reported)
        played, seen = _random_episodes(probe, steps)
        columns = columns or {"object": list(_goal_columns(name, played))}
        watched = {key: tuple(sorted(value)) for key, value in columns.items()}
        obs, _, next_obs = (torch.from_numpy(part) for part in played.episodes.transitions())
        scale = tuple(scale_of((obs, obs, next_obs), watched, target_scale).tolist())
        if facts is not None:
            return GoalEnv(name, make, steps, sizes, law, compute, facts, watched, scale, **reported)
        reward, reached = _shift_reward(name, compute, played)
        remarks = unit_remarks(seen, played.episodes.length)
        rewards = _reward_range(reward, played)
        return GoalEnv(
            name, make, steps, sizes, law, reward, None, watched, scale, 4, reached, remarks, rewards, **reported
        )
    finally:
        probe.close()


def add_partners(env: GoalEnv, agent: Sequence[int], required: bool, measure: bool) -> GoalEnv:
    """Add what touches each entity, for a model of touches: as given, as known, or as random episodes show it.

    Args:
        env: the environment
        agent: columns of the agent's position; none: those of a built-in environment, else they are looked for
        required: whether an entity without partners is an error; if not, the environment is returned as it is
        measure: whether to measure the factors on the changes, too, by the size of the entities' moves

    Raises:
        ValueError: the columns do not fit the entities, or `required` and nothing was found
    """
    if not agent and env.facts and set(env.entities.values()) == {env.facts.object_position}:
        agent = env.facts.agent_position
    partners: Partners | None = {
        name: [pair_with(agent, columns, name, env.sizes[0])] for name, columns in env.entities.items() if agent
    }
    scale = env.scale
    if not partners or measure:
        with closing(env.make(env.evaluation_envs)) as envs:
            episodes = collect(envs, random_policy(envs), -(-ROWS // env.steps), 0, stream=Stream.PROBE)
        obs, action, next_obs = (torch.from_numpy(part) for part in episodes.transitions())
        columns = {name: list(entity) for name, entity in env.entities.items()}
        scale = tuple(move_scale((obs, action, next_obs), columns).tolist()) if measure else scale
        units = Units.measure((obs, action, next_obs), columns, env.law)
        table = units.table((obs, action, next_obs), "cpu")
        partners = partners or choose_partners((obs, action, next_obs), table, units, None)
    if partners is None and required:
        raise ValueError(
            f"Random episodes of {env.name} do not show what touches {' and '.join(env.entities)}; give the columns of "
            "its position with --cai.agent, or choose --cai.model gaussian."
        )
    return env if partners is None else replace(env, partners=partners, scale=scale)


def find_source(env: GoalEnv, source: str) -> tuple[int, ...]:
    """The columns of the position of an entity that touches others: known by its name, or given as cube=10:13."""
    if "=" not in source:
        if env.facts is None or source not in env.facts.entities:
            known = ", ".join(env.facts.entities) if env.facts else "none"
            raise ValueError(
                f"cai.source is {source!r}; the known entities of {env.name} are: {known}. Give the columns of its "
                "position, such as cube=10:13."
            )
        return tuple(env.facts.entities[source][: len(env.facts.agent_position)])
    found = entity_columns(source, env.sizes[0])
    if len(found) != 1:
        raise ValueError(f"cai.source is {source!r}; expected one entity, such as cube=10:13.")
    return tuple(next(iter(found.values())))


def _check_spaces(name: str, env: VectorEnv[Any, Any, Any]) -> tuple[int, int, int]:
    """Columns of an observation, an action and a goal; spaces that training cannot use are refused."""
    space: Any = env.single_observation_space
    parts = getattr(space, "spaces", {})
    if not set(STATES) <= set(parts):
        raise ValueError(
            f"{name} is not goal-conditioned: observations need the parts {STATES}; they are {space}. Train your own "
            "agent in butfor.InfluenceWrapper(env, entities=[...], bonus=0.1), or wrap it to give it goals."
        )
    shapes = [parts[part].shape for part in STATES]
    if any(shape is None or len(shape) != 1 for shape in shapes) or shapes[1] != shapes[2]:
        raise ValueError(
            f"{name} has observations and goals of shapes {shapes}; expected flat arrays, goals alike. Wrap it so that "
            "nested values are concatenated, also in compute_reward, as in docs/environments.md."
        )
    actions: Any = env.single_action_space
    advice = "Wrap the environment with gymnasium.wrappers.TransformAction"
    if not isinstance(actions, Box) or not actions.is_bounded() or len(actions.shape) != 1:
        raise ValueError(f"Training needs a flat Box with finite bounds as action space; {name} has {actions}.")
    if not np.issubdtype(actions.dtype, np.floating):
        raise ValueError(f"{name} has integer actions, {actions}; agents give floats. {advice} so that it rounds them.")
    if (fixed := np.flatnonzero(actions.low >= actions.high)).size:
        raise ValueError(
            f"{name} has equal bounds in column(s) {fixed.tolist()} of its actions: {actions}. {advice} so that it "
            "takes the other columns alone."
        )
    return shapes[0][0], actions.shape[0], shapes[1][0]


def _compute_reward(name: str, env: VectorEnv[Any, Any, Any]) -> Any:
    """The environment's compute_reward, or that of the outermost wrapper that has one."""
    inner: Any = getattr(env, "envs", [None])[0]
    if inner is not None and inner.has_wrapper_attr("compute_reward"):
        return inner.get_wrapper_attr("compute_reward")
    compute: Any = getattr(env.unwrapped, "compute_reward", None)
    if compute is None:
        raise ValueError(f"{name} has no compute_reward(achieved_goal, desired_goal, info), which hindsight needs.")
    return compute


def _mirrors(env: VectorEnv[Any, Any, Any], facts: EnvFacts | None) -> Iterable[Mirror]:
    """The mirrors of a built-in environment, or the attribute `mirrors` of any other or one of its wrappers."""
    if facts is not None:
        return facts.mirrors
    inner: Any = getattr(env, "envs", [None])[0]
    return inner.get_wrapper_attr("mirrors") if inner is not None and inner.has_wrapper_attr("mirrors") else ()


def _shift_reward(name: str, compute: Any, played: Played) -> tuple[Reward, float]:
    """The reward of an environment that is not built in, shifted so that a reached goal gives 0; and the shift."""

    def one_by_one(achieved: Any, desired: Any) -> Any:
        return np.array([compute(a, d, {}) for a, d in zip(achieved, desired, strict=True)], dtype=np.float32)

    def together(achieved: Any, desired: Any) -> Any:
        return np.asarray(compute(achieved, desired, {}), dtype=np.float32)

    goals = played.episodes.achieved_goal[:, 0].astype(np.float64)  # some that exist: zeros may not be a goal
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
            hint = " (hindsight calls it with an empty info)"
            text = f"{error}{hint if isinstance(error, KeyError) else ''}"
            raise EnvError(f"{name} raised {type(error).__name__} in compute_reward: {text}") from error

    best = float(asked(goals, goals).max())

    def reward(achieved: Tensor, desired: Tensor) -> Tensor:
        shape = achieved.shape[:-1]
        flat = [goal.reshape(-1, size).double().cpu().numpy() for goal in (achieved, desired)]
        values = asked(*flat) - np.float32(best)
        if not np.isfinite(values).all():
            row = int(np.isfinite(values).argmin())
            raise EnvError(
                f"compute_reward of {name} returned {values[row]} for the goal {flat[1][row]} and {flat[0][row]} "
                "achieved; expected finite numbers. Fix compute_reward."
            )
        return torch.from_numpy(values).reshape(shape).to(achieved.device)

    return reward, best + 0.0  # -0 becomes 0


def _reward_range(reward: Reward, played: Played) -> tuple[float, float]:
    """The lowest and the highest reward of episodes with their own goals, and of a reached goal."""
    episodes = played.episodes
    shown = np.arange(episodes.achieved_goal.shape[1]) <= episodes.length[:, None]
    values = reward(*(torch.from_numpy(part[shown]) for part in (episodes.achieved_goal, episodes.desired_goal)))
    return min(float(values.min()), 0.0), max(float(values.max()), 0.0)


def _random_episodes(env: VectorEnv[Any, Any, Any], steps: int) -> tuple[Played, NDArray[np.float64]]:
    """One random episode of each environment, and the observations [T, W, D] before they are rounded."""
    policy = random_policy(env)
    generator = np.random.default_rng(0)
    seeds = [episode_seed(0, Stream.PROBE, index) for index in range(env.num_envs)]
    seen: list[NDArray[np.float64]] = []

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        seen.append(np.array(obs["observation"], dtype=np.float64))
        return policy(obs, generator)

    return play([env], act, seeds, steps, "a random episode"), np.stack(seen)


def _goal_columns(name: str, played: Played) -> list[int]:
    """The columns of the observation that show the achieved goal, up to rounding and 1e-5 of its spread."""
    episodes = played.episodes
    shown = np.arange(episodes.observation.shape[1]) <= episodes.length[:, None]
    obs, goal = episodes.observation[shown], episodes.achieved_goal[shown]
    columns: list[int] = []
    fitting: set[int] = set()
    advice = "give the columns of the entity, such as entities=('cube=3:6',) or --entities cube=3:6."
    for values in goal.T:
        tolerance = 1e-5 * values.std() + np.spacing(np.abs(values).max())
        same = np.flatnonzero((np.abs(obs - values[:, None]) <= tolerance).all(0)).tolist()
        fitting |= set(same)
        equal = [column for column in same if column not in columns]
        if not equal:
            raise ValueError(
                f"The achieved goal of {name} is not part of its observation; {advice} {_suggest_columns(obs, goal)}"
            )
        columns.append(equal[0])
    if len(fitting) > len(columns):
        raise ValueError(
            f"Several sets of the columns {sorted(fitting)} of the observation show the achieved goal of {name}, which "
            f"has {len(columns)} numbers; {advice} {_suggest_columns(obs, goal)}"
        )
    return columns


def _suggest_columns(obs: NDArray[Any], goal: NDArray[Any]) -> str:
    """Say which columns [N, D] follow each number of the achieved goal [N, G], and which do not change at all."""
    with np.errstate(invalid="ignore", divide="ignore"):  # of columns that do not vary
        alike = np.abs(np.corrcoef(obs.T, goal.T)[: obs.shape[1], obs.shape[1] :])  # [D, G]
    following = [np.flatnonzero(values >= ALIKE).tolist() for values in alike.T]
    followed = "; ".join(f"number {n}: {', '.join(map(str, found)) or 'none'}" for n, found in enumerate(following))
    still = ", ".join(str(column) for column in range(obs.shape[1]) if np.ptp(obs[:, column]) == 0)
    resting = f" Columns that never changed: {still}." if still else ""
    first = ",".join(str(found[0]) for found in following if found)
    tried = f" Perhaps --entities object={first}." if all(following) else ""
    return f"Columns that follow the achieved goal in random episodes: {followed}.{resting}{tried}"


def unit_remarks(obs: NDArray[np.float64], length: NDArray[np.int64]) -> tuple[str, ...]:
    """Remarks on columns of observations [T, W, D] of W episodes of these lengths [W].

    A column is small where it varies by less than `SMALLEST`; it is coarse where the rounding to float32 is more than
    1 % of the deviation of its moves.
    """
    shown = np.arange(len(obs))[:, None] < length
    spread = obs[shown].std(0)
    size = np.abs(obs[shown]).max(0)
    rounding = np.spacing(size.astype(np.float32)).astype(np.float64)
    small = (spread > 64 * rounding) & (spread < SMALLEST)
    remarks = []
    if small.any():
        columns = ", ".join(map(str, small.nonzero()[0]))
        remarks.append(
            f"columns {columns} of the observation vary by less than {SMALLEST:g} in random "
            f"episodes, which is hardly visible to agents and models; if they matter, {ADVICE}"
        )
    if shown[1:].any():
        moves = np.diff(obs, axis=0)[shown[1:]].std(0)
        coarse = (moves > np.maximum(TREMBLING, 1e-4 * spread)) & (rounding / 2 > 0.01 * moves)
        if coarse.any():
            columns = ", ".join(map(str, coarse.nonzero()[0]))
            remarks.append(
                f"columns {columns} of the observation are so large that float32 rounds their "
                f"moves; if they matter, subtract their mean, or {ADVICE}"
            )
    return tuple(remarks)


def reward_remarks(
    rewards: tuple[float, float], target_range: tuple[float, float] | None, discount: float
) -> tuple[str, ...]:
    """A remark where the discounted sum of such rewards (lowest, highest) can leave the range of the critic."""
    if target_range is None:
        return ()
    low, high = (reward / (1 - discount) for reward in rewards)
    room = 1e-6 * (target_range[1] - target_range[0])
    if low >= target_range[0] - room and high <= target_range[1] + room:
        return ()
    return (
        f"rewards of random episodes, less that of a reached goal, lie between {rewards[0]:.3g} and {rewards[1]:.3g}; "
        f"with a discount of {discount:g} their sums can reach {low:.3g} to {max(high, 0):.3g}, but the critic's "
        f"targets are clipped to {target_range[0]:g} to {target_range[1]:g}; set another range with "
        "--agent.target-range LOW HIGH, or rescale the rewards",
    )
