"""`butfor augment`: possible transitions that never happened, written to a file; see `butfor.rollouts.swaps`."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from butfor.datasets.files import check_new_files
from butfor.datasets.formats import Dataset, default_copy, open_dataset
from butfor.datasets.formats.flat import OWN
from butfor.datasets.recording import Recording, Table
from butfor.datasets.swap_columns import SwapColumns, describe_columns, find_columns, goal_entity, observation_starts
from butfor.envs import EnvFacts, facts_of
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.swaps import AugmentOptions, Swaps, augment_recording
from butfor.runs.files import atomic_write, check_writable, read_json
from butfor.spaces.entities import Entities


def augment_file(
    data: Path | str,
    out: Path | str | None = None,
    entities: Entities = (),
    options: AugmentOptions = AugmentOptions(),
    *,
    observe: Sequence[str] = (),
    action: Sequence[str] = (),
    ignore: Sequence[str] = (),
    audit: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write possible transitions that never happened to an .npz file.

    Args:
        data: a file or folder that `butfor.datasets.open` reads.
        out: the .npz file; default: beside the data, with `-augmented` in the name.
        entities: all entities, such as ["agent=0:4", "puck=4:8"]; the first columns of each are its position. Empty:
            those of the built-in environment in which the data were collected. Columns that are a linear function of
            those of the entities, such as a difference of two positions or an achieved goal, are computed again.
        options: how many, and the promised share of impossible ones.
        observe: columns that make up the observation; default: those of the format.
        action: columns that make up the action; default: those of the format.
        ignore: parts of the observation, or columns of the action, to leave out.
        audit: kept and rejected stretches to replay in the simulator, if the environment can be forked; 0: none.
        overwrite: replace an existing file.

    Returns:
        The summary: candidates, kept stretches, promised and realised shares, and the path.

    Raises:
        ValueError: nothing can be called possible; or columns belong to no entity or to two, so that new observations
            would be impossible.
    """
    from butfor.datasets.audit import audit_swaps, recorded_states, world_of

    began = time.monotonic()
    if audit < 0:
        raise ValueError(f"audit is {audit}; expected the number of new transitions to replay, or 0 for none.")
    dataset = open_dataset(data)
    recording = dataset.recording(observe, ignore, action)
    facts = known_facts(dataset, recording)
    if facts is None and not entities:
        raise ValueError(f"{dataset.path} is not of a built-in environment with known entities; give --entities.")
    known = {} if facts is None else known_entities(facts, recording)
    given = recording.entities(entities) if entities else known
    if not entities and options.agent == AugmentOptions.agent:
        options = replace(options, agent=next(iter(given)))  # the agent is the first entity of built-in environments
    columns = find_columns(recording, given, facts)
    beside = default_copy(dataset, "augmented")
    target = Path(out) if out is not None else beside.with_name(f"{beside.stem}.npz")
    if target.suffix != ".npz":
        raise ValueError(f"--out is {str(out)!r}; the new transitions are written to a file that ends in .npz.")
    check_new_files([target], {dataset.path.resolve()}, overwrite)
    check_writable(target)
    world = world_of(dataset.tasks[0] if dataset.tasks else "") if audit else None
    if audit and world is None:
        raise ValueError(
            f"{data} cannot be audited: that needs an episode file that `butfor collect` wrote, of an environment that "
            "can be forked. Leave --audit out, or give such a file."
        )
    if audit and list(given.values()) != list(known.values()):
        raise ValueError(
            f"{data} cannot be audited with the entities {', '.join(given)}: the simulator has {', '.join(known)}. "
            "Leave --entities or --audit out."
        )
    saved = None if world is None else recorded_states(dataset.path, recording)
    hidden = columns.hide(recording)
    kept, every, counts = augment_recording(hidden, given, options)
    if not len(kept):
        raise ValueError(
            f"None of {len(every)} candidates can be called possible at a rate of {options.false_discovery_rate:g}. "
            f"The interactions to compare with are {', '.join(f'{name} {count}' for name, count in counts.items())}. "
            "Record more, or allow a larger rate."
        )
    summary: dict[str, Any] = {
        "source": recording.source,
        "entities": {name: list(own) for name, own in given.items()},
        "computed": describe_columns(columns.following, recording.sizes) if columns.following else "",
        "candidates": len(every),
        "kept": len(kept),
        "steps": options.steps,
        "promised": options.false_discovery_rate,
        "interactions": counts,
        "audit": None
        if world is None or saved is None
        else audit_swaps(world, saved, kept, every, hidden, given, audit, options.seed, columns.finish),
        "out": str(target),
        "seconds": round(time.monotonic() - began, 1),
    }
    arrays = _written_arrays(columns.finish_swaps(kept, recording), recording, given)
    if dataset.kind == OWN:
        arrays |= _goal_arrays(Episodes.load(dataset.path), kept, columns, hidden)
    with atomic_write(target) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays, metadata=np.array(json.dumps(summary)))
    return summary


