"""Ensemble disagreement (Pathak et al., 2019): the spread of predictions, of arrays and as a signal while training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import gymnasium
import torch
from torch import Tensor, nn

from butfor.models.fitting import FitConfig, Fittable, Fitting, make_optimizer, train_step
from butfor.models.networks import ACTIVATIONS, Activation, Generators, InputNorm, Linear, draw_uniform, make_generators
from butfor.models.tables import Units, measure_transitions, split_table
from butfor.runs.config import check_between, check_choices, check_least, check_positive
from butfor.spaces.arrays import Array, like
from butfor.spaces.entities import Entities
from butfor.training.signals.learned import LearnedSignal
from butfor.training.signals.transitions import TransitionTable, load_model, save_model

AT_ONCE = {"cpu": 2**20, "cuda": 2**28}  # activations: what stays in a processor's cache, or in 4 GiB of a GPU


@dataclass(frozen=True)
class EnsembleConfig:
    """The networks and their training. Defaults are the paper's for the object's position with recomputed scores."""

    members: int = 5
    """networks, each with its own first weights and batches"""
    layers: int = 4
    """hidden layers"""
    width: int = 256
    """units of each hidden layer"""
    activation: Activation = "tanh"
    """after each hidden layer"""
    normalize_input: bool = True
    """batch normalisation of states and actions, without learnable parameters"""
    batch_size: int = 500
    """transitions per batch of each member"""
    learning_rate: float = 8e-4
    betas: tuple[float, float] = (0.9, 0.9)
    """Adam's decay rates"""
    newest: int = 100
    """while training, with more than `newest_from` episodes stored, `newest_share` of the samples come from this many
    newest ones"""
    newest_from: int = 1_200
    newest_share: float = 0.25
    rescore: Literal["all", "once"] = "all"
    """after a round, score the whole replay buffer again, or only new episodes, so that each keeps its first score"""

    def __post_init__(self) -> None:
        check_least(self, 2, "members")  # one member has nothing to disagree with
        check_least(self, 1, "layers", "width", "newest")
        check_least(self, 2 if self.normalize_input else 1, "batch_size")  # a batch of 1 has no spread
        check_choices(self, "activation", "rescore")
        check_positive(self, "learning_rate")
        check_between(self, 0, 1, "newest_share", open_end=True)


