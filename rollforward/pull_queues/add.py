"""Adding to a pull queue: alone with an idempotency key, or in the caller's transaction."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.transactions import OUTCOME_UNKNOWN, current_transaction
from rollforward.datastore.versions import insert_all
from rollforward.pull_queues.entities import (
    PullItem,
    PullReceipt,
    digest_of,
    item_key,
    key_of_attempts,
    ready_at,
    receipt_key,
    tag_group,
)
from rollforward.pull_queues.items import ItemId, check, check_delay
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.idempotency import different_item

# How long an idempotency key is known at least.
RECEIPTS_FOR = timedelta(hours=24)
MAX_ATTEMPTS = 3
PAUSE_S = 0.05


@dataclass(frozen=True)
class NewItem:
    """An item to be added. Its id is chosen before the first attempt to store it."""

    id: ItemId
    payload: str
    tag: str | None
    delay_s: float


def new_item(clients: Clients, payload: str, tag: str | None, delay_s: float) -> NewItem:
    """Return an item with an id of its own.

    Raises:
        BadItemError: it cannot be added.
    """
    check(payload, tag, None)
    check_delay(delay_s)
    return NewItem(ItemId(clients.new_id()), payload, tag, delay_s)


def add_in_transaction(
    clients: Clients, queue: str, partitions: int, payload: str, tag: str | None, delay_s: float
) -> ItemId:
    """Put an item with the writes of the caller's transaction.

    Its id is a hash of the transaction's id and the item, so a body that runs again writes the
    same row. A receipt is committed with it: if an earlier attempt took effect and its reply was
    lost, a worker may have acked the item by now, and a second put would bring it back.

    Raises:
        BadItemError: it cannot be added.
        rollforward.datastore.transactions.NoTransactionError: there is no transaction.
    """
    check(payload, tag, None)
    check_delay(delay_s)
    transaction = current_transaction()
    id_ = ItemId(digest_of(transaction.id_of("pull-queues", queue, payload, tag)))
    item = NewItem(id_, payload, tag, delay_s)
    receipt = _receipt(clients, key_of_attempts(queue, id_), item)
    if transaction.doubt is None or receipt.key.get() is None:
        ndb.put_multi([_entity(clients, queue, partitions, item), receipt])
    return id_


def add(
    clients: Clients, queue: str, partitions: int, item: NewItem, idempotency_key: str | None
) -> ItemId:
    """Store an item, in one round trip; return its id, or the id of the first add with this key.

    Without a key a commit whose outcome is unknown is not made again: a worker may have leased and
    acked the item by then, and a second insert would bring it back.

    Raises:
        DifferentItemError: the idempotency key was used for another item.
        google.api_core.exceptions.GoogleAPICallError: what the service said. With an idempotency
            key it is safe to add it again; without one the item may be there, and may be twice
            then.
    """
    rows = [_entity(clients, queue, partitions, item)]
    if idempotency_key is not None:
        rows.append(_receipt(clients, receipt_key(queue, idempotency_key), item))
    attempts = 0
    while True:
        attempts += 1
        try:
            insert_all(clients.datastore, rows)
        except (rpc_errors.AlreadyExists, rpc_errors.Aborted, *OUTCOME_UNKNOWN) as error:
            added = _find(queue, item, idempotency_key)
            if added is not None:
                return added
            is_open = isinstance(error, OUTCOME_UNKNOWN) and idempotency_key is None
            if attempts == MAX_ATTEMPTS or is_open:
                raise
            clients.clock.sleep(PAUSE_S)
        else:
            return item.id


def _find(queue: str, item: NewItem, idempotency_key: str | None) -> ItemId | None:
    """Return the item that was added, by this call or by one with its key; None: neither is known.

    A conflicting receipt may have expired and be gone by now: then the add is made again.
    """
    if idempotency_key is None:
        return item.id if item_key(queue, item.id).get() is not None else None
    receipt = receipt_key(queue, idempotency_key).get()
    if receipt is None:
        return None
    if receipt.digest != digest_of(item.payload, item.tag):
        raise different_item(idempotency_key)
    return ItemId(receipt.item)


def _receipt(clients: Clients, key: Any, item: NewItem) -> PullReceipt:
    return PullReceipt(
        key=key,
        item=item.id,
        digest=digest_of(item.payload, item.tag),
        expires=naive_utc(clients.clock.now()) + RECEIPTS_FOR,
    )


def _entity(clients: Clients, queue: str, partitions: int, item: NewItem) -> ndb.Model:
    now_utc = naive_utc(clients.clock.now())
    row = PullItem(
        key=item_key(queue, item.id), payload=item.payload, tag=item.tag, added_at=now_utc
    )
    make_ready(row, partitions, now_utc + timedelta(seconds=item.delay_s))
    return row


def make_ready(row: PullItem, partitions: int, at: object) -> None:
    """Let an item be leased from a time on; it stays in its partition."""
    queue, _, id_ = row.key.id().partition("|")
    partition = zlib.crc32(id_.encode()) % partitions
    row.ready = ready_at(queue, partition, at)  # type: ignore[arg-type]
    row.tagged = ready_at(tag_group(queue, row.tag), partition, at)  # type: ignore[arg-type]
