"""Playing episodes: the only place that calls `env.step`.

`collect` plays a number of episodes with a policy; `play` plays one episode in every environment, in step. Both let a
`_Player` do it, which also reports what a faulty environment did, as an `EnvError`.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from butfor.envs import facts_of
from butfor.rollouts.episodes import STATES, Episodes

Observation = dict[str, NDArray[Any]]  # observation [N, D], achieved_goal [N, G], desired_goal [N, G]
Progress = Callable[[str, int, int, str], None]
"""Called with the stage, how much of it is done, how much there is, and a word on how it goes."""
Policy = Callable[[Observation, np.random.Generator], tuple[NDArray[Any], NDArray[np.bool_]]]
"""Actions [N, A] for N environments, and which of them were drawn from a known law with full support [N]."""
Act = Callable[[int, int, Observation], tuple[NDArray[Any], NDArray[np.bool_]]]
"""(group, time, observation of its environments) -> the same as a `Policy`."""

REPLAY_TOLERANCE = 5e-3  # metres between a stored episode and its replay: another processor rounds differently


class EnvError(RuntimeError):
    """An environment failed; the message has its name, what was played, and the error."""


class Stream(IntEnum):
    """Purposes of resets. Each has its own random starts, so that no agent is tested where it was trained."""

    TRAINING = 0  # and scripted policies
    EVALUATION = 1  # during training
    PROBE = 2  # random episodes that show what an environment is like
    EVALUATE_RUN = 3
    TRAINED_AGENT = 4  # episodes collected with a trained agent


def episode_seed(seed: int, stream: int, episode: int) -> int:
    """Return the reset seed of one episode of a run and a `Stream`; its start depends on nothing else."""
    return int(np.random.SeedSequence((seed, int(stream), episode)).generate_state(1)[0])


def random_policy(env: VectorEnv[Any, Any, Any]) -> Policy:
    """Return a policy of uniform actions within the bounds of the environment."""
    space: Any = env.single_action_space
    if not isinstance(space, Box) or not space.is_bounded():
        raise ValueError(f"Uniform actions need a Box with finite bounds as action space; got {space}.")

    def act(obs: Observation, generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        count = len(obs["observation"])
        action = generator.uniform(space.low, space.high, (count, *space.shape)).astype(space.dtype)
        return action, np.ones(count, dtype=bool)

    return act


@dataclass
class Played:
    """Episodes, and how each of them ended."""

    episodes: Episodes
    success: NDArray[np.bool_]  # [E]: at the last step, as the environment reports; False where it does not
    terminated: NDArray[np.bool_]  # [E]
    reports_success: bool = True  # whether the environment reports success


def collect(
    env: VectorEnv[Any, Any, Any],
    policy: Policy,
    episodes: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
    first: int = 0,
    stream: int = Stream.TRAINING,
) -> Episodes:
    """Play whole episodes; each environment begins its next episode when one ends.

    Args:
        env: goal-conditioned environments without automatic reset, see `butfor.envs.make_vector_env`.
        policy: called once a step for all environments.
        episodes: how many.
        seed: episode e starts from the reset seeded by (seed, stream, e), for any number of environments.
        progress: called with the number of episodes done.
        first: number of the first episode.
        stream: purpose of the episodes.

    Returns:
        The episodes, with `contact` and every `label_...` that the environments report in `info`.

    Raises:
        EnvError: an environment raised an error, or gave NaN or infinite values.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1; got {episodes}.")
    if not set(STATES) <= set(getattr(env.single_observation_space, "spaces", {})):
        raise ValueError(f"collect needs observations with {', '.join(STATES)}; got {env.single_observation_space}.")
    if (mode := env.metadata.get("autoreset_mode")) is not AutoresetMode.DISABLED:
        raise ValueError(f"collect needs AutoresetMode.DISABLED, got {mode}; use butfor.envs.make_vector_env.")

    def name(low: int, high: int) -> str:
        return f"episode {first + low}" if low == high else f"one of the episodes {first + low} to {first + high}"

    seeds = [episode_seed(seed, stream, first + episode) for episode in range(episodes)]
    player = _Player(env, seeds, episode_steps(env), name, progress)
    generator = np.random.default_rng(np.random.SeedSequence((seed, 1, first)))
    _run([player], lambda group, time, obs: policy(obs, generator), None)
    return _join([player], int(player.length.max())).episodes


