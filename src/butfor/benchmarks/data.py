"""Training transitions and test states with exact labels, of any task of the benchmark."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from butfor.benchmarks.environments import Observation, Simulation, Task

Flags = NDArray[np.bool_]
RANDOM_SHARE = 0.3  # of the steps of a scripted episode
HELD_SHARE = 0.3  # of the random actions: repeated, so that random episodes cover more space
LONGEST_HOLD = 8  # steps
LABELLED_SHARE = 0.5  # of the steps of an episode: neighbouring states mostly have the same label
MOST_CORNERS = 16


@dataclass(frozen=True)
class Data:
    """N transitions in whole episodes."""

    obs: Observation  # [N, D]
    action: NDArray[Any]  # [N, A] float32, or [N] int64 for discrete actions
    next_obs: Observation  # [N, D]
    episode: NDArray[np.int64]  # [N]
    sampled: Flags  # [N] the action was drawn uniformly, whatever the state; a repeated action was not


@dataclass(frozen=True)
class Labelled:
    """N test states, with the transition that followed each."""

    obs: Observation  # [N, D]
    action: NDArray[Any]
    next_obs: Observation
    episode: NDArray[np.int64]
    sampled: Flags
    label: Flags  # [N] effect > tolerance of the task
    effect: NDArray[np.float64]  # [N] largest range, over the actions tried, of a coordinate of the object's next state
    moved: NDArray[np.float64]  # [N] distance by which the object moved in the step taken
    contact: Flags | None  # [N] the agent touched the object in this state or after the step taken


class Behaviour:
    """Chooses actions: even episodes are random, odd ones scripted with random actions mixed in."""

    def __init__(self, simulation: Simulation, number: int, rng: np.random.Generator) -> None:
        self.simulation = simulation
        self.scripted = number % 2 == 1
        self.rng = rng
        self.held: Any = None
        self.left = 0  # steps for which the held action is still repeated

    def act(self) -> tuple[Any, bool]:
        """Return the next action and whether it is a fresh uniform draw."""
        if self.left > 0:
            self.left -= 1
            return self.held, False
        if self.scripted and self.rng.random() >= RANDOM_SHARE:
            return self.simulation.scripted(self.rng), False
        self.held = uniform_action(self.simulation.action_space, self.rng)
        if not self.scripted and self.rng.random() < HELD_SHARE:
            self.left = int(self.rng.integers(1, LONGEST_HOLD))
        return self.held, True


def uniform_action(space: Any, rng: np.random.Generator) -> Any:
    """Draw from a Box or Discrete space; the space's own generator is left alone."""
    if isinstance(space, spaces.Discrete):
        return int(rng.integers(space.n))
    return rng.uniform(space.low, space.high).astype(np.float32)


def alternatives(space: Any) -> list[Any]:
    """Return the actions that a state is forked over.

    All actions of a discrete space; the corners of a box, or, where these are more than 16, a fixed random set of 16
    and the two extremes along each axis.
    """
    if isinstance(space, spaces.Discrete):
        return list(range(int(space.n)))
    low, high = space.low, space.high
    size = len(low)
    if 2**size <= MOST_CORNERS:
        upper = np.array(list(product((False, True), repeat=size)))
        return list(np.where(upper, high, low))
    upper = np.random.default_rng(0).random((MOST_CORNERS, size)) < 0.5
    axes = np.tile((low + high) / 2, (2 * size, 1))
    axes[np.arange(size), np.arange(size)] = low
    axes[size + np.arange(size), np.arange(size)] = high
    return [action.astype(np.float32) for action in (*np.where(upper, high, low), *axes)]


def collect(task: Task, transitions: int, seed: int) -> Data:
    """Play whole episodes, half of them random, half scripted, until there are enough transitions.

    Args:
        task: one of `TASKS`.
        transitions: how many to return; the last episode may be cut.
        seed: of the starts and of the actions; the same seed gives the same data.

    Returns:
        The transitions, in the order in which they were played.
    """
    simulation = task.open()
    rng = np.random.default_rng([seed, 0])
    rows: list[tuple[Any, ...]] = []
    number = 0
    while len(rows) < transitions:
        behaviour = Behaviour(simulation, number, rng)
        obs = simulation.reset(int(rng.integers(2**31)))
        for _ in range(simulation.horizon):
            action, sampled = behaviour.act()
            next_obs = simulation.step(action)
            rows.append((obs, action, next_obs, number, sampled))
            obs = next_obs
        number += 1
    return Data(*map(np.array, zip(*rows[:transitions], strict=True)))


def label(task: Task, states: int, seed: int) -> Labelled:
    """Play episodes as `collect` does and find out, by forking, in which states the action matters to the object.

    About half of the states of an episode are taken, at random. Each is saved, every action of `alternatives` and the
    action taken is tried for one step, and the simulation continues from the saved state.

    Args:
        task: one of `TASKS`.
        states: how many to label.
        seed: as in `collect`; use another one than for the training data.

    Returns:
        The states with labels, effects, and what the detectors `moved` and `contact` need.
    """
    simulation = task.open()
    rng = np.random.default_rng([seed, 1])
    actions = alternatives(simulation.action_space)
    rows: list[tuple[Any, ...]] = []
    number = 0
    while len(rows) < states:
        behaviour = Behaviour(simulation, number, rng)
        obs = simulation.reset(int(rng.integers(2**31)))
        for _ in range(simulation.horizon):
            action, sampled = behaviour.act()
            chosen = rng.random() < LABELLED_SHARE
            outcomes = fork(simulation, actions) if chosen else []
            before, touched = simulation.object_state(), simulation.contact()
            next_obs = simulation.step(action)
            after, touches = simulation.object_state(), simulation.contact()
            if chosen:
                effect = np.ptp([*outcomes, after], axis=0).max()
                moved = np.linalg.norm(after - before)
                rows.append((obs, action, next_obs, number, sampled, effect, moved, touched or touches))
            obs = next_obs
        number += 1
    columns = map(np.array, zip(*rows[:states], strict=True))
    obs, action, next_obs, episode, was_sampled, effects, ways, contact = columns
    known = None if contact[0] is None else contact
    return Labelled(obs, action, next_obs, episode, was_sampled, effects > task.tolerance, effects, ways, known)


def fork(simulation: Simulation, actions: list[Any]) -> list[NDArray[np.float64]]:
    """Try each action for one step from the current state, which is restored; return the object's next states."""
    saved = simulation.save()
    outcomes = []
    for action in actions:
        simulation.step(action)
        outcomes.append(simulation.object_state())
        simulation.restore(saved)
    return outcomes
