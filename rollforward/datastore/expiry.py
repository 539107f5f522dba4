"""Deletion of rows after their time, even if a key is used again meanwhile.

A row's `expires` is its partition and an hour. A query lists keys. Before they are deleted another
sweep may have deleted one, and a caller may have written a new row under it. So the transaction
that deletes rows reads them again, and keeps any row that is not due.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from google.cloud import ndb

from rollforward.datastore.batched import batched
from rollforward.datastore.transactions import transact

# Of a transaction, which takes fewer than 500 writes.
MAX_KEYS = 250


def expiry(spread: str, at: datetime.datetime) -> str:
    """Return the hour from which a row may be deleted, behind its partition.

    >>> expiry("c0ffee", datetime.datetime(2030, 5, 1, 12, 30))
    'c20300501T12'
    """
    return f"{spread[0]}{at:%Y%m%dT%H}"


def expired(kind: type[ndb.Model], partition: str, end: str) -> Any:
    """Return the query for the rows of a partition that may be deleted."""
    expires: Any = kind.expires
    return kind.query(expires >= partition, expires < end)


def delete_expired(keys: Sequence[Any], end: str) -> None:
    """Delete the rows that are still expired.

    Args:
        keys: Keys of rows with a text `expires`, all in one partition.
        end: Rows that expire before this hour are deleted.
    """
    delete_due(keys, lambda row: row.expires < end)


def delete_due(keys: Sequence[Any], is_due: Callable[[Any], bool]) -> int:
    """Delete the rows that are due when they are read again; return their number."""
    parts = batched(keys, MAX_KEYS)
    return sum(transact(lambda part=part: _delete(part, is_due)) for part in parts)  # type: ignore[misc]


def _delete(keys: Sequence[Any], is_due: Callable[[Any], bool]) -> int:
    due = [row.key for row in ndb.get_multi(keys) if row is not None and is_due(row)]
    ndb.delete_multi(due)
    return len(due)
