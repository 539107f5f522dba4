"""The one builder of commits in one round trip: no begin, no read.

A transaction that reads nothing needs neither. A commit takes effect as a whole or not at all. An
insert is its own proof that the entity is new. A base version makes an update or a deletion a
compare-and-set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.cloud import ndb
from google.cloud.datastore_v1.types import (
    CommitRequest,
    CommitResponse,
    Mutation,
    TransactionOptions,
)

from rollforward.datastore.stub import call_stub

_READ_WRITE = TransactionOptions.pb(TransactionOptions(read_write=TransactionOptions.ReadWrite()))
# By default a conflict drops its mutation, and the commit succeeds.
_FAIL = Mutation.ConflictResolutionStrategy.FAIL


def key_of(mutation: Any) -> Any:
    """Return the key that a mutation writes."""
    operation = mutation.WhichOneof("operation")
    return mutation.delete if operation == "delete" else getattr(mutation, operation).key


class Commit:
    """Mutations that are applied together; entities and keys are protobufs."""

    def __init__(self, client: ndb.Client, *, transaction: bytes = b"") -> None:
        """Begin with no mutations; by default they are a transaction of their own."""
        self._client = client
        self._request = CommitRequest.pb()(
            project_id=client.project,
            database_id=client.database or "",
            mode=CommitRequest.Mode.TRANSACTIONAL,
        )
        if transaction:
            self._request.transaction = transaction
        else:
            self._request.single_use_transaction.CopyFrom(_READ_WRITE)

    def insert(self, entity: Any) -> None:
        """Write an entity that must not exist."""
        self._request.mutations.add(insert=entity)

    def upsert(self, entity: Any) -> None:
        """Write an entity, whether it exists or not."""
        self._request.mutations.add(upsert=entity)

    def update(self, entity: Any, base_version: int) -> None:
        """Write an entity that must still have this version."""
        self._request.mutations.add(
            update=entity, base_version=base_version, conflict_resolution_strategy=_FAIL
        )

    def delete(self, key: Any, base_version: int | None = None) -> None:
        """Delete an entity; with a base version it must still have it."""
        mutation = self._request.mutations.add(delete=key)
        if base_version is not None:
            mutation.base_version, mutation.conflict_resolution_strategy = base_version, _FAIL

    def increment(self, key: Any, name: str, amount: int) -> None:
        """Add to a number of an entity that must exist.

        The empty mask keeps all other properties. A sum that is not excluded from indexes is
        indexed, even if the number was not.
        """
        mutation = self._request.mutations.add()
        mutation.update.key.CopyFrom(key)
        mutation.property_mask.SetInParent()
        transform = mutation.property_transforms.add(property=name)
        transform.increment.integer_value = amount
        transform.increment.exclude_from_indexes = True

    def take(self, other: Commit) -> None:
        """Add the mutations of another commit."""
        self.extend(other._request.mutations)

    def extend(self, mutations: Iterable[Any]) -> None:
        """Add mutations."""
        self._request.mutations.extend(mutations)

    def keys(self) -> list[bytes]:
        """Return the keys of all mutations, in order."""
        return [key_of(mutation).SerializeToString() for mutation in self._request.mutations]

    def __len__(self) -> int:
        return len(self._request.mutations)

    @property
    def size(self) -> int:
        """The bytes of the request."""
        return int(self._request.ByteSize())

    def apply(self) -> Sequence[Any]:
        """Apply all mutations, or none; return their results in order.

        Raises:
            google.api_core.exceptions.FailedPrecondition: a base version has changed; nothing was
                written.
            google.api_core.exceptions.NotFound: an entity was deleted; nothing was written.
            google.api_core.exceptions.AlreadyExists: an entity to insert exists; nothing was
                written.
            google.api_core.exceptions.Aborted: a race was lost; nothing was written.
            google.api_core.exceptions.GoogleAPICallError: the service's answer. The commit may have
                taken effect.
        """
        response = CommitResponse.pb(call_stub(self._client.stub.commit, self._request))
        return response.mutation_results  # type: ignore[no-any-return]
