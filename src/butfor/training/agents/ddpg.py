"""DDPG for R replicas at once: act on observations, learn from a batch."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from butfor.models.fitting import FitConfig, make_optimizer
from butfor.models.networks import MLP, make_generators, some_replicas
from butfor.runs.files import load_tensors, save_tensors
from butfor.spaces.actions import ActionLaw, from_unit
from butfor.training.replay import Batch

FORMAT_VERSION = 1


@dataclass(frozen=True)
class AgentConfig:
    """DDPG. Defaults are the paper's for FetchPush and FetchPickAndPlace."""

    layers: int = 3
    """hidden layers of actor and critic"""
    width: int = 256
    """units of each hidden layer"""
    learning_rate: float = 1e-3
    """Adam's, for actor and critic"""
    discount: float = 0.98
    polyak: float = 0.95
    """how much of a target network stays at each update"""
    action_penalty: float = 1.0
    """weight of the mean squared action in the actor's loss"""
    target_range: tuple[float, float] | None = (-50.0, 0.0)
    """targets of the critic are clipped to it"""
    observation_clip: float = 5.0
    """normalised inputs are clipped to plus and minus this"""
    batch_size: int = 256
    updates: int = 20
    """updates after each episode"""
    normalizer_batches: int = 200
    """batches that the input normaliser sees before the first update"""
    critic_layer_norm: bool = False
    """layer normalisation in the critic (not in the paper)"""
    twin_critics: bool = False
    """two critics, of which the smaller estimate is the target (not in the paper)"""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "batch_size", "updates"):
            if getattr(self, name) < 1:
                raise ValueError(f"agent.{name} must be at least 1; got {getattr(self, name)}.")
        for name in ("learning_rate", "observation_clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"agent.{name} must be positive; got {getattr(self, name)}.")
        for name in ("discount", "polyak"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"agent.{name} must lie in [0, 1); got {getattr(self, name)}.")
        if self.target_range is not None and not self.target_range[0] < self.target_range[1]:
            raise ValueError(f"agent.target_range must be a low and a higher number; got {self.target_range}.")


class Normalizer(nn.Module):
    """(x - mean) / standard deviation of everything seen, the deviation at least 0.01, clipped."""

    total: Tensor
    square: Tensor
    count: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int, replicas: int, clip: float, smallest: float = 0.01) -> None:
        super().__init__()
        self.clip, self.smallest = clip, smallest
        # sums in float64: in float32 the variance of a coordinate near 1 would be lost after a million rows
        self.register_buffer("total", torch.zeros(replicas, 1, features, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(replicas, 1, features, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(replicas, 1, 1, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(replicas, 1, features))
        self.register_buffer("deviation", torch.ones(replicas, 1, features))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Takes in a batch [R, B, features]."""
        x = x.double()
        self.total += x.sum(1, keepdim=True)
        self.square += x.square().sum(1, keepdim=True)
        self.count += x.shape[1]
        mean = self.total / self.count
        variance = self.square / self.count - mean.square()
        self.mean.copy_(mean)
        self.deviation.copy_(variance.clamp(min=self.smallest**2).sqrt())

    def forward(self, x: Tensor) -> Tensor:
        """[R, B, features] -> the same shape."""
        return ((x - self.mean) / self.deviation).clamp(-self.clip, self.clip)


class Policy(nn.Module):
    """Observation and goal, normalised, to an action in [-1, 1]: what a trained agent needs to act."""

    def __init__(self, inputs: int, actions: int, config: AgentConfig, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.normalizer = Normalizer(inputs, len(generators), config.observation_clip)
        self.actor = MLP([inputs, *[config.width] * config.layers, actions], generators)

    def forward(self, inputs: Tensor) -> Tensor:
        """Observations with goals [R, B, D + G] -> actions [R, B, A] in [-1, 1]."""
        return torch.tanh(self.actor(self.normalizer(inputs)))


class Agent(nn.Module):
    """Actor, critic and their targets; `update` is one step of DDPG on a batch."""

    def __init__(self, inputs: int, actions: int, config: AgentConfig, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.config = config
        self.policy = Policy(inputs, actions, config, generators)
        sizes = [inputs + actions, *[config.width] * config.layers, 1]
        count = 2 if config.twin_critics else 1
        self.critics = nn.ModuleList(MLP(sizes, generators, config.critic_layer_norm) for _ in range(count))
        self.target_actor = copy.deepcopy(self.policy.actor).requires_grad_(False)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)

    def make_optimizers(self) -> tuple[torch.optim.Adam, torch.optim.Adam]:
        """Adam for the actor and for the critics, made once the agent is on its device."""
        config = FitConfig(learning_rate=self.config.learning_rate)
        return make_optimizer(self.policy.actor, config), make_optimizer(self.critics, config)

    def update(self, batch: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> tuple[Tensor, Tensor]:
        """Critic, actor, then targets; gives critic loss, actor loss and mean value [R, 3], and TD errors [R, B]."""
        config = self.config
        self.policy.normalizer.update(batch.inputs)
        now, then = self.policy.normalizer(batch.inputs), self.policy.normalizer(batch.next_inputs)
        with torch.no_grad():
            ahead = torch.cat([then, torch.tanh(self.target_actor(then))], -1)
            following = torch.stack([critic(ahead).squeeze(-1) for critic in self.target_critics]).amin(0)
            target = batch.reward + config.discount * batch.bootstrap * following  # [R, B]
            if config.target_range is not None:
                target = target.clamp(*config.target_range)

        taken = torch.cat([now, batch.action], -1)
        errors = [critic(taken).squeeze(-1) - target for critic in self.critics]
        weight = 1.0 if batch.weight is None else batch.weight
        critic_loss = torch.stack([(weight * error.square()).mean(-1) for error in errors]).sum(0)  # [R]
        _step(self.critics, critic_loss, optimizers[1])

        action = torch.tanh(self.policy.actor(now))
        value = self.critics[0](torch.cat([now, action], -1)).squeeze(-1)
        actor_loss = config.action_penalty * action.square().mean((1, 2)) - value.mean(-1)  # [R]
        _step(self.policy.actor, actor_loss, optimizers[0])

        with torch.no_grad():
            pairs = ((self.target_actor, self.policy.actor), (self.target_critics, self.critics))
            for old, new in pairs:
                torch._foreach_lerp_(list(old.parameters()), list(new.parameters()), 1 - config.polyak)
        return torch.stack([critic_loss, actor_loss, value.mean(-1)], -1).detach(), errors[0].detach()


def _step(module: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One optimiser step of this module's parameters alone; losses are summed, so replicas do not mix."""
    parameters = list(module.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss.sum(), parameters), strict=True):
        parameter.grad = gradient
    optimizer.step()


class TrainedPolicy:
    """What an agent has learned: call it with observations of its world, one or many, to get its actions.

    >>> policy = load_policy("runs/push")
    >>> action = policy(obs)  # the dictionary that the world gives
    """

    def __init__(
        self, policy: Policy, law: ActionLaw, sizes: Sequence[int], world: str, seed: int, seeds: Sequence[int]
    ) -> None:
        """`seed` is the one that acts, `seeds` are all that its file holds."""
        self.policy, self.law, self.sizes, self.env = policy, law, tuple(sizes), world
        self.seed, self.seeds = seed, tuple(seeds)

    @torch.no_grad()
    def __call__(self, obs: Mapping[str, Any]) -> NDArray[np.float32]:
        """`observation` [D] or [N, D] and `desired_goal` [G] or [N, G] -> action [A] or [N, A]."""
        parts = []
        for name, size in (("observation", self.sizes[0]), ("desired_goal", self.sizes[2])):
            if not isinstance(obs, Mapping) or name not in obs:
                raise ValueError(f"The policy acts on a dictionary with observation and desired_goal; got {type(obs)}.")
            value = np.asarray(obs[name], dtype=np.float32)
            if value.ndim not in (1, 2) or value.shape[-1] != size:
                raise ValueError(f"{name} has shape {list(value.shape)}; expected [{size}] or [N, {size}].")
            if not np.isfinite(value).all():
                raise ValueError(f"{name} holds NaN or infinite numbers; check what computed it.")
            parts.append(value)
        if parts[0].shape[:-1] != parts[1].shape[:-1]:
            shapes = [list(part.shape) for part in parts]
            raise ValueError(
                f"observation and desired_goal have shapes {shapes}; expected a goal for each observation."
            )
        inputs = torch.from_numpy(np.concatenate(parts, -1))
        batch = inputs.reshape(1, inputs.numel() // inputs.shape[-1], inputs.shape[-1]).to(
            self.policy.normalizer.mean.device
        )
        action = from_unit(self.policy(batch), self.law.bounds(batch.device))[0].cpu().numpy()
        return np.asarray(action.reshape(*inputs.shape[:-1], self.sizes[1]))


def save_agent(
    path: Path | str, agent: Agent, law: ActionLaw, sizes: Sequence[int], world: str, seeds: Sequence[int]
) -> None:
    """Policy and critics of all seeds as one safetensors file, from which `load_policy` takes one."""
    header = {
        "kind": "agent",
        "format": FORMAT_VERSION,
        "env": world,
        "sizes": list(sizes),
        "law": dataclasses.asdict(law),
        "agent": dataclasses.asdict(agent.config),
        "seeds": list(seeds),
    }
    tensors = {name: value for name, value in agent.state_dict().items() if not name.startswith("target")}
    save_tensors(path, tensors, header)


def load_policy(run: Path | str, seed: int | None = None, device: torch.device | str = "cpu") -> TrainedPolicy:
    """The trained policy of one seed (default: the first) from a run folder or its `model.safetensors`."""
    path = Path(run) / "model.safetensors" if Path(run).is_dir() else Path(run)
    if not path.is_file():
        raise FileNotFoundError(f"{run} holds no trained agent: there is no file {path}.")
    tensors, header = load_tensors(path)
    if header.get("kind") != "agent":
        raise ValueError(f"{path} holds {header.get('kind')!r}, not a trained agent.")
    if header.get("format") != FORMAT_VERSION:
        raise ValueError(f"{path} has format {header.get('format')}; this version reads format {FORMAT_VERSION}.")
    try:
        seeds, sizes, settings = header["seeds"], header["sizes"], dict(header["agent"])
        world = str(header["env"] if "env" in header else header["world"])  # as it was called before
        law = ActionLaw.from_plain(header["law"])
        if seed is not None and seed not in seeds:
            raise ValueError(f"{path} holds the seeds {seeds}; there is no seed {seed}.")
        if settings["target_range"] is not None:
            settings["target_range"] = tuple(settings["target_range"])
        generators = make_generators([0] * len(seeds))
        policy = Policy(sizes[0] + sizes[2], sizes[1], AgentConfig(**settings), generators)
        policy.load_state_dict(
            {name.removeprefix("policy."): value for name, value in tensors.items() if name.startswith("policy.")}
        )
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} does not hold the weights that its header describes: {error}") from error
    index = 0 if seed is None else seeds.index(seed)
    one = some_replicas(policy, slice(index, index + 1)).to(device)
    return TrainedPolicy(one, law, sizes, world, seeds[index], seeds)
