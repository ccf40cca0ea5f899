"""VIME (Houthooft et al., 2016): information gain about the dynamics."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from butfor.models.bayesian import BayesianNetwork, VimeConfig, draw_noise, gain_of_steps, train_block
from butfor.models.fitting import FitConfig, make_optimizer
from butfor.models.networks import Generators, draw_uniform
from butfor.training.signals.learned import LearnedSignal
from butfor.training.signals.transitions import TransitionTable, save_model

EPISODES = 10  # whose scores have one median
MEDIANS = 100  # whose mean is the usual size of a score


class RunningMedian(nn.Module):
    """The usual size of a score per replica: the mean of the last 100 medians, each over the last 10 episodes."""

    scores: Tensor
    medians: Tensor

    def __init__(self, replicas: int, steps: int) -> None:
        super().__init__()
        self.register_buffer("scores", torch.full((replicas, EPISODES, steps), torch.nan))  # NaN: none yet
        self.register_buffer("medians", torch.full((replicas, MEDIANS), torch.nan))

    def update(self, score: Tensor, valid: Tensor) -> Tensor:
        """Include the valid scores of an episode [R, T]; return the divisor [R], 1 where that would be 0."""
        newest = score.masked_fill(~valid, torch.nan)[:, None]
        self.scores.copy_(torch.cat([self.scores[:, 1:], newest], 1))
        median = self.scores.flatten(1).nanquantile(0.5, 1, keepdim=True)  # [R, 1]
        self.medians.copy_(torch.cat([self.medians[:, 1:], median], 1))
        mean = self.medians.nanmean(1)
        return torch.where(mean > 0, mean, 1.0)


class VimeSignal(LearnedSignal):
    """Information gain of every stored transition over its usual size; each episode keeps its first score."""

    def __init__(self, config: VimeConfig, table: TransitionTable, generators: Generators) -> None:
        """Draw the first weights, one generator per replica."""
        model = BayesianNetwork(table.sizes, config, generators).to(table.device)
        super().__init__(model, make_optimizer(model, FitConfig(learning_rate=config.learning_rate)), table)
        self.config = config
        self.median = RunningMedian(self.replay.replicas, self.replay.steps).to(table.device)

    def draw(self, batches: int, generators: Generators) -> list[Tensor]:
        """Where the transitions of a block come from, and the noise of the drawn weights."""
        config = self.config
        places = draw_uniform(generators, batches * config.batch_size, 2)
        return [places, draw_noise(generators, batches, config.samples, self.model.size)]

    def take_steps(self, *numbers: Tensor) -> Tensor:
        """Take the optimiser steps of a block: places [R, steps x batch, 2], weight noise [R, steps, S, P] -> [R]."""
        places, noise = numbers
        inputs, target = self.table.table(self.replay.rows, *self.weights.draw(places))
        return train_block(self._loss, self.optimizer, inputs, target, noise)

    def score(self, slots: Tensor, generators: Generators) -> None:
        """Score the episodes in these slots in turn; nothing is trained."""
        replay = self.replay
        dims = range(self.model.target_size)
        for part in slots.split(1000) if len(slots) else ():
            inputs, target, valid = self.table.episodes(part)
            gain = gain_of_steps(self.model, inputs, target, valid, generators, dims)  # [R, n, T]
            usual = [self.median.update(gain[:, row], valid[:, row]) for row in range(len(part))]
            replay.score[:, part] = gain / torch.stack(usual, 1)[..., None]
        self.scored = replay.stored

    def stale(self) -> Tensor:
        """The episodes that were never scored."""
        return self.replay.slots(self.replay.stored - self.scored)

    def save(self, folder: Path, seed: int) -> None:
        """Write the networks to vime.safetensors."""
        save_model(folder / "vime.safetensors", "vime", self.model, self.table.units, self.replay.replicas, seed)

    def state(self) -> dict[str, Any]:
        """Weights, optimiser, and what normalises the scores."""
        return super().state() | {"median": self.median.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned, before anything is recorded."""
        super().restore(state)
        self.median.load_state_dict(state["median"])
