"""In-memory fan-in: additions are folded in the process, and only their sum is stored.

    HITS = Accumulator("hits", add_up, combine=lambda a, b: Add(a.amount + b.amount))

    HITS.add(clients, "visitors", Add(1))

`add` touches nothing but memory. Every quarter of a second the process inserts one work item for
each key that was touched into a fork-join queue, which folds those of all processes. So a hot
key's million additions are a handful of writes: aggregated twice, first here and then there.

Lost on failure: what a killed process has taken since its last flush: one interval, and the time of
a flush in progress. Nothing else: a flush that Datastore does not take is repeated under the same
idempotency key, so that it counts once. A process that is told to end (SIGTERM) flushes first. Use
it for what may be lost: hits, not money.

Cost of an item: none. Of a key and flush: 2 writes (the item and its receipt), and its fold.

Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Future directions": in-memory fan-in.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rollforward.fork_join.queue import ForkJoin
from rollforward.runtime.clients import Clients
from rollforward.runtime.errors import BadItemError
from rollforward.runtime.flusher import PeriodicFlusher

log = logging.getLogger(__name__)

I = TypeVar("I")  # noqa: E741  An item.

FLUSH_INTERVAL_S = 0.25
# Sums that wait: of keys, and those that are as large as an item may be.
MAX_KEYS = 10_000


class BufferFullError(Exception):
    """Datastore takes nothing, and there is no room for another sum."""


@dataclass
class _Flush(Generic[I]):
    """What has to be inserted for a key, once."""

    key: str
    item: I
    idempotency_key: str


class Accumulator(Generic[I]):
    """A declared fan-in: where its items go, and how two of them make one."""

    def __init__(
        self,
        name: str,
        fork_join: ForkJoin[I],
        combine: Callable[[I, I], I],
        *,
        flush_interval_s: float = FLUSH_INTERVAL_S,
    ) -> None:
        """Declare a fan-in.

        Args:
            combine: Folds two items into one, in any order.
            flush_interval_s: How often what was taken is stored: so much a crash may lose.
        """
        self.name = name
        self.fork_join = fork_join
        self.combine = combine
        self.flush_interval_s = flush_interval_s

    def add(self, clients: Clients, key: str, item: I) -> None:
        """Take an item; it is stored with the next flush.

        Raises:
            BadItemError: the queue would not take it; nothing was taken.
            BufferFullError: there is no room, nothing was taken.
        """
        self.add_all(clients, {key: item})

    def add_all(self, clients: Clients, items: Mapping[str, I]) -> None:
        """Take an item for each of some keys, all of them or none.

        Raises:
            BadItemError: the queue would not take one; nothing was taken.
            BufferFullError: there is no room for all, nothing was taken.
        """
        for key, item in items.items():
            self.fork_join.check(key, item)
        self._buffer(clients).add_all(items)

    def flush(self, clients: Clients) -> None:
        """Store what was taken so far; what Datastore does not take now waits for the next time."""
        self._buffer(clients).flusher.flush()

    def waiting(self, clients: Clients) -> int:
        """Return how many keys this process has something of that is not stored."""
        return self._buffer(clients).size()

    def _buffer(self, clients: Clients) -> _Buffer[I]:
        return clients.process_state.get_or_create(
            f"accumulator:{self.name}", lambda: _Buffer(clients, self)
        )


class _Buffer(Generic[I]):
    """What one process has taken and not stored yet."""

    def __init__(self, clients: Clients, declared: Accumulator[I]) -> None:
        self._clients = clients
        self._declared = declared
        self._lock = threading.Lock()
        self._items: dict[str, I] = {}
        self._unconfirmed: list[_Flush[I]] = []
        owner = f"accumulator:{declared.name}"
        self.flusher = PeriodicFlusher(clients, owner, self, declared.flush_interval_s)

    def add_all(self, items: Mapping[str, I]) -> None:
        with self._lock:
            sums: dict[str, I] = {}
            full: list[_Flush[I]] = []
            for key, item in items.items():
                known = self._items.get(key)
                both = None if known is None else self._sum(key, known, item)
                if both is None and known is not None:
                    full.append(_Flush(key, known, self._clients.new_id()))
                sums[key] = item if both is None else both
            taken = len(self._items.keys() | sums) + len(self._unconfirmed) + len(full)
            if taken > max(MAX_KEYS, len(self._items) + len(self._unconfirmed)):
                raise BufferFullError(f"there is no room: at most {MAX_KEYS} sums wait")
            self._unconfirmed += full
            self._items.update(sums)
        self.flusher.wake()

    def _sum(self, key: str, known: I, item: I) -> I | None:
        """Fold an item in; None: the sum is no item any more, and what was known goes by itself."""
        both = self._declared.combine(known, item)
        try:
            self._declared.fork_join.check(key, both)
        except BadItemError:
            return None
        return both

    def size(self) -> int:
        with self._lock:
            return len(self._items) + len(self._unconfirmed)

    def is_empty(self) -> bool:
        return self.size() == 0

    def store(self) -> None:
        flushes = self._take()
        if not flushes:
            return
        results = self._declared.fork_join.insert_each(
            self._clients,
            [(flush.key, flush.item) for flush in flushes],
            idempotency_keys=[flush.idempotency_key for flush in flushes],
        )
        over = {
            flush.idempotency_key
            for flush, result in zip(flushes, results, strict=True)
            if not isinstance(result, Exception)
        }
        with self._lock:
            self._unconfirmed = [
                flush for flush in self._unconfirmed if flush.idempotency_key not in over
            ]
        if failed := len(flushes) - len(over):
            log.warning("%s: %d keys are not stored yet", self._declared.name, failed)

    def _take(self) -> list[_Flush[I]]:
        """Give what was taken its idempotency keys; they stay until they are accepted."""
        with self._lock:
            for key, item in self._items.items():
                self._unconfirmed.append(_Flush(key, item, self._clients.new_id()))
            self._items = {}
            return list(self._unconfirmed)
