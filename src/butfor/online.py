"""The influence model that learns along with the agent: when it is trained, on what, and which states it scores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from butfor.actions import ActionLaw
from butfor.capture import captured, compiled, matrix_precision
from butfor.dynamics import GaussianDynamics, ModelConfig
from butfor.fitting import FitConfig, make_optimizer, train_step
from butfor.influence import Influence
from butfor.replay import Replay, Weights
from butfor.scoring import ScoreConfig, score_states

BLOCK = 20  # batches drawn, and on a GPU recorded, at a time


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
        self,
        config: OnlineConfig,
        replay: Replay,
        law: ActionLaw,
        entity: Sequence[int],
        scale: Sequence[float],
        generators: Sequence[torch.Generator],
        device: torch.device | str,
    ) -> None:
        self.config, self.replay, self.law, self.scale = config, replay, law, list(scale)
        self.entity = torch.tensor(list(entity), device=device)
        self.factor = torch.tensor(self.scale, dtype=torch.float32, device=device)
        obs_size = replay.observation.shape[-1]
        self.model = GaussianDynamics(obs_size, law.size, len(self.scale), config.network, generators).to(device)
        self.model.eval()  # but for `fit`; a restored model scores before it learns again
        self.optimizer = make_optimizer(self.model, FitConfig(learning_rate=config.learning_rate, betas=config.betas))
        self.weights = Weights(replay, even=not config.only_sampled)
        self._recorded: dict[int, Callable[[Tensor], Tensor]] = {}
        self._loss = compiled(self.model.loss, device)

    def choose_data(self) -> None:
        """Sets which steps the coming batches are drawn from: all, with a share from the newest where that is due."""
        replay, config = self.replay, self.config
        weight = replay.valid().float()
        if config.only_sampled:
            weight = weight * replay.sampled
            if not bool(weight.any()):
                raise ValueError("model.only_sampled is set, but no action in the memory was drawn uniformly.")
        newest = replay.slots(config.every)
        if replay.stored > config.newest_from and len(newest) < replay.size:
            recent = torch.zeros(replay.capacity, device=weight.device).index_fill(0, newest, 1.0)[:, None]  # [E, 1]
            parts = ((weight * recent, config.newest_share), (weight * (1 - recent), 1 - config.newest_share))
            # a share without any step gives all to the other
            weight = sum((part * (share / part.sum((1, 2), True).clamp(min=1))) for part, share in parts)  # type: ignore[assignment]
        self.weights.fill(weight)

    def fit(self, batches: int, generators: Sequence[torch.Generator], fast: bool = True) -> Tensor:
        """Trains on batches drawn with replacement; the optimiser keeps its state between calls. Summed loss [R].

        `fast` lets a GPU round matrix products to TF32.
        """
        self.model.train()
        total = torch.zeros(self.replay.replicas, device=self.factor.device)
        for start in range(0, batches, BLOCK):
            count = min(BLOCK, batches - start)
            shape = (count * self.config.batch_size, 2)
            noise = torch.stack([torch.rand(shape, generator=g, device=g.device) for g in generators])
            total += self.recorded(count, fast)(noise)
        self.model.eval()
        return total

    def recorded(self, batches: int, fast: bool = True) -> Callable[[Tensor], Tensor]:
        """`_steps` for so many batches; on a GPU a graph, recorded once."""
        if batches not in self._recorded:
            noise = torch.zeros(self.replay.replicas, batches * self.config.batch_size, 2, device=self.factor.device)
            self.model.train()
            with matrix_precision("high" if fast else "highest"):
                self._recorded[batches] = captured(self._steps, [noise], [self.model, self.optimizer])
        return self._recorded[batches]

    def _steps(self, noise: Tensor) -> Tensor:
        """A block of optimiser steps from noise [R, steps x batch, 2]; their summed loss [R]."""
        replay = self.replay
        episode, time = self.weights.draw(noise)
        at = (replay.rows, episode)
        now, then = replay.observation[*at, time], replay.observation[*at, time + 1]
        target = (then - now)[..., self.entity] * self.factor
        inputs = torch.cat([now, self.law.encode(replay.action[*at, time])], -1)
        size = self.config.batch_size
        losses = [
            train_step(self._loss, self.optimizer, x, y)
            for x, y in zip(inputs.split(size, 1), target.split(size, 1), strict=True)
        ]
        return torch.stack(losses).sum(0)

    def score(self, slots: Tensor, generators: Sequence[torch.Generator]) -> None:
        """Scores every state of the episodes in these slots anew: score[t] = CAI(s_t)."""
        replay = self.replay
        entities = [list(range(len(self.scale)))]
        for part in slots.split(1000):
            obs = replay.observation[:, part, :-1].flatten(1, 2)  # [R, n * T, D]
            score = score_states(self.model, obs, self.law, entities, self.config.scoring, generators)
            replay.score[:, part] = score[..., 0].unflatten(1, (len(part), replay.steps))
        replay.score.masked_fill_(~replay.valid(), 0)

    def slots_to_score(self) -> Tensor:
        """The episodes to score anew after a round."""
        everything = self.config.rescore == "all" or self.replay.stored % 1000 < self.config.every
        return self.replay.slots(self.replay.size if everything else 1000)

    def save(self, path: Path | str, seed: int) -> None:
        """Writes the models as one public `Influence`."""
        entities = {"object": self.entity.tolist()}
        Influence(self.model, self.law, entities, self.scale, self.config.scoring, seed).save(path)

    def state(self) -> dict[str, Any]:
        """Weights and optimiser."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Puts back what `state` gave, before anything was recorded."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
