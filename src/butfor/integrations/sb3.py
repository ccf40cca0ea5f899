"""Influence for agents of Stable-Baselines3: a hindsight buffer, a callback that trains the model, active exploration.

>>> model = SAC("MultiInputPolicy", env, replay_buffer_class=InfluenceReplayBuffer,
...             replay_buffer_kwargs=dict(entity="cube=observation:3:6"))
>>> model.learn(100_000, callback=InfluenceCallback())
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from butfor.influence.influence import Influence
from butfor.influence.learner import InfluenceLearner
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FOR_ANY_DATA, FitConfig, make_optimizer
from butfor.models.networks import make_generators
from butfor.models.tables import Transitions, target_scale
from butfor.spaces.arrays import FEWEST_TRANSITIONS
from butfor.training.exploration import ExploreConfig, draw_noise, explore

try:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.noise import ActionNoise
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
    from stable_baselines3.common.vec_env import unwrap_vec_normalize
except ImportError as error:
    raise ImportError("This needs Stable-Baselines3; install it with: pip install 'butfor[sb3]'.") from error

from butfor.integrations.sb3_buffer import InfluenceReplayBuffer

__all__ = ["ActiveExploration", "InfluenceCallback", "InfluenceReplayBuffer"]

Array = npt.NDArray[Any]
MOST_ROWS = 200_000  # that a round of training learns from


class _BufferLearner(InfluenceLearner):
    """Learns from the complete episodes of a buffer, not from a ring of its own."""

    buffer: InfluenceReplayBuffer
    keeps_units = False

    def transitions(self) -> Transitions:
        """All steps of complete episodes, but for the last of each where SB3 keeps it as VecNormalize clipped it."""
        known = self.buffer.ep_length > 0
        if self.buffer.env is not None and unwrap_vec_normalize(self.buffer.env) is not None:
            known &= self.buffer.dones == 0
        rows = np.flatnonzero(known)
        if len(rows) > MOST_ROWS:  # others in every round, so that memory is bounded
            random = np.random.default_rng([self.seed, self.buffer.added["step"]])
            rows = random.choice(rows, MOST_ROWS, replace=False)
        return self.buffer.transitions(rows)

    def go_on_from(self, influence: Influence, keeps_units: bool) -> None:
        """Starts the next round from this model's weights; in its units, whatever they are, where it `keeps_units`."""
        self.influence, self.entities, self.keeps_units = influence, influence.entities, keeps_units
        self.law = influence.law
        self.device = influence.model.mean_head.weight.device
        self._optimizer = make_optimizer(influence.model, self.fitting)

    def _start(self, transitions: Transitions) -> tuple[Influence, torch.optim.Optimizer]:
        if self.keeps_units and self.influence is not None and self._optimizer is not None:
            return self.influence, self._optimizer
        return super()._start(transitions)


