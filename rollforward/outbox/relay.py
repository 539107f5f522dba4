"""Relay committed rows: create their tasks, and delete the rows whose task exists."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.datastore.transactions import Transaction
from rollforward.outbox.entities import OutboxTask, RowId, outbox_key
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S, naive_utc
from rollforward.runtime.messages import Message
from rollforward.runtime.sweeps.backoff import PATIENT_AFTER_S, Backoff
from rollforward.tasks.declaration import hashed_name
from rollforward.tasks.errors import PERMANENT_ERRORS

log = logging.getLogger(__name__)

_NOWHERE = "/tasks/nowhere"


class InlineRelay:
    """Relays before the caller goes on: for scripts, and for tests that break each call."""

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        relay(clients, rows)

    def look(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        if found := committed(rows):
            relay(clients, found)


def committed(rows: Sequence[OutboxTask]) -> list[OutboxTask]:
    """Return those of some rows that are in Datastore."""
    return [row for row in ndb.get_multi([row.key for row in rows]) if row is not None]


@dataclass(frozen=True)
class RelayResult:
    """What became of some rows.

    `created` tasks were made. Cloud Tasks has `refused` these rows, each for its reason. Of the
    `unanswered` ones it is not known whether their task exists.
    """

    created: int
    refused: Sequence[tuple[OutboxTask, Exception]]
    unanswered: Sequence[OutboxTask]


def relay(clients: Clients, rows: Sequence[OutboxTask]) -> RelayResult:
    """Create the tasks of rows, and delete the rows whose task exists.

    "Already exists" is as good as created: the name is the row's own.
    """
    now = naive_utc(clients.clock.now())
    results = clients.tasks.create_each([_message(row, now) for row in rows])
    ended = list(zip(rows, results, strict=True))
    exist = [(row, is_new) for row, is_new in ended if not isinstance(is_new, Exception)]
    ndb.delete_multi([row.key for row, _ in exist if not row_id(row.key).is_unacked])
    # An unacked row is asked for again while its task waits: that one exists makes none.
    created = sum(is_new is True or not row_id(row.key).is_unacked for row, is_new in exist)
    if created:
        clients.cache.incr(rate_key(clients.clock.now()), created, ttl_s=600)
    failed = [(row, error) for row, error in ended if isinstance(error, Exception)]
    if failed:
        log.warning("%d of %d rows stay in the outbox: %s", len(failed), len(rows), failed[0][1])
    refused = [(row, error) for row, error in failed if isinstance(error, PERMANENT_ERRORS)]
    unanswered = [row for row, error in failed if not isinstance(error, PERMANENT_ERRORS)]
    return RelayResult(created, refused, unanswered)


def create_later(clients: Clients, messages: Sequence[Message]) -> None:
    """Create tasks that Cloud Tasks did not take just now: after the response, once it answers.

    They are in no row: what they are for must be found without them, too.
    """
    transaction, now = Transaction(), naive_utc(clients.clock.now())
    rows = [
        row_of(RowId(transaction.id, now, number, is_unacked=False).text, message)
        for number, message in enumerate(messages)
    ]
    clients.relay.send(clients, rows)


def row_of(row: str, message: Message, tag: str | None = None) -> OutboxTask:
    """Return the row that keeps a message until its task exists."""
    return OutboxTask(
        key=outbox_key(row),
        path=message.path,
        queue=message.queue,
        body=message.body.decode(),
        name=message.name,
        at=naive_utc(message.at) if message.at else None,
        tag=tag,
    )


def row_id(key: Any) -> RowId:
    """Return what a row's key says."""
    return RowId.read(key.id())


def age_s(row: RowId, now: datetime.datetime) -> float:
    """Return a row's age. One from a clock far ahead counts as old."""
    seconds = (now - row.created).total_seconds()
    return seconds if seconds > -CLOCK_SKEW_S else PATIENT_AFTER_S


def rate_key(at: datetime.datetime) -> str:
    """Return the key in the cache under which the relayed rows of a minute are counted."""
    return f"outbox:relayed:{at:%Y%m%dT%H%M}"


def _message(row: OutboxTask, now: datetime.datetime) -> Message:
    at = row.at.replace(tzinfo=datetime.UTC) if row.at else None
    # A row that was made by hand may lack anything: Cloud Tasks refuses it, or it becomes a dead
    # task when it is delivered.
    path, queue, body = row.path or _NOWHERE, row.queue or "", row.body or ""
    return Message(path, queue, body.encode(), _task_name(row, now), at)


def _task_name(row: OutboxTask, now: datetime.datetime) -> str:
    """Return the task's name: its own, or one that is made of the row's key.

    An unacked row may outlive its task (the queue was purged). So once it is old, and due,
    its task is asked for under further names.
    """
    if row.name is not None:
        return str(row.name)
    id_ = row_id(row.key)
    is_due = row.at is None or row.at <= now
    number = Backoff.task_number(age_s(id_, now)) if id_.is_unacked and is_due else 0
    return hashed_name("outbox", row.key.id(), number)
