"""Sums by a fork-join queue, and tallies of the accepted additions.

Sum
    Key: its name. Queries: none. Growth: one row for each sum with folded additions; it
    keeps its last batches. Only folds write it.

SumDirectory
    Key: "all". The names of the sums. Queries: none. Growth: one row, of a bounded number of names.

SumLoads
    Key: the sum's name. Its running load, and the accepted additions of earlier ones.
    Queries: none. Growth: one row for each sum that was under load.

SumTally
    Key: "<name>|<shard>" for forms, "<name>|api|<shard>" for tallies of the API's processes.
    Queries: none. Growth: at most 8 rows a sum.

SumAddition
    Key: "<name>|<form>". Commits with the item of a form, which so counts once, for two days.
    Queries: expires < ..., by partition. Single-property index.
    Growth: one row for each form of the last two days; new forms delete expired ones.

LoadWriter
    Key: "<name>|<load>|<writer>". Progress of one writer of a load.
    Queries: none. Growth: at most 50 rows a load, for two days and of the last 200 loads of a sum;
    then the next load that begins deletes them.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb


class Sum(ndb.Model):
    """A sum, and how it came to be."""

    total = ndb.IntegerProperty(indexed=False, default=0)
    items = ndb.IntegerProperty(indexed=False, default=0)
    api_items = ndb.IntegerProperty(indexed=False, default=0)  # Of these, by the API.
    api_amount = ndb.IntegerProperty(indexed=False, default=0)
    batches = ndb.IntegerProperty(indexed=False, default=0)
    recent = ndb.JsonProperty(indexed=False)  # The last batches, newest first.
    created = ndb.DateTimeProperty(indexed=False, required=True)


class SumDirectory(ndb.Model):
    """The names of all sums."""

    names = ndb.JsonProperty(indexed=False, default=[])


class SumLoads(ndb.Model):
    """The loads of a sum: the last one, and the accepted additions of earlier ones."""

    load = ndb.JsonProperty(indexed=False)
    items_before = ndb.IntegerProperty(indexed=False, default=0)
    amount_before = ndb.IntegerProperty(indexed=False, default=0)
    past = ndb.JsonProperty(indexed=False)  # [id, writers, began in ms] of loads that have rows.


class SumTally(ndb.Model):
    """Inserts that were accepted, in one of a sum's shards."""

    items = ndb.IntegerProperty(indexed=False, default=0)
    amount = ndb.IntegerProperty(indexed=False, default=0)
    tallied = ndb.JsonProperty(indexed=False)  # [process, number of its last delta]: the proof.


class SumAddition(ndb.Model):
    """A form that was sent, and its addition."""

    amount = ndb.IntegerProperty(indexed=False, required=True)
    expires = ndb.StringProperty()


class LoadWriter(ndb.Model):
    """One writer of a load. Its items up to `accepted` are accepted, one after the other."""

    accepted = ndb.IntegerProperty(indexed=False, default=0)
    amount = ndb.IntegerProperty(indexed=False, default=0)
    repeats = ndb.IntegerProperty(indexed=False, default=0)
    writes = ndb.IntegerProperty(indexed=False, default=0)
    latencies = ndb.JsonProperty(indexed=False)  # How many inserts were how slow, by bucket.
    steps = ndb.JsonProperty(indexed=False)  # [from, to, items], in ms since the load began.
    is_closed = ndb.BooleanProperty(indexed=False, default=False)  # The next load has begun.


def sum_key(name: str) -> Any:
    """Return a sum's key."""
    return ndb.Key(Sum, name)


def directory_key() -> Any:
    """Return the key of the list of sums."""
    return ndb.Key(SumDirectory, "all")


def loads_key(name: str) -> Any:
    """Return the key of a sum's loads."""
    return ndb.Key(SumLoads, name)


def tally_key(name: str, shard: int) -> Any:
    """Return the key of a shard of a sum's tally."""
    return ndb.Key(SumTally, f"{name}|{shard:02d}")


def api_tally_key(name: str, shard: int) -> Any:
    """Return the key of a shard of the API processes' tally of a sum."""
    return ndb.Key(SumTally, f"{name}|api|{shard:02d}")


def addition_key(name: str, form: str) -> Any:
    """Return the key of a form's addition."""
    return ndb.Key(SumAddition, f"{name}|{form}")


def writer_key(name: str, load: str, writer: int) -> Any:
    """Return the key of a writer of a load."""
    return ndb.Key(LoadWriter, f"{name}|{load}|{writer:02d}")
