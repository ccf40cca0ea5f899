"""The signal as an addition to the reward (section 6.1 of the paper)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from butfor.runs.config import check_choices, check_least, check_positive


@dataclass(frozen=True)
class BonusConfig:
    """How the score of a state enters its reward. Defaults are the paper's."""

    weight: float = 0.2
    """lambda"""
    cap: float = 2.0
    """scores are clipped to [0, cap]"""
    kind: Literal["additive", "flat", "multiplicative"] = "additive"
    """reward + weight x score; + weight where the score exceeds `threshold`; x (1 - weight x score). The paper tried
    the last two without success"""
    threshold: float = 0.5
    """of the flat bonus, in nats"""
    ceiling: float | None = 0.0
    """largest total reward, so that no state is better than a reached goal"""
    anneal_episodes: int | None = None
    """the weight falls linearly to zero over this many episodes (tried by the paper without success); None: constant"""

    def __post_init__(self) -> None:
        check_least(self, 0, "weight")
        check_positive(self, "cap")
        check_choices(self, "kind")
        if self.anneal_episodes is not None:
            check_least(self, 1, "anneal_episodes")


def bonus_weight(config: BonusConfig, episode: int) -> float:
    """Lambda after this many episodes."""
    if config.anneal_episodes is None:
        return config.weight
    return config.weight * max(0.0, 1 - episode / config.anneal_episodes)


def add_bonus(reward: Tensor, score: Tensor, weight: Tensor | float, config: BonusConfig) -> Tensor:
    """Rewards [...] with the bonus, `weight` (lambda) x score of the state before, or with one of its variants."""
    clipped = score.clamp(0, config.cap)
    if config.kind == "flat":
        total = reward + weight * (score > config.threshold)
    elif config.kind == "multiplicative":
        total = reward * (1 - weight * clipped).clamp(min=0)
    else:
        total = reward + weight * clipped
    return total if config.ceiling is None else total.clamp(max=config.ceiling)
