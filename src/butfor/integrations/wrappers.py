"""Gymnasium wrappers that report the influence of each step and can reward it: one environment or a vector."""

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

from butfor.influence.contact import ContactConfig
from butfor.influence.graph.edges import ACTION
from butfor.influence.graph.pairs import GraphDynamics
from butfor.influence.influence import Influence
from butfor.influence.learner import InfluenceLearner
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig
from butfor.models.networks import make_generators
from butfor.spaces.actions import ActionLaw, describe_mismatch
from butfor.spaces.arrays import FEWEST_TRANSITIONS, warn_shared
from butfor.spaces.entities import Entities, entity_columns
from butfor.spaces.observations import choose_parts, flatten_parts
from butfor.training.bonus import BonusConfig, add_bonus

Table = NDArray[Any]
"""[N, D], one row per environment"""
Flags = NDArray[np.bool_]
LEARNER_SETTINGS = {"buffer_size", "agent", "model", "fitting", "scoring", "seed"}  # passed on to InfluenceLearner
_IMPORTED_BY = os.getpid()


class Settings(TypedDict, total=False):
    """Keyword arguments of both wrappers; defaults are in brackets."""

    entities: Entities
    """what to learn about, instead of a saved `Influence`: {"cube": [3, 4, 5]} or "cube=observation:3:6" """
    parts: Sequence[str]
    """parts of a dictionary observation that the model sees, concatenated in this order; nested ones are "robot/arm"
    [`observation` of a goal-conditioned environment, else all in alphabetical order]"""
    bonus: float
    """lambda: the reward becomes r + lambda min(CAI, cap); the old one is info["original_reward"] [no bonus]"""
    cap: float
    """the highest CAI that is rewarded [2.0]"""
    ceiling: float | None
    """the highest reward after the bonus; the paper uses 0, the reward of a reached goal [None]"""
    bonus_from: str
    """the entity whose CAI is rewarded, or the "sum" or "max" over all ["sum"]"""
    source: str
    """with an `influence` fitted with `GraphConfig`, the entity whose influence is reported and rewarded, instead of
    the action's: see `Influence.score` [action]"""
    learn_every: int
    """steps between training rounds, counted over all environments [1000]"""
    batches: int
    """batches per round [200]"""
    buffer_size: int
    """number of latest transitions to train on [100,000]"""
    agent: Sequence[int]
    """columns of the position of what touches the entities, such as a hand [the data show them]"""
    model: ModelConfig | ContactConfig
    """the network [a model of touches once the data show what touches the entities, before that a Gaussian network]"""
    fitting: FitConfig
    """batch size, learning rate and betas"""
    scoring: ScoreConfig
    """how CAI is estimated"""
    seed: int
    """seed of the initial weights, the batches and the tried actions, until `reset(seed=...)` gives another one [0]"""
    device: torch.device | str
    """device of the network, unless `influence` is an object [cpu]"""


def _check_source(source: str, entities: Mapping[str, Any], influence: Influence | None) -> None:
    """Refuse an entity whose influence cannot be computed in one step."""
    if influence is None or source not in entities or len(entities) < 2:
        raise ValueError(
            f"source is {source!r}; expected 'action', or an entity of a fitted influence= with at least two; the "
            f"entities are {', '.join(entities)}."
        )
    if not isinstance(influence.model, GraphDynamics):
        raise ValueError(
            f"source is {source!r}, but influence is not a model of pairs: other models compare the source with its "
            "place in other states, and a step shows only one. Fit it with model=GraphConfig()."
        )


