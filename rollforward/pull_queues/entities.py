"""Items of pull queues: what waits for a worker to come and lease it.

PullItem
    Key: "<queue>|<id>". Ids are random, or digests of the caller's idempotency key.
    Queries: a range of `ready`, in its order: what can be leased; a range of `tagged`, likewise,
    for one tag, or for items without one; a range of `dead`: the dead letters of a queue.
    Single-property indexes.
    `ready` is "<queue>|<partition>|<time>": from that time on, the item can be leased. A lease
    moves the time to its end, so an item whose worker died comes back on its own.
    Growth: one row for each item that waits, is leased or is dead. An ack deletes it; a dead letter
    goes after 30 days.

PullReceipt
    Key: a digest of the queue and the caller's idempotency key. Inserted with the item, so a
    second add with the same key is refused, even when the item was acked meanwhile.
    Or a digest of the queue and the leases of an ack: inserted by the commit that deletes their
    items, so that a repeated ack is known. Or of the queue and an item that a transaction has
    added: its body may run again.
    Queries: expires < .... Single-property index.
    Growth: one row for each add with an idempotency key or in a transaction, for 24 hours, and for
    each commit of an ack, for an hour.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import refuse_other_namespace, refusing_key
from rollforward.runtime.clock import parse_time, time_text

_SUBJECT = "a pull queue"


class PullItem(ndb.Model):
    """Something to do, for whichever worker leases it."""

    payload = ndb.TextProperty(required=True)
    tag = ndb.TextProperty()
    added_at = ndb.DateTimeProperty(indexed=False, required=True)
    deliveries = ndb.IntegerProperty(indexed=False, default=0)
    lease = ndb.TextProperty()  # The id of the last lease: proof of a commit without a reply.
    ready = ndb.StringProperty()  # None: it is dead.
    tagged = ndb.StringProperty()  # As `ready`, within its tag, or those without one; None: dead.
    dead = ndb.StringProperty()  # When its deliveries were used up.


class PullReceipt(ndb.Model):
    """An add that was accepted, or an ack."""

    item = ndb.TextProperty(required=True)  # Of an ack: a JSON list of what it deleted.
    digest = ndb.TextProperty(required=True)  # Of what was added: the same key with another errs.
    expires = ndb.DateTimeProperty(required=True)


def item_key(queue: str, id_: str) -> Any:
    """Return the key of an item."""
    return refusing_key(_SUBJECT, PullItem, f"{queue}|{id_}")


def receipt_key(queue: str, idempotency_key: str) -> Any:
    """Return the key of a receipt."""
    return refusing_key(_SUBJECT, PullReceipt, digest_of(queue, idempotency_key))


def ack_key(queue: str, leases: Sequence[tuple[str, int]]) -> Any:
    """Return the key of the receipt of an ack: leases are pairs of an item and its version."""
    texts = sorted(f"{id_}@{version}" for id_, version in leases)
    return refusing_key(_SUBJECT, PullReceipt, digest_of("ack", queue, *texts))


def key_of_attempts(queue: str, id_: str) -> Any:
    """Return the key of the receipt of an item that a transaction adds, through all attempts."""
    return refusing_key(_SUBJECT, PullReceipt, digest_of("transaction", queue, id_))


def digest_of(*parts: str | None) -> str:
    """Return a digest of some texts, in their order.

    >>> digest_of("a", "bc") != digest_of("ab", "c")
    True
    """
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def ready_at(queue: str, partition: int, at: datetime.datetime) -> str:
    """Return the position of an item in its partition, by the time when it can be leased.

    >>> ready_at("mail", 3, datetime.datetime(2030, 5, 1, 12))
    'mail|03|20300501T120000000000'
    """
    return f"{queue}|{partition:02d}|{time_text(at)}"


def tag_group(queue: str, tag: str | None) -> str:
    """Return the prefix of a queue in `tagged`, for one of its tags; None: no tag.

    >>> tag_group("mail", None) != tag_group("mail", "null")
    True
    """
    return f"{queue}#{digest_of(tag)}"


def time_of(ready: str) -> datetime.datetime:
    """Return when an item can be leased.

    >>> time_of("mail|03|20300501T120000000000")
    datetime.datetime(2030, 5, 1, 12, 0)
    """
    return parse_time(ready.rpartition("|")[2])


def ready_items(queue: str, partition: int, now_utc: datetime.datetime) -> Any:
    """Return the query for a partition's items that can be leased, the oldest first."""
    lower, upper = f"{queue}|{partition:02d}|", ready_at(queue, partition, now_utc)
    return _items(PullItem.ready >= lower, PullItem.ready <= upper).order(PullItem.ready)


def items_with_tag(group: str, partition: int, now_utc: datetime.datetime) -> Any:
    """Return the query for a partition's items of one group, the oldest first."""
    lower, upper = f"{group}|{partition:02d}|", ready_at(group, partition, now_utc)
    return _items(PullItem.tagged >= lower, PullItem.tagged <= upper).order(PullItem.tagged)


def group_items(group: str) -> Any:
    """Return the query for all items of one group that are not dead, leased ones included."""
    return _items(PullItem.tagged >= f"{group}|", PullItem.tagged < f"{group}}}").order(
        PullItem.tagged
    )


def items_of(queue: str) -> Any:
    """Return the query for all items of a queue that are not dead."""
    return _items(PullItem.ready >= f"{queue}|", PullItem.ready < f"{queue}}}").order(
        PullItem.ready
    )


def dead_items(
    queue: str,
    *,
    since: datetime.datetime | None = None,
    until: datetime.datetime | None = None,
) -> Any:
    """Return the query for the dead letters of a queue, the oldest first, between two times."""
    lower = dead_at(queue, since) if since else f"{queue}|"
    return _items(PullItem.dead >= lower, PullItem.dead < _end_of_dead(queue, until)).order(
        PullItem.dead
    )


def dead_items_after(
    queue: str, died_at: str, id_: str, *, until: datetime.datetime | None = None
) -> tuple[Any, Any]:
    """Return the queries for the dead letters after one, by time and id.

    Those that died at the same time as it come first: they may be many.
    """
    place = f"{queue}|{died_at}"
    same = _items(PullItem.dead == place, PullItem._key > item_key(queue, id_))
    later = _items(PullItem.dead > place, PullItem.dead < _end_of_dead(queue, until))
    return same.order(PullItem._key), later.order(PullItem.dead)


def dead_at(queue: str, at: datetime.datetime) -> str:
    """Return the place of a dead letter in its queue."""
    return f"{queue}|{time_text(at)}"


def _end_of_dead(queue: str, until: datetime.datetime | None) -> str:
    """Return the place before which the dead letters of a queue lie that died before a time."""
    return dead_at(queue, until) if until else f"{queue}}}"


def expired_receipts(now_utc: datetime.datetime) -> Any:
    """Return the query for expired receipts."""
    return PullReceipt.query(PullReceipt.expires < now_utc).order(PullReceipt.expires)


def _items(*filters: Any) -> Any:
    refuse_other_namespace(_SUBJECT)
    return PullItem.query(*filters)
