"""A unit is named after its config, is skipped when finished, goes on when cut off, and fails alone."""

import os
import platform
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.project import ROOT
from support.small_detection import CONFIG
from support.small_training import models, results, small

from butfor.detection.settings import DetectionConfig, detection_preset
from butfor.reporting import pictures, study_page
from butfor.runs import locks
from butfor.runs.config import plain
from butfor.runs.files import read_json, write_json
from butfor.runs.folder import open_run
from butfor.runs.locks import BusyError, locked, worker_on
from butfor.studies import units
from butfor.studies.units import StudyError, kind_of, read_config, run_here, run_unit, unit_name, unit_state
from butfor.training.run import train
from butfor.training.settings import Config, preset

torch.set_num_threads(1)


def test_names_are_different_and_readable() -> None:
    assert unit_name(Config()) == unit_name(replace(Config(), seeds=1))
    assert unit_name(Config()).startswith("pick-and-place-")
    configs: list[Any] = [Config(), replace(Config(), seeds=2), preset("slide"), preset("push"), DetectionConfig()]
    configs += [preset("pick-and-place", name) for name in ("intrinsic", "vime", "disagreement", "disagreement-full")]
    configs += [replace(Config(), bonus=replace(Config().bonus, weight=weight)) for weight in (0.1, 0.25)]
    names = [unit_name(config) for config in configs]
    assert len(set(names)) == len(names)
    assert all(len(name) < 80 and "/" not in name for name in names)


def test_configs_of_both_kinds_travel_as_json() -> None:
    for config in (preset("rot-table"), preset("pick-and-place", "vime"), detection_preset("pick-and-place")):
        assert read_config(kind_of(config), plain(config)) == config


def test_a_unit_is_absent_begun_and_finished(tmp_path: Path) -> None:
    config = small(seeds=2)
    assert unit_state(config, tmp_path).state == "absent"

    def stop(stage: str, done: int, total: int, text: str) -> None:
        if stage == "episodes" and done >= 6:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_unit(replace(config, checkpoint_seconds=0.0), tmp_path / "other", progress=stop)
    broken = replace(config, checkpoint_seconds=0.0)
    assert unit_state(broken, tmp_path / "other").state == "begun"
    folder = run_unit(broken, tmp_path / "other")
    assert unit_state(broken, tmp_path / "other") == units.UnitState(folder, "finished", 10, 10)
    whole = train(broken, tmp_path / "whole")
    assert results(folder) == results(whole)  # cut off and gone on with, it is the same run


def test_a_finished_unit_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small()
    folder = run_unit(config, tmp_path)
    monkeypatch.setattr(units, "train", None)
    monkeypatch.setattr(units, "resume", None)
    assert run_unit(config, tmp_path) == folder
    assert run_here([config, config], tmp_path) == [folder]  # and a config that two studies share is one unit


def test_a_unit_of_detection_ends_with_its_report(tmp_path: Path) -> None:
    """Also one that was cut off after its numbers; a report that cannot be written leaves it finished."""
    folder = run_unit(CONFIG, tmp_path)
    assert "Influence detection in <em>slide</em>" in (folder / "report.html").read_text(encoding="utf-8")
    before = [(folder / name).stat().st_mtime_ns for name in ("summary.json", "report.html")]
    assert run_unit(CONFIG, tmp_path) == folder
    assert [(folder / name).stat().st_mtime_ns for name in ("summary.json", "report.html")] == before
    (folder / "report.html").unlink()
    run_here([CONFIG], tmp_path)
    assert (folder / "report.html").is_file()
    (folder / "report.html").unlink()
    (folder / "scores.npz").unlink()
    shown: list[Any] = []
    run_here([CONFIG], tmp_path, progress=lambda *given: shown.append(given))
    assert "scores.npz" in next(text for stage, _, _, text in shown if stage == "report")
    assert not (folder / "report.html").exists()


def test_a_unit_of_detection_is_drawn_as_far_as_the_machine_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, done, shown = detection_preset("pick-and-place", "demo"), list[str](), list[str]()

    def fail(error: Exception) -> Callable[..., None]:
        def raise_it(*given: Any) -> None:
            raise error

        return raise_it

    def show(stage: str, count: int, total: int, text: str) -> None:
        shown.append(text)

    def run(config: Any, folder: Path, device: str, progress: Any) -> None:
        open_run(folder, "detection", config)
        done.append("run")

    monkeypatch.setattr(units, "run_detection", run)
    monkeypatch.setattr(pictures, "write_scene", lambda folder, progress: done.append("scene"))
    monkeypatch.setattr(pictures, "write_pictures", lambda folder, progress: done.append("pictures"))
    monkeypatch.setattr(study_page, "write_report", lambda folder: done.append("report"))
    run_unit(config, tmp_path, progress=show)
    assert done == ["run", "scene", "pictures", "report"]
    monkeypatch.setattr(pictures, "write_pictures", fail(RuntimeError("no screen")))
    monkeypatch.setattr(study_page, "write_report", fail(ImportError("No module named 'plotly'")))
    run_unit(config, tmp_path, progress=show)
    assert shown[0] == "done"
    assert all(reason in shown[1] for reason in ("no screen", "'plotly'"))


