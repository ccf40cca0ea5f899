"""Replay buffers filled with random episodes, and arrays of transitions in which actions move objects."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.spaces.actions import ActionLaw
from butfor.training.replay import ReplayBuffer

Numbers = NDArray[np.float64]
STEPS, OBS, ACTION = 5, 4, 2
LAW = ActionLaw((-1.0, 0.0), (1.0, 3.0))
ENTITY, SCALE = (1, 3), (2.0, 50.0)


def make_replay(
    seeds: list[int], count: int, capacity: int = 50, steps: int = STEPS, sampled: float = 0.5
) -> ReplayBuffer:
    """`count` random episodes of unequal lengths for each seed; the action moves the object."""
    replay = ReplayBuffer(len(seeds), capacity, steps, (OBS, ACTION, 1), "cpu")
    generators = [np.random.default_rng(seed) for seed in seeds]
    for _ in range(count):
        parts: dict[str, list[Any]] = {}
        for generator in generators:
            action = generator.uniform(LAW.low, LAW.high, (1, steps, ACTION))
            obs = generator.standard_normal((1, steps + 1, OBS))
            obs[:, 1:, 1] = obs[:, :-1, 1] + action[..., 0]
            one = {
                "observation": obs,
                "action": action,
                "achieved_goal": obs[..., :1],
                "desired_goal": obs[..., :1],
                "sampled": generator.random((1, steps)) < sampled,
                "length": generator.integers(1, steps + 1, 1),
                "terminated": np.zeros(1, bool),
            }
            for name, value in one.items():
                parts.setdefault(name, []).append(value)
        replay.store({name: np.stack(values) for name, values in parts.items()})
    return replay


def expected_shares(replay: ReplayBuffer, newest: int, share: float | None, only_sampled: bool) -> Tensor:
    """The chance of each step [R, E, T], by a loop; `share` of them from the newest episodes, None: all alike."""
    chances = torch.zeros(replay.score.shape, dtype=torch.float64)
    recent = {(replay.stored - 1 - index) % replay.capacity for index in range(newest)}
    for replica in range(replay.replicas):
        steps: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        for slot in range(replay.capacity):
            for time in range(int(replay.length[replica, slot])):
                if not only_sampled or replay.sampled[replica, slot, time]:
                    steps[slot in recent].append((slot, time))
        total = len(steps[True]) + len(steps[False])
        for new, own in steps.items():
            for slot, time in own:
                alike = share is None or not steps[not new]
                part = 1 / total if alike else (share if new else 1 - share) / len(own)  # type: ignore[operator]
                chances[replica, slot, time] = part
    return chances


def make_transitions(rows: int, seed: int) -> tuple[Numbers, Numbers, Numbers]:
    """obs, action, next_obs; columns: cube, ball, clock, and an unrelated one. Actions push the cube and the ball."""
    random = np.random.default_rng(seed)
    obs, action = random.uniform(-1, 1, (rows, 4)), random.uniform(-1, 1, (rows, 2))
    next_obs = obs + 0.002 * random.normal(size=obs.shape)
    next_obs[:, 0] += 0.05 * action[:, 0]
    next_obs[:, 1] += 5.0 * action[:, 1]
    next_obs[:, 2] += 1.0
    return obs, action, next_obs
