"""Swapped transitions replayed in the simulator: which of them are impossible, and what is wrong with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from butfor.datasets.recording import Recording
from butfor.envs.several import World, make_world, removal_effects
from butfor.models.attention import AttentionConfig, AttentionModel
from butfor.models.interactions import Table
from butfor.models.networks import make_generators
from butfor.models.tables import Units
from butfor.rollouts.episodes import Bool, Episodes
from butfor.rollouts.play import Stream, episode_seed
from butfor.rollouts.swaps import Swaps
from butfor.spaces.actions import ActionLaw

ATTENTION = AttentionConfig(embedding=32, feedforward=32, heads=2, layers=2, normalize_input=True)
UPDATES = 1500  # of each Transformer
BATCH = 256
TOGETHER = 50  # episodes played again at once
OBSERVED = 10.0  # times the world's tolerance, from which on a column of an observation is wrong
FAULTS = ("overlap", "swapped entity", "another entity", "columns")
"""bodies may overlap in the new state, and move otherwise; else the swapped entity moves otherwise, or another one;
else what is written in any column is not what the simulator observes, such as a difference of two positions"""
Finish = Callable[[Table], Table]
"""Swapped observations [C, T + 1, D] as they are written."""


def world_of(env: str) -> World | None:
    """The simulator of a built-in environment whose entities are known and whose states are saved; None for another."""
    from butfor.envs import facts_of

    facts = facts_of(env) if env else None
    return make_world(facts.name) if facts is not None and facts.bodies and (facts.several or facts.forks) else None


def recorded_states(path: Path, recording: Recording) -> Table:
    """The simulator's state [S, P] at every state of an episode file.

    The observation of `pucks` is the complete state. In other environments the recorded actions are played again from
    the recorded starts.

    Raises:
        ValueError: the file does not name its seed, or the simulator reaches other states than those recorded.
    """
    from butfor.envs import make_vector_env, short_name

    metadata = Episodes.load(path).metadata
    config = metadata.get("config", metadata)
    if short_name(config["env"]) == "pucks":
        return np.asarray(recording.observation, np.float32)
    if "seed" not in config:
        raise ValueError(f"{path} does not name the seed of its episodes, so that they cannot be played again.")
    stream = Stream.TRAINED_AGENT if Path(str(config.get("policy"))).is_dir() else Stream.TRAINING
    seeds = [episode_seed(config["seed"], stream, number) for number in range(len(recording))]
    steps = int(recording.length[0])
    states = []
    for first in range(0, len(seeds), TOGETHER):
        here = slice(first, first + TOGETHER)
        env: Any = make_vector_env(config["env"], len(seeds[here]))
        observation = env.reset(seed=seeds[here])[0]["observation"]
        action = recording.action.reshape(len(seeds), steps, -1)[here]
        played = [env.save_state()]
        seen = [observation]
        for step in range(steps):
            seen.append(env.step(action[:, step])[0]["observation"])
            played.append(env.save_state())
        env.close()
        given = recording.observation.reshape(len(seeds), steps + 1, -1)[here]
        if not np.array_equal(np.stack(seen, 1).astype(np.float32), given.astype(np.float32)):
            raise ValueError(
                f"Played again, the episodes of {path} reach other states than those recorded. Audit with the versions "
                f"they were recorded with: {metadata.get('versions', 'not stored')}."
            )
        states.append(np.stack(played, 1).reshape(-1, played[0].shape[1]))
    return np.concatenate(states)


def swapped_states(world: World, saved: Table, recording: Recording, swaps: Swaps) -> Table:
    """The simulator's states [C, T + 1, P] of swapped stretches, from those of the recording [S, P]."""
    first = np.flatnonzero(~recording.last)
    rows = np.arange(swaps.action.shape[1] + 1)
    base, donor = (saved[first[one][:, None] + rows] for one in (swaps.base, swaps.donor))
    result = base.copy()
    for place in np.unique(swaps.entity):
        here = swaps.entity == place
        flat = (part[here].reshape(-1, saved.shape[1]) for part in (base, donor))
        result[here] = world.replaced(next(flat), int(place), next(flat))[0].reshape(result[here].shape)
    return result


def find_faults(world: World, states: Table, swaps: Swaps) -> dict[str, Bool]:
    """Which stretches [C] have each fault in any of their steps.

    Args:
        world: the simulator.
        states: of `swapped_states`, [C, T + 1, P].
        swaps: the actions, the swapped entities, and the observations as they are written.
    """
    count, steps = swaps.action.shape[:2]
    before = states[:, :-1].reshape(count * steps, -1)
    given = states[:, 1:].reshape(count * steps, -1)
    entity = np.repeat(swaps.entity, steps)
    after = world.step(before, swaps.action.reshape(count * steps, -1).astype(np.float32))
    wrong = ~(np.abs(world.outcome(after) - world.outcome(given)).max(-1) <= world.tolerance)  # [C T, E]; or blown up
    written = swaps.observation[:, 1:].reshape(count * steps, -1)
    unlike = ~(np.abs(world.observation(after) - written).max(1) <= OBSERVED * world.tolerance)  # [C T]
    overlap = np.zeros(len(before), bool)
    for place in np.unique(entity):
        here = entity == place
        overlap[here] = ~world.replaced(before[here], int(place), before[here])[1] & wrong[here].any(1)
    own = wrong[np.arange(len(wrong)), entity]
    faults = {"overlap": overlap, "swapped entity": own & ~overlap, "another entity": wrong.any(1) & ~own & ~overlap}
    faults["columns"] = unlike & ~wrong.any(1)
    return {name: fault.reshape(count, steps).any(1) for name, fault in faults.items()}


