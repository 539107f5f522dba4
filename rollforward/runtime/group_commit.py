"""Group commit: calls that come while a commit is in progress share the next one.

A leader makes the call for its group, and the others follow:

1. Join: a call queues up. When no commit is in progress it is promoted to leader at once, so a
   lone call commits by its own thread and waits for nothing.
2. Lead: the leader takes a group off the queue, itself first, and commits for all of it. With
   `linger_s` it waits before as long as calls keep coming, if it has company, or had last time.
3. Hand over: when its commit ends and no other leader is at work, it promotes the first of those
   that queued up meanwhile, which commits for the next group.
4. Answer: the leader gives each follower of its group its own answer, or the error that all share.

So a group is what came during the commit before: the slower the service, the more a commit carries.
A call that has queued for `max_wait_s` becomes a leader of its own, so a commit that hangs holds up
its own group only.

Lost on failure: a commit that raises raises for each call of its group, and for no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

C = TypeVar("C")
R = TypeVar("R")

SHORT_GAP = 4  # So many times shorter.


class GroupCommit(Generic[C, R]):
    """Makes one commit of many calls, one group after the other."""

    def __init__(
        self,
        commit: Callable[[Sequence[C]], Sequence[R | Exception]],
        *,
        max_calls: int,
        max_bytes: int,
        size: Callable[[C], int],
        max_wait_s: float,
        linger_s: float = 0.0,
        gap_s: float = 0.0,
    ) -> None:
        """Share calls of `commit`.

        Args:
            commit: Returns an answer for each call, or why it has none.
            max_calls: In a group.
            max_bytes: The `size` of a group's calls together, unless it is one call alone.
            max_wait_s: How long a call queues before it becomes a leader of its own.
            linger_s: How long a leader waits for company at most; less than `max_wait_s`.
            gap_s: How often it looks whether another one has come, and goes on when none has.
        """
        self._commit = commit
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._size = size
        self._max_wait_s = max_wait_s
        self._linger_s = linger_s
        self._gap_s = gap_s
        self._lock = threading.Lock()
        self._are_enough = threading.Condition(self._lock)
        self._enough = max_calls  # For which a leader is woken.
        self._waiting: list[_Waiter[C, R]] = []
        self._leaders = 0
        self._last_size = 1  # Of a group.

    def __call__(self, call: C) -> R:
        """Make a call, alone or with others; return its own answer."""
        waiter: _Waiter[C, R] = _Waiter(call)
        with self._lock:
            self._waiting.append(waiter)  # Step 1.
            if len(self._waiting) >= self._enough:
                self._are_enough.notify_all()
            if self._leaders == 0:
                self._promote(waiter)
        if not waiter.called.wait(self._max_wait_s):
            self._lead_after_timeout(waiter)
        waiter.called.wait()
        if waiter.is_leader:
            self._lead(waiter)
        return waiter.result()

    def _promote(self, waiter: _Waiter[C, R]) -> None:
        self._leaders += 1
        waiter.is_leader = True
        waiter.called.set()

    def _lead_after_timeout(self, waiter: _Waiter[C, R]) -> None:
        """Lead, unless a leader has taken the waiter meanwhile: then its answer is on the way."""
        with self._lock:
            if waiter in self._waiting and not waiter.is_leader:
                self._promote(waiter)

    def _lead(self, own: _Waiter[C, R]) -> None:
        with self._lock:
            self._linger()
            group = self._take(own)  # Step 2.
            self._last_size = len(group)
        error: BaseException = RuntimeError("a group commit gave no answers")
        answers: Sequence[R | BaseException] = ()
        try:
            answers = self._commit([waiter.call for waiter in group])
        except BaseException as raised:
            error = raised
        with self._lock:
            self._leaders -= 1
            if self._waiting and self._leaders == 0:
                self._promote(self._waiting[0])  # Step 3.
        for waiter, answer in zip(group, answers or [error for _ in group], strict=True):
            waiter.answer = answer  # Step 4.
            waiter.is_leader = False
            waiter.called.set()

    def _linger(self) -> None:
        """Let go of the lock as long as calls keep coming; not for one that comes alone again.

        It is not woken by each call, for that takes two turns of Python's threads. When as many
        have come as last time, perhaps all have that can: then it waits less for a further one.
        """
        if len(self._waiting) == self._last_size == 1:
            return
        ends_at = time.monotonic() + self._linger_s
        while (here := len(self._waiting)) < self._max_calls:
            left_s, gap_s = ends_at - time.monotonic(), self._gap_s
            if left_s <= 0:
                break
            self._enough = min(self._last_size, self._max_calls)
            if here >= self._enough:
                self._enough, gap_s = self._max_calls, gap_s / SHORT_GAP
            self._are_enough.wait(min(left_s, gap_s))
            if len(self._waiting) == here:
                break

    def _take(self, own: _Waiter[C, R]) -> list[_Waiter[C, R]]:
        """Take a group off the queue, this waiter first."""
        self._waiting.remove(own)
        taken, room = [own], self._max_bytes - self._size(own.call)
        # Another leader makes its own commit, for itself and for those behind it.
        for waiter in [waiter for waiter in self._waiting if not waiter.is_leader]:
            room -= self._size(waiter.call)
            if room < 0 or len(taken) == self._max_calls:
                break
            taken.append(waiter)
        gone = set(map(id, taken))
        self._waiting = [waiter for waiter in self._waiting if id(waiter) not in gone]
        return taken


class _Waiter(Generic[C, R]):
    """A call that waits for its answer, or to lead."""

    def __init__(self, call: C) -> None:
        self.call = call
        self.called = threading.Event()
        self.is_leader = False
        self.answer: R | BaseException | None = None

    def result(self) -> R:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]
