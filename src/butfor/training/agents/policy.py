"""What a trained agent is: the policy network, its saved file, and the callable that users load."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from butfor.models.gpu import MOST_ROWS, has_kernels
from butfor.models.networks import MLP, Generators, copy_replicas, make_generators
from butfor.models.torch_state import pinned
from butfor.models.weights import build_network, reading_weights, save_weights, whole_number
from butfor.runs.config import check_between, check_least, check_positive, config_from
from butfor.spaces.actions import ActionLaw, from_unit

FORMAT_VERSION = 1


@dataclass(frozen=True)
class AgentConfig:
    """Actor and critic, whatever the algorithm. Defaults are the paper's for FetchPush and FetchPickAndPlace."""

    layers: int = 3
    """hidden layers of actor and critic"""
    width: int = 256
    """units of each hidden layer"""
    learning_rate: float = 1e-3
    """Adam's, for actor and critic"""
    discount: float = 0.98
    """factor on the value of the next state"""
    polyak: float = 0.95
    """share of a target network that stays at each update"""
    action_penalty: float = 1.0
    """weight of the mean squared action in the actor's loss"""
    target_range: tuple[float, float] | None = (-50.0, 0.0)
    """range that the critic's targets are clipped to"""
    observation_clip: float = 5.0
    """normalised inputs are clipped to plus and minus this"""
    batch_size: int = 256
    """transitions per update"""
    updates: int = 20
    """updates after each episode"""
    normalizer_batches: int = 200
    """batches that the input normaliser sees before the first update"""
    critic_layer_norm: bool = False
    """layer normalisation in the critic (not in the paper)"""
    actor_layer_norm: bool = False
    """layer normalisation in the actor (not in the paper)"""
    critics: int = 1
    """critics, of which the smallest estimate is the target (TD3 has two, SAC at least two)"""
    critics_in_target: int | None = None
    """critics drawn for each batch, whose smallest estimate is the target, as in REDQ (not with TD3); none: all"""
    caution_rate: float | None = None
    """DDPG: the target is the first critic's estimate plus a share of the way to the smallest one. This share, 0 at
    first and at most 1, rises by the rate for each episode of practice whose first state is valued 1 / (1 - discount)
    above what is reached, and falls where it is valued below. None: the smallest estimate (not in the paper)"""

    def __post_init__(self) -> None:
        check_least(self, 1, "layers", "width", "batch_size", "updates", "critics")
        check_least(self, 0, "action_penalty", "normalizer_batches")
        check_positive(self, "learning_rate", "observation_clip")
        check_between(self, 0, 1, "discount", "polyak", open_end=True)
        if self.target_range is not None and not self.target_range[0] < self.target_range[1]:
            raise ValueError(f"AgentConfig.target_range must be a low and a higher number; got {self.target_range}.")
        if self.caution_rate is not None:
            check_positive(self, "caution_rate")
            if self.critics < 2 or self.critics_in_target is not None:
                raise ValueError(
                    f"AgentConfig.caution_rate is {self.caution_rate}; it needs at least 2 critics and no "
                    f"critics_in_target. Got {self.critics} and {self.critics_in_target}."
                )
        if self.critics_in_target is not None and not 1 <= self.critics_in_target <= self.critics:
            drawn = self.critics_in_target
            raise ValueError(f"AgentConfig.critics_in_target is {drawn}; expected 1 to critics, {self.critics}.")