class InfluenceCallback(BaseCallback):
    """Trains the influence model from an `InfluenceReplayBuffer` and scores its episodes while the agent learns.

    Each round goes on from the weights of the one before. The model is `callback.influence`; keep it by its `save`.
    A callback belongs to one agent, for any number of calls of `learn`.
    """

    def __init__(
        self,
        every: int | tuple[int, str] | None = 100,
        batches: int = 1_000,
        first_batches: int | None = None,
        *,
        influence: Influence | Path | str | None = None,
        network: ModelConfig = ModelConfig(),
        fitting: FitConfig = FOR_ANY_DATA,
        scoring: ScoreConfig = ScoreConfig(actions=32),
        rescore: int | None = 50_000,
        verbose: int = 0,
    ) -> None:
        """A round of `batches` batches `every` 100 episodes, or (5_000, "step"); None: never, `influence` is kept.

        The first round, of `first_batches` (None: five times as many), comes when so much is in the buffer.
        `influence` is a model to start from, or its file. After a round the newest `rescore` steps are scored anew
        (None: all); new episodes are scored at the end of their rollout.
        """
        super().__init__(verbose)
        amount, unit = every if isinstance(every, tuple) else (every, "episode")
        if unit not in ("episode", "step") or (amount is not None and amount < 1):
            raise ValueError(f'every is {every!r}; expected a number of episodes, or as in (5_000, "step").')
        if amount is None and influence is None:
            raise ValueError("every is None, so the model is never trained; give a trained one by influence=.")
        first = 5 * batches if first_batches is None else first_batches
        if min(batches, first, 1 if rescore is None else rescore) < 1:
            given = f"{batches}, {first_batches} and {rescore}"
            raise ValueError(f"batches, first_batches and rescore are {given}; expected at least 1.")
        self.every, self.unit, self.batches, self.first_batches = amount, unit, batches, first
        self.network, self.fitting, self.scoring, self.rescore = network, fitting, scoring, rescore
        self._given, self._learner, self._tried = influence, cast("_BufferLearner | None", None), torch.Generator()

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
                f"The agent's replay buffer is {type(buffer).__name__}; InfluenceCallback needs an agent made with "
                "replay_buffer_class=InfluenceReplayBuffer and replay_buffer_kwargs=dict(entity=...)."
            )
        return buffer

    def _init_callback(self) -> None:
        buffer, agent = self.buffer, self.model
        if self._learner is None or self._learner.influence is None:
            seed, size = agent.seed or 0, buffer.observations["observation"].shape[-1]
            configs: Any = {"model": self.network, "fitting": self.fitting, "scoring": self.scoring}
            self._learner = _BufferLearner(
                size, agent.action_space, buffer.entities, **configs, seed=seed, device=agent.device
            )
            given = self._given if self._given is not None else buffer.influence  # of an earlier callback
            given = given if isinstance(given, Influence | None) else Influence.load(given, agent.device)
            if given is not None:
                if self.every is not None and given.model.replicas > 1:
                    raise ValueError(
                        f"The influence model has {given.model.replicas} members, which are not trained further; "
                        "give every=None to use it as it is."
                    )
                self._learner.go_on_from(given, keeps_units=self._given is not None)
            self._tried = make_generators([seed + 1], self._learner.device)[0]
        self._learner.buffer, buffer.attached = buffer, True
        if self._learner.influence is None:
            buffer.trained = dict.fromkeys(buffer.trained, 0)
        elif self._learner.influence is not buffer.influence:
            buffer.watch(self._learner.influence)
            buffer.forget_scores()

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
        """A round, unless there is nothing to learn from yet; the newest steps are then due to be scored anew."""
        learner, before = self._learner, self.influence
        assert learner is not None
        transitions = learner.transitions()
        if len(transitions[0]) < FEWEST_TRANSITIONS:
            return
        still = target_scale(transitions, buffer.entities) == 1  # only rounding varies
        if before is None and bool(still.all()):
            text = f"The entity {buffer.entities} has not moved yet; the influence model waits until it does."
            warnings.warn(text, stacklevel=2)
            return
        loss = learner.fit(self.first_batches if before is None else self.batches)
        if before is not None and learner.influence is not before:  # units have changed so much that it began anew
            loss = learner.fit(max(1, self.first_batches - self.batches))
        assert learner.influence is not None
        buffer.watch(learner.influence)
        buffer.forget_scores(self.rescore)
        self.logger.record("influence/loss", loss)

    def _score(self) -> None:
        """Scores the states of complete episodes that have no score."""
        buffer = self.buffer
        if buffer.influence is None or not buffer.has_new:
            return
        due = np.flatnonzero((buffer.ep_length > 0) & np.isnan(buffer.scores))
        if len(due):
            scores = buffer.influence.score(buffer.transitions(due)[0], self._tried)[buffer.name]
            buffer.set_scores(due, scores.numpy())
            self.logger.record("influence/score", float(scores.mean()))
        buffer.has_new = False


class ActiveExploration(OffPolicyAlgorithm):
    """Beside SB3's agents, acts for influence: `class ActiveSAC(ActiveExploration, SAC): pass`.

    After `learning_starts` a share `epsilon` of the actions is exploratory: the most influential of `candidates` random
    actions in the share `active`, else uniform. The others are SB3's own with its action noise; `noise` is not used.
    """

    exploration: ExploreConfig = ExploreConfig()
    _exploration_random: torch.Generator | None = None

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[Array, Array]:
        """SB3's actions for the envs and, scaled to [-1, 1], for the buffer; some replaced by exploratory ones."""
        action, stored = super()._sample_action(learning_starts, action_noise, n_envs)
        buffer, config = self.replay_buffer, replace(self.exploration, noise=0.0)
        if not isinstance(buffer, InfluenceReplayBuffer) or not (buffer.attached or buffer.influence):
            raise TypeError(
                "ActiveExploration needs replay_buffer_class=InfluenceReplayBuffer with replay_buffer_kwargs="
                "dict(entity=...), and learn(callback=InfluenceCallback())."
            )
        if buffer.law.count:
            raise TypeError(f"ActiveExploration needs a Box of actions; the action space is {self.action_space}.")
        if buffer.influence is None or self.num_timesteps < learning_starts:
            return action, stored
        if self._exploration_random is None:
            self._exploration_random = make_generators([(self.seed or 0) + 2])[0]
        noise = draw_noise(1, n_envs, buffer.law, config.candidates, self._exploration_random)  # [1, W, n]
        chosen = np.flatnonzero(noise[0, :, 0] < config.epsilon)
        if len(chosen):
            seen = self._last_obs if self._vec_normalize_env is None else self._last_original_obs
            obs = torch.from_numpy(np.asarray(cast(dict[str, Array], seen)["observation"])[chosen])
            influence, name = buffer.influence, buffer.name

            def score(tried: Tensor) -> Tensor:  # [1, W, K, A] -> [1, W, K]
                within = tried[0].clamp(*influence.law.bounds(tried.device))  # it may know a little less than the box
                return cast(Tensor, influence.action_scores(obs, within)[name])[None]

            own, bounds = torch.from_numpy(action[chosen]).float()[None], buffer.law.bounds(obs.device)
            explored = explore(own, noise[:, chosen], bounds, config, score)[0][0].numpy()
            action, stored = action.copy(), stored.copy()
            action[chosen], stored[chosen] = explored, self.policy.scale_action(explored)
        return action, stored

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_exploration_random"]
