"""A unit of work: a pure function from a config to a run folder that is named after the config."""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

import torch

from butfor.detection.experiment import run_detection
from butfor.detection.settings import DetectionConfig
from butfor.envs import processors
from butfor.rollouts.play import Progress
from butfor.runs.config import config_from, plain
from butfor.runs.files import read_json
from butfor.runs.folder import invoked_as, invoked_command, run_name
from butfor.runs.locks import BusyError, locked, worker_on
from butfor.runs.reading import read_run
from butfor.training.run import resume, train
from butfor.training.settings import Config

AnyConfig = Config | DetectionConfig
RETRIES = 3  # of a unit whose process was killed
FEWER = "All seeds of a run are one batch: give fewer by --seeds, in a study fewer --processes, or take --device cpu."
LESS = "Give fewer rows or episodes, or take --device cpu."  # to commands that have no --seeds
LOOK_EVERY = 5.0  # seconds, after which it is said anew how far units in other processes are


class StudyError(RuntimeError):
    """Some units failed; the sentence says which and why. The others are finished."""


@dataclass(frozen=True)
class UnitState:
    """How far a unit is."""

    folder: Path
    state: Literal["absent", "begun", "finished", "broken"]
    played: int = 0
    """episodes of each seed (training)"""
    asked: int = 0
    worker: str = ""
    """the process that works on it now, where it is not finished"""
    words: str = ""
    """what is damaged, and what to do about it"""


def kind_of(config: AnyConfig) -> Literal["training", "detection"]:
    """What a config is for, as run folders name it."""
    return "training" if isinstance(config, Config) else "detection"


def unit_name(config: AnyConfig) -> str:
    """Return the name of a unit's folder; its digest is long enough for all units of a study to differ."""
    return run_name(kind_of(config), config, digits=8)


def unit_state(config: AnyConfig, root: Path | str) -> UnitState:
    """Whether a unit's folder is absent, begun, finished, or so damaged that only its user can decide what to do.

    Where only the summary of a training run is damaged, the run goes on from its checkpoint, which writes it anew.
    """
    folder = Path(root) / unit_name(config)
    asked = config.episodes if isinstance(config, Config) else 0
    summary = folder / "summary.json"
    if not (folder / "config.json").is_file():
        return UnitState(folder, "absent", 0, asked, worker_on(folder))
    try:
        held = read_run(folder)
        if plain(read_config(held["kind"], held["config"])) != plain(config):
            raise ValueError(
                f"{folder} holds a run with other settings, of another version of butfor; use another root."
            )
    except (OSError, ValueError) as error:
        return UnitState(folder, "broken", 0, asked, words=f"{error} Delete {folder} to run it anew.")
    if not summary.is_file():
        return UnitState(folder, "begun", 0, asked, worker_on(folder))
    try:
        found = dict(read_json(summary))
        finished = bool(found.get("finished", True))  # a detection run writes its summary at the end
        played = int(found.get("played", 0))
    except (OSError, ValueError, TypeError) as error:
        trains = isinstance(config, Config)
        if trains and any((folder / "checkpoint").glob("*.pt")):
            words = f"{summary} is damaged; butfor study run writes it anew from the checkpoint."
            return UnitState(folder, "begun", 0, asked, worker_on(folder), words)
        words = f"{error} Delete {folder if trains else summary} to run it anew."
        return UnitState(folder, "broken", 0, asked, words=words)
    if finished:
        return UnitState(folder, "finished", played, asked)
    return UnitState(folder, "begun", played, asked, worker_on(folder))


def run_unit(
    config: AnyConfig,
    root: Path | str,
    device: torch.device | str = "cpu",
    time_limit: float | None = None,
    progress: Progress = lambda stage, done, total, text: None,
    patience: float = 0.0,
) -> Path:
    """Fills a unit's folder: begins, goes on where it was cut off, or finds it finished.

    A unit of detection ends with pictures and a report, as far as this machine can make them. A `BusyError` where
    another process works on it; `patience` is that of `locked`.
    """
    before = unit_state(config, root)
    folder = before.folder
    if before.state == "finished" and _is_shown(config, folder):
        return folder
    if before.state == "broken":
        raise ValueError(before.words)
    with locked(folder, patience):
        state = unit_state(config, root).state  # once more: another process may just have gone on with it
        if isinstance(config, DetectionConfig):
            run_detection(config, folder, device, progress=progress)  # one that is finished stays as it is
            return _show(config, folder, progress)
        if state == "finished":
            return folder
        try:
            if state == "absent":
                return train(config, folder, device, time_limit=time_limit, progress=progress)
            return resume(folder, device, time_limit=time_limit, progress=progress)
        except KeyboardInterrupt as stopped:
            raise KeyboardInterrupt from stopped  # it says how to go on with a run, and this is a part of a study


