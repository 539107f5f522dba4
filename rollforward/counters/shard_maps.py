"""Shard maps: the number of a counter's shards, and the next one to write, in one process's memory.

A shard map may be old, and nothing is lost by that: totals read all existing shards, and an
increment of a missing shard fails and changes nothing. So a process with too small a map writes to
some of the shards. A process with too large a map is refused, reads the map again, and writes to
another shard (rollforward/counters/resize.py).
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
from rollforward.datastore.batched import batched
from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients, naive_utc

# The oldest shard map that is used; only the spread of writes depends on it.
REMEMBERED_FOR = timedelta(seconds=5)
MAX_REMEMBERED = 10_000
# In one transaction, which takes fewer than 500 writes; a counter's rows are never split.
MAX_MADE_ROWS = 450


@dataclass(frozen=True)
class ShardSettings:
    """The declared shards of an exact counter."""

    name: str
    min_shards: int
    max_shards: int
    calm_s: float


@dataclass
class ShardMap:
    """A counter's shards as one process remembers them."""

    key: str
    shards: int
    generation: int
    is_pinned: bool
    due: str | None
    read_at: datetime
    offset: int  # The first shard to write to; it differs between processes.
    contention: Contention = field(default_factory=Contention)
    _turns: Iterator[int] = field(default_factory=itertools.count)

    def next_shard(self) -> int:
        """Return the number of the shard to write to, round robin.

        So a process returns to a shard as late as possible, which spreads writes in time better
        than random choice.
        """
        return (self.offset + next(self._turns)) % self.shards


class ShardMaps:
    """The shard maps of a declaration's recent counters, in one process."""

    def __init__(self, settings: ShardSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._changing: set[str] = set()
        self._known: OrderedDict[str, ShardMap] = OrderedDict()
        self._read: OrderedDict[str, int] = OrderedDict()

    @classmethod
    def of(cls, clients: Clients, settings: ShardSettings) -> ShardMaps:
        """Return the shard maps of this process."""
        return clients.process_state.get_or_create(
            f"counters:layouts:{settings.name}", lambda: cls(settings)
        )

    def get(self, clients: Clients, keys: Sequence[str]) -> dict[str, ShardMap]:
        """Return shard maps; read unknown ones, and make the rows of new counters."""
        at = naive_utc(clients.clock.now())
        with self._lock:
            shard_maps = {key: self._known[key] for key in keys if self._is_current(key, at)}
        unknown = [key for key in keys if key not in shard_maps]
        if unknown:
            configs = self._configs(unknown)
            absent = [key for key in unknown if key not in configs]
            configs |= self._make_new(clients, absent) if absent else {}
            for key in unknown:
                shard_maps[key] = self.learn(clients, key, configs[key])
        return shard_maps

    def _configs(self, keys: Sequence[str]) -> dict[str, CounterConfig]:
        """Return the rows of the counters that exist."""
        rows = ndb.get_multi([config_key(self.settings.name, key) for key in keys])
        return {key: row for key, row in zip(keys, rows, strict=True) if row is not None}

    def expected_shards(self, key: str) -> int:
        """Return how many shards a total reads first."""
        with self._lock:
            shard_map = self._known.get(key)
            read = self._read.get(key, self.settings.min_shards)
        return max(read, shard_map.shards) if shard_map else read

    def note_read(self, key: str, shards: int) -> None:
        """Remember how many shards a total has read."""
        with self._lock:
            self._read[key] = max(1, shards)
            self._read.move_to_end(key)
            while len(self._read) > MAX_REMEMBERED:
                self._read.popitem(last=False)

    def learn(self, clients: Clients, key: str, row: CounterConfig) -> ShardMap:
        """Remember a counter's row."""
        at = naive_utc(clients.clock.now())
        with self._lock:
            old = self._known.get(key)
            if old is not None and old.generation > row.generation:
                return old  # Another thread has read it since.
            shard_map = ShardMap(
                key,
                row.shards,
                row.generation,
                bool(row.is_pinned),
                row.due,
                at,
                offset=clients.random.randrange(row.shards),
            )
            if old is not None:
                shard_map.contention.usual_s = old.contention.usual_s
                if old.generation == row.generation:
                    shard_map.offset, shard_map._turns = old.offset, old._turns
                    shard_map.contention = old.contention
            self._known[key] = shard_map
            self._known.move_to_end(key)
            while len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return shard_map

    @contextlib.contextmanager
    def changing(self, key: str) -> Iterator[bool]:
        """Let one thread of this process change a counter; yield whether it is this one.

        Concurrent transactions would wait for each other's locks, and none could write.
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
        """Forget shard maps, so that they are read again before the next write."""
        with self._lock:
            for key in keys:
                self._known.pop(key, None)

    def _is_current(self, key: str, at: datetime) -> bool:
        shard_map = self._known.get(key)
        return shard_map is not None and abs(at - shard_map.read_at) < REMEMBERED_FOR

    def _make_new(self, clients: Clients, keys: Sequence[str]) -> dict[str, CounterConfig]:
        """Make counters, one thread of a process at a time.

        Concurrent transactions would lock the same rows, and none could write them.
        """
        with self._making:
            configs = self._configs(keys)
            absent = [key for key in keys if key not in configs]
            size = max(1, MAX_MADE_ROWS // (1 + self.settings.min_shards))
            for part in batched(absent, size):
                configs |= transact(lambda part=part: self._make(clients, part))  # type: ignore[misc]
        return configs

    def _make(self, clients: Clients, keys: Sequence[str]) -> dict[str, CounterConfig]:
        """Make counters, in a transaction; existing ones do not change."""
        configs = self._configs(keys)
        rows: list[Any] = []
        for key in keys:
            if key not in configs:
                configs[key] = self._first_config(clients, key)
                shards = make_shards(self.settings.name, key, range(self.settings.min_shards))
                shards[0].count = take_total(self.settings.name, key)
                rows += [configs[key], *shards]
        ndb.put_multi(rows)
        return configs

    def _first_config(self, clients: Clients, key: str) -> CounterConfig:
        return CounterConfig(
            key=config_key(self.settings.name, key),
            shards=self.settings.min_shards,
            read_shards=self.settings.min_shards,
            # Higher than any earlier one: a counter may move away and back (relocation.py).
            generation=int(clients.clock.now().timestamp()),
            calm_s=self.settings.calm_s,
        )


def make_shards(declaration: str, key: str, numbers: Sequence[int]) -> list[CounterShard]:
    """Return empty shards."""
    return [CounterShard(key=shard_key(declaration, key, number)) for number in numbers]
