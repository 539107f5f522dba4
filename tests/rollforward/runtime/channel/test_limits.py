"""The documented limits of Datastore: calls at a limit succeed, calls above it are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.datastore_v1.types import (
    BeginTransactionRequest,
    CommitRequest,
    Entity,
    LookupRequest,
    RollbackRequest,
    RunQueryRequest,
)

from rollforward.datastore.transactions import transact
from rollforward.runtime.channel import limits
from rollforward.runtime.channel.limits import DatastoreLimits, Limit, TooLargeError
from tests.infra.world import World
from tests.rollforward.datastore.counters import Tally

pytestmark = pytest.mark.fast

LIMITS_PAGE = Path(__file__).parents[4] / "docs/reference/limits.md"


class Wire:
    """The limits, with a service behind them that takes everything."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.limits = DatastoreLimits(lambda: self.now_s)
        self.calls = 0

    def call(self, rpc: str, request: Any) -> Any:
        """Send a request."""

        def service(details: Any, request: Any) -> Future[Any]:
            self.calls += 1
            done: Future[Any] = Future()
            done.set_result(SimpleNamespace(transaction=b"t%d" % self.calls))
            return done

        details = SimpleNamespace(method=f"/google.datastore.v1.Datastore/{rpc}")
        return self.limits.intercept_unary_unary(service, details, request).result()

    def begin(self) -> bytes:
        transaction: bytes = self.call("BeginTransaction", BeginTransactionRequest()).transaction
        return transaction


def entity(name: str = "n", kind: str = "Book") -> Any:
    entity = Entity.pb()()
    entity.key.path.add(kind=kind, name=name)
    return entity


def with_text(text: str, *, indexed: bool) -> Any:
    book = entity()
    book.properties["text"].string_value = text
    book.properties["text"].exclude_from_indexes = not indexed
    return book


def with_list(size: int, *, indexed: bool = True) -> Any:
    book = entity()
    values = book.properties["pages"].array_value.values
    for number in range(size):
        values.add(integer_value=number, exclude_from_indexes=not indexed)
    return book


def nested(levels: int) -> Any:
    book = entity()
    inner = book
    for _ in range(levels):
        inner.properties["part"].exclude_from_indexes = True
        inner = inner.properties["part"].entity_value
        inner.properties["page"].integer_value = 1
    return book


def keyed(size: int) -> Any:
    """Return an entity with a key of this size in bytes."""
    book = entity()
    while book.key.ByteSize() < size - 1_400:
        book.key.path.add(kind="Book", name="x" * 1_000)
    book.key.path.add(kind="Book", name="x")
    element = book.key.path[-1]
    while book.key.ByteSize() < size:
        element.name += "x" * min(300, size - book.key.ByteSize())
    return book


def sized(size: int) -> Any:
    """Return an entity of this size in bytes, in two properties."""
    book = entity()
    for name in ("a", "b"):
        book.properties[name].exclude_from_indexes = True
        book.properties[name].blob_value = b"x" * 400_000
    padding = size - book.ByteSize()
    book.properties["b"].blob_value += b"x" * padding
    book.properties["b"].blob_value = book.properties["b"].blob_value[
        : size - book.ByteSize() or None
    ]
    return book


def commit_of(*entities: Any) -> Any:
    request = CommitRequest.pb()(project_id="p")
    for entity in entities:
        request.mutations.add().upsert.CopyFrom(entity)
    return request


def lookup_of(size: int) -> Any:
    request = LookupRequest.pb()(project_id="p")
    for number in range(size):
        request.keys.add().path.add(kind="Book", name=str(number))
    return request


def with_transforms(size: int) -> Any:
    request = commit_of(entity())
    for _ in range(size):
        request.mutations[0].property_transforms.add(property="count").increment.integer_value = 1
    return request


def bulky(size: int) -> Any:
    """Return a commit of this size in bytes, in entities of 200 kB."""
    request = CommitRequest.pb()(project_id="p")
    number = 0
    while request.ByteSize() < size - 250_000:
        request.mutations.add().upsert.CopyFrom(with_text("x" * 200_000, indexed=False))
        number += 1
    request.mutations.add().upsert.CopyFrom(with_text("x", indexed=False))
    text = request.mutations[-1].upsert.properties["text"]
    text.string_value = "x" * (size - request.ByteSize())
    text.string_value = text.string_value[: len(text.string_value) - request.ByteSize() + size]
    return request