def _is_shown(config: AnyConfig, folder: Path) -> bool:
    """Whether nothing is left to draw: of training, films and pages are made by commands of their own."""
    from butfor.reporting.pictures import is_illustrated

    return isinstance(config, Config) or is_illustrated(folder)


def _show(config: DetectionConfig, folder: Path, progress: Progress) -> Path:
    """Pictures and the report of a finished detection run; what cannot be made is said and makes no unit fail."""
    from butfor.reporting.pictures import illustrate

    try:
        _, lacking = illustrate(folder, progress=progress)
    except (ValueError, OSError) as error:  # of the report: somebody has taken files of the run away
        lacking = [str(error)]
    progress("report", 1, 1, "; ".join(lacking) or "done")
    return folder


def run_here(
    configs: Sequence[AnyConfig],
    root: Path | str,
    devices: Sequence[str] = ("cpu",),
    time_limit: float | None = None,
    progress: Progress = lambda stage, done, total, text: None,
) -> list[Path]:
    """Runs units on this machine, one after the other; with several devices, one process for each.

    A device may be named several times: simulation is what takes longest, and leaves a GPU idle most of the time.
    A unit that fails does not keep the others from running; at the end an error names all that failed. Units that
    another process works on are left to it, and tried again at the end.
    """
    configs = unique(configs)
    failed, left = dict[str, BaseException](), configs
    while left:
        run = _run_in_turn if len(devices) <= 1 else _run_side_by_side
        problems = run(left, root, devices or ("cpu",), time_limit, progress)
        busy = [config for config in left if isinstance(problems.get(unit_name(config)), BusyError)]
        failed |= {name: error for name, error in problems.items() if not isinstance(error, BusyError)}
        if len(busy) == len(left):  # others work on all of them
            break
        left = busy
    raise_failed(failed)
    states = [unit_state(config, root) for config in configs]
    finished = sum(state.state == "finished" for state in states)
    others = {"left to other processes": len(left), "cut off by the time limit": len(configs) - finished - len(left)}
    text = ", ".join(f"{count} {what}" for what, count in others.items() if count > 0)
    progress("units", finished, len(configs), text or "done")
    return [state.folder for state in states]


def _run_in_turn(
    configs: Sequence[AnyConfig], root: Path | str, devices: Sequence[str], limit: float | None, progress: Progress
) -> dict[str, BaseException]:
    """Units one after the other, and what kept some of them from being run."""
    problems: dict[str, BaseException] = {}
    for number, config in enumerate(configs):
        progress("units", number, len(configs), unit_name(config))
        try:
            run_unit(config, root, devices[0], limit, progress)
        except Exception as error:
            problems[unit_name(config)] = error
    return problems


def _run_side_by_side(
    configs: Sequence[AnyConfig], root: Path | str, devices: Sequence[str], limit: float | None, progress: Progress
) -> dict[str, BaseException]:
    """Units in processes of their own, one for each device, and what kept some of them from being run.

    A unit whose process is killed is run again, up to RETRIES times. At Ctrl-C every unit writes a checkpoint.
    """
    problems, lost = dict[str, BaseException](), Counter[str]()
    waiting, free, workers = deque(configs), deque(devices), list[Worker]()
    processes = min(len(devices), len(configs))
    try:
        while waiting or workers:
            while waiting and free:
                workers.append(Worker(waiting.popleft(), root, free.popleft(), limit, processes))
            connection.wait([worker.process.sentinel for worker in workers], LOOK_EVERY)
            for worker in [worker for worker in workers if not worker.process.is_alive()]:
                workers.remove(worker)
                free.append(worker.device)
                name, (outcome, text) = unit_name(worker.config), worker.outcome()
                if outcome == "lost":
                    lost[name] += 1
                    if lost[name] <= RETRIES:
                        waiting.appendleft(worker.config)
                        continue
                if outcome != "done":
                    problems[name] = BusyError(text) if outcome == "busy" else StudyError(text)
            progress("units", len(configs) - len(workers) - len(waiting), len(configs), f"{len(workers)} at work")
            show_episodes(configs, root, progress)
    finally:  # at Ctrl-C what runs finishes its episode and saves
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
    return problems


