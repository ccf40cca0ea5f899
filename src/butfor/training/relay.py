"""The relay: a second agent that only seeks influence, and acts until the task's policy has something to work with."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from butfor.models.networks import Generators
from butfor.runs.config import check_between, check_least, check_positive
from butfor.training.agents.ddpg import DDPG
from butfor.training.agents.policy import AgentConfig, Policy
from butfor.training.replay import Batch, valid_steps


@dataclass(frozen=True)
class RelayConfig:
    """When the relay acts, and what it learns. Not in the paper."""

    share: float = 0.5
    """share of the policy's steps, in states with little influence, that the relay takes over"""
    until: float = 0.3
    """influence of the present state, in nats, from which on the task's policy acts"""
    cap: float = 2.0
    """its reward is the influence of a state, clipped to [0, cap]"""
    discount: float = 0.95
    """factor on the value of the next state"""
    action_penalty: float = 0.1
    """weight of the mean squared action in the actor's loss"""

    def __post_init__(self) -> None:
        check_between(self, 0, 1, "share")
        check_between(self, 0, 1, "discount", open_end=True)
        check_least(self, 0, "until", "action_penalty")
        check_positive(self, "cap")


class Relay:
    """R agents that learn from the task's batches with influence as the only reward; they see no goal."""

    def __init__(
        self,
        config: RelayConfig,
        agent: AgentConfig,
        obs_size: int,
        actions: int,
        generators: Generators,
        device: torch.device,
    ) -> None:
        """`agent` has the sizes and rates of the task's agent, which the relay shares; it has one critic."""
        self.config = config
        self.obs_size = obs_size
        own = replace(
            agent,
            discount=config.discount,
            action_penalty=config.action_penalty,
            critics=1,
            critics_in_target=None,
            caution_rate=None,
            target_range=(0.0, config.cap / (1 - config.discount)),
        )
        self.agent = DDPG(obs_size, actions, own, generators, device)

    @property
    def policy(self) -> Policy:
        """What acts: observations to actions in [-1, 1]."""
        return self.agent.policy

    def update(self, batch: Batch, index: int) -> None:
        """Learn from a batch that the task's agent learns from, too."""
        own = replace(
            batch,
            inputs=batch.inputs[..., : self.obs_size],
            next_inputs=batch.next_inputs[..., : self.obs_size],
            reward=batch.score.clamp(0, self.config.cap),
            weight=None,
        )
        self.agent.update(own, index)

    def turn(self, influence: Tensor, noise: Tensor) -> Tensor:
        """Whether the relay acts, by the influence of the present states and uniform numbers, both [..., 1]."""
        return (noise < self.config.share) & (influence < self.config.until)

    def use(self, score: Tensor, length: Tensor, epsilon: Tensor, practice: float = 0.0) -> list[dict[str, float]]:
        """What it does in stored episodes with scores [R, E, T] and lengths [R, E], one row per replica.

        The share of steps in which it acts is what the scores let expect: its share of those with little influence that
        are not exploratory, which a share `epsilon` [R] is; in episodes of practice, a share `practice`, it does not
        act. The other number is the share of episodes in which influence reaches the level that it seeks.
        """
        real = valid_steps(length, score.shape[-1])
        low = ((score < self.config.until) & real).sum((1, 2)) / real.sum((1, 2)).clamp(min=1)
        acts = (1 - practice) * (1 - epsilon) * self.config.share * low
        reached = ((score >= self.config.until) & real).any(-1).float().mean(1)
        rows = zip(acts.tolist(), reached.tolist(), strict=True)
        return [{"relay_acts": one, "relay_reaches": other} for one, other in rows]

    def changes(self) -> list[Any]:
        """The modules and optimisers that `update` writes to."""
        return self.agent.changes()

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint must contain."""
        return self.agent.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned."""
        if any(name.startswith("critics.1.") for name in state["agent"]):
            raise ValueError("its relay has several critics, and the relay has one now")
        self.agent.restore(state)
