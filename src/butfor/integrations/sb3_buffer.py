"""A hindsight buffer of Stable-Baselines3 that replays by influence and adds it to the reward."""

import operator
import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from torch import Tensor

from butfor.influence.influence import Influence
from butfor.models.tables import Transitions
from butfor.spaces.actions import ActionLaw, describe_mismatch, from_unit
from butfor.spaces.entities import entity_columns
from butfor.spaces.observations import GOAL_PARTS
from butfor.training.bonus import BonusConfig, add_bonus
from butfor.training.priorities import PriorityConfig, by_score

Array = npt.NDArray[Any]


class InfluenceReplayBuffer(HerReplayBuffer):
    """SB3's hindsight buffer that replays episodes by influence (CAI-P) and adds influence to the reward.

    Until an `InfluenceCallback` has scored episodes, and where all of them score the same, its samples are those of
    `HerReplayBuffer`, to the bit. Observations are scored as the world gives them, before `VecNormalize`.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        env: VecEnv,
        *,
        entity: Sequence[int] | str,
        priority: bool = True,
        bonus: float = 0.2,
        cap: float = 2.0,
        ceiling: float | None = 0.0,
        seed: int = 0,
        optimize_memory_usage: bool = False,
        **her: Any,
    ) -> None:
        """`entity`: what is influenced, columns of `observation` or words: [3, 4, 5], "3:6", "cube=observation:3:6".

        `priority`: draw episodes by 1 / rank of their summed score, steps of an episode alike. `bonus`: add so much of
        min(score, `cap`) to the reward, but not beyond `ceiling`, the reward of a reached goal (None: no limit).
        Other arguments are those of `HerReplayBuffer`.
        """
        if not isinstance(observation_space, spaces.Dict) or not set(observation_space.spaces) >= GOAL_PARTS:
            raise ValueError(
                f"The observation space is {observation_space}; InfluenceReplayBuffer needs a goal env, whose "
                f"observations are a Dict with {', '.join(sorted(GOAL_PARTS))}."
            )
        if optimize_memory_usage:
            raise ValueError("optimize_memory_usage=True does not work with hindsight replay; leave it at False.")
        shape = observation_space["observation"].shape
        if shape is None or len(shape) != 1:
            raise ValueError(f"'observation' has shape {shape}; influence needs a state [D], not an image.")
        try:
            words = entity if isinstance(entity, str) else ",".join(str(operator.index(column)) for column in entity)
        except TypeError as error:
            raise ValueError(
                f"entity is {entity!r}; expected one entity: columns of 'observation' such as [3, 4, 5], or words such "
                "as 'cube=observation:3:6'."
            ) from error
        self.entities = entity_columns(words if "=" in words else f"entity={words}", {"observation": shape[0]})
        self.law = ActionLaw.from_space(action_space)
        self.bonus = BonusConfig(weight=bonus, cap=cap, ceiling=ceiling)
        super().__init__(buffer_size, observation_space, action_space, env, **her)
        self.prioritised = priority
        self.scores = np.full((self.buffer_size, self.n_envs), np.nan, np.float32)  # NaN: not scored yet
        self.added = {"episode": 0, "step": 0}
        self.trained = dict(self.added)  # what had been added when the model was last trained
        self.has_new = False  # episodes that nobody has scored yet
        self.influence: Influence | None = None
        self.name = next(iter(self.entities))  # of the entity in `influence`
        self.attached = False  # whether a callback scores the episodes
        self._random = np.random.default_rng(seed)
        self._drawing: tuple[Array, Array, Array] | None = None  # running sum of chances, episodes, lengths
        self._stale = True

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: scores, but neither the env nor the influence model."""
        return super().__getstate__() | {"influence": None, "attached": False}

    def watch(self, influence: Influence) -> None:
        """Takes the model that scores this buffer's states."""
        (columns,) = self.entities.values()
        same = [name for name, others in influence.entities.items() if sorted(others) == sorted(columns)]
        size = self.observations["observation"].shape[-1]
        if not same or influence.model.obs_size != size:
            raise ValueError(
                f"The influence model is for {influence.model.obs_size} columns and entities {influence.entities}; the "
                f"buffer has {size} columns and the entity {list(columns)}. Fit one on this world's 'observation'."
            )
        if wrong := describe_mismatch(influence.law, self.law):
            raise ValueError(f"{wrong} Fit it on this world's actions, with action_space=env.action_space.")
        self.influence, self.name = influence, same[0]

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Stores a step of every env; an old episode whose place it takes can no longer be drawn."""
        self._stale |= bool((self.ep_length[self.pos] > 0).any())
        self.scores[self.pos] = np.nan
        self.added["step"] += self.n_envs
        super().add(*args, **kwargs)

    def _compute_episode_length(self, env_idx: int) -> None:
        super()._compute_episode_length(env_idx)
        self.added["episode"] += 1
        self.has_new = self._stale = True

    def transitions(self, flat: Array) -> Transitions:
        """obs, action, next_obs of steps (row x n_envs + env) in the units of the world: SB3 stores scaled actions."""
        at = np.unravel_index(flat, self.scores.shape)
        parts = (self.observations["observation"], self.actions, self.next_observations["observation"])
        obs, action, next_obs = (torch.from_numpy(part[at]) for part in parts)
        if not obs.is_floating_point():  # a grid, say
            obs, next_obs = obs.double(), next_obs.double()
        if self.law.count:
            return obs, action[:, 0].long(), next_obs
        return obs, from_unit(action, self.law.bounds(action.device)), next_obs

    def set_scores(self, flat: Array, scores: Array) -> None:
        """The influence CAI(s_t) of the states that these steps (row x n_envs + env) start from."""
        self.scores.reshape(-1)[flat] = scores
        self._stale = True

    def forget_scores(self, newest: int | None = None) -> None:
        """Makes the newest steps (None: all) due to be scored anew."""
        age = (self.pos - 1 - np.arange(self.buffer_size)) % self.buffer_size * self.n_envs
        self.scores[age < (np.inf if newest is None else newest)] = np.nan
        self.has_new = self._stale = True

    def _get_real_samples(
        self, batch_indices: Array, env_indices: Array, env: VecNormalize | None = None
    ) -> DictReplayBufferSamples:
        at = self._choose(batch_indices, env_indices)
        return super()._get_real_samples(*at, self._with_bonus(*at, env))

    def _get_virtual_samples(
        self, batch_indices: Array, env_indices: Array, env: VecNormalize | None = None
    ) -> DictReplayBufferSamples:
        at = self._choose(batch_indices, env_indices)
        return super()._get_virtual_samples(*at, self._with_bonus(*at, env))

    def _choose(self, rows: Array, columns: Array) -> tuple[Array, Array]:
        """As many steps drawn by priority (CAI-P, section 6.3); those that SB3 drew where there is none."""
        if not self.attached if self.influence is None else self.has_new:  # a callback scores before each sample
            text = "No InfluenceCallback scores this InfluenceReplayBuffer; give one to learn(callback=...)."
            warnings.warn(text, stacklevel=4)
        if self._stale:
            self._drawing, self._stale = self._prepare() if self.prioritised else None, False
        if self._drawing is None:
            return rows, columns
        running, episodes, lengths = self._drawing
        lots = self._random.random(len(rows)) * running[-1]
        drawn = np.searchsorted(running[:-1], lots, side="right")
        start, column = np.divmod(episodes[drawn], self.n_envs)
        return (start + self._random.integers(lengths[drawn])) % self.buffer_size, column

    def _prepare(self) -> tuple[Array, Array, Array] | None:
        """Running sum of chances, first step (row x n_envs + env) and length of each episode; None if all are alike."""
        steps = np.flatnonzero(self.ep_length > 0)
        first = self.ep_start.reshape(-1)[steps] * self.n_envs + steps % self.n_envs
        total = np.bincount(first, weights=np.nan_to_num(self.scores.reshape(-1)[steps]))
        length = np.bincount(first)
        episodes = np.flatnonzero(length)
        total, length = total[episodes], length[episodes]
        if not len(total) or total.min() == total.max():
            return None
        whole = torch.from_numpy(total)[None, :, None]  # [1, E, 1]: each episode as one step with its summed score
        chance = by_score(whole, torch.ones(1, len(total), dtype=torch.long), PriorityConfig())[0, :, 0]
        return np.cumsum(chance.double().numpy()), episodes, length

    def _with_bonus(self, rows: Array, columns: Array, env: VecNormalize | None) -> VecNormalize | None:
        """What SB3 calls to normalise a sample, with the bonus added before."""
        if not self.bonus.weight:
            return env
        score = torch.from_numpy(np.nan_to_num(self.scores[rows, columns])[:, None])
        return cast(VecNormalize, _BonusFirst(env, score, self.bonus))


class _BonusFirst:
    """Stands where SB3 expects VecNormalize: adds the bonus in the world's own units, then normalises the sum.

    SB3 hands the raw reward, real or relabelled, to `normalize_reward` alone.
    """

    def __init__(self, env: VecNormalize | None, score: Tensor, config: BonusConfig) -> None:
        self.env, self.score, self.config = env, score, config

    def normalize_obs(self, obs: Any) -> Any:
        """As without a bonus."""
        return obs if self.env is None else self.env.normalize_obs(obs)

    def normalize_reward(self, reward: Array) -> Array:
        """r + weight min(score, cap), at most the ceiling; the ceiling never lowers the world's own reward."""
        own, ceiling = torch.from_numpy(reward), self.config.ceiling
        if ceiling is not None and bool((own > ceiling).any()):
            warnings.warn(
                f"A reward of {float(own.max()):g} is above the bonus's ceiling, {ceiling:g}: set ceiling= in "
                "replay_buffer_kwargs to the reward of a reached goal, or to None for no limit.",
                stacklevel=2,
            )
        total = torch.maximum(own, add_bonus(own, self.score, self.config.weight, self.config)).numpy()
        return total if self.env is None else self.env.normalize_reward(total)
