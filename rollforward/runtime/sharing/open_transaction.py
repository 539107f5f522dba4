"""A transaction by the client's own calls: begin, look up, commit or roll back.

Inside of its context ndb's calls belong to it, too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from google.cloud import ndb
from google.cloud.datastore import helpers
from google.cloud.datastore_v1.types import (
    BeginTransactionRequest,
    BeginTransactionResponse,
    CommitRequest,
    RollbackRequest,
    TransactionOptions,
)
from google.cloud.ndb import _datastore_api, model
from google.cloud.ndb.context import get_context

from rollforward.datastore.conversion.protobufs import protobuf_of_key
from rollforward.datastore.lookup import lookup
from rollforward.datastore.stub import call_stub

log = logging.getLogger(__name__)

_READ_WRITE = TransactionOptions.pb(TransactionOptions(read_write=TransactionOptions.ReadWrite()))


class OpenTransaction:
    """A transaction that has begun."""

    def __init__(self, client: ndb.Client) -> None:
        """Begin.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: the service's answer.
        """
        self._client = client
        self._id = self._begin()
        self._context = self._context_of(client)

    @property
    def _location(self) -> dict[str, str]:
        return {"project_id": self._client.project, "database_id": self._client.database or ""}

    def _begin(self) -> bytes:
        request = BeginTransactionRequest.pb()(**self._location, transaction_options=_READ_WRITE)
        answer = call_stub(self._client.stub.begin_transaction, request)
        return bytes(BeginTransactionResponse.pb(answer).transaction)

    def _context_of(self, client: Any) -> Any:
        """Return the context in which ndb's calls belong to this transaction."""
        return get_context().new(
            client=client,
            transaction=self._id,
            on_commit_callbacks=[],
            transaction_complete_callbacks=[],
            batches=None,
            commit_batches=None,
            cache=None,
            eventloop=None,
            retry=None,
        )

    def lookup(self, keys: Sequence[Any]) -> dict[Any, Any]:
        """Return the entities of distinct keys, None for each that does not exist.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: the service's answer.
        """
        entities: dict[Any, Any] = dict.fromkeys(keys)
        messages = [protobuf_of_key(key) for key in keys]
        for result in lookup(self._client, messages, transaction=self._id).results:
            entity = model._entity_from_ds_entity(helpers.entity_from_protobuf(result.entity))
            entities[entity.key] = entity
        return entities

    @contextlib.contextmanager
    def collected(self) -> Iterator[list[Any]]:
        """Run the code inside in this transaction; return the mutations that ndb wrote there.

        They are in the list once the code has ended.
        """
        mutations: list[Any] = []
        with self._context.use() as context:
            yield mutations
            if self._id in context.commit_batches:
                _datastore_api.prepare_to_commit(self._id)
            context.eventloop.run()  # Calls that nobody has waited for may still write.
            if (batch := context.commit_batches.pop(self._id, None)) is not None:
                mutations += [type(mutation).pb(mutation) for mutation in batch.mutations]

    def discard(self) -> None:
        """Forget what ndb wrote there since it was collected."""
        self._context.commit_batches.pop(self._id, None)

    def commit(self, mutations: Sequence[Any]) -> None:
        """Commit mutations, all or none.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: the service's answer.
        """
        mode = CommitRequest.Mode.TRANSACTIONAL
        request = CommitRequest.pb()(
            **self._location, mode=mode, transaction=self._id, mutations=mutations
        )
        call_stub(self._client.stub.commit, request)

    def roll_back(self) -> None:
        """Roll back; no caller waits for the answer, so none is an error."""
        request = RollbackRequest.pb()(**self._location, transaction=self._id)
        try:
            call_stub(self._client.stub.rollback, request)
        except Exception as error:
            log.info("a transaction was not rolled back: %s", error)


class InterceptedClient:
    """A client that makes some calls another way: ndb's, in a transaction of a kind of its own."""

    def __init__(self, client: ndb.Client, calls: Mapping[str, Callable[[Any], Any]]) -> None:
        """Stand for a client.

        Args:
            calls: By the name of a method of its stub: returns what is called instead of it.
        """
        self._client = client
        self.stub = _InterceptedStub(client.stub, calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class _InterceptedStub:
    def __init__(self, stub: Any, calls: Mapping[str, Callable[[Any], Any]]) -> None:
        self._stub = stub
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)
        return self._calls[name](method) if name in self._calls else method
