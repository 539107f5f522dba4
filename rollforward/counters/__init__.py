"""Sharded counters: exact increments at any rate, and totals that are read at once.

    LIKES = Counter("likes", queue="default")

    LIKES.increment(clients, "post-17", idempotency_key="r-17")
    LIKES.increment_many(clients, {"post-17": 1, "post-9": -1})
    LIKES.total(clients, "post-17", max_age_s=5).value

A row takes about one write a second in the long run, so a counter has shards, and its total is
their sum. An increment is one commit: it inserts the receipt of its idempotency key, and increments
a shard. On a service with increments (a process tests it once) that is one round trip and no read.
On others the shard is read, and the commit is refused if the shard has changed: two round trips.
Concurrent increments of one process share one commit.

A key begins with one shard. Conflicts between commits add shards, up to `max_shards`; `calm_s`
without conflicts removes some. Totals read all existing shards, even while some are drained.

One argument of the declaration chooses the mode of a counter:

    "exact"      in shards, as above
    "gathered"   by a fork-join queue: its total is written once per batch, about a second after an
                 increment
    "in_memory"  in the process, whose sums the queue gathers: no remote call for an increment

A deployment may change it: the next increment moves the count (relocation.py). Receipts of
idempotency keys do not move.

A gathered counter may be incremented in a transaction, with the data that it counts:
`increment_in_transaction`.

Without an idempotency key an increment that raises OutcomeUnknownError may count or not; one that
returned counts once. With one it may be repeated, and counts once: for 32 days, which is longer
than a task may be delivered.

Lost on failure: no increment that returned. In memory: the increments of a killed process since its
last flush, a quarter of a second. memcached only holds totals, with their age.
A lone exact increment costs 1 write, or 2 with an idempotency key, whose receipt is deleted later;
1 round trip, or 2. A total costs a read for each shard, and 1; 1 round trip.

Routes: POST /tasks/counters/<name>/settle, POST /tasks/counters/delete-expired; GET
/cron/counters/sweep.
Source: B. Slatkin, "Building scalable web apps with Google App Engine", 2008, "Sharded counters".
docs/adr/0015 compares its losses and duplicates with this code.
"""

from rollforward.counters.counter import Counter, NotGatheredError, NotShardedError, ShardStatus
from rollforward.counters.increments import Counted
from rollforward.counters.totals import Total
from rollforward.runtime.errors import BadItemError, DifferentItemError, OutcomeUnknownError

__all__ = [
    "BadItemError",
    "Counted",
    "Counter",
    "DifferentItemError",
    "NotGatheredError",
    "NotShardedError",
    "OutcomeUnknownError",
    "ShardStatus",
    "Total",
]
