"""DDPG (Lillicrap et al., 2016) for R replicas at once."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from butfor.models.fitting import FitConfig, make_optimizer
from butfor.models.gpu import has_kernels
from butfor.models.networks import MLP, Generators
from butfor.models.passes import Pass, make_pass, set_gradients
from butfor.training.agents.policy import AgentConfig, Policy
from butfor.training.replay import Batch


class DDPG(nn.Module):
    """Actor, critic and their targets; `update` is one step on a batch."""

    caution: Tensor  # [R, 1]: 0 if targets are the first critic's, 1 if they are the smallest estimates

    def __init__(
        self,
        inputs: int,
        actions: int,
        config: AgentConfig,
        generators: Generators,
        device: torch.device | str = "cpu",
        policy: Policy | None = None,
    ) -> None:
        """Draw the first weights, one generator per replica; `inputs` counts observation and goal together."""
        super().__init__()
        self.config = config
        self.policy = Policy(inputs, actions, config, generators) if policy is None else policy
        sizes = [inputs + actions, *[config.width] * config.layers, 1]
        self.critics = nn.ModuleList(MLP(sizes, generators, config.critic_layer_norm) for _ in range(config.critics))
        self.target_actor = copy.deepcopy(self.policy.actor).requires_grad_(False)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        if config.caution_rate is not None:
            self.register_buffer("caution", torch.zeros(len(generators), 1))
        self.to(device)
        fitting = FitConfig(learning_rate=config.learning_rate)
        self._passes: dict[nn.Module, Pass] = {}
        self._averages: dict[nn.Module, Any] = {}  # of target networks, on a GPU with kernels
        self.actor_optimizer = make_optimizer(self.policy.actor, fitting)
        self.critic_optimizer = make_optimizer(self.critics, fitting)
        self.noise_size = 0 if config.critics_in_target is None else config.critics  # numbers that choose the critics
        self.period = 1

    @torch.no_grad()
    def update(self, batch: Batch, index: int) -> tuple[Tensor, Tensor]:
        """Update critic, actor and targets; critic loss, actor loss and mean value [R, 3], and TD errors [R, B]."""
        is_due = self._is_actor_due(index)
        now, critic_loss, error, gradients = self._descend_critics(batch)
        take_step(self.critics, gradients, self.critic_optimizer)
        if is_due:
            self._follow(self.target_critics, self.critics)
        actor_loss, value = self._update_actor(now, batch, is_due)
        return torch.stack([critic_loss, actor_loss, value], -1), error

    def _descend_critics(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Normalised inputs [R, B, D + G], the critics' loss [R], TD errors of the first [R, B], and all gradients."""
        config = self.config
        now, then = self.policy.normalizer.observe(batch.inputs, batch.next_inputs)
        target = batch.reward + config.discount * batch.bootstrap * self._next_value(then, batch)  # [R, B]
        if config.target_range is not None:
            target = target.clamp(*config.target_range)

        taken = torch.cat([now, batch.action], -1)
        critics = [self._run(critic) for critic in self.critics]
        errors = [critic(taken).squeeze(-1) - target for critic in critics]
        weighted = [error if batch.weight is None else batch.weight * error for error in errors]
        losses = [(part * error).mean(-1) for part, error in zip(weighted, errors, strict=True)]
        critic_loss = torch.stack(losses).sum(0)  # [R]
        gradients = []
        for critic, part in zip(critics, weighted, strict=True):
            gradients += critic.gradients((2 / part.shape[1] * part).unsqueeze(-1))
        return now, critic_loss, errors[0], gradients

    def _run(self, network: Any) -> Pass:
        """How a network of this agent is evaluated and differentiated."""
        if network not in self._passes:
            self._passes[network] = make_pass(network)
        return self._passes[network]

    def value(self, inputs: Tensor) -> Tensor:
        """The critic's estimate of the policy's own actions, [R, B]."""
        return self._value(self.policy.normalizer(inputs), self.policy(inputs))

    def _value(self, now: Tensor, action: Tensor) -> Tensor:
        """The value [R, B] that the actor climbs."""
        both = torch.cat([now, action], -1)
        return torch.stack([critic(both).squeeze(-1) for critic in self._climbed()]).mean(0)

    def _climbed(self) -> nn.ModuleList:
        """The critics whose mean the actor climbs: the first, or all where some are drawn as targets."""
        return self.critics[: None if self.config.critics_in_target else 1]

    def _next_value(self, then: Tensor, batch: Batch) -> Tensor:
        """The target networks' value of the next state, [R, B]."""
        return self._least_value(torch.cat([then, self._next_action(then, batch)], -1), batch)

    def _least_value(self, ahead: Tensor, batch: Batch) -> Tensor:
        """The smallest estimate of the target critics, or of some that are drawn for each batch: [R, B]."""
        values = torch.stack([self._run(critic)(ahead).squeeze(-1) for critic in self.target_critics])  # [N, R, B]
        if self.config.critics_in_target is not None and batch.noise is not None:
            lots = batch.noise[:, 0, -self.config.critics :]  # [R, N]; the first transition's decide for the batch
            drawn = lots.argsort(-1).argsort(-1) < self.config.critics_in_target
            values = torch.where(drawn.T[..., None], values, torch.inf)
        least = values.amin(0)
        return least if self.config.caution_rate is None else torch.lerp(values[0], least, self.caution)

    def adjust_caution(self, excess: Tensor, counts: Tensor) -> None:
        """See `Agent.adjust_caution`; the excess is in units of the sum of discounted rewards of 1."""
        if self.config.caution_rate is not None:
            steps = self.config.caution_rate * (1 - self.config.discount) * excess
            self.caution.add_(steps.where(counts, 0.0).sum(1, keepdim=True)).clamp_(0, 1)

    def _next_action(self, then: Tensor, batch: Batch) -> Tensor:
        """The target policy's action in the next state, [R, B, A]."""
        return torch.tanh(self._run(self.target_actor)(then))

    def _is_actor_due(self, index: int) -> bool:
        """Whether this update includes the actor and the target networks."""
        return True

    def _update_actor(self, now: Tensor, batch: Batch, is_due: bool) -> tuple[Tensor, Tensor]:
        """Update the actor and its target if that is due; its loss and the mean value of its actions, both [R]."""
        loss, value, gradients = self._climb_critics(now, batch, is_due)
        if is_due:
            take_step(self.policy.actor, gradients, self.actor_optimizer)
            self._follow(self.target_actor, self.policy.actor)
        return loss, value

    def _climb_critics(self, now: Tensor, batch: Batch, is_due: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The actor's loss and the mean value of its actions, both [R], and if it is due all its gradients."""
        penalty = self.config.action_penalty
        actor = self._run(self.policy.actor)
        action = torch.tanh(actor(now))
        both = torch.cat([now, action], -1)
        climbed = [self._run(critic) for critic in self._climbed()]
        values = [critic(both) for critic in climbed]  # [R, B, 1] each
        value = torch.stack(values).mean((0, 2, 3))
        gradients = []
        if is_due:
            slope = torch.full_like(values[0], -1 / (now.shape[1] * len(climbed)))
            gradient = 2 * penalty / action[0].numel() * action
            for critic in climbed:
                gradient = gradient + critic.input_gradient(slope, now.shape[2])
            gradients = actor.gradients(gradient * (1 - action.square()))
        return penalty * action.square().mean((1, 2)) - value, value, gradients

    @torch.no_grad()
    def _follow(self, target: nn.Module, source: nn.Module) -> None:
        """Move a target network towards its source."""
        targets: list[Tensor] = list(target.parameters())
        sources: list[Tensor] = list(source.parameters())
        if not has_kernels(targets[0].device):
            torch._foreach_lerp_(targets, sources, 1 - self.config.polyak)
            return
        if target not in self._averages:
            from butfor.models.gpu.adam import Average  # Triton is there only with a GPU

            self._averages[target] = Average(targets, sources, 1 - self.config.polyak)
        self._averages[target]()

    def changes(self) -> list[Any]:
        return [self, self.actor_optimizer, self.critic_optimizer]

    def state(self) -> dict[str, Any]:
        optimizers = [one.state_dict() for one in self.changes()[1:]]
        return {"agent": self.state_dict(), "optimizers": optimizers}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.load_state_dict(state["agent"])
        for optimizer, saved in zip(self.changes()[1:], state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def take_step(module: nn.Module, gradients: list[Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Take an optimiser step of all parameters of this module, along gradients in their order."""
    set_gradients(module, gradients)
    optimizer.step()


def descend(module: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Take an optimiser step of this module's parameters alone; losses are summed, so replicas do not mix."""
    take_step(module, list(torch.autograd.grad(loss.sum(), list(module.parameters()))), optimizer)