class Ensemble(Fittable):
    """M networks of each of R replicas as R x M replicas; they predict the scaled change of an entity."""

    def __init__(self, sizes: tuple[int, int, int], config: EnsembleConfig, generators: Generators) -> None:
        """`sizes` are those of an observation, an action and a target; each replica draws its members in turn."""
        super().__init__()
        self.obs_size, action_size, self.target_size = sizes
        self.config = config
        streams = [generator for generator in generators for _ in range(config.members)]
        self.replicas = len(streams)  # R x M
        inputs = self.obs_size + action_size
        self.norm = InputNorm(inputs, self.replicas) if config.normalize_input else None
        widths = [inputs, *[config.width] * config.layers]
        self.hidden = nn.ModuleList(Linear(*pair, streams) for pair in pairwise(widths))
        self.head = Linear(config.width, self.target_size, streams)

    def forward(self, inputs: Tensor) -> Tensor:
        """Concatenated states and actions [R x M, B, D + A] -> the scaled change [R x M, B, d]."""
        activation = ACTIVATIONS[self.config.activation]
        x = inputs if self.norm is None else self.norm(inputs)
        for layer in self.hidden:
            x = activation(layer(x))
        change: Tensor = self.head(x)
        return change

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Squared error, mean over dimensions and batch: [R x M]."""
        return (self.predict_mean(inputs) - target).square().mean((1, 2))

    predict_mean = forward

    @torch.no_grad()
    def disagreement(self, inputs: Tensor, entities: Sequence[Sequence[int]]) -> Tensor:
        """Squared deviation from the ensemble's mean, mean over members and dimensions: [R, N, D + A] -> [R, N, J].

        Each of the J entities is a list of the target's dimensions. Inputs are normalised by the running statistics.
        """
        members = self.config.members
        result = inputs.new_zeros(*inputs.shape[:2], len(entities))
        size = max(1, AT_ONCE["cuda" if inputs.is_cuda else "cpu"] // (self.replicas * self.config.width))
        for start in range(0, inputs.shape[1], size):
            part = inputs[:, start : start + size]
            predicted = self(part.repeat_interleave(members, 0)).unflatten(0, (-1, members))  # [R, M, n, d]
            spread = predicted.var(1, correction=0)
            for entity, dims in enumerate(entities):
                result[:, start : start + size, entity] = spread[..., list(dims)].mean(-1)
        return result


class Disagreement:
    """Disagreement: fit an ensemble on transitions, then score where its members differ.

    >>> Disagreement.fit(obs, action, next_obs, entities={"cube": [3, 4, 5]}).score(obs, action)["cube"]  # [N]
    """

    def __init__(self, model: Ensemble, units: Units) -> None:
        self.model = model.eval()
        self.units = units

    @classmethod
    def fit(
        cls,
        obs: Array,
        action: Array,
        next_obs: Array,
        entities: Entities,
        *,
        action_space: gymnasium.Space[Any] | None = None,
        validation: float = 0.1,
        config: EnsembleConfig | None = None,
        epochs: int = 300,
        seed: int = 0,
        device: torch.device | str = "cpu",
        progress: Callable[[Fitting], None] | None = None,
    ) -> "Disagreement":
        """Fit an ensemble to transitions.

        Args:
            obs: [N, D]
            action: [N, A], or integers [N]
            next_obs: [N, D]
            entities: columns by name, such as {"cube": [3, 4, 5]} or "cube=3:6"
            action_space: bounds of the actions; default: the smallest box around the data
            validation: share of the transitions that is held out; each member keeps its best weights on it
            config: members and network
            epochs: passes over the data, at most
            seed: of the split, the first weights and the batches
            device: where to compute
            progress: called after every validation, each 5 epochs
        """
        config = config or EnsembleConfig()
        fitting = FitConfig(config.batch_size, config.learning_rate, config.betas, epochs, validate_every=5)
        transitions, units = measure_transitions((obs, action, next_obs), entities, action_space)
        train, held_out = split_table(units.table(transitions, device), validation, seed)
        sizes = (transitions[0].shape[1], units.law.size, train[1].shape[1])
        ensemble = Ensemble(sizes, config, make_generators([seed * 1000])).to(device)
        with torch.no_grad():  # a steady drift need not be learned
            ensemble.head.bias.copy_(train[1].mean(0))
        streams = make_generators([seed * 1000 + 1 + member for member in range(config.members)])
        for fitted in Fitting(ensemble, train, held_out, fitting, streams).run():
            if progress is not None:
                progress(fitted)
        return cls(ensemble, units)

    def score(self, obs: Array, action: Array, next_obs: Array | None = None) -> dict[str, Any]:
        """Disagreement at each state and action, an array [N] per entity, in units of the changes' variance.

        `next_obs` is not used; it is accepted so that all scores have the same signature.
        """
        given = (obs, action, obs if next_obs is None else next_obs)
        inputs, _ = self.units.checked_table("score needs", given, self.model.head.bias.device, fewest=0)
        copies = inputs.expand(self.model.replicas // self.model.config.members, -1, -1)
        scores = self.model.disagreement(copies, self.units.dims).mean(0)  # [R, N, J] -> [N, J]
        return {name: like(scores[:, j], obs) for j, name in enumerate(self.units.entities)}

    def save(self, path: Path | str) -> None:
        """Write one safetensors file."""
        save_model(path, "disagreement", self.model, self.units, self.model.replicas // self.model.config.members)

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str = "cpu", replica: int | None = None) -> "Disagreement":
        """Load what `save` wrote: all replicas, whose scores are averaged, or one of them."""
        return cls(*load_model(path, "disagreement", Ensemble, EnsembleConfig, device, replica)[:2])


class DisagreementSignal(LearnedSignal):
    """Disagreement at every stored state and action."""

    def __init__(self, config: EnsembleConfig, table: TransitionTable, generators: Generators) -> None:
        """Draw the first weights, one generator per replica."""
        model = Ensemble(table.sizes, config, generators).to(table.device)
        fitting = FitConfig(learning_rate=config.learning_rate, betas=config.betas)
        super().__init__(model, make_optimizer(model, fitting), table)
        self.config = config
        self.scored = 0  # episodes stored at the last scoring

    def weigh_data(self) -> Tensor:
        """All steps, with a share of the newest once that is due."""
        weight = self.replay.valid().float()
        if self.replay.stored > self.config.newest_from:
            weight = self.replay.favour_newest(weight, self.config.newest, self.config.newest_share)
        return weight

    def draw(self, batches: int, generators: Generators) -> list[Tensor]:
        """Where the transitions of a block come from: [R, steps, M, batch, 2]."""
        return [draw_uniform(generators, batches, self.config.members, self.config.batch_size, 2)]

    def take_steps(self, *numbers: Tensor) -> Tensor:
        """Take the optimiser steps of a block; their summed loss [R], mean over members."""
        noise = numbers[0]
        episode, time = self.weights.draw(noise.flatten(1, 3))
        tables = self.table.table(self.replay.rows, episode, time)
        inputs, target = (table.unflatten(1, noise.shape[1:4]) for table in tables)  # [R, steps, M, batch, ...]
        losses = [
            train_step(self._loss, self.optimizer, x.flatten(0, 1), y.flatten(0, 1))
            for x, y in zip(inputs.unbind(1), target.unbind(1), strict=True)
        ]  # of [R x M]
        return torch.stack(losses).sum(0).view(-1, self.config.members).mean(1)

    def score(self, slots: Tensor, generators: Generators = ()) -> None:
        """Score every transition of the episodes in these slots: the disagreement at (s_t, a_t); nothing is random."""
        replay = self.replay
        dims = range(self.model.target_size)
        for part in slots.split(1000):
            inputs, _, valid = self.table.episodes(part)
            score = self.model.disagreement(inputs.flatten(1, 2), [dims])
            replay.score[:, part] = score.view(valid.shape) * valid
        self.scored = replay.stored

    def stale(self) -> Tensor:
        """The episodes to score after a round: all, or those that were never scored."""
        everything = self.config.rescore == "all"
        return self.replay.slots(self.replay.size if everything else self.replay.stored - self.scored)

    def save(self, folder: Path, seed: int) -> None:
        """Write the ensembles as one public `Disagreement`, disagreement.safetensors; it needs no seed."""
        Disagreement(self.model, self.table.units).save(folder / "disagreement.safetensors")

    def state(self) -> dict[str, Any]:
        """Weights, optimiser, and how far the episodes are scored."""
        return super().state() | {"scored": self.scored}

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned, before anything is recorded."""
        super().restore(state)
        self.scored = state["scored"]
