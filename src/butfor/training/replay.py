"""The replay buffer of R replicas on the training device: episodes as tensors, drawn by weights, hindsight goals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from butfor.models.gpu import running_sum
from butfor.runs.config import check_between, check_choices, check_least

if TYPE_CHECKING:
    from butfor.training.swapping import Swapper

Reward = Callable[[Tensor, Tensor], Tensor]
"""Achieved and desired goals [..., G] -> rewards [...]."""


@dataclass(frozen=True)
class ReplayConfig:
    """The replay buffer, and how goals are chosen in hindsight."""

    capacity: int = 10_000
    """episodes kept of each replica; the oldest are overwritten first"""
    hindsight: float = 0.8
    """share of samples whose goal is replaced by one achieved later in the same episode; 0: none"""
    other_goals: float = 0.0
    """share of the replaced goals that are the desired goal of another episode instead (not in the paper)"""
    other_goals_by: Literal["weight", "uniform"] = "weight"
    """draw those episodes like the transitions, by their weight, or uniformly"""
    influenced_goals: float | None = None
    """take goals only from after the next step whose score exceeds this, in nats; without such a step the goal stays as
    it was (not in the paper)"""
    relative_goals: bool = False
    """actor and critic also see the difference between desired and achieved goal (not in the paper)"""

    mirror: bool = False
    """each mirror of the environment reflects half of the samples (not in the paper)"""
    shift: float = 0.0
    """move each sample along the normal of each mirror by up to this, in units of positions (not in the paper)"""

    def __post_init__(self) -> None:
        check_least(self, 1, "capacity")
        check_least(self, 0, "shift")
        check_between(self, 0, 1, "hindsight", "other_goals")
        check_choices(self, "other_goals_by")
        if not self.hindsight and (self.other_goals or self.influenced_goals is not None):
            raise ValueError(
                "ReplayConfig.hindsight is 0, so no goal is replaced; other_goals and influenced_goals need it."
            )

    @property
    def noise(self) -> int:
        """Uniform numbers per sample: episode, time, whether and which hindsight goal, the episode of another goal."""
        return NOISE + (2 if self.other_goals else 0)


@dataclass
class Batch:
    """What the agent learns from: B transitions of each of R replicas."""

    inputs: Tensor  # [R, B, D + G]: observation and goal
    action: Tensor  # [R, B, A]
    next_inputs: Tensor  # [R, B, D + G]
    reward: Tensor  # [R, B]
    bootstrap: Tensor  # [R, B]: 0 where the episode terminated, else 1
    score: Tensor  # [R, B]: of the state that the transition starts from
    episode: Tensor  # [R, B]: where it came from
    time: Tensor  # [R, B]
    weight: Tensor | None = None  # [R, B]: of its squared error
    noise: Tensor | None = None  # [R, B, n]: uniform random numbers for the agent
    swapped: Tensor | None = None  # [R, B]: the goal's object is of another episode: nobody took this action for it

    def split(self, size: int) -> "list[Batch]":
        """Batches of at most `size` transitions a replica."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        parts = {name: value.split(size, 1) for name, value in values.items() if value is not None}
        return [Batch(**{name: part[i] for name, part in parts.items()}) for i in range(len(parts["reward"]))]


