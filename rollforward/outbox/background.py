"""The relay of a process that answers requests: on a thread of its own, after the response."""

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
from rollforward.tasks.cloud_tasks import MAX_PER_CALL, UNANSWERED

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
# Between two calls of a process's relay, while there is something to relay.
LINGER_S = 0.02
# Seconds between two attempts at a row. The last delay repeats: while Cloud Tasks or Datastore
# does not answer, the process keeps trying, and a few seconds after its return all is relayed.
RETRY_DELAYS_S = (1, 2, 3)
# Attempts at a row that may never succeed: it is not committed, or the attempt raises a bug's
# error. Then the row is left to the sweep.
MAX_DOUBTFUL_ATTEMPTS = 5


def by_timer(seconds: float, act: Callable[[], None]) -> None:
    """Do something later, unless the process ends before."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


@dataclass
class _Errand:
    """A row to relay; `in_doubt`: it is not known whether it is committed."""

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
    """Relays on a thread of its own: the response does not wait for it.

    A lone row is relayed at once. Rows that come during its call, or just after it, go out with
    the next, so calls grow with the load: a call costs more than its tasks do. A call that is not
    answered is made again every few seconds, as long as the process lives: one call a queue,
    however many rows wait for it. At most MAX_WAITING rows are kept in memory for that. The
    thread ends with the process, after its last call. The sweep relays what is left then.
    """

    def __init__(
        self,
        pause: Callable[[float], None] = time.sleep,
        later: Callable[[float, Callable[[], None]], None] = by_timer,
    ) -> None:
        """Relay nothing yet.

        Args:
            pause: Waits between two calls; its argument is in seconds.
            later: Does something after some seconds, on another thread.
        """
        self._pause = pause
        self._later = later
        self._lock = threading.Lock()
        self._waiting: list[_Errand] = []
        self._delayed: list[list[_Errand]] = []  # By the second from now in which they are due.
        self._is_draining = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outbox")

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        self._add(clients, [_Errand(row) for row in rows])

    def look(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        self._add(clients, [_Errand(row, in_doubt=True) for row in rows])

    def _add(self, clients: Clients, errands: Sequence[_Errand]) -> None:
        with self._lock:
            room = MAX_WAITING - len(self._waiting) - sum(map(len, self._delayed))
            self._waiting.extend(errands[: max(0, room)])
            if self._is_draining or not self._waiting:
                return
            self._is_draining = True
        try:
            self._thread.submit(self._drain, clients)
        except RuntimeError:
            log.info("this process ends; %d rows are left to the sweep", len(errands))

    def _drain(self, clients: Clients) -> None:
        while errands := self._next():
            left = _attempt(clients, errands)
            if len(left) == len(errands) and not any(errand.in_doubt for errand in left):
                left = [*left, *self._take_same_queues(errands)]
            self._delay(clients, left)
            self._pause(LINGER_S)

    def _next(self) -> list[_Errand]:
        with self._lock:
            errands = self._waiting[:MAX_PER_CALL]
            del self._waiting[:MAX_PER_CALL]
            self._is_draining = bool(errands)
            return errands

    def _take_same_queues(self, unanswered: Sequence[_Errand]) -> list[_Errand]:
        """Take what waits for the queues of a call that was not answered: it can wait as well."""
        queues = {errand.row.queue for errand in unanswered}
        with self._lock:
            same = [errand for errand in self._waiting if errand.row.queue in queues]
            self._waiting = [errand for errand in self._waiting if errand.row.queue not in queues]
            return same

    def _delay(self, clients: Clients, errands: Sequence[_Errand]) -> None:
        with self._lock:
            is_ticking = bool(self._delayed)
            for errand in errands:
                delay_s = errand.next_delay_s()
                self._delayed += [[] for _ in range(delay_s - len(self._delayed))]
                self._delayed[delay_s - 1].append(errand)
            if is_ticking or not self._delayed:
                return
        self._tick_in_a_second(clients)

    def _tick_in_a_second(self, clients: Clients) -> None:
        try:
            self._later(1, lambda: self._tick(clients))
        except RuntimeError:
            log.info("this process ends; what was not answered is left to the sweep")

    def _tick(self, clients: Clients) -> None:
        with self._lock:
            due = self._delayed.pop(0)
            is_ticking = bool(self._delayed)
        if is_ticking:
            self._tick_in_a_second(clients)
        self._add(clients, due)


def _attempt(clients: Clients, errands: Sequence[_Errand]) -> list[_Errand]:
    """Relay what is committed; return what is to be tried again."""
    try:
        with clients.context():
            left = _relay_committed(clients, errands)
    except UNANSWERED as error:
        log.warning("%d rows are not relayed yet: %s", len(errands), error)
        return list(errands)
    except Exception:
        log.exception("%d rows are not relayed yet", len(errands))
        doubtful = left = list(errands)
    else:
        doubtful = [errand for errand in left if errand.in_doubt]
    for errand in doubtful:
        errand.doubtful_attempts += 1
    return [errand for errand in left if errand.doubtful_attempts < MAX_DOUBTFUL_ATTEMPTS]


def _relay_committed(clients: Clients, errands: Sequence[_Errand]) -> list[_Errand]:
    """Relay what is committed; return what was not answered, or is not committed yet."""
    doubtful = {errand.row.key for errand in errands if errand.in_doubt}
    found = {row.key for row in committed([e.row for e in errands if e.in_doubt])}
    there = [errand for errand in errands if errand.row.key not in doubtful - found]
    if not there:
        return list(errands)
    for errand in there:
        errand.in_doubt = False
    unanswered = {row.key for row in relay(clients, [e.row for e in there]).unanswered}
    return [e for e in errands if e.in_doubt or e.row.key in unanswered]
