"""Units on a Ray cluster: what a killed worker, a signal, Ctrl-C and a unit that fails leave behind."""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.small_training import results, small

from butfor import __version__
from butfor.runs import locks
from butfor.runs.config import plain
from butfor.runs.files import read_json
from butfor.runs.locks import locked
from butfor.studies import cluster
from butfor.studies.cluster import run_on_ray
from butfor.studies.units import StudyError, run_unit, unit_name, unit_state
from butfor.training.settings import Config

PATIENCE = 240.0  # seconds: the cores may have much else to do
IMPOSSIBLE = small(priority={"kind": "ebp"})  # energy needs goals in space; slide's are on a line


def several(number: int) -> list[Config]:
    """Units of a few seconds each, with a checkpoint every few episodes."""
    same: dict[str, Any] = {
        "episodes": 200,
        "evaluate_every": 10,
        "checkpoint_seconds": 0.2,
        "use": ("priority",),
    }
    return [small(first_seed=seed, **same) for seed in range(number)]


def process_of(config: Config) -> int:
    """The number of the process that runs a unit: Ray shows it under the unit's name."""
    title = f"ray::{unit_name(config)}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (place / "cmdline").read_bytes().startswith(title):
                return int(place.name)
        except OSError:  # it has just ended
            continue
    raise AssertionError(f"no process is called {title.decode()}")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics, with their times."""
    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class AtCheckpoint(threading.Thread):
    """Does something to a unit once it is under way with two checkpoints, and keeps the metrics that these rely on."""

    def __init__(self, config: Config, root: Path, deed: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.config, self.root, self.deed = config, root, deed
        self.kept: list[dict[str, Any]] = []
        self.state = "not reached"

    def run(self) -> None:
        folder, deadline = self.root / unit_name(self.config), time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            episodes = sorted(int(path.name.split("-")[0]) for path in folder.glob("checkpoint/*-*.pt"))
            if len(episodes) == 2 and episodes[0] > 20:  # two evaluations
                self.kept = [row for row in rows_of(folder) if row["episode"] <= episodes[0]]
                self.state = unit_state(self.config, self.root).state
                self.deed()
                return
            time.sleep(0.02)


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of two cores on this machine, which the process is connected to."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    before = signal.getsignal(signal.SIGTERM)
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()
    signal.signal(signal.SIGTERM, before)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_study_survives_the_loss_of_a_worker(two_workers: None, tmp_path: Path, number: int) -> None:
    """Three units and one that cannot work, on two workers, one of which is killed: nothing else is missing."""
    units, shown = several(3), list[tuple[str, int, int, str]]()
    loss = AtCheckpoint(units[0], tmp_path / "ray", lambda: os.kill(process_of(units[0]), number))
    loss.start()
    with pytest.raises(StudyError) as failed:
        run_on_ray([*units, IMPOSSIBLE], tmp_path / "ray", progress=lambda *given: shown.append(given))
    assert loss.state == "begun"
    assert loss.kept
    assert "1 unit" in str(failed.value)
    assert f"{unit_name(IMPOSSIBLE)}: priority.kind 'ebp'" in str(failed.value)
    units_done = [(done, total) for stage, done, total, _ in shown if stage == "units"]  # beside that of episodes
    assert units_done == [(done, 4) for done in range(5)]
    assert f"{unit_name(IMPOSSIBLE)} failed" in [text for _, _, _, text in shown]

    names = {path.name for path in (tmp_path / "ray").iterdir()}
    assert names == {unit_name(unit) for unit in units}  # no mark either
    killed = tmp_path / "ray" / unit_name(units[0])
    assert rows_of(killed)[: len(loss.kept)] == loss.kept  # with their times: played once, not again
    assert len(list((killed / "events").iterdir())) == 2  # one a process
    for unit in units:
        assert unit_state(unit, tmp_path / "ray").state == "finished"
    unbroken = run_unit(units[0], tmp_path / "here")
    assert results(killed) == results(unbroken)
    arguments = read_json(killed / "versions.json")["command"]
    assert arguments == read_json(unbroken / "versions.json")["command"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_after_ctrl_c_the_same_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster of its own, which ends with the call. A unit that is stopped by a signal writes a checkpoint."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (unit,), handler = several(1), signal.getsignal(signal.SIGTERM)
    stop = AtCheckpoint(unit, tmp_path / "ray", lambda: os.kill(os.getpid(), signal.SIGINT))
    stop.start()
    with pytest.raises(KeyboardInterrupt):
        run_on_ray([unit], tmp_path / "ray")
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is handler
    stopped = unit_state(unit, tmp_path / "ray")  # a summary is written at a stop, not when a process is killed
    assert stopped.state == "begun"
    assert 0 < stopped.played < unit.episodes
    (folder,) = run_on_ray([unit], tmp_path / "ray")
    assert rows_of(folder)[: len(stop.kept)] == stop.kept
    assert results(folder) == results(run_unit(unit, tmp_path / "here"))


class FakeRay(ModuleType):
    """Ray's functions, as far as they are used, in one process: a task runs when it is waited for, the last first."""

    class exceptions:
        class RayError(Exception):
            cause: Exception | None = None

        class TaskCancelledError(RayError):
            pass

    def __init__(self, stops: int = 0) -> None:
        """`stops` tasks are ended by a signal before they begin."""
        super().__init__("ray")
        self.stops, self.is_up = stops, False
        self.asked: dict[str, Any] = {}
        self.given: list[Any] = []
        self.tasks: dict[int, Callable[[], str]] = {}
        self.cancelled: list[int] = []

    def is_initialized(self) -> bool:
        return self.is_up

    def init(self, address: str, **options: Any) -> None:
        self.is_up, self.asked = True, {"address": address, **options}

    def shutdown(self) -> None:
        self.is_up = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0, "memory": 1e9}

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        self.asked |= options

        def wrap(function: Any) -> Any:
            wrapped, fake = ModuleType("task"), self

            def remote(*given: Any) -> int:
                number = len(fake.given)
                fake.given.append(given)
                fake.tasks[number] = lambda: str(function(*given))
                return number

            vars(wrapped).update(remote=remote, options=lambda name: wrapped)
            return wrapped

        return wrap

    def wait(self, waiting: list[int], num_returns: int = 1, timeout: float = 0) -> tuple[list[int], list[int]]:
        return waiting[-1:], waiting[:-1]

    def get(self, number: int) -> str:
        if self.stops:
            self.stops -= 1
            raise self.exceptions.TaskCancelledError("This task was cancelled.")
        try:
            return self.tasks[number]()
        except Exception as error:
            wrapped = self.exceptions.RayError("a traceback of many lines")
            wrapped.cause = error
            raise wrapped from error

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)


