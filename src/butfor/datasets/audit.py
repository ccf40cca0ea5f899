"""Swapped transitions replayed in the simulator: which of them are impossible, and what is wrong with them."""

from typing import Any

import numpy as np

from butfor.datasets.augment import Swaps
from butfor.datasets.recording import Recording
from butfor.envs.several.edges import World, removal_effects
from butfor.envs.several.pucks import PucksWorld
from butfor.rollouts.episodes import Bool

FAULTS = ("overlap", "swapped entity", "another entity")
"""bodies overlap in the new state, and move apart; the swapped entity moves otherwise; only another one does"""


def world_of(env: str) -> World | None:
    """The simulator of an environment whose observations are its complete states; None for another one."""
    from butfor.envs import facts_of

    facts = facts_of(env) if env else None
    return PucksWorld() if facts is not None and facts.name == "pucks" else None


def find_faults(world: World, swaps: Swaps) -> dict[str, Bool]:
    """Which stretches [C] have each fault in any of their steps."""
    count, steps = swaps.action.shape[:2]
    states = swaps.observation[:, :-1].reshape(count * steps, -1)
    given = swaps.observation[:, 1:].reshape(count * steps, -1)
    entity = np.repeat(swaps.entity, steps)
    reached = world.outcome(world.step(states, swaps.action.reshape(count * steps, -1)))
    wrong = np.abs(reached - world.outcome(given)).max(-1) > world.tolerance  # [C T, E]
    overlap = np.zeros(len(states), bool)
    for place in np.unique(entity):
        here = entity == place
        overlap[here] = ~world.replaced(states[here], int(place), states[here])[1] & wrong[here].any(1)
    own = wrong[np.arange(len(wrong)), entity]
    faults = {"overlap": overlap, "swapped entity": own & ~overlap, "another entity": wrong.any(1) & ~own & ~overlap}
    return {name: fault.reshape(count, steps).any(1) for name, fault in faults.items()}


def audit_swaps(
    world: World, kept: Swaps, every: Swaps, recording: Recording, count: int, seed: int = 0
) -> dict[str, Any]:
    """Shares of impossible stretches, by fault, among those kept and among other ways to choose.

    Args:
        world: the simulator.
        kept: the stretches that were called possible.
        every: all candidates.
        recording: where they are from.
        count: the most stretches to replay of each choice.
        seed: of the choice of these.

    Returns:
        For each choice its number of stretches, how many were replayed, and the shares. `unfiltered` are all
        candidates. `contact` leaves out those whose entity is touched in the base or in the donor, as the simulator
        reports, and does not look at the new states.
    """
    obs, action, _ = recording.transitions()
    effects = removal_effects(world, np.asarray(obs, np.float32), action)
    touched = np.nan_to_num(effects).max(1) > world.tolerance  # [N, E]
    steps = np.arange(every.action.shape[1])
    free = np.ones(len(every), bool)
    for one in (every.base, every.donor):
        free &= ~touched[one[:, None] + steps, every.entity[:, None]].any(1)
    generator = np.random.default_rng(seed)
    found = {}
    for name, swaps in (("kept", kept), ("unfiltered", every), ("contact", every.take(free))):
        drawn = generator.permutation(len(swaps))[:count]
        chosen = swaps.take(np.isin(np.arange(len(swaps)), drawn))
        faults = find_faults(world, chosen) if len(chosen) else {fault: np.zeros(0, bool) for fault in FAULTS}
        any_fault = np.any(list(faults.values()), 0)
        found[name] = {
            "stretches": len(swaps),
            "replayed": len(chosen),
            "impossible": float(any_fault.mean()) if len(chosen) else 0.0,
            "faults": {fault: float(values.mean()) if len(chosen) else 0.0 for fault, values in faults.items()},
        }
    return found