def play(
    groups: Sequence[VectorEnv[Any, Any, Any]],
    act: Act,
    seeds: Sequence[int],  # of the resets, for the environments of all groups one after the other
    steps: int | None = None,  # of the longest episode; None for the time limit
    what: str = "an episode",  # for error messages
) -> Played:
    """Play one episode in every environment, all in step.

    With several groups, one acts while the others are stepped in threads of their own. `act` is called for a group
    until all its episodes have ended. Raises `EnvError` where an environment fails.
    """
    steps = steps or episode_steps(groups[0])

    def name(low: int, high: int) -> str:
        return f"{what} (environment {low + 1})" if low == high else what

    left = iter(seeds)
    players = [_Player(env, list(itertools.islice(left, env.num_envs)), steps, name) for env in groups]
    _run(players, act, steps)
    return _join(players, steps)


def play_again(
    env: VectorEnv[Any, Any, Any],
    episodes: Episodes,
    numbers: Sequence[int],
    look: Callable[[int], None] = lambda time: None,
) -> Episodes:
    """Play stored episodes again, one in each environment, from their reset seeds and actions.

    Args:
        env: as many environments as `numbers`.
        episodes: with reset seeds.
        numbers: which episodes.
        look: called with the time in each state before a step.

    Raises:
        ValueError: the episodes were not played in this environment, or by another version of mujoco.
    """
    spaces: Any = (env.observation_space["observation"], env.action_space)  # type: ignore[index]
    own = tuple(space.shape[1] for space in spaces)
    sizes = (episodes.observation.shape[2], episodes.action.shape[2])
    if sizes != own:
        raise ValueError(f"The episodes have observations and actions of sizes {sizes}, {env_name(env)} has {own}.")
    facts = facts_of(env_name(env))
    columns = slice(None) if facts is None else list(facts.positions)
    going = np.arange(episodes.action.shape[1])[:, None] < episodes.length[numbers]  # [T, N]

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        gap = np.abs(obs["observation"] - episodes.observation[numbers, time])[:, columns].max(1)
        gap = np.where(going[time], gap, 0)
        if not (gap <= REPLAY_TOLERANCE).all():
            worst = int(gap.argmax())
            raise ValueError(
                f"Episode {numbers[worst]}, played again in {env_name(env)}, is {gap[worst]:.3g} off its stored course "
                f"at step {time}; it was played in another environment or with another version of mujoco. Collect the "
                "episodes again."
            )
        look(time)
        return episodes.action[numbers, time], episodes.sampled[numbers, time]

    seeds = reset_seeds(episodes)[numbers].tolist()
    return play([env], act, seeds, len(going), "an episode that is played again").episodes


def reset_seeds(episodes: Episodes) -> NDArray[np.int64]:
    """Return the reset seeds [E] of episodes that must have them."""
    if episodes.reset_seed is None:
        raise ValueError("These episodes have no reset seeds, so they cannot be played again; collect them again.")
    return episodes.reset_seed


def episode_steps(env: VectorEnv[Any, Any, Any]) -> int:
    """Return the time limit of the episodes."""
    inner: Any = getattr(env, "envs", [None])[0]
    for one in (env, inner):
        limit = getattr(getattr(one, "spec", None), "max_episode_steps", None)
        if limit is not None:
            return int(limit)
    if inner is not None and inner.has_wrapper_attr("_max_episode_steps"):  # gymnasium's TimeLimit
        return int(inner.get_wrapper_attr("_max_episode_steps"))
    advice = "register it with max_episode_steps, or wrap it in gymnasium.wrappers.TimeLimit"
    raise ValueError(f"{env_name(env)} has no time limit; {advice}.")


