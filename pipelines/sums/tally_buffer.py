"""The tally of a sum's API: counted in memory, stored once a second.

So an insert by the API costs no further write. A tally is one row in a few shards, and each row
knows the last delta of each process, so a delta whose reply was lost counts once.

Lost on failure: the counts that a killed process had not stored. The items of the API are marked,
and the fold counts them (pipelines/sums/reconciliation.py).
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from functools import partial

from models.sums import SumTally, api_tally_key
from rollforward.datastore import transact
from rollforward.runtime import Clients, PeriodicFlusher

TALLY_SHARDS = 4
# A shard keeps the last delta of this number of processes.
MAX_PROCESSES = 64
FLUSH_INTERVAL_S = 1.0
OWNER = "sums:tally"


@dataclass(frozen=True)
class TallyDelta:
    """A change of a tally, applied once: a process writes its deltas in order of number."""

    name: str
    shard: int
    process: str
    number: int
    items: int
    amount: int


class TallyBuffer:
    """Accepted items of the API that this process has not stored yet."""

    def __init__(self, clients: Clients) -> None:
        self._lock = threading.Lock()
        self._process = clients.new_id()[:12]
        self._shard = clients.random.randrange(TALLY_SHARDS)
        self._numbers = itertools.count(1)
        self._open: dict[str, tuple[int, int]] = {}
        self._unconfirmed: list[TallyDelta] = []
        self.flusher = PeriodicFlusher(clients, OWNER, self, FLUSH_INTERVAL_S)

    def count(self, name: str, amount: int, items: int = 1) -> None:
        """Count items; they are stored within a second, together with later ones."""
        with self._lock:
            items_so_far, amount_so_far = self._open.get(name, (0, 0))
            self._open[name] = items_so_far + items, amount_so_far + amount
        self.flusher.wake()

    def is_empty(self) -> bool:
        with self._lock:
            return not (self._open or self._unconfirmed)

    def store(self) -> None:
        for delta in self._take():
            transact(partial(write, delta))
            with self._lock:
                self._unconfirmed.remove(delta)

    def _take(self) -> list[TallyDelta]:
        """Turn the counts into numbered deltas; they stay until they are stored."""
        with self._lock:
            self._unconfirmed += [
                TallyDelta(name, self._shard, self._process, next(self._numbers), items, amount)
                for name, (items, amount) in self._open.items()
            ]
            self._open = {}
            return list(self._unconfirmed)


def write(delta: TallyDelta) -> None:
    """Add a delta to its shard, once, in a transaction."""
    key = api_tally_key(delta.name, delta.shard)
    row = key.get() or SumTally(key=key)
    last_numbers: dict[str, int] = dict(row.tallied or [])
    if last_numbers.pop(delta.process, 0) >= delta.number:
        return
    row.items, row.amount = row.items + delta.items, row.amount + delta.amount
    row.tallied = [(delta.process, delta.number), *last_numbers.items()][:MAX_PROCESSES]
    row.put()


def tally_buffer(clients: Clients) -> TallyBuffer:
    """Return the tally buffer of this process."""
    return clients.process_state.get_or_create(OWNER, lambda: TallyBuffer(clients))
