"""Causal action influence (CAI) for anyone's arrays: how much the agent's action matters for each entity."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from butfor.influence import decisions, diagnosis
from butfor.influence.network_choice import fit_network, split_inputs
from butfor.influence.scoring import (
    ScoreConfig,
    best_tried,
    hide_among_redrawn,
    log_density,
    predict_moments,
    score_actions,
    score_states,
)
from butfor.models.dynamics import (
    GaussianDynamics,
    ModelConfig,
    checked_table,
    entity_dims,
    obs_range,
    split_table,
    target_scale,
    training_table,
)
from butfor.models.fitting import FOR_ANY_DATA, FitConfig, Fitting
from butfor.models.networks import make_generators
from butfor.runs.files import load_tensors, save_tensors
from butfor.spaces.action_checks import check_count, warn_untried
from butfor.spaces.actions import ActionLaw
from butfor.spaces.arrays import (
    Array,
    check_entities,
    check_finite_rows,
    check_table,
    check_transitions,
    like,
    to_tensor,
)
from butfor.spaces.entities import Entities

FORMAT_VERSION = 2


class Influence:
    """CAI for anyone's data: fit it on transitions, then ask how much the action matters in any state.

    >>> Influence.fit(obs, action, next_obs, entities={"cube": [3, 4, 5]}).score(obs)["cube"]  # [N], in nats
    """

    def __init__(
        self,
        model: GaussianDynamics,
        law: ActionLaw,
        entities: Mapping[str, Sequence[int]],
        scale: Sequence[float],
        scoring: ScoreConfig = ScoreConfig(),
        seed: int = 0,
        obs_center: Sequence[float] | None = None,
        obs_spread: Sequence[float] | None = None,
    ) -> None:
        self.model, self.law, self.scoring, self.seed = model.eval(), law, scoring, seed
        self.entities = {name: list(columns) for name, columns in entities.items()}
        self.scale = list(scale)  # of each target column, in the order of `target_columns`
        self.obs_center = list(obs_center or [0.0] * model.obs_size)
        self.obs_spread = list(obs_spread or [1.0] * model.obs_size)
        self.calibration: dict[str, decisions.Calibration] = {}  # by entity; empty before `calibrate`
        self._stream = make_generators([seed], model.mean_head.weight.device)[0]
        self._dims = entity_dims(self.entities)

    @classmethod
    def fit(
        cls,
        obs: Array,
        action: Array,
        next_obs: Array,
        entities: Entities,
        *,
        action_space: gymnasium.Space[Any] | None = None,
        validation: Sequence[Array] | float = 0.1,
        model: ModelConfig | None = None,
        fitting: FitConfig = FOR_ANY_DATA,
        scoring: ScoreConfig = ScoreConfig(),
        members: int = 1,
        seed: int = 0,
        device: torch.device | str = "cpu",
        progress: Callable[[Fitting], None] | None = None,
    ) -> "Influence":
        """Learns p(s'_j | s, a) from transitions obs [N, D], action [N, A] (or integers [N]), next_obs [N, D].

        `entities` names sets of columns of `next_obs`. `action_space` gives the bounds within which actions are tried
        (default: the smallest box around the data). `validation` is a share of the transitions, or other transitions.
        `members` networks predict as one, unsure where they disagree. `progress` is called after every validation.
        Without a `model`, the network is the paper's, which is smooth; if that explains less than half of an entity's
        held-out change, or promises influence that this does not show, a steep one (`models.dynamics.STEEP`) is fitted,
        too (up to twice the time; `progress` gets a second `Fitting`), and kept if what happened is clearly likelier.
        """
        if members < 1:
            raise ValueError(f"members must be at least 1; got {members}.")
        transitions = check_transitions(obs, action, next_obs)
        columns = check_entities(entities, *transitions[::2])
        law = check_count(ActionLaw.from_data(transitions[1]) if action_space is None else ActionLaw.of(action_space))
        law.check("action", transitions[1])
        warn_untried(law, transitions[1])
        scale = target_scale(transitions, columns, model or ModelConfig())
        center, spread = obs_range(transitions[0])
        table = training_table(transitions, law, columns, scale, device, center, spread)
        if isinstance(validation, float | int):
            train, held_out = split_table(table, validation, seed)
        else:
            what, units = "validation must be a share or", (scale, center, spread)
            train, held_out = table, checked_table(what, validation, law, columns, device, units)
        seeds = [seed * 1000 + member for member in range(members)]
        network = fit_network(train, held_out, len(center), entity_dims(columns), model, fitting, seeds, progress)
        return cls(network, law, columns, scale.tolist(), scoring, seed, center.tolist(), spread.tolist())

    def score(self, obs: Array, generator: torch.Generator | None = None) -> dict[str, Any]:
        """CAI of each state, one array [N] an entity, in nats, at most log K.

        The same call gives the same numbers unless a `generator` for the tried actions is passed in; each row has its
        own actions, so a state's score varies a little with its row.
        """
        return self._named(self._scores(obs, generator, self.model.replicas)[0], obs)  # [1, N, J] -> [N, J]

    def spread(self, obs: Array) -> dict[str, Any]:
        """How far the members disagree: the standard deviation of their scores, one array [N] an entity."""
        if self.model.replicas < 2:
            raise ValueError("One member has nobody to disagree with; fit with members=5.")
        return self._named(self._scores(obs, None, 1).std(0), obs)

    def action_scores(self, obs: Array, actions: Array) -> dict[str, Any]:
        """How far each given action's outcome stands out from the mixture over them: actions [N, M, A] -> [N, M]."""
        states, given = self.model_obs(obs), to_tensor("actions", actions)
        expected = [states.shape[1], "M", *([] if self.law.count else [self.law.size])]
        wanted = [given.shape[1] if size == "M" and given.dim() > 1 else size for size in expected]
        if list(given.shape) != wanted or not given.shape[1]:
            raise ValueError(f"actions has shape {list(given.shape)}; expected {expected}: M actions for each state.")
        check_finite_rows("actions", given)
        self.law.check("actions", given)
        encoded = self.law.encode(given).to(states.device)[None]
        scores = score_actions(self.model, states, encoded, self._dims, self.scoring.form, self.model.replicas)
        return self._named(scores[0], obs)

    def best_action(
        self, obs: Array, entity: str | None = None, generator: torch.Generator | None = None
    ) -> tuple[Any, Any]:
        """The most influential of K tried actions, ties broken at random: (action [N, A], score [N]).

        Each call tries other actions than the one before, so that an agent that explores by it does not repeat itself.
        """
        if entity is None and len(self.entities) > 1:
            raise ValueError(f"There are several entities; choose one with entity=: {', '.join(self.entities)}.")
        dims = self.dims(entity if entity is not None else next(iter(self.entities)))
        states, random = self.model_obs(obs), self._stream if generator is None else self._random(generator)
        action, score = best_tried(self.model, states, self.law, dims, self.scoring, random)
        return like(self.law.decode(action), obs), like(score, obs)

    def calibrate(
        self,
        *,
        free_obs: Array | None = None,
        groups: Array | None = None,
        transitions: Sequence[Array] | None = None,
        redraws: int = 99,
    ) -> "Influence":
        """Prepares `decide` by data held out from fitting, of one of two kinds; returns this Influence.

        `free_obs` [n, D]: states known to be free of influence on every entity, drawn as the free states of later
        batches will be; `groups` [n] says which are of one episode, for those are alike and count as one. `transitions`
        (obs, action, next_obs): from states like the later ones, with actions drawn from this Influence's action law
        (of an episode file, pass only the rows with `sampled` true); each taken action is ranked among `redraws` fresh
        ones by the likelihood log p(s'_j | s, a) of what happened.
        """
        p_values: dict[str, Any] = {}
        if free_obs is not None and transitions is None:
            scores = self.score(free_obs)
        elif transitions is not None and free_obs is None:
            states, taken, _, densities = self._held_out(transitions, redraws)
            if doubt := self._doubt(states, taken):
                warnings.warn(f"The actions of transitions do not look drawn from the law: {doubt}.", stacklevel=2)
            scores, ties = self.score(transitions[0]), np.random.default_rng(self.seed)
            p_values = {name: decisions.rank_p_values(*pair, ties) for name, pair in densities.items()}
        else:
            raise ValueError("calibrate needs exactly one of free_obs=[n, D] and transitions=(obs, action, next_obs).")
        like_ones = None if groups is None else np.unique(_numpy(groups), return_inverse=True)[1]
        self.calibration = {n: decisions.Calibration(_numpy(scores[n]), p_values.get(n), like_ones) for n in scores}
        return self

    def decide(self, obs: Array, false_discovery_rate: float = 0.05) -> dict[str, Any]:
        """In which states the action matters: true or false [N] for each entity.

        Of those called true, an expected share of at most `false_discovery_rate` is free of influence: within this
        batch after calibrating with free states, in states like those of calibration after calibrating with
        transitions.
        """
        scores, decided = self.score(obs), {}
        for name, calibration in self._calibrated().items():
            flags = decisions.decide(calibration, _numpy(scores[name]), false_discovery_rate, name)
            decided[name] = like(torch.from_numpy(flags), obs)
        return decided

    def p_values(self, obs: Array) -> dict[str, Any]:
        """How rare so high a score is among free states: conformal p-values [N] for each entity."""
        known = self._calibrated()
        if any(calibration.p_values is not None for calibration in known.values()):
            raise ValueError("p_values needs free states; calibrate(free_obs=...) with some.")
        scores = {name: _numpy(score) for name, score in self.score(obs).items()}
        p_values = {
            name: decisions.conformal_p_values(known[name].scores, score, known[name].groups)
            for name, score in scores.items()
        }
        return {name: like(torch.from_numpy(values), obs) for name, values in p_values.items()}

    def diagnose(
        self, obs: Array, action: Array, next_obs: Array, sampled: Array | None = None
    ) -> dict[str, diagnosis.Diagnosis]:
        """Whether the scores can be trusted, from held-out transitions: checks of the model for each entity.

        What the action tells can be judged only where it was drawn from the action law, not chosen by a policy that
        sees the state: `sampled` [N] says where. Without it all count as drawn, and a doubt about that is a finding.
        """
        states, taken, target, densities = self._held_out((obs, action, next_obs), self.scoring.actions)
        predicted = predict_moments(self.model, states, taken)
        drawn = np.ones(len(taken), dtype=bool) if sampled is None else _numpy(sampled).astype(bool)
        if drawn.shape != (len(taken),):
            raise ValueError(f"sampled has shape {list(drawn.shape)}; expected [{len(taken)}].")
        if sampled is not None and drawn.sum() < diagnosis.GROUPS:
            need = f"at least {diagnosis.GROUPS} are needed, better {diagnosis.FEWEST}"
            raise ValueError(f"sampled is true in {drawn.sum()} of {len(taken)} rows; {need}.")
        doubt = self._doubt(states[:, drawn], taken[torch.from_numpy(drawn).to(taken.device)])
        scoring, random = dataclasses.replace(self.scoring, extreme=0.0), [self._random(None)]  # as what is redrawn
        scores = score_states(self.model, states, self.law, self._dims, scoring, random, self.model.replicas)[0]
        found = {}
        for name, dims, score in zip(self.entities, self._dims, scores.T, strict=True):
            change, mean, variance = (_numpy(part[:, dims]) for part in (target, *predicted))
            told = (*densities[name], _numpy(score), _numpy(taken), bool(self.law.count))
            asked = (drawn, doubt, self.scoring.extreme, not self.model.config.spectral_norm_hidden)
            found[name] = diagnosis.diagnose(change, mean, variance, *told, *asked)
        return found

    def save(self, path: Path | str) -> None:
        """Writes one safetensors file with a JSON header; nothing in it is executable."""
        header = {
            "kind": "influence",
            "format": FORMAT_VERSION,
            "obs_size": self.model.obs_size,
            "law": dataclasses.asdict(self.law),
            "entities": self.entities,
            "scale": self.scale,
            "model": dataclasses.asdict(self.model.config),
            "scoring": dataclasses.asdict(self.scoring),
            "seed": self.seed,
            "obs_center": self.obs_center,
            "obs_spread": self.obs_spread,
        }
        kept = {name: torch.from_numpy(values) for name, values in decisions.pack(self.calibration).items()}
        save_tensors(path, self.model.state_dict() | kept, header)

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str = "cpu", replica: int | None = None) -> "Influence":
        """Reads what `save` wrote: all replicas as one ensemble, or one alone, without the calibration."""
        tensors, header = load_tensors(path)
        kept = {name: tensors.pop(name).numpy() for name in list(tensors) if name.startswith("calibration.")}
        if header.get("kind") != "influence":
            raise ValueError(f"{path} holds {header.get('kind')!r}, not a saved Influence.")
        if header.get("format") not in (1, FORMAT_VERSION):
            raise ValueError(f"{path} has format {header.get('format')}; this version reads format {FORMAT_VERSION}.")
        try:
            law = ActionLaw.of_file(path, header)
            count = len(tensors["mean_head.weight"])
            if replica is not None:
                if replica not in range(count):
                    raise ValueError(f"{path} holds {count} replicas, counted from 0; there is no replica {replica}.")
                tensors = {name: value[replica : replica + 1] for name, value in tensors.items()}
            generators = make_generators([0] * len(tensors["mean_head.weight"]))
            config, scoring = ModelConfig(**header["model"]), ScoreConfig(**header["scoring"])
            model = GaussianDynamics(header["obs_size"], law.size, len(header["scale"]), config, generators)
            model.load_state_dict(tensors)
            rest = {name: header[name] for name in ("seed", "obs_center", "obs_spread")}
            influence = cls(model.to(device), law, header["entities"], header["scale"], scoring, **rest)
            if replica is None:
                influence.calibration = decisions.unpack(kept, influence.entities)
            return influence
        except (KeyError, IndexError, TypeError, RuntimeError) as error:
            raise ValueError(f"{path} does not hold the weights that its header describes: {error}") from error

    def dims(self, entity: str) -> list[int]:
        """Where an entity's columns stand in what the model predicts."""
        if entity not in self.entities:
            raise ValueError(f"There is no entity {entity!r}; the entities are {', '.join(self.entities)}.")
        return self._dims[list(self.entities).index(entity)]

    def model_obs(self, obs: Array) -> Tensor:
        """States as the model wants them: [R, N, D], without copying for the replicas."""
        table = check_table("obs", obs, self.model.obs_size)
        units = torch.tensor([self.obs_center, self.obs_spread], dtype=torch.float64, device=table.device)
        table = ((table - units[0]) / units[1]).to(self.model.mean_head.weight.device, torch.float32)
        return table.expand(self.model.replicas, -1, -1)

    def _scores(self, obs: Array, generator: torch.Generator | None, members: int) -> Tensor:
        """The CAI that each group of `members` gives each state, for the same actions: [R / members, N, J]."""
        random = [self._random(generator)]
        return score_states(self.model, self.model_obs(obs), self.law, self._dims, self.scoring, random, members)

    def _held_out(
        self, transitions: Sequence[Array], redraws: int
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]]:
        """States [R, N, D], actions [N, A], targets [N, d]; log p(s'_j | s, a) of taken [N], redrawn actions [N, M]."""
        device = self.model.mean_head.weight.device
        units = [torch.tensor(one, dtype=torch.float64) for one in (self.scale, self.obs_center, self.obs_spread)]
        inputs, target = checked_table("transitions must be", transitions, self.law, self.entities, device, units)
        states, taken = split_inputs(self.model, inputs)
        random = make_generators([self.seed + 1], device)[0]  # not the stream that the scores' actions come from
        tried, is_taken = hide_among_redrawn(self.law, taken, redraws, random)
        densities = {}
        for name, dims in zip(self.entities, self._dims, strict=True):
            density = log_density(self.model, states, tried[None], target, dims)  # [N, M + 1]
            densities[name] = _numpy(density[is_taken]), _numpy(density[~is_taken].unflatten(0, (-1, redraws)))
        return states, taken, target, densities

    def _doubt(self, states: Tensor, taken: Tensor) -> str | None:
        """What speaks against these actions having been drawn from the law."""
        return decisions.not_random(_numpy(taken), _numpy(states[0]), bool(self.law.count))

    def _calibrated(self) -> dict[str, decisions.Calibration]:
        if not self.calibration:
            need = (
                "free_obs= (states known to be free of influence) or transitions= (held-out ones with random actions)"
            )
            raise ValueError(f"This Influence is not calibrated; call calibrate with {need} first.")
        return self.calibration

    def _random(self, generator: torch.Generator | None) -> torch.Generator:
        device = self.model.mean_head.weight.device
        if generator is None:
            return make_generators([self.seed], device)[0]
        if not isinstance(generator, torch.Generator) or generator.device.type != device.type:
            raise TypeError(f"generator is {generator!r}; expected a torch.Generator on {device}.")
        return generator

    def _named(self, scores: Tensor, given: Array) -> dict[str, Any]:
        return {name: like(scores[..., j], given) for j, name in enumerate(self.entities)}


def _numpy(values: Any) -> np.ndarray[Any, Any]:
    """A tensor as an array; an array as it is."""
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
