"""Faults at file operations: a kill, or a full disk."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


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
