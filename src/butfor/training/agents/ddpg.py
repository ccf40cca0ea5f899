"""DDPG (Lillicrap et al., 2016) for R replicas at once."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from butfor.models.fitting import FitConfig, make_optimizer
from butfor.models.networks import MLP, Generators
from butfor.training.agents.policy import AgentConfig, Policy
from butfor.training.replay import Batch


class DDPG(nn.Module):
    """Actor, critic and their targets; `update` is one step on a batch."""

    noise_size = 0

    def __init__(
        self,
        inputs: int,
        actions: int,
        config: AgentConfig,
        generators: Generators,
        device: torch.device | str = "cpu",
    ) -> None:
        """Draw the first weights, one generator per replica; `inputs` counts observation and goal together."""
        super().__init__()
        self.config = config
        self.policy = Policy(inputs, actions, config, generators)
        sizes = [inputs + actions, *[config.width] * config.layers, 1]
        self.critics = nn.ModuleList(MLP(sizes, generators, config.critic_layer_norm) for _ in range(config.critics))
        self.target_actor = copy.deepcopy(self.policy.actor).requires_grad_(False)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.to(device)
        fitting = FitConfig(learning_rate=config.learning_rate)
        self.actor_optimizer = make_optimizer(self.policy.actor, fitting)
        self.critic_optimizer = make_optimizer(self.critics, fitting)

    def update(self, batch: Batch, index: int) -> tuple[Tensor, Tensor]:
        """Update critic, actor and targets; critic loss, actor loss and mean value [R, 3], and TD errors [R, B]."""
        config = self.config
        self.policy.normalizer.update(batch.inputs)
        now = self.policy.normalizer(batch.inputs)
        then = self.policy.normalizer(batch.next_inputs)
        with torch.no_grad():
            ahead = torch.cat([then, self._next_action(then, batch)], -1)
            following = torch.stack([critic(ahead).squeeze(-1) for critic in self.target_critics]).amin(0)
            target = batch.reward + config.discount * batch.bootstrap * following  # [R, B]
            if config.target_range is not None:
                target = target.clamp(*config.target_range)

        taken = torch.cat([now, batch.action], -1)
        errors = [critic(taken).squeeze(-1) - target for critic in self.critics]
        weight = 1.0 if batch.weight is None else batch.weight
        critic_loss = torch.stack([(weight * error.square()).mean(-1) for error in errors]).sum(0)  # [R]
        _step(self.critics, critic_loss, self.critic_optimizer)

        action = torch.tanh(self.policy.actor(now))
        value = self.critics[0](torch.cat([now, action], -1)).squeeze(-1)
        actor_loss = config.action_penalty * action.square().mean((1, 2)) - value.mean(-1)  # [R]
        if self._is_actor_due(index):
            _step(self.policy.actor, actor_loss, self.actor_optimizer)
            self._follow(self.target_actor, self.policy.actor)
            self._follow(self.target_critics, self.critics)
        return torch.stack([critic_loss, actor_loss, value.mean(-1)], -1).detach(), errors[0].detach()

    def _next_action(self, then: Tensor, batch: Batch) -> Tensor:
        """The target policy's action in the next state, [R, B, A]."""
        return torch.tanh(self.target_actor(then))

    def _is_actor_due(self, index: int) -> bool:
        """Whether this update includes the actor and the target networks."""
        return True

    @torch.no_grad()
    def _follow(self, target: nn.Module, source: nn.Module) -> None:
        """Move a target network towards its source."""
        torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), 1 - self.config.polyak)

    def changes(self) -> list[Any]:
        return [self, self.actor_optimizer, self.critic_optimizer]

    def state(self) -> dict[str, Any]:
        optimizers = [self.actor_optimizer.state_dict(), self.critic_optimizer.state_dict()]
        return {"agent": self.state_dict(), "optimizers": optimizers}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.load_state_dict(state["agent"])
        self.actor_optimizer.load_state_dict(state["optimizers"][0])
        self.critic_optimizer.load_state_dict(state["optimizers"][1])


def _step(module: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Take an optimiser step of this module's parameters alone; losses are summed, so replicas do not mix."""
    parameters = list(module.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss.sum(), parameters), strict=True):
        parameter.grad = gradient
    optimizer.step()