class ReplayBuffer:
    """A ring of episodes of any length; slot i of every replica is filled at the same time."""

    def __init__(
        self,
        replicas: int,
        capacity: int,
        steps: int,
        sizes: tuple[int, int, int],
        device: torch.device | str,
        labels: bool = False,
    ) -> None:
        """Allocate it; `sizes` are columns of an observation, an action and a goal, `labels` stores a label."""
        obs, action, goal = sizes
        self.replicas = replicas
        self.capacity = capacity
        self.steps = steps
        self.stored = 0  # episodes of each replica so far, including those that were overwritten

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(replicas, capacity, *shape, dtype=dtype, device=device)

        self.observation = zeros(steps + 1, obs)
        self.action = zeros(steps, action)
        self.achieved_goal = zeros(steps + 1, goal)
        self.desired_goal = zeros(steps + 1, goal)
        self.score = zeros(steps)  # of the signal
        self.sampled = zeros(steps, dtype=torch.bool)  # the action was drawn from a known law with full support
        self.length = zeros(dtype=torch.int64)  # 0: empty
        self.terminated = zeros(dtype=torch.bool)
        self.label = zeros(steps, dtype=torch.bool) if labels else None  # of a signal that reads one
        self.rows = torch.arange(replicas, device=device)[:, None]  # picks each replica's own when indexing

    @property
    def fields(self) -> list[str]:
        """Names of the tensors [R, E, ...] that make up the buffer."""
        names = ["observation", "action", "achieved_goal", "desired_goal", "score", "sampled", "length", "terminated"]
        return names if self.label is None else [*names, "label"]

    @property
    def size(self) -> int:
        """Episodes that each replica holds."""
        return min(self.stored, self.capacity)

    def slots(self, count: int) -> Tensor:
        """Slots of the newest `count` episodes, the oldest first."""
        first = self.stored - min(count, self.size)
        return torch.arange(first, self.stored, device=self.length.device) % self.capacity

    def store(self, episodes: Mapping[str, np.ndarray[Any, Any]]) -> Tensor:
        """Store W episodes of each replica, arrays [R, W, ...] by field name; return their slots [W]."""
        count = episodes["length"].shape[1]
        slots = torch.arange(self.stored, self.stored + count, device=self.length.device) % self.capacity
        for name, value in episodes.items():
            target = getattr(self, name)
            target[:, slots] = torch.as_tensor(value, dtype=target.dtype).to(target.device, non_blocking=True)
        self.score[:, slots] = 0
        self.stored += count
        return slots

    def valid(self) -> Tensor:
        """Which steps are neither padding nor empty: [R, E, T]."""
        return valid_steps(self.length, self.steps)

    def favour_newest(self, weight: Tensor, count: int, share: float) -> Tensor:
        """Scale weights [R, E, T] so that the newest `count` episodes have this share (or all)."""
        newest = self.slots(count)
        if len(newest) == self.size:
            return weight
        recent = torch.zeros(self.capacity, device=weight.device).index_fill(0, newest, 1.0)[:, None]  # [E, 1]
        new, old = weight * recent, weight * (1 - recent)
        new_total, old_total = (part.sum((1, 2), keepdim=True).clamp(min=1) for part in (new, old))
        return new * (share / new_total) + old * ((1 - share) / old_total)

    def state(self) -> dict[str, Any]:
        """The content without the empty slots, for a checkpoint."""
        return {"stored": self.stored} | {name: getattr(self, name)[:, : self.size].clone() for name in self.fields}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned; the capacity may have grown unless the ring was full."""
        size = state["length"].shape[1]
        if size > self.capacity or (state["stored"] > size and size != self.capacity):
            raise ValueError(
                f"A full replay buffer of {size} episodes cannot be resumed with capacity {self.capacity}."
            )
        self.stored = state["stored"]
        for name in self.fields:
            getattr(self, name)[:, :size] = state[name].to(self.length.device)


def valid_steps(length: Tensor, steps: int) -> Tensor:
    """Which of `steps` steps are before the end of their episode: length [R, E] -> [R, E, T]."""
    return torch.arange(steps, device=length.device) < length[..., None]


class Weights:
    """How likely each stored step is to be drawn: one weight per step, and their running sum over episodes."""

    def __init__(self, replay: ReplayBuffer, even: bool) -> None:
        """`even`: all steps of an episode have the same weight, which saves a running sum over them."""
        self.replay = replay
        self.even = even
        self.step = torch.zeros_like(replay.score)  # [R, E, T]
        self.running = torch.zeros(self.step.shape[:2], dtype=torch.float64, device=self.step.device)  # [R, E]

    def fill(self, weight: Tensor) -> None:
        """Set all weights [R, E, T] in place: recorded graphs read these tensors."""
        self.step.copy_(weight)
        self.running.copy_(running_sum(weight.sum(-1, dtype=torch.float64)))

    def draw(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draw steps in proportion to their weight: uniform numbers [R, B, 2] -> episode and time [R, B].

        The first number picks the episode, the second the step within it; a step of weight zero is never picked.
        """
        at = (self.replay.rows, self.draw_episode(noise[..., 0]))
        if self.even:
            return at[1], (noise[..., 1] * self.replay.length[at]).long()
        return at[1], pick(running_sum(self.step[at].double()), noise[..., 1].double())

    def draw_episode(self, noise: Tensor) -> Tensor:
        """Draw episodes in proportion to their weight: uniform numbers [R, B] -> [R, B]."""
        first = noise.double().contiguous() * self.running[:, -1:]
        return torch.searchsorted(self.running, first, right=True).clamp(max=self.running.shape[1] - 1)


