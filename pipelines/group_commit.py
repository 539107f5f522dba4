"""Group commit: calls that come while one is under way share the next.

A lone call is made at once, by its own thread, and pays nothing. The first of those that came
meanwhile makes the next call for all of them, and while groups have more than one member, it
gives the next a few milliseconds to come together. Nobody waits long for a group: whoever has,
makes a call of its own, beside the one that hangs.

Lost on failure: a call that raises raises for everybody who shared it, and for nobody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

# Under load a group is given so long for each member of the one before, to come together: the more
# there are, the more a shared call saves.
LINGER_S = 0.0015
LONGEST_LINGER_S = 0.012
FADING = 0.7

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
        pause: Callable[[float], None] = time.sleep,
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
        self._pause = pause
        self._lock = threading.Lock()
        self._waiting: list[_Seat[C, R]] = []
        self._leaders = 0
        self._crowd = 1.0  # The size of the last groups, fading.

    def __call__(self, call: C) -> R:
        """Make a call, alone or with others; return its own answer."""
        seat: _Seat[C, R] = _Seat(call)
        with self._lock:
            self._waiting.append(seat)
            if self._leaders == 0:
                self._appoint(seat)
        if not seat.called.wait(self._longest_wait_s):
            self._go_ahead(seat)
        seat.called.wait()
        if seat.leads:
            self._lead(seat)
        return seat.result()

    def _appoint(self, seat: _Seat[C, R]) -> None:
        self._leaders += 1
        seat.leads = True
        seat.called.set()

    def _go_ahead(self, seat: _Seat[C, R]) -> None:
        """Lead, unless somebody has taken the seat meanwhile: then its answer is on the way."""
        with self._lock:
            if seat in self._waiting and not seat.leads:
                self._appoint(seat)

    def _lead(self, own: _Seat[C, R]) -> None:
        if self._crowd >= 2:
            self._pause(min(LONGEST_LINGER_S, LINGER_S * self._crowd))
        with self._lock:
            seats = self._take(own)
            self._crowd = max(len(seats), self._crowd * FADING)
        error: BaseException = RuntimeError("a group commit gave no answers")
        answers: Sequence[R | BaseException] = ()
        try:
            answers = self._commit([seat.call for seat in seats])
        except BaseException as raised:
            error = raised
        with self._lock:
            self._leaders -= 1
            if self._waiting and self._leaders == 0:
                self._appoint(self._waiting[0])
        for seat, answer in zip(seats, answers or [error for _ in seats], strict=True):
            seat.answer = answer
            seat.leads = False
            seat.called.set()

    def _take(self, own: _Seat[C, R]) -> list[_Seat[C, R]]:
        """Take a group off the line, this seat first."""
        self._waiting.remove(own)
        taken, room = [own], self._most_bytes - self._size(own.call)
        # One that was told to lead makes its own call, for itself and for those behind it.
        for seat in [seat for seat in self._waiting if not seat.leads]:
            room -= self._size(seat.call)
            if room < 0 or len(taken) == self._most:
                break
            taken.append(seat)
        gone = set(map(id, taken))
        self._waiting = [seat for seat in self._waiting if id(seat) not in gone]
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
