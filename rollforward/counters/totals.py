"""Totals: the sum of a counter's shards, now or as of some seconds ago.

A total is read by one lookup: the counter's configuration and as many shards as this process
believes that there are. The configuration that comes with them says which shards count; when there
are more, they are read again, all of them. A lookup sees one moment, so a shard that is drained
meanwhile is in the sum once: where it was, or where it went. When the service leaves some keys for
another lookup, the configuration may be younger than some shards: then the shards are read again,
between two looks at the configuration. If it has changed, all is read again.

A cached total says when its lookup began. It is as old as that, whoever stored it, and no reader
takes one that is older than it asked for. Nothing is ever added to it: increments and fills would
race, and an `incr` before the fill's `set` is lost, one after it doubled.
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
from rollforward.datastore.versions import look_up_versions
from rollforward.runtime import Clients
from rollforward.runtime.type_adapters import adapter_of

# The service looks up so many keys at a time.
MAX_LOOKUP = 1000
MAX_LOOKUPS = 5
# memcached's clock is coarse: a shorter life may be over at once.
MIN_TTL_S = 3
# Clocks of servers differ. A total from further ahead is not believed.
CLOCK_SKEW_S = 1.0

_CACHED = tuple[int, float]


@dataclass(frozen=True)
class Total:
    """What a counter came to, `age_s` seconds ago."""

    value: int
    age_s: float = 0.0


@dataclass(frozen=True)
class Shards:
    """The shards of a counter, as one lookup saw them."""

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
            google.api_core.exceptions.ServiceUnavailable: they change faster than they are read.
        """
        believed = {key: self._shard_maps.expected_shards(key) for key in keys}
        found: dict[str, Shards] = {}
        for _ in range(MAX_LOOKUPS):
            for group in _groups(believed):
                found.update(self._look_up(group, believed))
            if not believed:
                return found
        message = f"the shards of {next(iter(believed))!r:.80} change too fast to be read"
        raise rpc_errors.ServiceUnavailable(message)  # type: ignore[no-untyped-call]

    def _look_up(self, group: Sequence[str], believed: dict[str, int]) -> dict[str, Shards]:
        """Read some counters at once; leave those of which there was more."""
        found, is_one_moment = self._read_once(group, believed)
        for key, shards in list(found.items()):
            if len(shards.counts) != _existing(shards.config):
                believed[key] = _existing(shards.config)
                del found[key]
        if not is_one_moment:
            found = self._read_between(found)
        for key, shards in found.items():
            self._shard_maps.remember_read(key, len(shards.counts))
            del believed[key]
        return found

    def _read_once(
        self, group: Iterable[str], numbers: Mapping[str, int]
    ) -> tuple[dict[str, Shards], bool]:
        """Look up so many shards of each counter; return whether all is of one moment, too."""
        asked: list[Any] = []
        for key in group:
            asked.append(config_key(self._name, key))
            asked += [shard_key(self._name, key, number) for number in range(numbers[key])]
        answers, is_one_moment = look_up_versions(self._datastore, asked)
        rows: Iterator[Any] = (answer[0] if answer else None for answer in answers)
        found: dict[str, Shards] = {}
        for key in group:
            config = next(rows)
            shards: list[CounterShard | None] = [next(rows) for _ in range(numbers[key])]
            exist = [shard.count for shard in shards[: _existing(config)] if shard is not None]
            found[key] = Shards(config, exist)
        return found, is_one_moment

    def _read_between(self, before: Mapping[str, Shards]) -> dict[str, Shards]:
        """Read shards again, and the configuration after them; leave counters that have changed."""
        counters = {key: _existing(shards.config) for key, shards in before.items()}
        again, _ = self._read_once(before, counters)
        after = ndb.get_multi([config_key(self._name, key) for key in before])
        return {
            key: Shards(config, again[key].counts)
            for (key, shards), config in zip(before.items(), after, strict=True)
            if _version_of(shards.config) == _version_of(config)
            and len(again[key].counts) == _existing(config)
        }


def _existing(config: CounterConfig | None) -> int:
    return config.read_shards if config else 0


def _version_of(config: CounterConfig | None) -> tuple[int, int] | None:
    """Return what a drained shard changes, and a new one."""
    return (config.generation, config.read_shards) if config else None


def _groups(believed: Mapping[str, int]) -> Iterator[list[str]]:
    """Cut counters into lookups; the shards of one are never apart."""
    group: list[str] = []
    room = MAX_LOOKUP
    for key, shards in list(believed.items()):
        if group and shards + 1 > room:
            yield group
            group, room = [], MAX_LOOKUP
        group.append(key)
        room -= shards + 1
    if group:
        yield group


# Cached


def cached_total(clients: Clients, declaration: str, key: str, max_age_s: float) -> Total | None:
    """Return a total that is not too old, if memcached has one."""
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
    """Keep a total, as of when its lookup began."""
    text = adapter_of(_CACHED).dump_json((value, began.timestamp()))
    cache_key = _cache_key(clients, declaration, key, max_age_s)
    clients.cache.set(cache_key, text, _ttl_s(max_age_s))


def _ttl_s(max_age_s: float) -> int:
    return max(MIN_TTL_S, math.ceil(max_age_s))


def _cache_key(clients: Clients, declaration: str, key: str, max_age_s: float) -> str:
    """Return where a total is cached: two databases of one memcached share nothing.

    Nor do readers that want other ages: so memcached ends each in time, whatever clocks say.
    """
    client = clients.datastore
    place = [client.project, client.database or "", client.namespace or "", declaration, key]
    place.append(str(_ttl_s(max_age_s)))
    return f"counters:total:{json.dumps(place)}"
