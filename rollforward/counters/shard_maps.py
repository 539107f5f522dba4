"""How many shards a counter has, and which one is written next; as one process knows it.

What a process remembers may be old. Nothing is lost by that: the shards that exist are those that
are read, and an increment of a shard that does not exist fails and changes nothing. So a process
that knows of fewer shards writes to some of them, and one that knows of more is refused, looks
again, and writes elsewhere (rollforward/counters/resize.py).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from google.cloud import ndb

from rollforward.counters.contention import Contention
from rollforward.counters.entities import CounterConfig, CounterShard, config_key, shard_key
from rollforward.counters.relocation import take_total
from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients, naive_utc

# How old what a process remembers may become; only the spread of writes depends on it.
REMEMBERED_FOR = timedelta(seconds=5)
MAX_REMEMBERED = 10_000
# In one transaction, which takes fewer than 500 writes; a counter's are never apart.
MAX_MADE_ROWS = 450


@dataclass(frozen=True)
class ShardSettings:
    """The shards of an exact counter, as it is declared."""

    name: str
    min_shards: int
    max_shards: int
    calm_s: float


@dataclass
class ShardMap:
    """A counter, as one process knows it."""

    key: str
    shards: int
    generation: int
    is_pinned: bool
    due: str | None
    read_at: datetime
    first: int  # Which shard it writes to first; processes begin at different ones.
    contention: Contention = field(default_factory=Contention)
    _turns: Iterator[int] = field(default_factory=itertools.count)

    def next_shard(self) -> int:
        """Return the number of the shard to write to: each in its turn.

        So a process comes back to a shard as late as it can, which spreads writes in time better
        than dice do.
        """
        return (self.first + next(self._turns)) % self.shards


class ShardMaps:
    """The counters of a declaration that a process has met lately."""

    def __init__(self, settings: ShardSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._changing: set[str] = set()
        self._known: OrderedDict[str, ShardMap] = OrderedDict()
        self._read: OrderedDict[str, int] = OrderedDict()

    @classmethod
    def of(cls, clients: Clients, settings: ShardSettings) -> ShardMaps:
        """Return what this process remembers."""
        return clients.process_state.get_or_create(
            f"counters:layouts:{settings.name}", lambda: cls(settings)
        )

    def get(self, clients: Clients, keys: Sequence[str]) -> dict[str, ShardMap]:
        """Return where to write, reading what this process does not know; make what is new."""
        now = naive_utc(clients.clock.now())
        with self._lock:
            found = {key: self._known[key] for key in keys if self._is_fresh(key, now)}
        unknown = [key for key in keys if key not in found]
        if unknown:
            configs = ndb.get_multi([config_key(self.settings.name, key) for key in unknown])
            new = [key for key, row in zip(unknown, configs, strict=True) if row is None]
            made = self._make_new(clients, new) if new else {}
            for key, row in zip(unknown, configs, strict=True):
                found[key] = self.learn(clients, key, row or made[key])
        return found

    def expected_shards(self, key: str) -> int:
        """Return how many shards to ask for first when a total is read."""
        with self._lock:
            shard_map = self._known.get(key)
            read = self._read.get(key, self.settings.min_shards)
        return max(read, shard_map.shards) if shard_map else read

    def remember_read(self, key: str, shards: int) -> None:
        """Remember how many shards a total was read from."""
        with self._lock:
            self._read[key] = max(1, shards)
            self._read.move_to_end(key)
            while len(self._read) > MAX_REMEMBERED:
                self._read.popitem(last=False)

    def learn(self, clients: Clients, key: str, row: CounterConfig) -> ShardMap:
        """Remember a counter's row."""
        now = naive_utc(clients.clock.now())
        with self._lock:
            before = self._known.get(key)
            if before is not None and before.generation > row.generation:
                return before  # What another thread has read since.
            shard_map = ShardMap(
                key,
                row.shards,
                row.generation,
                bool(row.is_pinned),
                row.due,
                now,
                first=clients.random.randrange(row.shards),
            )
            if before is not None:
                shard_map.contention.usual_s = before.contention.usual_s
                if before.generation == row.generation:
                    shard_map.first, shard_map._turns = before.first, before._turns
                    shard_map.contention = before.contention
            self._known[key] = shard_map
            self._known.move_to_end(key)
            while len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return shard_map

    @contextlib.contextmanager
    def changing(self, key: str) -> Iterator[bool]:
        """Let one thread of this process change a counter; yield whether it is this one.

        The transactions of several would hold each other's locks, and none of them could write.
        """
        with self._lock:
            is_first = key not in self._changing
            self._changing.add(key)
        try:
            yield is_first
        finally:
            if is_first:
                self._changing.discard(key)

    def forget(self, keys: Sequence[str]) -> None:
        """Have some counters read again before they are written to."""
        with self._lock:
            for key in keys:
                self._known.pop(key, None)

    def _is_fresh(self, key: str, now: datetime) -> bool:
        shard_map = self._known.get(key)
        return shard_map is not None and abs(now - shard_map.read_at) < REMEMBERED_FOR

    def _make_new(self, clients: Clients, keys: Sequence[str]) -> dict[str, CounterConfig]:
        """Make counters, one thread of a process at a time.

        Side by side they would all lock what none of them can write then.
        """
        with self._making:
            rows = ndb.get_multi([config_key(self.settings.name, key) for key in keys])
            made = {key: row for key, row in zip(keys, rows, strict=True) if row is not None}
            new = [key for key in keys if key not in made]
            size = max(1, MAX_MADE_ROWS // (1 + self.settings.min_shards))
            for part in (new[i : i + size] for i in range(0, len(new), size)):
                made |= transact(lambda part=part: self._make(clients, part))  # type: ignore[misc]
        return made

    def _make(self, clients: Clients, keys: Sequence[str]) -> dict[str, CounterConfig]:
        """Make counters, in a transaction. Those that exist by now stay as they are."""
        rows = ndb.get_multi([config_key(self.settings.name, key) for key in keys])
        made = {key: row for key, row in zip(keys, rows, strict=True) if row is not None}
        new: list[Any] = []
        for key in keys:
            if key not in made:
                made[key] = self._first_config(clients, key)
                shards = make_shards(self.settings.name, key, range(self.settings.min_shards))
                shards[0].count = take_total(self.settings.name, key)
                new += [made[key], *shards]
        ndb.put_multi(new)
        return made

    def _first_config(self, clients: Clients, key: str) -> CounterConfig:
        return CounterConfig(
            key=config_key(self.settings.name, key),
            shards=self.settings.min_shards,
            read_shards=self.settings.min_shards,
            # Beyond those of before: a counter may be moved away and come back (relocation.py).
            generation=int(clients.clock.now().timestamp()),
            calm_s=self.settings.calm_s,
        )


def make_shards(declaration: str, key: str, numbers: Sequence[int]) -> list[CounterShard]:
    """Return shards that hold nothing yet."""
    return [CounterShard(key=shard_key(declaration, key, number)) for number in numbers]
