"""Gymnasium wrappers that tell the influence of each step, and reward it if asked: one world, or a vector of them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat, TypedDict, Unpack

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from butfor.influence.influence import Influence
from butfor.influence.learner import InfluenceLearner
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FOR_ANY_DATA, FitConfig
from butfor.spaces.actions import ActionLaw, describe_mismatch
from butfor.spaces.arrays import FEWEST_TRANSITIONS
from butfor.spaces.entities import Entities, entity_columns
from butfor.spaces.observations import choose_parts, flatten_parts
from butfor.training.bonus import BonusConfig, add_bonus

Table = NDArray[Any]
"""[N, D], a row a world"""
Flags = NDArray[np.bool_]
ONLY_TO_LEARN = {"learn_every", "batches", "memory", "model", "fitting", "scoring", "seed"}  # settings
_IMPORTED_BY = os.getpid()


class Settings(TypedDict, total=False):
    """What both wrappers take beside the world and the `Influence`; defaults are in brackets."""

    entities: Entities
    """instead of a saved `Influence`: what to learn about, as {"cube": [3, 4, 5]} or ["cube=observation:3:6"]"""
    parts: Sequence[str]
    """which parts of a dictionary the model sees, side by side in this order [`observation` of a goal world; else all,
    in the order of their names]; a part in a part is "robot/arm" """
    bonus: float
    """lambda: the reward becomes r + lambda min(CAI, cap); the old one is info["original_reward"] [no bonus]"""
    cap: float
    """the highest CAI that is rewarded [2.0]"""
    ceiling: float | None
    """the highest reward after the bonus; the paper's is 0, which is that of a reached goal [None]"""
    bonus_from: str
    """the entity whose CAI is rewarded, or the "sum" or "max" over all ["sum"]"""
    learn_every: int
    """steps between rounds of learning, counted over all worlds [1000]"""
    batches: int
    """batches a round [200]"""
    memory: int
    """how many of the latest transitions are kept to learn from [100,000]"""
    model: ModelConfig
    """the network that learns"""
    fitting: FitConfig
    """its batch size, learning rate and betas"""
    scoring: ScoreConfig
    """how it is scored"""
    seed: int
    """of the network's first weights, its batches and the actions that are tried [0]"""
    device: torch.device | str
    """where the network is, unless an `Influence` is given as an object [cpu]"""


