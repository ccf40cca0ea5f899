"""A unit of work: a pure function from a config to a run folder that is named after the config."""

import hashlib
import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from butfor.detection import run_detection
from butfor.detection_settings import DetectionConfig
from butfor.files import read_json
from butfor.record import config_from, plain, read_run, run_label, run_name
from butfor.rollout import Progress
from butfor.settings import Config
from butfor.train import resume, train

AnyConfig = Config | DetectionConfig
LONGEST_NAME = 90


class StudyError(RuntimeError):
    """Some units failed; the sentence says which and why. The others are finished."""


@dataclass(frozen=True)
class UnitState:
    """How far a unit is."""

    folder: Path
    state: Literal["absent", "begun", "finished"]
    played: int = 0
    """episodes of each seed (training)"""
    asked: int = 0


def kind_of(config: AnyConfig) -> Literal["training", "detection"]:
    """What a config is for, as run folders name it."""
    return "training" if isinstance(config, Config) else "detection"


def unit_name(config: AnyConfig) -> str:
    """A folder's name that says how the config differs from the defaults, and a digest that tells all apart."""
    kind = kind_of(config)
    digest = hashlib.blake2b(run_label(kind, config).encode(), digest_size=6).hexdigest()
    return f"{run_name(kind, config)[:LONGEST_NAME].rstrip('-.')}-{digest}"


def unit_state(config: AnyConfig, root: Path | str) -> UnitState:
    """Whether a unit's folder is absent, begun or finished."""
    folder = Path(root) / unit_name(config)
    asked = config.episodes if isinstance(config, Config) else 0
    if not (folder / "config.json").is_file():
        return UnitState(folder, "absent", 0, asked)
    if not (folder / "summary.json").is_file():
        return UnitState(folder, "begun", 0, asked)
    held = read_run(folder)
    if plain(read_config(held["kind"], held["config"])) != plain(config):
        raise ValueError(f"{folder} holds a run with other settings, of another version of butfor; use another root.")
    summary = read_json(folder / "summary.json")
    finished = bool(summary.get("finished", True))  # a detection run writes its summary at the end
    return UnitState(folder, "finished" if finished else "begun", int(summary.get("played", 0)), asked)


def run_unit(
    config: AnyConfig,
    root: Path | str,
    device: torch.device | str = "cpu",
    time_limit: float | None = None,
    progress: Progress = lambda stage, done, total, text: None,
) -> Path:
    """Fills a unit's folder: begins, goes on where it was cut off, or finds it finished."""
    before = unit_state(config, root)
    if before.state == "finished":
        return before.folder
    if isinstance(config, DetectionConfig):
        return run_detection(config, before.folder, device, progress=progress)
    try:
        if before.state == "absent":
            return train(config, before.folder, device, time_limit=time_limit, progress=progress)
        return resume(before.folder, device, time_limit=time_limit, progress=progress)
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt from stopped  # it says how to go on with a run, and this is a part of a study


def run_here(
    configs: Sequence[AnyConfig],
    root: Path | str,
    devices: Sequence[str] = ("cpu",),
    time_limit: float | None = None,
    progress: Progress = lambda stage, done, total, text: None,
) -> list[Path]:
    """Runs units on this machine, one after the other; with several devices, one process a device.

    A unit that fails does not keep the others from running; at the end an error names all that failed.
    """
    configs = unique(configs)
    failed: dict[str, BaseException] = {}
    if len(devices) <= 1:
        for number, config in enumerate(configs):
            progress("units", number, len(configs), unit_name(config))
            try:
                run_unit(config, root, devices[0] if devices else "cpu", time_limit, progress)
            except Exception as error:
                failed[unit_name(config)] = error
    else:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        with ProcessPoolExecutor(len(devices), mp_context=context) as pool:
            queue = context.Manager().Queue()
            for device in devices:
                queue.put(device)
            futures = {
                pool.submit(_run_on_free_device, kind_of(c), plain(c), str(root), queue, time_limit): c for c in configs
            }
            try:
                for number, future in enumerate(as_completed(futures)):
                    config = futures[future]
                    problem = future.exception()
                    if problem is not None:
                        failed[unit_name(config)] = problem
                    progress("units", number + 1, len(configs), unit_name(config))
            except BaseException:  # what runs finishes its episode and saves; what waits does not begin
                for process in multiprocessing.active_children():
                    process.terminate()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    raise_failed(failed)
    progress("units", len(configs), len(configs), "done")
    return [unit_state(config, root).folder for config in configs]


def raise_failed(failed: dict[str, Any]) -> None:
    """One error for all units that failed."""
    if failed:
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise StudyError(f"{len(failed)} unit(s) failed, the others are kept: {reasons}")


def read_config(kind: str, data: Any) -> AnyConfig:
    """A config back from `record.plain`."""
    return config_from(Config, data) if kind == "training" else config_from(DetectionConfig, data)


def unique(configs: Iterable[AnyConfig]) -> list[AnyConfig]:
    """Each config once: arms of a study may share one."""
    return list({unit_name(config): config for config in configs}.values())


def _run_on_free_device(kind: str, data: Any, root: str, queue: Any, time_limit: float | None) -> str:
    """A unit in a process of its own, on the next device that is free."""
    device = queue.get()
    try:
        return str(run_unit(read_config(kind, data), root, device, time_limit))
    finally:
        queue.put(device)
