"""`butfor augment`: possible transitions that never happened, written to a file; see `butfor.rollouts.swaps`."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from butfor.datasets.files import check_new_files
from butfor.datasets.formats import Dataset, default_copy, open_dataset
from butfor.rollouts.swaps import AugmentOptions, augment_recording
from butfor.runs.files import atomic_write, check_writable
from butfor.spaces.entities import Entities


def augment_file(
    data: Path | str,
    out: Path | str | None = None,
    entities: Entities = (),
    options: AugmentOptions = AugmentOptions(),
    *,
    audit: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write possible transitions that never happened to an .npz file.

    Args:
        data: a file or folder that `butfor.datasets.open` reads.
        out: the .npz file; default: beside the data, with `-augmented` in the name.
        entities: all entities, such as ["agent=0:4", "puck=4:8"]; the first columns of each are its position. Empty:
            those of the built-in environment in which the data were collected.
        options: how many, and the promised share of impossible ones.
        audit: kept and rejected stretches to replay in the simulator, if the environment can be forked; 0: none.
        overwrite: replace an existing file.

    Returns:
        The summary: candidates, kept stretches, promised and realised shares, and the path.
    """
    from butfor.datasets.audit import audit_swaps, recorded_states, world_of

    began = time.monotonic()
    dataset = open_dataset(data)
    recording = dataset.recording()
    columns = recording.entities(entities) if entities else known_entities(dataset)
    if not entities and options.agent == AugmentOptions.agent:
        options = replace(options, agent=next(iter(columns)))  # the agent is the first entity of built-in environments
    beside = default_copy(dataset, "augmented")
    target = Path(out) if out is not None else beside.with_name(f"{beside.stem}.npz")
    if target.suffix != ".npz":
        raise ValueError(f"--out is {str(out)!r}; the new transitions are written to a file that ends in .npz.")
    check_new_files([target], {dataset.path.resolve()}, overwrite)
    check_writable(target)
    world = world_of(dataset.tasks[0] if dataset.tasks else "") if audit else None
    if audit and world is None:
        raise ValueError(f"{data} is not of an environment that can be forked, so there is nothing to audit with.")
    saved = None if world is None else recorded_states(dataset.path, recording)
    kept, every, counts = augment_recording(recording, columns, options)
    if not len(kept):
        raise ValueError(
            f"None of {len(every)} candidates can be called possible at a rate of {options.false_discovery_rate:g}. "
            f"The interactions to compare with are {counts}. Record more, or allow a larger rate."
        )
    summary: dict[str, Any] = {
        "source": recording.source,
        "entities": {name: list(own) for name, own in columns.items()},
        "candidates": len(every),
        "kept": len(kept),
        "steps": options.steps,
        "promised": options.false_discovery_rate,
        "interactions": counts,
        "audit": None
        if world is None or saved is None
        else audit_swaps(world, saved, kept, every, recording, columns, audit, options.seed),
        "out": str(target),
        "seconds": round(time.monotonic() - began, 1),
    }
    rows = options.steps
    arrays = {
        "observations": kept.observation[:, :-1].reshape(-1, kept.observation.shape[2]),
        "actions": kept.action.reshape(len(kept) * rows, -1),
        "next_observations": kept.observation[:, 1:].reshape(-1, kept.observation.shape[2]),
        "timeouts": np.tile(np.arange(rows) == rows - 1, len(kept)),
        "swapped": np.array(list(columns))[np.repeat(kept.entity, rows)],
        "base": np.repeat(kept.base, rows) + np.tile(np.arange(rows), len(kept)),
        "donor": np.repeat(kept.donor, rows) + np.tile(np.arange(rows), len(kept)),
    }
    with atomic_write(target) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays, metadata=np.array(json.dumps(summary)))
    return summary


def known_entities(dataset: Dataset) -> dict[str, list[int]]:
    """The entities of the built-in environment in which a dataset was collected."""
    from butfor.envs import facts_of

    facts = facts_of(dataset.tasks[0]) if dataset.tasks else None
    if facts is None:
        raise ValueError(f"{dataset.path} does not name a built-in environment; give its entities with --entities.")
    return {name: list(columns) for name, columns in facts.entities.items()}
