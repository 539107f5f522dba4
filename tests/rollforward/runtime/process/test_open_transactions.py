"""Transactions that a process records as open, and those that it rolls back."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.datastore_v1.types import (
    BeginTransactionRequest,
    BeginTransactionResponse,
    CommitRequest,
    RollbackRequest,
)

from rollforward.runtime.process import open_transactions
from rollforward.runtime.process.open_transactions import OpenTransactions
from rollforward.runtime.process.processes import ProcessFile, open_processes

pytestmark = pytest.mark.fast

BEGIN, COMMIT, ROLLBACK = "BeginTransaction", "Commit", "Rollback"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
# By which the store may never have heard of a call.
SAYS_NOTHING = (
    *(grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL),
    *(grpc.StatusCode.RESOURCE_EXHAUSTED, UNAVAILABLE, grpc.StatusCode.UNKNOWN),
)


class Failed(grpc.RpcError):
    """A call that failed."""


@dataclass
class Call:
    """A call that has ended, as gRPC shows it to an interceptor."""

    response: Any = None
    failed: grpc.StatusCode | None = None

    def code(self) -> grpc.StatusCode:
        return self.failed or grpc.StatusCode.OK

    def exception(self) -> Exception | None:
        return Failed() if self.failed else None

    def result(self) -> Any:
        return self.response

    def add_done_callback(self, act: Any) -> None:
        act(self)


@dataclass(frozen=True)
class Details:
    """The method of a call."""

    method: str


@dataclass
class Store:
    """A scripted store: `fails` are the codes of the next rollbacks."""

    transactions: OpenTransactions
    fails: list[grpc.StatusCode] = field(default_factory=list)
    rolled_back: list[bytes] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def begin(self, id_: bytes) -> None:
        request = BeginTransactionRequest.pb(BeginTransactionRequest(project_id="p"))
        response = BeginTransactionResponse.pb(BeginTransactionResponse(transaction=id_))
        self.call(BEGIN, request, Call(response))

    def commit(self, id_: bytes, failed: grpc.StatusCode | None = None) -> None:
        request = CommitRequest.pb(CommitRequest(project_id="p", transaction=id_))
        self.call(COMMIT, request, Call(failed=failed))

    def rollback(self, request: Any, timeout: float | None = None) -> None:
        failed = self.fails.pop(0) if self.fails else None
        if failed is None:
            self.rolled_back.append(request.transaction)
            self.ended.set()
        self.call(ROLLBACK, request, Call(failed=failed))

    def call(self, rpc: str, request: Any, call: Call) -> None:
        method = f"/google.datastore.v1.Datastore/{rpc}"
        self.transactions.intercept_unary_unary(lambda *_: call, Details(method), request)
        if call.failed:
            raise Failed


def store_of(folder: Path) -> Store:
    store = Store(OpenTransactions(open_processes(str(folder)), sleep=lambda seconds: None))
    store.transactions._rollback = store.rollback
    return store


def mine_of(store: Store) -> ProcessFile:
    processes = store.transactions._processes
    assert processes is not None
    return processes.mine


def request_of(id_: bytes) -> Any:
    return RollbackRequest.pb(RollbackRequest(project_id="p", transaction=id_))


def open_ids(folder: Path) -> set[bytes]:
    return {
        request.transaction
        for path in folder.glob("[!.]*")
        for request in ProcessFile.read(path.read_bytes())
    }


def test_a_transaction_is_open_from_its_begin_to_its_commit(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store.begin(b"one")
    store.begin(b"two")
    assert open_ids(tmp_path) == {b"one", b"two"}

    store.commit(b"one")

    assert open_ids(tmp_path) == {b"two"}


@pytest.mark.parametrize("failed", [grpc.StatusCode.ABORTED, UNAVAILABLE])
def test_after_a_failed_commit_it_is_open_until_it_is_rolled_back(
    tmp_path: Path, failed: grpc.StatusCode
) -> None:
    """The store may not have heard of the commit, and holds the locks then."""
    store = store_of(tmp_path)
    store.begin(b"one")
    with pytest.raises(Failed):
        store.commit(b"one", failed)
    assert open_ids(tmp_path) == {b"one"}

    store.rollback(request_of(b"one"))

    assert open_ids(tmp_path) == set()


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code.name != "OK"])
def test_a_rollback_that_is_refused_ends_it(tmp_path: Path, code: grpc.StatusCode) -> None:
    """The store has forgotten the transaction. An answer that does not say so ends nothing."""
    store = store_of(tmp_path)
    store.begin(b"one")
    store.transactions._is_retrying = True  # Nobody tries again.
    store.fails = [code]

    with pytest.raises(Failed):
        store.rollback(request_of(b"one"))

    is_open = code in SAYS_NOTHING
    assert open_ids(tmp_path) == ({b"one"} if is_open else set())
    assert len(store.transactions._abandoned) == is_open


def test_a_rollback_without_an_answer_is_repeated_until_there_is_one(tmp_path: Path) -> None:
    """The store holds the locks of a transaction whose rollback it has not heard of."""
    store = store_of(tmp_path)
    store.begin(b"one")
    store.fails = [UNAVAILABLE] * 3

    with pytest.raises(Failed):
        store.rollback(request_of(b"one"))

    assert store.ended.wait(30)
    assert store.rolled_back == [b"one"]


def test_a_rollback_that_is_never_answered_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the store has expired the transaction, and memory is bounded."""
    monkeypatch.setattr(open_transactions, "MAX_ROLLBACKS", 2)
    store = store_of(tmp_path)
    store.begin(b"one")
    store.fails = [UNAVAILABLE] * 2
    store.transactions._is_retrying = True  # Nobody but this test tries again.

    for _ in range(2):
        with pytest.raises(Failed):
            store.rollback(request_of(b"one"))

    assert open_ids(tmp_path) == set()
    assert not store.transactions._rollbacks


def test_the_next_process_rolls_back_what_a_dead_one_held(tmp_path: Path) -> None:
    """If that process dies, too, the next one does it, since the requests are in its file."""
    dead, living = store_of(tmp_path), store_of(tmp_path)
    dead.begin(b"of the dead")
    living.begin(b"of the living")
    mine_of(dead).close()
    store = store_of(tmp_path)
    store.transactions._is_retrying = True
    store.fails = [UNAVAILABLE]

    recovered = store.transactions.recover()

    assert recovered == 1
    assert [request.transaction for request in store.transactions._abandoned] == [b"of the dead"]
    assert open_ids(tmp_path) == {b"of the dead", b"of the living"}


def test_only_so_many_are_written_down_and_none_that_is_too_long(tmp_path: Path) -> None:
    """The store expires the others; no caller fails."""
    store = store_of(tmp_path)
    store.begin(b"x" * ProcessFile._SLOT_BYTES)
    assert open_ids(tmp_path) == set()
    many = [str(number).encode() for number in range(ProcessFile._SLOTS + 1)]

    for id_ in many:
        store.begin(id_)
    for id_ in many:
        store.commit(id_)
    store.begin(b"another")

    assert open_ids(tmp_path) == {b"another"}


def test_without_its_folder_a_process_goes_on(tmp_path: Path) -> None:
    store = store_of(tmp_path / "gone")
    store.begin(b"one")
    store.commit(b"one")

    assert store.transactions.recover() == 0