def env_name(env: VectorEnv[Any, Any, Any]) -> str:
    """Return the id of the environments, or else the name of their class."""
    inner: Any = getattr(env, "envs", [env])[0].unwrapped
    return str(inner.spec.id if inner.spec is not None else type(inner).__name__)


@dataclass
class _Player:
    """Plays episodes in one vector environment and keeps them in rows of arrays.

    Environment i begins with row i. When its episode ends, it begins the next row that no other has begun. Rows past
    the last seed are played, because all environments are stepped together, but they are not kept.
    """

    env: VectorEnv[Any, Any, Any]
    seeds: Sequence[int]  # of the resets, for each row that is kept
    steps: int
    name: Callable[[int, int], str]  # (first row, last row) -> the episodes, for messages
    progress: Callable[[int], None] = lambda done: None

    def __post_init__(self) -> None:
        num_envs = self.env.num_envs
        self.count = len(self.seeds)
        self.row = np.arange(num_envs)  # that each environment plays
        self.time = np.zeros(num_envs, dtype=np.int64)
        self.next_row = num_envs
        self.finished = 0
        self.stored: dict[str, NDArray[Any]] = {}
        self.length = np.zeros(self.count, dtype=np.int64)
        self.reset_seed = np.array(self.seeds, dtype=np.int64)
        self.success = np.zeros(self.count, dtype=bool)
        self.terminated = np.zeros(self.count, dtype=bool)
        self.reports_success = False
        self.blow_ups = np.full(num_envs, np.inf)  # not known yet: environments count theirs over their whole life
        self.obs: Observation = {}
        self._reset(np.ones(num_envs, dtype=bool))

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Which environments play an episode that is kept [N]."""
        return self.row < self.count

    def step(self, action: NDArray[Any], sampled: NDArray[np.bool_]) -> None:
        """Make one step in every environment, and begin the next episodes where it was the last."""
        kept = self.kept
        self._store({"action": action, "sampled": sampled}, kept)
        self.obs, reward, terminated, truncated, info = self._call(self.env.step, action)
        labels = [name for name in info if name == "contact" or name.startswith("label_")]
        self._store({name: np.asarray(info[name], dtype=bool) for name in labels}, kept)
        self.time += 1
        self._store({name: self.obs[name] for name in STATES}, kept)
        if not math.isfinite(np.dot(reward, reward)):  # the fastest way to look at all; it may be wrong about huge ones
            self.check(kept, reward)
        blow_ups = np.array(info.get("blow_ups", self.blow_ups))
        lost = blow_ups > self.blow_ups  # their physics blew up in this step: they show their last true state again
        self.blow_ups = blow_ups
        rows = self.row[kept]
        success = info.get("is_success", info.get("success"))
        if success is not None:
            self.reports_success = True
            counted = kept & ~lost
            self.success[self.row[counted]] = np.asarray(success, dtype=bool)[counted]
        self.terminated[rows] = terminated[kept]
        self.length[rows] = np.maximum(self.time - lost, 1)[kept]
        ended = terminated | truncated
        if ended.any():
            self.check(ended & kept)
            self.finished += int((ended & kept).sum())
            self.row[ended] = self.next_row + np.arange(ended.sum())
            self.next_row += int(ended.sum())
            self.time[ended] = 0
            if self.kept.any():
                self._reset(ended)
            self.progress(self.finished)

    def check(self, envs: NDArray[np.bool_], reward: NDArray[Any] | None = None) -> None:
        """Raise where the episodes of some environments, or the rewards of this step, have NaN or infinite values.

        What follows a NaN or infinite action is not the fault of the environment.
        """
        if "action" not in self.stored:
            return
        rows = self.row[envs]
        action = self.stored["action"][rows]
        values = {name: self.stored[name][rows] for name in STATES}
        if reward is not None:
            values["reward"] = np.zeros((*values["observation"].shape[:2], 1))
            values["reward"][np.arange(len(rows)), self.time[envs], 0] = reward[envs]
        for name, numbers in values.items():
            bad = ~np.isfinite(numbers)
            for place in bad.any((1, 2)).nonzero()[0]:
                time = int(bad[place].any(1).argmax())
                if np.isfinite(action[place, :time]).all():
                    row = int(rows[place])
                    column = int(bad[place, time].argmax())
                    where = "as its reward" if name == "reward" else f"in column {column} of {name}"
                    when = f"after step {time}" if time else "at the start"
                    raise EnvError(
                        f"{env_name(self.env)} gave {numbers[place, time, column]} {where} {when} of "
                        f"{self.name(row, row)}, reset with seed {self.reset_seed[row]}; expected finite numbers. Fix "
                        "the environment."
                    )

    def _reset(self, envs: NDArray[np.bool_]) -> None:
        """Begin new episodes in some environments."""
        seeds = self.reset_seed[self.row % self.count].tolist()
        options = None if envs.all() else {"reset_mask": envs}
        self.obs = self._call(self.env.reset, seed=seeds, options=options)[0]
        self._store({name: self.obs[name] for name in STATES}, envs & self.kept)

    def _call(self, call: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Call the environment; report an error of its own with the episodes in which it happened."""
        try:
            return call(*values, **named)
        except Exception as error:
            self.check(self.kept)  # it may have failed because it had given NaN before
            rows = self.row[self.kept]
            if values and not np.isfinite(values[0]).all():  # the actions of a step
                raise FloatingPointError(
                    f"The actions in {self.name(rows.min(), rows.max())} are NaN or infinite: the policy that chose "
                    "them has diverged. Lower its learning rate, or the weights of penalties and rewards."
                ) from error
            text = " ".join(str(error).split()) or "(no message)"
            raise EnvError(
                f"{env_name(self.env)} raised {type(error).__name__} in {self.name(rows.min(), rows.max())}: {text}"
            ) from error

    def _store(self, values: Mapping[str, NDArray[Any]], envs: NDArray[np.bool_]) -> None:
        """Keep the values [N, ...] of some environments at their time."""
        rows = self.row[envs]
        time = self.time[envs]
        for name, value in values.items():
            if name not in self.stored:
                dtype = np.bool_ if value.dtype == np.bool_ else np.float32
                self.stored[name] = np.zeros((self.count, self.steps + (name in STATES), *value.shape[1:]), dtype)
            while time.max(initial=0) >= self.stored[name].shape[1]:  # the environment declares too low a limit
                self.stored[name] = np.concatenate([self.stored[name], np.zeros_like(self.stored[name])], 1)
            self.stored[name][rows, time] = value[envs]


