"""Rows of one JSON body each, found by their names, read and written without ndb's conversion.

ndb takes about 0.3 ms of processor time for an entity. Whoever moves many small rows, each of one
text, does it here: by the client's own stub, in the namespace and the form that ndb has, so that
ndb reads what is written here (`body = ndb.JsonProperty()`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.cloud import ndb
from google.cloud.datastore_v1.types import (
    CommitResponse,
    LookupRequest,
    Mutation,
    RunQueryRequest,
)
from google.cloud.ndb.context import get_context

from rollforward.datastore.calls import call_stub, look_up, run_queries, run_query
from rollforward.datastore.commits import commit_request
from rollforward.datastore.transactions import NoTransactionError

_FAIL = Mutation.ConflictResolutionStrategy.FAIL


class Name(NamedTuple):
    """The kind and the name of a row."""

    kind: str
    name: str


class Range(NamedTuple):
    """The first rows of a kind from `low` on and before `high`, now or at a moment."""

    kind: str
    low: str
    high: str
    limit: int
    at: Any = None


class Row(NamedTuple):
    """A row as it was read: its name, its body, and its version."""

    name: str
    body: bytes
    version: int


def read(client: ndb.Client, names: Sequence[Name], at: Any = None) -> tuple[list[Row | None], Any]:
    """Read rows by name.

    Args:
        at: A moment that an earlier read returned: the rows are as they were then.

    Returns:
        The rows, None for one that there is not, and the moment; None where the service has no
        snapshots (the Datastore emulator).

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    keys = [_key(client, name) for name in dict.fromkeys(names)]
    answer = look_up(client, keys, at=at)
    found: dict[Name, Row] = {}
    for result in answer.results:
        name, body = _entity(result.entity)
        found[name] = Row(name.name, body, result.version)
    return [found.get(name) for name in names], answer.moment


def read_in_transaction(client: ndb.Client, name: Name) -> Row | None:
    """Read a row as a part of the transaction that this code runs in.

    Raises:
        rollforward.datastore.transactions.NoTransactionError: it runs in none.
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    transaction = get_context().transaction
    if transaction is None:
        raise NoTransactionError("read_in_transaction is for code in a transaction")
    for result in look_up(client, [_key(client, name)], transaction=transaction).results:
        return Row(name.name, _entity(result.entity)[1], result.version)
    return None


def scan(client: ndb.Client, kind: str, low: str, high: str, limit: int) -> list[Row]:
    """Read rows in order of their names, from `low` on and before `high`.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    rows = []
    request = _query(client, Range(kind, low, high, limit), keys_only=False)
    for result in run_query(client, request):
        name, body = _entity(result.entity)
        rows.append(Row(name.name, body, result.version))
    return rows


def first_names(
    client: ndb.Client, kind: str, low: str, high: str, limit: int, at: Any = None
) -> list[str]:
    """Return the first names, in order, from `low` on and before `high`.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    return first_names_of(client, [Range(kind, low, high, limit, at)])[0]


def first_names_of(client: ndb.Client, ranges: Sequence[Range]) -> list[list[str]]:
    """Return the first names of each of some ranges, in order; they are asked for side by side.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said of one of them.
    """
    answers = run_queries(client, [_query(client, each, keys_only=True) for each in ranges])
    return [[str(result.entity.key.path[-1].name) for result in found] for found in answers]


def count(client: ndb.Client, kind: str, low: str, high: str, limit: int) -> int:
    """Return how many rows there are from `low` on and before `high`, up to a limit.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    return len(first_names(client, kind, low, high, limit))


def commit(
    client: ndb.Client,
    *,
    puts: Sequence[tuple[Name, bytes, int]] = (),
    inserts: Sequence[tuple[Name, bytes]] = (),
    deletes: Sequence[tuple[Name, int | None]] = (),
) -> list[int]:
    """Write rows, all of it or nothing; return the versions of puts, then of inserts.

    Args:
        puts: Rows that exist, each with the version that it has in Datastore.
        inserts: Rows that do not exist.
        deletes: Rows, each with its version; None: whatever it is.

    Raises:
        google.api_core.exceptions.FailedPrecondition, NotFound, AlreadyExists: a row is not as was
            expected; nothing was written.
        google.api_core.exceptions.Aborted: a race was lost; nothing was written.
        google.api_core.exceptions.GoogleAPICallError: what the service said. It may have been
            written all the same.
    """
    request = commit_request(client)
    for name, body, version in puts:
        mutation = request.mutations.add(base_version=version, conflict_resolution_strategy=_FAIL)
        _fill(client, mutation.update, name, body)
    for name, body in inserts:
        _fill(client, request.mutations.add().insert, name, body)
    for name, at in deletes:
        mutation = request.mutations.add()
        mutation.delete.CopyFrom(_key(client, name))
        if at is not None:
            mutation.base_version, mutation.conflict_resolution_strategy = at, _FAIL
    response = CommitResponse.pb(call_stub(client.stub.commit, request))
    written = len(puts) + len(inserts)
    return [result.version for result in response.mutation_results[:written]]


def _query(client: ndb.Client, of: Range, *, keys_only: bool) -> Any:
    """Return a query as protobuf."""
    request = RunQueryRequest.pb()(project_id=client.project, database_id=_database(client))
    request.partition_id.CopyFrom(_key(client, Name(of.kind, of.low)).partition_id)
    query = request.query
    query.kind.add(name=of.kind)
    query.order.add().property.name = "__key__"
    query.limit.value = of.limit
    if keys_only:
        query.projection.add().property.name = "__key__"
    query.filter.composite_filter.op = 1  # AND
    for operator, name in ((4, of.low), (1, of.high)):  # At least; less than.
        part = query.filter.composite_filter.filters.add().property_filter
        part.property.name, part.op = "__key__", operator
        part.value.key_value.CopyFrom(_key(client, Name(of.kind, name)))
    if of.at is not None:
        request.read_options.read_time.CopyFrom(of.at)
    return request


def _key(client: ndb.Client, name: Name) -> Any:
    key = LookupRequest.pb()().keys.add()
    key.partition_id.project_id = client.project
    key.partition_id.database_id = _database(client)
    key.partition_id.namespace_id = client.namespace or ""
    key.path.add(kind=name.kind, name=name.name)
    return key


def _fill(client: ndb.Client, entity: Any, name: Name, body: bytes) -> None:
    entity.key.CopyFrom(_key(client, name))
    value = entity.properties["body"]
    value.blob_value = body
    value.exclude_from_indexes = True


def _entity(entity: Any) -> tuple[Name, bytes]:
    last = entity.key.path[-1]
    return Name(last.kind, last.name), entity.properties["body"].blob_value


def _database(client: ndb.Client) -> str:
    return client.database or ""