def highest_attention(
    swaps: Swaps, recording: Recording, entities: Mapping[str, Sequence[int]], seed: int = 0
) -> Table:
    """The largest attention [C] of each swapped entity to all else, in the base, in the donor and in the new states.

    For each entity a small Transformer predicts its change from tokens of all entities and of the action.
    """
    transitions = [torch.as_tensor(np.asarray(part, np.float64)) for part in recording.transitions()]
    obs, action, next_obs = transitions
    columns = {name: list(own) for name, own in entities.items()}
    units = Units.measure((obs, action, next_obs), columns, ActionLaw.from_data(action))
    inputs, target = units.table((obs, action, next_obs), "cpu")
    steps = np.arange(swaps.action.shape[1])
    states = torch.as_tensor(swaps.observation[:, :-1].reshape(-1, obs.shape[1]).astype(np.float64))
    taken = torch.as_tensor(swaps.action.reshape(len(states), -1).astype(np.float64))
    new = torch.cat([units.standardize(states), units.law.encode(taken)], 1)
    highest = np.zeros(len(swaps))
    for place, (name, dims) in enumerate(zip(columns, units.dims, strict=True)):
        here = np.flatnonzero(swaps.entity == place)
        if not len(here):
            continue
        tokens = {("object" if other == name else other): own for other, own in columns.items()}
        tokens["action"] = list(range(obs.shape[1], inputs.shape[1]))
        generators = make_generators([1000 * seed + place])
        model = AttentionModel(tokens, len(dims), ATTENTION, generators)
        optimizer = torch.optim.Adam(model.parameters(), 2e-3)
        for _ in range(UPDATES):
            rows = torch.randint(len(inputs), (1, BATCH), generator=generators[0])
            loss = model.loss(inputs[rows], target[rows][..., dims]).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        recorded, unseen = (_attention(model, table, place) for table in (inputs, new))
        parts = [recorded[one[here][:, None] + steps].max(1) for one in (swaps.base, swaps.donor)]
        highest[here] = np.max([*parts, unseen.reshape(len(swaps), -1)[here].max(1)], 0)
    return highest


@torch.no_grad()
def _attention(model: AttentionModel, inputs: torch.Tensor, own: int) -> Table:
    """The attention [N] of an entity to all tokens but its own."""
    return np.asarray(1 - model.eval().attend(inputs[None])[1][0, :, own].numpy())


def audit_swaps(
    world: World,
    saved: Table,
    kept: Swaps,
    every: Swaps,
    recording: Recording,
    entities: Mapping[str, Sequence[int]],
    count: int,
    seed: int = 0,
    finish: Finish = lambda observation: observation,
) -> dict[str, Any]:
    """Shares of impossible stretches, by fault, among those kept and among other ways to choose.

    Args:
        world: the simulator.
        saved: its states, of `recorded_states`.
        kept: the stretches that were called possible.
        every: all candidates.
        recording: where they are from.
        entities: columns of each entity.
        count: the most stretches to replay of each choice.
        seed: of the choice of these.
        finish: makes what is written of swapped observations; the simulator's are compared with that.

    Returns:
        For each choice its number of stretches, how many were replayed, and the shares. `unfiltered` are all
        candidates. `contact` leaves out those whose entity is touched in the base or in the donor, as the simulator
        reports, and does not look at the new states. `attention` are as many as were kept, those whose entity pays the
        least attention to others.
    """
    effects = removal_effects(world, saved[~recording.last], recording.action)
    touched = np.nan_to_num(effects).max(1) > world.tolerance  # [N, E]
    steps = np.arange(every.action.shape[1])
    free = np.ones(len(every), bool)
    for one in (every.base, every.donor):
        free &= ~touched[one[:, None] + steps, every.entity[:, None]].any(1)
    lowest = np.argsort(highest_attention(every, recording, entities, seed), kind="stable")[: len(kept)]
    attended = every.take(np.isin(np.arange(len(every)), lowest))
    generator = np.random.default_rng(seed)
    choices = {"kept": kept, "unfiltered": every, "contact": every.take(free), "attention": attended}
    found = {}
    for name, swaps in choices.items():
        drawn = generator.permutation(len(swaps))[:count]
        chosen = swaps.take(np.isin(np.arange(len(swaps)), drawn))
        chosen = replace(chosen, observation=finish(chosen.observation))
        states = swapped_states(world, saved, recording, chosen)
        faults = find_faults(world, states, chosen) if len(chosen) else {fault: np.zeros(0, bool) for fault in FAULTS}
        any_fault = np.any(list(faults.values()), 0)
        found[name] = {
            "stretches": len(swaps),
            "replayed": len(chosen),
            "impossible": float(any_fault.mean()) if len(chosen) else 0.0,
            "faults": {fault: float(values.mean()) if len(chosen) else 0.0 for fault, values in faults.items()},
        }
    return found