def fake(monkeypatch: pytest.MonkeyPatch, stops: int = 0) -> FakeRay:
    """A fake in Ray's place, and the arguments and threads of this process put back at the end."""
    module = FakeRay(stops)
    monkeypatch.setenv("BUTFOR_THREADS", "1")
    monkeypatch.delenv("BUTFOR_THREADS")
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return module


@pytest.mark.parametrize(("cpus", "threads"), [(0, "1"), (0.5, "1"), (2.5, "2")])
def test_a_unit_simulates_with_as_many_threads_as_it_has_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: float, threads: str
) -> None:
    fake(monkeypatch).cluster_resources = lambda: {"CPU": 4.0}  # type: ignore[method-assign]
    run_on_ray([small()], tmp_path, cpus=cpus)
    assert os.environ["BUTFOR_THREADS"] == threads


def test_units_travel_as_json_and_come_back_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each config once; a unit that a signal ended is submitted again."""
    ray = fake(monkeypatch, stops=1)
    units = [small(first_seed=seed) for seed in (3, 1)]
    folders = run_on_ray([*units, units[0]], tmp_path / "new" / "root", cpus=2, retries=1)
    assert folders == [tmp_path / "new" / "root" / unit_name(unit) for unit in units]
    assert all(unit_state(unit, tmp_path / "new" / "root").state == "finished" for unit in units)
    given = [json.loads(json.dumps(given)) for given in ray.given]
    assert [(kind, data) for kind, data, *_ in given] == [("training", plain(units[i])) for i in (0, 1, 1)]
    expected = {"num_cpus": 2, "num_gpus": 0, "max_retries": 1, "address": "local", "include_dashboard": False}
    assert ray.asked.items() >= expected.items()
    assert not ray.is_up


def test_what_fails_is_named_and_the_others_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = fake(monkeypatch)
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    with pytest.raises(StudyError, match="'ebp'") as failed:
        run_on_ray([small(), IMPOSSIBLE], tmp_path)
    assert "traceback" not in str(failed.value)
    assert unit_state(small(), tmp_path).state == "finished"
    assert len(ray.given) == 2  # not tried again
    assert ray.asked["address"] == "192.0.2.1:6379"
    assert "object_store_memory" not in ray.asked  # which only one who starts a cluster may choose


def test_what_a_process_outside_works_on_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch)
    monkeypatch.setattr(locks, "GRACE", 0.0)
    theirs, ours, shown = small(first_seed=1), small(), list[tuple[str, str]]()
    with locked(tmp_path / unit_name(theirs)):
        run_on_ray([theirs, ours], tmp_path, progress=lambda stage, done, total, text: shown.append((stage, text)))
    assert shown[-1][0] == "episodes"
    texts = [text for stage, text in shown if stage == "units"]
    assert texts == ["", unit_name(ours), f"{unit_name(theirs)} is left to another process"]
    assert [unit_state(unit, tmp_path).state for unit in (theirs, ours)] == ["absent", "finished"]


def test_a_unit_that_is_stopped_too_often_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = fake(monkeypatch, stops=3)
    with pytest.raises(StudyError, match="This task was cancelled"):
        run_on_ray([small()], tmp_path, retries=2)
    assert len(ray.given) == 3


def test_ctrl_c_cancels_what_has_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = fake(monkeypatch)

    def interrupt(stage: str, done: int, total: int, text: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_ray([small(first_seed=seed) for seed in range(3)], tmp_path, progress=interrupt)
    assert ray.cancelled == [0, 1]
    assert not ray.is_up
    assert [path.name for path in tmp_path.iterdir()] == [unit_name(small(first_seed=2))]


def test_a_machine_without_the_storage_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the same name on a disk of its own does not pass for it."""
    monkeypatch.setattr(cluster, "SEEN_WITHIN", 0.0)
    config = plain(small())
    with pytest.raises(FileNotFoundError, match="absent"):
        cluster._work("training", config, str(tmp_path / "absent" / "mark"), "cpu", None, "", __version__, 1)
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path))):
        cluster._work("training", config, str(tmp_path / "mark"), "cpu", None, "", __version__, 1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match=r"0\.0\.0"):
        cluster._work("training", config, str(tmp_path / "mark"), "cpu", None, "", "0.0.0", 1)


def test_more_than_there_is_is_refused_or_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = fake(monkeypatch)
    with pytest.raises(ValueError, match=r"1 GPUs.* 0 GPUs"):
        run_on_ray([small()], tmp_path, gpus=1)
    assert not ray.is_up
    with pytest.warns(UserWarning, match="0 GPUs"):
        run_on_ray([small()], tmp_path, "192.0.2.1:6379", cpus=3)
    with pytest.raises(ValueError, match=r"retries.*-1"):
        run_on_ray([small()], tmp_path, retries=-1)


def test_without_ray_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'butfor\[ray\]'"):
        run_on_ray([small()], tmp_path / "root")
    assert not (tmp_path / "root").exists()
