"""Move a count to where this version of the code keeps it: a deployment may declare it otherwise.

A counter that was "exact" has shards, one that is "gathered" or "in_memory" has one total. Whoever
writes a counter's first row of one way takes what is there of the other way, in the same
transaction. So a count is in one of the two places, also while two versions that differ serve side
by side and each moves it. A reader that finds nothing in its own place looks at both places
at once (relocated.py).

Cost: nothing for a counter that is in its place. Lost on failure: nothing. An increment that is
repeated under its idempotency key after such a change counts again: receipts are not moved.
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
    """Delete the shards of a counter, in a transaction; return what they held."""
    config: CounterConfig | None = config_key(declaration, key).get()
    if config is None:
        return 0
    keys = [shard_key(declaration, key, number) for number in range(config.read_shards)]
    shards = ndb.get_multi(keys)
    ndb.delete_multi([config.key, *keys])
    return sum(shard.count for shard in shards)


def take_total(declaration: str, key: str) -> int:
    """Delete the gathered total of a counter, in a transaction; return what it held."""
    total: CounterTotal | None = total_key(declaration, key).get()
    if total is None:
        return 0
    total.key.delete()
    return int(total.count)
