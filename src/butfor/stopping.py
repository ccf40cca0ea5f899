"""Stopping at a good moment: at a time limit, or after the first Ctrl-C or SIGTERM."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """Says whether to stop at the next good moment: a signal came, or the time is up."""

    def __init__(self, time_limit: float | None, since: float | None = None) -> None:
        if time_limit is not None and not time_limit >= 0:
            raise ValueError(f"time_limit must be a number of seconds, 0 or more; got {time_limit}.")
        began = time.monotonic() if since is None else since
        self.deadline = None if time_limit is None else began + time_limit
        self.signalled = False

    def __call__(self) -> bool:
        return self.signalled or (self.deadline is not None and time.monotonic() > self.deadline)


@contextmanager
def stopping(time_limit: float | None, since: float | None = None) -> Iterator[Stop]:
    """While in here, the first Ctrl-C or SIGTERM is only noted; a second one interrupts at once.

    The time limit counts from now, or from the time.monotonic() `since`.
    """
    stop = Stop(time_limit, since)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def note(number: int, frame: Any) -> None:
        stop.signalled = True
        for each in numbers:
            signal.signal(each, before[each])

    for number in numbers:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number in numbers:
            signal.signal(number, before[number])
