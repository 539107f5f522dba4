"""Counters: shards that add up to a total, and receipts of counted increments.

CounterConfig
    Key: "<hash>|<declaration>|<key>". The numbers of a counter's shards: `shards` are written to,
    and `read_shards` exist and are read, which are more while some are drained. `generation` grows
    with each change of `shards`.
    Queries: due within a range of strings: the counters of a declaration that need draining, or may
    shrink. Single-property index. Growth: one row for each counter that was ever incremented.

CounterShard
    Key: "<hash>|<declaration>|<number>|<key>", the number in three digits. The hash in front
    spreads a counter's shards over the key space. Exactly the shards below `read_shards` exist. An
    increment updates its shard, so it fails if the shard was drained, and is not lost.
    Queries: none. Growth: at most 256 rows for each counter.

CounterReceipt
    Key: a digest of the declaration, the counter's key and the caller's idempotency key, but not of
    a shard, so it is found for any number of shards. Inserted with the increment.
    Queries: expires < ..., by partition. Single-property index.
    Growth: one row for each increment with an idempotency key, for 32 days; then the sweep deletes
    it, within some two hours.

CounterTotal
    Key: "<hash>|<declaration>|<key>". The total of a counter that is gathered or in memory. Written
    by folds alone. Queries: none. Growth: one row for each of these counters.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import refusing_key
from rollforward.runtime.clock import parse_time, time_text

MAX_SHARDS = 256

_SUBJECT = "a counter"


class CounterConfig(ndb.Model):
    """The number of a counter's shards."""

    shards = ndb.IntegerProperty(indexed=False, required=True)
    read_shards = ndb.IntegerProperty(indexed=False, required=True)
    generation = ndb.IntegerProperty(indexed=False, required=True)
    is_pinned = ndb.BooleanProperty(indexed=False, default=False)  # By hand; it does not adapt.
    due = ndb.StringProperty()  # When to drain or shrink, behind the declaration.
    calm_s = ndb.FloatProperty(indexed=False)  # How long without conflicts before it shrinks.
    shrunk_at = ndb.DateTimeProperty(indexed=False)


class CounterShard(ndb.Model):
    """A part of a counter's total. It may be negative."""

    count = ndb.IntegerProperty(indexed=False, default=0)


class CounterReceipt(ndb.Model):
    """An increment that was counted under an idempotency key."""

    commit = ndb.TextProperty(required=True)  # The attempt that counted it.
    digest = ndb.TextProperty(required=True)  # Of the increment: a different one is an error.
    expires = ndb.StringProperty(required=True)


class CounterTotal(ndb.Model):
    """A total that folds have written."""

    count = ndb.IntegerProperty(indexed=False, default=0)
    folds = ndb.IntegerProperty(indexed=False, default=0)


def config_key(declaration: str, key: str) -> Any:
    """Return the key of a counter's configuration."""
    return refusing_key(_SUBJECT, CounterConfig, f"{_hash(declaration, key)}|{declaration}|{key}")


def key_of_config(config: Any) -> str:
    """Return the counter's key, of the key of its configuration."""
    return str(config.id()).split("|", 2)[2]


def shard_key(declaration: str, key: str, shard: int) -> Any:
    """Return the key of a shard. Its number is of fixed width, so no two counters share one."""
    name = f"{_hash(declaration, key, shard)}|{declaration}|{shard:03d}|{key}"
    return refusing_key(_SUBJECT, CounterShard, name)


def total_key(declaration: str, key: str) -> Any:
    """Return the key of a total that folds write."""
    return refusing_key(_SUBJECT, CounterTotal, f"{_hash(declaration, key)}|{declaration}|{key}")


def receipt_key(declaration: str, key: str | None, idempotency_key: str) -> Any:
    """Return the key of a receipt; for a call for many counters `key` is None."""
    exact = json.dumps([declaration, key, idempotency_key]).encode()
    return refusing_key(_SUBJECT, CounterReceipt, hashlib.sha256(exact).hexdigest()[:40])


def due_text(declaration: str, at: datetime.datetime) -> str:
    """Return when a counter is due, in the order of time within its declaration.

    >>> due_text("likes", datetime.datetime(2030, 5, 1, 12))
    'likes|20300501T120000000000'
    """
    return f"{declaration}|{time_text(at)}"


def due_at(due: str) -> datetime.datetime:
    """Return the time in what `due_text` returned (UTC, naive)."""
    return parse_time(due.rpartition("|")[2])


def due_configs(declaration: str, at: datetime.datetime) -> Any:
    """Return the query for the counters of a declaration that are due, longest due first."""
    due: Any = CounterConfig.due
    earliest, latest = f"{declaration}|", due_text(declaration, at)
    return CounterConfig.query(due >= earliest, due <= latest).order(due)


def _hash(*parts: str | int) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]
