"""Transitions that never happened: an entity that nothing acts on is swapped between episodes.

A stretch of steps of one episode, the base, gets an entity's columns from a stretch of another one, the donor. The new
stretch is possible if nothing acts on the entity in the base, in the donor, and in the new states. The largest expected
interaction of all these steps is compared with those of recorded steps that show one: if the new stretch is impossible,
it is at least as large as that of one of its own interactions. So its rank among them is a conformal p-value, and
`reject` keeps the promised share of impossible stretches among those that are kept. Of these, stretches in which the
entity is so close to another one that they may touch are left out as well (`find_close`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from butfor.influence.decisions import conformal_p_values, reject
from butfor.models.interactions import FEWEST, UPDATES, Interactions, Table, learn_interactions
from butfor.rollouts.episodes import Bool, Steps
from butfor.runs.config import check_least

Entities = Mapping[str, Sequence[int]]

CALIBRATION = 0.5  # share of the episodes whose interactions calibrate the decision; the others are learned from
GROUP = 150  # recorded states in which one entity is in about the same direction from another one
CLOSE = 1.2  # times the least distance of two entities, below which they may touch
TINY = 1e-12


@dataclass(frozen=True)
class AugmentOptions:
    """How many stretches are made, and how many of them may be impossible."""

    count: int = 10_000
    """candidates that are made; those that may be impossible are left out"""
    false_discovery_rate: float = 0.05
    """largest expected share of impossible stretches among those that are kept"""
    steps: int = 1
    """steps of each stretch"""
    agent: str = "agent"
    """the entity that the action moves; it is never swapped"""
    seed: int = 0
    updates: int = UPDATES
    """of the networks that learn how entities move by themselves"""

    def __post_init__(self) -> None:
        check_least(self, 1, "count", "steps", "updates")
        check_least(self, 0, "seed")
        if not 0 < self.false_discovery_rate < 1:
            raise ValueError(f"false_discovery_rate must be between 0 and 1; got {self.false_discovery_rate}.")


@dataclass(frozen=True)
class Swaps:
    """New stretches of T steps: base episodes with one entity from a donor."""

    observation: Table  # [C, T + 1, D]
    action: Table  # [C, T, A]
    entity: Table  # [C]: its place among the entities
    base: Table  # [C]: the step of the recording with which the base begins
    donor: Table  # [C]

    def __len__(self) -> int:
        return len(self.entity)

    def take(self, chosen: Bool) -> "Swaps":
        """Some of the stretches."""
        return replace(self, **{name: value[chosen] for name, value in vars(self).items()})


def propose_swaps(recording: Steps, entities: Entities, options: AugmentOptions = AugmentOptions()) -> Swaps:
    """Swap random entities between random stretches of different episodes, possible or not.

    Raises:
        ValueError: the agent is not among the entities, or no episode is long enough.
    """
    if options.agent not in entities:
        raise ValueError(f"agent is {options.agent!r}; expected one of the entities {', '.join(entities)}.")
    names = list(entities)
    others = [place for place, name in enumerate(names) if name != options.agent]
    generator = np.random.default_rng(options.seed)
    first = np.flatnonzero(~recording.last)  # [N]: the row of the state in which each step begins
    left = recording.length[recording.episode[first]] - recording.time[first]  # steps from here on
    starts = np.flatnonzero(left >= options.steps)
    if not len(starts):
        raise ValueError(f"No episode has {options.steps} steps; use fewer.")
    base, donor = generator.choice(starts, (2, options.count))
    episode = recording.episode[first]
    base, donor = (one[episode[base] != episode[donor]] for one in (base, donor))
    entity = generator.choice(others, len(base))
    rows = np.arange(options.steps + 1)
    states = recording.observation[first[base][:, None] + rows]  # [C, T + 1, D]
    given = recording.observation[first[donor][:, None] + rows]
    for place in others:
        here = np.flatnonzero(entity == place)
        columns = list(entities[names[place]])
        states[here[:, None, None], rows[:, None], columns] = given[here[:, None, None], rows[:, None], columns]
    return Swaps(states, recording.action[base[:, None] + rows[:-1]], entity, base, donor)


def decide_possible(
    swaps: Swaps,
    recording: Steps,
    interactions: Interactions,
    calibrating: Bool,
    options: AugmentOptions = AugmentOptions(),
) -> tuple[Bool, dict[str, int]]:
    """Which stretches [C] are called possible, and how many recorded interactions each entity is calibrated with.

    Args:
        swaps: from `propose_swaps`.
        recording: where they are from.
        interactions: learned from other steps than the calibrating ones.
        calibrating: steps [N] whose interactions are compared with.
        options: the promised share.
    """
    obs, action, next_obs = (np.asarray(part, np.float64) for part in recording.transitions())
    shown = interactions.surprised(obs, action, next_obs)
    clear = interactions.clear(obs, action)
    free = {name: ~shown[name] & clear[name] for name in interactions.entities}
    p_values = np.ones(len(swaps))
    counts = {}
    steps = np.arange(swaps.action.shape[1])
    for place, name in enumerate(interactions.entities):
        here = np.flatnonzero(swaps.entity == place)
        known = np.flatnonzero(shown[name] & clear[name] & calibrating)
        counts[name] = len(known)
        if name not in interactions.classifiers or len(known) < FEWEST or not len(here):
            continue
        every = interactions.score(obs, action, name)
        before = [every[one[here][:, None] + steps].max(1) for one in (swaps.base, swaps.donor)]
        alone = [free[name][one[here][:, None] + steps].all(1) for one in (swaps.base, swaps.donor)]
        states = swaps.observation[here, :-1].reshape(-1, swaps.observation.shape[2]).astype(np.float64)
        actions = swaps.action[here].reshape(len(states), -1).astype(np.float64)
        after = interactions.score(states, actions, name).reshape(len(here), -1).max(1)
        highest = np.maximum(np.maximum(*before), after)
        p_values[here] = conformal_p_values(-every[known], -highest)
        p_values[here[~alone[0] | ~alone[1]]] = 1.0
    close = find_close(swaps, recording, free, interactions.entities, interactions.positions)
    return reject(p_values, options.false_discovery_rate) & ~close, counts


def find_close(swaps: Swaps, recording: Steps, free: Mapping[str, Bool], entities: Entities, positions: int) -> Bool:
    """Which stretches [C] have the swapped entity so close to another one that they may touch, before or after.

    They may touch if they are less than `CLOSE` times as far apart as they ever are, in that direction, in recorded
    states in which nothing acts on the entity. So sizes and shapes need not be known. It finds bodies that overlap in
    the new state, of which recorded steps have no example, and bodies that rest on each other in the base, which move
    as if nothing acted on them. Ways from the entity to another one are grouped by direction: one in `GROUP`
    recorded ones is drawn, and a way belongs to the nearest of those.

    Args:
        swaps: from `propose_swaps`.
        recording: where they are from.
        free: in which steps nothing acts on each entity [N].
        entities: columns of each entity.
        positions: how many of the first columns of each entity are its position.
    """
    first = np.flatnonzero(~recording.last)
    rows = np.arange(swaps.observation.shape[1])
    base, donor = (recording.observation[first[one][:, None] + rows] for one in (swaps.base, swaps.donor))
    states = np.concatenate([swaps.observation, base, donor], 1)  # [C, 3 (T + 1), D]
    names = list(entities)
    places = [list(columns[:positions]) for columns in entities.values()]
    generator = np.random.default_rng(0)
    found = np.zeros(len(swaps), bool)
    for entity in np.unique(swaps.entity):
        here = np.flatnonzero(swaps.entity == entity)
        alone = recording.observation[first[free[names[entity]]]]
        for other in range(len(names)):
            if other == entity or not len(alone):
                continue
            seen, now = (
                (part[..., places[other]] - part[..., places[entity]]).astype(np.float64)
                for part in (alone, states[here])
            )
            length = np.linalg.norm(seen, axis=1)
            directions = seen / np.maximum(length, TINY)[:, None]
            middle = generator.permutation(directions)[: max(1, len(alone) // GROUP)]
            shortest = np.full(len(middle), np.inf)
            np.minimum.at(shortest, np.argmax(directions @ middle.T, 1), length)
            limit = CLOSE * shortest[np.argmax(now @ middle.T, -1)]
            found[here] |= (np.linalg.norm(now, axis=-1) < limit).any(1)
    return found


def augment_recordings(
    recordings: Sequence[Steps],
    entities: Entities,
    options: AugmentOptions = AugmentOptions(),
    seeds: Sequence[int] = (0,),
    device: torch.device | str = "cpu",
) -> list[tuple[Swaps, Swaps, dict[str, int]]]:
    """Propose swaps within each of R recordings and decide which are possible, see `augment_recording`.

    Args:
        recordings: R of them; nothing passes between them.
        entities: columns of each entity.
        options: without the seed.
        seeds: one for each recording.
        device: where networks are fitted, those of all recordings together.
    """
    calibrating, learned = [], []
    for recording, seed in zip(recordings, seeds, strict=True):
        drawn = np.random.default_rng(seed).permutation(len(recording))[: int(CALIBRATION * len(recording))]
        calibrating.append(np.isin(recording.episode[~recording.last], drawn))
        obs, action, next_obs = (np.asarray(part, np.float64) for part in recording.transitions(~calibrating[-1]))
        learned.append((obs, action, next_obs))
    models = learn_interactions(learned, entities, seeds, options.agent, device, options.updates)
    found = []
    for recording, model, given, seed in zip(recordings, models, calibrating, seeds, strict=True):
        every = propose_swaps(recording, entities, replace(options, seed=seed))
        possible, counts = decide_possible(every, recording, model, given, options)
        found.append((every.take(possible), every, counts))
    return found


def augment_recording(
    recording: Steps, entities: Entities, options: AugmentOptions = AugmentOptions()
) -> tuple[Swaps, Swaps, dict[str, int]]:
    """Propose swaps and decide which are possible: those kept, all candidates, and interactions by entity."""
    return augment_recordings([recording], entities, options, [options.seed])[0]
