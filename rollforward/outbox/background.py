"""The relay of a web process: on a thread of its own, after the response."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rollforward.outbox.entities import OutboxTask
from rollforward.outbox.relay import committed, relay
from rollforward.runtime.clients import Clients
from rollforward.runtime.process.bounded_wait import BoundedWait
from rollforward.tasks.cloud_tasks import MAX_PER_CALL, UNANSWERED

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
# The pause between two calls of a process's relay.
LINGER_S = 0.02
# Seconds between two attempts at a row. The last delay repeats during an outage of Cloud Tasks or
# Datastore, and all rows are relayed a few seconds after it.
RETRY_DELAYS_S = (1, 2, 3)
# Attempts at a row that may never succeed: it is not committed, or a bug makes the attempt raise.
# Then the sweep takes over.
MAX_DOUBTFUL_ATTEMPTS = 5


def by_timer(seconds: float, act: Callable[[], None]) -> None:
    """Act after some seconds, unless the process ends before."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


@dataclass
class _Job:
    """A row to relay; `in_doubt`: it may not be committed."""

    row: OutboxTask
    in_doubt: bool = False
    attempts: int = 0
    doubtful_attempts: int = 0

    def next_delay_s(self) -> int:
        """Return the seconds until the next attempt; count this one."""
        delay_s = RETRY_DELAYS_S[min(self.attempts, len(RETRY_DELAYS_S) - 1)]
        self.attempts += 1
        return delay_s


class BackgroundRelay:
    """Relays on a thread of its own, so that no response waits for it.

    A lone row is relayed at once. Rows that come during its call, or just after it, go out with the
    next, so calls grow with the load: a call costs more than its tasks do. An unanswered call is
    retried every few seconds while the process lives, once for each queue. At most MAX_WAITING rows
    are kept in memory for that. The thread ends with the process, after its last call. The sweep
    relays the remaining rows.
    """

    def __init__(
        self,
        pause: Callable[[float], None] = time.sleep,
        schedule: Callable[[float, Callable[[], None]], None] = by_timer,
    ) -> None:
        """Relay nothing yet.

        Args:
            pause: Waits between two calls; its argument is in seconds.
            schedule: Runs a function after some seconds, on another thread.
        """
        self._pause = pause
        self._schedule = schedule
        self._lock = threading.Lock()
        self._drained = BoundedWait(self._lock)
        self._is_awaited = False
        self._waiting: list[_Job] = []
        self._delayed: list[list[_Job]] = []  # By the number of seconds until they are due.
        self._is_draining = False
        self._is_ticking = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outbox")

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        """Create the tasks of some committed rows soon, on a thread."""
        self._add(clients, [_Job(row) for row in rows])

    def resolve(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        """Create the tasks of the rows that turn out to be committed, soon, on a thread."""
        self._add(clients, [_Job(row, in_doubt=True) for row in rows])

    def finish(self, timeout_s: float) -> None:
        """Wait until each row has had its first attempt, for some seconds at most."""
        with self._lock:
            self._is_awaited = True
            self._drained.wait(lambda: not self._is_draining, timeout_s)
            self._is_awaited = False

    def _add(self, clients: Clients, errands: Sequence[_Job]) -> None:
        with self._lock:
            self._make_room(len(errands))
            room = MAX_WAITING - len(self._waiting)
            self._waiting.extend(errands[: max(0, room)])
            if self._is_draining or not self._waiting:
                return
            self._is_draining = True
        try:
            self._thread.submit(self._drain, clients)
        except RuntimeError:
            # The process ends, or has no room for a thread now. Those that come later try again.
            log.info("no thread starts; %d rows wait, or are left to the sweep", len(errands))
            with self._lock:
                self._is_draining = False
                self._drained.notify()

    def _make_room(self, count: int) -> None:
        """Leave delayed rows to the sweep, so that a queue that is away fills no memory."""
        excess = len(self._waiting) + sum(map(len, self._delayed)) + count - MAX_WAITING
        for delayed in reversed(self._delayed):
            if excess <= 0:
                return
            dropped = min(excess, len(delayed))
            del delayed[:dropped]
            excess -= dropped

    def _drain(self, clients: Clients) -> None:
        while errands := self._next():
            unfinished = _attempt(clients, errands)
            if len(unfinished) == len(errands) and not any(e.in_doubt for e in unfinished):
                unfinished += self._take_same_queues(errands)
            self._delay(clients, unfinished)
            if not self._is_awaited:
                self._pause(LINGER_S)

    def _next(self) -> list[_Job]:
        with self._lock:
            errands = self._waiting[:MAX_PER_CALL]
            del self._waiting[:MAX_PER_CALL]
            self._is_draining = bool(errands)
            if not errands:
                self._drained.notify()
            return errands

    def _take_same_queues(self, unanswered: Sequence[_Job]) -> list[_Job]:
        """Take the rows of the queues of an unanswered call, to delay them as well."""
        queues = {errand.row.queue for errand in unanswered}
        with self._lock:
            same = [errand for errand in self._waiting if errand.row.queue in queues]
            self._waiting = [errand for errand in self._waiting if errand.row.queue not in queues]
            return same

    def _delay(self, clients: Clients, errands: Sequence[_Job]) -> None:
        with self._lock:
            for errand in errands:
                delay_s = errand.next_delay_s()
                self._delayed += [[] for _ in range(delay_s - len(self._delayed))]
                self._delayed[delay_s - 1].append(errand)
            if self._is_ticking or not self._delayed:
                return
            self._is_ticking = True
        self._tick_in_a_second(clients)

    def _tick_in_a_second(self, clients: Clients) -> None:
        try:
            self._schedule(1, lambda: self._tick(clients))
        except RuntimeError:
            log.info("no thread starts; what was not answered waits, or is left to the sweep")
            with self._lock:
                self._is_ticking = False

    def _tick(self, clients: Clients) -> None:
        with self._lock:
            due = self._delayed.pop(0)
            self._is_ticking = is_ticking = bool(self._delayed)
        if is_ticking:
            self._tick_in_a_second(clients)
        self._add(clients, due)


def _attempt(clients: Clients, errands: Sequence[_Job]) -> list[_Job]:
    """Relay committed rows; return the errands to retry."""
    try:
        with clients.context():
            unfinished = _relay_committed(clients, errands)
    except UNANSWERED as error:
        log.warning("%d rows are not relayed yet: %s", len(errands), error)
        return list(errands)
    except Exception:
        log.exception("%d rows are not relayed yet", len(errands))
        doubtful = unfinished = list(errands)
    else:
        doubtful = [errand for errand in unfinished if errand.in_doubt]
    for errand in doubtful:
        errand.doubtful_attempts += 1
    return [e for e in unfinished if e.doubtful_attempts < MAX_DOUBTFUL_ATTEMPTS]


def _relay_committed(clients: Clients, errands: Sequence[_Job]) -> list[_Job]:
    """Relay committed rows; return the errands that are unanswered, or not committed yet."""
    doubtful = {errand.row.key for errand in errands if errand.in_doubt}
    uncommitted = doubtful - {row.key for row in committed([e.row for e in errands if e.in_doubt])}
    stored = [errand for errand in errands if errand.row.key not in uncommitted]
    if not stored:
        return list(errands)
    for errand in stored:
        errand.in_doubt = False
    unanswered = {row.key for row in relay(clients, [e.row for e in stored]).unanswered}
    return [e for e in errands if e.in_doubt or e.row.key in unanswered]
