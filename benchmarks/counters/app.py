"""The measured app: one count in several designs.

one-row        a transaction for each increment, on one entity
twenty-shards  the same on a random one of twenty entities: the talk's code, with fixed keys
adaptive       an exact counter, with an idempotency key each and shards according to conflicts
one-by-one     the same in twenty shards, with a commit for each increment
gathered       by a fork-join queue
in-memory      in the process, flushed every quarter of a second
idle, limited  adaptive counters; the second is under production's limit on writes of an entity
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from flask import Flask
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from pipelines.counters.counters import is_row_of
from pipelines.counters.counters import limit as production_limit
from rollforward.counters import Counter
from rollforward.counters.exact import ExactIncrements
from rollforward.counters.increments import increment_request
from rollforward.counters.shard_maps import ShardMaps
from rollforward.datastore.transactions import transact
from rollforward.registry import Registry
from rollforward.runtime import Clients

KEY = "bench"
TALK_SHARDS = 20
COUNTERS = {
    "adaptive": Counter("adaptive", queue="bench"),
    "one-by-one": Counter("one-by-one", queue="bench", min_shards=20, max_shards=20),
    "gathered": Counter("gathered", "gathered", queue="bench"),
    "in-memory": Counter("in-memory", "in_memory", queue="bench"),
    "idle": Counter("idle", queue="bench"),
    "limited": Counter("limited", queue="bench", max_shards=256, calm_s=600),
}


class NaiveCount(ndb.Model):
    """A count, or a shard of one, that uses ndb only."""

    count = ndb.IntegerProperty(indexed=False, default=0)


def naive_key(design: str, shard: int) -> Any:
    """Return the key of a count that uses ndb only."""
    return ndb.Key(NaiveCount, f"{design}|{shard:03d}")


def _naive(design: str, shards: int) -> None:
    key = naive_key(design, random.randrange(shards))

    def body() -> None:
        row = key.get() or NaiveCount(key=key)
        row.count += 1
        row.put()

    transact(body, attempts=50)


def total(clients: Clients, design: str) -> int:
    """Return the total of a design."""
    if design in COUNTERS:
        return COUNTERS[design].total(clients, KEY).value
    shards = TALK_SHARDS if design == "twenty-shards" else 1
    rows = ndb.get_multi([naive_key(design, shard) for shard in range(shards)])
    return sum(row.count for row in rows if row)


def serve() -> Flask:
    """Return the app."""
    app, clients = app_for(Registry(*COUNTERS.values()))
    if (limit := production_limit(clients)) is not None:
        limit.is_limited, limit.is_on = lambda key: is_row_of(key, {"limited"}), True

    def count(design: str) -> None:
        once = clients.new_id() if design in ("adaptive", "idle", "limited") else None
        COUNTERS[design].increment(clients, KEY, idempotency_key=once)

    alone = COUNTERS["one-by-one"]
    one_by_one = ExactIncrements(clients, ShardMaps.of(clients, alone._settings), alone._wake)

    def count_alone() -> None:
        (answer,) = one_by_one([increment_request({KEY: 1}, clients.new_id())])
        if isinstance(answer, Exception):
            raise answer

    acts: dict[str, Callable[[], object]] = {
        "one-row": lambda: _naive("one-row", 1),
        "twenty-shards": lambda: _naive("twenty-shards", TALK_SHARDS),
        "one-by-one": count_alone,
    }

    @app.get("/bench/<design>")
    def bench(design: str) -> Any:
        if design in acts:
            acts[design]()
        else:
            count(design)
        return "", 204

    return app
