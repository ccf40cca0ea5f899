"""An `Influence` that learns along with an agent: a ring of transitions, and rounds of training that go on."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor

from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import ModelConfig, Transitions, begin_network, obs_range, target_scale, training_table
from butfor.models.fitting import FOR_ANY_DATA, FitConfig, check_finite, make_optimizer, take, train_step
from butfor.models.networks import make_generators
from butfor.spaces.action_checks import check_count, warn_untried
from butfor.spaces.actions import ActionLaw
from butfor.spaces.arrays import FEWEST_TRANSITIONS, Array, check_table, check_transitions
from butfor.spaces.entities import Entities, entity_columns

FACTOR = 3.0  # by which the spread of the changes may differ from the units of the network before it starts anew


class InfluenceLearner:
    """The latest transitions, and an `Influence` that learns from them: `add`, `fit` now and then, use `influence`.

    >>> learner = InfluenceLearner(obs_size=6, action_space=env.action_space, entities={"cube": [3, 4, 5]})
    >>> learner.add(obs, action, next_obs)  # [N, D], [N, A] or integers [N], [N, D]
    >>> learner.fit(batches=500)
    >>> learner.influence.score(obs)["cube"]  # [N]

    Each round goes on from the weights of the one before. The network predicts changes in units of their standard
    deviation; where that has changed by more than a factor of 3 since they were set (an object that lay still is
    pushed for the first time), the next round sets them anew and starts with a fresh network. A `target_scale` in
    `model` fixes them.
    """

    def __init__(
        self,
        obs_size: int,
        action_space: gymnasium.Space[Any],
        entities: Entities,
        *,
        memory: int = 100_000,
        model: ModelConfig = ModelConfig(),
        fitting: FitConfig = FOR_ANY_DATA,
        scoring: ScoreConfig = ScoreConfig(),
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        """`memory` transitions are kept; of `fitting`, the batch size, the learning rate and Adam's betas count."""
        if memory < FEWEST_TRANSITIONS:
            raise ValueError(f"memory is {memory}; expected room for at least {FEWEST_TRANSITIONS} transitions.")
        if fitting.batch_size < 2:
            raise ValueError(f"fitting.batch_size is {fitting.batch_size}; learning along needs at least 2.")
        self.entities = entity_columns(entities, obs_size)
        self.law, self.obs_size, self.memory = check_count(ActionLaw.of(action_space)), obs_size, memory
        self.model, self.fitting, self.scoring, self.seed, self.device = model, fitting, scoring, seed, device
        self.added = 0
        """transitions since the beginning"""
        self.influence: Influence | None = None
        """None before the first round; the same object until a network starts anew"""
        self._warned = False  # of actions that were never tried
        self._ring: list[Tensor] = []  # obs, action and next_obs, [memory, ...] each
        self._generators = make_generators([seed])
        self._optimizer: torch.optim.Optimizer | None = None

    @property
    def stored(self) -> int:
        """How many transitions are in the memory."""
        return min(self.added, self.memory)

    def add(self, obs: Array, action: Array, next_obs: Array) -> None:
        """Takes in obs [N, D], action [N, A] (or integers [N]), next_obs [N, D]; the oldest transitions give way."""
        obs, action, next_obs = check_transitions(obs, action, next_obs, fewest=1)
        check_table("obs", obs, self.obs_size)
        self.law.check("action", action)
        given = [obs, action if self.law.count else action.cpu().double(), next_obs]
        rings = self._ring or [part.new_empty(self.memory, *part.shape[1:], device="cpu") for part in given]
        pairs = zip(rings, given, strict=True)
        self._ring = [old.to(torch.promote_types(old.dtype, part.dtype)) for old, part in pairs]  # nothing is cut
        count = len(obs)
        at = torch.arange(self.added + max(0, count - self.memory), self.added + count) % self.memory
        for ring, part in zip(self._ring, given, strict=True):
            ring[at] = part[-self.memory :].to(ring)
        self.added += count

    def transitions(self) -> Transitions:
        """All that is in the memory, in no special order: obs [N, D], action [N, A] or [N], next_obs [N, D]."""
        if not self._ring:
            raise ValueError("There are no transitions to learn from yet; add some first.")
        obs, action, next_obs = (ring[: self.stored] for ring in self._ring)
        return obs, action, next_obs

    def fit(self, batches: int) -> float:
        """One round: so many optimiser steps on batches drawn with replacement; the mean loss (equation 4)."""
        if batches < 1:
            raise ValueError(f"batches must be at least 1; got {batches}.")
        transitions = check_transitions(*self.transitions())
        self._warned = self._warned or warn_untried(self.law, transitions[1])
        scale = target_scale(transitions, self.entities, self.model)
        if self.influence is None or not _same_units(scale, self.influence.scale):
            self.influence, self._optimizer = self._start(transitions, scale)
        influence, optimizer = self.influence, self._optimizer
        assert optimizer is not None
        lists = (influence.scale, influence.obs_center, influence.obs_spread)
        units = [torch.tensor(one, dtype=torch.float64) for one in lists]
        inputs, target = training_table(transitions, self.law, self.entities, units[0], self.device, *units[1:])
        total = torch.zeros(1, device=self.device)
        influence.model.train()
        try:
            for _ in range(batches):
                index = torch.randint(len(inputs), (1, self.fitting.batch_size), generator=self._generators[0])
                index = index.to(inputs.device)
                total += train_step(influence.model.loss, optimizer, take(inputs, index), take(target, index))
        finally:
            influence.model.eval()
        check_finite(total)
        influence.calibration = {}  # that of other weights
        return float(total) / batches

    def _start(self, transitions: Transitions, scale: Tensor) -> tuple[Influence, torch.optim.Optimizer]:
        """A fresh network in the units of these transitions, and its optimiser."""
        center, spread = obs_range(transitions[0])
        table = training_table(transitions, self.law, self.entities, scale, self.device, center, spread)
        network = begin_network(self.obs_size, table, self.model, self._generators)
        units = (center.tolist(), spread.tolist())
        influence = Influence(network, self.law, self.entities, scale.tolist(), self.scoring, self.seed, *units)
        return influence, make_optimizer(network, self.fitting)


def _same_units(scale: Tensor, old: Sequence[float]) -> bool:
    """Whether the factors on the changes are still about those that the network was trained with."""
    ratio = scale / torch.tensor(old, dtype=scale.dtype)
    return bool(((ratio < FACTOR) & (ratio > 1 / FACTOR)).all())
