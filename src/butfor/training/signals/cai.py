"""Causal action influence as a signal: a transition model that learns while the agent does, and scores its states."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from butfor.influence.contact import ALONG, ContactDynamics, ContactPrediction, make_contact_optimizer
from butfor.influence.gaussian import kl_to_mixture
from butfor.influence.influence import Influence
from butfor.influence.scoring import Dynamics, ScoreConfig, combine_scores, score_states
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig, make_optimizer, train_step
from butfor.models.networks import Generators, draw_uniform
from butfor.runs.config import check_betas, check_between, check_choices, check_least, check_positive
from butfor.spaces.arrays import warn_shared
from butfor.training.signals.learned import LearnedSignal
from butfor.training.signals.transitions import TransitionTable

RESCORED = 1_000  # newest episodes that are scored again with rescore="newest"; all are, every so many

SCORED = 10_000  # steps of each replica that are scored at once


@dataclass(frozen=True)
class CaiConfig:
    """The influence model of a learning agent. Defaults are the paper's for FetchPickAndPlace."""

    network: ModelConfig = ModelConfig(
        layers=4, width=256, activation="tanh", spectral_norm_hidden=False, target_scale=50.0
    )
    scoring: ScoreConfig = ScoreConfig(actions=32)
    batch_size: int = 500
    learning_rate: float = 8e-4
    betas: tuple[float, float] = (0.9, 0.9)
    """Adam's decay rates"""
    newest_from: int = 1_200
    """from this episode on, `newest_share` of the samples come from the episodes since the last round"""
    newest_share: float = 0.25
    rescore: Literal["all", "newest"] = "all"
    """after a round, score the whole replay buffer again, or the newest 1,000 episodes and the whole every 1,000"""
    only_sampled: bool = False
    """learn only from actions that were drawn uniformly (the paper's section 4.2)"""
    model: Literal["gaussian", "touch", "auto"] = "gaussian"
    """gaussian: the paper's network; touch: a model of what touches the entities (butfor.influence.contact), which
    needs to know what does, see agent; auto: touch if that is known or random episodes show it, else gaussian"""
    agent: tuple[int, ...] = ()
    """columns of the position of what touches the entities, such as a hand, in the order and units of the first columns
    of each entity; none: known of built-in environments, else found in random episodes"""
    source: str = ""
    """an entity whose influence counts instead of the action's, with model touch: the name of one of a built-in
    environment, or the columns of its position, cube=10:13; the score is that of the step taken, at most log 2"""
    horizon: int = 1
    """steps within which the action, or the source, matters, given what the agent does in the later ones"""

    def __post_init__(self) -> None:
        check_choices(self, "model", "rescore")
        check_least(self, 1, "horizon")
        has_spread = self.model != "gaussian" or self.network.normalize_input
        check_least(self, 2 if has_spread else 1, "batch_size")  # a batch of 1 has no spread
        check_positive(self, "learning_rate")
        check_between(self, 0, 1, "newest_share", open_end=True)
        check_least(self, 0, "newest_from")
        check_betas(self)
        if self.agent and self.model == "gaussian":
            raise ValueError(f"cai.agent is {self.agent}, but cai.model is 'gaussian'; give 'touch' or no agent.")
        if self.source and (self.model != "touch" or self.agent):
            raise ValueError(
                f"cai.source is {self.source!r}: it touches the entities, so cai.model must be 'touch', without "
                f"cai.agent; got {self.model!r} and {self.agent}."
            )


