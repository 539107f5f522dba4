"""What may be deleted after its time, and how that is done although its key is used anew.

A query lists keys. Before they are deleted another sweep may have deleted one, and a caller may
have used its key again: what stands there now is new, and stays. So each is read again in the
transaction that deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.cloud import ndb

from rollforward.datastore.transactions import transact

# Of a transaction, which takes fewer than 500 writes.
MAX_KEYS = 250


def delete_expired(keys: Sequence[Any], before: str) -> None:
    """Delete what is expired still.

    Args:
        keys: Of rows with a text `expires`, all of one partition.
        before: What expires earlier is deleted.
    """
    delete_due(keys, lambda row: row.expires < before)


def delete_due(keys: Sequence[Any], is_due: Callable[[Any], bool]) -> int:
    """Delete the rows that are due still, when they are read again; return how many."""
    parts = [keys[first : first + MAX_KEYS] for first in range(0, len(keys), MAX_KEYS)]
    return sum(transact(lambda part=part: _delete(part, is_due)) for part in parts)  # type: ignore[misc]


def _delete(keys: Sequence[Any], is_due: Callable[[Any], bool]) -> int:
    due = [row.key for row in ndb.get_multi(keys) if row is not None and is_due(row)]
    ndb.delete_multi(due)
    return len(due)
