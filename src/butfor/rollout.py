"""Playing episodes: the only place that calls `env.step`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from butfor.episodes import Episodes

Observation = dict[str, NDArray[Any]]  # observation [W, D], achieved_goal [W, G], desired_goal [W, G]
Policy = Callable[[Observation, np.random.Generator], tuple[NDArray[Any], NDArray[np.bool_]]]
"""Actions [W, A] for W worlds, and which of them were drawn from a known law with full support [W]."""
Judge = Callable[[Observation, NDArray[Any]], dict[str, NDArray[np.bool_]]]
"""Labels `label_...` [W] of the states that W worlds are in, given the actions [W, A] about to be taken."""


def episode_seed(seed: int, replica: int, episode: int) -> int:
    """The seed of one reset, so that an episode's start depends on nothing else."""
    return int(np.random.SeedSequence((seed, replica, episode)).generate_state(1)[0])


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
    judge: Judge | None = None,
) -> Episodes:
    """Plays whole episodes; episode e starts from the reset seeded by (seed, 0, e), whatever the number of worlds.

    `first` is the number of the first episode. The contact and every `label_...` that the world reports in `info`, or
    that a `judge` gives before each step, are stored, too.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1; got {episodes}.")
    goals = getattr(env.single_observation_space, "spaces", {})
    if not {"observation", "achieved_goal", "desired_goal"} <= set(goals):
        needed = "observation, achieved_goal and desired_goal"
        raise ValueError(
            f"collect needs a goal world with {needed}; its observations are {env.single_observation_space}."
        )
    if env.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED:
        raise ValueError("collect needs worlds made with AutoresetMode.DISABLED; make them with envs.make_worlds.")
    steps = getattr(env.spec, "max_episode_steps", None)
    if steps is None:
        raise ValueError("The world has no time limit; register it with max_episode_steps.")
    generator = np.random.default_rng(np.random.SeedSequence((seed, 1, first)))
    worlds = env.num_envs
    playing = np.arange(worlds)  # the episode each world plays; those past the last are played but not kept
    next_episode = worlds

    def reset(mask: NDArray[np.bool_]) -> Observation:
        seeds: Any = [episode_seed(seed, 0, first + int(episode)) for episode in playing]
        start: Observation = env.reset(seed=seeds, options={"reset_mask": mask})[0]
        return start

    obs = reset(np.ones(worlds, dtype=bool))
    time = np.zeros(worlds, dtype=np.int64)
    stored: dict[str, NDArray[Any]] = {}

    def store(name: str, rows: NDArray[np.bool_], at: NDArray[np.int64], value: NDArray[Any], length: int) -> None:
        if name not in stored:
            kind = np.bool_ if value.dtype == np.bool_ else np.float32
            stored[name] = np.zeros((episodes, length, *value.shape[1:]), kind)
        while at[rows].max(initial=0) >= stored[name].shape[1]:  # the world's own limit is longer than it declares
            stored[name] = np.concatenate([stored[name], np.zeros_like(stored[name])], 1)
        stored[name][playing[rows], at[rows]] = value[rows]

    def store_obs(rows: NDArray[np.bool_], at: NDArray[np.int64], value: Observation) -> None:
        for name in ("observation", "achieved_goal", "desired_goal"):
            store(name, rows, at, value[name], steps + 1)

    length = np.zeros(episodes, dtype=np.int64)
    blow_ups = np.zeros(worlds, dtype=np.int64)
    store_obs(playing < episodes, time, obs)
    while (playing < episodes).any():
        kept = playing < episodes
        action, sampled = policy(obs, generator)
        verdict = judge(obs, action) if judge is not None else {}
        obs, _, terminated, truncated, info = env.step(action)
        store("action", kept, time, action, steps)
        store("sampled", kept, time, sampled, steps)
        for name, value in (info | verdict).items():
            if name == "contact" or name.startswith("label_"):
                store(name, kept, time, np.asarray(value, dtype=bool), steps)
        time += 1
        store_obs(kept, time, obs)
        ended = terminated | truncated
        # a world whose physics blew up in this step shows its last true state again: that step does not count
        lost, blow_ups = info.get("blow_ups", blow_ups) > blow_ups, info.get("blow_ups", blow_ups).copy()
        if ended.any():
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
        extra = 1 if name in ("observation", "achieved_goal", "desired_goal") else 0
        stored[name] = stored[name][:, : longest + extra]
    label = {name.removeprefix("label_"): stored.pop(name) for name in list(stored) if name.startswith("label_")}
    return Episodes(**stored, length=length, label=label, metadata=metadata or {})


def replay(env: VectorEnv[Any, Any, Any], seed: int, actions: NDArray[Any]) -> Observation:
    """Plays the given actions [t, A] in the first world from a seeded reset; the observation it ends with."""
    seeds: Any = [seed] * env.num_envs
    obs: Observation = env.reset(seed=seeds)[0]
    for action in actions:
        obs = env.step(np.repeat(action[None], env.num_envs, 0))[0]
    return obs
