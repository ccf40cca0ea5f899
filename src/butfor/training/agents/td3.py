"""TD3 (Fujimoto et al., 2018): DDPG with clipped double critics, smoothed targets and a delayed actor.

TD3+BC (Fujimoto and Gu, 2021) learns from recorded data: the actor also stays close to the recorded actions.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from butfor.models.networks import Generators
from butfor.runs.config import check_least, check_positive
from butfor.training.agents.ddpg import DDPG
from butfor.training.agents.policy import AgentConfig
from butfor.training.replay import Batch


@dataclass(frozen=True)
class TD3Config:
    """What TD3 adds to DDPG; actions are in [-1, 1]."""

    policy_delay: int = 2
    """critic updates per update of the actor and the target networks"""
    target_noise: float = 0.2
    """standard deviation of the noise on the target policy's action"""
    noise_clip: float = 0.5
    """that noise is clipped to plus and minus this"""

    def __post_init__(self) -> None:
        check_least(self, 1, "policy_delay")
        check_least(self, 0, "target_noise", "noise_clip")


@dataclass(frozen=True)
class TD3BCConfig(TD3Config):
    """What TD3+BC adds to TD3, to learn from recorded data alone."""

    value_weight: float = 2.5
    """weight of the value in the actor's loss, in units of its mean size; the squared distance to the recorded action
    has weight 1"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "value_weight")


def as_normal(uniform: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) as standard normal ones, by the quantile function."""
    return math.sqrt(2) * torch.erfinv((2 * uniform - 1).clamp(-1 + 1e-6, 1 - 1e-6))


class TD3(DDPG):
    """Two critics, of which the smaller estimate is the target; see `TD3Config` for the rest."""

    def __init__(
        self,
        inputs: int,
        actions: int,
        config: AgentConfig,
        generators: Generators,
        device: torch.device | str = "cpu",
        *,
        td3: TD3Config,
    ) -> None:
        """Draw the first weights, one generator per replica."""
        super().__init__(inputs, actions, replace(config, critics=2, critics_in_target=None), generators, device)
        self.td3 = td3
        self.noise_size = actions if td3.target_noise else 0
        self.period = td3.policy_delay

    def _next_action(self, then: Tensor, batch: Batch) -> Tensor:
        action = super()._next_action(then, batch)
        if batch.noise is None:
            return action
        noise = (self.td3.target_noise * as_normal(batch.noise)).clamp(-self.td3.noise_clip, self.td3.noise_clip)
        return (action + noise).clamp(-1, 1)

    def _is_actor_due(self, index: int) -> bool:
        return index % self.td3.policy_delay == 0


class TD3BC(TD3):
    """TD3 whose actor maximises value_weight * value / mean |value| - |action - recorded action|^2."""

    td3: TD3BCConfig

    def _climb_critics(self, now: Tensor, batch: Batch, is_due: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
        penalty = self.config.action_penalty
        actor, critic = self._run(self.policy.actor), self._run(self.critics[0])
        action = torch.tanh(actor(now))
        value = critic(torch.cat([now, action], -1))  # [R, B, 1]
        scale = self.td3.value_weight / value.abs().mean((1, 2)).clamp_min(1e-6)  # [R]
        distance = action - batch.action
        if batch.swapped is not None:  # these actions were not taken for this object and goal
            distance = distance * ~batch.swapped[..., None]
        loss = distance.square().mean((1, 2)) + penalty * action.square().mean((1, 2)) - scale * value.mean((1, 2))
        mean = value.mean((1, 2))
        gradients = []
        if is_due:
            slope = (-scale / now.shape[1])[:, None, None].expand_as(value).contiguous()
            gradient = 2 / action[0].numel() * (distance + penalty * action)
            gradient = gradient + critic.input_gradient(slope, now.shape[2])
            gradients = actor.gradients(gradient * (1 - action.square()))
        return loss, mean, gradients
