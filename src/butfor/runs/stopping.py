"""Stop at the next safe moment: at a time limit, or after the first Ctrl-C or SIGTERM."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SAME_WITHIN = 1.0  # seconds: a signal sent to all processes of a job arrives several times, as parents pass it on


def check_time_limit(seconds: float | None) -> None:
    """Refuse a time limit that is negative, NaN or infinite before any work is done."""
    if seconds is not None and not 0 <= seconds < math.inf:
        raise ValueError(f"time_limit must be a finite number of seconds, at least 0; got {seconds}.")


class Stop:
    """Whether to stop at the next safe moment: a signal arrived, or the time is up."""

    def __init__(self, time_limit: float | None, since: float | None = None) -> None:
        check_time_limit(time_limit)
        began = time.monotonic() if since is None else since
        self.deadline = began + (math.inf if time_limit is None else time_limit)
        self.signalled = False

    def __call__(self) -> bool:
        return self.signalled or time.monotonic() > self.deadline


@contextmanager
def stopping(time_limit: float | None, since: float | None = None) -> Iterator[Stop]:
    """Note the first Ctrl-C or SIGTERM instead of raising; another one, a second later or more, interrupts at once.

    The time limit counts from `since`, a time.monotonic(), by default now. Signals that are ignored stay ignored.
    """
    stop = Stop(time_limit, since)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    noted = 0.0

    def note(number: int, frame: Any) -> None:
        nonlocal noted
        if not stop.signalled:
            stop.signalled = True
            noted = time.monotonic()
        elif time.monotonic() - noted > SAME_WITHIN:
            for each, handler in before.items():
                signal.signal(each, handler)
            signal.raise_signal(number)

    heeded = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, note) for each in heeded}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
