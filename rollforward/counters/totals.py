"""Totals: the sum of a counter's shards, now or as of some seconds ago.

One lookup reads a total: the counter's configuration and the shards that this process expects. The
configuration says which shards exist; if there are more, all are read again. A lookup sees one
moment, so a drained shard is in the sum once, before or after its move. If the service defers some
keys to another lookup, the configuration may be younger than some shards. Then the shards are read
again, between two reads of the configuration. If it has changed, all is read again.

A cached total has the time at which its lookup began, and no reader accepts an older one than it
asked for. Increments are never added to it: an `incr` before a reader's `set` would be lost, and
one after it counted twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pydantic
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.counters.entities import CounterConfig, CounterShard, config_key, shard_key
from rollforward.counters.shard_maps import ShardMaps
from rollforward.datastore.lookup import MAX_KEYS
from rollforward.datastore.versions import lookup_versions
from rollforward.runtime import Clients
from rollforward.runtime.cache import MAX_TTL_S
from rollforward.runtime.type_adapters import adapter_of

MAX_LOOKUPS = 5
# memcached's clock is coarse: a shorter life may end at once.
MIN_TTL_S = 3
# Clocks of servers differ. A total from further ahead is ignored.
CLOCK_SKEW_S = 1.0

_CACHED = tuple[int, float]


@dataclass(frozen=True)
class Total:
    """The sum of a counter, `age_s` seconds ago."""

    value: int
    age_s: float = 0.0


@dataclass(frozen=True)
class Shards:
    """The shards of a counter in one lookup."""

    config: CounterConfig | None  # None: it was never incremented.
    counts: Sequence[int]

    @property
    def total(self) -> int:
        return sum(self.counts)


class ShardReader:
    """Reads the shards of a declaration's counters."""

    def __init__(self, datastore: ndb.Client, shard_maps: ShardMaps) -> None:
        self._datastore = datastore
        self._shard_maps = shard_maps
        self._name = shard_maps.settings.name

    def read(self, keys: Sequence[str]) -> dict[str, Shards]:
        """Return the shards of some counters.

        Raises:
            google.api_core.exceptions.ServiceUnavailable: they change faster than they can be read.
        """
        expected = {key: self._shard_maps.expected_shards(key) for key in keys}
        shards: dict[str, Shards] = {}
        for _ in range(MAX_LOOKUPS):
            for group in _groups(expected):
                shards.update(self._lookup(group, expected))
            if not expected:
                return shards
        message = f"the shards of {next(iter(expected))!r:.80} change too fast to be read"
        raise rpc_errors.ServiceUnavailable(message)  # type: ignore[no-untyped-call]

    def _lookup(self, group: Sequence[str], expected: dict[str, int]) -> dict[str, Shards]:
        """Read counters at once; leave out those with another number of shards than expected."""
        counters, is_one_moment = self._read_once(group, expected)
        for key, shards in list(counters.items()):
            if len(shards.counts) != _existing(shards.config):
                expected[key] = _existing(shards.config)
                del counters[key]
        if not is_one_moment:
            counters = self._read_between(counters)
        for key, shards in counters.items():
            self._shard_maps.note_read(key, len(shards.counts))
            del expected[key]
        return counters

    def _read_once(
        self, group: Iterable[str], numbers: Mapping[str, int]
    ) -> tuple[dict[str, Shards], bool]:
        """Look up shards by counter and number; return also whether all is of one moment."""
        asked: list[Any] = []
        for key in group:
            asked.append(config_key(self._name, key))
            asked += [shard_key(self._name, key, number) for number in range(numbers[key])]
        answers, is_one_moment = lookup_versions(self._datastore, asked)
        rows: Iterator[Any] = (answer[0] if answer else None for answer in answers)
        counters: dict[str, Shards] = {}
        for key in group:
            config = next(rows)
            shards: list[CounterShard | None] = [next(rows) for _ in range(numbers[key])]
            exist = [shard.count for shard in shards[: _existing(config)] if shard is not None]
            counters[key] = Shards(config, exist)
        return counters, is_one_moment

    def _read_between(self, counters: Mapping[str, Shards]) -> dict[str, Shards]:
        """Read shards again, then the configuration; leave out counters that have changed."""
        numbers = {key: _existing(shards.config) for key, shards in counters.items()}
        reread, _ = self._read_once(counters, numbers)
        configs = ndb.get_multi([config_key(self._name, key) for key in counters])
        return {
            key: Shards(config, reread[key].counts)
            for (key, shards), config in zip(counters.items(), configs, strict=True)
            if _version_of(shards.config) == _version_of(config)
            and len(reread[key].counts) == _existing(config)
        }


def _existing(config: CounterConfig | None) -> int:
    return config.read_shards if config else 0


def _version_of(config: CounterConfig | None) -> tuple[int, int] | None:
    """Return the numbers that change when a shard is added or drained."""
    return (config.generation, config.read_shards) if config else None


def _groups(expected: Mapping[str, int]) -> Iterator[list[str]]:
    """Cut counters into lookups; the shards of one counter are never split."""
    group: list[str] = []
    room = MAX_KEYS
    for key, shards in list(expected.items()):
        if group and shards + 1 > room:
            yield group
            group, room = [], MAX_KEYS
        group.append(key)
        room -= shards + 1
    if group:
        yield group


# Cached


def cached_total(clients: Clients, declaration: str, key: str, max_age_s: float) -> Total | None:
    """Return a total from memcached that is not too old, if there is one."""
    value = clients.cache.get(_cache_key(clients, declaration, key, max_age_s))
    if value is None:
        return None
    try:
        total, at_s = adapter_of(_CACHED).validate_json(value, strict=True)
    except pydantic.ValidationError:
        return None
    age_s = clients.clock.now().timestamp() - at_s
    if not -CLOCK_SKEW_S <= age_s <= max_age_s:
        return None
    return Total(total, max(0.0, age_s))


def cache_total(
    clients: Clients, declaration: str, key: str, value: int, began: datetime, max_age_s: float
) -> None:
    """Store a total with the time at which its lookup began."""
    text = adapter_of(_CACHED).dump_json((value, began.timestamp()))
    cache_key = _cache_key(clients, declaration, key, max_age_s)
    clients.cache.set(cache_key, text, _ttl_s(max_age_s))


def _ttl_s(max_age_s: float) -> int:
    return max(MIN_TTL_S, math.ceil(min(max_age_s, MAX_TTL_S)))


def _cache_key(clients: Clients, declaration: str, key: str, max_age_s: float) -> str:
    """Return the key of a cached total, which is different for each database.

    It also contains the age that the reader accepts, so memcached expires it in time even if clocks
    are wrong.
    """
    client = clients.datastore
    place = [client.project, client.database or "", client.namespace or "", declaration, key]
    place.append(str(_ttl_s(max_age_s)))
    return f"counters:total:{json.dumps(place)}"
