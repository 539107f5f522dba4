"""A transaction that begins with the first read of its body, around a row read before.

The row is written by a compare-and-set of its version, so it is as if the transaction had read it.
A body that only writes needs no transaction at all: its writes and the row are one conditional
commit, which callers of this process share (`conditional_writes.py`).

    the body      round trips
    only writes   one, and a share of one among many callers
    reads         begin, its reads, commit

Once another writer has won, the next attempt begins at once and looks the row up in its
transaction. If reads lock, as by default in the service, writers of the row wait for it from then
on. So a slow body gets on however many of them there are.

Lost on failure: nothing. A transaction whose process dies expires.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.commit import Commit, key_of
from rollforward.datastore.conversion.protobufs import protobuf_of, protobuf_of_key
from rollforward.datastore.lookup import look_up
from rollforward.datastore.transactions import (
    OUTCOME_UNKNOWN,
    Transaction,
    first_cause,
    inside,
    is_last_attempt,
    pause_before_retry,
    run_body,
)
from rollforward.datastore.versions import CHANGED
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.conditional_writes import apply_together
from rollforward.runtime.sharing.open_transaction import OpenTransaction
from rollforward.tracing import start_span

T = TypeVar("T")

# The id in a context until the transaction has begun.
_LATER = b"begins with its first read"
_READS = ("lookup", "run_query", "run_aggregation_query")


def transact_around(
    clients: Clients,
    key: Any,
    read: Callable[[], tuple[ndb.Model, int]],
    body: Callable[[], T],
) -> tuple[T, int]:
    """Run a body in a transaction around a row, tried again as by `transact`.

    Args:
        key: The row's.
        read: Returns the row and its version, in each attempt.

    Returns:
        The body's result, and the new version of the row.

    Raises: as `transact` does.
    """
    transaction, began_s, handled = Transaction(), time.monotonic(), sys.exc_info()[1]
    is_contended = False  # Whether another has written the row meanwhile.
    with start_span("transaction") as span:
        for failures in itertools.count(1):
            span.set_attribute("rollforward.attempts", failures)
            try:
                with inside(transaction):
                    whole = partial(run_body, body, transaction)
                    committed = commit_around(
                        clients, read, whole, locked=key if is_contended else None
                    )
            except BaseException as error:
                cause = first_cause(error, handled) if isinstance(error, Exception) else None
                is_last = cause is None or is_last_attempt(failures, began_s)
                if isinstance(cause, OUTCOME_UNKNOWN):
                    transaction.doubt = cause
                if is_last:
                    transaction.on_give_up()
                if cause is None:
                    raise
                if is_last:
                    raise (transaction.doubt or cause) from None
                is_contended = is_contended or isinstance(cause, rpc_errors.Aborted)
                transaction.on_retry(cause)
                pause_before_retry(failures)
            else:
                transaction.on_commit()
                return committed
    raise AssertionError("unreachable")


def commit_around(
    clients: Clients,
    read: Callable[[], tuple[ndb.Model, int]],
    body: Callable[[], T],
    *,
    locked: Any = None,
) -> tuple[T, int]:
    """Run a body, and write a row with all that it writes; return its result and the new version.

    Args:
        read: Returns the row, which has to keep its version until the body has ended.
        body: It reads and writes by ndb, and changes the row last.
        locked: The row's key, if its writers are to wait.

    Raises:
        google.api_core.exceptions.Aborted: the row, or one that was read, has changed.
        google.api_core.exceptions.GoogleAPICallError: as of `Commit.apply`; and the body's errors.
    """
    lazy = LazyTransaction(clients.datastore)
    try:
        if locked is not None:
            lazy.lock(locked)
        row, version = read()
        with lazy.collected() as mutations:
            result = body()
        key = protobuf_of_key(row.key)
        commit = Commit(clients.datastore, transaction=lazy.begun_id)
        commit.update(protobuf_of(row), version)
        commit.extend(mutation for mutation in mutations if key_of(mutation) != key)
        new_version = _applied(clients, commit, is_alone=bool(lazy.begun_id))
    except BaseException:
        if lazy.begun_id:
            lazy.roll_back()
        raise
    else:
        lazy.call_back()
    finally:
        lazy.complete()
    return result, new_version


def _applied(clients: Clients, commit: Commit, *, is_alone: bool) -> int:
    """Apply a commit, alone or with others; return the version of its first row."""
    try:
        if is_alone:
            return int(commit.apply()[0].version)
        return apply_together(clients, commit)[0]
    except CHANGED as error:
        raise rpc_errors.Aborted(f"the row was written by another: {error}") from error  # type: ignore[no-untyped-call]


class LazyTransaction(OpenTransaction):
    """A transaction that has not begun.

    Attributes:
        begun_id: Its id; empty: nothing was read.
    """

    def __init__(self, client: ndb.Client) -> None:
        self._client = client
        self._id = _LATER
        self._context = self._context_of(_Client(client, self))
        self.begun_id = b""

    def begun(self) -> bytes:
        """Return its id; begin, if it has not."""
        if not self.begun_id:
            self.begun_id = self._begin()
        return self.begun_id

    def lock(self, key: Any) -> None:
        """Look a row up in this transaction: where reads lock, its writers wait."""
        look_up(self._client, [protobuf_of_key(key)], transaction=self.begun())

    def call_back(self) -> None:
        """Call the functions that the body has left for the commit."""
        for callback in self._context.on_commit_callbacks:
            callback()

    def complete(self) -> None:
        """Call the functions that the body has left for the end, with or without a commit."""
        for callback in self._context.transaction_complete_callbacks:
            callback()

    def roll_back(self) -> None:
        self._id = self.begun_id
        super().roll_back()


class _Client:
    """A client whose reads begin the transaction that they belong to."""

    def __init__(self, client: ndb.Client, lazy: LazyTransaction) -> None:
        self._client = client
        self.stub = _Stub(client.stub, lazy)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class _Stub:
    def __init__(self, stub: Any, lazy: LazyTransaction) -> None:
        self._stub = stub
        self._lazy = lazy

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)
        return _Read(method, self._lazy) if name in _READS else method


class _Read:
    """A call that reads."""

    def __init__(self, method: Any, lazy: LazyTransaction) -> None:
        self._method = method
        self._lazy = lazy

    def __call__(self, request: Any, **options: Any) -> Any:
        return self._method(self._belonging(request), **options)

    def future(self, request: Any, **options: Any) -> Any:
        return self._method.future(self._belonging(request), **options)

    def _belonging(self, request: Any) -> Any:
        """Return a request with the id of the transaction that it is to read in."""
        options = getattr(request, "_pb", request).read_options
        if options.transaction == _LATER:
            options.transaction = self._lazy.begun()
        return request
