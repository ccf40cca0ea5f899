"""Agents: what acts and learns from batches. Read `ddpg.py` first.

An agent is one file, its settings, and one line in `AGENTS`. The training loop draws the batches; an agent sees nothing
of the replay buffer.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from butfor.models.networks import Generators
from butfor.training.agents.ddpg import DDPG
from butfor.training.agents.policy import AgentConfig, Policy, TrainedPolicy, load_policy, save_agent
from butfor.training.agents.sac import SAC, SACConfig
from butfor.training.agents.td3 import TD3, TD3BC, TD3BCConfig, TD3Config
from butfor.training.replay import Batch

if TYPE_CHECKING:
    from butfor.training.settings import Config

__all__ = [
    "AGENTS", "DDPG", "SAC", "TD3", "TD3BC", "Agent", "AgentConfig", "Policy", "SACConfig", "TD3BCConfig", "TD3Config",
    "TrainedPolicy",
    "load_policy", "save_agent",
]  # fmt: skip


class Agent(Protocol):
    """R agents that learn together; replicas never mix."""

    noise_size: int
    """uniform random numbers per transition that `update` reads from `batch.noise`"""
    period: int
    """updates after which what depends on their index repeats, such as the delay of the policy"""

    @property
    def policy(self) -> Policy:
        """Observation and goal to an action in [-1, 1], as a module that can be copied and saved."""
        ...

    def update(self, batch: Batch, index: int) -> tuple[Tensor, Tensor]:
        """Learn from a batch, the update with this index after an episode: statistics [R, 3], TD errors [R, B]."""
        ...

    def value(self, inputs: Tensor) -> Tensor:
        """The estimated return of the policy's own actions, for inputs [R, B, D + G]: [R, B]."""
        ...

    def adjust_caution(self, excess: Tensor, counts: Tensor) -> None:
        """Follow how much higher first states were valued than what was reached, in episodes that count: [R, W]."""
        ...

    def changes(self) -> list[Any]:
        """The modules, optimisers and tensors that `update` writes to."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors to save with the trained policy; names of target networks begin with "target"."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint must contain."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned."""
        ...


# The algorithm's name in the settings -> the agent, given sizes of inputs and actions, first weights and device.
Make = Callable[["Config", int, int, Generators, torch.device], Agent]
AGENTS: dict[str, Make] = {
    "ddpg": lambda config, inputs, actions, *rest: DDPG(inputs, actions, config.agent, *rest),
    "sac": lambda config, inputs, actions, *rest: SAC(inputs, actions, config.agent, *rest, sac=config.sac),
    "td3": lambda config, inputs, actions, *rest: TD3(inputs, actions, config.agent, *rest, td3=config.td3),
    "td3bc": lambda config, inputs, actions, *rest: TD3BC(inputs, actions, config.agent, *rest, td3=config.td3bc),
}
