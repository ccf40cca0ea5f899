"""Stopping: the first signal is noted, a later one interrupts, a time limit ends, and handlers are put back."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from butfor.runs import stopping as library
from butfor.runs.stopping import Stop, stopping

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class SecondSignal(Exception):
    """What the handler from before raises."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[dict[int, Any]]:
    """Handlers that raise, in place before; those of the test runner are put back at the end."""

    def interrupt(number: int, frame: Any) -> None:
        raise SecondSignal(number)

    before = {number: signal.signal(number, interrupt) for number in NUMBERS}
    yield dict.fromkeys(NUMBERS, interrupt)
    for number, handler in before.items():
        signal.signal(number, handler)


def current() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in NUMBERS}


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_is_only_noted(number: signal.Signals, handlers: dict[int, Any]) -> None:
    with stopping(None) as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop()
        assert stop.signalled
        assert stop()  # it stays
    assert current() == handlers


@pytest.mark.parametrize("first", NUMBERS)
@pytest.mark.parametrize("second", NUMBERS)
def test_a_later_signal_of_either_kind_interrupts_at_once(
    first: signal.Signals, second: signal.Signals, handlers: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "SAME_WITHIN", -1.0)
    with stopping(None) as stop:
        signal.raise_signal(first)
        assert stop()
        with pytest.raises(SecondSignal):
            signal.raise_signal(second)
    assert current() == handlers


@pytest.mark.parametrize("first", NUMBERS)
@pytest.mark.parametrize("second", NUMBERS)
def test_a_signal_that_comes_twice_is_one(first: signal.Signals, second: signal.Signals) -> None:
    """A terminal's Ctrl-C reaches a process and its parent, which passes it on."""
    with stopping(None) as stop:
        signal.raise_signal(first)
        signal.raise_signal(second)
        assert stop()


def test_a_signal_that_is_ignored_stays_so(handlers: dict[int, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stopping(None) as stop:
        signal.raise_signal(signal.SIGINT)
        assert not stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop()
    assert current() == handlers | {signal.SIGINT: signal.SIG_IGN}


def test_a_signal_from_another_process_counts_too() -> None:
    with stopping(None) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 5
        while not stop() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert stop.signalled


def test_without_signals_the_handlers_are_put_back_also_after_an_error(handlers: dict[int, Any]) -> None:
    with stopping(None):
        assert all(handler is not handlers[number] for number, handler in current().items())
    assert current() == handlers
    with pytest.raises(ZeroDivisionError), stopping(None):
        raise ZeroDivisionError
    assert current() == handlers


def test_an_outer_one_is_told_after_an_inner_one_has_ended(handlers: dict[int, Any]) -> None:
    with stopping(None) as outer:
        with stopping(None) as inner:
            signal.raise_signal(signal.SIGINT)
            assert inner()
            assert not outer()
        signal.raise_signal(signal.SIGINT)
        assert outer()
    assert current() == handlers


def test_a_time_limit_stops_when_it_is_up_and_is_no_signal() -> None:
    began = time.monotonic()
    with stopping(0.05) as stop:
        while not stop():
            assert time.monotonic() - began < 5
        assert time.monotonic() - began >= 0.05
        assert not stop.signalled


def test_a_time_limit_may_count_from_an_earlier_moment() -> None:
    with stopping(100.0, since=time.monotonic() - 99) as stop:
        assert not stop()
    with stopping(100.0, since=time.monotonic() - 101) as stop:
        assert stop()


def test_a_time_that_is_up_at_the_start_stops_at_once() -> None:
    stop = Stop(0.0)
    time.sleep(0.002)
    assert stop()


@pytest.mark.parametrize("limit", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="time_limit"):
        Stop(limit)


def test_without_a_limit_only_a_signal_stops() -> None:
    stop = Stop(None)
    assert not stop()
    stop.signalled = True
    assert stop()


def test_in_another_thread_only_the_time_limit_counts(handlers: dict[int, Any]) -> None:
    """Python lets only the main thread handle signals."""
    seen: list[Any] = []

    def work() -> None:
        with stopping(0.0) as limited, stopping(None) as endless:
            time.sleep(0.002)
            seen.extend([limited(), endless(), current() == handlers])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, False, True]