class CaiSignal(LearnedSignal):
    """CAI(s_t) of every stored state; it can also compare candidate actions."""

    def __init__(
        self,
        config: CaiConfig,
        table: TransitionTable,
        generators: Generators,
        combine: str = "sum",
        every: int = 100,
    ) -> None:
        """Draw the first weights; `combine` as in `Config`, `every` is the number of episodes between rounds."""
        model: Dynamics
        optimizer: torch.optim.Optimizer
        if table.partners is None:
            model = GaussianDynamics(*table.sizes, config.network, generators).to(table.device)
            fitting = FitConfig(learning_rate=config.learning_rate, betas=config.betas)
            optimizer = make_optimizer(model, fitting)
        else:
            model = ContactDynamics(table.units, table.partners, ALONG, generators).to(table.device)
            optimizer = make_contact_optimizer(model, config.learning_rate, config.betas)
        super().__init__(model, optimizer, table, even=not config.only_sampled)
        self.config = config
        self.combine = combine
        self.every = every
        entities = dict(zip(table.units.entities, table.units.dims, strict=True))
        self.watched = [entities[combine]] if combine in entities else list(entities.values())
        if combine == "sum":
            warn_shared(table.units.entities)
        self._dims = [torch.tensor(dims, device=table.device) for dims in self.watched]

    def weigh_data(self) -> Tensor:
        """All steps, or those with uniform actions; with a share of the newest once that is due."""
        weight = self.replay.valid().float()
        if self.config.only_sampled:
            weight = weight * self.replay.sampled
            if not bool(weight.any()):
                raise ValueError("cai.only_sampled is set, but the replay buffer contains no uniformly drawn action.")
        if self.replay.stored > self.config.newest_from:
            weight = self.replay.favour_newest(weight, self.every, self.config.newest_share)
        return weight

    def draw(self, batches: int, generators: Generators) -> list[Tensor]:
        """Where the transitions of a block come from: [R, steps x batch, 2]."""
        return [draw_uniform(generators, batches * self.config.batch_size, 2)]

    def take_steps(self, *numbers: Tensor) -> Tensor:
        inputs, target = self.table.table(self.replay.rows, *self.weights.draw(numbers[0]))
        size = self.config.batch_size
        losses = [
            train_step(self._loss, self.optimizer, x, y)
            for x, y in zip(inputs.split(size, 1), target.split(size, 1), strict=True)
        ]
        return torch.stack(losses).sum(0)

    def score(self, slots: Tensor, generators: Generators) -> None:
        """Score every state of the episodes in these slots: score[t] = CAI(s_t)."""
        replay = self.replay
        law = self.table.units.law
        for part in slots.split(1000):
            obs = replay.observation[:, part, :-1].flatten(1, 2)  # [R, n * T, D]
            if self.config.source:
                scores = self.score_source(obs, law.encode(replay.action[:, part].flatten(1, 2)))
            else:
                scores = score_states(self.model, obs, law, self.watched, self.config.scoring, generators)
            replay.score[:, part] = combine_scores(scores, self.combine).unflatten(1, (len(part), replay.steps))
        replay.score.masked_fill_(~replay.valid(), 0)

    @torch.no_grad()
    def score_source(self, obs: Tensor, action: Tensor) -> Tensor:
        """Influence of the source on each entity in steps [R, N, D], [R, N, A]: [R, N, J]."""
        predict = self.model.predictor()
        parts = []
        for states, taken in zip(obs.split(SCORED, 1), action.split(SCORED, 1), strict=True):
            found = predict(states, taken.unsqueeze(2))
            assert isinstance(found, ContactPrediction)
            parts.append(torch.stack([found.touches[tuple(dims)].presence()[..., 0] for dims in self.watched], -1))
        return torch.cat(parts, 1)

    def stale(self) -> Tensor:
        everything = self.config.rescore == "all" or self.replay.stored % RESCORED < self.every
        return self.replay.slots(self.replay.size if everything else RESCORED)

    def action_model(self) -> tuple[Dynamics, Callable[[Any], Tensor]]:
        return self.model, self.compare

    def compare(self, predicted: Any) -> Tensor:
        """Score each of K actions by what the model's predictor returns for them: [..., K]."""
        form = self.config.scoring.form
        if isinstance(predicted, ContactPrediction):
            scores = [predicted.divergence(dims, form) for dims in self.watched]
        else:
            chosen = [[part.index_select(-1, dims) for part in predicted] for dims in self._dims]
            scores = [kl_to_mixture(mean, variance, form=form) for mean, variance in chosen]
        return combine_scores(torch.stack(scores, -1), self.combine)

    def save(self, folder: Path, seed: int) -> None:
        """Write the models as one public `Influence`, influence.safetensors."""
        influence = Influence(self.model, self.table.units, self.config.scoring, seed, self.table.horizon)
        influence.save(folder / "influence.safetensors")
