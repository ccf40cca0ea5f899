"""TD3 (Fujimoto et al., 2018): DDPG with clipped double critics, smoothed targets and a delayed actor."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from butfor.models.networks import Generators
from butfor.runs.config import check_least
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
        super().__init__(inputs, actions, replace(config, critics=2), generators, device)
        self.td3 = td3
        self.noise_size = actions if td3.target_noise else 0

    def _next_action(self, then: Tensor, batch: Batch) -> Tensor:
        action = super()._next_action(then, batch)
        if batch.noise is None:
            return action
        normal = math.sqrt(2) * torch.erfinv((2 * batch.noise - 1).clamp(-1 + 1e-6, 1 - 1e-6))  # of uniform numbers
        noise = (self.td3.target_noise * normal).clamp(-self.td3.noise_clip, self.td3.noise_clip)
        return (action + noise).clamp(-1, 1)

    def _is_actor_due(self, index: int) -> bool:
        return index % self.td3.policy_delay == 0
