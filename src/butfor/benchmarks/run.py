"""`butfor benchmark defaults`: how well the default settings detect influence, over tasks, amounts of data and seeds.

The folder holds `benchmark.json` (settings and versions), `results.jsonl` (a line for each finished unit: a task, a
size and a seed) and `data/`. The same call resumes: finished units and collected data are kept.
"""

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from butfor import __version__
from butfor.analysis.benchmark import RESULTS, read_results
from butfor.benchmarks import environments
from butfor.benchmarks.data import MOST_CORNERS, collect, label
from butfor.benchmarks.environments import Task
from butfor.benchmarks.measure import Request
from butfor.rollouts.play import Progress
from butfor.runs.config import check_least, plain
from butfor.runs.files import atomic_write, check_writable, write_json
from butfor.runs.folder import append_metrics, versions
from butfor.runs.locks import locked
from butfor.runs.reading import SCHEMA_VERSION, read_object

Unit = tuple[Task, int, int]  # with a size and a seed
TEST_SEED = 1_000  # of the labelled states: no seed of training data


@dataclass(frozen=True)
class Settings:
    """What all units of a benchmark share."""

    sizes: tuple[int, ...] = (2_000, 5_000, 15_000)
    """transitions to fit on"""
    states: int = 3_000
    """labelled states of each task; `diagnose` gets the transitions from them with random actions"""

    def __post_init__(self) -> None:
        check_least(self, 1, "states")
        if not self.sizes or min(self.sizes) < 1 or len(set(self.sizes)) < len(self.sizes):
            raise ValueError(f"sizes must be positive numbers of transitions, each once; got {self.sizes}.")


def choose_tasks(names: Sequence[str] = (), held_out: bool = False) -> list[Task]:
    """Return the tasks of these names, or all; those that are set aside only if `held_out`.

    Raises:
        ValueError: a task does not exist, or is set aside and `held_out` is false.
        ImportError: a task needs a package that is not installed.
    """
    known = environments.TASKS
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"There is no task {', '.join(unknown)}; the tasks are {', '.join(known)}.")
    if not held_out and (aside := [name for name in names if known[name].held_out]):
        raise ValueError(f"{', '.join(aside)}: set aside while defaults are developed. Run it with --held-out.")
    chosen = [known[name] for name in names] or [task for task in known.values() if held_out or not task.held_out]
    missing = {task.package: task.name for task in chosen if not _version(task.package)}
    if missing:
        needs = ", ".join(f"{name} needs {package}" for package, name in missing.items())
        raise ImportError(f"{needs}. Install it with: pip install 'butfor[benchmark]', or choose others with --tasks.")
    return chosen


def run_benchmark(
    folder: Path | str,
    tasks: Sequence[Task],
    settings: Settings,
    seeds: int = 5,
    progress: Progress = lambda stage, done, total, text: None,
) -> Path:
    """Measure the default settings on every task, with every amount of data and seed.

    Args:
        folder: where results and data are; an interrupted benchmark in it is resumed.
        tasks: what to run.
        settings: what all units share.
        seeds: how many; each has its own training data and initial weights.
        progress: called with the stage, how much of it is done, its size, and a text.

    Returns:
        The folder.

    Raises:
        FileExistsError: the folder contains something else, or a benchmark with other settings.
        OSError: a unit could not be measured.
    """
    if not 1 <= seeds <= TEST_SEED:
        raise ValueError(f"seeds must be from 1 to {TEST_SEED}; got {seeds}.")
    folder = Path(folder)
    with locked(folder):
        _open_folder(folder, tasks, settings)
        done = {(row["task"], row["size"], row["seed"]) for row in read_results(folder)}
        # seeds are the outer loop: an interrupted benchmark has results of every task
        units = [(task, size, seed) for seed in range(seeds) for task in tasks for size in settings.sizes]
        total = sum(size for _, size, _ in units)  # the time of a unit grows with its size
        due = [(task, size, seed) for task, size, seed in units if (task.name, size, seed) not in done]
        finished = total - sum(size for _, size, _ in due)
        _collect_data(folder, due, settings, progress)
        for task, size, seed in due:
            progress("transitions", finished, total, f"{task.name}, {size:,}, seed {seed}")
            facts = {"task": task.name, "size": size, "seed": seed}
            facts |= {"held_out": task.held_out, "self_moving": task.self_moving}
            append_metrics(folder, [facts | _measure_apart(_request(folder, task, size, seed))], RESULTS)
            finished += size
        progress("transitions", total, total, "finished")
    return folder


