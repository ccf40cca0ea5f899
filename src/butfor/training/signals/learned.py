"""What signals with a model share: rounds of training on batches of the replay buffer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from butfor.models.fitting import training_loss
from butfor.models.gpu import captured, matrix_precision
from butfor.models.networks import Generators, make_generators
from butfor.training.replay import Weights
from butfor.training.signals.transitions import TransitionTable

BLOCK = 20  # batches drawn, and on a GPU recorded, at a time


class LearnedSignal:
    """Trains `model` on batches drawn with replacement, in blocks; on a GPU a block is a graph, recorded once per size.

    A subclass implements `draw` and `take_steps`, and `weigh_data` where not all steps count alike. The optimiser keeps
    its state from round to round.
    """

    learns = True
    scored = 0  # episodes stored at the last scoring, of signals that score each episode once

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer, table: TransitionTable, even: bool = True) -> None:
        """`even`: all steps of an episode have the same weight."""
        self.model = model.eval()  # but for `fit`: a restored model scores before it learns again
        self.optimizer = optimizer
        self.table = table
        self.replay = table.replay
        self.weights = Weights(table.replay, even)
        self._loss = training_loss(self.model, table.device)
        self._recorded: dict[int, Callable[..., Tensor]] = {}

    def draw(self, batches: int, generators: Generators) -> list[Tensor]:
        """Draw all random numbers of a block, a tensor [R, ...] each."""
        raise AssertionError("a subclass draws")

    def take_steps(self, *numbers: Tensor) -> Tensor:
        """Take the optimiser steps of a block; their summed loss [R]."""
        raise AssertionError("a subclass takes the steps")

    def weigh_data(self) -> Tensor:
        """Weights [R, E, T] by which the batches are drawn."""
        return self.replay.valid().float()

    def fit(self, batches: int, generators: Generators, fast: bool = True) -> Tensor:
        """Train on this many batches; their summed loss [R]. `fast` lets a GPU round matrix products to TF32."""
        self.weights.fill(self.weigh_data())
        self.model.train()
        total = torch.zeros(self.replay.replicas, device=self.table.device)
        for start in range(0, batches, BLOCK):
            count = min(BLOCK, batches - start)
            total += self._steps(count, fast)(*self.draw(count, generators))
        self.model.eval()
        return total

    def prepare(self, fast: bool) -> None:
        """On a GPU, record a block before the first episode."""
        self._steps(BLOCK, fast)
        self.model.eval()

    def _steps(self, batches: int, fast: bool) -> Callable[..., Tensor]:
        """`take_steps` for this many batches."""
        if batches not in self._recorded:
            examples = self.draw(batches, make_generators([0] * self.replay.replicas, self.table.device))
            self.model.train()
            with matrix_precision("high" if fast else "highest"):
                self._recorded[batches] = captured(self.take_steps, examples, [self.model, self.optimizer])
        return self._recorded[batches]

    def action_model(self) -> Any:
        return None  # this signal does not compare actions before they are taken

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "scored": self.scored}

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scored = state.get("scored", 0)
