"""An `Influence` that learns along with an agent, from the latest transitions, in rounds of training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import torch
from torch import Tensor

from butfor.influence.contact import ALONG, ContactConfig, ContactDynamics, make_contact_optimizer
from butfor.influence.influence import Influence
from butfor.influence.partners import AGENT_UNUSED, NOTHING_TOUCHES, Partners, choose_partners, pair_with
from butfor.influence.scoring import Dynamics, ScoreConfig
from butfor.models.dynamics import ModelConfig, make_network
from butfor.models.fitting import FOR_ANY_DATA, FitConfig, check_finite, make_optimizer, train_step
from butfor.models.networks import make_generators
from butfor.models.tables import Transitions, Units, move_scale, target_scale
from butfor.models.torch_state import pinned
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

    Without `model` it is a model of touches (`butfor.influence.contact`) once the data show what touches every entity,
    and a Gaussian network before; whenever the data have doubled, it is looked for again.

    Each round continues from the weights of the last one. The network predicts changes in units of their size. If that
    has changed by more than a factor of 3 (an object that never moved is pushed for the first time), the next round
    starts with a new network in new units. A `target_scale` in `model` fixes the units.

    Attributes:
        influence: None before the first round; the same object until a new network starts.
        added: number of transitions added since the beginning.
        entities: columns of the observation by name.
        partners: what touches each entity; None where that is not known.
    """

    def __init__(
        self,
        obs_size: int,
        action_space: gymnasium.Space[Any],
        entities: Entities,
        *,
        buffer_size: int = 100_000,
        agent: Sequence[int] | None = None,
        model: ModelConfig | ContactConfig | None = None,
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
            agent: columns of the position of what touches the entities (a hand, a foot), in the order and units of
                the first columns of each entity. By default the data show them: see `butfor.influence.partners`.
            model: a `ModelConfig` for a Gaussian network, a `ContactConfig` for a model of touches from the first
                round on; None: see above.
            fitting: batch size, learning rate and Adam's betas of the rounds; its other fields have no effect.
            scoring: how CAI is estimated.
            seed: for the initial weights, the batches and the tried actions.
            device: where the network is trained.
        """
        if buffer_size < FEWEST_TRANSITIONS:
            raise ValueError(f"buffer_size must be at least {FEWEST_TRANSITIONS}; got {buffer_size}.")
        if fitting.batch_size < 2:
            raise ValueError(f"fitting.batch_size must be at least 2 for InfluenceLearner; got {fitting.batch_size}.")
        if isinstance(model, ModelConfig) and agent is not None:
            raise ValueError(AGENT_UNUSED)
        self.obs_size = obs_size
        self.law = ActionLaw.from_space(action_space)
        self.entities = entity_columns(entities, obs_size)
        self.buffer_size = buffer_size
        self.partners: Partners | None = None
        if agent is not None:
            columns = self.entities.items()
            self.partners = {name: [pair_with(agent, entity, name, obs_size)] for name, entity in columns}
        self.model = model
        self.fitting = fitting
        self.scoring = scoring
        self.seed = seed
        self.device = device
        self.added = 0
        self.influence: Influence | None = None
        self._looked = 0  # transitions in which partners were looked for
        self._has_warned = False  # of actions that were never tried
        self._buffer: list[Tensor] = []  # obs, action and next_obs, [buffer_size, ...] each
        self._generators = make_generators([seed])
        self._optimizer: torch.optim.Optimizer | None = None

    @property
    def stored(self) -> int:
        """The number of transitions in the buffer."""
        return min(self.added, self.buffer_size)

    @pinned()
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

    @pinned()
    def fit(self, batches: int) -> float:
        """Train for one round of this many batches, drawn with replacement; return the mean loss (equation 4)."""
        if batches < 1:
            raise ValueError(f"batches must be at least 1; got {batches}.")
        transitions = check_transitions(*self.transitions())
        self._has_warned = self._has_warned or warn_untried(self.law, transitions[1])
        if self.influence is None or self._is_outdated(self.influence, transitions):
            self.influence, self._optimizer = self._start(transitions)
        assert self._optimizer is not None
        model = self.influence.model
        inputs, target = self.influence.units.table(transitions, self.device)
        if isinstance(model, ContactDynamics):
            steps = (transitions[2] - transitions[0])[:, model.partner_columns]
            target = torch.cat([target, steps.to(target)], 1)
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
        partners = self._find_partners(transitions)
        units = Units.measure(transitions, self.entities, self.law, _fixed_scale(self.model))
        network: Dynamics
        if partners is not None:
            units = replace(units, scale=move_scale(transitions, self.entities).tolist())
            config = self.model if isinstance(self.model, ContactConfig) else ALONG
            network = ContactDynamics(units, partners, replace(config, running=True), self._generators).to(self.device)
        elif isinstance(self.model, ContactConfig):
            raise ValueError(NOTHING_TOUCHES)
        else:
            table = units.table(transitions, self.device)
            network = make_network(self.obs_size, table, self.model or ModelConfig(), self._generators)
        return Influence(network, units, self.scoring, self.seed), self._optimize(network)

    def _optimize(self, network: Dynamics) -> torch.optim.Optimizer:
        """The optimiser of a network."""
        if isinstance(network, ContactDynamics):
            return make_contact_optimizer(network, self.fitting.learning_rate, self.fitting.betas)
        return make_optimizer(network, self.fitting)

    def _is_outdated(self, influence: Influence, transitions: Transitions) -> bool:
        """Whether a new network is due: the units have changed, or it is now known what touches the entities."""
        if isinstance(influence.model, ContactDynamics):
            scale = move_scale(transitions, self.entities)
        else:
            scale = target_scale(transitions, self.entities, _fixed_scale(self.model))
            if self._find_partners(transitions) is not None:
                return True
        return not _is_similar(scale, influence.units.scale)

    def _find_partners(self, transitions: Transitions) -> Partners | None:
        """What touches the entities; it is looked for again when the transitions have doubled."""
        count = len(transitions[0])
        if self.partners is None and not isinstance(self.model, ModelConfig) and count >= 2 * self._looked:
            self._looked = count
            units = Units.measure(transitions, self.entities, self.law)
            self.partners = choose_partners(transitions, units.table(transitions, "cpu"), units, None)
        return self.partners


def _fixed_scale(model: ModelConfig | ContactConfig | None) -> float | None:
    """The factor on changes that a user has fixed."""
    return model.target_scale if isinstance(model, ModelConfig) else None


def _is_similar(scale: Tensor, old: Sequence[float]) -> bool:
    """Whether the factors on the changes are still close to those that the network was trained with."""
    ratio = scale / torch.tensor(old, dtype=scale.dtype)
    return bool(((ratio < FACTOR) & (ratio > 1 / FACTOR)).all())
