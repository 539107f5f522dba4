"""Tasks that were committed with data, until they are created in Cloud Tasks.

OutboxTask
    Key: "<partition>|<created>|<h or o>|<transaction>|<number>|<digest>". The partition is the
    first hex digit of the transaction's random id, so writes spread over 16 ranges; a range is in
    order of time. The digest is of the task's message, and the number tells equal ones apart; all
    other parts are chosen before the transaction's first attempt. So a body that runs again writes
    the same rows for the same tasks, and other rows if it then decides otherwise.
    Queries: ranges of keys: the sweep, and the oldest row. tag = "..." or a range of tags, by
    key: the pending rows of one reader. Single-property index.
    Growth: one row for each pending task. A row of kind "o" is deleted when its task was created,
    one of kind "h" (unacked) in its task's own transaction.

OutboxLease
    Key: the partition. Its owner drains it, or was asked to, so that two sweeps do not do the same
    work, nor enqueue walks again and again while their queue is paused.
    Queries: none. Growth: 16 rows.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import client_namespace, key_of_client
from rollforward.datastore.partitions import PARTITIONS
from rollforward.runtime.clock import parse_time, time_text

LONG_AGO = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  Datastore's are naive.


class OutboxTask(ndb.Model):
    """A task that was committed, and is not known to exist yet."""

    path = ndb.TextProperty(required=True)
    queue = ndb.TextProperty(required=True)
    body = ndb.TextProperty(required=True)  # Its arguments, as JSON.
    name = ndb.TextProperty()  # Chosen by the caller; None: made of the row's key.
    at = ndb.DateTimeProperty(indexed=False)
    tag = ndb.StringProperty()
    deadline_s = ndb.IntegerProperty(indexed=False)  # None: the queue's own.
    traceparent = ndb.TextProperty()  # Of the code that enqueued it; None: it had no trace.


class OutboxLease(ndb.Model):
    """The walk that drains a partition."""

    owner = ndb.TextProperty(required=True)
    ends = ndb.DateTimeProperty(indexed=False, required=True)


@dataclass(frozen=True)
class RowId:
    """The parts of a row's key.

    >>> noon = datetime.datetime(2030, 5, 1, 12)
    >>> row = RowId("c0ffee", noon, 3, is_unacked=True, digest="1a2b3c4d")
    >>> row.text
    'c|20300501T120000000000|h|c0ffee|0003|1a2b3c4d'
    >>> RowId.parse(row.text) == row
    True
    """

    transaction: str
    created: datetime.datetime
    number: int
    is_unacked: bool
    digest: str = ""

    @property
    def text(self) -> str:
        kind = "h" if self.is_unacked else "o"
        time = time_text(self.created)
        parts = (self.transaction[0], time, kind, self.transaction, f"{self.number:04d}")
        return "|".join((*parts, self.digest))

    @classmethod
    def parse(cls, text: str) -> RowId:
        """Return the parts of a key's text.

        Raises:
            ValueError: it is none.
        """
        _, created, kind, transaction, number, digest = text.split("|")
        return cls(transaction, parse_time(created), int(number), kind == "h", digest)

    @classmethod
    def read(cls, row: str | int) -> RowId:
        """Return the parts of any key's id; missing parts mean a row that is old and needs no ack.

        Rows may be of another version, or made by hand. None of them may block the others.

        >>> RowId.read("c|20300501T120000000000|h|c0ffee|0003").is_unacked
        True
        >>> RowId.read(5629499534213120).created
        datetime.datetime(1970, 1, 1, 0, 0)
        """
        parts = [*str(row).split("|"), *[""] * 6]
        try:
            return cls.parse("|".join([*parts[:4], parts[4] or "0", parts[5]]))
        except ValueError:
            return cls("", LONG_AGO, 0, parts[2] == "h")


def outbox_key(row: str) -> Any:
    """Return the key of a row."""
    return key_of_client(OutboxTask, row)


def outbox_rows(partition: str = "", *, after: str = "") -> Any:
    """Return the query for the rows of a partition, or of all, oldest first in each.

    The first and the last one include all keys outside of them, so that none is out of reach.
    """
    key = OutboxTask._key
    query = OutboxTask.query(namespace=client_namespace()).order(key)
    if partition and partition != PARTITIONS[-1]:
        beyond = PARTITIONS[PARTITIONS.index(partition) + 1]
        query = query.filter(key < outbox_key(beyond))
    if after:
        query = query.filter(key > outbox_key(after))
    elif partition and partition != PARTITIONS[0]:
        query = query.filter(key >= outbox_key(partition))
    return query


def rows_of_tag(tag: str) -> Any:
    """Return the query for the rows of a tag, by key."""
    query = OutboxTask.query(OutboxTask.tag == tag, namespace=client_namespace())
    return query.order(OutboxTask._key)


def rows_of_tags(prefix: str, *, is_reversed: bool = False) -> Any:
    """Return the query for the rows of all tags that begin with a prefix."""
    tag = OutboxTask.tag
    namespace, end = client_namespace(), prefix + "\U0010ffff"
    query = OutboxTask.query(tag >= prefix, tag < end, namespace=namespace)
    return query.order(-tag if is_reversed else tag)


def lease_key(partition: str) -> Any:
    """Return the key of a partition's lease."""
    return ndb.Key(OutboxLease, partition)
