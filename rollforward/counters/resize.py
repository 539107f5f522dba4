"""Changes of the number of shards, while increments continue; none is lost or counted twice.

Exactly the shards below `read_shards` exist, and a total reads all of them. Writers use the first
`shards`, which are at most as many.

1. Grow: one commit makes the new shards and raises both numbers. A writer to a new shard has read
   that commit, so later readers of a total read the shard.
2. Shrink: one commit lowers `shards`. Writers with an old shard map still write to the shards
   above, and totals still read them.
3. Drain: one commit for each shard above, the highest first: its count moves to a remaining shard,
   it is deleted, and `read_shards` falls by one. A later writer finds no shard to update: its
   increment fails as a whole, with its receipt, and it reads the shard map again.

Each commit checks its precondition, so repeating it changes nothing. After `calm_s` without
conflicts a counter's shards are halved. If it must grow again soon after, it waits twice as long
the next time.
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
# Shards that one task drains; the next one continues.
MAX_DRAINED = 32


class Resizer:
    """Changes how many shards the counters of a declaration have."""

    def __init__(self, shard_maps: ShardMaps) -> None:
        self._shard_maps = shard_maps
        self._settings = shard_maps.settings

    def grow(self, clients: Clients, shard_map: ShardMap, *, is_rush: bool) -> None:
        """Multiply the shards of a counter, unless its number has changed meanwhile.

        One that an earlier version has made has the declared minimum then.
        """
        factor = RUSH_GROWTH if is_rush else GROWTH
        shards = max(self._settings.min_shards, factor * shard_map.shards)
        shards = min(self._settings.max_shards, shards)

        def body() -> CounterConfig:
            config = self._config(shard_map.key)
            if config.generation == shard_map.generation and not config.is_pinned:
                soon = timedelta(seconds=2 * config.calm_s)
                at, shrunk_at = naive_utc(clients.clock.now()), config.shrunk_at
                if shrunk_at is not None and at - shrunk_at < soon:  # It was calm by its shards.
                    config.calm_s = min(MAX_CALM_S, 2 * config.calm_s)
                    config.shrunk_at = None
                self._set(clients, config, shard_map.key, shards)
            return config

        with self._shard_maps.changing(shard_map.key) as is_first:
            if is_first:
                self._shard_maps.learn(clients, shard_map.key, transact(body))

    def keep(self, clients: Clients, shard_map: ShardMap) -> None:
        """Postpone the next shrinking of a counter, since it still has conflicts."""
        if shard_map.due is None or shard_map.is_pinned:
            return

        def body() -> CounterConfig:
            config = self._config(shard_map.key)
            if config.generation == shard_map.generation and config.read_shards == config.shards:
                config.due = self._due(clients, config)
                config.put()
            return config

        remaining = due_at(shard_map.due) - naive_utc(clients.clock.now())
        if remaining < timedelta(seconds=self._settings.calm_s / 2):
            with self._shard_maps.changing(shard_map.key) as is_first:
                if is_first:
                    self._shard_maps.learn(clients, shard_map.key, transact(body))

    def set(self, clients: Clients, key: str, shards: int | None) -> ShardMap:
        """Fix the number of a counter's shards; None: it adapts again."""
        self._shard_maps.get(clients, [key])  # Makes a new one.

        def body() -> CounterConfig:
            config = self._config(key)
            config.is_pinned = shards is not None
            self._set(clients, config, key, config.shards if shards is None else shards)
            return config

        return self._shard_maps.learn(clients, key, transact(body))

    def settle(self, clients: Clients, key: str) -> bool:
        """Shrink a counter if it is due, and drain shards; return whether more must be drained."""
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
        at = naive_utc(clients.clock.now())
        is_drained = config.read_shards == config.shards
        if not is_drained or config.is_pinned or due_at(config.due) > at:
            return config
        fewer = max(self._settings.min_shards, config.shards // 2)
        if fewer < config.shards:
            if config.shrunk_at is not None:  # The last shrinking was right.
                config.calm_s = max(self._settings.calm_s, config.calm_s / 2)
            config.shrunk_at = at
        self._set(clients, config, key, fewer)
        return config

    def _drain(self, clients: Clients, key: str, shard: int) -> CounterConfig | None:
        """Move the count of the highest shard to a remaining one, in a transaction."""
        name = self._settings.name
        rows = ndb.get_multi([config_key(name, key), shard_key(name, key, shard)])
        config: CounterConfig | None = rows[0]
        drained: CounterShard = rows[1]
        if config is None or config.read_shards != shard + 1 or shard < config.shards:
            return config  # Drained already, or written to again.
        target = shard_key(name, key, shard % config.shards).get()
        target.count += drained.count
        drained.key.delete()
        config.read_shards = shard
        config.due = self._due(clients, config)
        ndb.put_multi([target, config])
        return config

    def _config(self, key: str) -> CounterConfig:
        config: CounterConfig | None = config_key(self._settings.name, key).get()
        if config is None:
            raise rpc_errors.Aborted(f"{key} has no shards any more")  # type: ignore[no-untyped-call]
        return config

    def _set(self, clients: Clients, config: CounterConfig, key: str, shards: int) -> None:
        """Change the number of shards, in a transaction."""
        if shards != config.shards:
            added = make_shards(self._settings.name, key, range(config.read_shards, shards))
            config.shards = shards
            config.read_shards = max(config.read_shards, shards)
            config.generation += 1
            ndb.put_multi(added)
        config.due = self._due(clients, config)
        config.put()

    def _due(self, clients: Clients, config: CounterConfig) -> str | None:
        """Return when an idle counter must be drained or shrunk; None: never."""
        at = naive_utc(clients.clock.now())
        if config.read_shards > config.shards:
            return due_text(self._settings.name, at)
        if config.shards > self._settings.min_shards and not config.is_pinned:
            return due_text(self._settings.name, at + timedelta(seconds=config.calm_s))
        return None
