"""Causal action influence (CAI) from arrays: how much does the agent's action matter for each entity?

`Influence.fit` learns p(s'_j | s, a) from transitions. `score` gives the CAI of states, `action_scores` and
`best_action` compare actions, `calibrate` and `decide` turn scores into decisions with few false alarms, and `diagnose`
checks on held-out transitions whether the scores can be trusted.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.influence.contact import ContactConfig
from butfor.influence.contact_fitting import fit_contact
from butfor.influence.decisions import (
    Calibration,
    Decisions,
    conformal_p_values,
    decide_influenced,
    describe_nonrandom,
    rank_p_values,
)
from butfor.influence.diagnosis import FEWEST, GROUPS, Diagnoses, diagnose_entity
from butfor.influence.display import fit_progress, influence_rows
from butfor.influence.graph.edges import ACTION
from butfor.influence.graph.methods import GraphMethods
from butfor.influence.graph.pair_fitting import fit_graph
from butfor.influence.graph.pairs import GraphConfig
from butfor.influence.network_choice import fit_network, split_inputs
from butfor.influence.partners import choose_partners
from butfor.influence.saved_models import count_replicas, describe_model, untrained_model
from butfor.influence.scoring import (
    Dynamics,
    ScoreConfig,
    find_best_action,
    hide_among_redrawn,
    log_density,
    predict_moments,
    promised_gain,
    score_actions,
    score_states,
)
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FOR_ANY_DATA, FitConfig
from butfor.models.networks import choose_generator, make_generators
from butfor.models.tables import Units, measure_transitions, split_table
from butfor.models.torch_state import pinned
from butfor.models.weights import (
    build_network,
    choose_replica,
    reading_weights,
    save_weights,
    units_of_header,
    whole_number,
)
from butfor.runs.config import config_from
from butfor.runs.memory import check_memory
from butfor.runs.printing import html_table, text_table
from butfor.spaces.arrays import Array, check_finite_rows, check_table, like, to_tensor, warn_user
from butfor.spaces.entities import Entities

FORMAT_VERSION = 3
SMALLEST_MEMBER = 10_000  # bytes: a random generator and the smallest network
STRONG_ACTIONS = ScoreConfig(extreme=0.75)
"""How `Influence.fit` scores with its model of touches: strong actions show what an entity can be reached with."""

AGENT_UNUSED = "agent= is for the model of touches, but another model is asked for; leave out one of them."
NOTHING_TOUCHES = (
    "The data do not show what touches the entities, so there is no model of touches; give its columns with agent=, or "
    "no model."
)


class Influence(GraphMethods):
    """CAI of a fitted transition model: how much the action matters for each entity, in any state.

    >>> influence = Influence.fit(obs, action, next_obs, entities="cube=3:6")
    >>> influence.score(obs)["cube"]  # [N], in nats

    Methods take states `obs` [N, D] as numpy or torch arrays and return the same kind, one array per entity.

    Attributes:
        model: the fitted model; its replicas are the members of an ensemble.
        units: how observations, actions and changes are scaled.
        law: the uniform distribution of the actions that are tried.
        entities: columns of the observation by name.
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
        self.horizon = horizon
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
        model: ModelConfig | ContactConfig | GraphConfig | None = None,
        horizon: int = 1,
        fitting: FitConfig = FOR_ANY_DATA,
        scoring: ScoreConfig | None = None,
        members: int = 1,
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
            groups: the episode [N] of each transition; whole episodes are then held out for validation.
            model: by default a model of touches (`butfor.influence.contact`) if every entity has something that
                touches it. If not, the paper's Gaussian network, which is smooth; if that explains less than half of
                an entity's held-out change, or promises influence that held-out transitions do not show, `STEEP` is
                fitted too (up to twice the time) and kept if it makes these transitions clearly more likely. Give a
                `ModelConfig` for one Gaussian network, a `ContactConfig` for other settings of the model of touches,
                or a `GraphConfig` for the model of pairs, which also knows the influence between entities.
            horizon: steps within which the action matters. More than 1 needs the model of pairs, which is the default
                then, and entities that contain every column that changes.
            fitting: optimiser, epochs and early stopping of a Gaussian network.
            scoring: how CAI is estimated from the model. By default uniform actions for a Gaussian network, and mostly
                strong ones (`extreme=0.75`) for the model of touches.
            members: networks of an ensemble, which is uncertain where they disagree.
            seed: for the initial weights, the batches, the held-out rows and the tried actions.
            device: where the networks are fitted and scores are computed.
            progress: whether a terminal or a notebook shows how far the fit is; or a function that is called with a
                `Fitting` after every validation, or with a `FitProgress` after every 100 updates.

        Raises:
            ValueError: the arrays do not fit together, are too few, or contain NaN or infinite values.
        """
        if members < 1:
            raise ValueError(f"members must be at least 1; got {members}.")
        check_memory(members * SMALLEST_MEMBER, f"An ensemble of {members:,} members", "Use fewer members, such as 5.")
        if horizon < 1 or (horizon > 1 and not isinstance(model, GraphConfig | None)):
            raise ValueError(f"horizon is {horizon}; expected 1, or more with the model of pairs (GraphConfig).")
        scale = model.target_scale if isinstance(model, ModelConfig) else None
        transitions, units = measure_transitions((obs, action, next_obs), entities, action_space, scale)
        train = units.table(transitions, device)
        seeds = [seed * 1000 + member for member in range(members)]
        if agent is not None and (horizon > 1 or isinstance(model, ModelConfig | GraphConfig)):
            raise ValueError(AGENT_UNUSED)
        if horizon > 1 or isinstance(model, GraphConfig):
            settings = model if isinstance(model, GraphConfig) else GraphConfig()
            with fit_progress(progress) as report:
                fitted = fit_graph(train, units, settings, seeds, report)
            return cls(fitted, units, scoring or STRONG_ACTIONS, seed, horizon)
        if not isinstance(model, ModelConfig):
            pairs = choose_partners(transitions, train, units, agent)
            if pairs is not None:
                config = model or ContactConfig()
                with fit_progress(progress) as report:
                    contact = fit_contact(transitions, train, units, pairs, config, seeds, report)
                return cls(contact, units, scoring or STRONG_ACTIONS, seed)
            if model is not None:
                raise ValueError(NOTHING_TOUCHES)
        if isinstance(validation, float | int):
            train, held_out = split_table(train, validation, seed, groups)
        else:
            held_out = units.checked_table("validation must be a share or", validation, device)
        with fit_progress(progress) as report:
            network = fit_network(train, held_out, units, model, fitting, seeds, report)
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
            found = self._score_source(obs, source, choose_generator(generator, self.seed, self.device))
            return {name: score for name, score in self._by_entity(found, obs).items() if name != source}
        if self.horizon > 1:
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
        """Predict where each entity is one step after each of M actions.

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
    def calibrate(
        self,
        *,
        free_obs: Array | None = None,
        groups: Array | None = None,
        transitions: Sequence[Array] | None = None,
        redraws: int = 99,
    ) -> "Influence":
        """Prepare `decide` with data that was not used for fitting: give either `free_obs` or `transitions`.

        Args:
            free_obs: states [n, D] that are known to be free of influence on every entity, distributed like the free
                states of later batches.
            groups: the episode [n] of each of these states. States of one episode are similar; without their groups
                the rate is exceeded (10 % instead of 5 % at a correlation of 0.99 between neighbouring states).
            transitions: (obs, action, next_obs) from states like the later ones, with actions drawn from the uniform
                law (of an episode file, only the rows with `sampled` true). Each taken action is ranked among redrawn
                ones by log p(s'_j | s, a).
            redraws: number of redrawn actions per transition.

        Returns:
            This `Influence`.
        """
        p_values: dict[str, Any] = {}
        if free_obs is not None and transitions is None:
            scores = self.score(free_obs)
        elif transitions is not None and free_obs is None:
            held_out = self._held_out(transitions, redraws)
            if problem := self._describe_nonrandom(held_out.obs, held_out.action):
                warn_user(f"The actions of transitions do not look random: {problem}.")
            scores = self.score(transitions[0])
            ties = np.random.default_rng(self.seed)
            for name, (taken, redrawn) in held_out.densities.items():
                p_values[name] = rank_p_values(taken, redrawn, ties)
        else:
            raise ValueError("calibrate needs either free_obs=[n, D] or transitions=(obs, action, next_obs).")
        numbered = None if groups is None else np.unique(_numpy(groups), return_inverse=True)[1]
        self.calibration = {
            name: Calibration(_numpy(score), p_values.get(name), numbered) for name, score in scores.items()
        }
        return self

    @pinned()
    def decide(self, obs: Array, false_discovery_rate: float = 0.05) -> Decisions:
        """Decide in which states the action matters; needs `calibrate` first.

        Args:
            obs: states [N, D].
            false_discovery_rate: the largest expected share of false decisions among those that are true. It holds
                within this batch after calibration with free states, and for states like those of calibration after
                calibration with transitions.

        Returns:
            True or false [N] for each entity, a dictionary that is printed as a table of counts.
        """
        scores = self.score(obs)
        decided = Decisions()
        for name, calibration in self._calibrated().items():
            flags = decide_influenced(calibration, _numpy(scores[name]), false_discovery_rate, name)
            decided[name] = like(torch.from_numpy(flags), obs)
        return decided

    @pinned()
    def p_values(self, obs: Array) -> dict[str, Any]:
        """Compute conformal p-values [N] for each entity: how rare such a high score is among free states."""
        calibrated = self._calibrated()
        if any(calibration.p_values is not None for calibration in calibrated.values()):
            raise ValueError("p_values needs free states; call calibrate(free_obs=...).")
        scores = self.score(obs)
        found = {}
        for name, calibration in calibrated.items():
            values = conformal_p_values(calibration.scores, _numpy(scores[name]), calibration.groups)
            found[name] = like(torch.from_numpy(values), obs)
        return found

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
            next_obs: the states that followed [N, D].
            sampled: where the action was drawn at random [N] instead of chosen by a policy; the effect of actions can
                be judged only there. By default everywhere; actions that do not look random are then reported.
            groups: the episode [N] of each transition. Transitions of one episode are similar; without their groups
                chance may look like a problem.

        Returns:
            The checks of the model for each entity, a dictionary that is printed as verdicts and small tables.
        """
        held_out = self._held_out((obs, action, next_obs), self.scoring.actions)
        rows = len(held_out.action)
        drawn = np.ones(rows, dtype=bool) if sampled is None else _numpy(sampled).astype(bool)
        if drawn.shape != (rows,):
            raise ValueError(f"sampled has shape {list(drawn.shape)}; expected [{rows}].")
        if sampled is not None and drawn.sum() < GROUPS:
            raise ValueError(
                f"sampled is true in {drawn.sum()} of {rows} rows; at least {GROUPS} are needed, better {FEWEST}."
            )
        episodes = None if groups is None else _numpy(groups)
        if episodes is not None and episodes.shape != (rows,):
            raise ValueError(f"groups has shape {list(episodes.shape)}; expected [{rows}].")
        problem = self._describe_nonrandom(held_out.obs[:, drawn], held_out.action[torch.from_numpy(drawn)])
        scoring = dataclasses.replace(self.scoring, extreme=0.0)  # uniform, like the redrawn actions
        random = make_generators([self.seed], self.device)
        scores = score_states(self.model, held_out.obs, self.law, self._dims, scoring, random, self.model.replicas)[0]
        mean, variance = predict_moments(self.model, held_out.obs, held_out.action)
        found = Diagnoses()
        for name, dims, score in zip(self.entities, self._dims, scores.T, strict=True):
            taken, redrawn = held_out.densities[name]
            tried = (held_out.tried[None], held_out.is_taken)
            promise = promised_gain(self.model, held_out.obs, *tried, dims, random[0])
            found[name] = diagnose_entity(
                target=_numpy(held_out.target[:, dims]),
                mean=_numpy(mean[:, dims]),
                variance=_numpy(variance[:, dims]),
                log_likelihood=taken,
                log_redrawn=redrawn,
                promise=_numpy(promise),
                score=_numpy(score),
                action=_numpy(held_out.action),
                discrete=bool(self.law.count),
                drawn=drawn,
                episodes=episodes,
                doubt=problem,
                extreme=self.scoring.extreme,
                steep=not getattr(self.model.config, "spectral_norm_hidden", False),
            )
        return found

    def save(self, path: Path | str) -> None:
        """Write one safetensors file with a JSON header; nothing in it is executable."""
        header = describe_model(self.model, self.units) | {
            "scoring": dataclasses.asdict(self.scoring),
            "seed": self.seed,
            "horizon": self.horizon,
        }
        tensors = dict(self.model.state_dict())
        for name, calibration in self.calibration.items():
            for part, values in dataclasses.asdict(calibration).items():
                if values is not None:
                    tensors[f"calibration.{part}.{name}"] = torch.from_numpy(values)
        save_weights(path, "influence", FORMAT_VERSION, tensors, header)

    @classmethod
    @pinned()
    def load(cls, path: Path | str, device: torch.device | str = "cpu", replica: int | None = None) -> "Influence":
        """Load what `save` wrote.

        Args:
            path: the file, such as `influence.safetensors` of a run folder.
            device: where scores are computed.
            replica: load only this replica, such as one seed of a run, without the calibration. By default all
                replicas are loaded as one ensemble.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is not a complete `Influence`.
        """
        with reading_weights(path, "influence", FORMAT_VERSION) as (tensors, header):
            calibration = {name: tensors.pop(name).numpy() for name in list(tensors) if name.startswith("calibration.")}
            units = units_of_header(header)
            seed = whole_number(header, "seed", least=-(2**63))
            scoring = config_from(ScoreConfig, header["scoring"])
            tensors = choose_replica(tensors, count_replicas(tensors), replica)
            generators = make_generators([0] * count_replicas(tensors))
            model = build_network(
                lambda: untrained_model(header, units, generators), header["model"]["layers"], tensors
            )
            horizon = whole_number({"horizon": 1} | header, "horizon")
            influence = cls(model.to(device), units, scoring, seed, horizon)
            if calibration and replica is None:
                for name in influence.entities:
                    scores = calibration[f"calibration.scores.{name}"]
                    rest = [calibration.get(f"calibration.{part}.{name}") for part in ("p_values", "groups")]
                    influence.calibration[name] = Calibration(scores, *rest)
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
        return score_states(self.model, self.model_obs(obs), self.law, self._dims, self.scoring, random, members)

    def _held_out(self, transitions: Sequence[Array], redraws: int) -> "_HeldOut":
        """Prepare held-out transitions, with the likelihood of what happened under redrawn actions."""
        inputs, target = self.units.checked_table("transitions must be", transitions, self.device)
        obs, action = split_inputs(self.model, inputs)
        random = make_generators([self.seed + 1], self.device)[0]  # not the stream of the scores' actions
        tried, is_taken = hide_among_redrawn(self.law, action, redraws, random)
        densities = {}
        for name, dims in zip(self.entities, self._dims, strict=True):
            density = log_density(self.model, obs, tried[None], target, dims)  # [N, M + 1]
            redrawn = density[~is_taken].unflatten(0, (-1, redraws))
            densities[name] = _numpy(density[is_taken]), _numpy(redrawn)
        return _HeldOut(obs, action, target, tried, is_taken, densities)

    def _describe_nonrandom(self, obs: Tensor, action: Tensor) -> str | None:
        return describe_nonrandom(_numpy(action), _numpy(obs[0]), bool(self.law.count))

    def _calibrated(self) -> dict[str, Calibration]:
        if not self.calibration:
            raise ValueError(
                "This Influence is not calibrated; first call calibrate with free_obs= (states known to be free of "
                "influence) or transitions= (held-out ones with random actions)."
            )
        return self.calibration

    def _by_entity(self, scores: Tensor, given: Array) -> dict[str, Any]:
        return {name: like(scores[..., j], given) for j, name in enumerate(self.entities)}


@dataclass(frozen=True)
class _HeldOut:
    """Held-out transitions as the model sees them."""

    obs: Tensor  # [R, N, D]
    action: Tensor  # [N, A]
    target: Tensor  # [N, d]
    tried: Tensor  # [N, M + 1, A], the taken action at a random place among redrawn ones
    is_taken: Tensor  # [N, M + 1]
    # log p(s'_j | s, a) of the taken action [N] and of redrawn ones [N, M], by entity
    densities: dict[str, tuple[NDArray[Any], NDArray[Any]]]


def _numpy(values: Any) -> NDArray[Any]:
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
