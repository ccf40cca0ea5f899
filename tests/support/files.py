"""Files that run code when unpickled, full disks, and folders that are not writable."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Let no file grow beyond `limit` bytes, so that the system raises OSError in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


@contextmanager
def protected(folder: Path) -> Iterator[None]:
    """Make a folder read-only, and run as another user than the superuser, to whom that does not apply."""
    os.chmod(folder, 0o555)
    superuser = os.geteuid() == 0
    if superuser:
        try:
            os.seteuid(65534)
        except OSError:
            pytest.skip("this system does not let the superuser become another user")
    try:
        if os.access(folder, os.W_OK, effective_ids=True):
            pytest.skip("this system does not protect the folder")
        yield
    finally:
        if superuser:
            os.seteuid(0)
        os.chmod(folder, 0o755)
