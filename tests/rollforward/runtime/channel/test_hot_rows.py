"""Transactions that collide on a row take turns on it, and nothing depends on that."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.cloud.datastore_v1.types import (
    BeginTransactionRequest,
    BeginTransactionResponse,
    CommitRequest,
    CompositeFilter,
    Entity,
    Filter,
    Key,
    KindExpression,
    LookupRequest,
    Mutation,
    PartitionId,
    PropertyFilter,
    PropertyReference,
    Query,
    ReadOptions,
    RollbackRequest,
    RunQueryRequest,
    TransactionOptions,
    Value,
)

from rollforward.runtime.cache import NoCache
from rollforward.runtime.channel import hot_rows
from rollforward.runtime.channel.failed_call import FailedCall
from rollforward.runtime.channel.hot_rows import COLLISIONS, HOT_S, HotRows
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import SystemClock
from rollforward.runtime.process.processes import LockedFiles

ABORTED = FailedCall(grpc.StatusCode.ABORTED, "Transaction lock timeout.")
COMMITTED = SimpleNamespace(exception=lambda: None)


def row(name: str) -> Key:
    return Key(path=[Key.PathElement(kind="Hot", name=name)])


@dataclass
class Store:
    """A scripted store; `at_s` is the time that the process has."""

    at_s: float = 0.0
    by_kind: bool = False
    rows: HotRows = field(init=False)

    def __post_init__(self) -> None:
        self.rows = HotRows(lambda: self.at_s, by_kind=self.by_kind)

    def _call(self, method: str, request: Any, answer: Any = COMMITTED) -> Any:
        details = SimpleNamespace(method=f"/google.datastore.v1.Datastore/{method}")
        return self.rows.intercept_unary_unary(lambda *_: answer, details, request)

    def begin(self, transaction: bytes, options: TransactionOptions) -> None:
        answer = BeginTransactionResponse(transaction=transaction)
        began = SimpleNamespace(exception=lambda: None, result=lambda: answer)
        request = BeginTransactionRequest(transaction_options=options)
        self._call("BeginTransaction", request, began)

    def read(self, transaction: bytes, *names: str, answer: Any = COMMITTED) -> None:
        options = ReadOptions(transaction=transaction)
        keys = [row(name) for name in names]
        self._call("Lookup", LookupRequest(keys=keys, read_options=options), answer)

    def query(
        self, transaction: bytes, query: Query, answer: Any = COMMITTED, namespace: str = ""
    ) -> None:
        request = RunQueryRequest(
            query=query,
            read_options=ReadOptions(transaction=transaction),
            partition_id=PartitionId(namespace_id=namespace),
        )
        self._call("RunQuery", request, answer)

    def commit(self, transaction: bytes, *names: str, answer: Any = COMMITTED) -> None:
        mutations = [Mutation(upsert=Entity(key=row(name))) for name in names]
        self._call("Commit", CommitRequest(transaction=transaction, mutations=mutations), answer)

    def delete(self, transaction: bytes, name: str, answer: Any = COMMITTED) -> None:
        mutations = [Mutation(delete=row(name))]
        self._call("Commit", CommitRequest(transaction=transaction, mutations=mutations), answer)

    def roll_back(self, transaction: bytes) -> None:
        self._call("Rollback", RollbackRequest(transaction=transaction))

    def collide(self, name: str, times: int = COLLISIONS) -> None:
        """Let transactions that read and write a row lose."""
        for _ in range(times):
            self.read(b"lost", name)
            self.commit(b"lost", name, answer=ABORTED)

    def is_waiting(self, transaction: bytes, name: str | Query) -> Callable[[], bool]:
        """Read a row or ask a query in a thread; return whether it still waits, after a moment."""
        read: Any = self.query if isinstance(name, Query) else self.read
        thread = threading.Thread(target=read, args=(transaction, name), daemon=True)
        thread.start()
        thread.join(0.05)

        def is_waiting() -> bool:
            thread.join(0.05)
            return thread.is_alive()

        return is_waiting


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.mark.fast
@pytest.mark.parametrize("end", [Store.commit, Store.roll_back])
def test_a_transaction_waits_for_the_one_before_it(store: Store, end: Any) -> None:
    """From the second collision on; until the other one is committed or rolled back."""
    store.collide("a")
    store.read(b"first", "a")
    is_waiting = store.is_waiting(b"second", "a")
    assert is_waiting()

    end(store, b"first")

    assert not is_waiting()


@pytest.mark.fast
def test_rows_without_collisions_wait_for_nobody(store: Store) -> None:
    """Neither one with a single collision, nor one that no transaction both read and wrote."""
    store.collide("a", times=COLLISIONS - 1)
    store.collide("hot")
    for _ in range(COLLISIONS):
        store.read(b"lost", "read")
        store.commit(b"lost", "written", answer=ABORTED)
    store.read(b"first", "a", "read", "written", "hot")

    assert not store.is_waiting(b"second", "a")()
    assert not store.is_waiting(b"third", "read")()
    assert not store.is_waiting(b"fourth", "written")()


@pytest.mark.fast
@pytest.mark.parametrize("lose", ["read", "delete"])
def test_a_lost_read_or_deletion_is_a_collision(store: Store, lose: str) -> None:
    """Some stores refuse a read already."""
    for _ in range(COLLISIONS):
        if lose == "delete":
            store.read(b"lost", "a")
            store.delete(b"lost", "a", answer=ABORTED)
        else:
            store.read(b"lost", "a", answer=ABORTED)
            store.roll_back(b"lost")
    store.read(b"first", "a")

    assert store.is_waiting(b"second", "a")()


@pytest.mark.fast
def test_collisions_are_forgotten_unless_others_wait(store: Store) -> None:
    """A row that is quiet costs nothing again, and one that is not keeps its turns."""
    store.collide("a")
    store.at_s += HOT_S - 1
    store.read(b"first", "a")
    is_waiting = store.is_waiting(b"second", "a")
    store.commit(b"first", "a")
    assert not is_waiting()
    store.at_s += HOT_S - 1  # Since the second one has waited.
    assert store.is_waiting(b"third", "a")()

    store.at_s += 2 * HOT_S
    assert not store.is_waiting(b"fourth", "a")()
    store.collide("b", times=COLLISIONS - 1)
    store.at_s += HOT_S
    store.collide("b", times=COLLISIONS - 1)
    store.read(b"fifth", "b")
    assert not store.is_waiting(b"sixth", "b")()


@pytest.mark.fast
def test_the_log_names_the_row(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Once: whoever reads it may want to write that row less often."""
    with caplog.at_level("INFO"):
        store.collide("a", times=COLLISIONS + 1)

    assert caplog.messages == ["transactions collide on Hot a, and take turns from now on"]


