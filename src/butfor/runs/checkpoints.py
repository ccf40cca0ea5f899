"""The checkpoints of a run: the newest two, each named after its content, so that damage is seen before it is used."""

import hashlib
import os
import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from torch import Tensor

from butfor.runs.files import load_checkpoint, save_checkpoint

KEPT = 2
NAME = re.compile(r"\d{8,}-\d{4,}-[0-9a-f]{16}\.pt")  # episode, serial number, digest
PART = re.compile(r".*\.(\d{1,7})\.part")  # of the process with this number


def save_checkpoint_in(folder: Path, episode: int, state: Mapping[str, Any]) -> Path:
    """Writes `checkpoint/EPISODE-SERIAL-DIGEST.pt` of a run folder, then removes all but the newest two."""
    if episode < 0:
        raise ValueError(f"episode must be at least 0; got {episode}.")
    _check_loadable(dict(state), "state")
    place = folder / "checkpoint"
    earlier = _newest_first(place)
    try:
        path = _write(place, episode, _serial(earlier[0]) + 1 if earlier else 1, state)
    except OSError as error:
        raise OSError(
            f"The checkpoint of episode {episode} could not be written ({error}). Make room in {place} or make it "
            "writable, then go on with the run: its earlier checkpoints are as they were."
        ) from error
    for old in earlier[KEPT - 1 :]:
        old.unlink(missing_ok=True)
    for each in (place, folder):
        _remove_stale_parts(each)
    return path


def _write(place: Path, episode: int, serial: int, state: Mapping[str, Any]) -> Path:
    """Writes under a temporary name until the digest is known; it is on disk before an older one goes."""
    unnamed = place / f"{serial:04d}.{os.getpid()}.part"
    save_checkpoint(unnamed, state)
    try:
        with unnamed.open("rb") as file:
            os.fsync(file.fileno())
        path = place / f"{episode:08d}-{serial:04d}-{_digest(unnamed)}.pt"
        os.replace(unnamed, path)
    finally:
        unnamed.unlink(missing_ok=True)
    return path


def latest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The state last written that is whole, on the CPU; None where none was written. Nothing in it is executed."""
    problems: list[str] = []
    for path in _newest_first(folder / "checkpoint"):
        try:
            state = _load_whole(path)
        except ValueError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem} {path.name}, written before it, is used instead.", stacklevel=2)
        return state
    if problems:
        raise ValueError(
            f"No checkpoint of {folder} is whole. {' '.join(problems)} Put back a copy of one of them under its name, "
            "or start the run anew with --overwrite (in a study: delete its folder)."
        )
    return None


def _newest_first(place: Path) -> list[Path]:
    """The checkpoints by serial number: after a damaged one, a run goes on at an earlier episode."""
    found = [path for path in place.glob("*.pt") if NAME.fullmatch(path.name)]
    return sorted(found, key=_serial, reverse=True)


def _serial(path: Path) -> int:
    """How many checkpoints had been written, from a checkpoint's name."""
    return int(path.name.split("-")[1])


def _digest(path: Path) -> str:
    """16 hexadecimal digits that change when any byte of a file does."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:16]


def _load_whole(path: Path) -> dict[str, Any]:
    """A checkpoint with the content that its name tells; torch alone would not notice a changed number."""
    if not path.stem.endswith(_digest(path)):
        raise ValueError(f"{path} is damaged: its content is not what was written.")
    return load_checkpoint(path)


def _remove_stale_parts(place: Path) -> None:
    """Removes what killed processes left half-written; this process, which may bear a dead one's number, is done."""
    for path in place.iterdir():
        part = PART.fullmatch(path.name)
        if part and (int(part[1]) == os.getpid() or not _is_running(int(part[1]))):
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Whether a process exists."""
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _check_loadable(value: Any, name: str) -> None:
    """Refuses at once what could be saved but not loaded with `weights_only=True`."""
    if isinstance(value, Tensor) or type(value) in (bool, int, float, str, NoneType):
        return
    if type(value) in (list, tuple):
        for index, inner in enumerate(value):
            _check_loadable(inner, f"{name}[{index}]")
    elif type(value) in (dict, OrderedDict):
        for key, inner in value.items():
            _check_loadable(key, f"a key of {name}")
            _check_loadable(inner, f"{name}[{key!r}]")
    else:
        raise TypeError(
            f"{name} is of type {type(value).__name__}, which cannot be read back from a checkpoint; make it a "
            "tensor, number, string, list or dict."
        )
