"""The newest two checkpoints of a run. A digest of the content is part of each name, so that damage is detected."""

import hashlib
import os
import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from butfor.runs.files import load_checkpoint, save_checkpoint

KEPT = 2
NAME = re.compile(r"\d{8,}-\d{4,}-[0-9a-f]{16}\.pt")  # episode, serial number, digest
PART = re.compile(r".*\.(\d{1,7})\.part")  # with the number of a process


def save_checkpoint_in(folder: Path, episode: int, state: Mapping[str, Any]) -> Path:
    """Write `checkpoint/EPISODE-SERIAL-DIGEST.pt` in a run folder, then remove all but the newest two.

    Raises:
        TypeError: the state contains something that could be saved but not loaded.
        OSError: the checkpoint could not be written; the earlier ones are unchanged.
    """
    _check_loadable(dict(state), "state")
    place = folder / "checkpoint"
    earlier = _newest_first(place)
    try:
        path = _write(place, episode, _serial(earlier[0]) + 1 if earlier else 1, state)
    except OSError as error:
        raise OSError(
            f"The checkpoint of episode {episode} could not be written ({error}). Free space in {place} or make it "
            "writable, then resume the run: its earlier checkpoints are unchanged."
        ) from error
    for old in earlier[KEPT - 1 :]:
        old.unlink(missing_ok=True)
    for left in (*place.glob("*.part"), *folder.glob("*.part")):  # half-written by killed processes
        match = PART.fullmatch(left.name)
        if match and not _is_another(int(match[1])):
            left.unlink(missing_ok=True)
    return path


def _is_another(process: int) -> bool:
    """Whether another process with this number is running."""
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return process != os.getpid()


def _write(place: Path, episode: int, serial: int, state: Mapping[str, Any]) -> Path:
    """Write under a temporary name until the digest is known, and to disk before an older one is removed."""
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
    """Return the newest undamaged state, on the CPU, or None where no checkpoint was written. Nothing is executed.

    Raises:
        ValueError: there are checkpoints, and all are damaged.
    """
    problems: list[str] = []
    for path in _newest_first(folder / "checkpoint"):
        try:
            state = _load_whole(path)
        except ValueError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem} The earlier {path.name} is used instead.", stacklevel=2)
        return state
    if problems:
        raise ValueError(
            f"All checkpoints of {folder} are damaged. {' '.join(problems)} Restore one of them from a copy, or start "
            "the run again with --overwrite (in a study: delete its folder)."
        )
    return None


def _newest_first(place: Path) -> list[Path]:
    """Return the checkpoints by serial number: a run resumed after damage writes an earlier episode later."""
    found = [path for path in place.glob("*.pt") if NAME.fullmatch(path.name)]
    return sorted(found, key=_serial, reverse=True)


def _serial(path: Path) -> int:
    """Return how many checkpoints had been written, from a checkpoint's name."""
    return int(path.name.split("-")[1])


def _digest(path: Path) -> str:
    """Return 16 hexadecimal digits that change when any byte of a file does."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:16]


def _load_whole(path: Path) -> dict[str, Any]:
    """Load a checkpoint whose content fits its name; torch alone would not notice a changed number."""
    if not path.stem.endswith(_digest(path)):
        raise ValueError(f"{path} is damaged: its content does not match its name.")
    return load_checkpoint(path)


def _check_loadable(value: Any, name: str) -> None:
    """Raise TypeError for what could be saved but not loaded with `weights_only=True`."""
    from torch import Tensor

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
            f"{name} is of type {type(value).__name__}, which cannot be loaded from a checkpoint; expected a tensor, "
            "number, string, list or dict."
        )
