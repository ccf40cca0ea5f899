"""Causal action influence (CAI) for anyone's arrays: how much the agent's action matters for each entity."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor

from butfor.actions import ActionLaw
from butfor.arrays import Array, check_entities, check_finite_rows, check_table, check_transitions, like, to_tensor
from butfor.dynamics import (
    GaussianDynamics,
    ModelConfig,
    Table,
    obs_range,
    split_table,
    target_columns,
    target_scale,
    training_table,
)
from butfor.files import load_tensors, save_tensors
from butfor.fitting import FitConfig, Fitting
from butfor.networks import make_generators
from butfor.scoring import ScoreConfig, action_drawer, score_actions, score_states

FORMAT_VERSION = 1


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
        self._stream = make_generators([seed], model.mean_head.weight.device)[0]
        columns = target_columns(self.entities)
        self._dims = [[columns.index(column) for column in entity] for entity in self.entities.values()]

    @classmethod
    def fit(
        cls,
        obs: Array,
        action: Array,
        next_obs: Array,
        entities: Mapping[str, Sequence[int]],
        *,
        action_space: gymnasium.Space[Any] | None = None,
        validation: Sequence[Array] | float = 0.1,
        model: ModelConfig = ModelConfig(),
        fitting: FitConfig = FitConfig(batch_size=500, learning_rate=8e-4, max_epochs=300, validate_every=5),
        scoring: ScoreConfig = ScoreConfig(),
        members: int = 1,
        seed: int = 0,
        device: torch.device | str = "cpu",
        progress: Callable[[Fitting], None] | None = None,
    ) -> "Influence":
        """Learns p(s'_j | s, a) from transitions obs [N, D], action [N, A] (or integers [N]), next_obs [N, D].

        `entities` names sets of columns of `next_obs`. `action_space` gives the bounds within which actions are tried
        (default: the smallest box around the data). `validation` is a share of the transitions, or other transitions.
        `members` networks are averaged. `progress` is called after every validation.
        """
        if members < 1:
            raise ValueError(f"members must be at least 1; got {members}.")
        transitions = check_transitions(obs, action, next_obs)
        entities = check_entities(entities, *transitions)
        law = ActionLaw.from_data(transitions[1]) if action_space is None else ActionLaw.of(action_space)
        law.check("action", transitions[1])
        scale = target_scale(transitions, entities, model)
        center, spread = obs_range(transitions[0])
        table = training_table(transitions, law, entities, scale, device, center, spread)
        if isinstance(validation, float | int):
            train, held_out = split_table(table, validation, seed)
        else:
            train, held_out = table, _validation_table(validation, table, law, entities, scale, center, spread)
        generators = make_generators([seed * 1000 + member for member in range(members)])
        network = GaussianDynamics(transitions[0].shape[1], law.size, len(scale), model, generators).to(device)
        with torch.no_grad():  # a steady drift need not be learned
            network.mean_head.bias.copy_(train[1].mean(0))
        run = Fitting(network, train, held_out, fitting, generators)
        for fitted in run.run():
            if progress is not None:
                progress(fitted)
        return cls(network, law, entities, scale.tolist(), scoring, seed, center.tolist(), spread.tolist())

    def score(self, obs: Array, generator: torch.Generator | None = None) -> dict[str, Any]:
        """CAI of each state, one array [N] an entity, in nats, at most log K.

        The same call gives the same numbers unless a `generator` for the tried actions is passed in; each row has its
        own actions, so a state's score varies a little with its row.
        """
        scores = score_states(
            self.model, self.model_obs(obs), self.law, self._dims, self.scoring, [self._random(generator)]
        )
        return self._named(scores.mean(0), obs)  # [R, N, J] -> [N, J]

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
        return self._named(score_actions(self.model, states, encoded, self._dims, self.scoring.form).mean(0), obs)

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
        config = dataclasses.replace(self.scoring, separate_mixture=False)
        chosen, highest = [], []
        for block in states.split(8192, 1):  # [R, n, D]
            _, draw = action_drawer(self.law, config, [random])
            tried = draw(0, block.shape[1]).expand(1, block.shape[1], -1, -1)
            scores = score_actions(self.model, block, tried, [dims], config.form).mean(0)[..., 0]  # [n, K]
            best = scores.amax(1, keepdim=True)
            lots = torch.rand(scores.shape, generator=random, device=random.device)
            index = torch.where(scores == best, lots, -1.0).argmax(1)
            chosen.append(tried[0, torch.arange(len(index), device=index.device), index])
            highest.append(best[:, 0])
        return like(self.law.decode(torch.cat(chosen)), obs), like(torch.cat(highest), obs)

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
        save_tensors(path, self.model.state_dict(), header)

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str = "cpu", replica: int | None = None) -> "Influence":
        """Reads what `save` wrote: all replicas, whose scores are averaged, or one of them alone."""
        tensors, header = load_tensors(path)
        if header.get("kind") != "influence":
            raise ValueError(f"{path} holds {header.get('kind')!r}, not a saved Influence.")
        if header.get("format") != FORMAT_VERSION:
            raise ValueError(f"{path} has format {header.get('format')}; this version reads format {FORMAT_VERSION}.")
        try:
            law = ActionLaw.from_plain(header["law"])
            count = len(tensors["mean_head.weight"])
            if replica is not None:
                if replica not in range(count):
                    raise ValueError(f"{path} holds {count} replicas, counted from 0; there is no replica {replica}.")
                tensors = {name: value[replica : replica + 1] for name, value in tensors.items()}
            generators = make_generators([0] * len(tensors["mean_head.weight"]))
            config, scoring = ModelConfig(**header["model"]), ScoreConfig(**header["scoring"])
            model = GaussianDynamics(header["obs_size"], law.size, len(header["scale"]), config, generators)
            model.load_state_dict(tensors)
            kept = {name: header[name] for name in ("seed", "obs_center", "obs_spread")}
            return cls(model.to(device), law, header["entities"], header["scale"], scoring, **kept)
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
        center, spread = torch.tensor(
            [self.obs_center, self.obs_spread], dtype=torch.float64, device=table.device
        ).unbind()
        table = ((table - center) / spread).to(self.model.mean_head.weight.device, torch.float32)
        return table.expand(self.model.replicas, -1, -1)

    def _random(self, generator: torch.Generator | None) -> torch.Generator:
        device = self.model.mean_head.weight.device
        if generator is None:
            return make_generators([self.seed], device)[0]
        if not isinstance(generator, torch.Generator) or generator.device.type != device.type:
            raise TypeError(f"generator is {generator!r}; expected a torch.Generator on {device}.")
        return generator

    def _named(self, scores: Tensor, given: Array) -> dict[str, Any]:
        return {name: like(scores[..., j], given) for j, name in enumerate(self.entities)}


def _validation_table(
    validation: Sequence[Array],
    table: Table,
    law: ActionLaw,
    entities: Mapping[str, Sequence[int]],
    scale: Tensor,
    center: Tensor,
    spread: Tensor,
) -> Table:
    """Other transitions as the table to validate on; what is wrong with them is named as theirs."""
    try:
        obs, action, next_obs = validation
        transitions = check_transitions(obs, action, next_obs, fewest=1)
        check_table("obs", obs, table[0].shape[1] - law.size)
        law.check("action", transitions[1])
    except (ValueError, TypeError) as error:
        raise ValueError(f"validation must be a share or (obs, action, next_obs): {error}") from error
    return training_table(transitions, law, entities, scale, table[0].device, center, spread)
