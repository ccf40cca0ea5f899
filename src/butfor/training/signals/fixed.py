"""What signals without a model share: there is nothing to train, to save or to restore."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from butfor.training.signals.transitions import TransitionTable


class FixedSignal:
    """A score that is read off each episode once; a subclass implements `score`."""

    learns = False

    def __init__(self, table: TransitionTable) -> None:
        self.table = table
        self.replay = table.replay

    def fit(self, batches: int, generators: Sequence[torch.Generator], fast: bool = True) -> Tensor:
        """Return a loss of zero [R]."""
        return torch.zeros(self.replay.replicas, device=self.table.device)

    def prepare(self, fast: bool) -> None:
        """There is nothing to record."""

    def stale(self) -> Tensor:
        """No episode has to be scored again."""
        return self.replay.slots(0)

    def action_model(self) -> None:
        """None: this signal does not compare actions before they are taken."""
        return

    def save(self, folder: Path, seed: int) -> None:
        """There is no model to write."""

    def state(self) -> dict[str, Any]:
        """Nothing: the scores are part of the replay buffer."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """There is nothing to put back."""
