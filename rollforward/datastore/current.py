"""Reads and writes in the transaction that this code runs in, without ndb's futures.

A future and its tasklet cost ndb more processor time than the row
(docs/performance/saves-and-views.md). What these functions write joins the commit of the
transaction, with what ndb's own calls write there.

A transaction that callers share (rollforward/runtime/sharing) reads for all of them at once, before
their bodies run: `get_multi` returns what it has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.cloud import ndb
from google.cloud.datastore_v1.types import Mutation
from google.cloud.ndb import _datastore_api, _options, tasklets
from google.cloud.ndb.context import get_context

from rollforward.datastore.bodies import PlainRow, require_transaction_id
from rollforward.datastore.conversion.protobufs import protobuf_of, protobuf_of_key
from rollforward.datastore.lookup import lookup_each
from rollforward.datastore.transactions import running_transaction

_Mutation = Mutation.pb()


def get_multi(keys: Sequence[Any]) -> list[Any]:
    """Return the entities of some keys, None for each that does not exist."""
    transaction = running_transaction()
    entities = transaction.entities if transaction is not None else None
    if entities is None or not all(key in entities for key in keys):
        return ndb.get_multi(keys)  # type: ignore[no-any-return]
    return [entities[key] for key in keys]


def read_protobufs(keys: Sequence[Any]) -> list[Any]:
    """Return the stored entities of some keys as protobufs, None for each that does not exist.

    ndb does not know that they were read, nor does this function know what ndb has written.

    Raises:
        NoTransactionError: this code is not in a transaction.
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    asked, client = [protobuf_of_key(key) for key in keys], get_context().client
    results = lookup_each(client, asked, transaction=require_transaction_id())
    return [None if result is None else result.entity for result in results]


def put(entity: ndb.Model, converted: Any = None) -> None:
    """Write an entity with a complete key, and without hooks of its own.

    Args:
        converted: The entity as protobuf, if that was done before.
    """
    transaction_id = get_context().transaction
    if transaction_id is None:
        entity.put()
        return
    if converted is None:
        entity._prepare_for_put()
        converted = protobuf_of(entity)
    _upsert(converted, transaction_id)


def put_row(client: ndb.Client, row: PlainRow) -> None:
    """Write a row of a kind without hooks of its own, without making ndb's entity of it."""
    transaction_id = get_context().transaction
    if transaction_id is None:
        row.entity().put()
    else:
        _upsert(row.protobuf(client), transaction_id)


def _upsert(converted: Any, transaction_id: bytes) -> None:
    _write(_Mutation(upsert=converted), transaction_id)


def _write(mutation: Any, transaction_id: bytes) -> None:
    """Add a mutation of a complete key to the commit of the transaction."""
    transaction = running_transaction()
    if transaction is not None and transaction.mutations is not None:
        transaction.mutations.append(mutation)
        return
    # ndb has no public way to add to the commit of its transaction. Its own adds a description of
    # the mutation to the future, which takes longer than the rest.
    batch = _datastore_api._get_commit_batch(transaction_id, _options.Options())
    future = tasklets.Future("a write")
    future.set_result(None)
    batch.mutations.append(Mutation.wrap(mutation))
    batch.futures.append(future)


def written_bytes() -> int:
    """Return the bytes that these functions have written in a transaction of declared bodies."""
    transaction = running_transaction()
    mutations = transaction.mutations if transaction is not None else None
    return sum(mutation.ByteSize() for mutation in mutations or ())


def delete(key: Any) -> None:
    """Delete an entity of a kind without hooks of its own."""
    transaction_id = get_context().transaction
    if transaction_id is None:
        key.delete()
    else:
        _write(_Mutation(delete=protobuf_of_key(key)), transaction_id)