class StepInfluence:
    """What the wrappers share: which numbers of an observation count, their CAI, learning along, and the bonus."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        influence: Influence | Path | str | None = None,
        *,
        entities: Entities | None = None,
        parts: Sequence[str] | None = None,
        bonus: float | None = None,
        cap: float = 2.0,
        ceiling: float | None = None,
        bonus_from: str = "sum",
        learn_every: int = 1000,
        batches: int = 200,
        memory: int = 100_000,
        model: ModelConfig = ModelConfig(),
        fitting: FitConfig = FOR_ANY_DATA,
        scoring: ScoreConfig = ScoreConfig(),
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if not isinstance(influence, Influence | Path | str | None):
            raise TypeError(f"influence is {influence!r}; expected an Influence, or the path of a saved one.")
        if (influence is None) == (entities is None):
            raise ValueError(
                "Give either a saved Influence (its path, or the object) or entities= to learn about, such as "
                '["cube=3:6"], and not both.'
            )
        if learn_every < 1 or batches < 1:
            raise ValueError(f"learn_every and batches must be at least 1; got {learn_every} and {batches}.")
        if isinstance(action_space, spaces.Box) and not action_space.is_bounded():
            raise ValueError(
                f"The action space {action_space} has no bounds within which actions could be tried. Where ClipAction "
                "took them away, put it outside: ClipAction(InfluenceWrapper(env, ...))."
            )
        self.learn_every, self.batches, self._since = learn_every, batches, 0
        self._saved = Influence.load(influence, device) if isinstance(influence, Path | str) else influence
        self.sizes = choose_parts(observation_space, parts, None if self._saved is None else self._saved.model.obs_size)
        """the parts that the model sees and how many numbers each has"""
        self.learner: InfluenceLearner | None = None
        if entities is not None:
            self.learner = InfluenceLearner(
                sum(self.sizes.values()), action_space, entity_columns(entities, self.sizes), buffer_size=memory,
                model=model, fitting=fitting, scoring=scoring, seed=seed, device=device,
            )  # fmt: skip
            self.names = list(self.learner.entities)
        elif self._saved is not None:
            if wrong := describe_mismatch(self._saved.law, ActionLaw.from_space(action_space)):
                raise ValueError(
                    f"{wrong} Fit it with action_space=env.action_space, or, where a wrapper such as RescaleAction "
                    "changes the actions, put this one inside: RescaleAction(InfluenceWrapper(env, ...), ...)."
                )
            self.names = list(self._saved.entities)
        if {"sum", "max"} & set(self.names):
            raise ValueError(f"Entities are {self.names}; choose names other than sum and max, which combine them.")
        if bonus_from not in ("sum", "max", *self.names):
            raise ValueError(f"bonus_from is {bonus_from!r}; expected sum, max or one of {', '.join(self.names)}.")
        self.bonus = None if bonus is None else BonusConfig(weight=bonus, cap=cap, ceiling=ceiling)
        self.bonus_from = bonus_from

    @property
    def influence(self) -> Influence | None:
        """The `Influence` in use; None before the first round of learning."""
        return self.learner.influence if self.learner is not None else self._saved

    def learned(self) -> Influence:
        """The same, or a sentence where there is none yet."""
        if self.influence is None:
            raise ValueError(
                f"Nothing is learned yet: the first round comes after {self.learn_every} steps (learn_every), and not "
                f"before {FEWEST_TRANSITIONS} transitions."
            )
        return self.influence

    def flatten(self, obs: Any, worlds: int) -> Table:
        """The numbers of an observation that the model sees, as a copy: [worlds, D]."""
        return flatten_parts(obs, self.sizes, worlds)

    def score(self, obs: Table) -> dict[str, NDArray[np.float64]]:
        """CAI of each state by entity, [N]; 0 before the first round of learning."""
        if self.influence is None:
            return {name: np.zeros(len(obs)) for name in self.names}
        return {name: np.asarray(score, dtype=np.float64) for name, score in self.influence.score(obs).items()}

    def learn(self, obs: Table, action: Any, next_obs: Table) -> None:
        """Takes in transitions, and trains where a round is due."""
        if self.learner is None or not len(obs):
            return
        self.learner.add(obs, np.asarray(action), next_obs)
        self._since += len(obs)
        if self._since >= self.learn_every and self.learner.stored >= FEWEST_TRANSITIONS:
            self.learner.fit(self.batches)
            self._since = 0

    def rewarded(self, reward: Any, scores: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """r + lambda min(CAI, cap), at most the ceiling: [N]."""
        assert self.bonus is not None
        if self.bonus_from in scores:
            score = scores[self.bonus_from]
        else:
            table = np.stack(list(scores.values()))  # [entities, N]
            score = table.sum(0) if self.bonus_from == "sum" else table.max(0)
        given = torch.from_numpy(np.array(reward, dtype=np.float64))
        total: NDArray[np.float64] = add_bonus(given, torch.from_numpy(score), self.bonus.weight, self.bonus).numpy()
        return total


class InfluenceWrapper(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Adds the influence of each step to `info`, and to the reward if asked.

    >>> env = InfluenceWrapper(env, "cai.safetensors", bonus=0.2)
    >>> env = InfluenceWrapper(env, entities=["cube=observation:3:6"], learn_every=1000)

    info["cai"] is CAI(s_t), in nats, of the state in which the action was taken: a float, or floats by name where there
    are several entities. An `Influence` that learns as it goes says 0 before its first round. A reset tells none, since
    no action was taken: neither `reset`, nor the step that Gymnasium's Autoreset turns into one. Transitions across
    resets are not learned from.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        influence: Influence | Path | str | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        _prepare(influence, settings)
        RecordConstructorArgs.__init__(self, influence=influence, **settings)
        gymnasium.Wrapper.__init__(self, env)
        self.steps = StepInfluence(env.observation_space, env.action_space, influence, **settings)
        self._obs: Table | None = None  # [1, D], the state that the agent sees
        self._finished = False

    @property
    def influence(self) -> Influence | None:
        """The `Influence` in use; None before the first round of learning."""
        return self.steps.influence

    def save_influence(self, path: Path | str) -> None:
        """Writes what was learned, for `Influence.load` or for another wrapper."""
        self.steps.learned().save(path)

    def best_action(self, entity: str | None = None) -> tuple[Any, float]:
        """The most influential of K random actions in the present state, and its score: for active exploration."""
        action, score = self.steps.learned().best_action(_begun(self._obs), entity)
        return (int(action[0]) if action.ndim == 1 else action[0]), float(score[0])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._obs, self._finished = self.steps.flatten(obs, 1), False
        return obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """One step, with the influence of the state in which it was taken."""
        before, resets = _begun(self._obs), self._finished  # Gymnasium's Autoreset takes this step for a reset
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._obs, self._finished = self.steps.flatten(obs, 1), bool(terminated or truncated)
        if resets:
            return obs, reward, terminated, truncated, info
        scores = self.steps.score(before)
        self.steps.learn(before, np.asarray(action)[None], self._obs)
        numbers = {name: float(score[0]) for name, score in scores.items()}
        info = {**info, "cai": numbers if len(numbers) > 1 else numbers[self.steps.names[0]]}
        if self.steps.bonus is not None:
            info["original_reward"] = float(reward)
            reward = float(self.steps.rewarded([float(reward)], scores)[0])
        return obs, reward, terminated, truncated, info


class VectorInfluenceWrapper(VectorWrapper):
    """The same for a vector of worlds, which share one `Influence` and one memory.

    >>> envs = VectorInfluenceWrapper(envs, entities=["cube=observation:3:6"], bonus=0.2)

    info["cai"] is an array [N] (arrays by name where there are several entities), and info["_cai"] says where it means
    something. Where a world is reset instead of stepped (AutoresetMode.NEXT_STEP), no action was taken: the number is
    0, the mask false, and the reward has no bonus. With SAME_STEP the last step of an episode has its number in
    info["cai"] as every other step; its transition ends in info["final_obs"].
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, NDArray[Any]],
        influence: Influence | Path | str | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        _prepare(influence, settings)
        super().__init__(env)
        self.steps = StepInfluence(env.single_observation_space, env.single_action_space, influence, **settings)
        self.autoreset = AutoresetMode((env.metadata or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._obs: Table | None = None  # [N, D], the states that the agent sees
        self._finished = np.zeros(env.num_envs, dtype=np.bool_)  # which worlds wait for their reset

    @property
    def influence(self) -> Influence | None:
        """The `Influence` in use; None before the first round of learning."""
        return self.steps.influence

    def save_influence(self, path: Path | str) -> None:
        """Writes what was learned, for `Influence.load` or for another wrapper."""
        self.steps.learned().save(path)

    def best_action(self, entity: str | None = None) -> tuple[Any, NDArray[Any]]:
        """The most influential of K random actions in each present state, and their scores: [N, A], [N]."""
        action, score = self.steps.learned().best_action(_begun(self._obs), entity)
        return action, score

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins episodes, in all worlds or in those of options["reset_mask"]."""
        chosen = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_)))
        given = None if options is None else dict(options)  # Gymnasium takes the mask out of what it is given
        obs, info = self.env.reset(seed=seed, options=given)  # type: ignore[arg-type]
        self._obs = self.steps.flatten(obs, self.num_envs)  # the other worlds show what they showed
        self._finished = self._finished & ~chosen
        return obs, info

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """One step of all worlds, with the influence of the states in which it was taken."""
        before, taken = _begun(self._obs), ~self._finished
        obs, reward, terminated, truncated, info = self.env.step(actions)
        scores = {name: np.where(taken, score, 0.0) for name, score in self.steps.score(before).items()}
        self._obs = self.steps.flatten(obs, self.num_envs)
        finished = np.asarray(terminated | truncated, dtype=np.bool_)
        after, known = self._obs, taken
        if self.autoreset is AutoresetMode.SAME_STEP:
            after, known = self._with_final(info, finished)
        else:
            self._finished = finished
        self.steps.learn(before[known], np.asarray(actions)[known], after[known])
        info = {**info, "cai": _masked(scores, taken), "_cai": taken.copy()}
        if self.steps.bonus is not None:
            info |= {"original_reward": np.where(taken, reward, 0.0), "_original_reward": taken.copy()}
            kind = reward.dtype if np.issubdtype(reward.dtype, np.floating) else np.float64
            reward = np.where(taken, self.steps.rewarded(reward, scores), reward).astype(kind)
        return obs, reward, terminated, truncated, info

    def _with_final(self, info: Mapping[str, Any], finished: Flags) -> tuple[Table, Flags]:
        """The states in which the steps ended [N, D], and which of them are known: those before a reset in the step."""
        after, known = _begun(self._obs).copy(), ~finished
        final = info.get("final_obs", np.full(self.num_envs, None))
        for world in np.flatnonzero(finished):
            if final[world] is not None:
                after[world], known[world] = self.steps.flatten(final[world], 1)[0], True
        return after, known


def _prepare(influence: Influence | Path | str | None, settings: Settings) -> None:
    """Refuses settings that nothing would look at, and keeps torch from hanging in a process that was forked."""
    if unused := sorted(ONLY_TO_LEARN & set(settings)) if influence is not None else []:
        raise ValueError(f"{', '.join(unused)}: a saved Influence is used as it is; these are for one that learns.")
    if os.getpid() != _IMPORTED_BY:  # as in AsyncVectorEnv: torch would wait for the threads of the parent
        torch.set_num_threads(1)


def _begun(obs: Table | None) -> Table:
    """The present states, or a sentence where there are none."""
    if obs is None:
        raise ResetNeeded("There is no state yet; call reset() first.")
    return obs


def _masked(scores: Mapping[str, NDArray[np.float64]], mask: Flags) -> Any:
    """Scores as Gymnasium writes vector infos: one array, or arrays by name with a mask each."""
    if len(scores) == 1:
        return next(iter(scores.values()))
    return {key: value for name, score in scores.items() for key, value in ((name, score), (f"_{name}", mask.copy()))}
