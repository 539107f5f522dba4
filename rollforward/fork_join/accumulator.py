"""In-memory fan-in: items are combined in the process, and only the result is stored.

    HITS = Accumulator("hits", add_up, combine=lambda a, b: Add(a.amount + b.amount))

    HITS.add(clients, "visitors", Add(1))

`add` touches only memory. Every quarter of a second the process inserts one item for each changed
key into a fork-join queue, which folds the items of all processes. So a million items of a hot key
are a handful of writes: they are aggregated in each process, and then across processes.

Lost on failure: the items of a killed process since its last flush, and the items of a flush in
progress. A failed flush is retried under the same idempotency key, so it counts once. A process
flushes on SIGTERM. Use it for values that may be lost: hits, not money.

An item costs nothing. A key costs 2 writes a flush (the item and its receipt), and its fold.

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
from rollforward.runtime.process.optional_clients import optional_clients

log = logging.getLogger(__name__)

I = TypeVar("I")  # noqa: E741  An item.

MAX_FLUSH_INTERVAL_S = 24 * 3600
FLUSH_INTERVAL_S = 0.25
# Unflushed sums.
MAX_KEYS = 10_000


class BufferFullError(Exception):
    """Datastore does not answer, and there is no room for another sum."""


@dataclass
class _Flush(Generic[I]):
    """An item to insert for a key, once."""

    key: str
    item: I
    idempotency_key: str


class Accumulator(Generic[I]):
    """A declared fan-in: the queue of its items, and a function that combines two of them."""

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
            combine: Combines two items into one, in any order, and changes neither.
            flush_interval_s: The seconds between two flushes, which a crash may lose.

        Raises:
            ValueError: the interval is not positive, or longer than a day.
        """
        if not 0 < flush_interval_s <= MAX_FLUSH_INTERVAL_S:
            raise ValueError(
                f"flush_interval_s must be above 0, and at most {MAX_FLUSH_INTERVAL_S}, got "
                f"{flush_interval_s}"
            )
        self.name = name
        self.fork_join = fork_join
        self.combine = combine
        self.flush_interval_s = flush_interval_s

    @optional_clients
    def add(self, clients: Clients, key: str, item: I) -> None:
        """Accept an item; the next flush stores it.

        Raises:
            BadItemError: the queue would refuse it; nothing was accepted.
            UnknownTaskError: no registry has the queue; nothing was accepted.
            BufferFullError: there is no room; nothing was accepted.
        """
        self.add_all(clients, {key: item})

    @optional_clients
    def add_all(self, clients: Clients, items: Mapping[str, I]) -> None:
        """Accept items by their keys, all or none.

        Raises:
            BadItemError: the queue would refuse one; nothing was accepted.
            UnknownTaskError: no registry has the queue; nothing was accepted.
            BufferFullError: there is no room for all; nothing was accepted.
        """
        self.fork_join.join_task.check_registered(clients)  # No flush could store them.
        # Copies: a caller may change its item, or add the same one for another key.
        copies = {key: self.fork_join.check(key, item) for key, item in items.items()}
        self._buffer(clients).add_all(copies)

    @optional_clients
    def flush(self, clients: Clients) -> None:
        """Store the accepted items; if Datastore refuses some, the next flush retries."""
        self._buffer(clients).flusher.flush()

    @optional_clients
    def waiting(self, clients: Clients) -> int:
        """Return the number of unflushed sums in this process."""
        return self._buffer(clients).size()

    def _buffer(self, clients: Clients) -> _Buffer[I]:
        return clients.process_state.get_or_create(
            f"accumulator:{self.name}", lambda: _Buffer(clients, self)
        )


class _Buffer(Generic[I]):
    """The unflushed items of one process."""

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
                stored = self._items.get(key)
                both = None if stored is None else self._sum(key, stored, item)
                if both is None and stored is not None:
                    full.append(_Flush(key, stored, self._clients.new_id()))
                sums[key] = item if both is None else both
            size = len(self._items.keys() | sums) + len(self._unconfirmed) + len(full)
            if size > max(MAX_KEYS, len(self._items) + len(self._unconfirmed)):
                raise BufferFullError(f"the buffer must have at most {MAX_KEYS} sums, got {size}")
            self._unconfirmed += full
            self._items.update(sums)
        self.flusher.wake()

    def _sum(self, key: str, stored: I, item: I) -> I | None:
        """Return the sum of two items; None: it is too large, so they are flushed separately."""
        both = self._declared.combine(stored, item)
        try:
            return self._declared.fork_join.check(key, both)
        except BadItemError:
            return None

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
        done = {
            flush.idempotency_key
            for flush, result in zip(flushes, results, strict=True)
            if not isinstance(result, Exception)
        }
        with self._lock:
            self._unconfirmed = [
                flush for flush in self._unconfirmed if flush.idempotency_key not in done
            ]
        if failed := len(flushes) - len(done):
            log.warning("%s: %d keys are not stored yet", self._declared.name, failed)

    def _take(self) -> list[_Flush[I]]:
        """Give the items idempotency keys, which they keep until they are inserted."""
        with self._lock:
            for key, item in self._items.items():
                self._unconfirmed.append(_Flush(key, item, self._clients.new_id()))
            self._items = {}
            return list(self._unconfirmed)
