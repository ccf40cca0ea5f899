"""Decided returns: once the agent can no longer reach the object, the recorded rest of the episode shows the value."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from butfor.training.replay import Batch, ReplayBuffer, Reward

EVERY = 50  # episodes after which the reach is measured again
TRIMMED = 0.005  # share of the agent's places that is left out at each end: it hardly ever gets there
MARGIN = 0.05  # of the box's width, added at each side: the agent touches objects beside it


class DecidedReturns:
    """The values of transitions after which nothing that the agent does matters.

    The agent's reach is the box of the places where it has been. From a transition on after which the object stays
    outside of it, its way does not depend on the actions. So the return of the recorded steps is the value under every
    policy, for every goal, and nothing has to be estimated from the next state.
    """

    def __init__(self, replay: ReplayBuffer, reward: Reward, discount: float, agent: Sequence[int]) -> None:
        """`agent` are the columns of the observation with its position, in the order of the goal."""
        self.replay = replay
        self.reward = reward
        self.discount = discount
        self.agent = list(agent)
        # read by a recorded graph, refilled between episodes; at first nothing is out of reach
        self.low = torch.full((replay.replicas, 1, 1, len(self.agent)), -torch.inf, device=replay.score.device)
        self.high = -self.low

    def measure(self) -> None:
        """Find out where the agent has been."""
        valid = self.replay.valid()
        for replica in range(self.replay.replicas):
            places = self.replay.observation[replica, :, :-1, self.agent][valid[replica]].sort(0).values  # [N, G]
            ends = int(TRIMMED * len(places))
            low, high = places[ends], places[-1 - ends]
            self.low[replica] = low - MARGIN * (high - low)
            self.high[replica] = high + MARGIN * (high - low)

    def __call__(self, batch: Batch, goal: Tensor) -> Tensor:
        """The return of each transition for its goal [R, B, G] where it is decided, else NaN: [R, B]."""
        replay = self.replay
        places = replay.achieved_goal[replay.rows, batch.episode][..., 1:, :]  # [R, B, T, G]
        length = replay.length[replay.rows, batch.episode][..., None]
        step = torch.arange(replay.steps, device=length.device)
        counted = (step >= batch.time[..., None]) & (step < length)  # [R, B, T]
        outside = ((places < self.low) | (places > self.high)).any(-1)
        decided = (outside | ~counted).all(-1)
        result = recorded_return(self.reward(places, goal[..., None, :]), counted, batch.time, self.discount)
        return torch.where(decided & (batch.bootstrap > 0), result, torch.nan)

    def state(self) -> dict[str, Any]:
        return {"low": self.low.clone(), "high": self.high.clone()}

    def restore(self, state: dict[str, Any]) -> None:
        self.low.copy_(state["low"])
        self.high.copy_(state["high"])


def recorded_return(reward: Tensor, counted: Tensor, time: Tensor, discount: float) -> Tensor:
    """The discounted sum from step `time` [R, B] on of the `counted` rewards [R, B, T], the last one continuing."""
    step = torch.arange(reward.shape[-1], device=time.device)
    last = counted & (step == torch.where(counted, step, -1).amax(-1, keepdim=True))
    weight = discount ** (step - time[..., None]).clamp(min=0) * torch.where(last, 1 / (1 - discount), 1.0)
    return torch.where(counted, weight * reward, 0.0).sum(-1)
