"""Rows of batches that a transaction has written."""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

from rollforward.batches.entities import BatchWork
from rollforward.datastore.transactions import current_transaction


class TransactionRows:
    """The rows that this attempt of a transaction has written.

    A transaction reads the state before it, so a second addition in one has to look here.
    """

    def __init__(self) -> None:
        self._rows: dict[Any, Any] = {}

    def get(self, key: Any) -> Any:
        return self._rows[key] if key in self._rows else key.get()

    def was_committed(self, work: BatchWork) -> bool:
        """Return whether an attempt before this one has committed a row, and its reply was lost.

        Asked again, it is a row that this attempt has.
        """
        if work.key in self._rows or work.added_by != current_transaction().id:
            return False
        self._rows[work.key] = work
        return True

    def put(self, *rows: ndb.Model) -> None:
        ndb.put_multi(rows)
        self._rows.update((row.key, row) for row in rows)

    def on_retry(self, cause: Exception) -> None:
        self._rows.clear()

    def on_commit(self) -> None: ...

    def on_outcome_unknown(self) -> None: ...