def test_a_folder_of_other_settings_is_not_taken_for_the_unit(tmp_path: Path) -> None:
    """A default that has changed since leaves the name as it was."""
    config = small()
    folder = run_unit(config, tmp_path)
    record = read_json(folder / "config.json")
    record["config"]["agent"]["discount"] = 0.5
    write_json(folder / "config.json", record)
    with pytest.raises(ValueError, match=re.escape(unit_name(small()))):
        run_unit(config, tmp_path)


def test_interrupted_it_does_not_say_how_to_go_on_with_a_part(tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int, text: str) -> None:
        if stage == "episodes" and done >= 6:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stopped:
        run_unit(small(), tmp_path, progress=stop)
    assert not stopped.value.args
    assert unit_state(small(), tmp_path).state == "begun"


def test_a_time_limit_leaves_a_unit_to_go_on_with(tmp_path: Path) -> None:
    config, shown = small(), list[tuple[Any, ...]]()
    run_here([config], tmp_path, time_limit=0.0, progress=lambda *given: shown.append(given))
    assert shown[-1] == ("units", 0, 1, "1 stopped by the time limit")
    state = unit_state(config, tmp_path)
    assert (state.state, state.asked) == ("begun", 10)
    assert state.played < 10
    run_unit(config, tmp_path)
    assert unit_state(config, tmp_path).state == "finished"


def test_one_that_fails_is_named_and_stops_no_other(tmp_path: Path) -> None:
    wrong = replace(small(), priority=replace(small().priority, kind="ebp"))  # needs positions; slide has none
    right = small(seeds=2)
    with pytest.raises(StudyError, match="ebp"):
        run_here([wrong, right], tmp_path)
    assert unit_state(right, tmp_path).state == "finished"


def test_several_devices_work_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes share the CPU here; each gives what it gives alone."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # for the same bits
    configs = [small(seeds=seeds) for seeds in (1, 2)]
    shown: list[Any] = []
    folders = run_here(configs, tmp_path, ["cpu", "cpu"], progress=lambda *given: shown.append(given))
    asked = sum(config.episodes for config in configs)
    assert [given[:3] for given in shown if given[0] == "episodes"][-1] == ("episodes", asked, asked)
    assert shown[-1] == ("units", 2, 2, "done")
    assert [unit_state(config, tmp_path).state for config in configs] == ["finished", "finished"]
    assert results(folders[0]) == results(run_unit(configs[0], tmp_path / "alone"))


def test_processes_side_by_side_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user has said otherwise."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(units, "processors", lambda: 7)
    monkeypatch.setenv("BUTFOR_THREADS", "5")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    try:
        torch.set_num_threads(4)
        units.share_processors(2)
        assert (os.environ["BUTFOR_THREADS"], torch.get_num_threads()) == ("5", 4)
        monkeypatch.delenv("OMP_NUM_THREADS")
        for processes, share in ((2, 3), (20, 1), (1, 7)):
            monkeypatch.setenv("BUTFOR_THREADS", "")
            units.share_processors(processes)
            assert (os.environ["BUTFOR_THREADS"], torch.get_num_threads()) == (str(share), share)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (None, ("done", "")),
        (KeyboardInterrupt(), ("lost", "")),
        (BusyError("process 7 works on it"), ("busy", "process 7 works on it")),
        (ValueError("Give a number."), ("failed", "Give a number.")),
        (KeyError("speed"), ("failed", "KeyError: 'speed'")),
        (RuntimeError(), ("failed", "RuntimeError: ")),
    ],
)
def test_a_worker_shares_the_processors_and_tells_what_came_of_its_unit(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException | None, outcome: tuple[str, str]
) -> None:
    told: list[Any] = []

    def run(*given: Any) -> None:
        told.append(given)
        if raised is not None:
            raised.__traceback__ = None
            raise raised

    monkeypatch.setattr(units, "run_unit", run)
    monkeypatch.setattr(units, "share_processors", told.append)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    answer = types.SimpleNamespace(send=told.append)
    try:
        units._work(small(), "cpu", "root", 5.0, 3, "butfor", answer)  # type: ignore[arg-type]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert told == [3, (small(), "root", "cpu", 5.0), outcome]


# --- interrupted and killed side by side ----------------------------------------------------------

LONG = {"episodes": 2000, "checkpoint_seconds": 1e5}  # nothing is saved but at a stop
SIDE_BY_SIDE = """
import sys
from pathlib import Path
from support.small_training import small
from butfor.studies.units import run_here
if __name__ == "__main__":
    run_here([small(first_seed=seed, **eval(sys.argv[2])) for seed in range(3)], sys.argv[1], ["cpu", "cpu"])
"""


