"""Transactions by versions: reads lock nothing, and the commit is a compare-and-set.

The body reads and writes by ndb, as that of `transact`. The commit succeeds if each row that was
read and is written has the version that was read, or is still missing. So no row is locked between
two round trips. On a service whose reads lock, many writers of one row hold each other up for
ever: each has read it, and waits for all others. Here the first one wins, and the others try
again. A process that dies leaves no lock.

    round trips   the reads, and a share of a commit (`conditional_writes.py`); no begin

A row that the body only reads may change before the commit. A body for which that matters belongs
into `transact`. A query does not join the transaction.

Lost on failure: nothing. After a lost reply the body runs again, and finds its own proof.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.commit import Commit, key_of
from rollforward.datastore.transactions import (
    Transaction,
    pause_before_retry,
    run_attempts,
    run_body,
)
from rollforward.datastore.versions import CHANGED
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.conditional_writes import apply_together
from rollforward.runtime.sharing.open_transaction import InterceptedClient, OpenTransaction

T = TypeVar("T")

# Whoever loses a race has seen another one win: many may do so in turn.
MAX_ATTEMPTS = 8
MAX_PAUSES = 3  # After the third failure pauses are no longer.
# The id in a context: reads go without it.
_NEVER = b"never begins"
_RACE_LOST = (*CHANGED, rpc_errors.AlreadyExists)


def transact_by_version(
    clients: Clients, body: Callable[[], T], *, attempts: int = MAX_ATTEMPTS
) -> T:
    """Run a body, and commit what it writes if the rows have not changed since it read them.

    Args:
        body: As of `transact`: guarded against a run after one that was committed.
        attempts: The most runs of the body.

    Raises:
        google.api_core.exceptions.Aborted: every attempt lost its race; nothing was written.
        google.api_core.exceptions.GoogleAPICallError: as of `transact`.
    """
    return run_attempts(
        partial(_attempt, clients, body),
        attempts=attempts,
        pause=lambda failures: pause_before_retry(min(failures, MAX_PAUSES)),
    )


def _attempt(clients: Clients, body: Callable[[], T], transaction: Transaction) -> T:
    optimistic = _OptimisticTransaction(clients.datastore)
    with optimistic.collected() as mutations:
        result = run_body(body, transaction)
    if mutations:
        try:
            apply_together(clients, optimistic.conditional(mutations))
        except _RACE_LOST as error:
            message = f"a row was written by another: {error}"
            raise rpc_errors.Aborted(message) from error  # type: ignore[no-untyped-call]
    return result


class _OptimisticTransaction(OpenTransaction):
    """A transaction that never begins: it knows the version of each row that it has read.

    Attributes:
        versions: By key; None: the row was missing.
    """

    def __init__(self, client: ndb.Client) -> None:
        self._client = client
        self._id = _NEVER
        self.versions: dict[Any, int | None] = {}
        noted = {"lookup": partial(_Lookup, self)}
        self._context = self._context_of(InterceptedClient(client, noted))

    def note(self, response: Any) -> None:
        """Note the versions of rows in the answer to a lookup."""
        answer = getattr(response, "_pb", response)
        versions = [(result.entity.key, result.version) for result in answer.found]
        for key, version in [
            *versions,
            *((missing.entity.key, None) for missing in answer.missing),
        ]:
            identity = _identity(key)
            if self.versions.setdefault(identity, version) != version:
                message = f"a row was written by another between two reads: {identity}"
                raise rpc_errors.Aborted(message)  # type: ignore[no-untyped-call]

    def conditional(self, mutations: list[Any]) -> Commit:
        """Return a commit of mutations, each by the version of its row if that was read."""
        commit = Commit(self._client)
        for mutation in mutations:
            identity = _identity(key_of(mutation))
            version = self.versions.get(identity)
            is_deletion = mutation.WhichOneof("operation") == "delete"
            if version is not None and is_deletion:
                commit.delete(mutation.delete, version)
            elif version is not None:
                commit.update(mutation.upsert, version)
            elif identity in self.versions and not is_deletion:
                commit.insert(mutation.upsert)
            else:
                commit.extend([mutation])
        return commit


def _identity(key: Any) -> tuple[Any, ...]:
    """Return what tells a key from others of the same database."""
    path = tuple((part.kind, part.name or part.id) for part in key.path)
    return key.partition_id.namespace_id, path


class _Lookup:
    """A lookup that belongs to no transaction, and is noted in one."""

    def __init__(self, optimistic: _OptimisticTransaction, method: Any) -> None:
        self._optimistic = optimistic
        self._method = method

    def future(self, request: Any, **options: Any) -> Any:
        getattr(request, "_pb", request).ClearField("read_options")
        return _RecordingLookup(self._method.future(request, **options), self._optimistic)


class _RecordingLookup:
    """The answer to a lookup, whose versions are noted when it is read."""

    def __init__(self, call: Any, optimistic: _OptimisticTransaction) -> None:
        self._call = call
        self._optimistic = optimistic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def result(self, *args: Any) -> Any:
        response = self._call.result(*args)
        self._optimistic.note(response)
        return response
