"""More shards, or fewer, while increments go on; not one is lost or doubled.

The shards below `read_shards` exist, and no others; a total reads exactly those. Writers know
`shards`, which is at most as many.

1. Grow: one commit makes the new shards and raises both numbers. Whoever writes to a new shard has
   read that commit, so whoever reads a total later reads the shard.
2. Shrink: one commit lowers `shards`. Writers that do not know it yet go on writing to what is
   above, and that is still read.
3. Drain: one commit for each shard above, the highest first: its count moves to a shard that
   stays, it is deleted, and `read_shards` falls by one. A writer that comes later finds no shard to
   update: its increment fails as a whole, receipt and all, and it looks where to write now.

Each commit checks what it starts from, so doing it again changes nothing. When a counter has been
without conflicts for `calm_s`, its shards are halved. If it has to grow again soon after, it waits
twice as long the next time.
"""

from __future__ import annotations

from datetime import timedelta

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.counters.entities import (
    CounterConfig,
    CounterShard,
    config_key,
    due_at,
    due_text,
    shard_key,
)
from rollforward.counters.shard_maps import ShardMap, ShardMaps, make_shards
from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients, naive_utc

MAX_CALM_S = 3600.0
GROWTH = 2
RUSH_GROWTH = 4
# Shards that one task drains; the next one goes on.
MAX_DRAINED = 32


class Resizer:
    """Changes how many shards the counters of a declaration have."""

    def __init__(self, shard_maps: ShardMaps) -> None:
        self._shard_maps = shard_maps
        self._settings = shard_maps.settings

    def grow(self, clients: Clients, shard_map: ShardMap, *, is_rush: bool) -> None:
        """Multiply the shards of a counter, unless its number has changed meanwhile."""
        wanted = shard_map.shards * (RUSH_GROWTH if is_rush else GROWTH)
        wanted = min(self._settings.max_shards, wanted)

        def body() -> CounterConfig:
            config = self._config(shard_map.key)
            if config.generation == shard_map.generation and not config.is_pinned:
                now = naive_utc(clients.clock.now())
                is_soon = config.shrunk_at is not None and now - config.shrunk_at < timedelta(
                    seconds=2 * config.calm_s
                )
                if is_soon:  # It was calm because it had these shards.
                    config.calm_s = min(MAX_CALM_S, 2 * config.calm_s)
                    config.shrunk_at = None
                self._set(clients, config, shard_map.key, wanted)
            return config

        with self._shard_maps.changing(shard_map.key) as is_first:
            if is_first:
                self._shard_maps.learn(clients, shard_map.key, transact(body))

    def keep(self, clients: Clients, shard_map: ShardMap) -> None:
        """Put off the next shrinking of a counter: there are some conflicts still."""
        if shard_map.due is None or shard_map.is_pinned:
            return

        def body() -> CounterConfig:
            config = self._config(shard_map.key)
            if config.generation == shard_map.generation and config.read_shards == config.shards:
                config.due = self._due(clients, config)
                config.put()
            return config

        left = due_at(shard_map.due) - naive_utc(clients.clock.now())
        if left < timedelta(seconds=self._settings.calm_s / 2):
            with self._shard_maps.changing(shard_map.key) as is_first:
                if is_first:
                    self._shard_maps.learn(clients, shard_map.key, transact(body))

    def set(self, clients: Clients, key: str, shards: int | None) -> ShardMap:
        """Give a counter so many shards by hand; None: it adapts again."""
        self._shard_maps.get(clients, [key])  # Makes a new one.

        def body() -> CounterConfig:
            config = self._config(key)
            config.is_pinned = shards is not None
            self._set(clients, config, key, config.shards if shards is None else shards)
            return config

        return self._shard_maps.learn(clients, key, transact(body))

    def settle(self, clients: Clients, key: str) -> bool:
        """Shrink a counter if it is due, and drain what is above; return whether more is left."""
        config = transact(lambda: self._shrink(clients, key))
        for _ in range(MAX_DRAINED):
            if config is None or config.read_shards <= config.shards:
                break
            shard = config.read_shards - 1
            config = transact(lambda shard=shard: self._drain(clients, key, shard))  # type: ignore[misc]
        if config is None:
            return False
        self._shard_maps.learn(clients, key, config)
        return bool(config.read_shards > config.shards)

    def _shrink(self, clients: Clients, key: str) -> CounterConfig | None:
        config: CounterConfig | None = config_key(self._settings.name, key).get()
        if config is None or config.due is None:
            return config
        now = naive_utc(clients.clock.now())
        is_drained = config.read_shards == config.shards
        if not is_drained or config.is_pinned or due_at(config.due) > now:
            return config
        fewer = max(self._settings.min_shards, config.shards // 2)
        if fewer < config.shards:
            if config.shrunk_at is not None:  # The last time was no mistake.
                config.calm_s = max(self._settings.calm_s, config.calm_s / 2)
            config.shrunk_at = now
        self._set(clients, config, key, fewer)
        return config

    def _drain(self, clients: Clients, key: str, shard: int) -> CounterConfig | None:
        """Move the count of the highest shard to one that stays, in a transaction."""
        name = self._settings.name
        rows = ndb.get_multi([config_key(name, key), shard_key(name, key, shard)])
        config: CounterConfig | None = rows[0]
        drained: CounterShard = rows[1]
        if config is None or config.read_shards != shard + 1 or shard < config.shards:
            return config  # Drained already, or written to again.
        kept = shard_key(name, key, shard % config.shards).get()
        kept.count += drained.count
        drained.key.delete()
        config.read_shards = shard
        config.due = self._due(clients, config)
        ndb.put_multi([kept, config])
        return config

    def _config(self, key: str) -> CounterConfig:
        config: CounterConfig | None = config_key(self._settings.name, key).get()
        if config is None:
            raise rpc_errors.Aborted(f"{key} has no shards any more")  # type: ignore[no-untyped-call]
        return config

    def _set(self, clients: Clients, config: CounterConfig, key: str, shards: int) -> None:
        """Change the number of shards, in a transaction."""
        if shards != config.shards:
            new: list[CounterShard] = make_shards(
                self._settings.name, key, range(config.read_shards, shards)
            )
            config.shards = shards
            config.read_shards = max(config.read_shards, shards)
            config.generation += 1
            ndb.put_multi(new)
        config.due = self._due(clients, config)
        config.put()

    def _due(self, clients: Clients, config: CounterConfig) -> str | None:
        """Return when there is something to do for a counter that nobody writes to."""
        now = naive_utc(clients.clock.now())
        if config.read_shards > config.shards:
            return due_text(self._settings.name, now)
        if config.shards > self._settings.min_shards and not config.is_pinned:
            return due_text(self._settings.name, now + timedelta(seconds=config.calm_s))
        return None