class Normalizer(nn.Module):
    """(x - mean) / standard deviation of everything seen, the deviation at least 0.01, clipped."""

    total: Tensor
    square: Tensor
    count: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int, replicas: int, clip: float) -> None:
        super().__init__()
        self.clip = clip
        # sums in float64: in float32 the variance of a coordinate near 1 would be lost after a million rows
        self.register_buffer("total", torch.zeros(replicas, 1, features, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(replicas, 1, features, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(replicas, 1, 1, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(replicas, 1, features))
        self.register_buffer("deviation", torch.ones(replicas, 1, features))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Include a batch [R, B, features]."""
        x = x.double()
        self.total += x.sum(1, keepdim=True)
        self.square += x.square().sum(1, keepdim=True)
        self.count += x.shape[1]
        mean = self.total / self.count
        variance = self.square / self.count - mean.square()
        self.mean.copy_(mean)
        self.deviation.copy_(variance.clamp(min=0.01**2).sqrt())

    @torch.no_grad()
    def observe(self, now: Tensor, then: Tensor) -> tuple[Tensor, Tensor]:
        """Include `now`, then normalise both batches [R, B, features]."""
        if has_kernels(now.device) and now.shape[1] <= MOST_ROWS:
            from butfor.models.gpu import inputs  # Triton is there only with a GPU

            sums, statistics = (self.total, self.square, self.count), (self.mean, self.deviation)
            return inputs.observe(now, then, sums, statistics, self.clip)
        self.update(now)
        return self(now), self(then)

    def forward(self, x: Tensor) -> Tensor:
        """[R, B, features] -> the same shape."""
        return ((x - self.mean) / self.deviation).clamp(-self.clip, self.clip)


class Policy(nn.Module):
    """Observation and goal, normalised, to an action in [-1, 1]: what a trained agent needs to act."""

    random = False  # whether it draws its actions while it explores

    def __init__(self, inputs: int, actions: int, config: AgentConfig, generators: Generators) -> None:
        super().__init__()
        self.normalizer = Normalizer(inputs, len(generators), config.observation_clip)
        self.actor = MLP([inputs, *[config.width] * config.layers, actions], generators, config.actor_layer_norm)

    def forward(self, inputs: Tensor) -> Tensor:
        """Observations with goals [R, B, D + G] -> actions [R, B, A] in [-1, 1]."""
        return torch.tanh(self.actor(self.normalizer(inputs)))

    def draw(self, inputs: Tensor, normal: Tensor) -> Tensor:
        """The action while exploring; a random policy draws it with standard normal numbers [R, B, A]."""
        action: Tensor = self(inputs)
        return action


@dataclass(frozen=True)
class TrainedPolicy:
    """The policy of one seed: call it with observations of its environment, one or many, to get its actions.

    >>> policy = load_policy("runs/push")
    >>> action = policy(obs)  # the dictionary that the environment gives
    """

    policy: Policy
    law: ActionLaw
    sizes: tuple[int, ...]  # columns of an observation, an action and a goal
    env: str  # name of the environment that it was trained on
    seed: int  # the seed that acts
    seeds: tuple[int, ...]  # all seeds that its file holds
    relative_goals: bool = False  # it also sees the difference between desired and achieved goal

    @pinned()
    @torch.no_grad()
    def __call__(self, obs: Mapping[str, Any]) -> NDArray[np.float32]:
        """Actions [A] or [N, A] for a dictionary with `observation` [D] or [N, D] and `desired_goal` [G] or [N, G]."""
        sizes = {"observation": self.sizes[0], "desired_goal": self.sizes[2]}
        if self.relative_goals:
            sizes["achieved_goal"] = self.sizes[2]
        if not isinstance(obs, Mapping) or not set(sizes) <= set(obs):
            raise ValueError(f"The policy needs a dictionary with {' and '.join(sizes)}; got {type(obs)}.")
        parts = {name: np.asarray(obs[name], dtype=np.float32) for name in sizes}
        for (name, part), size in zip(parts.items(), sizes.values(), strict=True):
            if part.ndim not in (1, 2) or part.shape[-1] != size or part.shape[:-1] != parts["observation"].shape[:-1]:
                raise ValueError(
                    f"{name} has shape {list(part.shape)}; expected [{size}] or [N, {size}], one goal per observation."
                )
            if not np.isfinite(part).all():
                raise ValueError(f"{name} contains NaN or infinite values.")
        if self.relative_goals:
            parts["achieved_goal"] = parts["desired_goal"] - parts["achieved_goal"]
        inputs = torch.from_numpy(np.concatenate([*parts.values()], -1))
        batch = inputs.reshape(1, -1, inputs.shape[-1]).to(self.policy.normalizer.mean.device)
        action = from_unit(self.policy(batch), self.law.bounds(batch.device))[0].cpu().numpy()
        return np.asarray(action.reshape(*inputs.shape[:-1], self.sizes[1]))


def save_agent(
    path: Path | str,
    tensors: Mapping[str, Tensor],
    config: AgentConfig,
    law: ActionLaw,
    sizes: Sequence[int],
    env: str,
    seeds: Sequence[int],
    relative_goals: bool = False,
) -> None:
    """Write the policies and critics of all seeds as one safetensors file, from which `load_policy` takes one."""
    header = {
        "env": env, "sizes": list(sizes), "law": asdict(law), "agent": asdict(config), "seeds": list(seeds),
        "relative_goals": relative_goals,
    }  # fmt: skip
    kept = {name: value for name, value in tensors.items() if not name.startswith("target")}
    save_weights(path, "agent", FORMAT_VERSION, kept, header)


@pinned()
def load_policy(run: Path | str, seed: int | None = None, device: torch.device | str = "cpu") -> TrainedPolicy:
    """Load the trained policy of one seed, a callable that gives actions for observations.

    Args:
        run: a run folder, or its `model.safetensors`
        seed: which seed acts; default: the first of the run
        device: where to compute
    """
    path = Path(run) / "model.safetensors" if Path(run).is_dir() else Path(run)
    with reading_weights(path, "agent", FORMAT_VERSION) as (tensors, header):
        seeds = header["seeds"]
        if not isinstance(seeds, list) or not all(type(one) is int for one in seeds) or len({*seeds}) != len(seeds) > 0:
            raise ValueError(f"seeds is {seeds!r:.100}; expected whole numbers, each once.")
        names = ("observation", "action", "goal")
        sizes = tuple(whole_number(dict(zip(names, header["sizes"], strict=True)), name) for name in names)
        env = str(header["env"] if "env" in header else header["world"])  # the name of this field before
        law = ActionLaw.from_plain(header["law"])
        if law.count or law.size != sizes[1]:
            raise ValueError(f"law has {law.size} action column(s); sizes are {sizes}.")
        if seed is not None and seed not in seeds:
            raise ValueError(f"There is no seed {seed}; the file has the seeds {seeds}.")
        shape = {name: header["agent"][name] for name in ("layers", "width", "observation_clip")}
        shape["actor_layer_norm"] = header["agent"].get("actor_layer_norm", False)  # files before had none
        config = config_from(AgentConfig, shape)
        relative = bool(header.get("relative_goals", False))
        prefix = "policy."
        weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        weights = {name: value for name, value in weights.items() if not name.startswith("deviation.")}  # of SAC
        if any(len(value) != len(seeds) for value in weights.values()):
            raise ValueError(f"its weights are not those of {len(seeds)} seeds.")
        inputs = sizes[0] + sizes[2] * (2 if relative else 1)
        generators = make_generators([0] * len(seeds))
        policy = build_network(lambda: Policy(inputs, sizes[1], config, generators), config.layers, weights)
        index = 0 if seed is None else seeds.index(seed)
        one = copy_replicas(policy, slice(index, index + 1)).to(device)
        return TrainedPolicy(one, law, sizes, env, seeds[index], tuple(seeds), relative)
