"""SAC (Haarnoja et al., 2018) with two critics and a learned temperature, for R replicas at once."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from butfor.models.fitting import FitConfig, make_optimizer
from butfor.models.networks import MLP, Generators
from butfor.runs.config import check_positive
from butfor.training.agents.ddpg import DDPG, descend
from butfor.training.agents.policy import AgentConfig, Policy
from butfor.training.agents.td3 import as_normal
from butfor.training.replay import Batch

LOG_DEVIATIONS = (-5.0, 2.0)  # range of the logarithm of the policy's standard deviation, before tanh


@dataclass(frozen=True)
class SACConfig:
    """What SAC adds to DDPG. It draws its own actions: `explore.noise` is not used."""

    temperature: float = 0.1
    """weight of the entropy, where it starts"""
    learn_temperature: bool = True
    """whether the weight is adjusted until the policy has the wanted entropy"""
    entropy: float | None = None
    """the wanted entropy in nats, of actions in [-1, 1]; none: minus the number of action columns"""
    soft_targets: bool = True
    """whether the critic's targets contain the entropy of later actions"""

    def __post_init__(self) -> None:
        check_positive(self, "temperature")


class GaussianPolicy(Policy):
    """A policy that draws its actions: tanh of a Gaussian. What is saved and evaluated is tanh of its mean."""

    random = True

    def __init__(self, inputs: int, actions: int, config: AgentConfig, generators: Generators) -> None:
        super().__init__(inputs, actions, config, generators)
        sizes = [inputs, *[config.width] * config.layers, actions]
        self.deviation = MLP(sizes, generators, config.actor_layer_norm)  # logarithm of the standard deviation

    def draw(self, inputs: Tensor, normal: Tensor) -> Tensor:
        """Observations with goals [R, B, D + G] and standard normal numbers [R, B, A] -> actions [R, B, A]."""
        return self.draw_normalized(self.normalizer(inputs), normal)[0]

    def draw_normalized(self, seen: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [R, B, A] for normalised inputs, and the logarithm of their probability density [R, B]."""
        logarithm = self.deviation(seen).clamp(*LOG_DEVIATIONS)
        before = self.actor(seen) + logarithm.exp() * normal
        return torch.tanh(before), log_density(before, normal, logarithm)


def log_density(before: Tensor, normal: Tensor, logarithm: Tensor) -> Tensor:
    """The logarithm of the density of tanh(before), where before = mean + exp(logarithm) x normal: [..., A] -> [...].

    log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)) does not lose the digits of large x.
    """
    gaussian = -0.5 * normal.square() - logarithm - 0.5 * math.log(2 * math.pi)
    slope = 2 * (math.log(2) - before - nn.functional.softplus(-2 * before))
    return (gaussian - slope).sum(-1)


class SAC(DDPG):
    """Actor and critics are rewarded for entropy, by a temperature of each replica."""

    policy: GaussianPolicy

    def __init__(
        self,
        inputs: int,
        actions: int,
        config: AgentConfig,
        generators: Generators,
        device: torch.device | str = "cpu",
        *,
        sac: SACConfig,
    ) -> None:
        """Draw the first weights, one generator per replica."""
        two = replace(config, critics=max(config.critics, 2))
        super().__init__(inputs, actions, two, generators, device, GaussianPolicy(inputs, actions, two, generators))
        del self.target_actor  # the present policy draws the next action
        self.sac = sac
        self.entropy = float(-actions if sac.entropy is None else sac.entropy)
        start = torch.full((len(generators),), math.log(sac.temperature), device=device)
        self.temperature = nn.ParameterDict({"logarithm": nn.Parameter(start)})  # [R]
        fitting = FitConfig(learning_rate=config.learning_rate)
        self.actor_optimizer = make_optimizer(self._actor_networks(), fitting)
        self.temperature_optimizer = make_optimizer(self.temperature, fitting)
        self.actions = actions
        self.noise_size += 2 * actions  # of the next action and of the present one, before those of the critics

    def _actor_networks(self) -> nn.ModuleList:
        return nn.ModuleList([self.policy.actor, self.policy.deviation])

    def _weight(self) -> Tensor:
        """The temperature, [R, 1]."""
        logarithm: Tensor = self.temperature["logarithm"].detach()
        return logarithm.exp()[:, None]

    def _next_value(self, then: Tensor, batch: Batch) -> Tensor:
        assert batch.noise is not None
        action, density = self.policy.draw_normalized(then, as_normal(batch.noise[..., : self.actions]))
        value = self._least_value(torch.cat([then, action], -1), batch)
        return value - self._weight() * density if self.sac.soft_targets else value

    def _actor_loss(self, now: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The actor's loss [R], and the value of its actions [R, B]; also adjusts the temperature."""
        assert batch.noise is not None
        action, density = self.policy.draw_normalized(now, as_normal(batch.noise[..., self.actions : 2 * self.actions]))
        value = self._value(now, action)
        penalty = self.config.action_penalty * action.square().mean((1, 2))
        if self.sac.learn_temperature:
            excess = (density.detach() + self.entropy).mean(-1)  # positive where the entropy is below what is wanted
            descend(self.temperature, -self.temperature["logarithm"] * excess, self.temperature_optimizer)
        return penalty + (self._weight() * density - value).mean(-1), value

    def _value(self, now: Tensor, action: Tensor) -> Tensor:
        """The value that the actor climbs, [R, B]: the smallest, or the mean where targets are of drawn critics."""
        both = torch.cat([now, action], -1)
        values = torch.stack([critic(both).squeeze(-1) for critic in self.critics])
        return values.amin(0) if self.config.critics_in_target is None else values.mean(0)

    @torch.enable_grad()
    def _update_actor(self, now: Tensor, batch: Batch, is_due: bool) -> tuple[Tensor, Tensor]:
        loss, value = self._actor_loss(now, batch)
        if is_due:
            descend(self._actor_networks(), loss, self.actor_optimizer)
        return loss.detach(), value.mean(-1).detach()

    def changes(self) -> list[Any]:
        return [*super().changes(), self.temperature_optimizer]
