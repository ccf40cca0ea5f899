"""Causal action influence (CAI) from arrays: how much does the agent's action matter for each entity?

`Influence.fit` learns p(s'_j | s, a) from transitions. `score` gives the CAI of states, `action_scores` and
`best_action` compare actions, `calibrate` and `decide` turn scores into decisions with few false alarms, and `diagnose`
checks on held-out transitions whether the scores can be trusted.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor

from butfor.influence.contact import ContactConfig, fit_contact
from butfor.influence.decisions import Calibration, DecisionMethods, describe_nonrandom
from butfor.influence.diagnosis import AtNoise, Diagnoses, check_marks, diagnose_entity, find_noise
from butfor.influence.display import fit_progress, influence_rows
from butfor.influence.graph.edges import ACTION
from butfor.influence.graph.methods import GraphMethods, check_horizon
from butfor.influence.graph.pair_fitting import fit_graph
from butfor.influence.graph.pairs import GraphConfig
from butfor.influence.network_choice import fit_network
from butfor.influence.outcomes import MANY_OUTCOMES, OutcomeConfig, find_outcomes, fit_outcomes
from butfor.influence.partners import AGENT_UNUSED, NOTHING_TOUCHES, choose_partners, measure_reach
from butfor.influence.saved_models import load_influence, save_influence
from butfor.influence.scoring import (
    Dynamics,
    HeldOut,
    ScoreConfig,
    find_best_action,
    find_evidence,
    hold_out,
    predict_moments,
    score_actions,
    score_states,
)
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FOR_ANY_DATA, FitConfig
from butfor.models.networks import choose_generator, make_generators
from butfor.models.prior import Prior, PriorFunction, fit_units
from butfor.models.tables import StandardizedStates, Units, measure_transitions, split_table
from butfor.models.torch_state import pinned
from butfor.runs.memory import check_memory
from butfor.runs.printing import html_table, text_table
from butfor.spaces.arrays import Array, check_finite_rows, check_table, like, to_numpy, to_tensor
from butfor.spaces.entities import Entities

SMALLEST_MEMBER = 10_000  # bytes: a random generator and the smallest network
TOUCH_MEMBERS = 3  # models of touches by default: what they agree on depends less on initial weights and batches
PRIOR_UNUSED = (
    "prior= is for a Gaussian network, but agent=, horizon= or another model is given; leave them out, or the prior."
)
STRONG_ACTIONS = ScoreConfig(extreme=0.75)
"""How `Influence.fit` scores with its model of touches: strong actions show what an entity can be reached with."""


class Influence(DecisionMethods, GraphMethods):
    """CAI of a fitted transition model: how much the action matters for each entity, in any state.

    >>> influence = Influence.fit(obs, action, next_obs, entities="cube=3:6")
    >>> influence.score(obs)["cube"]  # [N], in nats

    Methods take states `obs` [N, D] as numpy or torch arrays and return the same kind, one array per entity.

    Attributes:
        model: the fitted model; its replicas are the members of an ensemble.
        units: how observations, actions and changes are scaled.
        law: the uniform distribution of the actions that are tried.
        entities: columns of the observation by name.
        horizon: steps within which the action matters. The model of pairs is rolled out for more than 1; the model of
            a training run with `cai.horizon` predicts all of them at once.
        calibration: what `decide` needs, by entity; empty before `calibrate`.
    """

    def __init__(
        self, model: Dynamics, units: Units, scoring: ScoreConfig = ScoreConfig(), seed: int = 0, horizon: int = 1
    ) -> None:
        self.model: Any = model.eval()  # each kind has layers of its own
        self.units = units
        self.law = units.law
        self.entities = units.entities
        self.scoring = scoring
        self.seed = seed
        self.horizon = int(horizon)
        self.calibration: dict[str, Calibration] = {}
        self._dims = units.dims
        self._stream = make_generators([seed], self.device)[0]  # of the actions that `best_action` tries

    def __getstate__(self) -> dict[str, Any]:
        """What another process or a copy needs; a generator of torch cannot be sent, but its state can."""
        return self.__dict__ | {"_stream": (self._stream.device, self._stream.get_state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        device, stream = state["_stream"]
        self.__dict__.update(state)
        self._stream = torch.Generator(device).set_state(stream)

    def __repr__(self) -> str:
        return "Influence\n" + text_table(influence_rows(self))

    def _repr_html_(self) -> str:
        return html_table(influence_rows(self), "Influence")

    @property
    def device(self) -> torch.device:
        """Where scores are computed."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def prior(self) -> Prior | None:
        """The user's prediction to which the model adds, if there is one."""
        prior: Prior | None = getattr(self.model, "prior", None)
        return prior

    @classmethod
    @pinned()
    def fit(
        cls,
        obs: Array,
        action: Array,
        next_obs: Array,
        entities: Entities,
        *,
        action_space: gymnasium.Space[Any] | None = None,
        agent: Sequence[int] | None = None,
        validation: Sequence[Array] | float = 0.1,
        groups: Array | None = None,
        model: ModelConfig | ContactConfig | OutcomeConfig | GraphConfig | None = None,
        horizon: int = 1,
        prior: PriorFunction | None = None,
        fitting: FitConfig = FOR_ANY_DATA,
        scoring: ScoreConfig | None = None,
        members: int | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        progress: Callable[[Any], None] | bool = True,
    ) -> "Influence":
        """Learn p(s'_j | s, a) from transitions.

        Args:
            obs: states [N, D].
            action: actions [N, A], or integers [N] for discrete actions.
            next_obs: the states that followed [N, D].
            entities: columns of the observation by name, such as {"cube": [3, 4, 5]} or "cube=3:6".
            action_space: bounds of the actions that are tried; default: the smallest box around the data.
            agent: columns of the position of what touches the entities (a hand, a foot), in the order and units of
                the first columns of each entity. By default the data show them: see `butfor.influence.partners`.
            validation: share of the transitions to hold out for early stopping of a Gaussian network, or other
                transitions for it.
            groups: the episode [N] of each transition; whole episodes are then held out for validation, otherwise
                rows. With few transitions rows give the better order (see docs/benchmark-choices.md).
            model: by default a model of outcomes (`butfor.influence.outcomes`) if every entity changes in few ways,
                as on a grid; or else a model of touches (`butfor.influence.contact`) if every entity has something
                that touches it. If not, the paper's Gaussian network, which is smooth; if that explains less than half
                of an entity's held-out change, or promises influence that held-out transitions do not show, `STEEP` is
                fitted too (up to twice the time) and kept if it makes these transitions clearly more likely. Give a
                `ModelConfig` for one Gaussian network, a `ContactConfig` or `OutcomeConfig` for other settings of these
                models, or a `GraphConfig` for the model of pairs, which also knows the influence between entities.
            horizon: steps within which the action matters. More than 1 needs the model of pairs, which is the default
                then, and entities that contain every column that changes.
            prior: known dynamics, a function of numpy arrays obs [N, D] and action [N, A] (or integers [N]) to the
                expected next_obs [N, D]; columns that are not of an entity have no effect. A Gaussian network then
                learns only what is missing. `load` needs the same function again.
            fitting: optimiser, epochs and early stopping of a Gaussian network.
            scoring: how CAI is estimated from the model. By default uniform actions for a Gaussian network, and mostly
                strong ones (`extreme=0.75`) for the model of touches.
            members: networks of an ensemble, which is uncertain where they disagree; default: 3 for a model of
                touches, 1 for the others.
            seed: for the initial weights, the batches, the held-out rows and the tried actions.
            device: where the networks are fitted and scores are computed.
            progress: whether a terminal or a notebook shows how far the fit is; or a function that is called with a
                `Fitting` after every validation, or with a `FitProgress` after every 100 updates.

        Raises:
            ValueError: the arrays do not fit together, are too few, or contain NaN or infinite values.
        """
        check_members(members)
        check_horizon(horizon)
        if horizon > 1 and not isinstance(model, GraphConfig | None):
            raise ValueError(f"horizon is {horizon}; expected 1, or more with the model of pairs (GraphConfig).")
        scale = model.target_scale if isinstance(model, ModelConfig) else None
        transitions, units = measure_transitions((obs, action, next_obs), entities, action_space, scale)
        if prior is not None:
            units = fit_units(prior, transitions, units, scale)
        train = units.table(transitions, device)
        seeds = member_seeds(seed, members or 1)
        if agent is not None and (horizon > 1 or isinstance(model, ModelConfig | OutcomeConfig | GraphConfig)):
            raise ValueError(AGENT_UNUSED)
        if prior is not None and (agent is not None or horizon > 1 or not isinstance(model, ModelConfig | None)):
            raise ValueError(PRIOR_UNUSED)
        if horizon > 1 or isinstance(model, GraphConfig):
            settings = model if isinstance(model, GraphConfig) else GraphConfig()
            with fit_progress(progress) as report:
                fitted = fit_graph(train, units, settings, seeds, report)
            return cls(fitted, units, scoring or STRONG_ACTIONS, seed, horizon)
        if isinstance(model, OutcomeConfig) or (model is None and agent is None and prior is None):
            outcomes = find_outcomes(train[1], units.dims)
            if outcomes is not None:
                with fit_progress(progress) as report:
                    discrete = fit_outcomes(train, units, outcomes, model or OutcomeConfig(), seeds, report)
                return cls(discrete, units, scoring or ScoreConfig(), seed)
        if isinstance(model, OutcomeConfig):
            raise ValueError(MANY_OUTCOMES)
        if not isinstance(model, ModelConfig) and prior is None:
            pairs = choose_partners(transitions, train, units, agent)
            if pairs is not None:
                config = model or ContactConfig()
                pairs = measure_reach(transitions, train, units, pairs)
                seeds = member_seeds(seed, members or TOUCH_MEMBERS)
                with fit_progress(progress) as report:
                    contact = fit_contact(transitions, train, units, pairs, config, seeds, report)
                return cls(contact, units, scoring or STRONG_ACTIONS, seed)
            if model is not None:
                raise ValueError(NOTHING_TOUCHES)
        if isinstance(validation, float | int):
            train, held_out = split_table(train, validation, seed, groups)
        else:
            held_out = units.checked_table("validation must be a share or", validation, device)
        known = None if prior is None else Prior(prior, units)
        if known is not None:
            train, held_out = known.residual(train), known.residual(held_out)
        assert not isinstance(model, ContactConfig)
        with fit_progress(progress) as report:
            network = fit_network(train, held_out, units, model, fitting, seeds, report)
        network.prior = known
        return cls(network, units, scoring or ScoreConfig(), seed)

    @pinned()
    def score(self, obs: Array, generator: torch.Generator | None = None, source: str | None = None) -> dict[str, Any]:
        """Compute the CAI of each state (equation 3), or the influence of another source.

        Args:
            obs: states [N, D].
            generator: draws the tried actions; by default the same call gives the same scores. To score states one at
                a time, give one generator to all calls, so that each state has actions of its own.
            source: the entity whose influence is computed, as `graph` does; default: the action.

        Returns:
            The CAI [N] of each entity in nats, at most log K unless `separate_mixture` is set. Each row has its own
            actions, so the score of a state varies a little with its row.
        """
        if source is not None and source != ACTION:
            found = self._score_sources(obs, [source], choose_generator(generator, self.seed, self.device))[:, 0]
            return {name: score for name, score in self._by_entity(found, obs).items() if name != source}
        if self.horizon > self.predicted_steps:
            random = choose_generator(generator, self.seed, self.device)
            return self._by_entity(self._score_within(obs, self.horizon, None, random), obs)
        return self._by_entity(self._scores(obs, generator, self.model.replicas)[0], obs)  # [1, N, J] -> [N, J]

    @pinned()
    def spread(self, obs: Array) -> dict[str, Any]:
        """Compute how far the members disagree: the standard deviation [N] of their scores, for each entity."""
        if self.model.replicas < 2:
            raise ValueError("`spread` needs at least 2 members; this model has 1. Fit with `members=5`.")
        return self._by_entity(self._scores(obs, None, 1).std(0), obs)

    @pinned()
    def action_scores(self, obs: Array, actions: Array) -> dict[str, Any]:
        """Compute how far the outcome of each given action differs from that of the others.

        Args:
            obs: states [N, D].
            actions: M actions for each state [N, M, A], or integers [N, M].

        Returns:
            The KL divergence [N, M] of each action's outcome to the mixture over the M actions, for each entity.
        """
        states, encoded = self._given_actions(obs, actions)
        scores = score_actions(self.model, states, encoded, self._dims, self.scoring.form, self.model.replicas)
        return self._by_entity(scores[0], obs)

    @pinned()
    def predict(self, obs: Array, actions: Array) -> dict[str, tuple[Any, Any]]:
        """Predict where each entity is one step after each of M actions, or as many as the model predicts at once.

        Args:
            obs: states [N, D].
            actions: M actions for each state [N, M, A], or integers [N, M].

        Returns:
            For each entity, the mean and the standard deviation [N, M, d] of its d columns.
        """
        states, encoded = self._given_actions(obs, actions)
        count = encoded.shape[2]
        repeated = states.repeat_interleave(count, 1)  # [R, N M, D]
        mean, variance = predict_moments(self.model, repeated, encoded[0].flatten(0, 1))
        scale = torch.tensor(self.units.scale, device=mean.device)
        now = check_table("obs", obs, self.model.obs_size).double().repeat_interleave(count, 0)
        found = {}
        for (name, columns), dims in zip(self.entities.items(), self._dims, strict=True):
            after = now[:, columns].to(mean.device) + mean[:, dims].double() / scale[dims]
            deviation = variance[:, dims].double().sqrt() / scale[dims]
            found[name] = tuple(like(part.unflatten(0, (-1, count)), obs) for part in (after, deviation))
        return found

    @pinned()
    def best_action(
        self, obs: Array, entity: str | None = None, generator: torch.Generator | None = None
    ) -> tuple[Any, Any]:
        """Find the most influential of K tried actions, ties broken at random.

        Args:
            obs: states [N, D].
            entity: the entity to influence; may be omitted if there is only one.
            generator: draws the tried actions; by default each call tries new ones, so that exploration with them
                does not repeat itself.

        Returns:
            The actions [N, A] (or integers [N]) and their scores [N].
        """
        if entity is None and len(self.entities) > 1:
            raise ValueError(f"There are several entities; choose one with entity=: {', '.join(self.entities)}.")
        dims = self.dims(entity if entity is not None else next(iter(self.entities)))
        random = choose_generator(self._stream if generator is None else generator, self.seed, self.device)
        action, score = find_best_action(self.model, self.model_obs(obs), self.law, dims, self.scoring, random)
        return like(self.law.decode(action), obs), like(score, obs)

    @pinned()
    def diagnose(
        self,
        obs: Array,
        action: Array,
        next_obs: Array,
        sampled: Array | None = None,
        groups: Array | None = None,
    ) -> Diagnoses:
        """Check on held-out transitions whether the scores can be trusted.

        Args:
            obs: states [N, D].
            action: actions [N, A], or integers [N].
            next_obs: the states that followed [N, D]; `predicted_steps` later.
            sampled: where the action was drawn at random [N] instead of chosen by a policy; the effect of actions can
                be judged only there. By default everywhere; actions that do not look random are then reported.
            groups: the episode [N] of each transition. Transitions of one episode are similar; without their groups
                chance may look like a problem.

        Returns:
            The checks of the model for each entity, a dictionary that is printed as verdicts and small tables.
        """
        held_out = self._held_out((obs, action, next_obs), self.scoring.actions)
        sampled, groups = (None if part is None else to_numpy(part) for part in (sampled, groups))
        drawn, episodes = check_marks(sampled, groups, len(held_out.action))
        problem = self._describe_nonrandom(held_out.obs[:, drawn], held_out.action[torch.from_numpy(drawn)])
        scoring = dataclasses.replace(self.scoring, extreme=0.0)  # uniform, like the redrawn actions
        random = make_generators([self.seed], self.device)
        scores = score_states(self.model, held_out.obs, self.law, self._dims, scoring, random, self.model.replicas)[0]
        mean, variance = predict_moments(self.model, held_out.obs, held_out.action)
        found = Diagnoses()
        for name, dims, score in zip(self.entities, self._dims, scores.T, strict=True):
            own = (held_out.target[:, dims], mean[:, dims], variance[:, dims], score)
            target, expected, spread, weight = map(to_numpy, own)
            evidence = find_evidence(self.model, held_out, name, dims, random[0])
            at_noise = None
            if isinstance(self.model, GaussianDynamics):
                noise = find_noise(target[drawn], expected[drawn], spread[drawn], weight[drawn])
                if noise > 1:
                    again = make_generators([self.seed], self.device)[0]
                    calmer = find_evidence(self.model, held_out, name, dims, again, noise)
                    at_noise = AtNoise(
                        noise, *map(to_numpy, (calmer.log_likelihood, calmer.log_redrawn, calmer.promised_rank))
                    )
            found[name] = diagnose_entity(
                target=target,
                mean=expected,
                variance=spread,
                **{part: to_numpy(value) for part, value in evidence._asdict().items()},
                at_noise=at_noise,
                score=weight,
                action=to_numpy(held_out.action),
                discrete=bool(self.law.count),
                drawn=drawn,
                episodes=episodes,
                doubt=problem,
                extreme=self.scoring.extreme,
                steep=not getattr(self.model.config, "spectral_norm_hidden", False),
            )
        return found

    def save(self, path: Path | str) -> None:
        """Write one safetensors file with a JSON header; nothing in it is executable, so it does not hold a prior."""
        save_influence(path, self.model, self.units, self.scoring, self.seed, self.horizon, self.calibration)

    @classmethod
    @pinned()
    def load(
        cls,
        path: Path | str,
        device: torch.device | str = "cpu",
        replica: int | None = None,
        prior: PriorFunction | None = None,
    ) -> "Influence":
        """Load what `save` wrote.

        Args:
            path: the file, such as `influence.safetensors` of a run folder.
            device: where scores are computed.
            replica: load only this replica, such as one seed of a run, without the calibration. By default all
                replicas are loaded as one ensemble.
            prior: the function that the model was fitted with, where it was.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is not a complete `Influence`, or the prior is missing or another one.
        """
        found = load_influence(path, replica, prior)
        influence = cls(found.model.to(device), found.units, found.scoring, found.seed, found.horizon)
        influence.calibration = found.calibration
        return influence

    def dims(self, entity: str) -> list[int]:
        """The place of an entity's columns in what the model predicts."""
        if entity not in self.entities:
            raise ValueError(f"There is no entity {entity!r}; the entities are {', '.join(self.entities)}.")
        return self._dims[list(self.entities).index(entity)]

    def model_obs(self, obs: Array) -> Tensor:
        """States [N, D] as the model sees them [R, N, D], without copies for the replicas."""
        table = self.units.standardize(check_table("obs", obs, self.model.obs_size)).to(self.device)
        return table.expand(self.model.replicas, -1, -1)

    def _given_actions(self, obs: Array, actions: Array) -> tuple[Tensor, Tensor]:
        """States [R, N, D] and the user's M actions for each [1, N, M, A], as the model sees them."""
        states = self.model_obs(obs)
        given = to_tensor("actions", actions)
        shape = list(given.shape)
        sizes = [] if self.law.count else [self.law.size]
        if len(shape) < 2 or shape[0] != states.shape[1] or shape[1] == 0 or shape[2:] != sizes:
            expected = ", ".join(map(str, [states.shape[1], "M", *sizes]))
            raise ValueError(f"actions has shape {shape}; expected [{expected}], M actions for each state.")
        check_finite_rows("actions", given)
        self.law.check("actions", given)
        return states, self.law.encode(given).to(states.device)[None]

    def _scores(self, obs: Array, generator: torch.Generator | None, members: int) -> Tensor:
        """The CAI of each state from each group of `members` networks, for the same actions: [R / members, N, J]."""
        random = [choose_generator(generator, self.seed, self.device)]
        table = check_table("obs", obs, self.model.obs_size)
        states = StandardizedStates(table, self.units, self.model.replicas, self.device)
        return score_states(self.model, states, self.law, self._dims, self.scoring, random, members)

    def _held_out(self, transitions: Sequence[Array], redraws: int) -> HeldOut:
        """Prepare held-out transitions, with the likelihood of what happened under redrawn actions."""
        table = self.units.checked_table("transitions must be", transitions, self.device)
        random = make_generators([self.seed + 1], self.device)[0]  # not the stream of the scores' actions
        return hold_out(self.model, table, self.law, dict(zip(self.entities, self._dims, strict=True)), redraws, random)

    def _describe_nonrandom(self, obs: Tensor, action: Tensor) -> str | None:
        return describe_nonrandom(to_numpy(action), to_numpy(obs[0]), bool(self.law.count))

    def _by_entity(self, scores: Tensor, given: Array) -> dict[str, Any]:
        return {name: like(scores[..., j], given) for j, name in enumerate(self.entities)}


def check_members(members: int | None) -> None:
    """Refuse a number of members below 1, or of an ensemble that does not fit into memory."""
    if members is None:
        return
    if members < 1:
        raise ValueError(f"members must be at least 1; got {members}.")
    check_memory(members * SMALLEST_MEMBER, f"An ensemble of {members:,} members", "Use fewer members, such as 5.")


def member_seeds(seed: int, members: int) -> list[int]:
    """The seed of each member of an ensemble."""
    return [seed * 1000 + member for member in range(members)]
