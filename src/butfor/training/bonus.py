"""The signal as an addition to the reward (section 6.1 of the paper)."""

from dataclasses import dataclass

from torch import Tensor

from butfor.runs.config import check_least, check_positive


@dataclass(frozen=True)
class BonusConfig:
    """How the score of a state enters its reward. Defaults are the paper's."""

    weight: float = 0.2
    """lambda"""
    cap: float = 2.0
    """scores are clipped to [0, cap]"""
    ceiling: float | None = 0.0
    """largest total reward, so that no state is better than a reached goal"""

    def __post_init__(self) -> None:
        check_least(self, 0, "weight")
        check_positive(self, "cap")


def add_bonus(reward: Tensor, score: Tensor, config: BonusConfig) -> Tensor:
    """Rewards [...] with the bonus: lambda x score of the state before."""
    total = reward + config.weight * score.clamp(0, config.cap)
    return total if config.ceiling is None else total.clamp(max=config.ceiling)