def _run(players: Sequence[_Player], act: Act, steps: int | None) -> None:
    """Step the players until all episodes have ended, or `steps` times."""
    times = itertools.count() if steps is None else range(steps)
    pending: dict[int, Future[None]] = {}
    with ThreadPoolExecutor(len(players)) as pool:
        for time in times:
            for group, player in enumerate(players):
                if group in pending:
                    pending.pop(group).result()
                if player.kept.any():
                    action, sampled = act(group, time, player.obs)
                    if len(players) == 1:
                        player.step(action, sampled)
                    else:
                        pending[group] = pool.submit(player.step, action, sampled)
            if not any(player.kept.any() for player in players):
                break
        for future in pending.values():
            future.result()
    for player in players:
        player.check(player.kept)  # episodes that `steps` has cut


def _join(players: Sequence[_Player], steps: int) -> Played:
    """Put the rows of all players together, with `steps` steps each."""

    def join(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(player, name) for player in players])

    arrays: dict[str, Any] = {"length": join("length"), "reset_seed": join("reset_seed")}
    for name in sorted({name for player in players for name in player.stored}):
        # a label that one group never reported is False there
        parts = [player.stored.get(name, np.zeros((player.count, steps), dtype=bool)) for player in players]
        arrays[name] = np.concatenate([part[:, : steps + (name in STATES)] for part in parts])
    episodes = Episodes.from_arrays(arrays, {})
    return Played(episodes, join("success"), join("terminated"), any(player.reports_success for player in players))
