"""Faults in collect, detect, score and study: a kill or a full disk at a file operation, changed bytes in a file.

Whatever happens, what is there is complete, and the same command ends with the same results. The short form takes
seconds; the long form, marked long, tries more places.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.faults import Killed, copies_before_operations, fault_at, full
from support.files import full_disk
from support.linear_models import BOX, random_model, raw_influence
from support.small_detection import CONFIG
from support.small_training import small

from butfor.analysis import read_study
from butfor.datasets.score import Options, score_file
from butfor.detection.collect import CollectConfig, collect_file
from butfor.detection.experiment import run_detection
from butfor.reporting.study_page import write_study_report
from butfor.runs.reading import read_arrays, read_metrics, read_object
from butfor.studies.paper import Study, write_study
from butfor.studies.units import run_here, unit_name

DETECTION = replace(
    CONFIG, seeds=1, train_episodes=4, validation_episodes=4, test_episodes=4,
    fitting=replace(CONFIG.fitting, max_epochs=2), attention_fitting=replace(CONFIG.attention_fitting, max_epochs=2),
)  # fmt: skip
TRAINING = small(episodes=3, warmup=2, evaluate_every=2, checkpoint_seconds=0.0)


def arrays(path: Path) -> Any:
    return {name: array.tolist() for name, array in read_arrays(path).items() if name not in ("metadata", "summary")}


def rows(folder: Path) -> Any:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_metrics(folder)]


@dataclass(frozen=True)
class Command:
    """What a command does in a folder, and what it leaves there."""

    run: Callable[[Path], object]
    result: Callable[[Path], Any]
    """what must be the same; raises FileNotFoundError where there is none yet"""
    prepare: Callable[[Path], object] = lambda place: None
    """what it reads"""
    reads: tuple[str, ...] = ()
    """files in which bytes are changed, of a run that was killed before its end"""
    last: str = ""
    """the file that marks a run as finished"""


def write_data(place: Path) -> None:
    """A model, and data for it: 4 episodes of 6 steps."""
    raw_influence(random_model(targets=2, width=4, layers=1), BOX, {"cube": [1, 2]}, [1.0] * 2).save(
        place / "model.safetensors"
    )
    random = np.random.default_rng(0)
    given: dict[str, Any] = {"observation": random.normal(size=(4, 7, 4)), "action": random.uniform(0, 1, (4, 6, 2))}
    np.savez(place / "data.npz", length=np.full(4, 6), **given)


def score(place: Path) -> None:
    options = Options(actions=4)
    score_file(
        place / "data.npz", place / "out.npz", options=options, model=place / "model.safetensors", overwrite=True
    )


def study(place: Path) -> None:
    one = Study("try", "A try", "", {"one": TRAINING})
    write_study(one, place, "paper")
    run_here(list(one.arms.values()), place)
    write_study_report(place, "try")


def study_result(place: Path) -> Any:
    read = read_study(place, "try")
    (arm,) = read.arms
    if arm.state == "broken":
        raise ValueError(arm.words)
    if arm.state != "finished" or not (place / "reports" / "try.html").is_file():
        raise FileNotFoundError(arm.words)
    return rows(place / unit_name(TRAINING)), read.title, arm.label


COMMANDS = {
    "collect": Command(
        lambda place: collect_file(CollectConfig("slide", "noisy-expert", 6, ("exact",)), place / "episodes.npz"),
        lambda place: arrays(place / "episodes.npz"),
        reads=("episodes.npz",),
    ),
    "score": Command(score, lambda place: arrays(place / "out.npz"), write_data, ("data.npz", "model.safetensors")),
    "detect": Command(
        lambda place: run_detection(DETECTION, place / "run"),
        lambda place: (
            rows(place / "run"), read_object(place / "run" / "summary.json"), arrays(place / "run" / "scores.npz"),
        ),
        reads=("run/config.json", "run/data/*.npz", "run/checkpoint/*.pt"),
        last="run/summary.json",
    ),
    "study": Command(
        study,
        study_result,
        reads=("studies/try.json", "*/config.json", "*/metrics.jsonl", "*/summary.json", "*/checkpoint/*.pt"),
    ),
}  # fmt: skip
OFTEN = {"collect": 1, "score": 1, "detect": 23, "study": 29}
"""at every how many-th operation the short form interrupts"""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("butfor.detection.collect.EPISODES_A_PART", 2)


def begin(command: Command, place: Path) -> Path:
    place.mkdir(parents=True)
    command.prepare(place)
    return place


def is_complete_or_absent(command: Command, place: Path, expected: Any) -> bool:
    """Whether there is no result yet, or the whole one; of collected episodes, whole parts are there."""
    try:
        found = command.result(place)
    except FileNotFoundError:
        return True
    if isinstance(found, dict) and "observation" in found and len(found["observation"]) < len(expected["observation"]):
        return bool(found["observation"] == expected["observation"][: len(found["observation"])])
    return bool(found == expected)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_kill_before_any_file_operation_leaves_nothing_half_written(name: str, tmp_path: Path) -> None:
    """What a kill would leave is read as it is; every such folder, not a sample."""
    command = COMMANDS[name]
    place = begin(command, tmp_path / "place")
    with copies_before_operations(place, tmp_path / "copies") as copies:
        command.run(place)
    expected = command.result(place)
    for copy in copies:
        assert is_complete_or_absent(command, copy, expected), f"copy {copy.name}"
    assert len(copies) > 8


def interrupt(name: str, tmp_path: Path, fault: Callable[[], BaseException], step: int) -> int:
    """Interrupt a command at every `step`-th file operation, run it again and compare; return how many there are."""
    command = COMMANDS[name]
    begin(command, tmp_path / "whole")
    with fault_at(-1, Killed()) as count:
        command.run(tmp_path / "whole")
    expected = command.result(tmp_path / "whole")
    for number in range(1, count[0] + 1, step):
        place = begin(command, tmp_path / str(number))
        with fault_at(number, fault()), pytest.raises((Killed, OSError, RuntimeError)) as caught:
            command.run(place)
        assert isinstance(caught.value, Killed) or "No space left" in str(caught.value), caught.value
        assert is_complete_or_absent(command, place, expected), f"operation {number}"
        command.run(place)
        assert command.result(place) == expected, f"operation {number}"
        assert not list(place.rglob("*.part"))
        shutil.rmtree(place)
    return count[0]


@pytest.mark.parametrize("fault", [Killed, full], ids=["killed", "full disk"])
@pytest.mark.parametrize("name", COMMANDS)
def test_interrupted_at_a_file_operation_a_command_ends_with_the_same_results(
    name: str, fault: Callable[[], BaseException], tmp_path: Path
) -> None:
    assert interrupt(name, tmp_path, fault, OFTEN[name]) >= 6


@pytest.mark.long
@pytest.mark.parametrize("fault", [Killed, full], ids=["killed", "full disk"])
@pytest.mark.parametrize("name", COMMANDS)
def test_interrupted_at_every_file_operation_a_command_ends_with_the_same_results(
    name: str, fault: Callable[[], BaseException], tmp_path: Path
) -> None:
    interrupt(name, tmp_path, fault, 1)


@pytest.mark.parametrize("limit", [10, 1000])
@pytest.mark.parametrize("name", COMMANDS)
def test_where_files_cannot_grow_a_command_says_so_and_ends_later(name: str, limit: int, tmp_path: Path) -> None:
    """The system refuses in the middle of a write, as on a full disk."""
    command = COMMANDS[name]
    place = begin(command, tmp_path / "full")
    with full_disk(limit), pytest.raises(Exception, match=os.strerror(errno.EFBIG)):
        command.run(place)
    with pytest.raises((FileNotFoundError, ValueError)):
        command.result(place)
    assert not list(place.rglob("*.part"))


def change_bytes(name: str, tmp_path: Path, tries: int, seed: int) -> tuple[int, int]:
    """Change a byte of each file that a command reads; return how often it was noticed, and how often harmless."""
    command = COMMANDS[name]
    place = begin(command, tmp_path / "place")
    command.run(place)
    expected = command.result(place)
    if command.last:
        (place / command.last).unlink()
    shutil.copytree(place, tmp_path / "kept")
    random = np.random.default_rng(seed)
    noticed = harmless = 0
    for pattern in command.reads:
        for path in sorted((tmp_path / "kept").glob(pattern)):
            for _ in range(tries):
                shutil.rmtree(place)
                shutil.copytree(tmp_path / "kept", place)
                damaged = bytearray(path.read_bytes())
                damaged[int(random.integers(len(damaged)))] ^= int(random.integers(1, 256))
                (place / path.relative_to(tmp_path / "kept")).write_bytes(damaged)
                try:
                    command.run(place)
                    found = command.result(place)
                except (ValueError, OSError, RuntimeError):  # RuntimeError: of the units of a study
                    noticed += 1
                    continue
                assert json.dumps(found) == json.dumps(expected), f"{path.name} was read with other content"
                harmless += 1
    return noticed, harmless


@pytest.mark.parametrize("name", COMMANDS)
def test_a_changed_byte_in_a_file_that_a_command_reads_is_noticed_or_harmless(name: str, tmp_path: Path) -> None:
    noticed, harmless = change_bytes(name, tmp_path, {"collect": 12, "score": 8, "detect": 2, "study": 1}[name], 0)
    assert noticed + harmless >= 6
    assert noticed


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_many_changed_bytes_are_noticed_or_harmless(name: str, tmp_path: Path) -> None:
    assert change_bytes(name, tmp_path, 10 if name == "study" else 40, 1)[0]
