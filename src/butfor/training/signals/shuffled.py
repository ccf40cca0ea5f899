"""A control: the scores of CAI, but each episode has those of another one."""

from typing import Any

import torch
from torch import Tensor

from butfor.models.networks import Generators, draw_uniform
from butfor.training.signals.cai import CaiSignal


class ShuffledSignal(CaiSignal):
    """CAI without its meaning: every scoring gives an episode the scores of a stored episode drawn at random.

    Whatever this gains over uniform replay is due to the shape of the priorities, not to influence.
    """

    own: Tensor | None = None  # [R, E, T]: the true scores

    def score(self, slots: Tensor, generators: Generators) -> None:
        """Score the episodes in these slots, then exchange."""
        super().score(slots, generators)
        replay = self.replay
        if self.own is None:
            self.own = torch.zeros_like(replay.score)
        self.own[:, slots] = replay.score[:, slots]
        other = (draw_uniform(generators, len(slots), 1)[..., 0] * replay.size).long()  # [R, n]
        replay.score[:, slots] = self.own[replay.rows, other] * replay.valid()[:, slots]

    def state(self) -> dict[str, Any]:
        own = None if self.own is None else self.own[:, : self.replay.size].clone()
        return super().state() | {"own": own}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        if state["own"] is not None:
            self.own = torch.zeros_like(self.replay.score)
            self.own[:, : state["own"].shape[1]] = state["own"].to(self.own.device)
