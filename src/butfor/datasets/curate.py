"""Keep the episodes or frames of a dataset that matter most: rank them by influence, and write the kept part.

A frame is worth the influence that it has or leads to: the highest score from it on, discounted by the steps between.
So the approach to an object counts, and waiting far from it does not. An episode is worth the mean of its frames.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from butfor.datasets.files import check_new_files, column_names
from butfor.datasets.formats import Dataset, Segment, copy_path, default_copy, open_dataset
from butfor.datasets.recording import Recording, Table
from butfor.datasets.score import (
    THRESHOLD,
    Options,
    diagnose_recording,
    fit_recording,
    score_recording,
    use_model,
)
from butfor.influence.influence import Influence
from butfor.rollouts.play import Progress
from butfor.runs.config import check_least
from butfor.runs.files import atomic_write, check_writable, explain_write_error
from butfor.spaces.entities import Entities

Rank = Literal["influence", "motion", "action", "random"]
PHASES = ("idle", "approach", "contact", "effect")
DISCOUNT = 0.9  # per step, of the influence that a frame leads to
MOVED = 0.1  # share of a large change of the entity, from which on it counts as moved
LARGE = 0.95  # quantile of the changes in influenced steps that counts as large
LONGEST_GAP = 2  # dropped frames between kept ones that are kept, too
SHORTEST = 5  # frames of a kept stretch


@dataclass(frozen=True)
class CurateOptions:
    """What is kept of a dataset."""

    keep: float = 0.5
    """share of the rows"""
    by: Literal["episodes", "frames"] = "episodes"
    """whole episodes; or frames, of which each stretch becomes an episode"""
    rank: Rank = "influence"
    """what is kept first: influence, motion of the entities, large actions, or a random choice for comparison"""
    approach: int = 10
    """steps before an influenced one that count as its approach"""

    def __post_init__(self) -> None:
        if not 0 < self.keep < 1:
            raise ValueError(f"keep must be between 0 and 1; got {self.keep}.")
        if self.by not in ("episodes", "frames"):
            raise ValueError(f"by is {self.by!r}; expected episodes or frames.")
        if self.rank not in get_args(Rank):
            raise ValueError(f"rank is {self.rank!r}; expected {', '.join(get_args(Rank))}.")
        check_least(self, 1, "approach")


def curate_file(
    data: Any,
    out: Path | str | None = None,
    entities: Entities = (),
    options: CurateOptions = CurateOptions(),
    scoring: Options = Options(),
    *,
    model: Path | str | None = None,
    report: Path | str | None = None,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress = lambda stage, done, total, text: None,
) -> dict[str, Any]:
    """Score a dataset, keep the part that matters most, and write it in the same format, with the scores and a page.

    Args:
        data: a file or folder that `butfor.datasets.open` reads, the id of a local Minari dataset, or a pandas
            DataFrame.
        out: the new file, folder or Minari id; default: beside the data, with `-kept` in the name.
        entities: what may be influenced, such as ["cube=3:6"].
        options: how much is kept, and by what.
        scoring: how to fit and score.
        model: a saved Influence to use instead of fitting one; its entities are used.
        report: the HTML page, by default beside the copy.
        overwrite: replace existing files.
        device: where to compute.
        progress: called with the stage, how much of it is done, its size, and a text.

    Returns:
        The summary: shares by phase and task before and after, the episodes with their values, and the paths.
    """
    from butfor.reporting.file_pages import render_curation

    began = time.monotonic()
    dataset = open_dataset(data)
    influence = None if model is None else Influence.load(model, device)
    recording = dataset.recording(scoring.observe, scoring.ignore, scoring.action)
    columns = recording.entities(entities) if influence is None or entities else influence.entities
    target = dataset.check_copy(
        copy_path(dataset, default_copy(dataset, "kept") if out is None else out),
        column_names(columns).values(),
        overwrite,
        options.by == "frames",
    )
    page = Path(report) if report else dataset.page_of(target)
    check_new_files([page], dataset.files(target), overwrite)
    check_writable(page)
    check_writable(target.parent)
    notes = list(dataset.notes)
    if influence is None:
        influence, judged, more = fit_recording(recording, columns, scoring, device, progress)
        notes += more
    else:
        judged, more = use_model(influence, str(model), recording, columns, scoring, device)
        notes += more
    scores = score_recording(influence, recording, progress)
    diagnosis, more = diagnose_recording(influence, recording, judged)
    notes += more
    chosen = choose_segments(dataset, recording, scores, columns, options, scoring.seed)
    summary = summarize_curation(dataset, recording, scores, columns, chosen, options) | {
        "diagnosis": {name: one.plain() for name, one in diagnosis.items()},
        "out": str(target),
        "report": str(page),
        "notes": list(dict.fromkeys(notes)),
        "seconds": round(time.monotonic() - began, 1),
    }
    names = column_names(scores)
    added = {names[name]: dataset.by_row(recording, score) for name, score in scores.items()}
    with explain_write_error(f"The kept part {target}", "free some space, or choose another place"):
        text = render_curation(summary)
        with atomic_write(page) as temporary:
            temporary.write_text(text, encoding="utf-8")
            dataset.write(target, chosen, added, overwrite)
    return summary


def choose_segments(
    dataset: Dataset,
    recording: Recording,
    scores: Mapping[str, Table],
    entities: Mapping[str, Sequence[int]],
    options: CurateOptions = CurateOptions(),
    seed: int = 0,
) -> list[Segment]:
    """The rows of each episode that are kept, in the order of the dataset."""
    values = dataset.by_row(recording, frame_values(recording, scores, entities, options.rank, seed))
    rows = dataset.rows
    values = [value[:count] for value, count in zip(values, rows, strict=True)]
    if options.by == "episodes":
        worth = np.array([value.mean() for value in values])
        order = np.argsort(-worth, kind="stable")
        before = np.cumsum(rows[order]) - rows[order]  # rows of the better ones; an episode is kept if half of it fits
        kept = set(order[before + rows[order] / 2 <= options.keep * rows.sum()].tolist()) or {int(order[0])}
        return [(place, 0, int(rows[place])) for place in sorted(kept)]
    found = _best_stretches(values, options.keep * rows.sum())
    if not found:
        raise ValueError(f"No stretch of {SHORTEST} frames is kept; keep more, or keep whole episodes.")
    return found


def _best_stretches(values: Sequence[Table], most: float) -> list[Segment]:
    """Stretches of the best frames of all episodes, of as many frames that at most `most` rows are kept."""
    edges = np.cumsum([len(value) for value in values])[:-1]
    order = np.argsort(-np.concatenate(values), kind="stable")
    best = np.empty(len(order), np.int64)
    best[order] = np.arange(len(order))  # the place of each frame among all
    places = np.split(best, edges)

    def stretches(frames: int) -> list[Segment]:
        return [(number, *ends) for number, place in enumerate(places) for ends in _stretches(place < frames)]

    low, high = 0, len(order)  # more frames never keep fewer rows
    while low < high:
        frames = (low + high + 1) // 2
        if sum(last - first for _, first, last in stretches(frames)) <= most:
            low = frames
        else:
            high = frames - 1
    return stretches(low)


def frame_values(
    recording: Recording,
    scores: Mapping[str, Table],
    entities: Mapping[str, Sequence[int]],
    rank: Rank = "influence",
    seed: int = 0,
) -> Table:
    """What each frame is worth [S]: the largest of its own and of the later ones, discounted by `DISCOUNT` a step."""
    if rank == "influence":
        own = np.sum(list(scores.values()), 0).astype(float)
    elif rank == "motion":
        own = np.sum([entity_motion(recording, columns) for columns in entities.values()], 0)
    elif rank == "action":
        action = recording.action.reshape(len(recording.action), -1).astype(float)
        own = np.zeros(len(recording.observation))
        own[~recording.last] = np.linalg.norm(action / np.maximum(np.abs(action).max(0), 1e-12), axis=1)
        return own  # what a large action leads to is not known
    else:
        number = np.random.default_rng(seed).random(len(recording))
        drawn: Table = number[recording.episode]
        return drawn
    worth: Table = own.copy()
    last = recording.last
    for place in range(len(own) - 2, -1, -1):
        if not last[place]:
            worth[place] = max(own[place], DISCOUNT * worth[place + 1])
    return worth


def entity_motion(recording: Recording, columns: Sequence[int]) -> Table:
    """How far an entity moves in each step [S], in standard deviations of its changes; 0 in last states."""
    change = np.zeros((len(recording.observation), len(columns)))
    change[:-1] = np.diff(recording.observation[:, list(columns)].astype(float), axis=0)
    change[recording.last] = 0
    return np.asarray(np.linalg.norm(change / np.maximum(change.std(0), 1e-12), axis=1))


def find_phases(
    recording: Recording, scores: Mapping[str, Table], entities: Mapping[str, Sequence[int]], approach: int = 10
) -> Table:
    """The phase of each state [S] as its place in `PHASES`.

    An influenced state, with a score above `THRESHOLD` for some entity, is `effect` if that entity moves in this step,
    else `contact`. Of the others, those at most `approach` steps before an influenced one are `approach`.
    """
    influenced = np.zeros(len(recording.observation), bool)
    moved = np.zeros(len(recording.observation), bool)
    for name, columns in entities.items():
        here = scores[name] > THRESHOLD
        motion = entity_motion(recording, columns)
        large = np.quantile(motion[here], LARGE) if here.any() else np.inf
        influenced |= here
        moved |= here & (motion > MOVED * large)
    phase = np.zeros(len(influenced), np.int64)
    steps = np.full(len(influenced), np.inf)  # to the next influenced state of the episode
    last = recording.last
    for place in range(len(influenced) - 1, -1, -1):
        after = np.inf if last[place] else steps[place + 1] + 1
        steps[place] = 0 if influenced[place] else after
    phase[steps <= approach] = PHASES.index("approach")
    phase[influenced] = PHASES.index("contact")
    phase[moved] = PHASES.index("effect")
    return phase


def _stretches(kept: Table) -> list[tuple[int, int]]:
    """Stretches of kept frames, with short gaps closed and short stretches left out."""
    edges = np.flatnonzero(np.diff(kept.astype(int), prepend=0, append=0)).reshape(-1, 2)
    joined: list[tuple[int, int]] = []
    for first, last in edges.tolist():
        if joined and first - joined[-1][1] <= LONGEST_GAP:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return [(first, last) for first, last in joined if last - first >= SHORTEST]


def summarize_curation(
    dataset: Dataset,
    recording: Recording,
    scores: Mapping[str, Table],
    entities: Mapping[str, Sequence[int]],
    chosen: Sequence[Segment],
    options: CurateOptions,
) -> dict[str, Any]:
    """What is kept and dropped, ready for JSON."""
    kept = [np.zeros(rows, bool) for rows in dataset.rows]
    for place, first, last in chosen:
        kept[place][first:last] = True
    phases = dataset.by_row(recording, find_phases(recording, scores, entities, options.approach))
    phase = np.concatenate([part[:rows] for part, rows in zip(phases, dataset.rows, strict=True)])
    mask = np.concatenate(kept)
    own = dataset.by_row(recording, np.sum(list(scores.values()), 0))
    values = dataset.by_row(recording, frame_values(recording, scores, entities))
    episodes = [
        {
            "episode": place,
            "task": dataset.tasks[place] if dataset.tasks else "",
            "rows": int(dataset.rows[place]),
            "kept": float(kept[place].mean()),
            "value": float(values[place][: dataset.rows[place]].mean()),
            "scores": np.round(own[place][: dataset.rows[place]].astype(float), 4).tolist(),
        }
        for place in range(len(dataset))
    ]
    by_task = []
    for task in dict.fromkeys(one["task"] for one in episodes):
        rows = [one for one in episodes if one["task"] == task]
        total = sum(one["rows"] for one in rows)
        share = sum(one["rows"] * one["kept"] for one in rows) / total
        by_task.append({"task": task or "all episodes", "episodes": len(rows), "rows": total, "kept": share})
    return {
        "source": recording.source,
        "format": dataset.kind,
        "entities": {name: list(columns) for name, columns in entities.items()},
        "keep": options.keep,
        "by": options.by,
        "rank": options.rank,
        "threshold": THRESHOLD,
        "rows": int(dataset.rows.sum()),
        "kept_rows": int(mask.sum()),
        "written_episodes": len(chosen),
        "phases": [
            {
                "phase": name,
                "before": float((phase == place).mean()),
                "after": float((phase[mask] == place).mean()) if mask.any() else 0.0,
            }
            for place, name in enumerate(PHASES)
        ],
        "tasks": by_task,
        "episodes": episodes,
    }