def pick(running: Tensor, noise: Tensor) -> Tensor:
    """The index whose share of a running sum [..., T] a uniform number [...] falls into."""
    return (running <= noise[..., None] * running[..., -1:]).sum(-1).clamp(max=running.shape[-1] - 1)


NOISE = 4  # uniform numbers per sample: episode, time, whether and which hindsight goal


def sample(
    replay: ReplayBuffer,
    weights: Weights,
    noise: Tensor,
    reward: Reward,
    config: ReplayConfig,
    swapper: "Swapper | None" = None,
) -> Batch:
    """Draw transitions by weights, replace goals by later achieved ones, recompute rewards: noise [R, B, 4 or more].

    A `swapper` replaces some of them by transitions with an object of another episode; its numbers are the last two of
    the noise.
    """
    episode, time = weights.draw(noise[..., :2])
    about, about_time = episode, time  # where the goal's object is
    swaps = None
    if swapper is not None:
        swaps = swapper.draw(noise[..., -2:], episode, time)
        episode, time = swaps.base
        about, about_time = (torch.where(swaps.of_goal, *both) for both in zip(swaps.donor, swaps.base, strict=True))
    at = (replay.rows, episode)
    goal_at = (replay.rows, about)
    length = replay.length[goal_at]  # [R, B]
    first = about_time
    relabelled = noise[..., 2] < config.hindsight  # [R, B]
    if config.influenced_goals is not None:
        first = next_influenced(replay.score[goal_at], about_time, length, config.influenced_goals)
        relabelled = relabelled & (first < length)
    later = first + 1 + (noise[..., 3] * (length - first)).long().clamp(max=replay.steps)  # in first + 1 .. length
    later = torch.minimum(later, length)
    desired = replay.desired_goal[*goal_at, about_time]
    goal = torch.where(relabelled[..., None], replay.achieved_goal[*goal_at, later], desired)
    if config.other_goals:
        if config.other_goals_by == "weight":
            other = weights.draw_episode(noise[..., NOISE])
        else:
            stored = (replay.length > 0).sum(1, keepdim=True)  # a tensor: a recorded graph reads it at each replay
            other = torch.minimum((noise[..., NOISE] * stored).long(), stored - 1)
        other_goal = replay.desired_goal[replay.rows, other, torch.zeros_like(other)]
        goal = torch.where((noise[..., 2] < config.hindsight * config.other_goals)[..., None], other_goal, goal)

    def inputs(ahead: int) -> Tensor:
        """What actor and critic see now, or one step ahead: [R, B, D + G (+ G)]."""
        seen = replay.observation[*at, time + ahead]
        if swapper is not None and swaps is not None:
            donor = replay.observation[replay.rows, swaps.donor[0], swaps.donor[1] + ahead]
            seen = torch.where(swaps.swapped[..., None], swapper.mix(seen, donor, swaps.columns), seen)
        way = [goal - replay.achieved_goal[*goal_at, about_time + ahead]] if config.relative_goals else []
        return torch.cat([seen, goal, *way], -1)

    ended = replay.terminated[at] & (time + 1 == replay.length[at])
    return Batch(
        inputs=inputs(0),
        action=replay.action[*at, time],
        next_inputs=inputs(1),
        reward=reward(replay.achieved_goal[*goal_at, about_time + 1], goal),
        bootstrap=(~ended).float(),
        score=replay.score[*at, time] if swaps is None else replay.score[*at, time] * ~swaps.of_goal,
        episode=episode,
        time=time,
        swapped=None if swaps is None else swaps.of_goal,
    )


def next_influenced(score: Tensor, time: Tensor, length: Tensor, threshold: float) -> Tensor:
    """The first step from `time` on with a score [R, B, T] above the threshold, else `length`: [R, B]."""
    step = torch.arange(score.shape[-1], device=score.device)
    found = (score > threshold) & (step >= time[..., None])
    return torch.minimum(torch.where(found, step, score.shape[-1]).amin(-1), length)
