"""Exact labels of influence between entities: what happens without a source, with the source elsewhere, or after
another action.

All functions fork saved states in a `World`, step the alternatives, and compare what became of each entity. An effect
has a size, in the units of `World.outcome`; it counts as influence from a tolerance on.

| question | function |
|---|---|
| Would the target's next state be the same without the source? | `removal_effects` |
| In which share of other places of the source would it be another? | `moved_effects` |
| Does the action matter for the target within k steps? | `action_effects` |
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Actions = npt.NDArray[np.float32]


class World(Protocol):
    """A simulator that steps any number of saved states at once, to the bit as the environment does."""

    entities: tuple[str, ...]
    action_size: int
    tolerance: float  # the smallest effect that counts as influence, in the units of `outcome`
    goal_radius: float  # of the environment's reward

    def step(self, states: npt.NDArray[Any], actions: Actions, absent: int | None = None) -> npt.NDArray[Any]:
        """Step states [n, S] with actions [n, A]; the entity `absent` touches nothing."""

    def outcome(self, states: npt.NDArray[Any]) -> Floats:
        """What counts as an effect on each entity: [n, S] -> [n, E, m]."""

    def observation(self, states: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The environment's observation [n, D] of states [n, S] that were stepped to."""

    def contacts(self, states: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which entities touch each other in states [n, S]: [n, E, E]."""

    def replaced(
        self, states: npt.NDArray[Any], source: int, others: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """States [n, S] with the source as in other states [n, S], and where that is possible [n]."""


def removal_effects(world: World, states: npt.NDArray[Any], actions: npt.ArrayLike) -> Floats:
    """The effect of each entity's presence on each other one in the step that is taken.

    Args:
        world: the simulator.
        states: saved states [n, S].
        actions: the actions taken [n, A].

    Returns:
        The largest difference of the target's outcome with and without the source, [n, source, target]; NaN on the
        diagonal.
    """
    given = np.asarray(actions, dtype=np.float32)
    count = len(world.entities)
    factual = world.outcome(world.step(states, given))
    effects = np.full((len(states), count, count), np.nan)
    for source in range(count):
        without = world.outcome(world.step(states, given, absent=source))
        effects[:, source] = np.abs(without - factual).max(-1)
        effects[:, source, source] = np.nan
    return effects


def moved_effects(
    world: World,
    states: npt.NDArray[Any],
    actions: npt.ArrayLike,
    reference: npt.NDArray[Any],
    draws: int = 16,
    seed: int = 0,
) -> Floats:
    """The share of other states of each source that would have changed each target's next state.

    Args:
        world: the simulator.
        states: saved states [n, S].
        actions: the actions taken [n, A].
        reference: saved states [m, S], from which other states of a source are drawn.
        draws: other states tried for each state; those in which bodies would overlap are left out.
        seed: of the draws.

    Returns:
        Shares [n, source, target]; NaN on the diagonal, and where no drawn state was possible.
    """
    given = np.asarray(actions, dtype=np.float32)
    generator = np.random.default_rng(seed)
    count = len(world.entities)
    factual = world.outcome(world.step(states, given))
    changed = np.zeros((len(states), count, count))
    tried = np.zeros((len(states), count, 1))
    for source, _ in product(range(count), range(draws)):
        others = reference[generator.integers(len(reference), size=len(states))]
        moved, possible = world.replaced(states, source, others)
        effect = np.abs(world.outcome(world.step(moved, given)) - factual).max(-1)
        changed[:, source] += (effect > world.tolerance) & possible[:, None]
        tried[:, source, 0] += possible
    share = np.full_like(changed, np.nan)
    np.divide(changed, tried, out=share, where=tried > 0)
    share[:, np.arange(count), np.arange(count)] = np.nan
    return share


def action_effects(
    world: World,
    states: npt.NDArray[Any],
    horizons: Sequence[int] = (1,),
    continuation: npt.ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """The effect of the action now on each entity within k steps, for each horizon k.

    Every corner of the action space and the action 0 are tried. After the first step all alternatives continue with
    the same actions, so that only the first one differs.

    Args:
        world: the simulator.
        states: saved states [n, S].
        horizons: numbers of steps, in rising order.
        continuation: how the agent goes on, [n, C, max(horizons) - 1, A]: C sequences of actions, such as those that
            it took (C = 1) or random ones. Needed for horizons beyond 1.

    Returns:
        The size [n, H, E], averaged over the C continuations: the largest range over the alternatives, max - min, of
        any coordinate of the entity's outcome at any step up to the horizon. And the share [n, H, E] of the
        continuations in which it exceeds the tolerance.
    """
    steps = max(horizons)
    following = np.zeros((len(states), 1, 0, world.action_size)) if continuation is None else np.asarray(continuation)
    if following.ndim != 4 or following.shape[0] != len(states) or following.shape[2] < steps - 1:
        raise ValueError(
            f"continuation has shape {following.shape}; expected [{len(states)}, C, {steps - 1}, {world.action_size}], "
            f"the actions after the first one up to the horizon {steps}."
        )
    tried = try_actions(world.action_size)
    alternatives = len(tried)
    sequences = following.shape[1]
    copies = alternatives * sequences
    now = np.repeat(states, copies, axis=0)  # state, then continuation, then alternative
    action = np.tile(tried, (len(states) * sequences, 1))
    largest = np.zeros((len(states), sequences, len(world.entities)))
    size = np.empty((len(states), len(horizons), len(world.entities)))
    share = np.empty_like(size)
    for step in range(1, steps + 1):
        now = world.step(now, action)
        found = world.outcome(now).reshape(len(states), sequences, alternatives, len(world.entities), -1)
        spread = np.fmax.reduce(found, axis=2) - np.fmin.reduce(found, axis=2)  # they pass over NaN
        largest = np.fmax(largest, np.nan_to_num(spread.max(-1)))
        for place in np.flatnonzero(np.asarray(horizons) == step):
            size[:, place] = largest.mean(1)
            share[:, place] = (largest > world.tolerance).mean(1)
        if step < steps:
            action = np.repeat(following[:, :, step - 1].reshape(-1, world.action_size), alternatives, axis=0)
            action = action.astype(np.float32)
    return size, share


def try_actions(size: int) -> Actions:
    """The corners of {-1, 1}^size and the action 0: [2^size + 1, size]."""
    return np.array([*product((-1.0, 1.0), repeat=size), (0.0,) * size], dtype=np.float32)
