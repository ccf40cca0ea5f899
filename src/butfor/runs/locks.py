"""Who works on a run folder: a lock beside it, which the kernel takes back when its process ends, however that ends."""

import errno
import fcntl
import os
import platform
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GRACE = 1.0  # seconds: a process that was killed, or one that only looks, may hold the lock a moment longer
AGAIN = 0.05  # seconds between two tries
UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class BusyError(OSError):
    """Another process works on the folder; the sentence says which."""


_held = set[tuple[int, Path]]()  # by threads of this process


@contextmanager
def locked(folder: Path | str, patience: float = 0.0, again: bool = False) -> Iterator[None]:
    """While in here, nobody else works on the folder, which need not exist; a `BusyError` where somebody does.

    `patience` is how many seconds to wait for a process of another machine: where that has gone down, its file server
    takes the lock back only after a while. A lock that a process of this machine left behind is free at once. With
    `again`, one that this thread has taken already is enough.
    """
    path = lock_path(folder)
    mine = (threading.get_ident(), path.resolve())
    if again and mine in _held:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    while (lock := _take(path)) is None:
        worker = worker_on(folder)
        here = worker.endswith(f" on {platform.node()}")
        if time.monotonic() - began > (GRACE if here else max(GRACE, patience)):
            raise BusyError(
                f"{worker or 'another process'} works on {folder}; wait until it is done, or take another folder."
            )
        time.sleep(AGAIN)
    _held.add(mine)
    try:
        yield
    finally:
        _held.discard(mine)
        path.unlink(missing_ok=True)  # before the lock ends, so that nobody else's is removed
        os.close(lock)


def worker_on(folder: Path | str) -> str:
    """Who works on a folder now: "process 17 on HOST"; nothing where nobody does, or where that cannot be known."""
    try:
        lock = os.open(lock_path(folder), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return ""
    except BlockingIOError:
        words = os.read(lock, 200).decode(errors="replace")
        return "".join(filter(str.isprintable, words)) or "another process"
    except OSError:
        return ""
    finally:
        os.close(lock)


def lock_path(folder: Path | str) -> Path:
    """Beside the folder: a folder that holds nothing else would be no run, and a run is copied without its lock."""
    folder = Path(folder)
    return folder.with_name(f".{folder.name}.lock")


def _take(path: Path) -> int | None:
    """The lock's descriptor; None where somebody else has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_still(path, lock):  # its last owner removed it in between
            os.close(lock)
            return None
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            os.close(lock)
            raise
        warnings.warn(
            f"The storage of {path.parent} has no locks ({error.strerror}); do not start the same work there twice.",
            stacklevel=4,
        )
    os.ftruncate(lock, 0)
    os.write(lock, f"process {os.getpid()} on {platform.node()}".encode())
    return lock


def _is_still(path: Path, lock: int) -> bool:
    """Whether a name still belongs to an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(lock))
    except FileNotFoundError:
        return False
