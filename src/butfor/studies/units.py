"""Units of work: a config determines a run folder, by name and content. Run units here, one by one or in processes."""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from butfor.detection.experiment import run_detection
from butfor.detection.settings import DetectionConfig
from butfor.envs import processors
from butfor.rollouts.play import Progress
from butfor.runs.config import config_from, plain
from butfor.runs.folder import invoked_as, invoked_command, run_name
from butfor.runs.locks import BusyError, locked, worker_on
from butfor.runs.memory import describe_exhaustion
from butfor.runs.reading import read_object, read_optional, read_run
from butfor.training.run import resume, train
from butfor.training.settings import Config

AnyConfig = Config | DetectionConfig
Ended = tuple[AnyConfig, Literal["done", "busy", "failed", "lost"], str]  # a unit, its outcome, and why
RETRIES = 3  # of a unit whose process was killed
FEWER = "All seeds of a run are one batch: use fewer --seeds, in a study fewer --processes, or --device cpu."
LESS = "Use fewer rows or episodes, or --device cpu."  # for commands without --seeds
LOOK_EVERY = 5.0  # seconds between two progress updates about units in other processes


class StudyError(RuntimeError):
    """Some units failed; the message names them and says why. The others are finished."""


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
    """Return the kind of a config's runs."""
    return "training" if isinstance(config, Config) else "detection"


def unit_name(config: AnyConfig) -> str:
    """Return the name of a unit's folder; its digest is long enough for all units of a study to differ."""
    return run_name(kind_of(config), config, digits=8)


def read_config(kind: str, data: Any) -> AnyConfig:
    """Return the config that `plain` made JSON of."""
    return config_from(Config, data) if kind == "training" else config_from(DetectionConfig, data)


def unique(configs: Iterable[AnyConfig]) -> list[AnyConfig]:
    """Return each config once: arms of a study may share one."""
    return list({unit_name(config): config for config in configs}.values())


def unit_state(config: AnyConfig, root: Path | str) -> UnitState:
    """Return whether a unit's folder is absent, begun, finished, or so damaged that the user has to decide.

    A training run whose summary alone is damaged counts as begun: resuming it writes the summary again.
    """
    folder = Path(root) / unit_name(config)
    summary = folder / "summary.json"

    def state(name: Literal["absent", "begun", "finished", "broken"], played: int = 0, words: str = "") -> UnitState:
        worker = worker_on(folder) if name in ("absent", "begun") else ""
        return UnitState(folder, name, played, config.episodes if isinstance(config, Config) else 0, worker, words)

    if not (folder / "config.json").is_file():
        return state("absent")
    try:
        held = read_run(folder)
        if plain(read_config(held["kind"], held["config"])) != plain(config):
            raise ValueError(f"{folder} has other settings, from another version of butfor; use another root.")
    except (OSError, ValueError) as error:
        return state("broken", words=f"{error} Delete {folder} to run it again.")
    try:
        found = read_optional(summary) or {"finished": False}  # a detection run writes it at the end
        return state("finished" if found.get("finished", True) else "begun", int(found.get("played", 0)))
    except (OSError, ValueError, TypeError) as error:
        if isinstance(config, Config) and any((folder / "checkpoint").glob("*.pt")):
            return state("begun", words=f"{summary} is damaged; butfor study run writes it again from the checkpoint.")
        damaged = folder if isinstance(config, Config) else summary
        return state("broken", words=f"{error} Delete {damaged} to run it again.")


def run_unit(
    config: AnyConfig,
    root: Path | str,
    device: torch.device | str = "cpu",
    time_limit: float | None = None,
    progress: Progress = lambda stage, done, total, text: None,
    patience: float = 0.0,
) -> Path:
    """Start or resume a unit, unless it is finished, and return its folder.

    A unit of detection ends with pictures and a report, as far as this machine can make them.

    Args:
        config: determines the name and content of the run folder in `root`.
        time_limit: seconds after which a training run stops with a checkpoint.
        patience: seconds to wait for the lock of a process on another machine.

    Raises:
        BusyError: another process works on the unit.
        ValueError: its folder is damaged.
    """
    from butfor.reporting.pictures import is_illustrated

    before = unit_state(config, root)
    folder = before.folder
    if before.state == "finished" and (isinstance(config, Config) or is_illustrated(folder)):
        return folder
    if before.state == "broken":
        raise ValueError(before.words)
    with locked(folder, patience):
        state = unit_state(config, root).state  # again: another process may just have finished it
        if isinstance(config, DetectionConfig):
            run_detection(config, folder, device, progress=progress)  # does nothing where it is finished
            return _illustrate(folder, progress)
        if state == "finished":
            return folder
        try:
            if state == "absent":
                return train(config, folder, device, time_limit=time_limit, progress=progress)
            return resume(folder, device, time_limit=time_limit, progress=progress)
        except KeyboardInterrupt as stopped:
            raise KeyboardInterrupt from stopped  # without its advice how to resume a run: this is part of a study


