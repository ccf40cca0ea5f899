"""The influence model that learns along with the agent: when it is trained, on what, and which states it scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from butfor.influence.gaussian import kl_to_mixture
from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig, combine_scores, score_states
from butfor.models.capture import compiled
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig, make_optimizer, train_step
from butfor.models.networks import draw_uniform
from butfor.training.replay import Weights
from butfor.training.signals.transitions import Memory, Rounds


@dataclass(frozen=True)
class OnlineConfig:
    """The influence model of a learning agent. Defaults are the paper's for FetchPickAndPlace."""

    network: ModelConfig = ModelConfig(
        layers=4, width=256, activation="tanh", spectral_norm_hidden=False, target_scale=50.0
    )
    scoring: ScoreConfig = ScoreConfig(actions=32)
    batch_size: int = 500
    learning_rate: float = 8e-4
    betas: tuple[float, float] = (0.9, 0.9)
    """Adam's decay rates"""
    every: int = 100
    """episodes between rounds of training; the first round follows the warm-up"""
    schedule: tuple[tuple[int, int], ...] = ((200, 40_000), (5_200, 10_000), (10_200, 5_000))
    """(up to this episode, batches a round); no training after the last"""
    newest_from: int = 1_200
    """from this episode on, `newest_share` of the samples come from the newest `every` episodes"""
    newest_share: float = 0.25
    rescore: Literal["all", "newest"] = "all"
    """after a round, score the whole memory anew, or the newest 1,000 episodes and the whole every 1,000"""
    only_sampled: bool = False
    """learn only from actions that were drawn uniformly (the paper's section 4.2)"""

    def __post_init__(self) -> None:
        for name in ("batch_size", "every"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} must be at least 1; got {getattr(self, name)}.")
        if self.network.normalize_input and self.batch_size < 2:
            raise ValueError(
                "model.batch_size is 1, but model.network.normalize_input needs batches of at least 2; change one."
            )
        if not self.learning_rate > 0:
            raise ValueError(f"model.learning_rate must be positive; got {self.learning_rate}.")
        if not 0 <= self.newest_share < 1:
            raise ValueError(f"model.newest_share must lie in [0, 1); got {self.newest_share}.")
        if self.rescore not in ("all", "newest"):
            raise ValueError(f"model.rescore is {self.rescore!r}; it must be 'all' or 'newest'.")
        limits = [limit for limit, _ in self.schedule]
        if not limits or limits != sorted(limits) or min(batches for _, batches in self.schedule) < 1:
            raise ValueError(
                f"model.schedule is {self.schedule}; expected pairs (up to this episode, batches a round) with rising "
                "episodes and at least 1 batch."
            )


def batches_due(config: OnlineConfig, episodes: int, warmup: int) -> int:
    """Batches of the round that follows the episode with this number (counted from 1); 0 where none is due."""
    if episodes < warmup or (episodes - warmup) % config.every:
        return 0
    return next((batches for limit, batches in config.schedule if episodes <= limit), 0)


class OnlineInfluence:
    """R transition models with their optimiser; `fit` takes batches from the memory, `score` scores its states."""

    def __init__(
        self, config: OnlineConfig, memory: Memory, generators: Sequence[torch.Generator], combine: str = "sum"
    ) -> None:
        """Scores are the `combine` of those of the memory's entities: sum, max, or the name of one."""
        replay, device = memory.replay, memory.device
        self.config, self.memory, self.replay, self.combine = config, memory, replay, combine
        entities = dict(zip(memory.units.entities, memory.units.dims, strict=True))
        self.watched = [entities[combine]] if combine in entities else list(entities.values())
        self._dims = [torch.tensor(dims, device=device) for dims in self.watched]
        self.model = GaussianDynamics(*self.memory.sizes, config.network, generators).to(device)
        self.model.eval()  # but for `fit`; a restored model scores before it learns again
        self.optimizer = make_optimizer(self.model, FitConfig(learning_rate=config.learning_rate, betas=config.betas))
        self.weights = Weights(replay, even=not config.only_sampled)
        self._loss = compiled(self.model.loss, device)
        self.rounds = Rounds(self.model, self.optimizer, self._draw, self._steps, replay)

    def choose_data(self) -> None:
        """Sets which steps the coming batches are drawn from: all, with a share from the newest where that is due."""
        replay, config = self.replay, self.config
        weight = replay.valid().float()
        if config.only_sampled:
            weight = weight * replay.sampled
            if not bool(weight.any()):
                raise ValueError("model.only_sampled is set, but no action in the memory was drawn uniformly.")
        if replay.stored > config.newest_from:
            weight = replay.favour_newest(weight, config.every, config.newest_share)
        self.weights.fill(weight)

    def fit(self, batches: int, generators: Sequence[torch.Generator], fast: bool = True) -> Tensor:
        """Trains on batches of the chosen data; their summed loss [R]. `fast` lets a GPU round to TF32."""
        return self.rounds.fit(batches, generators, fast)

    def _draw(self, batches: int, generators: Sequence[torch.Generator]) -> list[Tensor]:
        """The random numbers of a block."""
        return [draw_uniform(generators, batches * self.config.batch_size, 2)]

    def _steps(self, noise: Tensor) -> Tensor:
        """A block of optimiser steps from noise [R, steps x batch, 2]; their summed loss [R]."""
        inputs, target = self.memory.table(self.replay.rows, *self.weights.draw(noise))
        size = self.config.batch_size
        losses = [
            train_step(self._loss, self.optimizer, x, y)
            for x, y in zip(inputs.split(size, 1), target.split(size, 1), strict=True)
        ]
        return torch.stack(losses).sum(0)

    def score(self, slots: Tensor, generators: Sequence[torch.Generator]) -> None:
        """Scores every state of the episodes in these slots anew: score[t] = CAI(s_t)."""
        replay = self.replay
        law = self.memory.units.law
        for part in slots.split(1000):
            obs = replay.observation[:, part, :-1].flatten(1, 2)  # [R, n * T, D]
            scores = score_states(self.model, obs, law, self.watched, self.config.scoring, generators)
            replay.score[:, part] = combine_scores(scores, self.combine).unflatten(1, (len(part), replay.steps))
        replay.score.masked_fill_(~replay.valid(), 0)

    def compare(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The score of each of K actions from what the model predicts for them: [..., K, d] -> [..., K]."""
        form = self.config.scoring.form
        if self.watched == [list(range(mean.shape[-1]))]:  # one entity, and all that is predicted
            return kl_to_mixture(mean, variance, form=form)
        parts = [(mean.index_select(-1, dims), variance.index_select(-1, dims)) for dims in self._dims]
        return combine_scores(torch.stack([kl_to_mixture(*part, form=form) for part in parts], -1), self.combine)

    def slots_to_score(self) -> Tensor:
        """The episodes to score anew after a round."""
        everything = self.config.rescore == "all" or self.replay.stored % 1000 < self.config.every
        return self.replay.slots(self.replay.size if everything else 1000)

    def save(self, path: Path | str, seed: int) -> None:
        """Writes the models as one public `Influence`."""
        units = self.memory.units
        Influence(self.model, units.law, units.entities, units.scale, self.config.scoring, seed).save(path)

    def state(self) -> dict[str, Any]:
        """Weights and optimiser."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Puts back what `state` gave, before anything was recorded."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
