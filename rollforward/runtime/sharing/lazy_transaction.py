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

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.commit import Commit, key_of
from rollforward.datastore.conversion.protobufs import protobuf_of, protobuf_of_key
from rollforward.datastore.lookup import lookup
from rollforward.datastore.transactions import Transaction, run_attempts, run_body
from rollforward.datastore.versions import CHANGED
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.conditional_writes import apply_together
from rollforward.runtime.sharing.open_transaction import InterceptedClient, OpenTransaction

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

    def attempt(transaction: Transaction) -> tuple[T, int]:
        whole = partial(run_body, body, transaction)
        # Once another has won, its writers wait.
        return commit_around(clients, read, whole, locked=key if transaction.is_contended else None)

    return run_attempts(attempt)


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
        reads = dict.fromkeys(_READS, partial(_Read, self))
        self._context = self._context_of(InterceptedClient(client, reads))
        self.begun_id = b""

    def ensure_started(self) -> bytes:
        """Return its id; begin, if it has not."""
        if not self.begun_id:
            self.begun_id = self._begin()
        return self.begun_id

    def lock(self, key: Any) -> None:
        """Look a row up in this transaction: where reads lock, its writers wait."""
        lookup(self._client, [protobuf_of_key(key)], transaction=self.ensure_started())

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


class _Read:
    """A call that reads, and so begins the transaction that it belongs to."""

    def __init__(self, lazy: LazyTransaction, method: Any) -> None:
        self._lazy = lazy
        self._method = method

    def __call__(self, request: Any, **options: Any) -> Any:
        return self._method(self._with_transaction(request), **options)

    def future(self, request: Any, **options: Any) -> Any:
        return self._method.future(self._with_transaction(request), **options)

    def _with_transaction(self, request: Any) -> Any:
        """Return a request with the id of the transaction that it is to read in."""
        options = getattr(request, "_pb", request).read_options
        if options.transaction == _LATER:
            options.transaction = self._lazy.ensure_started()
        return request
