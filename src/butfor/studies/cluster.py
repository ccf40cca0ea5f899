"""Units on a Ray cluster: when a worker dies, its unit is resumed elsewhere from the last checkpoint."""

import logging
import os
import platform
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from butfor import __version__
from butfor.rollouts.play import Progress
from butfor.runs.config import plain
from butfor.runs.folder import invoked_as, invoked_command
from butfor.runs.locks import BusyError
from butfor.studies import units
from butfor.studies.units import AnyConfig, Ended

OBJECT_STORE = 80 * 2**20  # bytes, about the least that Ray allows: results travel through files
PATIENCE = 120.0  # seconds that units have for their checkpoints after Ctrl-C
LEASE = 120.0  # seconds until a file server releases the locks of a machine that crashed
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
    """Run units as tasks of a Ray cluster and return their folders.

    Units that a process outside this call works on are left to it. At Ctrl-C every unit writes a checkpoint, and the
    same call resumes from there.

    Args:
        root: a folder on storage that all machines share under the same name.
        address: of the cluster; by default RAY_ADDRESS, else a cluster of this machine for as long as this call. A
            cluster that this process is connected to already takes precedence.
        cpus, gpus: cores and GPUs of each unit.
        retries: how often a unit whose worker died is run again; one that fails by itself is not.
        time_limit: seconds after which each training run stops with a checkpoint.

    Raises:
        StudyError: some units failed; the others were run.
    """
    if cpus < 0 or gpus < 0 or retries < 0:
        raise ValueError(f"cpus, gpus and retries must be at least 0; got {cpus}, {gpus} and {retries}.")
    configs = units.unique(configs)
    ray = _import_ray()
    shared = Path(root).resolve()
    shared.mkdir(parents=True, exist_ok=True)
    # by this file workers recognise that they see the same storage
    with NamedTemporaryFile(prefix=".cluster-", dir=shared) as mark, _connected(ray, address, cpus, gpus):
        # a process for each unit: nothing is left over from the one before
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries, max_calls=1)(_work)
        device = "cuda" if gpus else "cpu"
        pool = RayPool(ray, task, mark.name, device, time_limit, invoked_command(), __version__, max(1, int(cpus)))
        problems = units.run_in_pool(configs, root, pool, retries, progress)
    units.raise_failed(problems)
    return [units.unit_state(config, root).folder for config in configs]


class RayPool:
    """Tasks of a Ray cluster, which queues them itself."""

    def __init__(self, ray: Any, task: Any, *given: Any) -> None:
        self.ray = ray
        self.task = task
        self.given = given
        self.running: dict[Any, AnyConfig] = {}  # Ray's reference -> unit

    def start(self, config: AnyConfig) -> bool:
        """Submit a unit as a task, which processes and Ray's own tools show under the unit's name."""
        task = self.task.options(name=units.unit_name(config))
        self.running[task.remote(units.kind_of(config), plain(config), *self.given)] = config
        return True

    def wait(self) -> list[Ended]:
        """Wait until a task ends, for a second at most."""
        ended = self.ray.wait(list(self.running), timeout=1.0)[0]
        return [self._outcome(self.running.pop(reference), reference) for reference in ended]

    def _outcome(self, config: AnyConfig, reference: Any) -> Ended:
        try:
            self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            if isinstance(error, self.ray.exceptions.TaskCancelledError):  # Ray takes SIGTERM for cancelling
                return config, "lost", f"its worker was lost ({lines[0]})"
            if (cause := getattr(error, "cause", None)) is not None:
                return config, "busy" if isinstance(cause, BusyError) else "failed", units.words_of(cause)
            return config, "failed", f"its worker was lost ({lines[0]})"
        return config, "done", ""

    def stop(self) -> None:
        """Cancel the tasks that are left, and give them time for their checkpoints."""
        for reference in self.running:
            self.ray.cancel(reference)
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=PATIENCE)


def _work(
    kind: str, data: Any, mark: str, device: str, limit: float | None, command: str, version: str, threads: int
) -> str:
    """Run a unit in a worker of the cluster; Ray itself gives torch as many threads there."""
    os.environ.setdefault("BUTFOR_THREADS", str(threads))
    machine = platform.node()
    root = Path(mark).parent
    if version != __version__:
        raise RuntimeError(
            f"{machine} has butfor {__version__}, and the study was started by {version}; install the same everywhere."
        )
    deadline = time.monotonic() + SEEN_WITHIN
    while not Path(mark).is_file():
        if not root.is_dir() or time.monotonic() > deadline:
            found = "has another folder of that name" if root.is_dir() else "does not have it"
            raise FileNotFoundError(
                f"The study's folder is {root}, but {machine} {found}; use a folder on storage that all machines of "
                "the cluster share."
            )
        time.sleep(1.0)
    with invoked_as(command):
        return str(units.run_unit(units.read_config(kind, data), root, device, limit, patience=LEASE))


def _import_ray() -> Any:
    """Return the module, with its usage statistics switched off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"A cluster needs Ray ({error}). Install it with: pip install 'butfor[ray]'") from error
    return ray


@contextmanager
def _connected(ray: Any, address: str | None, cpus: float, gpus: float) -> Iterator[None]:
    """Connect this process to a cluster."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    before = signal.getsignal(signal.SIGTERM)
    in_main_thread = threading.current_thread() is threading.main_thread()
    ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **(own if address == "local" else {}))
    try:
        if in_main_thread and callable(before):  # Ray has set its own
            signal.signal(signal.SIGTERM, before)
        _check_resources(ray.cluster_resources(), cpus, gpus, address == "local")
        yield
    finally:
        ray.shutdown()
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)


def _check_resources(there: dict[str, float], cpus: float, gpus: float, is_final: bool) -> None:
    """Raise where this machine never has what a unit asks for, on which Ray would wait forever; a cluster may grow."""
    if cpus <= there.get("CPU", 0) and gpus <= there.get("GPU", 0):
        return
    have = f"{there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs"
    words = f"A unit asks for {cpus:g} cores and {gpus:g} GPUs, and there are {have}"
    if is_final:
        raise ValueError(f"{words}; ask for fewer.")
    warnings.warn(f"{words}; units wait until the cluster has more.", stacklevel=4)