def known_facts(dataset: Dataset, recording: Recording) -> EnvFacts | None:
    """The facts of the built-in environment in which a dataset was collected, if its observation was read whole."""
    name = dataset.tasks[0] if dataset.tasks else ""
    if dataset.kind == "Minari":
        spec = read_json(dataset.path / "data" / "metadata.json").get("env_spec")
        name = str((json.loads(spec) if isinstance(spec, str) else spec or {}).get("id", ""))
    facts = facts_of(name) if name else None
    size = recording.observation.shape[1] - observation_starts(recording.sizes)
    complete = facts is not None and size == max((max(own) for own in facts.bodies.values()), default=-2) + 1
    return facts if complete else None


def known_entities(facts: EnvFacts, recording: Recording) -> dict[str, list[int]]:
    """All columns of the entities of a built-in environment, in a recording of it."""
    first = observation_starts(recording.sizes)
    return {name: [first + column for column in columns] for name, columns in facts.bodies.items()}


def _written_arrays(swaps: Swaps, recording: Recording, entities: Mapping[str, Sequence[int]]) -> dict[str, Table]:
    """Transitions with their origin; observations by part, where there are several."""
    count, steps = swaps.action.shape[:2]
    rows = np.arange(steps)
    edges = np.cumsum(list(recording.sizes.values()))[:-1]
    arrays: dict[str, Table] = {}
    for name, states in (("observations", swaps.observation[:, :-1]), ("next_observations", swaps.observation[:, 1:])):
        parts = np.split(states.reshape(count * steps, -1), edges, 1)
        names = [f"{name}/{part}" for part in recording.sizes] if len(recording.sizes) > 1 else [name]
        arrays |= dict(zip(names, parts, strict=True))
    arrays["actions"] = swaps.action.reshape(count * steps, -1)
    arrays["timeouts"] = np.tile(rows == steps - 1, count)
    arrays["swapped"] = np.array(list(entities))[np.repeat(swaps.entity, steps)]
    arrays["base"] = np.repeat(swaps.base, steps) + np.tile(rows, count)
    arrays["donor"] = np.repeat(swaps.donor, steps) + np.tile(rows, count)
    return arrays


def _goal_arrays(episodes: Episodes, swaps: Swaps, columns: SwapColumns, recording: Recording) -> dict[str, Table]:
    """Goals of the transitions [N, G]: those of the episode that the goal's object is from, as agents are trained with.

    Empty if the achieved goal is not a function of one entity.
    """
    real = np.arange(episodes.observation.shape[1]) <= episodes.length[:, None]
    achieved, desired = episodes.achieved_goal[real], episodes.desired_goal[real]  # [S, G]
    place = goal_entity(recording.observation, columns.entities, achieved)
    if place is None:
        return {}
    steps = np.where(swaps.entity == place, swaps.donor, swaps.base)
    rows = np.flatnonzero(~recording.last)[steps][:, None] + np.arange(swaps.action.shape[1])  # [C, T]
    goals = {
        "achieved_goals": achieved[rows],
        "desired_goals": desired[rows],
        "next_achieved_goals": achieved[rows + 1],
    }
    return {name: goal.reshape(-1, goal.shape[-1]) for name, goal in goals.items()}
