"""How an agent explores: random and noisy actions, actions chosen for their influence, and influence as reward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from butfor.spaces.actions import ActionLaw, Bounds


@dataclass(frozen=True)
class ExploreConfig:
    """Which actions an agent tries while it learns. Defaults are the paper's."""

    epsilon: float = 0.3
    """share of exploratory actions: random, or active where influence is used so"""
    noise: float = 0.2
    """standard deviation of the Gaussian noise on the policy's own actions, in units of half the action range"""
    active: float = 1.0
    """share of the exploratory actions that are chosen for their influence, where influence is used so"""
    candidates: int = 32
    """K, the actions compared for an active choice"""
    threshold: float = 0.0
    """where the candidates' mean influence is below it, in nats, the exploratory action is uniform instead"""
    choice: Literal["best", "ranked", "proportional"] = "best"
    """take the most influential candidate, or draw by 1 / rank or by score (the last two: negative results)"""

    def __post_init__(self) -> None:
        for name in ("epsilon", "active"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"explore.{name} is a share between 0 and 1; got {getattr(self, name)}.")
        for name in ("noise", "threshold"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"explore.{name} must not be negative; got {getattr(self, name)}.")
        if self.choice not in ("best", "ranked", "proportional"):
            raise ValueError(f"explore.choice is {self.choice!r}; it must be best, ranked or proportional.")
        if self.candidates < 2:
            raise ValueError(f"explore.candidates must be at least 2, to compare actions; got {self.candidates}.")


@dataclass(frozen=True)
class BonusConfig:
    """Influence as an addition to the reward. Defaults are the paper's."""

    weight: float = 0.2
    """lambda"""
    cap: float = 2.0
    """scores are clipped to it"""
    kind: Literal["additive", "flat", "multiplicative"] = "additive"
    """reward + weight x score; + weight where the score exceeds `threshold`; x (1 - weight x score) (the last two:
    negative results)"""
    threshold: float = 0.5
    """of the flat bonus, in nats"""
    ceiling: float | None = 0.0
    """the largest total reward, so that no state is better than a reached goal"""
    anneal_episodes: int | None = None
    """the weight falls linearly to zero over so many episodes (a negative result); None: it stays"""

    def __post_init__(self) -> None:
        if not self.weight >= 0 or not self.cap > 0:
            raise ValueError(f"bonus.weight must be at least 0 and bonus.cap above 0; got {self.weight}, {self.cap}.")
        if self.kind not in ("additive", "flat", "multiplicative"):
            raise ValueError(f"bonus.kind is {self.kind!r}; it must be additive, flat or multiplicative.")
        if self.anneal_episodes is not None and self.anneal_episodes < 1:
            raise ValueError(f"bonus.anneal_episodes must be at least 1 or None; got {self.anneal_episodes}.")


def bonus_weight(config: BonusConfig, episode: int) -> float:
    """lambda at an episode, annealed where asked for."""
    if config.anneal_episodes is None:
        return config.weight
    return config.weight * max(0.0, 1 - episode / config.anneal_episodes)


def add_bonus(reward: Tensor, score: Tensor, weight: Tensor | float, config: BonusConfig) -> Tensor:
    """r + lambda min(CAI, cap), at most the ceiling (section 6.1), or one of its variants: [...] -> [...]."""
    clipped = score.clamp(0, config.cap)
    if config.kind == "flat":
        total = reward + weight * (score > config.threshold)
    elif config.kind == "multiplicative":
        total = reward * (1 - weight * clipped).clamp(min=0)
    else:
        total = reward + weight * clipped
    return total if config.ceiling is None else total.clamp(max=config.ceiling)


def noise_size(law: ActionLaw, candidates: int) -> int:
    """Random numbers that one exploratory action takes; `candidates` is 0 where none is chosen actively."""
    return 1 + 2 * law.size + candidates * (law.size + 1)


def draw_noise(steps: int, worlds: int, law: ActionLaw, candidates: int, generator: torch.Generator) -> Tensor:
    """All random numbers of an episode: [T, W, noise_size]; those of the Gaussian noise are normal, others uniform."""
    device = generator.device
    noise = torch.rand(steps, worlds, noise_size(law, candidates), generator=generator, device=device)
    noise[..., 1 : 1 + law.size] = torch.randn(steps, worlds, law.size, generator=generator, device=device)
    return noise


def random_actions(steps: int, worlds: int, law: ActionLaw, generators: Sequence[torch.Generator]) -> Tensor:
    """Uniform actions of an episode, those that an agent which always explores would take: [T, R x W, A]."""
    noise = torch.stack([draw_noise(steps, worlds, law, 0, generator) for generator in generators], 1)  # [T, R, W, n]
    uniform = noise[..., 1 + law.size : 1 + 2 * law.size].flatten(1, 2)
    low, high = law.bounds(uniform.device)
    return low + (high - low) * uniform


def explore(
    action: Tensor,
    noise: Tensor,
    bounds: Bounds,
    config: ExploreConfig,
    score: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """The policy's actions [R, W, A], made exploratory by `noise` [R, W, n]: (actions, which were drawn uniformly).

    With probability epsilon the action is exploratory: chosen among candidates by `score` [R, W, K, A] -> [R, W, K] in
    the share `active`, else uniform. Otherwise it is the policy's, with Gaussian noise, clipped.
    """
    (low, high), size = bounds, action.shape[-1]
    lot, normal, uniform = noise[..., :1], noise[..., 1 : 1 + size], noise[..., 1 + size : 1 + 2 * size]
    noisy = (action + config.noise * (high - low) / 2 * normal).clamp(low, high)
    sampled = lot < config.epsilon
    result = torch.where(sampled, low + (high - low) * uniform, noisy)
    if score is not None:
        rest = noise[..., 1 + 2 * size :]
        count = rest.shape[-1] // (size + 1)
        candidates = low + (high - low) * rest[..., : count * size].unflatten(-1, (count, size))  # [R, W, K, A]
        scores = score(candidates)  # [R, W, K]
        chosen = choose(scores, candidates, rest[..., count * size :], config.choice)
        active = lot < config.epsilon * config.active
        if config.threshold:
            active = active & (scores.mean(-1, keepdim=True) >= config.threshold)
        result, sampled = torch.where(active, chosen, result), sampled & ~active
    return result, sampled[..., 0]


def choose(score: Tensor, candidates: Tensor, noise: Tensor, choice: str) -> Tensor:
    """One candidate [R, W, A] by its score [R, W, K]: the best with random ties (equation 5), or drawn by the score."""
    if choice == "best":
        index = torch.where(score == score.amax(-1, keepdim=True), noise, -1.0).argmax(-1)
    else:
        order = score.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)  # 0 for the highest
        share = 1 / (order + 1) if choice == "ranked" else score.clamp(min=0) + 1e-12
        # the exponential race: the smallest of independent E / share is drawn in proportion to share
        index = (-noise.clamp(1e-12, 1 - 1e-7).log() / share).argmin(-1)
    return candidates.gather(2, index[..., None, None].expand(-1, -1, 1, candidates.shape[-1])).squeeze(2)
