"""Ensemble disagreement (Pathak et al., 2019): the spread of predictions."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from butfor.models.fitting import FitConfig, make_optimizer, train_step
from butfor.models.networks import ACTIVATIONS, Activation, Generators, InputNorm, Linear, draw_uniform
from butfor.runs.config import check_betas, check_between, check_choices, check_least, check_positive
from butfor.training.signals.learned import LearnedSignal
from butfor.training.signals.transitions import TransitionTable, save_model

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
        check_least(self, 0, "newest_from")
        check_betas(self)


class Ensemble(nn.Module):
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
        return (self.forward(inputs) - target).square().mean((1, 2))

    @torch.no_grad()
    def disagreement(self, inputs: Tensor) -> Tensor:
        """Squared deviation from the ensemble's mean, mean over members and dimensions: [R, N, D + A] -> [R, N].

        Inputs are normalised by the running statistics.
        """
        members = self.config.members
        size = max(1, AT_ONCE["cuda" if inputs.is_cuda else "cpu"] // (self.replicas * self.config.width))
        result = []
        for part in inputs.split(size, 1):
            predicted = self(part.repeat_interleave(members, 0)).unflatten(0, (-1, members))  # [R, M, n, d]
            result.append(predicted.var(1, correction=0).mean(-1))
        return torch.cat(result, 1)


class DisagreementSignal(LearnedSignal):
    """Disagreement at every stored state and action."""

    def __init__(self, config: EnsembleConfig, table: TransitionTable, generators: Generators) -> None:
        """Draw the first weights, one generator per replica."""
        model = Ensemble(table.sizes, config, generators).to(table.device)
        fitting = FitConfig(learning_rate=config.learning_rate, betas=config.betas)
        super().__init__(model, make_optimizer(model, fitting), table)
        self.config = config

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
        for part in slots.split(1000) if len(slots) else ():
            inputs, _, valid = self.table.episodes(part)
            score = self.model.disagreement(inputs.flatten(1, 2))
            replay.score[:, part] = score.view(valid.shape) * valid
        self.scored = replay.stored

    def stale(self) -> Tensor:
        """The episodes to score after a round: all, or those that were never scored."""
        everything = self.config.rescore == "all"
        return self.replay.slots(self.replay.size if everything else self.replay.stored - self.scored)

    def save(self, folder: Path, seed: int) -> None:
        """Write the ensembles to disagreement.safetensors; they need no seed."""
        save_model(
            folder / "disagreement.safetensors", "disagreement", self.model, self.table.units, self.replay.replicas
        )
