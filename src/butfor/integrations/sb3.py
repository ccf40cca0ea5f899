"""Influence for agents of Stable-Baselines3: a hindsight buffer, a callback that trains the model, active exploration.

>>> model = SAC("MultiInputPolicy", env, replay_buffer_class=InfluenceReplayBuffer,
...             replay_buffer_kwargs=dict(entities="cube=observation:3:6"))
>>> model.learn(100_000, callback=InfluenceCallback())
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from butfor.influence.contact import ContactConfig
from butfor.influence.influence import Influence
from butfor.influence.learner import InfluenceLearner
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FOR_ANY_DATA, FitConfig
from butfor.models.networks import make_generators
from butfor.models.tables import Transitions, target_scale
from butfor.spaces.actions import ActionLaw, describe_mismatch, from_unit
from butfor.spaces.arrays import FEWEST_TRANSITIONS
from butfor.spaces.entities import Entities, entity_columns
from butfor.spaces.observations import GOAL_PARTS
from butfor.training.bonus import BonusConfig, add_bonus
from butfor.training.exploration import ExploreConfig, draw_noise, explore
from butfor.training.priorities import PriorityConfig, by_score
from butfor.training.replay import ReplayConfig

try:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.noise import ActionNoise
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples as Samples
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
except ImportError as error:
    raise ImportError(
        "butfor.integrations.sb3 needs Stable-Baselines3. Install it with: pip install 'butfor[sb3]'"
    ) from error

__all__ = ["ActiveExploration", "InfluenceCallback", "InfluenceReplayBuffer"]

Array = NDArray[Any]
MOST_ROWS = 200_000  # most steps that a training round uses
BUFFER_NEEDED = "replay_buffer_class=InfluenceReplayBuffer and replay_buffer_kwargs=dict(entities=...)"


class InfluenceReplayBuffer(HerReplayBuffer):
    """SB3's hindsight buffer that draws episodes by influence (CAI-P) and adds influence to the reward.

    Until an `InfluenceCallback` has scored episodes, and while all scores are equal, its samples are those of
    `HerReplayBuffer`, bit for bit. Scores are computed from unnormalised observations.
    """

    goals = ReplayConfig()  # of buffers that were pickled before these were options
    rank_exponent = 1.0

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        env: VecEnv,
        *,
        entities: Entities,
        priority: bool = True,
        rank_exponent: float = 1.0,
        bonus: float = 0.2,
        cap: float = 2.0,
        ceiling: float | None = 0.0,
        other_goals: float = 0.0,
        influenced_goals: float | None = None,
        seed: int = 0,
        **her: Any,
    ) -> None:
        """Create an empty buffer; SB3 passes the first four arguments.

        Args:
            entities: the one entity whose influence counts: "cube=observation:3:6" or {"cube": [3, 4, 5]}
            priority: draw episodes by 1 / rank of their summed score, and their steps uniformly
            rank_exponent: draw them by 1 / rank^this instead; smaller values draw more different episodes
            bonus: this much of min(score, cap) is added to the reward
            cap: the highest score that is rewarded
            ceiling: the bonus does not raise rewards above this, the reward of a reached goal; None: no limit
            other_goals: share of the relabelled goals that are the desired goal of an episode drawn like the samples
            influenced_goals: take goals of hindsight only from after the next step whose score exceeds this, in nats;
                without one the goal stays as it was. States without a score are relabelled as in SB3. None: any goal
            seed: seed of the drawing by priority and of these goals
            **her: arguments of `HerReplayBuffer`
        """
        if not isinstance(observation_space, spaces.Dict) or not set(observation_space.spaces) >= GOAL_PARTS:
            raise ValueError(
                f"The observation space is {observation_space}; InfluenceReplayBuffer needs a goal-conditioned "
                f"environment, whose observations are a Dict with {', '.join(sorted(GOAL_PARTS))}."
            )
        shape = observation_space["observation"].shape
        if shape is None or len(shape) != 1:
            raise ValueError(f"'observation' has shape {shape}; influence needs a state [D], not an image.")
        self.entities = entity_columns(entities, {"observation": shape[0]})
        if len(self.entities) != 1:
            raise ValueError(f"entities is {entities!r}; InfluenceReplayBuffer needs exactly one.")
        self.law = ActionLaw.from_space(action_space)
        self.bonus = BonusConfig(weight=bonus, cap=cap, ceiling=ceiling)
        self.goals = ReplayConfig(other_goals=other_goals, influenced_goals=influenced_goals)
        super().__init__(buffer_size, observation_space, action_space, env, **her)
        if influenced_goals is not None and self.goal_selection_strategy is not GoalSelectionStrategy.FUTURE:
            given = self.goal_selection_strategy.name.lower()
            raise ValueError(f"goal_selection_strategy is {given!r}; influenced_goals needs 'future'.")
        self.prioritised = priority
        self.rank_exponent = PriorityConfig(rank_exponent=rank_exponent).rank_exponent
        self.scores = np.full((self.buffer_size, self.n_envs), np.nan, np.float32)  # NaN: not scored yet
        self.added = {"episode": 0, "step": 0}
        self.trained = dict(self.added)  # what had been added when the model was last trained
        self.has_new = False  # whether episodes are not scored yet
        self.influence: Influence | None = None
        self.name = next(iter(self.entities))  # of the entity in `influence`
        self.attached = False  # whether a callback scores the episodes
        self._random = np.random.default_rng(seed)
        self._drawing: tuple[Array, Array, Array] | None = None  # running sum of chances, episodes, lengths
        self._stale = True  # whether `_drawing` is out of date
        self._drawn: tuple[Array, Array]  # rows and environments of the steps that were drawn last

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: the scores, but neither the environments nor the influence model."""
        return super().__getstate__() | {"influence": None, "attached": False}

    def use_model(self, influence: Influence) -> None:
        """Set the model that scores this buffer's states."""
        (columns,) = self.entities.values()
        same = [name for name, others in influence.entities.items() if sorted(others) == sorted(columns)]
        size = self.observations["observation"].shape[-1]
        if not same or influence.model.obs_size != size:
            raise ValueError(
                f"The influence model was fitted on {influence.model.obs_size} columns with entities "
                f"{influence.entities}; the buffer has {size} columns and the entity {columns}. Fit a model on this "
                "environment's 'observation'."
            )
        if mismatch := describe_mismatch(influence.law, self.law):
            raise ValueError(f"{mismatch} Fit it with action_space=env.action_space.")
        self.influence = influence
        self.name = same[0]

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Store a step of every environment; an old episode that it overwrites can no longer be drawn."""
        self._stale |= bool((self.ep_length[self.pos] > 0).any())
        self.scores[self.pos] = np.nan
        self.added["step"] += self.n_envs
        super().add(*args, **kwargs)

    def _compute_episode_length(self, env_idx: int) -> None:
        super()._compute_episode_length(env_idx)
        self.added["episode"] += 1
        self.has_new = self._stale = True

    def transitions(self, steps: Array) -> Transitions:
        """Return obs, action, next_obs of steps (row x n_envs + env); actions in the environment's bounds."""
        at = np.unravel_index(steps, self.scores.shape)
        parts = (self.observations["observation"], self.actions, self.next_observations["observation"])
        obs, action, next_obs = (torch.from_numpy(part[at]) for part in parts)
        if not obs.is_floating_point():
            obs, next_obs = obs.double(), next_obs.double()
        if self.law.count:
            return obs, action[:, 0].long(), next_obs
        return obs, from_unit(action, self.law.bounds(action.device)), next_obs

    def set_scores(self, steps: Array, scores: Array) -> None:
        """Set the influence CAI(s_t) of the states that these steps (row x n_envs + env) start from."""
        self.scores.reshape(-1)[steps] = scores
        self._stale = True

    def forget_scores(self, newest: int | None = None) -> None:
        """Remove the scores of the newest steps (None: all), so that they are scored again."""
        age = (self.pos - 1 - np.arange(self.buffer_size)) % self.buffer_size * self.n_envs
        self.scores[age < (np.inf if newest is None else newest)] = np.nan
        self.has_new = self._stale = True

    def _get_real_samples(self, batch_indices: Array, env_indices: Array, env: VecNormalize | None = None) -> Samples:
        return super()._get_real_samples(*self._choose(batch_indices, env_indices), env)

    def _get_virtual_samples(
        self, batch_indices: Array, env_indices: Array, env: VecNormalize | None = None
    ) -> Samples:
        return super()._get_virtual_samples(*self._choose(batch_indices, env_indices), env)

    def _choose(self, rows: Array, envs: Array) -> tuple[Array, Array]:
        """Draw as many steps by priority (CAI-P, section 6.3); without scores, return those that SB3 drew."""
        unscored = not self.attached if self.influence is None else self.has_new  # a callback scores before each sample
        if unscored:
            text = "No InfluenceCallback scores this InfluenceReplayBuffer; give one to learn(callback=...)."
            warnings.warn(text, stacklevel=4)
        if self._stale:
            self._drawing = self._chances() if self.prioritised else None
            self._stale = False
        if self._drawing is not None:
            start, envs, lengths = self._draw_episodes(len(rows), self._drawing)
            rows = (start + self._random.integers(lengths)) % self.buffer_size
        self._drawn = rows, envs
        return self._drawn

    def _draw_episodes(self, count: int, drawing: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """Draw episodes by priority: rows of their first steps, environments and lengths."""
        running, episodes, lengths = drawing
        drawn = np.searchsorted(running[:-1], self._random.random(count) * running[-1], side="right")
        return *np.divmod(episodes[drawn], self.n_envs), lengths[drawn]

    def _sample_goals(self, batch_indices: Array, env_indices: Array) -> Array:
        """Choose the goals of relabelled steps: SB3's, those after influence, or those of other episodes."""
        goals = super()._sample_goals(batch_indices, env_indices)
        if self.goals.influenced_goals is not None:
            influenced = self._influenced_goals(batch_indices, env_indices, self.goals.influenced_goals)
            scored = ~np.isnan(self.scores[batch_indices, env_indices])
            goals = np.where(scored[:, None], influenced, goals)
        if self.goals.other_goals:
            replaced = np.flatnonzero(self._random.random(len(goals)) < self.goals.other_goals)
            if self._drawing is not None:
                start, envs, _ = self._draw_episodes(len(replaced), self._drawing)
            else:
                steps = self._random.choice(np.flatnonzero(self.ep_length > 0), len(replaced))
                rows, envs = np.divmod(steps, self.n_envs)
                start = self.ep_start[rows, envs]
            goals[replaced] = self.observations["desired_goal"][start, envs]
        return goals

    def _influenced_goals(self, rows: Array, envs: Array, threshold: float) -> Array:
        """Goals achieved by or after the next influenced step of the episode; without one, the desired goals."""
        left = self.ep_length[rows, envs] - (rows - self.ep_start[rows, envs]) % self.buffer_size  # steps to the end
        ahead = np.arange(left.max(initial=0))
        later = (rows[:, None] + ahead) % self.buffer_size  # [B, T]
        found = (self.scores[later, envs[:, None]] > threshold) & (ahead < left[:, None])
        first = np.where(found.any(1), found.argmax(1), left - 1)
        chosen = (rows + self._random.integers(first, left)) % self.buffer_size
        achieved = self.next_observations["achieved_goal"][chosen, envs]
        return np.where(found.any(1)[:, None], achieved, self.observations["desired_goal"][rows, envs])

    def _chances(self) -> tuple[Array, Array, Array] | None:
        """Running sum of chances, first step (row x n_envs + env) and length of each episode; None if all are equal."""
        steps = np.flatnonzero(self.ep_length > 0)
        first = self.ep_start.reshape(-1)[steps] * self.n_envs + steps % self.n_envs
        total = np.bincount(first, weights=np.nan_to_num(self.scores.reshape(-1)[steps]))
        length = np.bincount(first)
        episodes = np.flatnonzero(length)
        total, length = total[episodes], length[episodes]
        if not len(total) or total.min() == total.max():
            return None
        whole = torch.from_numpy(total)[None, :, None]  # [1, E, 1]: each episode as one step with its summed score
        chance = by_score(whole, torch.ones(1, len(total), dtype=torch.long), self.rank_exponent)[0, :, 0]
        return np.cumsum(chance.double().numpy()), episodes, length

    def _normalize_reward(self, reward: Array, env: VecNormalize | None = None) -> Array:  # type: ignore[override]
        """Add the bonus to the rewards of the drawn steps, real or relabelled, and normalise the sum.

        The ceiling never lowers the environment's own reward.
        """
        if not self.bonus.weight:
            return super()._normalize_reward(reward, env)
        own = torch.from_numpy(reward)
        ceiling = self.bonus.ceiling
        if ceiling is not None and bool((own > ceiling).any()):
            warnings.warn(
                f"A reward of {float(own.max()):g} is above the bonus's ceiling, {ceiling:g}. Set ceiling= in "
                "replay_buffer_kwargs to the reward of a reached goal, or to None for no limit.",
                stacklevel=2,
            )
        score = torch.from_numpy(np.nan_to_num(self.scores[self._drawn])[:, None])
        total = torch.maximum(own, add_bonus(own, score, self.bonus))
        return super()._normalize_reward(total.numpy(), env)


class _BufferLearner(InfluenceLearner):
    """Trains on the complete episodes of an `InfluenceReplayBuffer` instead of its own buffer."""

    buffer: InfluenceReplayBuffer
    keeps_units = False

    def transitions(self) -> Transitions:
        """Return the steps of complete episodes, except last ones that SB3 stores as VecNormalize clipped them."""
        known = self.buffer.ep_length > 0
        if self.buffer.env is not None and unwrap_vec_normalize(self.buffer.env) is not None:
            known &= self.buffer.dones == 0
        steps = np.flatnonzero(known)
        if len(steps) > MOST_ROWS:  # others in every round
            random = np.random.default_rng([self.seed, self.buffer.added["step"]])
            steps = random.choice(steps, MOST_ROWS, replace=False)
        return self.buffer.transitions(steps)

    def continue_from(self, influence: Influence, keeps_units: bool) -> None:
        """Start the next round from this model's weights; `keeps_units`: in its units, also if the data's differ."""
        self.influence = influence
        self.entities = influence.entities
        self.keeps_units = keeps_units
        self.law = influence.law
        self.device = influence.device
        self._optimizer = self._optimize(influence.model)

    def _start(self, transitions: Transitions) -> tuple[Influence, torch.optim.Optimizer]:
        if self.keeps_units and self.influence is not None and self._optimizer is not None:
            return self.influence, self._optimizer
        return super()._start(transitions)


class InfluenceCallback(BaseCallback):
    """Trains the influence model from an `InfluenceReplayBuffer` and scores its episodes while the agent learns.

    Each round continues from the weights of the last one. The model is `callback.influence`; keep it with its `save`.
    Use one callback for each agent, for any number of calls of `learn`.
    """

    def __init__(
        self,
        every: int | tuple[int, str] | None = 100,
        batches: int = 1_000,
        first_batches: int | None = None,
        *,
        influence: Influence | Path | str | None = None,
        source: str | None = None,
        agent: Sequence[int] | None = None,
        network: ModelConfig | ContactConfig | None = None,
        fitting: FitConfig = FOR_ANY_DATA,
        scoring: ScoreConfig = ScoreConfig(actions=32),
        rescore: int | None = 50_000,
        verbose: int = 0,
    ) -> None:
        """Set when the model is trained.

        Args:
            every: episodes between training rounds, or steps as in (5_000, "step"); None: `influence` is not trained
            batches: batches per round
            first_batches: batches of the first round; None: five times `batches`
            influence: a model to start from, or its file
            source: the entity of `influence` whose influence counts, with every=None; default: the action's
            agent: columns of the position of what touches the entity, such as a hand; default: the data show them
            network: the model; default: one of touches once it is known what touches the entity
            fitting, scoring: how the model is trained, and how CAI is estimated
            rescore: newest steps that are scored again after a round; None: all
        """
        super().__init__(verbose)
        amount, unit = every if isinstance(every, tuple) else (every, "episode")
        if unit not in ("episode", "step") or (amount is not None and amount < 1):
            raise ValueError(f'every is {every!r}; expected a number of episodes, or steps as in (5_000, "step").')
        if amount is None and influence is None:
            raise ValueError("every=None does not train the model; give a trained one as influence=.")
        first = 5 * batches if first_batches is None else first_batches
        if min(batches, first, 1 if rescore is None else rescore) < 1:
            given = f"{batches}, {first_batches} and {rescore}"
            raise ValueError(f"batches, first_batches and rescore must be at least 1; got {given}.")
        self.every = amount
        self.unit = unit
        self.batches = batches
        self.first_batches = first
        # of the learner
        self.settings: Any = {"agent": agent, "model": network, "fitting": fitting, "scoring": scoring}
        if source is not None and (amount is not None or influence is None):
            raise ValueError(f"source is {source!r}: give a fitted influence= with that entity, and every=None.")
        self.source = source
        self.rescore = rescore
        self._given = influence
        self._learner: _BufferLearner | None = None
        self._tried = torch.Generator()  # draws the tried actions

    @property
    def influence(self) -> Influence | None:
        """The model; None before the first round."""
        return None if self._learner is None else self._learner.influence

    @property
    def buffer(self) -> InfluenceReplayBuffer:
        """The agent's buffer."""
        buffer = getattr(self.model, "replay_buffer", None)
        if not isinstance(buffer, InfluenceReplayBuffer):
            raise TypeError(
                f"The agent's replay buffer is {type(buffer).__name__}; InfluenceCallback needs {BUFFER_NEEDED}."
            )
        return buffer

    def _init_callback(self) -> None:
        buffer = self.buffer
        if self.source == buffer.name:
            raise ValueError(f"source is {self.source!r}, the buffer's own entity; name another one of influence=.")
        if self._learner is None or self._learner.influence is None:
            self._learner = self._make_learner(buffer)
        self._learner.buffer = buffer
        buffer.attached = True
        if self._learner.influence is None:
            buffer.trained = dict.fromkeys(buffer.trained, 0)
        elif self._learner.influence is not buffer.influence:
            buffer.use_model(self._learner.influence)
            buffer.forget_scores()

    def _make_learner(self, buffer: InfluenceReplayBuffer) -> _BufferLearner:
        """Return a learner that starts from the given model, or from that of an earlier callback."""
        agent = self.model
        seed = agent.seed or 0
        size = buffer.observations["observation"].shape[-1]
        learner = _BufferLearner(
            size, agent.action_space, buffer.entities, seed=seed, device=agent.device, **self.settings
        )  # fmt: skip
        given = self._given if self._given is not None else buffer.influence
        if isinstance(given, Path | str):
            given = Influence.load(given, agent.device)
        if given is not None:
            if self.every is not None and given.model.replicas > 1:
                raise ValueError(
                    f"The influence model has {given.model.replicas} members, which cannot be trained further; give "
                    "every=None to use it as it is, or fit it with members=1."
                )
            if self.every is not None and given.predicted_steps > 1:
                raise ValueError(
                    f"The influence model predicts {given.predicted_steps} steps at once, and the buffer has single "
                    "steps to train it further; give every=None to use it as it is."
                )
            learner.continue_from(given, keeps_units=self._given is not None)
        self._tried = make_generators([seed + 1], learner.device)[0]
        return learner

    def _on_training_start(self) -> None:
        self._score()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.buffer.attached = False  # the next call of learn may have no callback

    def _on_rollout_end(self) -> None:
        buffer = self.buffer
        if self.every is not None and buffer.added[self.unit] - buffer.trained[self.unit] >= self.every:
            buffer.trained = dict(buffer.added)
            self._train(buffer)
        self._score()

    def _train(self, buffer: InfluenceReplayBuffer) -> None:
        """Train for a round, if there is enough data; afterwards the newest steps are due to be scored again."""
        learner = self._learner
        before = self.influence
        assert learner is not None
        transitions = learner.transitions()
        if len(transitions[0]) < FEWEST_TRANSITIONS:
            return
        still = target_scale(transitions, buffer.entities) == 1  # only rounding varies
        if before is None and bool(still.all()):
            text = f"The entity {buffer.entities} has not moved yet; the influence model is trained once it does."
            warnings.warn(text, stacklevel=2)
            return
        loss = learner.fit(self.first_batches if before is None else self.batches)
        if before is not None and learner.influence is not before:  # a new network in new units
            loss = learner.fit(max(1, self.first_batches - self.batches))
        assert learner.influence is not None
        buffer.use_model(learner.influence)
        buffer.forget_scores(self.rescore)
        self.logger.record("influence/loss", loss)

    def _score(self) -> None:
        """Score the states of complete episodes that have no score."""
        buffer = self.buffer
        if buffer.influence is None or not buffer.has_new:
            return
        due = np.flatnonzero((buffer.ep_length > 0) & np.isnan(buffer.scores))
        if len(due):
            scores = buffer.influence.score(buffer.transitions(due)[0], self._tried, self.source)[buffer.name]
            buffer.set_scores(due, scores.numpy())
            self.logger.record("influence/score", float(scores.mean()))
        buffer.has_new = False


class ActiveExploration(OffPolicyAlgorithm):
    """A mixin for SB3's agents that explores by influence: `class ActiveSAC(ActiveExploration, SAC): pass`.

    After `learning_starts` a share `epsilon` of the actions is exploratory. Of these, a share `active` is the most
    influential of `candidates` random actions; the rest is uniform. All other actions are SB3's own with its action
    noise; `noise` of the settings is not used.
    """

    exploration: ExploreConfig = ExploreConfig()
    _exploration_random: torch.Generator | None = None

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[Array, Array]:
        """Return SB3's actions and, scaled to [-1, 1], those for the buffer; some replaced by exploratory ones."""
        action, stored = super()._sample_action(learning_starts, action_noise, n_envs)
        buffer = self.replay_buffer
        if not isinstance(buffer, InfluenceReplayBuffer) or not (buffer.attached or buffer.influence):
            raise TypeError(f"ActiveExploration needs {BUFFER_NEEDED}, and learn(callback=InfluenceCallback()).")
        if buffer.law.count:
            raise TypeError(f"ActiveExploration needs a Box of actions; the action space is {self.action_space}.")
        influence = buffer.influence
        if influence is None or self.num_timesteps < learning_starts:
            return action, stored
        if self._exploration_random is None:
            self._exploration_random = make_generators([(self.seed or 0) + 2])[0]
        config = replace(self.exploration, noise=0.0)
        noise = draw_noise(1, n_envs, buffer.law, config.candidates, self._exploration_random)  # [1, W, n]
        chosen = np.flatnonzero(noise[0, :, 0] < config.epsilon)
        if not len(chosen):
            return action, stored
        seen = self._last_obs if self._vec_normalize_env is None else self._last_original_obs
        obs = torch.from_numpy(np.asarray(cast(dict[str, Array], seen)["observation"])[chosen])

        def score(tried: Tensor) -> Tensor:  # [1, W, K, A] -> [1, W, K]
            within = tried[0].clamp(*influence.law.bounds(tried.device))  # its box may be a little smaller
            return cast(Tensor, influence.action_scores(obs, within)[buffer.name])[None]

        own = torch.from_numpy(action[chosen]).float()[None]
        explored = explore(own, noise[:, chosen], buffer.law.bounds(obs.device), config, score)[0][0].numpy()
        action, stored = action.copy(), stored.copy()
        action[chosen] = explored
        stored[chosen] = self.policy.scale_action(explored)
        return action, stored

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_exploration_random"]
