"""What signals without a model share: there is nothing to train, to save or to restore."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from butfor.models.networks import Generators
from butfor.training.signals.transitions import TransitionTable


class FixedSignal:
    """A score that is read off each episode once; a subclass implements `score`."""

    learns = False

    def __init__(self, table: TransitionTable) -> None:
        self.table = table
        self.replay = table.replay

    def fit(self, batches: int, generators: Generators, fast: bool = True) -> Tensor:
        return torch.zeros(self.replay.replicas, device=self.table.device)

    def stale(self) -> Tensor:
        return self.replay.slots(0)

    def action_model(self) -> None: ...

    def prepare(self, fast: bool) -> None: ...

    def save(self, folder: Path, seed: int) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}  # the scores are part of the replay buffer

    def restore(self, state: Mapping[str, Any]) -> None: ...
