"""Relay committed rows: create their tasks, and delete the rows whose task exists."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.datastore.bodies import PlainRow
from rollforward.datastore.conversion.keys import new_entity
from rollforward.datastore.transactions import Transaction
from rollforward.outbox.entities import OutboxTask, RowId, outbox_key
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S, naive_utc
from rollforward.runtime.messages import Message
from rollforward.runtime.sweeps.backoff import PATIENT_AFTER_S, Backoff
from rollforward.runtime.texts import describe_error
from rollforward.tasks.declaration import deadline_of, hashed_name
from rollforward.tasks.errors import PERMANENT_ERRORS, NotAttemptedError
from rollforward.tracing import TRACE_HEADER, trace_headers

log = logging.getLogger(__name__)

_NOWHERE = "/tasks/nowhere"


class InlineRelay:
    """Relays before the call returns: for scripts, and for tests that break each call."""

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        """Create the tasks of some committed rows before the caller continues."""
        relay(clients, rows)

    def resolve(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        """Look which rows are committed, and create their tasks."""
        if stored := committed(rows):
            relay(clients, stored)


def committed(rows: Sequence[OutboxTask]) -> list[OutboxTask]:
    """Return the rows that are in Datastore."""
    return [row for row in ndb.get_multi([row.key for row in rows]) if row is not None]


@dataclass(frozen=True)
class RelayResult:
    """The results of relaying some rows.

    `created` counts new tasks. Cloud Tasks has `refused` rows, each with its reason. The tasks of
    `unanswered` rows may exist or not.
    """

    created: int
    refused: Sequence[tuple[OutboxTask, Exception]]
    unanswered: Sequence[OutboxTask]


def relay(clients: Clients, rows: Sequence[OutboxTask]) -> RelayResult:
    """Create the tasks of rows, and delete the rows whose task exists.

    "Already exists" is as good as created: the name is the row's own.
    """
    at = naive_utc(clients.clock.now())
    answers = clients.tasks.create_all([_message(clients, row, at) for row in rows])
    results = list(zip(rows, answers, strict=True))
    exist = [(row, is_new) for row, is_new in results if not isinstance(is_new, Exception)]
    ndb.delete_multi([row.key for row, _ in exist if not row_id(row.key).is_unacked])
    # An unacked row is relayed again while its task waits: an existing task is not a new one.
    created = sum(is_new is True or not row_id(row.key).is_unacked for row, is_new in exist)
    if created:
        clients.cache.incr(rate_key(clients.clock.now()), created, ttl_s=600)
    failed = [(row, error) for row, error in results if isinstance(error, Exception)]
    if failed:
        log.warning(
            "%d of %d rows stay in the outbox: %s", len(failed), len(rows), _reasons(failed)
        )
    refused = [(row, error) for row, error in failed if isinstance(error, PERMANENT_ERRORS)]
    unanswered = [row for row, error in failed if not isinstance(error, PERMANENT_ERRORS)]
    return RelayResult(created, refused, unanswered)


def _reasons(failed: Sequence[tuple[OutboxTask, Exception]]) -> str:
    """Return the first error of each queue, without the queues that were not asked."""
    reasons: dict[str, str] = {}
    for row, error in failed:
        if not isinstance(error, NotAttemptedError):
            reasons.setdefault(row.queue or "", describe_error(error))
    return "; ".join(f"queue {queue!r}: {reason}" for queue, reason in reasons.items())


def create_later(clients: Clients, messages: Sequence[Message]) -> None:
    """Create tasks that Cloud Tasks did not accept: after the response, once it answers.

    No row keeps them, so a sweep must find their work without them.
    """
    transaction, created = Transaction(), naive_utc(clients.clock.now())
    # As unacked rows, since no row is to be deleted.
    rows = [
        row_of(RowId(transaction.id, created, number, is_unacked=True).text, message)
        for number, message in enumerate(messages)
    ]
    clients.relay.send(clients, rows)


def row_of(row: str, message: Message, tag: str | None = None) -> OutboxTask:
    """Return the row that keeps a message until its task exists."""
    at = naive_utc(message.at) if message.at else None
    return new_entity(OutboxTask, outbox_key(row), **_values_of(message, tag), at=at)


def plain_row_of(row: str, message: Message, tag: str | None) -> PlainRow:
    """Return the same row of a message that is due now, for a writer that does not relay it."""
    values = {**_values_of(message, tag), "at": None}
    return PlainRow(OutboxTask, row, values, is_of_client=True)


def _values_of(message: Message, tag: str | None) -> dict[str, str | int | None]:
    return {
        "path": message.path,
        "queue": message.queue,
        "body": message.body.decode(),
        "name": message.name,
        "tag": tag,
        "deadline_s": message.deadline_s,
        "traceparent": message.headers.get(TRACE_HEADER),
    }


def row_id(key: Any) -> RowId:
    """Return the parts of a row's key."""
    return RowId.read(key.id())


def age_s(row: RowId, at: datetime.datetime) -> float:
    """Return a row's age. A row from a clock far ahead counts as old."""
    seconds = (at - row.created).total_seconds()
    return seconds if seconds > -CLOCK_SKEW_S else PATIENT_AFTER_S


def rate_key(at: datetime.datetime) -> str:
    """Return the key in the cache under which the relayed rows of a minute are counted."""
    return f"outbox:relayed:{at:%Y%m%dT%H%M}"


def _message(clients: Clients, row: OutboxTask, at: datetime.datetime) -> Message:
    due = row.at.replace(tzinfo=datetime.UTC) if row.at else None
    # A row that was made by hand may lack any property. Then Cloud Tasks refuses it, or its task
    # becomes a dead one when it is delivered.
    path, queue, body = row.path or _NOWHERE, row.queue or "", row.body or ""
    deadline_s = row.deadline_s or deadline_of(clients, path)
    headers = trace_headers(row.traceparent or "")
    name = _task_name(row, at)
    return Message(path, queue, body.encode(), name, due, headers=headers, deadline_s=deadline_s)


def _task_name(row: OutboxTask, at: datetime.datetime) -> str:
    """Return the task's name: its own, or one that is made of the row's key.

    An unacked row may outlive its task (the queue was purged). So once it is old, and due, its task
    is created under further names.
    """
    if row.name is not None:
        return str(row.name)
    id_ = row_id(row.key)
    is_due = row.at is None or row.at <= at
    number = Backoff.task_number(age_s(id_, at)) if id_.is_unacked and is_due else 0
    return hashed_name("outbox", row.key.id(), number)
