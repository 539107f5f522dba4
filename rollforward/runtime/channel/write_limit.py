"""Production's limit on writes of one entity, simulated: an emulator has none.

Datastore writes an entity about once a second in the long run, and more often for a moment. Faster
writes wait, and then lose their race (ABORTED). An emulator writes the same entity hundreds of
times a second, so that one shard looks as good as many. This interceptor delays commits, or aborts
them, as the service would.

Each write of an entity takes a ticket from memcached, so all processes share the limit. In a window
of ten seconds the n-th ticket is good from second n - 1 on: an occasional write never waits, and a
hot entity is written ten times. The first write of a process in a window costs no call; its second
write takes tickets for both. Without memcached nothing is limited, and a flush resets all entities.

Google does not publish how long a writer waits before its commit aborts. The numbers here are ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from rollforward.runtime.cache import Cache
from rollforward.runtime.channel.failed_call import FailedCall, error_of


class Contended(FailedCall):
    """The service's answer to a commit that has waited too long."""

    def __init__(self) -> None:
        super().__init__(
            grpc.StatusCode.ABORTED,
            "too much contention on these datastore entities (simulated)",
        )


@dataclass(frozen=True)
class Pace:
    """A rate of writes, by windows, and the longest wait for it."""

    per_s: float = 1.0
    window_s: float = 10.0
    # A writer that would wait for longer is aborted, after `abort_after_s`.
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
        """Take `count` tickets, and wait until the last of them is good.

        Args:
            at_once: The number of tickets that are good when a window begins.

        Raises:
            Contended: the wait would be too long.
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

    def release(self, name: str, window: int, count: int) -> None:
        """Give tickets of a window back, since their writes failed."""
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
            is_limited: Returns whether the entity of a key is limited.
        """
        self.is_on = is_on
        self.is_limited = is_limited
        self._tickets = tickets
        self._pace = pace or Pace()
        self._unticketed: dict[str, int] = {}  # Writes of this window without a ticket.
        self._window = 0
        self._lock = threading.Lock()

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        if not (self.is_on and details.method.endswith("/Commit")):
            return continuation(details, request)
        window = self._tickets.window(self._pace)
        tickets = {entity: self._pass(entity) for entity in self._limited(request)}
        call = continuation(details, request)
        if any(tickets.values()):
            call.add_done_callback(lambda done: self._release(done, tickets, window))
        return call

    def _release(self, call: Any, tickets: Mapping[str, int], window: int) -> None:
        """Give the tickets of a failed commit back: it has written nothing.

        A cancelled one may have written.
        """
        error = error_of(call)
        if error is not None and not isinstance(error, grpc.FutureCancelledError):
            for entity, count in tickets.items():
                if count:
                    self._tickets.release(entity, window, 1)

    def _limited(self, request: Any) -> Iterator[str]:
        """Return the names of the limited entities that a commit writes.

        Inserts are not limited: their entities were never written before.
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
            Contended: the wait would be too long.
        """
        count = self._owed(entity)
        if not count:
            return 0
        try:
            self._tickets.take(entity, self._pace, count)
        except Contended:  # The earlier writes still need tickets.
            with self._lock:
                if entity in self._unticketed:  # Else the next window has begun.
                    self._unticketed[entity] += count - 1
            raise
        return count

    def _owed(self, entity: str) -> int:
        """Return how many tickets a write takes: none if it is the window's first one here."""
        window = self._tickets.window(self._pace)
        with self._lock:
            if window != self._window:
                self._window = window
                self._unticketed.clear()
            if entity not in self._unticketed:
                self._unticketed[entity] = 1
                return 0
            count = 1 + self._unticketed[entity]
            self._unticketed[entity] = 0
            return count
