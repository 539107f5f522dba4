"""Group commit: calls that come while one is under way share the next.

A lone call is made at once, by its own thread, and pays nothing. The first of those that came
meanwhile makes the next call for all of them. So a group is what came while the one before was
under way: the slower the service, the more a call carries, and nothing waits for company. A call
that has waited too long for its group goes ahead with one of its own, beside the one that hangs.

Lost on failure: a call that raises raises for everybody who shared it, and for nobody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

C = TypeVar("C")
R = TypeVar("R")


class GroupCommit(Generic[C, R]):
    """Makes one call of many, one group after the other."""

    def __init__(
        self,
        commit: Callable[[Sequence[C]], Sequence[R | Exception]],
        *,
        most: int,
        most_bytes: int,
        size: Callable[[C], int],
        longest_wait_s: float,
    ) -> None:
        """Share calls of `commit`.

        Args:
            commit: Returns an answer for each call, or why it has none.
            most: Calls in a group; and their `size` together, unless it is one alone.
            longest_wait_s: How long a call waits for its group before it goes ahead.
        """
        self._commit = commit
        self._most = most
        self._most_bytes = most_bytes
        self._size = size
        self._longest_wait_s = longest_wait_s
        self._lock = threading.Lock()
        self._waiting: list[_Seat[C, R]] = []
        self._leaders = 0

    def __call__(self, call: C) -> R:
        """Make a call, alone or with others; return its own answer."""
        waiter: _Seat[C, R] = _Seat(call)
        with self._lock:
            self._waiting.append(waiter)
            if self._leaders == 0:
                self._appoint(waiter)
        if not waiter.called.wait(self._longest_wait_s):
            self._go_ahead(waiter)
        waiter.called.wait()
        if waiter.leads:
            self._lead(waiter)
        return waiter.result()

    def _appoint(self, waiter: _Seat[C, R]) -> None:
        self._leaders += 1
        waiter.leads = True
        waiter.called.set()

    def _go_ahead(self, waiter: _Seat[C, R]) -> None:
        """Lead, unless somebody has taken the waiter meanwhile: then its answer is on the way."""
        with self._lock:
            if waiter in self._waiting and not waiter.leads:
                self._appoint(waiter)

    def _lead(self, own: _Seat[C, R]) -> None:
        with self._lock:
            waiters = self._take(own)
        error: BaseException = RuntimeError("a group commit gave no answers")
        answers: Sequence[R | BaseException] = ()
        try:
            answers = self._commit([waiter.call for waiter in waiters])
        except BaseException as raised:
            error = raised
        with self._lock:
            self._leaders -= 1
            if self._waiting and self._leaders == 0:
                self._appoint(self._waiting[0])
        for waiter, answer in zip(waiters, answers or [error for _ in waiters], strict=True):
            waiter.answer = answer
            waiter.leads = False
            waiter.called.set()

    def _take(self, own: _Seat[C, R]) -> list[_Seat[C, R]]:
        """Take a group off the line, this waiter first."""
        self._waiting.remove(own)
        taken, room = [own], self._most_bytes - self._size(own.call)
        # One that was told to lead makes its own call, for itself and for those behind it.
        for waiter in [waiter for waiter in self._waiting if not waiter.leads]:
            room -= self._size(waiter.call)
            if room < 0 or len(taken) == self._most:
                break
            taken.append(waiter)
        gone = set(map(id, taken))
        self._waiting = [waiter for waiter in self._waiting if id(waiter) not in gone]
        return taken


class _Seat(Generic[C, R]):
    """A call that waits for its answer, or to lead."""

    def __init__(self, call: C) -> None:
        self.call = call
        self.called = threading.Event()
        self.leads = False
        self.answer: R | BaseException | None = None

    def result(self) -> R:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]
