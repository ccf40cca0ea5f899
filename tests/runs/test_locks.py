"""A lock beside a folder: who holds it is named, it ends with its process, and no file is left behind."""

import errno
import fcntl
import os
import pickle
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from butfor.runs import locks
from butfor.runs.locks import BusyError, lock_path, locked, occupied, worker_on

HOLD = """
import sys, time
from butfor.runs.locks import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that does not exist yet; its lock is waited for only as long as a test says."""
    monkeypatch.setattr(locks, "GRACE", 0.0)
    return tmp_path / "root" / "unit"


@pytest.fixture
def other(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the folder's lock until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_lock_leaves_nothing_behind(folder: Path) -> None:
    assert worker_on(folder) == ""
    with locked(folder):
        assert worker_on(folder) == f"process {os.getpid()} on {platform.node()}"
        assert [path.name for path in folder.parent.iterdir()] == [".unit.lock"]
    with pytest.raises(ZeroDivisionError), locked(folder):
        raise ZeroDivisionError
    assert not folder.parent.exists()
    assert worker_on(folder) == ""


def test_what_another_process_works_on_is_refused_until_it_is_killed(
    folder: Path, other: subprocess.Popen[str]
) -> None:
    worker = f"process {other.pid} on {platform.node()}"
    assert worker_on(folder) == worker
    with pytest.raises(BusyError, match=f"unit .*{worker}"), locked(folder):
        pass
    assert worker_on(folder) == worker  # a look does not take it away
    other.kill()
    other.wait()
    assert lock_path(folder).is_file()  # left behind, and free
    assert worker_on(folder) == ""
    with locked(folder):
        assert worker_on(folder).startswith(f"process {os.getpid()} ")
    assert not lock_path(folder).exists()


def test_only_a_process_of_another_machine_is_waited_for(
    folder: Path, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    with pytest.raises(BusyError), locked(folder, patience=30.0):
        pass
    assert time.monotonic() - began < 25  # it did not wait as long as it would have for another machine
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    threading.Timer(0.3, other.kill).start()
    with locked(folder, patience=30.0):
        assert other.wait() < 0
    assert 0.3 < time.monotonic() - began < 50


def test_a_moments_grace_is_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "GRACE", 20.0)
    first = locked(folder)
    first.__enter__()
    threading.Timer(0.2, lambda: first.__exit__(None, None, None)).start()
    with locked(folder):
        assert worker_on(folder)


def test_a_file_that_its_owner_removes_meanwhile_is_not_taken_for_the_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "GRACE", 5.0)
    take, calls = fcntl.flock, list[int]()

    def flock(lock: int, kind: int) -> None:
        calls.append(kind)
        if len(calls) == 1:  # between opening it and taking it
            lock_path(folder).unlink()
        take(lock, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(folder):
        assert worker_on(folder)  # a second comer sees it: the name belongs to the file that is locked
    assert len(calls) > 2


def test_storage_without_locks_is_told_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(lock: int, kind: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    number = errno.ENOLCK
    with pytest.warns(UserWarning, match="No locks available"), locked(folder):
        assert worker_on(folder) == ""
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"), locked(folder):
        pass


def test_a_link_in_the_locks_place_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    folder.parent.mkdir()
    lock_path(folder).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"), locked(folder):
        pass
    assert worker_on(folder) == ""
    assert (tmp_path / "precious").read_text() == "kept"


def test_the_holders_words_are_cleaned(folder: Path) -> None:
    with locked(folder):
        lock_path(folder).write_text("process 1\x1b[2J on host\n" + "x" * 500)
        assert worker_on(folder) == ("process 1[2J on host" + "x" * 500)[: 200 - 2]
        lock_path(folder).write_text("")  # its owner has not written yet
        assert worker_on(folder) == "another process"


def test_a_folder_is_held_itself_and_left_as_it_was(tmp_path: Path) -> None:
    with occupied(tmp_path / "new"), pytest.raises(BusyError, match="new"), occupied(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with occupied(tmp_path / "old"):
        pass
    assert (tmp_path / "old").is_dir()
    with occupied(tmp_path / "filled"):
        (tmp_path / "filled" / "config.json").write_text("")
    assert (tmp_path / "filled" / "config.json").is_file()


def test_a_file_system_that_cannot_lock_folders_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(lock: int, kind: int) -> None:
        raise OSError(errno.EBADF, "no")

    monkeypatch.setattr(fcntl, "flock", flock)
    with occupied(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()


def test_the_error_travels_between_processes() -> None:
    copy: Any = pickle.loads(pickle.dumps(BusyError("process 1 works on it")))
    assert isinstance(copy, BusyError)
    assert str(copy) == "process 1 works on it"