def _illustrate(folder: Path, progress: Progress) -> Path:
    """Make pictures and the report of a finished detection run; what cannot be made is reported, not raised."""
    from butfor.reporting.pictures import illustrate

    try:
        _, lacking = illustrate(folder, progress=progress)
    except (ValueError, OSError) as error:  # files of the run were removed
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
    """Run units on this machine and return their folders.

    Units that another process works on are left to it, and tried again at the end.

    Args:
        devices: with several, one process runs on each. A GPU may be named several times: simulation leaves it idle.
        time_limit: seconds after which each training run stops with a checkpoint.

    Raises:
        StudyError: some units failed; the others were run.
    """
    configs = unique(configs)
    failed: dict[str, BaseException] = {}
    left = configs
    while left:
        if len(devices) > 1:
            pool = ProcessPool(devices, root, time_limit, min(len(devices), len(left)))
            problems = run_in_pool(left, root, pool, RETRIES, progress)
        else:
            problems = _run_in_turn(left, root, devices[0] if devices else "cpu", time_limit, progress)
        busy = [config for config in left if isinstance(problems.get(unit_name(config)), BusyError)]
        failed |= problems
        if len(busy) == len(left):  # others work on all of them
            break
        left = busy
    raise_failed(failed)
    states = [unit_state(config, root) for config in configs]
    finished = sum(state.state == "finished" for state in states)
    others = {"left to other processes": len(left), "stopped by the time limit": len(configs) - finished - len(left)}
    text = ", ".join(f"{count} {what}" for what, count in others.items() if count > 0)
    progress("units", finished, len(configs), text or "done")
    return [state.folder for state in states]


def _run_in_turn(
    configs: Sequence[AnyConfig], root: Path | str, device: str, limit: float | None, progress: Progress
) -> dict[str, BaseException]:
    """Run units one after the other; return the errors of those that were not run, by name."""
    problems: dict[str, BaseException] = {}
    for number, config in enumerate(configs):
        progress("units", number, len(configs), unit_name(config))
        try:
            run_unit(config, root, device, limit, progress)
        except Exception as error:
            problems[unit_name(config)] = error
    return problems


class Pool(Protocol):
    """Where units run at the same time: processes of this machine, or a cluster."""

    def start(self, config: AnyConfig) -> bool:
        """Start a unit; return False where nothing is free for it."""

    def wait(self) -> list[Ended]:
        """Wait a moment and return the units that have ended."""

    def stop(self) -> None:
        """Stop the units that are running; each writes a checkpoint."""


def run_in_pool(
    configs: Sequence[AnyConfig], root: Path | str, pool: Pool, retries: int, progress: Progress
) -> dict[str, BaseException]:
    """Run units at the same time; return the errors of those that were not run, by name.

    A unit whose process was killed is run again, up to `retries` times. At Ctrl-C every unit writes a checkpoint.
    """
    problems: dict[str, BaseException] = {}
    lost = Counter[str]()
    waiting = deque(configs)
    done = 0
    progress("units", 0, len(configs), "")
    try:
        while done < len(configs):
            while waiting and pool.start(waiting[0]):
                waiting.popleft()
            for config, outcome, text in pool.wait():
                name = unit_name(config)
                lost[name] += outcome == "lost"
                if outcome == "lost" and lost[name] <= retries:
                    waiting.appendleft(config)
                    continue
                done += 1
                if outcome == "busy":
                    problems[name] = BusyError(text)
                elif outcome != "done":
                    problems[name] = StudyError(text)
                note = {"done": "", "busy": " is left to another process"}.get(outcome, " failed")
                progress("units", done, len(configs), name + note)
            show_episodes(configs, root, progress)
    finally:
        pool.stop()
    return problems


