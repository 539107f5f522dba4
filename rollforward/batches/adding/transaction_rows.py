"""Members and rows of batches that a transaction has read and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.cloud import ndb

from rollforward.batches.entities import BatchWork
from rollforward.batches.errors import BadWorkError
from rollforward.datastore.transactions import current_transaction


class TransactionRows:
    """The rows that this attempt of a transaction has written.

    A transaction reads the state before it, so a second addition in one has to look here.
    """

    def __init__(self) -> None:
        self._rows: dict[Any, Any] = {}
        # By its id, each iterator and what it has given; None: an error has ended it.
        self._iterated: dict[int, tuple[Iterator[Any], list[Any] | None]] = {}

    def listed(self, members: Iterable[Any]) -> Iterable[Any]:
        """Return members; of an iterator the same ones to a body that runs again.

        Raises:
            BadWorkError: it has ended with an error, and gives no more.
        """
        if not isinstance(members, Iterator):
            return members
        if id(members) not in self._iterated:
            self._iterated[id(members)] = members, None
            self._iterated[id(members)] = members, list(members)
        listed = self._iterated[id(members)][1]
        if listed is None:
            raise BadWorkError("members must be a list: the iterator of them has failed before")
        return listed

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
