"""Sums: what a fork-join queue adds up.

Sum
    Key: its name. Queries: all, by key. Growth: one row for each sum; it keeps its last batches.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb


class Sum(ndb.Model):
    """A sum, and how it came to be."""

    total = ndb.IntegerProperty(indexed=False, default=0)
    items = ndb.IntegerProperty(indexed=False, default=0)
    batches = ndb.IntegerProperty(indexed=False, default=0)
    recent = ndb.JsonProperty(indexed=False)  # The last batches, newest first.
    created = ndb.DateTimeProperty(indexed=False, required=True)


def sum_key(name: str) -> Any:
    """Return a sum's key."""
    return ndb.Key(Sum, name)


def all_sums() -> Any:
    """Return the query for all sums, by name."""
    return Sum.query().order(Sum._key)
