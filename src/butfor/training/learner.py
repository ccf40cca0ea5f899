"""The agents' side of learning: which steps are drawn, with which rewards, and the updates that follow."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from butfor.models.capture import captured, matrix_precision
from butfor.models.networks import draw_uniform
from butfor.spaces.actions import to_unit
from butfor.training import priorities as priority
from butfor.training.agents.ddpg import Agent
from butfor.training.exploration import add_bonus, bonus_weight
from butfor.training.goal_env import GoalEnv
from butfor.training.replay import NOISE, Batch, Replay, Weights, sample
from butfor.training.settings import Config


class Learner:
    """R agents, their optimisers, and the weights by which the memory is drawn from."""

    def __init__(
        self,
        config: Config,
        world: GoalEnv,
        replay: Replay,
        generators: Sequence[torch.Generator],
        device: torch.device,
    ) -> None:
        """`generators` draw the networks' first weights."""
        self.config, self.world, self.replay, self.device = config, world, replay, device
        obs_size, action_size, goal_size = world.sizes
        self.agent = Agent(obs_size + goal_size, action_size, config.agent, generators).to(device)
        self.optimizers = self.agent.make_optimizers()
        even = config.priority.kind != "per" and not config.priority.within_episode
        self.weights = Weights(replay, even)
        self.bounds = world.law.bounds(device)
        # what a recorded graph reads, refilled between episodes
        self.bonus = torch.zeros((), device=device)
        self.importance = torch.zeros((), device=device)
        self.error = torch.zeros_like(replay.score)  # absolute TD errors, for PER
        self.largest_error = torch.ones(config.seeds, device=device)
        self.statistics = torch.zeros(config.seeds, 3, device=device)
        self.count = 0  # updates that the statistics sum up
        self.normalized = False
        self._recorded: Callable[[Tensor], Tensor] | None = None

    def welcome(self, slots: Tensor) -> None:
        """New transitions get the largest TD error seen, so that each is drawn soon."""
        self.error[:, slots] = self.largest_error[:, None, None]

    def weigh(self) -> None:
        """Sets how likely each step is to be drawn, and what else the updates read."""
        config, replay = self.config, self.replay
        self.bonus.fill_(bonus_weight(config.bonus, replay.stored))
        by_influence = "priority" in config.influence
        beta = config.priority.importance if by_influence else priority.beta_at(config.priority, replay.stored)
        self.importance.fill_(beta)
        self.weights.fill(self._weight())

    def _weight(self) -> Tensor:
        config, replay = self.config, self.replay
        if "priority" in config.influence:
            return priority.by_influence(replay.score, replay.length, config.priority)
        if config.priority.kind == "per":
            return priority.by_error(self.error, replay.length, config.priority.alpha)
        if config.priority.kind == "ebp":
            return priority.by_energy(replay.achieved_goal, replay.length)
        return priority.uniform(replay.length, replay.steps)

    def update(self, generators: Sequence[torch.Generator]) -> None:
        """The updates that follow the episodes just stored."""
        config = self.config
        batches = config.agent.updates * config.num_envs
        self.weigh()
        if not self.normalized:
            for _ in range(config.agent.normalizer_batches):
                self.agent.policy.normalizer.update(self._batch(self._noise(1, generators)).inputs)
            self.normalized = True
        self.statistics += self.recorded()(self._noise(batches, generators))
        self.count += batches

    def recorded(self) -> Callable[[Tensor], Tensor]:
        """`_updates`, on a GPU as a graph that is recorded once, unless the world's reward needs the host."""
        if self._recorded is None and self.world.capturable:
            config = self.config
            rows = config.agent.updates * config.num_envs * config.agent.batch_size
            changes: list[Any] = [self.agent, *self.optimizers, self.error, self.largest_error]
            changes += [self.weights.step, self.weights.running]
            with matrix_precision("high" if config.tf32 else "highest"):
                noise = torch.zeros(config.seeds, rows, NOISE, device=self.device)
                self._recorded = captured(self._updates, [noise], changes)
        return self._recorded or self._updates

    def _noise(self, batches: int, generators: Sequence[torch.Generator]) -> Tensor:
        return draw_uniform(generators, batches * self.config.agent.batch_size, NOISE)

    def _batch(self, noise: Tensor) -> Batch:
        """Transitions with hindsight goals, importance weights and the bonus: noise [R, B, 4]."""
        config = self.config
        batch = sample(self.replay, self.weights, noise, self.world.reward, config.replay)
        batch.action = to_unit(batch.action, self.bounds)
        if "intrinsic" in config.influence:
            batch.reward = batch.score.clamp(0, config.bonus.cap)
        elif config.adds_bonus:
            batch.reward = add_bonus(batch.reward, batch.score, self.bonus, config.bonus)
        if config.weighs_importance:
            drawn = self.weights.step[self.replay.rows, batch.episode, batch.time]
            batch.weight = priority.importance_weights(self.weights.step, drawn, self.importance)
        return batch

    def _updates(self, noise: Tensor) -> Tensor:
        """Updates of the agent from noise [R, updates x B, 4]; summed statistics [R, 3]."""
        total, size = torch.zeros_like(self.statistics), self.config.agent.batch_size
        by_error = self.config.priority.kind == "per"  # then each batch depends on the errors of the one before
        batches = map(self._batch, noise.split(size, 1)) if by_error else iter(self._batch(noise).split(size))
        for batch in batches:
            statistics, error = self.agent.update(batch, self.optimizers)
            total += statistics
            if by_error:
                self.error[self.replay.rows, batch.episode, batch.time] = error.abs()
                self.largest_error.copy_(torch.maximum(self.largest_error, error.abs().amax(-1)))
                self.weights.fill(self._weight())
        return total

    def means(self) -> Tensor:
        """Critic loss, actor loss and value [R, 3], mean over the updates since the last call."""
        means = self.statistics / max(self.count, 1)
        self.statistics.zero_()
        self.count = 0
        return means

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to go on as if never interrupted."""
        return {
            "agent": self.agent.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "error": self.error[:, : self.replay.size].clone(),
            "largest_error": self.largest_error,
            "statistics": self.statistics,
            "count": self.count,
            "normalized": self.normalized,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave, after the memory was restored and before anything was recorded."""
        self.agent.load_state_dict(state["agent"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.error[:, : self.replay.size] = state["error"].to(self.device)
        self.largest_error.copy_(state["largest_error"])
        self.statistics.copy_(state["statistics"])
        self.count, self.normalized = state["count"], state["normalized"]
