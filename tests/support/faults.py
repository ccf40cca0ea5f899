"""Faults at file operations: a kill, or a full disk."""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
_watching: list[Callable[[str], None]] = []  # an audit hook cannot be removed, so there is one that may do nothing


class Killed(BaseException):
    """Like a kill: nothing but `finally` runs after it."""


@contextmanager
def fault_at(number: int, fault: BaseException) -> Iterator[list[int]]:
    """Raise at the file operation with this number: opening for writing, syncing or renaming a file."""
    count = [0]
    real: dict[str, Callable[..., Any]] = {"replace": os.replace, "fsync": os.fsync}

    def operate(name: str) -> Any:
        def operation(*given: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == number:
                raise fault
            return real[name](*given, **named)

        return operation

    with pytest.MonkeyPatch.context() as patch:
        for name in real:
            patch.setattr(os, name, operate(name))
        yield count


def full() -> BaseException:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _audit(event: str, given: tuple[Any, ...]) -> None:
    if not _watching or event not in OPERATIONS or not isinstance(given[0], str | bytes | os.PathLike):
        return
    if event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return
    watch = _watching.pop()  # what it does itself is not watched
    watch(os.fsdecode(given[0]))
    _watching.append(watch)


@contextmanager
def copies_before_operations(place: Path, copies: Path) -> Iterator[list[Path]]:
    """Copy a folder before every file operation in it: what a kill at that moment would leave; yields the copies.

    Every opening for writing, renaming, removing and making counts. What has not changed since is not copied again.
    """
    if not getattr(_audit, "added", False):
        sys.addaudithook(_audit)
        setattr(_audit, "added", True)  # noqa: B010
    made: list[Path] = []
    before: list[Any] = []

    def copy(path: str) -> None:
        if not Path(path).absolute().is_relative_to(place):
            return
        now = sorted((str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in place.rglob("*"))
        if now != before:
            before[:] = now
            made.append(Path(shutil.copytree(place, copies / f"{len(made):04d}")))

    _watching.append(copy)
    try:
        yield made
    finally:
        _watching.clear()
