"""An `Influence` that learns along with an agent, from the latest transitions, in rounds of training."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor

from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import ModelConfig, make_network
from butfor.models.fitting import FOR_ANY_DATA, FitConfig, check_finite, make_optimizer, train_step
from butfor.models.networks import make_generators
from butfor.models.tables import Transitions, Units, target_scale
from butfor.spaces.actions import ActionLaw, warn_untried
from butfor.spaces.arrays import FEWEST_TRANSITIONS, Array, check_transitions
from butfor.spaces.entities import Entities, entity_columns

FACTOR = 3.0  # by which the scale of the changes may differ from that of the network before it is replaced


class InfluenceLearner:
    """A buffer of the latest transitions and an `Influence` that is trained on them.

    >>> learner = InfluenceLearner(obs_size=6, action_space=env.action_space, entities="cube=3:6")
    >>> learner.add(obs, action, next_obs)
    >>> learner.fit(batches=500)
    >>> learner.influence.score(obs)["cube"]  # [N]

    Each round continues from the weights of the last one. The network predicts changes in units of their standard
    deviation. If that has changed by more than a factor of 3 (an object that never moved is pushed for the first time),
    the next round starts with a new network in new units. A `target_scale` in `model` fixes the units.

    Attributes:
        influence: None before the first round; the same object until a new network starts.
        added: number of transitions added since the beginning.
        entities: columns of the observation by name.
    """

    def __init__(
        self,
        obs_size: int,
        action_space: gymnasium.Space[Any],
        entities: Entities,
        *,
        buffer_size: int = 100_000,
        model: ModelConfig = ModelConfig(),
        fitting: FitConfig = FOR_ANY_DATA,
        scoring: ScoreConfig = ScoreConfig(),
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        """Prepare an empty buffer.

        Args:
            obs_size: columns of an observation.
            action_space: bounds of the actions that are tried.
            entities: columns of the observation by name, such as {"cube": [3, 4, 5]} or "cube=3:6".
            buffer_size: number of transitions that are kept.
            model: the network.
            fitting: batch size, learning rate and Adam's betas of the rounds; its other fields have no effect.
            scoring: how CAI is estimated.
            seed: for the initial weights, the batches and the tried actions.
            device: where the network is trained.
        """
        if buffer_size < FEWEST_TRANSITIONS:
            raise ValueError(f"buffer_size must be at least {FEWEST_TRANSITIONS}; got {buffer_size}.")
        if fitting.batch_size < 2:
            raise ValueError(f"fitting.batch_size must be at least 2 for InfluenceLearner; got {fitting.batch_size}.")
        self.obs_size = obs_size
        self.law = ActionLaw.from_space(action_space)
        self.entities = entity_columns(entities, obs_size)
        self.buffer_size = buffer_size
        self.model = model
        self.fitting = fitting
        self.scoring = scoring
        self.seed = seed
        self.device = device
        self.added = 0
        self.influence: Influence | None = None
        self._has_warned = False  # of actions that were never tried
        self._buffer: list[Tensor] = []  # obs, action and next_obs, [buffer_size, ...] each
        self._generators = make_generators([seed])
        self._optimizer: torch.optim.Optimizer | None = None

    @property
    def stored(self) -> int:
        """The number of transitions in the buffer."""
        return min(self.added, self.buffer_size)

    def add(self, obs: Array, action: Array, next_obs: Array) -> None:
        """Add obs [N, D], action [N, A] (or integers [N]), next_obs [N, D]; a full buffer drops the oldest."""
        obs, action, next_obs = check_transitions(obs, action, next_obs, 1, self.obs_size)
        self.law.check("action", action)
        given = [obs, action if self.law.count else action.cpu().double(), next_obs]
        old = self._buffer or [part.new_empty(self.buffer_size, *part.shape[1:], device="cpu") for part in given]
        # the wider type of both, so that no digits are lost
        self._buffer = [
            part.to(torch.promote_types(part.dtype, new.dtype)) for part, new in zip(old, given, strict=True)
        ]
        first = self.added + max(0, len(obs) - self.buffer_size)
        self.added += len(obs)
        places = torch.arange(first, self.added) % self.buffer_size
        for part, new in zip(self._buffer, given, strict=True):
            part[places] = new[-self.buffer_size :].to(part)

    def transitions(self) -> Transitions:
        """All transitions in the buffer, in no particular order: obs [N, D], action [N, A] or [N], next_obs [N, D]."""
        if not self._buffer:
            raise ValueError("There are no transitions to learn from yet; call add first.")
        obs, action, next_obs = (part[: self.stored] for part in self._buffer)
        return obs, action, next_obs

    def fit(self, batches: int) -> float:
        """Train for one round of this many batches, drawn with replacement; return the mean loss (equation 4)."""
        if batches < 1:
            raise ValueError(f"batches must be at least 1; got {batches}.")
        transitions = check_transitions(*self.transitions())
        self._has_warned = self._has_warned or warn_untried(self.law, transitions[1])
        scale = target_scale(transitions, self.entities, self.model.target_scale)
        if self.influence is None or not _is_similar(scale, self.influence.units.scale):
            self.influence, self._optimizer = self._start(transitions)
        assert self._optimizer is not None
        model = self.influence.model
        inputs, target = self.influence.units.table(transitions, self.device)
        total = torch.zeros(1, device=self.device)
        model.train()
        try:
            for _ in range(batches):
                index = torch.randint(len(inputs), (1, self.fitting.batch_size), generator=self._generators[0])
                index = index.to(inputs.device)
                total += train_step(model.loss, self._optimizer, inputs[index], target[index])
        finally:
            model.eval()
        check_finite(total)
        self.influence.calibration = {}  # it belonged to the previous weights
        return float(total) / batches

    def _start(self, transitions: Transitions) -> tuple[Influence, torch.optim.Optimizer]:
        """A new network in the units of these transitions, and its optimiser."""
        units = Units.measure(transitions, self.entities, self.law, self.model.target_scale)
        network = make_network(self.obs_size, units.table(transitions, self.device), self.model, self._generators)
        return Influence(network, units, self.scoring, self.seed), make_optimizer(network, self.fitting)


def _is_similar(scale: Tensor, old: Sequence[float]) -> bool:
    """Whether the factors on the changes are still close to those that the network was trained with."""
    ratio = scale / torch.tensor(old, dtype=scale.dtype)
    return bool(((ratio < FACTOR) & (ratio > 1 / FACTOR)).all())
