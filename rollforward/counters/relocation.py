"""Relocation of a count after a deployment that changes the mode of its counter.

An "exact" counter has shards, a "gathered" or "in_memory" one has one total. The writer of a
counter's first row in one place moves the count of the other place, in the same transaction. So a
count is in one of the two places, even while two versions of the app serve side by side and each
moves it. A reader that finds nothing in its own place reads both places at once (relocated.py).

Cost: nothing for a counter that is in its place. Lost on failure: nothing. An increment that is
repeated under its idempotency key after a relocation counts again, since receipts are not moved.
"""

from __future__ import annotations

from google.cloud import ndb

from rollforward.counters.entities import (
    CounterConfig,
    CounterTotal,
    config_key,
    shard_key,
    total_key,
)


def take_shards(declaration: str, key: str) -> int:
    """Delete the shards of a counter, in a transaction; return their sum."""
    config: CounterConfig | None = config_key(declaration, key).get()
    if config is None:
        return 0
    keys = [shard_key(declaration, key, number) for number in range(config.read_shards)]
    shards = ndb.get_multi(keys)
    ndb.delete_multi([config.key, *keys])
    return sum(shard.count for shard in shards)


def take_total(declaration: str, key: str) -> int:
    """Delete the gathered total of a counter, in a transaction; return its count."""
    total: CounterTotal | None = total_key(declaration, key).get()
    if total is None:
        return 0
    total.key.delete()
    return int(total.count)
