"""Playing episodes: the only place that calls `env.step`."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from butfor.rollouts.episodes import Episodes
from butfor.rollouts.errors import all_finite, check_numbers, raised

PARTS = ("observation", "achieved_goal", "desired_goal")
Observation = dict[str, NDArray[Any]]  # observation [W, D], achieved_goal [W, G], desired_goal [W, G]
Progress = Callable[[str, int, int, str], None]
"""Called with the stage, how much of it is done, how much there is, and a word on how it goes."""
Policy = Callable[[Observation, np.random.Generator], tuple[NDArray[Any], NDArray[np.bool_]]]
"""Actions [W, A] for W worlds, and which of them were drawn from a known law with full support [W]."""


REPLAY_TOLERANCE = 5e-3  # metres between a stored episode of a robot world and its replay


def episode_seed(seed: int, stream: int, episode: int) -> int:
    """The seed of one reset, so that an episode's start depends on nothing else.

    Streams: 0 training and scripted policies, 1 evaluation, 2 looking at a world, 3 `butfor evaluate`, 4 episodes of a
    trained agent.
    """
    return int(np.random.SeedSequence((seed, stream, episode)).generate_state(1)[0])


def random_policy(env: VectorEnv[Any, Any, Any]) -> Policy:
    """Uniform actions within the world's own bounds."""
    space: Any = env.single_action_space
    if not isinstance(space, Box) or not space.is_bounded():
        raise ValueError(f"Uniform actions need a Box with finite bounds as action space; got {space}.")

    def act(obs: Observation, generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        worlds = len(obs["observation"])
        action = generator.uniform(space.low, space.high, (worlds, *space.shape)).astype(space.dtype)
        return action, np.ones(worlds, dtype=bool)

    return act


def collect(
    env: VectorEnv[Any, Any, Any],
    policy: Policy,
    episodes: int,
    seed: int,
    metadata: dict[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
    first: int = 0,
    stream: int = 0,
) -> Episodes:
    """Plays whole episodes; episode e starts from the reset seeded by (seed, stream, e), for any number of worlds.

    `first` is the number of the first episode. The contact and every `label_...` that the environment reports
    in `info` are stored, too.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1; got {episodes}.")
    goals = getattr(env.single_observation_space, "spaces", {})
    if not set(PARTS) <= set(goals):
        needed = "observation, achieved_goal and desired_goal"
        raise ValueError(
            f"collect needs a goal world with {needed}; its observations are {env.single_observation_space}."
        )
    if env.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED:
        raise ValueError("collect needs worlds made with AutoresetMode.DISABLED; make them with envs.make_vector_env.")
    steps = episode_steps(env)
    generator = np.random.default_rng(np.random.SeedSequence((seed, 1, first)))
    worlds = env.num_envs
    playing = np.arange(worlds)  # the episode each world plays; those past the last are played but not kept
    next_episode = worlds
    stored: dict[str, NDArray[Any]] = {}

    def told(call: Callable[..., Any], *values: Any, **named: Any) -> Any:
        try:
            return call(*values, **named)
        except Exception as error:
            if "action" in stored:
                check(playing < episodes)  # it may have failed because it had given NaN before
            low, high = first + int(playing.min()), first + int(playing.max())
            what = f"one of the episodes {low} to {high}" if low < high else f"episode {low}"
            raise raised(env, error, what) from error

    def reset(mask: NDArray[np.bool_]) -> Observation:
        seeds: Any = [episode_seed(seed, stream, first + int(episode)) for episode in playing]
        start: Observation = told(env.reset, seed=seeds, options={"reset_mask": mask})[0]
        return start

    obs = reset(np.ones(worlds, dtype=bool))
    time = np.zeros(worlds, dtype=np.int64)

    def store(name: str, rows: NDArray[np.bool_], at: NDArray[np.int64], value: NDArray[Any], length: int) -> None:
        if name not in stored:
            kind = np.bool_ if value.dtype == np.bool_ else np.float32
            stored[name] = np.zeros((episodes, length, *value.shape[1:]), kind)
        while at[rows].max(initial=0) >= stored[name].shape[1]:  # the world's own limit is longer than it declares
            stored[name] = np.concatenate([stored[name], np.zeros_like(stored[name])], 1)
        stored[name][playing[rows], at[rows]] = value[rows]

    def store_obs(rows: NDArray[np.bool_], at: NDArray[np.int64], value: Observation) -> None:
        for name in PARTS:
            store(name, rows, at, value[name], steps + 1)

    def check(rows: NDArray[np.bool_], reward: NDArray[Any] | None = None) -> None:
        shown, looked = playing[rows], stored["action"][playing[rows]]

        def named(row: int) -> str:
            number = first + int(shown[row])
            return f"episode {number} (reset with seed {episode_seed(seed, stream, number)})"

        given = None if reward is None else reward[rows]
        check_numbers(env, {part: stored[part][shown] for part in PARTS}, looked, named, given, time[rows])

    length = np.zeros(episodes, dtype=np.int64)
    blow_ups = np.zeros(worlds, dtype=np.int64)
    store_obs(playing < episodes, time, obs)
    while (playing < episodes).any():
        kept = playing < episodes
        action, sampled = policy(obs, generator)
        obs, reward, terminated, truncated, info = told(env.step, action)
        store("action", kept, time, action, steps)
        store("sampled", kept, time, sampled, steps)
        for name, value in info.items():
            if name == "contact" or name.startswith("label_"):
                store(name, kept, time, np.asarray(value, dtype=bool), steps)
        time += 1
        store_obs(kept, time, obs)
        if not all_finite(reward):
            check(kept, reward)
        ended = terminated | truncated
        # a world whose physics blew up in this step shows its last true state again: that step does not count
        lost, blow_ups = info.get("blow_ups", blow_ups) > blow_ups, info.get("blow_ups", blow_ups).copy()
        if ended.any():
            check(ended & kept)
            length[playing[ended & kept]] = np.maximum(time - lost, 1)[ended & kept]
            for world in ended.nonzero()[0]:
                playing[world], next_episode = next_episode, next_episode + 1
            time[ended] = 0
            obs = reset(ended)
            store_obs(ended & (playing < episodes), time, obs)
            if progress is not None:
                progress(int((length > 0).sum()))
    longest = int(length.max())
    for name in stored:
        extra = 1 if name in PARTS else 0
        stored[name] = stored[name][:, : longest + extra]
    label = {name.removeprefix("label_"): stored.pop(name) for name in list(stored) if name.startswith("label_")}
    resets = np.array([episode_seed(seed, stream, first + episode) for episode in range(episodes)], dtype=np.int64)
    return Episodes(**stored, length=length, reset_seed=resets, label=label, metadata=metadata or {})


def replay(env: VectorEnv[Any, Any, Any], seed: int, actions: NDArray[Any]) -> Observation:
    """Plays the given actions [t, A] in the first world from a seeded reset; the observation it ends with."""
    seeds: Any = [seed] * env.num_envs
    obs: Observation = env.reset(seed=seeds)[0]
    for action in actions:
        obs = env.step(np.repeat(action[None], env.num_envs, 0))[0]
    return obs


@dataclass
class Played:
    """One episode of each of N worlds."""

    episodes: Episodes
    success: NDArray[np.bool_]  # [N]: at the last step, as the world says; False where it does not say
    terminated: NDArray[np.bool_]  # [N]
    told: bool = True  # whether the world says of its episodes if they succeeded


Act = Callable[[int, int, Observation], tuple[NDArray[Any], NDArray[np.bool_]]]
"""(group, time, observation of its worlds) -> actions [W, A], and which were drawn from a known law [W]."""


def episode_steps(env: VectorEnv[Any, Any, Any]) -> int:
    """The time limit of the worlds' episodes."""
    inner: Any = getattr(env, "envs", [None])[0]
    for one in (env, inner):
        limit = getattr(getattr(one, "spec", None), "max_episode_steps", None)
        if limit is not None:
            return int(limit)
    if inner is not None and inner.has_wrapper_attr("_max_episode_steps"):  # gymnasium's TimeLimit
        return int(inner.get_wrapper_attr("_max_episode_steps"))
    raise ValueError(
        "The world has no time limit; register it with max_episode_steps, or wrap it in gymnasium.wrappers.TimeLimit."
    )


def play(
    groups: Sequence[VectorEnv[Any, Any, Any]],
    act: Act,
    seeds: Sequence[int],
    steps: int | None = None,
    what: str = "an episode",
) -> Played:
    """Plays one episode in every world, all in step; world i of the groups together starts from reset seed i.

    `steps` is the longest episode, by default the worlds' time limit. With several groups, one acts while the others
    are being stepped in threads of their own. `what` is played is said where a world raises an error.
    """
    steps = steps or episode_steps(groups[0])
    counts = [env.num_envs for env in groups]
    firsts = np.cumsum([0, *counts])
    parts = [
        _Part(env, seeds[first : first + env.num_envs], steps, what) for env, first in zip(groups, firsts, strict=False)
    ]
    if len(parts) == 1:
        for time in range(steps):
            if not parts[0].alive.any():
                break
            parts[0].step(time, *act(0, time, parts[0].obs))
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            pending: dict[int, Future[None]] = {}
            for time in range(steps):
                for group, part in enumerate(parts):
                    if group in pending:
                        pending.pop(group).result()
                    if part.alive.any():
                        action, sampled = act(group, time, part.obs)
                        pending[group] = pool.submit(part.step, time, action, sampled)
            for future in pending.values():
                future.result()
    for part in parts:
        part.check()
    names = sorted({name for part in parts for name in part.stored})  # a label that one group never saw is False there
    false = [np.zeros((part.env.num_envs, steps), dtype=bool) for part in parts]
    arrays: dict[str, Any] = {
        name: np.concatenate([part.stored.get(name, other) for part, other in zip(parts, false, strict=True)])
        for name in names
    }
    label = {name.removeprefix("label_"): arrays.pop(name) for name in names if name.startswith("label_")}
    length, resets = np.concatenate([part.length for part in parts]), np.array(seeds, dtype=np.int64)
    episodes = Episodes(**arrays, length=length, reset_seed=resets, label=label)
    success, terminated = (np.concatenate([getattr(p, name) for p in parts]) for name in ("success", "terminated"))
    return Played(episodes, success, terminated, any(part.told for part in parts))


class _Part:
    """The worlds of one group within an episode."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seeds: Sequence[int], steps: int, what: str) -> None:
        self.env, self.seeds, self.steps, self.what = env, list(seeds), steps, what
        self.stored: dict[str, NDArray[Any]] = {}
        self.obs: Observation = self._told(env.reset, seed=self.seeds)[0]
        worlds = env.num_envs
        self.alive = np.ones(worlds, dtype=bool)
        self.length = np.zeros(worlds, dtype=np.int64)
        self.success, self.terminated = np.zeros(worlds, dtype=bool), np.zeros(worlds, dtype=bool)
        self.told = False
        self.blow_ups: NDArray[np.int64] | None = None  # worlds count theirs over their whole life
        for name in PARTS:
            self.stored[name] = np.zeros((worlds, steps + 1, self.obs[name].shape[1]), np.float32)
        self._keep_obs(0)

    def step(self, time: int, action: NDArray[Any], sampled: NDArray[np.bool_]) -> None:
        """One step of every world; those whose episode is over are played on from a reset, and not kept."""
        self._keep({"action": action, "sampled": sampled}, time)
        self.obs, reward, terminated, truncated, info = self._told(self.env.step, action)
        self._keep_obs(time + 1)
        if not all_finite(reward):
            self.check(np.where(self.alive, reward, 0), time + 1)
        self._keep({name: info[name] for name in info if name == "contact" or name.startswith("label_")}, time)
        success = info.get("is_success", info.get("success"))
        self.told |= success is not None
        # a world whose physics blew up in this step shows its last true state again: that step does not count
        blow_ups = np.array(info.get("blow_ups", np.zeros_like(self.length)))
        lost = np.zeros_like(self.alive) if self.blow_ups is None else blow_ups > self.blow_ups
        self.blow_ups = blow_ups
        if success is not None:
            self.success = np.where(self.alive & ~lost, np.asarray(success, dtype=bool), self.success)
        self.terminated |= self.alive & terminated
        self.length = np.where(self.alive, np.maximum(time + 1 - lost, 1), self.length)
        over = terminated | truncated
        self.alive &= ~over
        if self.alive.any() and over.any():
            self.obs = self._told(self.env.reset, seed=self.seeds, options={"reset_mask": over})[0]

    def check(self, reward: NDArray[Any] | None = None, step: int = 0) -> None:
        """Raises where the worlds gave numbers that are none: in what is stored, or as the reward [W] of a step."""
        parts = {name: self.stored[name] for name in PARTS if name in self.stored}
        action = self.stored.get("action", np.zeros((self.env.num_envs, self.steps, 1)))

        def named(row: int) -> str:
            return f"{self.what} (world {row + 1} of {self.env.num_envs}, reset with seed {self.seeds[row]})"

        check_numbers(self.env, parts, action, named, reward, step)

    def _told(self, call: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """What the world answers; an error of its own becomes a sentence that says where it happened."""
        try:
            return call(*values, **named)
        except Exception as error:
            self.check()  # it may have failed because it had given NaN before
            raise raised(self.env, error, self.what) from error

    def _keep_obs(self, time: int) -> None:
        """Writes the parts of the observation that training has a use for."""
        self._keep({name: self.obs[name] for name in PARTS}, time)

    def _keep(self, values: Mapping[str, NDArray[Any]], time: int) -> None:
        """Writes what the worlds that still play show at a time."""
        for name, value in values.items():
            if name not in self.stored:
                kind = np.bool_ if value.ndim == 1 else np.float32
                self.stored[name] = np.zeros((self.env.num_envs, self.steps, *value.shape[1:]), kind)
            self.stored[name][self.alive, time] = value[self.alive]


def play_again(
    env: VectorEnv[Any, Any, Any], episodes: Episodes, numbers: list[int], look: Callable[[int], None]
) -> None:
    """Plays stored episodes, one a world, from their reset seeds and actions; `look(time)` is called in each state."""
    seeds = reset_seeds(episodes)[numbers].tolist()
    going = np.arange(episodes.action.shape[1])[:, None] < episodes.length[numbers]  # [T, W]

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        gap = np.abs(obs["observation"] - episodes.observation[numbers, time])[:, :6].max(1)  # gripper and object
        if (gap[going[time]] > REPLAY_TOLERANCE).any():
            worst = int(np.where(going[time], gap, 0).argmax())
            raise ValueError(
                f"Episode {numbers[worst]} played again is {gap[worst]:.3f} m off its stored course at step {time}; it "
                "was collected in another world or by another version of mujoco. Collect the episodes anew."
            )
        look(time)
        return episodes.action[numbers, time], np.zeros(len(numbers), dtype=bool)

    play([env], act, seeds, len(going), "an episode that is played again")


def reset_seeds(episodes: Episodes) -> NDArray[np.int64]:
    """The reset seeds [E], which have to be known."""
    if episodes.reset_seed is None:
        raise ValueError("These episodes have no reset seeds, so they cannot be played again; collect them anew.")
    return episodes.reset_seed