AT_LIMIT: dict[str, tuple[Limit, str, Callable[[int], Any]]] = {
    "request": (limits.REQUEST, "Commit", bulky),
    "commit": (limits.COMMIT, "Commit", lambda n: commit_of(*[entity(str(i)) for i in range(n)])),
    "entity": (limits.ENTITY, "Commit", lambda n: commit_of(sized(n))),
    "key": (limits.KEY, "Commit", lambda n: commit_of(keyed(n))),
    "key-name": (limits.KEY_NAME, "Commit", lambda n: commit_of(entity("x" * n))),
    "indexed-property": (
        limits.INDEXED,
        "Commit",
        lambda n: commit_of(with_text("é" * (n // 2) + "x" * (n % 2), indexed=True)),
    ),
    "property": (
        limits.UNINDEXED,
        "Commit",
        lambda n: commit_of(with_text("x" * n, indexed=False)),
    ),
    "index-entries": (limits.INDEX_ENTRIES, "Commit", lambda n: commit_of(with_list(n))),
    "nesting": (limits.NESTING, "Commit", lambda n: commit_of(nested(n))),
    "transforms": (limits.TRANSFORMS, "Commit", with_transforms),
    "lookup": (limits.LOOKUP, "Lookup", lookup_of),
}


@pytest.mark.parametrize("name", AT_LIMIT)
def test_a_call_at_a_limit_goes_through_and_one_above_is_refused(name: str) -> None:
    """As INVALID_ARGUMENT, with the limit's name, the size, and what to do instead."""
    limit, rpc, of_size = AT_LIMIT[name]
    wire = Wire()

    wire.call(rpc, of_size(limit.most))
    with pytest.raises(TooLargeError) as caught:
        wire.call(rpc, of_size(limit.most + 1))

    assert wire.calls == 1
    assert wire.limits.uses[name].size == limit.most
    text = caught.value.details()
    assert f"limit {name}" in text
    assert f"got {limit.most + 1:,}" in text
    assert limit.advice in text
    assert isinstance(rpc_errors.from_grpc_error(caught.value), rpc_errors.InvalidArgument)


def test_values_that_are_not_indexed_have_no_index_entries() -> None:
    """Long lists are stored without an index."""
    Wire().call("Commit", commit_of(with_list(limits.INDEX_ENTRIES.most + 1, indexed=False)))


def test_a_deleted_key_and_a_nested_text_are_checked_too() -> None:
    """A limit holds for keys and texts in every place."""
    request = CommitRequest.pb()()
    request.mutations.add().delete.path.add(kind="Book", name="x" * 1_501)
    with pytest.raises(TooLargeError, match="key-name"):
        Wire().call("Commit", request)

    book = nested(1)
    book.properties["part"].entity_value.properties["text"].string_value = "x" * 1_501
    with pytest.raises(TooLargeError, match=r"Book\.part\.text"):
        Wire().call("Commit", commit_of(book))


def in_transaction(rpc: str, transaction: bytes) -> Any:
    if rpc == "Commit":
        return CommitRequest.pb()(transaction=transaction)
    request = (LookupRequest if rpc == "Lookup" else RunQueryRequest).pb()()
    request.read_options.transaction = transaction
    return request


@pytest.mark.parametrize("rpc", ["Lookup", "RunQuery", "Commit"])
def test_a_transaction_that_rests_for_a_minute_has_expired(rpc: str) -> None:
    """Other transactions, and one in use, continue."""
    wire = Wire()
    rests, is_used = wire.begin(), wire.begin()
    wire.now_s += 40
    wire.call("Lookup", in_transaction("Lookup", is_used))
    wire.now_s += 21

    wire.call(rpc, in_transaction(rpc, is_used))
    with pytest.raises(TooLargeError, match=r"expired.*transaction-idle"):
        wire.call(rpc, in_transaction(rpc, rests))
    wire.call("Rollback", RollbackRequest(transaction=rests))


def test_a_transaction_of_five_minutes_has_expired() -> None:
    """However busy it is."""
    wire = Wire()
    transaction = wire.begin()
    for _ in range(6):
        wire.now_s += 45
        wire.call("Lookup", in_transaction("Lookup", transaction))

    wire.now_s += 1
    with pytest.raises(TooLargeError, match=r"expired.*limit transaction\)"):
        wire.call("Commit", in_transaction("Commit", transaction))


class Book(ndb.Model):
    """Something with a text."""

    text = ndb.TextProperty()


def test_all_worlds_have_limits(world: World) -> None:
    """ndb's calls too, of entities, of lookups and of a transaction that has rested."""
    with world.context():
        with pytest.raises(rpc_errors.InvalidArgument, match="limit entity"):
            Book(text="x" * 2**20).put()
        with pytest.raises(rpc_errors.InvalidArgument, match="limit commit"):
            transact(lambda: [Book(text="x").put() for _ in range(501)])

        def rest() -> None:
            Tally.get_by_id("t")
            world.engine.advance(61)
            Tally(id="t").put()

        # The service has given it up: a lost race, for which the body runs again.
        with pytest.raises(rpc_errors.Aborted, match="limit transaction-idle"):
            transact(rest)
        assert Tally.get_by_id("t") is None


def test_a_use_that_grows_is_told(tmp_path: Path) -> None:
    """At once, and not for each byte."""
    wire = Wire()
    wire.limits.folder = str(tmp_path)

    reports = []
    for size in (10, 100, 104, 106):
        wire.call("Lookup", lookup_of(size))
        [row] = [
            row
            for row in json.loads(next(tmp_path.glob("*.limits")).read_text())
            if row["name"] == "lookup"
        ]
        reports.append(row["size"])

    assert reports == [10, 100, 100, 106]
    assert row["what"] == "a lookup of Book"
    assert wire.limits.uses["lookup"].size == 106


def test_a_table_names_each_limit() -> None:
    """docs/reference/limits.md has the number, a source and a date of each."""
    rows = re.findall(r"^\| `([a-z-]+)` \| ([\d,]+) ", LIMITS_PAGE.read_text(), re.MULTILINE)

    named = {name: int(number.replace(",", "")) for name, number in rows}
    assert {limit.name: limit.most for limit in limits.LIMITS}.items() <= named.items()


def test_a_refusal_is_an_error_as_grpc_raises_it() -> None:
    """Libraries ask an error for its code, and its metadata for a pause."""
    error = TooLargeError("too large")

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.initial_metadata(), error.trailing_metadata()) == ((), ())
