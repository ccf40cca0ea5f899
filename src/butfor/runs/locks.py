"""One process per run folder: a lock file beside it, which the kernel releases when its process ends or is killed."""

import errno
import fcntl
import os
import platform
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

GRACE = 1.0  # seconds: a killed process, or one that only tests the lock, may hold it a moment longer
RETRY_AFTER = 0.05  # seconds
UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class BusyError(OSError):
    """Another process uses the folder; the message names it."""


_held = set[tuple[int, Path]]()  # by threads of this process


@contextmanager
def locked(folder: Path | str, patience: float = 0.0, again: bool = False) -> Iterator[None]:
    """Hold the lock of a folder or file, which need not exist.

    Args:
        folder: the run folder, or the file.
        patience: seconds to wait for a process on another machine. If that machine crashed, the file server releases
            its lock only after a while; the lock of a process that died on this machine is free at once.
        again: accept that this thread holds the lock already.

    Raises:
        BusyError: another process or thread holds the lock.
    """
    path = lock_path(folder)
    mine = (threading.get_ident(), path.resolve())
    if again and mine in _held:
        yield
        return
    existed = path.parent.exists()
    began = time.monotonic()
    while (lock := _take(path)) is None:
        worker = worker_on(folder)
        here = worker.endswith(f" on {platform.node()}")
        if time.monotonic() - began > (GRACE if here else max(GRACE, patience)):
            user = worker or "another process"
            raise BusyError(f"{folder} is in use by {user}. Wait until it is done, or use another folder.")
        time.sleep(RETRY_AFTER)
    _held.add(mine)
    try:
        yield
    finally:
        _held.discard(mine)
        path.unlink(missing_ok=True)  # before the release, so that no other process's is removed
        os.close(lock)
        if not existed:
            with suppress(OSError):  # nothing was written into it
                path.parent.rmdir()


@contextmanager
def occupied(folder: Path | str) -> Iterator[None]:
    """Hold the folder itself, too, so that a second process is refused where somebody removed the lock file.

    The folder is created; it is removed again if it is still empty at the end.

    Raises:
        BusyError: another process holds the folder.
    """
    folder = Path(folder)
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BusyError(
            f"{folder} is in use by another process. Wait until it is done, or use another folder."
        ) from None
    except OSError:  # a file system that cannot lock folders: the lock file has to do
        pass
    try:
        yield
    finally:
        os.close(descriptor)
        if not existed:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def working_on(folder: Path | str) -> Iterator[None]:
    """Hold both locks of a run folder; that of the file may be held already, as by a study that runs its unit.

    Beside a folder that is mounted into a read-only place, no lock file can be made.
    """
    place = Path(folder).resolve()
    mounted = place.is_dir() and not os.access(place.parent, os.W_OK)
    with nullcontext() if mounted else locked(place, again=True), occupied(place):
        yield


def worker_on(folder: Path | str) -> str:
    """Return which process holds the lock, "process 17 on HOST"; empty where none does or it cannot be known."""
    with suppress(OSError):  # no lock, or no locks on this file system
        lock = os.open(lock_path(folder), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            words = os.read(lock, 200).decode(errors="replace")
            return "".join(filter(str.isprintable, words)) or "another process"
        finally:
            os.close(lock)
    return ""


def lock_path(folder: Path | str) -> Path:
    """Return the lock's path, beside the folder: a new run's folder stays empty, and copies have no lock."""
    folder = Path(folder)
    return folder.with_name(f".{folder.name}.lock")


def _take(path: Path) -> int | None:
    """Return the lock's file descriptor, or None where another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except FileNotFoundError:  # another process has just removed the empty folder again
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.stat(path), os.fstat(lock)):
            raise FileNotFoundError
    except (BlockingIOError, FileNotFoundError):  # another process holds it, or has just removed it
        os.close(lock)
        return None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            os.close(lock)
            raise
        words = f"The file system of {path.parent} has no locks ({error.strerror})"
        warnings.warn(f"{words}; do not start the same run there twice.", stacklevel=4)
    os.ftruncate(lock, 0)
    os.write(lock, f"process {os.getpid()} on {platform.node()}".encode())
    return lock