class StepInfluence:
    """What the wrappers share: the columns that the model sees, their CAI, online training, and the bonus."""

    _obs: Table | None = None  # [N, D], the current states; N = 1 in one environment

    def _prepare(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        influence: Influence | Path | str | None,
        settings: Settings,
    ) -> None:
        """Check the arguments of a wrapper; load the model, or make a learner."""
        if os.getpid() != _IMPORTED_BY:  # forked, as in AsyncVectorEnv: torch would wait for the parent's threads
            torch.set_num_threads(1)
        entities = settings.get("entities")
        device = settings.get("device", "cpu")
        if not isinstance(influence, Influence | Path | str | None):
            raise TypeError(f"influence is {influence!r}; expected an Influence or the path of a saved one.")
        if (influence is None) == (entities is None):
            raise ValueError('Give either influence, a saved model, or entities to learn about, such as "cube=3:6".')
        unused = sorted({"learn_every", "batches", *LEARNER_SETTINGS} & set(settings))
        if influence is not None and unused:
            raise ValueError(f"{', '.join(unused)}: a saved Influence is not trained further. Remove them.")
        if isinstance(action_space, spaces.Box) and not action_space.is_bounded():
            raise ValueError(
                f"The action space {action_space} has no bounds to try actions in. If ClipAction removed them, apply "
                "it last: ClipAction(InfluenceWrapper(env, ...))."
            )
        self.learn_every = settings.get("learn_every", 1000)
        self.batches = settings.get("batches", 200)
        if self.learn_every < 1 or self.batches < 1:
            raise ValueError(f"learn_every and batches must be at least 1; got {self.learn_every} and {self.batches}.")
        self._since = 0  # steps since the last round
        self._saved = Influence.load(influence, device) if isinstance(influence, Path | str) else influence
        columns = None if self._saved is None else self._saved.model.obs_size
        self.sizes = choose_parts(observation_space, settings.get("parts"), columns)  # columns of each part
        self.learner: InfluenceLearner | None = None
        found: Mapping[str, Sequence[int]] = {}
        if self._saved is not None:
            found = self._saved.entities
            if mismatch := describe_mismatch(self._saved.law, ActionLaw.from_space(action_space)):
                raise ValueError(
                    f"{mismatch} Fit it with action_space=env.action_space. If a wrapper such as RescaleAction changes "
                    "the actions, apply it last: RescaleAction(InfluenceWrapper(env, ...), ...)."
                )
        elif entities is not None:
            found = entity_columns(entities, self.sizes)
            given: Any = {name: value for name, value in settings.items() if name in LEARNER_SETTINGS}
            self.learner = InfluenceLearner(sum(self.sizes.values()), action_space, found, device=device, **given)
        device = device if self._saved is None else self._saved.device
        self._tried = make_generators([settings.get("seed", 0)], device)[0]  # draws other actions in every step
        self.source = settings.get("source", ACTION)
        if self.source != ACTION:
            _check_source(self.source, found, self._saved)
        self.names = [name for name in found if name != self.source]
        self.bonus_from = settings.get("bonus_from", "sum")
        if {"sum", "max"} & set(self.names):
            raise ValueError(f"Entities are {self.names}; choose names other than sum and max, which combine them.")
        if self.bonus_from not in ("sum", "max", *self.names):
            raise ValueError(f"bonus_from is {self.bonus_from!r}; expected sum, max or one of {', '.join(self.names)}.")
        self.bonus: BonusConfig | None = None
        if (bonus := settings.get("bonus")) is not None:
            self.bonus = BonusConfig(bonus, settings.get("cap", 2.0), ceiling=settings.get("ceiling"))
            if self.bonus_from == "sum":
                warn_shared(found)

    @property
    def influence(self) -> Influence | None:
        """The `Influence` in use; None before the first training round."""
        return self.learner.influence if self.learner is not None else self._saved

    def save_influence(self, path: Path | str) -> None:
        """Save the trained model, for `Influence.load` or another wrapper."""
        self._trained().save(path)

    def best_action(self, entity: str | None = None) -> tuple[Any, Any]:
        """Return the most influential of K random actions in each current state, and their scores: [N, A], [N]."""
        return self._trained().best_action(self._current(), entity, self._tried)

    def _trained(self) -> Influence:
        if self.influence is None:
            raise ValueError(
                f"There is no influence model yet: the first round comes after learn_every={self.learn_every} steps "
                f"and at least {FEWEST_TRANSITIONS} transitions."
            )
        return self.influence

    def _current(self) -> Table:
        if self._obs is None:
            raise ResetNeeded("There is no current state; call reset() first.")
        return self._obs

    def _score(self, obs: Table) -> dict[str, NDArray[np.float64]]:
        """Return the CAI of each state by entity, [N]; 0 before the first training round."""
        if self.influence is None:
            return {name: np.zeros(len(obs)) for name in self.names}
        scores = self.influence.score(obs, self._tried, self.source)
        return {name: np.asarray(score, dtype=np.float64) for name, score in scores.items()}

    def _seed_tried(self, seed: int | Sequence[int | None] | None) -> None:
        """Restart the stream of tried actions where the environments are seeded: the same seed, the same numbers."""
        given = [one for one in (seed if isinstance(seed, Sequence) else [seed]) if one is not None]
        if given:
            self._tried.manual_seed(int(given[0]))

    def _learn(self, obs: Table, action: Any, next_obs: Table) -> None:
        """Store transitions, and train if a round is due."""
        if self.learner is None or not len(obs):
            return
        self.learner.add(obs, np.asarray(action), next_obs)
        self._since += len(obs)
        if self._since >= self.learn_every and self.learner.stored >= FEWEST_TRANSITIONS:
            self.learner.fit(self.batches)
            self._since = 0

    def _rewarded(self, reward: Any, scores: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return r + lambda min(CAI, cap), at most the ceiling: [N]."""
        assert self.bonus is not None
        if self.bonus_from in scores:
            score = scores[self.bonus_from]
        else:
            table = np.stack(list(scores.values()))  # [entities, N]
            score = table.sum(0) if self.bonus_from == "sum" else table.max(0)
        given = torch.from_numpy(np.array(reward, dtype=np.float64))
        return np.asarray(add_bonus(given, torch.from_numpy(score), self.bonus))


class InfluenceWrapper(StepInfluence, gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Adds the influence of each step to `info`, and to the reward if a bonus is given.

    >>> env = InfluenceWrapper(env, "cai.safetensors", bonus=0.2)
    >>> env = InfluenceWrapper(env, entities="cube=observation:3:6", learn_every=1000)

    info["cai"] is CAI(s_t), in nats, of the state in which the action was taken: a float, or floats by name if there
    are several entities. It is 0 before the first training round. Resets report none, since no action is taken: neither
    `reset` nor the step that Gymnasium's Autoreset turns into one. Transitions across resets are not trained on.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        influence: Influence | Path | str | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        """Wrap an environment.

        Args:
            env: the environment
            influence: a fitted `Influence` or its file; None to train one online, on `entities`
            **settings: see `Settings`
        """
        # First, since it limits torch's threads and the recording copies tensors.
        self._prepare(env.observation_space, env.action_space, influence, settings)
        RecordConstructorArgs.__init__(self, influence=influence, **settings)
        gymnasium.Wrapper.__init__(self, env)
        self._finished = False

    def best_action(self, entity: str | None = None) -> tuple[Any, float]:
        """Return the most influential of K random actions in the current state, and its score."""
        action, score = super().best_action(entity)
        return (int(action[0]) if action.ndim == 1 else action[0]), float(score[0])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._seed_tried(seed)
        self._obs = flatten_parts(obs, self.sizes, 1)
        self._finished = False
        return obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step, and report the influence of the state in which it was taken."""
        before = self._current()
        resets = self._finished  # Gymnasium's Autoreset takes this step for a reset
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._obs = flatten_parts(obs, self.sizes, 1)
        self._finished = bool(terminated or truncated)
        if resets:
            return obs, reward, terminated, truncated, info
        scores = self._score(before)
        self._learn(before, np.asarray(action)[None], self._obs)
        numbers = {name: float(score[0]) for name, score in scores.items()}
        info = {**info, "cai": numbers if len(numbers) > 1 else numbers[self.names[0]]}
        if self.bonus is not None:
            info["original_reward"] = float(reward)
            reward = float(self._rewarded([float(reward)], scores)[0])
        return obs, reward, terminated, truncated, info


class VectorInfluenceWrapper(StepInfluence, VectorWrapper):
    """The same for a vector of environments, which share one `Influence` and one buffer of transitions.

    >>> envs = VectorInfluenceWrapper(envs, entities="cube=observation:3:6", bonus=0.2)

    info["cai"] is an array [N] (arrays by name if there are several entities), and info["_cai"] is its mask. Where an
    environment is reset instead of stepped (AutoresetMode.NEXT_STEP), no action is taken: the number is 0, the mask
    false, and the reward has no bonus. With SAME_STEP the last step of an episode is in info["cai"] like all others;
    its transition ends in info["final_obs"].
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, NDArray[Any]],
        influence: Influence | Path | str | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        """Wrap a vector of environments; arguments as for `InfluenceWrapper`."""
        super().__init__(env)
        self._prepare(env.single_observation_space, env.single_action_space, influence, settings)
        self.autoreset = AutoresetMode((env.metadata or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._finished = np.zeros(env.num_envs, dtype=np.bool_)  # which environments wait for their reset

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes, in all environments or in those of options["reset_mask"]."""
        chosen = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_)))
        given = None if options is None else dict(options)  # Gymnasium removes the mask from what it is given
        obs, info = self.env.reset(seed=seed, options=given)  # type: ignore[arg-type]
        self._seed_tried(seed)
        self._obs = flatten_parts(obs, self.sizes, self.num_envs)
        self._finished = self._finished & ~chosen
        return obs, info

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Take a step in all environments, and report the influence of the states in which it was taken."""
        before = self._current()
        taken = ~self._finished
        obs, reward, terminated, truncated, info = self.env.step(actions)
        scores = {name: np.where(taken, score, 0.0) for name, score in self._score(before).items()}
        self._obs = flatten_parts(obs, self.sizes, self.num_envs)
        finished = np.asarray(terminated | truncated, dtype=np.bool_)
        after, known = self._obs, taken
        if self.autoreset is AutoresetMode.SAME_STEP:
            after, known = self._with_final(info, finished)
        else:
            self._finished = finished
        self._learn(before[known], np.asarray(actions)[known], after[known])
        info = {**info, "cai": _masked(scores, taken), "_cai": taken.copy()}
        if self.bonus is not None:
            info |= {"original_reward": np.where(taken, reward, 0.0), "_original_reward": taken.copy()}
            kind = reward.dtype if np.issubdtype(reward.dtype, np.floating) else np.float64
            reward = np.where(taken, self._rewarded(reward, scores), reward).astype(kind)
        return obs, reward, terminated, truncated, info

    def _with_final(self, info: Mapping[str, Any], finished: Flags) -> tuple[Table, Flags]:
        """Return the states in which the steps ended, before any reset [N, D], and which of them are known [N]."""
        after = self._current().copy()
        known = ~finished
        final = info.get("final_obs", np.full(self.num_envs, None))
        for index in np.flatnonzero(finished):
            if final[index] is not None:
                after[index] = flatten_parts(final[index], self.sizes, 1)[0]
                known[index] = True
        return after, known


def _masked(scores: Mapping[str, NDArray[np.float64]], mask: Flags) -> Any:
    """Scores as Gymnasium writes vector infos: one array, or arrays by name with a mask each."""
    if len(scores) == 1:
        return next(iter(scores.values()))
    return {key: value for name, score in scores.items() for key, value in ((name, score), (f"_{name}", mask.copy()))}