def _version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    if package == "butfor":  # which may be used from its source
        return __version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _open_folder(folder: Path, tasks: Sequence[Task], settings: Settings) -> None:
    """Create the folder with benchmark.json, or check that it contains this benchmark and note what changed since."""
    check_writable(folder)
    path = folder / "benchmark.json"
    now = versions("cpu") | {task.package: _version(task.package) for task in tasks}
    if path.is_file():
        record = read_object(path)
        if record.get("settings") != plain(settings):
            held = f"{folder} contains a benchmark with the settings {record.get('settings')}"
            raise FileExistsError(f"{held}; these are {plain(settings)}. Give another folder with --out.")
        begun = record["versions"]
        changed = {name: value for name, value in now.items() if begun.get(name) != value}
        record["versions"] = begun | {"resumed": [*begun.get("resumed", []), changed]}
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is not empty and is not a benchmark. Give another folder with --out.")
    else:
        record = {"schema": SCHEMA_VERSION, "settings": plain(settings), "versions": now}
    write_json(path, record)


def _collect_data(folder: Path, due: Sequence[Unit], settings: Settings, progress: Progress) -> None:
    """Collect the data of all units that are due, where they are not there yet.

    All before the first fit: a task that cannot be simulated is found at once, and the time left of the fits is theirs.
    """
    largest = max(settings.sizes)
    wanted: dict[Path, tuple[int, Callable[[], Any]]] = {}  # how many steps are simulated, and the function that does
    for task, _, seed in due:
        tried = settings.states * MOST_CORNERS  # of most tasks: some try fewer actions, some more
        wanted[_data_file(folder, task)] = tried, partial(label, task, settings.states, TEST_SEED)
        wanted[_data_file(folder, task, seed)] = largest, partial(collect, task, largest, seed)
    missing = {path: found for path, found in wanted.items() if not path.is_file()}
    total = sum(steps for steps, _ in missing.values())
    done = 0
    for path, (steps, make) in missing.items():
        progress("simulated steps", done, total, path.stem)
        arrays = {name: value for name, value in vars(make()).items() if value is not None}
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        done += steps
    if missing:
        progress("simulated steps", done, total, "finished")


def _data_file(folder: Path, task: Task, seed: int | None = None) -> Path:
    """Return where the labelled states of a task are, or the training data of a seed."""
    return folder / "data" / (f"{task.name}-test.npz" if seed is None else f"{task.name}-train-{seed}.npz")


def _request(folder: Path, task: Task, size: int, seed: int) -> Request:
    """Return what the process that measures a unit is sent."""
    return Request(
        train=str(_data_file(folder, task, seed)), test=str(_data_file(folder, task)), size=size, seed=seed,
        object=task.object, hand_position=task.hand_position, object_position=task.object_position,
        moves_from=task.tolerance if task.self_moving else None,
    )  # fmt: skip


def _measure_apart(request: Request) -> dict[str, Any]:
    """Run `measure` in a process of its own.

    Ctrl-C reaches only this process, which then kills that one: an unfinished unit leaves nothing.
    """
    command = [sys.executable, "-m", "butfor.benchmarks.measure"]
    ended = subprocess.run(
        command, input=json.dumps(asdict(request)), capture_output=True, text=True, start_new_session=True
    )
    if ended.returncode:
        said = ended.stderr.strip().splitlines()
        raise OSError(
            f"{Path(request.train).stem} with {request.size} transitions could not be measured: "
            f"{said[-1] if said else f'its process ended with code {ended.returncode}'}. Finished units are kept."
        )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found
