"""VIME (Houthooft et al., 2016): information gain about the dynamics, of arrays and as a signal while training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from butfor.models.bayesian import BayesianNetwork, VimeConfig, draw_noise, gain_of_steps, train_block
from butfor.models.fitting import FitConfig, check_finite, make_optimizer
from butfor.models.gpu import captured
from butfor.models.networks import Generators, choose_generator, draw_uniform, make_generators
from butfor.models.tables import Units, measure_transitions
from butfor.spaces.arrays import Array, like, warn_user
from butfor.spaces.entities import Entities
from butfor.training.signals.learned import BLOCK, LearnedSignal
from butfor.training.signals.transitions import TransitionTable, load_model, save_model

REPORT = 1000  # batches between two reports of progress
EPISODES = 10  # whose scores have one median
MEDIANS = 100  # whose mean is the usual size of a score


class Vime:
    """Information gain: fit a Bayesian network on transitions, then score how much others would change it.

    >>> Vime.fit(obs, action, next_obs, entities={"cube": [3, 4, 5]}).score(obs, action, next_obs)["cube"]  # [N], nats
    """

    def __init__(self, model: BayesianNetwork, units: Units, seed: int = 0) -> None:
        self.model = model.eval()
        self.units = units
        self.seed = seed

    @classmethod
    def fit(
        cls,
        obs: Array,
        action: Array,
        next_obs: Array,
        entities: Entities,
        *,
        action_space: gymnasium.Space[Any] | None = None,
        config: VimeConfig | None = None,
        batches: int = 20_000,
        seed: int = 0,
        device: torch.device | str = "cpu",
        progress: Callable[[int, float], None] | None = None,
    ) -> "Vime":
        """Fit a posterior over networks to transitions.

        Args:
            obs: [N, D]
            action: [N, A], or integers [N]
            next_obs: [N, D]
            entities: columns by name, such as {"cube": [3, 4, 5]} or "cube=3:6"
            action_space: bounds of the actions; default: the smallest box around the data
            config: the network; default: kl_weight 1 / N, which makes the loss the ELBO of all data (the paper's 0.05
                counts it as 20 transitions), and the second-order gain
            batches: optimiser steps
            seed: of the first weights and the batches
            device: where to compute
            progress: called with the batches so far and the mean loss since its last call
        """
        if batches < 1:
            raise ValueError(f"batches must be at least 1; got {batches}.")
        transitions, units = measure_transitions((obs, action, next_obs), entities, action_space)
        rows, obs_size = transitions[0].shape
        config = config or VimeConfig(kl_weight=1 / rows, method="second_order")
        inputs, target = units.table(transitions, device)
        sizes = (obs_size, units.law.size, target.shape[1])
        network = BayesianNetwork(sizes, config, make_generators([seed * 1000])).to(device)
        network.offset.copy_(target.mean(0))  # a steady drift need not be learned
        optimizer = make_optimizer(network, FitConfig(learning_rate=config.learning_rate))
        streams = make_generators([seed * 1000 + 1], device)

        def block(index: Tensor, noise: Tensor) -> Tensor:
            return train_block(network.loss, optimizer, inputs[index], target[index], noise)

        recorded: dict[int, Callable[[Tensor, Tensor], Tensor]] = {}
        total = torch.zeros(1, device=device)
        reported = 0
        for start in range(0, batches, BLOCK):
            count = min(BLOCK, batches - start)
            index = torch.randint(rows, (1, count * config.batch_size), generator=streams[0], device=device)
            noise = draw_noise(streams, count, config.samples, network.size)
            if count not in recorded:
                recorded[count] = captured(block, [index, noise], [network, optimizer])
            total += recorded[count](index, noise)
            done = start + count
            if done % REPORT == 0 or done == batches:
                check_finite(total)
                if progress is not None:
                    progress(done, float(total) / (done - reported))
                total = torch.zeros_like(total)
                reported = done
        if not _has_learned(network.eval(), inputs[:10_000], target[:10_000]):
            warn_user(
                "The network predicts no better than the mean change. Unless that is all there is to learn, lower "
                f"kl_weight, now {config.kl_weight:g} (1 / transitions is the ELBO of all data), or fit for longer."
            )
        return cls(network, units, seed)

    def score(
        self, obs: Array, action: Array, next_obs: Array, generator: torch.Generator | None = None
    ) -> dict[str, Any]:
        """Information gain of each transition in nats, an array [N] per entity; the network stays as it is.

        Consecutive rows form groups of `config.group`, which share one value: score episodes one by one so that no
        group spans two. The same call gives the same numbers unless a `generator` for the drawn weights is given.
        """
        device = self.model.mean.device
        table = self.units.checked_table("score needs", (obs, action, next_obs), device, fewest=0)
        inputs, target = (part.expand(self.model.replicas, 1, -1, -1) for part in table)  # [R, 1, N, ...]
        valid = torch.ones(inputs.shape[:3], dtype=torch.bool, device=device)
        scores = {}
        for name, dims in zip(self.units.entities, self.units.dims, strict=True):
            random = [choose_generator(generator, self.seed, device)]
            gain = gain_of_steps(self.model, inputs, target, valid, random, dims)
            scores[name] = like(gain.mean(0)[0], obs)
        return scores

    def save(self, path: Path | str) -> None:
        """Write one safetensors file."""
        save_model(path, "vime", self.model, self.units, self.model.replicas, self.seed)

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str = "cpu", replica: int | None = None) -> "Vime":
        """Load what `save` wrote: all replicas, whose scores are averaged, or one of them."""
        return cls(*load_model(path, "vime", BayesianNetwork, VimeConfig, device, replica))


@torch.no_grad()
def _has_learned(model: BayesianNetwork, inputs: Tensor, target: Tensor) -> bool:
    """Whether the posterior's mean explains at least a hundredth of the targets' variance."""
    error = target - model(inputs[None], torch.zeros(1, 1, model.size, device=inputs.device))[0, 0]
    return bool(error.square().sum() < 0.99 * (target - target.mean(0)).square().sum())


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
        optimizer = make_optimizer(model, FitConfig(learning_rate=config.learning_rate))
        super().__init__(model, optimizer, table)
        self.config = config
        self.median = RunningMedian(self.replay.replicas, self.replay.steps).to(table.device)
        self.scored = 0  # episodes stored at the last scoring

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
        """Write the networks as one public `Vime`, vime.safetensors."""
        Vime(self.model, self.table.units, seed).save(folder / "vime.safetensors")

    def state(self) -> dict[str, Any]:
        """Weights, optimiser, and what normalises the scores."""
        return super().state() | {"median": self.median.state_dict(), "scored": self.scored}

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned, before anything is recorded."""
        super().restore(state)
        self.median.load_state_dict(state["median"])
        self.scored = state["scored"]