class Worker:
    """A process that runs one unit on one device, and tells what came of it."""

    def __init__(self, config: AnyConfig, root: Path | str, device: str, limit: float | None, processes: int) -> None:
        self.config, self.device = config, device
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._answer, answer = context.Pipe(duplex=False)
        given = (kind_of(config), plain(config), str(root), device, limit, processes, invoked_command(), answer)
        self.process = context.Process(target=_work, args=given)
        with deaf():
            self.process.start()
        answer.close()

    def outcome(self) -> tuple[str, str]:
        """Of a process that has ended: done, busy, failed or lost, and the words of an error."""
        try:
            outcome, text = self._answer.recv()
        except EOFError:  # it was killed before it could answer
            outcome, text = "lost", ""
        self._answer.close()
        return outcome, text or f"its process was ended from outside (exit code {self.process.exitcode})"


@contextmanager
def deaf() -> Iterator[None]:
    """What is started in here ignores Ctrl-C, which a terminal sends to parent and children alike: the parent cares."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(
    kind: str,
    data: Any,
    root: str,
    device: str,
    limit: float | None,
    processes: int,
    command: str,
    answer: connection.Connection,
) -> None:
    """One unit, in a process of its own, and what came of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        share_processors(processes)
        with invoked_as(command):
            run_unit(read_config(kind, data), root, device, limit)
        answer.send(("done", ""))
    except KeyboardInterrupt:
        answer.send(("lost", ""))
    except BusyError as error:
        answer.send(("busy", str(error)))
    except Exception as error:
        answer.send(("failed", words_of(error)))


def _interrupt(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise KeyboardInterrupt


def words_of(error: BaseException, advice: str = FEWER) -> str:
    """The sentence of an error, and its kind where that is none for which this package writes sentences.

    Where memory is out, `advice` says what to do.
    """
    text = str(error).strip()
    if isinstance(error, torch.OutOfMemoryError):
        return f"{text} {advice}"
    wrote_sentence = isinstance(error, ValueError | OSError | FloatingPointError | RuntimeError)
    return text if wrote_sentence and text else f"{type(error).__name__}: {text}"


def show_episodes(configs: Iterable[AnyConfig], root: Path | str, progress: Progress) -> None:
    """Says how many episodes of all units are evaluated by now, where any of them trains agents."""
    played = asked = 0
    for config in configs:
        if isinstance(config, Config):
            asked += config.episodes
            with suppress(OSError, ValueError, KeyError, TypeError):  # none yet; a fault is told by the unit itself
                played += int(read_json(Path(root) / unit_name(config) / "summary.json")["played"])
    if asked:
        progress("episodes", played, asked, "of each seed, as of the last evaluations")


def share_processors(processes: int) -> None:
    """Gives this process its part of the processors: with more threads than those, all would wait for each other.

    What the user says by OMP_NUM_THREADS and BUTFOR_THREADS stays as it is.
    """
    share = max(1, processors() // processes)
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(share)
    if not os.environ.get("BUTFOR_THREADS"):
        os.environ["BUTFOR_THREADS"] = str(share)


def raise_failed(failed: dict[str, Any]) -> None:
    """One error for all units that failed."""
    if failed:
        words = {name: words_of(one) if isinstance(one, BaseException) else one for name, one in failed.items()}
        reasons = "; ".join(f"{name}: {text}" for name, text in words.items())
        raise StudyError(f"{len(failed)} unit(s) failed, the others are kept: {reasons}")


def read_config(kind: str, data: Any) -> AnyConfig:
    """A config back from `record.plain`."""
    return config_from(Config, data) if kind == "training" else config_from(DetectionConfig, data)


def unique(configs: Iterable[AnyConfig]) -> list[AnyConfig]:
    """Each config once: arms of a study may share one."""
    return list({unit_name(config): config for config in configs}.values())
