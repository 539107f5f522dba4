"""Group commit: calls that come while a commit is in progress share the next one.

A leader makes the call for its group, and the others follow:

1. Join: a call queues up. While fewer than `max_leaders` commits are in progress (one by default)
   it is promoted to leader at once, so a lone call commits by its own thread and waits for nothing.
2. Lead: the leader prepares its commit, if there is anything that needs no group. Then it takes a
   group off the queue, itself first, and commits for all of it. With `linger_s` it waits before
   that while calls keep coming, if others queue or did last time.
3. Hand over: when its commit ends and fewer than `max_leaders` are at work, it promotes the first
   queued call, which commits for the next group.
4. Answer: the leader gives each follower of its group its own answer, or the error that all share.

So a group holds the calls that came during the last commit, and while its leader prepared. The
slower the service, the larger the groups. A call that has queued for `max_wait_s` becomes a leader
of its own, so a hanging commit delays its own group only.

Calls that touch the same row would make each other's commits fail. So a group has one of them at
most, none of another group in progress, and the others stay queued in their order.

Lost on failure: a commit that raises raises for each call of its group, and for no other. A leader
whose thread is ended, as by KeyboardInterrupt, leaves its followers with an unknown outcome.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Generic, TypeVar

from google.api_core import exceptions as rpc_errors

C = TypeVar("C")
R = TypeVar("R")

SHORT_GAP = 4  # Divides the gap.


class GroupCommit(Generic[C, R]):
    """Makes one commit of many calls, one group after the other."""

    def __init__(
        self,
        commit: Callable[[Sequence[C]], Sequence[R | BaseException]],
        *,
        max_calls: int,
        max_bytes: int,
        size: Callable[[C], int],
        max_wait_s: float,
        linger_s: float = 0.0,
        gap_s: float = 0.0,
        rows: Callable[[C], Collection[Hashable]] = lambda call: (),
        prepare: Callable[[C], None] | None = None,
        max_leaders: int = 1,
    ) -> None:
        """Share calls of `commit`.

        Args:
            commit: Returns an answer for each call, or why it has none.
            max_calls: In a group.
            max_bytes: The `size` of a group's calls together, unless it is one call alone.
            max_wait_s: The time that a call queues before it becomes a leader of its own.
            linger_s: The longest wait of a leader for other calls; less than `max_wait_s`.
            gap_s: The leader commits once no call has come for this long.
            rows: The rows that a call touches.
            prepare: Takes the leader's call, the first one of the group that `commit` gets. Called
                before the group is taken: other calls come while it waits for a service. Not called
                by a leader of its own that has queued for `max_wait_s`.
            max_leaders: Commits in progress at a time, those of calls that queued for too long
                aside.
        """
        self._commit = commit
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._size = size
        self._max_wait_s = max_wait_s
        self._linger_s = linger_s
        self._gap_s = gap_s
        self._rows = rows
        self._prepare = prepare
        self._max_leaders = max_leaders
        self._lock = threading.Lock()
        self._are_enough = threading.Condition(self._lock)
        self._enough = max_calls  # For which a leader is woken.
        self._waiting: list[_Waiter[C, R]] = []
        self._leaders = 0
        self._in_progress: list[set[Hashable]] = []  # The rows of each group.
        self._last_size = 1  # Of a group.

    def __call__(self, call: C) -> R:
        """Make a call, alone or with others; return its own answer."""
        waiter: _Waiter[C, R] = _Waiter(call)
        try:
            self._join(waiter)
            if waiter.is_leader:
                self._lead(waiter)
        except BaseException:
            self._leave(waiter)
            raise
        return waiter.result()

    def _join(self, waiter: _Waiter[C, R]) -> None:
        """Queue up until a leader has an answer, or this call is to lead."""
        with self._lock:
            self._waiting.append(waiter)  # Step 1.
            if len(self._waiting) >= self._enough:
                self._are_enough.notify_all()
            self._promote_next()
        if not waiter.called.wait(self._max_wait_s):
            self._lead_after_timeout(waiter)
        waiter.called.wait()

    def _leave(self, waiter: _Waiter[C, R]) -> None:
        """Leave the queue: this call's thread is ended before a leader has taken it."""
        with self._lock:
            if waiter not in self._waiting:
                return
            self._waiting.remove(waiter)
            if waiter.is_leader:
                self._leaders -= 1
            self._promote_next()

    def _promote_next(self) -> None:
        """Promote the first call that touches no row of a group in progress, if there is room."""
        if self._leaders >= self._max_leaders:
            return
        touched = self._locked_rows()
        for waiter in self._waiting:
            if not waiter.is_leader and touched.isdisjoint(self._rows(waiter.call)):
                self._promote(waiter)
                return

    def _locked_rows(self) -> set[Hashable]:
        """Return the rows of all groups in progress, and of leaders that have not taken theirs."""
        leading = (self._rows(waiter.call) for waiter in self._waiting if waiter.is_leader)
        return set().union(*self._in_progress, *leading)

    def _promote(self, waiter: _Waiter[C, R]) -> None:
        self._leaders += 1
        waiter.is_leader = True
        waiter.called.set()

    def _lead_after_timeout(self, waiter: _Waiter[C, R]) -> None:
        """Lead, unless a leader has taken the waiter meanwhile and will answer it."""
        with self._lock:
            if waiter in self._waiting and not waiter.is_leader:
                waiter.has_timed_out = True
                self._promote(waiter)

    def _lead(self, leader: _Waiter[C, R]) -> None:
        if not leader.has_timed_out:  # It has waited long enough, and so have those behind it.
            self._get_ready(leader.call)
        with self._lock:
            self._linger()
            group = self._take(leader)  # Step 2.
            self._last_size = len(group)
            rows = {row for waiter in group for row in self._rows(waiter.call)}
            self._in_progress.append(rows)
        error: BaseException = RuntimeError("a group commit gave no answers")
        answers: Sequence[R | BaseException] = ()
        try:
            answers = self._commit([waiter.call for waiter in group])
        except BaseException as raised:
            error = raised
        with self._lock:
            self._leaders -= 1
            self._in_progress = [other for other in self._in_progress if other is not rows]
            self._promote_next()  # Step 3.
        errors = [error, *(_error_of_follower(error) for _ in group[1:])]
        for waiter, answer in zip(group, answers or errors, strict=True):
            waiter.answer = answer  # Step 4.
            waiter.is_leader = False
            waiter.called.set()

    def _get_ready(self, call: C) -> None:
        """Prepare the commit, or yield: other calls come meanwhile."""
        if self._prepare is not None:
            self._prepare(call)
        elif self._last_size > 1:
            self._yield()

    def _yield(self) -> None:
        """Let other threads run while they call: those just answered may call again at once."""
        queued = 0
        while queued < len(self._waiting) < self._max_calls:
            queued = len(self._waiting)
            time.sleep(0)

    def _linger(self) -> None:
        """Release the lock while calls keep coming; not for a lone call after a lone call.

        Calls do not wake the leader one by one, since that takes two switches of Python's threads.
        When as many have come as last time, all callers may be here: then it waits less for more.
        """
        if len(self._waiting) == self._last_size == 1:
            return
        ends_at = time.monotonic() + self._linger_s
        while (queued := len(self._waiting)) < self._max_calls:
            left_s, gap_s = ends_at - time.monotonic(), self._gap_s
            if left_s <= 0:
                break
            self._enough = min(self._last_size, self._max_calls)
            if queued >= self._enough:
                self._enough, gap_s = self._max_calls, gap_s / SHORT_GAP
            self._are_enough.wait(min(left_s, gap_s))
            if len(self._waiting) == queued:
                break

    def _take(self, leader: _Waiter[C, R]) -> list[_Waiter[C, R]]:
        """Take a group off the queue, this waiter first."""
        group, room = [leader], self._max_bytes - self._size(leader.call)
        touched = self._locked_rows().union(self._rows(leader.call))
        # Another leader makes its own commit, for itself and the calls that follow.
        for waiter in [waiter for waiter in self._waiting if not waiter.is_leader]:
            rows = self._rows(waiter.call)
            is_apart = touched.isdisjoint(rows)
            touched.update(rows)  # Rows of a queued call, too: later calls wait for it.
            if not is_apart:
                continue
            room -= self._size(waiter.call)
            if room < 0 or len(group) == self._max_calls:
                break
            group.append(waiter)
        grouped = set(map(id, group))
        self._waiting = [waiter for waiter in self._waiting if id(waiter) not in grouped]
        return group


def _error_of_follower(error: BaseException) -> Exception:
    """Return the error of a follower, whose thread does not end with its leader's."""
    if isinstance(error, Exception):
        return error
    return rpc_errors.Cancelled("the thread that made this call with others was ended")  # type: ignore[no-untyped-call]


class _Waiter(Generic[C, R]):
    """A call that waits for its answer, or to lead."""

    def __init__(self, call: C) -> None:
        self.call = call
        self.called = threading.Event()
        self.is_leader = False
        self.has_timed_out = False
        self.answer: R | BaseException | None = None

    def result(self) -> R:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]