@pytest.fixture
def side_by_side(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs three long units, two at a time, both of them at work."""
    (tmp_path / "script.py").write_text(SIDE_BY_SIDE)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "root"), repr(LONG)]
    with subprocess.Popen(
        command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: len(list((tmp_path / "root").glob("*/metrics.jsonl"))) == 2)
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_saved(root: Path, group: int) -> None:
    """Two units have a checkpoint each, the third has not begun, and no process is left."""

    def is_gone() -> bool:
        with suppress(ProcessLookupError):
            os.killpg(group, 0)
            return False
        return True

    wait_until(is_gone)
    folders = [path for path in root.iterdir() if path.is_dir()]
    assert len(folders) == 2
    for folder in folders:
        assert list((folder / "checkpoint").glob("*.pt"))
        assert 0 < read_json(folder / "summary.json")["played"] < LONG["episodes"]


def test_a_unit_whose_process_is_killed_is_run_again_and_ctrl_c_saves_all(
    tmp_path: Path, side_by_side: subprocess.Popen[str]
) -> None:
    """The other one does not notice that; a terminal sends Ctrl-C to the parent and to all workers."""
    first, second = (path.parent for path in sorted((tmp_path / "root").glob("*/metrics.jsonl")))
    killed, other = (int(worker_on(folder).split()[1]) for folder in (first, second))
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: worker_on(first) not in ("", f"process {killed} on {platform.node()}"))
    again = time.time()
    summary = first / "summary.json"  # which the killed one may not have got to
    wait_until(lambda: summary.exists() and summary.stat().st_mtime > again)  # the new one has evaluated
    assert int(worker_on(second).split()[1]) == other
    os.killpg(side_by_side.pid, signal.SIGINT)
    _, said = side_by_side.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert "Error" not in said
    assert_saved(tmp_path / "root", side_by_side.pid)


def test_a_schedulers_signal_to_all_saves_all(tmp_path: Path, side_by_side: subprocess.Popen[str]) -> None:
    os.killpg(side_by_side.pid, signal.SIGTERM)
    side_by_side.communicate(timeout=60)
    assert_saved(tmp_path / "root", side_by_side.pid)


# --- two processes on one root --------------------------------------------------------------------

HOLD = """
import sys, time
from butfor.runs.locks import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_unit_of_another_process_is_left_to_it_and_taken_over_when_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a killed process' lock stays, and keeps nobody out."""
    monkeypatch.setattr(locks, "GRACE", 0.0)
    theirs, ours, shown = small(), small(seeds=2), list[tuple[Any, ...]]()
    folder = run_unit(theirs, tmp_path, time_limit=0.0)
    begun = models(folder)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        state = unit_state(theirs, tmp_path)
        assert (state.state, state.worker.split(" on ")[0]) == ("begun", f"process {other.pid}")
        run_here([theirs, ours], tmp_path, progress=lambda *given: shown.append(given))
        assert shown[-1] == ("units", 1, 2, "1 left to other processes")
        assert unit_state(ours, tmp_path).state == "finished"
        with pytest.raises(BusyError, match=f"process {other.pid} on "):
            run_unit(theirs, tmp_path)
        assert models(folder) == begun  # nothing was touched
        other.kill()
    assert unit_state(theirs, tmp_path).worker == ""
    assert locks.lock_path(folder).is_file()
    run_here([theirs], tmp_path)
    assert unit_state(theirs, tmp_path).state == "finished"
    assert not locks.lock_path(folder).exists()


def test_while_a_unit_is_run_others_see_who_does_it(tmp_path: Path) -> None:
    seen: set[tuple[str, bool]] = set()

    def look(stage: str, done: int, total: int, text: str) -> None:
        state = unit_state(small(), tmp_path)
        seen.add((state.state, state.worker.startswith(f"process {os.getpid()} on ")))

    run_unit(small(), tmp_path, progress=look)
    assert seen == {("begun", True)}
    assert [path.name for path in tmp_path.iterdir()] == [unit_name(small())]


def test_a_unit_that_is_given_up_by_another_process_is_run_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "GRACE", 0.0)
    first, second = small(), small(seeds=2)
    with ExitStack() as held:
        held.enter_context(locked(tmp_path / unit_name(first)))

        def give_up(stage: str, done: int, total: int, text: str) -> None:
            if text == unit_name(second):
                held.close()

        run_here([first, second], tmp_path, progress=give_up)
    assert [unit_state(config, tmp_path).state for config in (first, second)] == ["finished", "finished"]


def test_a_unit_that_was_finished_while_its_lock_was_waited_for_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(("begun", "finished"))
    monkeypatch.setattr(units, "unit_state", lambda config, root: units.UnitState(tmp_path / "u", next(found)))  # type: ignore[arg-type]
    monkeypatch.setattr(units, "resume", None)
    assert run_unit(small(), tmp_path) == tmp_path / "u"


ORPHAN = """
import multiprocessing, os, threading, time
from butfor.studies.units import _stop_without_parent
def work():
    threading.Thread(target=_stop_without_parent, daemon=True).start()
    print(os.getpid(), flush=True)
    time.sleep(100)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    time.sleep(100)
"""


def test_a_worker_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "orphan.py").write_text(ORPHAN)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "orphan.py")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())  # it runs, and watches
    parent.kill()
    parent.wait()
    for _ in range(300):
        status = Path(f"/proc/{worker}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            break
        time.sleep(0.1)
    else:
        os.kill(worker, 9)
        pytest.fail("the worker still runs")
    parent.stdout.close()
