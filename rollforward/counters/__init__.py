"""Sharded counters: exact increments at any rate, and totals that are read at once.

    LIKES = Counter("likes", queue="default")

    LIKES.increment(clients, "post-17", idempotency_key="r-17")
    LIKES.increment_many(clients, {"post-17": 1, "post-9": -1})
    LIKES.total(clients, "post-17", max_age_s=5).value

A row takes about one write a second in the long run, so a counter is kept in shards, and its total
is their sum. An increment is one commit: what proves its idempotency key is inserted, and a shard
is incremented. Where the service increments by itself that is one round trip and no read; where it
does not (a process asks it once), the shard is read, and the commit holds only if nobody has
written it since: two round trips. Increments of one process that come together share one commit.

A key begins with one shard. When commits meet conflicts there are more, at most `max_shards`; when
there were none for `calm_s` there are fewer. Totals read all shards that exist, while some are
drained, too.

One argument of the declaration chooses how a counter is kept:

    "exact"      in shards, as above
    "gathered"   by a fork-join queue: its total is written once per batch, and has an increment
                 about a second later
    "in_memory"  in the process, whose sums the queue gathers: no remote call for an increment

A deployment may change it: the next increment moves the count (relocation.py). Receipts of
idempotency keys do not move.

A gathered counter may be incremented in a transaction, with the data that it counts:
`increment_in_transaction`.

Without an idempotency key an increment that raises OutcomeUnknownError may count or not; one that
returned counts once. With one it may be repeated, and counts once: for 32 days, which is longer
than a task may be delivered.

Lost on failure: nothing that returned. In memory: what a killed process has taken since its last
flush, a quarter of a second. memcached only holds totals that say how old they are.
Cost of an exact increment, alone: 1 write, 2 with an idempotency key, whose receipt is deleted
later; 1 round trip, or 2. Of a total: a read for each shard, and 1; 1 round trip.

Routes: POST /tasks/counters/<name>/settle, POST /tasks/counters/delete-expired; GET
/cron/counters/sweep.
Source: B. Slatkin, "Building scalable web apps with Google App Engine", 2008, "Sharded counters".
What its code counts twice or loses, and what ours does instead: docs/adr/0015.
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