@pytest.mark.fast
def test_a_transaction_of_many_rows_has_one_line(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A catalog of views has 64 copies, and a page of a job has two rows for each item."""
    with caplog.at_level("INFO"):
        for _ in range(COLLISIONS):
            store.read(b"lost", "a", "b", "c")
            store.commit(b"lost", "a", "b", "c", answer=ABORTED)

    assert caplog.messages == [
        "transactions collide on Hot a, or on 2 others, and take turns from now on"
    ]


@pytest.mark.fast
@pytest.mark.parametrize("waited_s", [0.0, 0.1])
def test_a_wait_for_another_process_keeps_a_row_contended(
    store: Store, monkeypatch: pytest.MonkeyPatch, waited_s: float
) -> None:
    """With one transaction at a time in each process nobody waits within one."""

    @contextlib.contextmanager
    def lock(clients: Any, name: str, *, max_wait_s: float) -> Iterator[None]:
        store.at_s += waited_s
        yield

    monkeypatch.setattr(hot_rows, "advisory_lock", lock)
    store.rows.start(cast(Clients, object()))
    store.collide("a")
    store.at_s += HOT_S - 1
    store.read(b"first", "a")
    store.commit(b"first", "a")
    store.at_s += HOT_S - 1
    store.read(b"second", "a")

    assert store.is_waiting(b"third", "a")() == (waited_s > 0)


@pytest.mark.fast
def test_a_transaction_that_only_reads_takes_no_turn(store: Store) -> None:
    """It locks nothing: it neither waits for others, nor do they wait for it."""
    store.collide("a")
    store.begin(b"reader", TransactionOptions(read_only={}))
    store.begin(b"other reader", TransactionOptions(read_only={}))
    store.begin(b"writer", TransactionOptions(read_write={}))
    store.read(b"reader", "a")
    assert not store.is_waiting(b"writer", "a")()
    assert not store.is_waiting(b"other reader", "a")()
    assert store.is_waiting(b"second writer", "a")()


@pytest.mark.fast
def test_two_rows_are_taken_in_one_order(store: Store) -> None:
    """Whichever is read first: no two transactions wait for each other."""
    store.collide("a")
    store.collide("b")
    store.read(b"first", "b")
    store.read(b"first", "b")  # Its turn is its own.
    second = store.is_waiting(b"second", "a")
    assert not second()
    assert store.is_waiting(b"second", "b")()  # It waits, in the order.

    assert not store.is_waiting(b"first", "a")()  # It does not, against the order.


@pytest.mark.fast
def test_a_transaction_that_never_ends_holds_nobody_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn is waited for once; and it is forgotten when too many are open."""
    monkeypatch.setattr(hot_rows, "MAX_WAIT_S", 0.02)
    store.collide("a")
    store.read(b"first", "a")
    store.read(b"second", "a")
    store.read(b"third", "a")
    assert not store.is_waiting(b"fourth", "a")()
    store.commit(b"first", "a")

    monkeypatch.setattr(hot_rows, "MAX_TRANSACTIONS", 2)
    monkeypatch.setattr(hot_rows, "MAX_WAIT_S", 10)
    store.collide("b")
    store.read(b"fifth", "b")
    is_waiting = store.is_waiting(b"sixth", "b")
    assert is_waiting()
    store.read(b"seventh", "c")
    store.read(b"eighth", "c")
    assert not is_waiting()


@pytest.mark.fast
def test_a_lost_transaction_keeps_its_turn_on_an_instance_for_a_minute(
    store: Store, tmp_path: Path
) -> None:
    """Each transaction of a row waited for it in vain, as long as its process lived."""
    processes = LockedFiles(str(tmp_path))
    clients: Any = SimpleNamespace(cache=NoCache(), clock=SystemClock(), processes=processes)
    store.rows.start(clients)
    store.collide("a")
    store.read(b"first", "a")  # And an error has ended the event loop of its tasklet.
    store.at_s += HOT_S
    store.collide("a")
    assert store.is_waiting(b"second", "a")()

    store.at_s += 60
    store.read(b"third", "b")
    store.collide("a")

    assert not store.is_waiting(b"fourth", "a")()


@pytest.mark.fast
def test_a_transaction_of_more_than_a_minute_gives_its_later_turns_back(store: Store) -> None:
    """It was forgotten as it read, and nobody knew of the turn that it took then."""
    store.read(b"long", "b")
    store.at_s += 55
    store.collide("a")
    store.at_s += 6
    store.read(b"long", "a")
    store.commit(b"long", "a")

    assert not store.is_waiting(b"next", "a")()


@pytest.mark.fast
def test_transactions_of_one_thread_do_not_wait_for_each_other(store: Store) -> None:
    """As tasklets of ndb do: while one waits, the other cannot end."""
    store.collide("a")
    began_s = time.monotonic()
    store.read(b"first", "a")
    store.read(b"second", "a")

    assert time.monotonic() - began_s < 1
    assert store.is_waiting(b"third", "a")()


@pytest.mark.fast
def test_a_transaction_waits_no_longer_for_several_rows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited eight seconds for each of them, and its request for all."""
    monkeypatch.setattr(hot_rows, "MAX_WAIT_S", 1.0)
    store.rows = HotRows()
    names = [f"row {number}" for number in range(6)]
    for name in names:
        store.collide(name)
        assert not store.is_waiting(name.encode(), name)()
    began_s = time.monotonic()
    store.read(b"of all", *names)

    assert 0.9 < time.monotonic() - began_s < 4


@pytest.mark.fast
def test_the_oldest_collisions_are_forgotten_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app has more rows than a process can remember."""
    monkeypatch.setattr(hot_rows, "MAX_ROWS", 1)
    store.collide("a")
    store.collide("b")
    store.read(b"first", "a", "b")

    assert not store.is_waiting(b"second", "a")()
    assert store.is_waiting(b"third", "b")()


def below(name: str) -> Query:
    """A query of all rows below one, and some others' filter."""
    composite = CompositeFilter(
        op=CompositeFilter.Operator.AND,
        filters=[
            _where("cents", PropertyFilter.Operator.GREATER_THAN, Value(integer_value=1)),
            _where("__key__", PropertyFilter.Operator.HAS_ANCESTOR, Value(key_value=row(name))),
        ],
    )
    return Query(kind=[KindExpression(name="Entry")], filter=Filter(composite_filter=composite))


def owned_by(name: str) -> Query:
    filter_ = _where("owner", PropertyFilter.Operator.EQUAL, Value(string_value=name))
    return Query(kind=[KindExpression(name="Hot")], filter=filter_)


def _where(name: str, op: Any, value: Value) -> Filter:
    property_ = PropertyReference(name=name)
    return Filter(property_filter=PropertyFilter(property=property_, op=op, value=value))


@pytest.mark.fast
@pytest.mark.parametrize("ask", [below, owned_by])
def test_transactions_take_turns_on_what_a_query_reads(
    store: Store, ask: Callable[[str], Query]
) -> None:
    """Below an ancestor, or of a kind and a filter; others ask for something else."""
    for _ in range(COLLISIONS):
        store.query(b"lost", ask("a"))
        store.commit(b"lost", "a", answer=ABORTED)
    store.query(b"first", ask("a"))

    assert store.is_waiting(b"second", ask("a"))()
    assert not store.is_waiting(b"third", ask("b"))()


@pytest.mark.fast
def test_tenants_that_ask_the_same_take_no_turns_with_each_other(store: Store) -> None:
    """Each has a namespace, and rows of its own."""
    for _ in range(COLLISIONS):
        store.query(b"lost", owned_by("a"))
        store.commit(b"lost", "a", answer=ABORTED)
    store.query(b"first", owned_by("a"))
    thread = threading.Thread(
        target=store.query, args=(b"second", owned_by("a"), COMMITTED, "acme"), daemon=True
    )
    thread.start()
    thread.join(2)

    assert not thread.is_alive()


@pytest.mark.fast
def test_queries_of_a_kind_take_turns_on_an_emulator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that locks refuses them whatever they ask for, and whose; the log names the kind."""
    store = Store(by_kind=True)
    with caplog.at_level("INFO"):
        for _ in range(COLLISIONS):
            store.query(b"lost", owned_by("a"))
            store.commit(b"lost", "a", answer=ABORTED)
    store.query(b"first", owned_by("a"), namespace="acme")

    assert store.is_waiting(b"second", owned_by("b"))()
    assert caplog.messages == ["transactions collide on queries of Hot, and take turns from now on"]
