"""Rows of one JSON body each, read and written by name without ndb's conversion.

ndb takes about 0.3 ms of processor time for an entity. Code that moves many small rows uses the
client's own stub, in the namespace and the form of ndb, so ndb can read these rows
(`body = ndb.JsonProperty()`).

A `PlainRow` has several properties, texts and numbers, in the form in which ndb writes the same
entity; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.cloud import ndb
from google.cloud.datastore_v1.types import Entity
from google.cloud.ndb import _datastore_api, _options
from google.cloud.ndb.context import get_context

from rollforward.datastore.commit import Commit
from rollforward.datastore.contexts import key_of_client
from rollforward.datastore.lookup import lookup
from rollforward.datastore.queries import request_of_range, run_queries, run_query
from rollforward.datastore.stub import key_of
from rollforward.datastore.transactions import NoTransactionError

_Entity = Entity.pb()


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
        The rows, None for a missing one, and the moment; None where the service has no snapshots
        (the Datastore emulator).

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    answer = lookup(client, [key_of(client, *name) for name in dict.fromkeys(names)], at=at)
    rows = {_name_of(result): _row_of(result) for result in answer.results}
    return [rows.get(name) for name in names], answer.moment


def read_in_transaction(client: ndb.Client, name: Name) -> Row | None:
    """Read a row in the transaction that this code runs in.

    Raises:
        rollforward.datastore.transactions.NoTransactionError: it is not in a transaction.
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    answer = lookup(client, [key_of(client, *name)], transaction=require_transaction_id())
    return _row_of(answer.results[0]) if answer.results else None


def scan(client: ndb.Client, kind: str, low: str, high: str, limit: int) -> list[Row]:
    """Read rows in order of their names, from `low` on and before `high`.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    request = _query(client, Range(kind, low, high, limit), keys_only=False)
    return [_row_of(result) for result in run_query(client, request)]


def first_names(
    client: ndb.Client, kind: str, low: str, high: str, limit: int, at: Any = None
) -> list[str]:
    """Return the first names, in order, from `low` on and before `high`.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    return first_names_of(client, [Range(kind, low, high, limit, at)])[0]


def first_names_of(client: ndb.Client, ranges: Sequence[Range]) -> list[list[str]]:
    """Return the first names of each range, in order; the queries run in parallel.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer to one of them.
    """
    answers = run_queries(client, [_query(client, range_, keys_only=True) for range_ in ranges])
    return [[_name_of(result).name for result in results] for results in answers]


def count(client: ndb.Client, kind: str, low: str, high: str, limit: int) -> int:
    """Return how many rows there are from `low` on and before `high`, up to a limit.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    return len(first_names(client, kind, low, high, limit))


def commit(
    client: ndb.Client,
    *,
    puts: Sequence[tuple[Name, bytes, int]] = (),
    inserts: Sequence[tuple[Name, bytes]] = (),
    deletes: Sequence[tuple[Name, int | None]] = (),
) -> list[int]:
    """Write rows, all or none; return the versions of puts, then of inserts.

    Args:
        puts: Rows that exist, each with the version that it has in Datastore.
        inserts: Rows that do not exist.
        deletes: Rows, each with its version; None: any version.

    Raises: as `Commit.apply`.
    """
    writes = Commit(client)
    for name, body, version in puts:
        writes.update(_entity(client, name, body), version)
    for name, body in inserts:
        writes.insert(_entity(client, name, body))
    for name, base_version in deletes:
        writes.delete(key_of(client, *name), base_version)
    return [result.version for result in writes.apply()[: len(puts) + len(inserts)]]


def write_in_transaction(
    client: ndb.Client, puts: Sequence[tuple[Name, bytes]], deletes: Sequence[Name]
) -> None:
    """Write and delete rows in the transaction that this code runs in.

    Raises:
        rollforward.datastore.transactions.NoTransactionError: it is not in a transaction.
    """
    # ndb has no public way to add to the commit of its transaction.
    batch = _datastore_api._get_commit_batch(require_transaction_id(), _options.Options())
    for name, body in puts:
        batch.put(Entity.wrap(_entity(client, name, body)))
    for name in deletes:
        batch.delete(ndb.Key(*name)._key)


def require_transaction_id() -> Any:
    """Return the id of the transaction that this code runs in.

    Raises:
        rollforward.datastore.transactions.NoTransactionError: it is not in a transaction.
    """
    transaction = get_context().transaction
    if transaction is None:
        raise NoTransactionError("run this in a transaction, by transact(body)")
    return transaction


def _query(client: ndb.Client, of: Range, *, keys_only: bool) -> Any:
    """Return a query as protobuf."""
    low, high = (key_of(client, of.kind, name) for name in (of.low, of.high))
    request = request_of_range(client, of.kind, "__key__", low, high, of.limit)
    if keys_only:
        request.query.projection.add().property.name = "__key__"
    if of.at is not None:
        request.read_options.read_time.CopyFrom(of.at)
    return request


def _entity(client: ndb.Client, name: Name, body: bytes) -> Any:
    """Return a row as protobuf."""
    entity = _Entity(key=key_of(client, *name))
    value = entity.properties["body"]
    value.blob_value = body
    value.exclude_from_indexes = True
    return entity


def _name_of(result: Any) -> Name:
    element = result.entity.key.path[-1]
    return Name(element.kind, element.name)


def _row_of(result: Any) -> Row:
    body = result.entity.properties["body"].blob_value
    return Row(_name_of(result).name, body, result.version)


# Rows of several properties


@dataclass(frozen=True)
class PlainRow:
    """An entity of a model: its name, and all of its properties; None is stored, too.

    Attributes:
        is_of_client: Whether its namespace is the client's, also where the context has another one.
    """

    model: type[ndb.Model]
    name: str
    properties: Mapping[str, str | int | None]
    is_of_client: bool = False

    @property
    def key(self) -> Any:
        """Its key, as ndb's."""
        make_key = key_of_client if self.is_of_client else ndb.Key
        return make_key(self.model, self.name)

    def entity(self) -> ndb.Model:
        """Return it as ndb's."""
        return self.model(key=self.key, **self.properties)

    def protobuf(self, client: ndb.Client) -> Any:
        """Return it as protobuf."""
        entity = _Entity(key=key_of(client, self.model._get_kind(), self.name))
        if not self.is_of_client:
            entity.key.partition_id.namespace_id = get_context().get_namespace() or ""
        for name, content in self.properties.items():
            value = entity.properties[name]
            _set(value, content)
            value.exclude_from_indexes = not self.model._properties[name]._indexed
        return entity


def _set(value: Any, content: str | int | None) -> None:
    match content:
        case None:
            value.null_value = 0
        case bool():
            value.boolean_value = content
        case int():
            value.integer_value = content
        case _:
            value.string_value = content


def insert_rows(client: ndb.Client, rows: Sequence[PlainRow]) -> None:
    """Insert rows, all or none.

    Raises: as `Commit.apply`.
    """
    commit = Commit(client)
    for row in rows:
        commit.insert(row.protobuf(client))
    commit.apply()
