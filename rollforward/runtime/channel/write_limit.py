"""Production's limit on writes of one entity, simulated: an emulator has none.

Datastore writes an entity about once a second in the long run, and more often for a moment. What
comes faster waits, and then loses its race (ABORTED). An emulator writes the same entity hundreds
of times a second, so that one shard looks as good as many. This stands between the app and the
emulator and delays commits, or aborts them, as the service would.

Each write of an entity takes a ticket from memcached, so that all processes share the limit. In ten
seconds the n-th ticket is good from second n - 1 on: a write now and then never waits, and a hot
entity is written ten times in ten seconds. What a process writes once in this time costs no call:
only its second write takes tickets, and then for both. Without memcached nothing is limited, and
when memcached is emptied all entities are as if nobody had written them.

How long the service makes a writer wait before it aborts is not published. The numbers here are
ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from rollforward.runtime.cache import Cache
from rollforward.runtime.channel.failed_call import FailedCall


class Contended(FailedCall):
    """What the service says to a commit that has waited long enough."""

    def __init__(self) -> None:
        super().__init__(
            grpc.StatusCode.ABORTED,
            "too much contention on these datastore entities (simulated)",
        )


@dataclass(frozen=True)
class Pace:
    """How often something may happen, in windows, and how long one waits for it."""

    per_s: float = 1.0
    window_s: float = 10.0
    # Who would have to wait for longer is aborted, after so long.
    max_wait_s: float = 1.0
    abort_after_s: float = 0.1


class Tickets:
    """Tickets that all processes take from memcached, each good from a moment of its window on."""

    def __init__(
        self,
        cache: Cache,
        *,
        now_s: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cache = cache
        self._now_s = now_s
        self._sleep = sleep

    def take(self, name: str, pace: Pace, count: int = 1, at_once: float = 1.0) -> None:
        """Take so many tickets, and wait until the last of them is good.

        Args:
            at_once: So many tickets of a window are good at its beginning.

        Raises:
            Contended: it would be too long.
        """
        window, elapsed_s = divmod(self._now_s(), pace.window_s)
        name = _ticket_name(window, name)
        ticket = self._cache.incr(name, count, ttl_s=max(3, int(3 * pace.window_s)))
        wait_s = 0.0 if ticket is None else (ticket - at_once) / pace.per_s - elapsed_s
        if wait_s > pace.max_wait_s:
            self._cache.incr_existing(name, -count)
            self._sleep(pace.abort_after_s)
            raise Contended
        if wait_s > 0:
            self._sleep(wait_s)

    def give_back(self, name: str, window: int, count: int) -> None:
        """Give tickets of a window back: what they were taken for was not done."""
        self._cache.incr_existing(_ticket_name(window, name), -count)

    def window(self, pace: Pace) -> int:
        """Return which window it is now."""
        return int(self._now_s() // pace.window_s)


def _ticket_name(window: float, name: str) -> str:
    return f"write-limit:{window:.0f}:{name}"


class EntityWriteLimit(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Delays and aborts commits that write an entity too often."""

    def __init__(
        self,
        tickets: Tickets,
        is_limited: Callable[[Any], bool] = lambda key: True,
        pace: Pace | None = None,
        *,
        is_on: bool = False,
    ) -> None:
        """Limit some entities.

        Args:
            is_limited: Tells of a key whether its entity is one of them.
        """
        self.is_on = is_on
        self.is_limited = is_limited
        self._tickets = tickets
        self._pace = pace or Pace()
        self._untold: dict[str, int] = {}  # Writes of this window, for which no ticket was taken.
        self._window = 0
        self._lock = threading.Lock()

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        if not (self.is_on and details.method.endswith("/Commit")):
            return continuation(details, request)
        window = self._tickets.window(self._pace)
        taken = {entity: self._pass(entity) for entity in self._limited(request)}
        call = continuation(details, request)
        if any(taken.values()):
            call.add_done_callback(lambda done: self._look(done, taken, window))
        return call

    def _look(self, call: Any, taken: Mapping[str, int], window: int) -> None:
        """Give the tickets of a commit back that failed: it has written nothing."""
        if call.exception() is not None:
            for entity, count in taken.items():
                if count:
                    self._tickets.give_back(entity, window, 1)

    def _limited(self, request: Any) -> Iterator[str]:
        """Return the names of the entities that are limited, of those that a commit writes.

        What it inserts was never written before.
        """
        for mutation in getattr(request, "_pb", request).mutations:
            operation = mutation.WhichOneof("operation")
            if operation in (None, "insert"):
                continue
            written = getattr(mutation, operation)
            key = written if operation == "delete" else written.key
            if key.path[-1].WhichOneof("id_type") and self.is_limited(key):
                yield key.SerializeToString(deterministic=True).hex()

    def _pass(self, entity: str) -> int:
        """Wait until an entity may be written; return how many tickets were taken.

        Raises:
            Contended: it would be too long.
        """
        count = self._owed(entity)
        if not count:
            return 0
        try:
            self._tickets.take(entity, self._pace, count)
        except Contended:  # What was written before is still owed.
            with self._lock:
                if entity in self._untold:  # Else the next window has begun.
                    self._untold[entity] += count - 1
            raise
        return count

    def _owed(self, entity: str) -> int:
        """Return how many tickets a write takes: none if it is the window's first one here."""
        window = self._tickets.window(self._pace)
        with self._lock:
            if window != self._window:
                self._window = window
                self._untold.clear()
            if entity not in self._untold:
                self._untold[entity] = 1
                return 0
            count = 1 + self._untold[entity]
            self._untold[entity] = 0
            return count