class ProcessPool:
    """Processes of this machine, one for each device."""

    def __init__(self, devices: Sequence[str], root: Path | str, limit: float | None, processes: int) -> None:
        self.given = (str(root), limit, processes, invoked_command())
        self.free = deque(devices)
        self.running = dict[Any, tuple[AnyConfig, str, Connection]]()  # process -> unit, device, answer

    def start(self, config: AnyConfig) -> bool:
        """Start a unit on a free device."""
        if not self.free:
            return False
        device = self.free.popleft()
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        receiver, answer = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(config, device, *self.given, answer))
        with _ignored_interrupts():
            process.start()
        answer.close()
        self.running[process] = config, device, receiver
        return True

    def wait(self) -> list[Ended]:
        """Wait until a process ends, for LOOK_EVERY seconds at most."""
        wait([process.sentinel for process in self.running], LOOK_EVERY)
        ended: list[Ended] = []
        for process in [process for process in self.running if not process.is_alive()]:
            config, device, receiver = self.running.pop(process)
            self.free.append(device)
            try:
                outcome, text = receiver.recv()
            except EOFError:  # it was killed before it could answer
                outcome, text = "lost", ""
            receiver.close()
            ended.append((config, outcome, text or f"its process was killed (exit code {process.exitcode})"))
        return ended

    def stop(self) -> None:
        """Let each unit finish its episode and save."""
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.join()


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Let child processes ignore Ctrl-C, which a terminal sends to parent and children alike: the parent stops them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(
    config: AnyConfig, device: str, root: str, limit: float | None, processes: int, command: str, answer: Connection
) -> None:
    """Run a unit in a process of its own and send the outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_stop_without_parent, daemon=True).start()
    try:
        share_processors(processes)
        with invoked_as(command):
            run_unit(config, root, device, limit)
        answer.send(("done", ""))
    except KeyboardInterrupt:
        answer.send(("lost", ""))
    except BusyError as error:
        answer.send(("busy", str(error)))
    except Exception as error:
        answer.send(("failed", words_of(error)))


def _stop_without_parent() -> None:
    """Stop this process, which then saves its unit, when the process that started it has ended, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise KeyboardInterrupt


def words_of(error: BaseException, advice: str = FEWER) -> str:
    """Return an error's message, with its type where butfor does not write messages for it.

    `advice` is added where the device ran out of memory.
    """
    text = str(error).strip()
    if (exhausted := describe_exhaustion(error)) is not None:
        return exhausted
    if isinstance(error, torch.OutOfMemoryError):
        return f"{text} {advice}"
    has_message = isinstance(error, ValueError | OSError | FloatingPointError | RuntimeError) and text
    return text if has_message else f"{type(error).__name__}: {text}"


def show_episodes(configs: Iterable[AnyConfig], root: Path | str, progress: Progress) -> None:
    """Report how many episodes of all training units have been played, as of their last evaluations."""
    played = asked = 0
    for config in configs:
        if isinstance(config, Config):
            asked += config.episodes
            with suppress(OSError, ValueError, KeyError, TypeError):  # not there yet; errors are the unit's own
                played += int(read_object(Path(root) / unit_name(config) / "summary.json")["played"])
    if asked:
        progress("episodes", played, asked, "of each seed, as of the last evaluations")


def share_processors(processes: int) -> None:
    """Give this process its share of the processors: with more threads than that, all would wait for each other.

    OMP_NUM_THREADS and BUTFOR_THREADS take precedence.
    """
    share = max(1, processors() // processes)
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(share)
    if not os.environ.get("BUTFOR_THREADS"):
        os.environ["BUTFOR_THREADS"] = str(share)


def raise_failed(problems: dict[str, BaseException]) -> None:
    """Raise one error for all units that failed; those that another process works on did not."""
    failed = [f"{name}: {words_of(error)}" for name, error in problems.items() if not isinstance(error, BusyError)]
    if failed:
        raise StudyError(f"{len(failed)} unit(s) failed, the others are kept: {'; '.join(failed)}")
