"""Commit of a sink worker: one transaction with the sink's own writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.api_core import exceptions as rpc_errors

from rollforward.app_code import APP_ERRORS, run_app
from rollforward.datastore import bodies
from rollforward.datastore.transactions import transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.texts import describe_error
from rollforward.streams.model.sink import Sink
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    SinkFailedError,
    TooLargeError,
)
from rollforward.streams.storage.serde import check_sizes, dump, load
from rollforward.tasks.errors import Retry, Unavailable

# Answers to a sink's own calls, for example to a query that lacks its index.
REFUSALS = (rpc_errors.FailedPrecondition, rpc_errors.NotFound, rpc_errors.AlreadyExists)


def deliver(clients: Clients, sink: Sink, values: Sequence[Any], commit: Commit) -> list[int]:
    """Apply a commit together with a sink's writes; return the versions of its rows.

    Raises:
        ChangedError: the interval was written by another worker, or by an earlier attempt whose
            reply was lost.
        SinkFailedError, TooLargeError: nothing was written.
    """
    key, _, version = commit.puts[0]

    def body() -> None:
        row = bodies.read_in_transaction(clients.datastore, bodies.Name(*key))
        if row is None or row.version != version:
            raise ChangedError(f"{key.name} was written since")
        _write(clients, commit)
        try:
            run_app(sink.write, clients, values)
        except REFUSALS as error:  # A lost race is Aborted instead.
            raise SinkFailedError(describe_error(error)) from error
        except (rpc_errors.GoogleAPIError, Retry, Unavailable):
            raise
        except APP_ERRORS as error:
            raise SinkFailedError(describe_error(error)) from error

    try:
        transact(body)
    except rpc_errors.InvalidArgument as error:
        raise TooLargeError(str(error)) from error
    return _versions(clients, commit)


def _write(clients: Clients, commit: Commit) -> None:
    """Write the rows of a commit in the current transaction."""
    texts = [(key, dump(key.kind, body)) for key, body in commit.rows]
    check_sizes(texts, len(commit.deletes))
    bodies.write_in_transaction(
        clients.datastore,
        [(bodies.Name(*key), text) for key, text in texts],
        [bodies.Name(*key) for key, _ in commit.deletes],
    )


def _versions(clients: Clients, commit: Commit) -> list[int]:
    """Return the versions that a commit has given to its rows.

    Raises:
        ChangedError: another worker has written the interval since.
    """
    rows = commit.rows
    stored, _ = bodies.read(clients.datastore, [bodies.Name(*key) for key, _ in rows])
    key, interval = rows[0]
    if stored[0] is None or load(key.kind, stored[0].body) != interval:
        raise ChangedError(f"{key.name} was written since")
    return [0 if row is None else row.version for row in stored]
