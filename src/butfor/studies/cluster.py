"""Units of work on a Ray cluster: a worker that dies is replaced, and its unit goes on from the last checkpoint."""

import logging
import os
import platform
import signal
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from butfor import __version__
from butfor.rollouts.play import Progress
from butfor.runs.config import plain
from butfor.runs.folder import invoked_as, invoked_command
from butfor.runs.locks import BusyError
from butfor.studies.units import (
    LOOK_EVERY,
    AnyConfig,
    kind_of,
    raise_failed,
    read_config,
    run_unit,
    show_episodes,
    unique,
    unit_name,
    unit_state,
    words_of,
)

OBJECT_STORE = 80 * 2**20  # bytes, about the least that Ray allows: results travel through files
PATIENCE = 120.0  # seconds that units have for their checkpoints after Ctrl-C
LEASE = 120.0  # seconds until a file server takes back the locks of a machine that has gone down
SEEN_WITHIN = 60.0  # seconds until a network file system shows a new file everywhere


def run_on_ray(
    configs: Sequence[AnyConfig],
    root: Path | str,
    address: str | None = None,
    *,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
    time_limit: float | None = None,
    progress: Progress = lambda stage, done, total, text: None,
) -> list[Path]:
    """Runs units as tasks of a Ray cluster, each on `cpus` cores and `gpus` GPUs, for at most `time_limit` seconds.

    `root` must be on storage that all machines see under the same name. Without an address that of RAY_ADDRESS is used,
    else a cluster of this machine alone, for as long as this call; a cluster that this process is connected to already
    goes before both. When a worker dies, its unit is run again, up to `retries` times; one that fails by itself is not.
    It does not keep the others from running; at the end an error names all that failed. Units that a process outside
    this call works on are left to it. At Ctrl-C every unit writes a checkpoint, and the same call goes on from there.
    """
    if cpus < 0 or gpus < 0 or retries < 0:
        raise ValueError(f"cpus, gpus and retries must be at least 0; got {cpus}, {gpus} and {retries}.")
    configs, failed, busy, stopped = unique(configs), dict[str, str](), set[str](), Counter[str]()
    ray = _import_ray()
    with _marked(Path(root).resolve()) as mark, _connected(ray, address, cpus, gpus):
        # a process for each unit: nothing is left over from the one before
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries, max_calls=1)(_work)
        given = (str(mark), "cuda" if gpus else "cpu", time_limit, invoked_command(), __version__, max(1, int(cpus)))

        def submit(config: AnyConfig) -> Any:
            """A unit as a task, which processes and Ray's own tools show under the unit's name."""
            return task.options(name=unit_name(config)).remote(kind_of(config), plain(config), *given)

        waiting = {submit(config): config for config in configs}
        try:
            progress("units", 0, len(configs), "")
            looked = time.monotonic()
            while waiting:
                for reference in ray.wait(list(waiting), timeout=1.0)[0]:
                    config = waiting.pop(reference)
                    name = unit_name(config)
                    try:
                        ray.get(reference)
                    except ray.exceptions.RayError as error:
                        by_signal = isinstance(error, ray.exceptions.TaskCancelledError)
                        if by_signal and stopped[name] < retries:  # SIGTERM, which Ray itself takes for a wish to end
                            stopped[name] += 1
                            waiting[submit(config)] = config
                            continue
                        if isinstance(getattr(error, "cause", None), BusyError):
                            busy.add(name)
                        else:
                            failed[name] = _reason(error)
                    text = name + " failed" * (name in failed) + " is left to another process" * (name in busy)
                    progress("units", len(configs) - len(waiting), len(configs), text)
                if not waiting or time.monotonic() - looked > LOOK_EVERY:
                    looked = time.monotonic()
                    show_episodes(configs, root, progress)
        except BaseException:  # Ctrl-C above all
            for reference in waiting:
                ray.cancel(reference)
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=PATIENCE)
            raise
    raise_failed(failed)
    return [unit_state(config, root).folder for config in configs]


def _work(
    kind: str, data: Any, mark: str, device: str, limit: float | None, command: str, version: str, threads: int
) -> str:
    """One unit, in a worker of the cluster; torch has as many threads there by Ray's own doing."""
    os.environ.setdefault("BUTFOR_THREADS", str(threads))
    machine, root = platform.node(), Path(mark).parent
    if version != __version__:
        raise RuntimeError(
            f"{machine} has butfor {__version__}, and the study was started by {version}; install the same everywhere."
        )
    deadline = time.monotonic() + SEEN_WITHIN
    while not Path(mark).is_file():
        if not root.is_dir() or time.monotonic() > deadline:
            found = "has a folder of its own under that name" if root.is_dir() else "has no such folder"
            raise FileNotFoundError(
                f"The units are to be kept in {root}, but {machine} {found}; give a folder on storage that all "
                "machines of the cluster share."
            )
        time.sleep(1.0)
    with invoked_as(command):
        return str(run_unit(read_config(kind, data), root, device, limit, patience=LEASE))


def _reason(error: Any) -> str:
    """Why a unit failed: the sentence of its own error, or Ray's first line on what became of its worker."""
    cause = getattr(error, "cause", None) or error
    if cause is error:
        text = str(cause).strip()
        return f"its worker was lost ({text.splitlines()[0] if text else type(error).__name__})"
    return words_of(cause)


def _import_ray() -> Any:
    """Ray, without its report of usage to its makers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"A cluster needs Ray ({error}); to have it: pip install 'butfor[ray]'.") from error
    return ray


@contextmanager
def _marked(root: Path) -> Iterator[Path]:
    """A file in the root by which workers know that they see the same storage."""
    root.mkdir(parents=True, exist_ok=True)
    mark = root / f".cluster-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


@contextmanager
def _connected(ray: Any, address: str | None, cpus: float, gpus: float) -> Iterator[None]:
    """While in here, this process is connected to a cluster."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    of_its_own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    before, in_main_thread = signal.getsignal(signal.SIGTERM), threading.current_thread() is threading.main_thread()
    ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **(of_its_own if address == "local" else {}))
    try:
        if in_main_thread and callable(before):  # Ray has set its own
            signal.signal(signal.SIGTERM, before)
        _check_resources(ray.cluster_resources(), cpus, gpus, address == "local")
        yield
    finally:
        ray.shutdown()
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)


def _check_resources(there: dict[str, float], cpus: float, gpus: float, all_there_will_be: bool) -> None:
    """Ray waits for ever where nothing has what a task asks for: this machine never will, a cluster may grow."""
    have = f"{there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs"
    if cpus > there.get("CPU", 0) or gpus > there.get("GPU", 0):
        if all_there_will_be:
            raise ValueError(f"A unit asks for {cpus:g} cores and {gpus:g} GPUs; there are {have}. Ask for fewer.")
        warnings.warn(
            f"A unit asks for {cpus:g} cores and {gpus:g} GPUs; the cluster has {have} by now, so units wait for more.",
            stacklevel=4,
        )
