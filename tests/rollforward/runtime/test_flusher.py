"""The flusher: a thread that stores what gathers, and is not there when nothing does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.runtime import Clients, PeriodicFlusher
from rollforward.runtime.process.process_state import ProcessState

pytestmark = pytest.mark.fast


class Letters:
    """A buffer of letters, whose store fails a given number of times."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.waiting: list[str] = []
        self.stored: list[str] = []

    def is_empty(self) -> bool:
        return not self.waiting

    def store(self) -> None:
        if self.errors:
            raise self.errors.pop()
        self.stored, self.waiting = [*self.stored, *self.waiting], []


def clients() -> Clients:
    fake = SimpleNamespace(process_state=ProcessState(), context=contextlib.nullcontext)
    return cast(Clients, cast(Any, fake))


def threads() -> int:
    return sum(thread.name == "letters" for thread in threading.enumerate())


def until(claim: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 30
    while not claim():
        assert time.monotonic() < ends_at, "it did not happen"
        time.sleep(0.005)


def test_what_gathers_is_stored_by_a_thread_that_ends() -> None:
    """And by another one, when something comes later."""
    letters = Letters()
    flusher = PeriodicFlusher(clients(), "letters", letters, 0.01)
    for letter in "ab":
        letters.waiting.append(letter)
        flusher.wake()
        flusher.wake()
        until(lambda: threads() == 0)

    assert letters.stored == ["a", "b"]


def test_a_flush_that_fails_is_made_again() -> None:
    """Whatever the error is: what gathered stays until it is stored."""
    letters = Letters(rpc_errors.ServiceUnavailable("away"), ValueError("odd"))
    flusher = PeriodicFlusher(clients(), "letters", letters, 0.01)
    letters.waiting.append("a")
    flusher.wake()

    until(lambda: letters.stored == ["a"])
    until(lambda: threads() == 0)


def test_what_gathers_while_no_thread_can_start_is_stored_with_what_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who adds an item is not told: it is kept, and the next one begins the flush of both."""
    letters = Letters()
    flusher = PeriodicFlusher(clients(), "letters", letters, 0.01)
    letters.waiting.append("a")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        flusher.wake()
    letters.waiting.append("b")
    flusher.wake()

    until(lambda: letters.stored == ["a", "b"])


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_two_flushes_at_once_store_one_after_the_other() -> None:
    """A shutdown and the thread flush one after the other, and store nothing twice."""
    both, met = threading.Barrier(2), list[int]()

    class Slow(Letters):
        def store(self) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                met.append(both.wait(0.05))
            super().store()

    flusher = PeriodicFlusher(clients(), "letters", Slow(), 60)
    flushes = [threading.Thread(target=flusher.flush) for _ in range(2)]
    for flush in flushes:
        flush.start()
    for flush in flushes:
        flush.join()

    assert met == []


def test_the_last_request_lets_the_thread_flush_before_its_time() -> None:
    """It waits until all is stored; a process without a buffer waits for nothing."""
    letters, ours = Letters(), clients()
    flusher = PeriodicFlusher(ours, "letters", letters, 3_600)
    ours.process_state.finish_background_work(20)
    letters.waiting.append("a")
    flusher.wake()

    ours.process_state.finish_background_work(20)

    assert letters.stored == ["a"]
    assert threads() == 0


def test_one_request_waits_for_a_flush_that_hangs_and_no_other_one() -> None:
    """In an outage each response would be late, of `/health/live`, too."""
    may_store, letters, ours = threading.Event(), Letters(), clients()
    store = letters.store
    letters.store = lambda: (may_store.wait(20), store())[1]  # type: ignore[method-assign]
    flusher = PeriodicFlusher(ours, "letters", letters, 3_600)
    letters.waiting.append("a")
    flusher.wake()
    ours.process_state.finish_background_work(0.01)

    ours.process_state.finish_background_work(3_600)
    assert letters.stored == []
    may_store.set()
    until(lambda: threads() == 0)
    letters.waiting.append("b")
    flusher.wake()
    ours.process_state.finish_background_work(20)
    assert letters.stored == ["a", "b"]


def test_a_process_that_is_told_to_end_flushes_first() -> None:
    """It does not wait for the period, and neither do later items."""
    letters, ours = Letters(), clients()
    flusher = PeriodicFlusher(ours, "letters", letters, 60)
    letters.waiting.append("a")
    flusher.wake()

    ours.process_state.shutdown()

    assert letters.stored == ["a"]
    until(lambda: threads() == 0)
    letters.waiting.append("b")
    flusher.wake()
    until(lambda: letters.stored == ["a", "b"])
