"""The calls of Datastore: lookups, queries, commits, and transactions whose first commit wins."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.cloud.datastore_v1.types import (
    AllocateIdsResponse,
    BeginTransactionResponse,
    CommitResponse,
    LookupResponse,
    Mutation,
    RollbackResponse,
    RunQueryResponse,
)

from benchmarks.memory import queries
from benchmarks.memory.counts import operations
from benchmarks.memory.rows import Rows
from benchmarks.memory.values import Path, path_of

_FAIL = Mutation.ConflictResolutionStrategy.FAIL


class RefusedError(Exception):
    """A call that the service refuses, with a gRPC status code and a message."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class _Transaction:
    """A transaction: its snapshot, the keys it has read, and its queries with their results."""

    at: int | None = None
    reads: set[Path] = field(default_factory=set)
    queries: list[tuple[str, Any, list[Path]]] = field(default_factory=list)


class MemoryDatastore:
    """Datastore's methods on protobufs, which run one at a time."""

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows = rows or Rows()
        self.counts = Counter[str]()
        self._transactions: dict[bytes, _Transaction] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def methods(self) -> Mapping[str, Callable[[Any], Any]]:
        """Return the calls by their names; each raises `RefusedError`."""
        calls = {
            "AllocateIds": self._allocate_ids,
            "BeginTransaction": self._begin,
            "Commit": self._commit,
            "Lookup": self._lookup,
            "Rollback": self._rollback,
            "RunQuery": self._run_query,
        }
        return {name: self._locked(name, method) for name, method in calls.items()}

    def _locked(self, name: str, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(request: Any) -> Any:
            with self._lock:
                try:
                    answer = method(request)
                except NotImplementedError as error:
                    raise RefusedError(grpc.StatusCode.UNIMPLEMENTED, str(error)) from error
                self.counts.update(operations(name, request, answer))
                return answer

        return call

    def _allocate_ids(self, request: Any) -> Any:
        response = AllocateIdsResponse.pb()()
        for key in request.keys:
            added = response.keys.add()
            added.CopyFrom(key)
            self._complete(added)
        return response

    def _complete(self, key: Any) -> Any:
        if not key.path[-1].name and not key.path[-1].id:
            key.path[-1].id = next(self._ids)
        return key

    # Transactions

    def _begin(self, request: Any) -> Any:
        transaction = b"%d" % next(self._ids)
        self._transactions[transaction] = _Transaction()
        return BeginTransactionResponse.pb()(transaction=transaction)

    def _rollback(self, request: Any) -> Any:
        self._transactions.pop(request.transaction, None)
        return RollbackResponse.pb()()

    def _read_at(self, options: Any) -> tuple[int, _Transaction | None]:
        """Return the version that a call reads, and its transaction."""
        match options.WhichOneof("consistency_type"):
            case "transaction":
                transaction = self._open(options.transaction)
                if transaction.at is None:
                    transaction.at = self.rows.now()
                return transaction.at, transaction
            case "read_time":
                return options.read_time.ToMicroseconds(), None
            case "new_transaction":
                raise NotImplementedError("a read that begins a transaction")
            case _:
                return self.rows.now(), None

    def _open(self, transaction: bytes) -> _Transaction:
        if transaction not in self._transactions:
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "The transaction has ended.")
        return self._transactions[transaction]

    # Reads

    def _lookup(self, request: Any) -> Any:
        at, transaction = self._read_at(request.read_options)
        response = LookupResponse.pb()()
        response.read_time.FromMicroseconds(at)
        for key in request.keys:
            path = path_of(key)
            stored = self.rows.get(path, at)
            if transaction is not None:
                transaction.reads.add(path)
            if stored is None:
                response.missing.add().entity.key.CopyFrom(key)
            else:
                response.found.add(version=stored.version).entity.CopyFrom(stored.entity)
        return response

    def _run_query(self, request: Any) -> Any:
        if request.WhichOneof("query_type") != "query":
            raise NotImplementedError("GQL")
        at, transaction = self._read_at(request.read_options)
        response = RunQueryResponse.pb()()
        namespace = request.partition_id.namespace_id
        paths = queries.answer(self.rows, namespace, request.query, at, response.batch)
        response.batch.read_time.FromMicroseconds(at)
        if transaction is not None:
            transaction.reads.update(paths)
            transaction.queries.append((namespace, request.query, paths))
        return response

    # Commits

    def _commit(self, request: Any) -> Any:
        if request.transaction:
            transaction = self._open(request.transaction)
            del self._transactions[request.transaction]
            self._check_reads(transaction)
        response = CommitResponse.pb()()
        changes: dict[Path, Any] = {}
        version = self.rows.next_version()
        for mutation in request.mutations:
            result = response.mutation_results.add(version=version)
            self._apply(mutation, changes, result)
        self.rows.write(version, changes)
        response.commit_time.FromMicroseconds(version)
        return response

    def _check_reads(self, transaction: _Transaction) -> None:
        """Check that a transaction's reads would have the same results now.

        Raises:
            RefusedError: ABORTED, as a result would differ.
        """
        has_changed = transaction.at is not None and any(
            path in transaction.reads for path in self.rows.changed_since(transaction.at)
        )
        if has_changed or not all(
            queries.answer(self.rows, namespace, query, None, RunQueryResponse.pb()().batch)
            == paths
            for namespace, query, paths in transaction.queries
        ):
            raise RefusedError(grpc.StatusCode.ABORTED, "a read entity has changed since")

    def _version(self, path: Path) -> int:
        stored = self.rows.get(path)
        return 0 if stored is None else stored.version

    def _apply(self, mutation: Any, changes: dict[Path, Any], result: Any) -> None:
        """Add a mutation to the changes of a commit.

        Raises:
            RefusedError: the entity is not in the state that the mutation expects.
        """
        operation = mutation.WhichOneof("operation")
        if operation == "delete":
            path = path_of(mutation.delete)
            self._check_base(mutation, path)
            changes[path] = None
            return
        entity = type(getattr(mutation, operation))()
        entity.CopyFrom(getattr(mutation, operation))
        if not entity.key.path[-1].name and not entity.key.path[-1].id:
            result.key.CopyFrom(self._complete(entity.key))
        path = path_of(entity.key)
        stored = self.rows.get(path)
        current = changes.get(path, stored and stored.entity)
        if operation == "insert" and current is not None:
            raise RefusedError(grpc.StatusCode.ALREADY_EXISTS, "entity already exists")
        if operation == "update" and current is None:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, "no entity to update")
        self._check_base(mutation, path)
        if mutation.HasField("property_mask"):
            entity = _masked(current, entity, mutation.property_mask.paths)
        for transform in mutation.property_transforms:
            _transform(entity, transform, result)
        changes[path] = entity

    def _check_base(self, mutation: Any, path: Path) -> None:
        if mutation.WhichOneof("conflict_detection_strategy") != "base_version":
            return
        if mutation.conflict_resolution_strategy != _FAIL:
            raise NotImplementedError("a conflict that does not fail")
        if self._version(path) != mutation.base_version:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, "the base version has changed")


def _masked(current: Any, entity: Any, names: Any) -> Any:
    """Return the current entity with some properties of a new one."""
    masked = type(entity)()
    masked.CopyFrom(entity if current is None else current)
    for name in names:
        masked.properties.pop(name, None)
        if name in entity.properties:
            masked.properties[name].CopyFrom(entity.properties[name])
    return masked


def _transform(entity: Any, transform: Any, result: Any) -> None:
    if transform.WhichOneof("transform_type") != "increment":
        raise NotImplementedError("a transform other than an increment")
    value = entity.properties[transform.property]
    total = value.integer_value + transform.increment.integer_value
    value.Clear()
    value.integer_value = total
    value.exclude_from_indexes = transform.increment.exclude_from_indexes
    result.transform_results.add().integer_value = total
