"""Distant tasks that are near: created in Cloud Tasks two days before they are due."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from google.cloud import ndb

from rollforward.datastore.batched import batched
from rollforward.datastore.expiry import expiry
from rollforward.datastore.transactions import transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.messages import Message
from rollforward.tasks import dead_tasks
from rollforward.tasks.cloud_tasks import UNANSWERED
from rollforward.tasks.declaration import queue_of
from rollforward.tasks.errors import PERMANENT_ERRORS, NotAttemptedError, UnknownQueueError
from rollforward.tasks.stored.entities import DistantTask, waiting_until
from rollforward.tasks.stored.names import hashed_name
from rollforward.tracing import trace_headers

log = logging.getLogger(__name__)

# Long enough for an outage of the sweep, short enough for a name that Cloud Tasks remembers.
NEAR = datetime.timedelta(days=2)
# Cloud Tasks knows the name of a task that has ended for nine days at most.
NAME_KNOWN = datetime.timedelta(days=9)
MAX_CALLS = 10  # Of a sweep.
MAX_PER_CALL = 100
# A row is a task of up to 100 kB; one that keeps its name is written again.
MAX_PUT = 20
# A refusal may come from a running deployment: the queue is created after the code.
REFUSED_FOR = datetime.timedelta(minutes=10)
_NO_ANSWER = (*UNANSWERED, NotAttemptedError)


def create_near(clients: Clients) -> int:
    """Create the tasks that are due within two days; return their number, at most 1,000."""
    now_utc = clients.clock.now()
    near, total = naive_utc(now_utc + NEAR), 0
    for _ in range(MAX_CALLS):
        rows = waiting_until(near).fetch(MAX_PER_CALL)
        created, refused = _create(clients, rows, now_utc)
        total += created
        if len(rows) < MAX_PER_CALL or not created + refused:
            break  # None is left, or Cloud Tasks does not answer.
    return total


def late_s(clients: Clients) -> float:
    """Return for how many seconds the first of the near tasks is too late for its queue.

    By the time at which it is due: while Cloud Tasks does not answer, the first one changes.
    """
    near = naive_utc(clients.clock.now() + NEAR)
    first = waiting_until(near).get()
    return (near - first.due).total_seconds() if first is not None else 0.0


def _create(
    clients: Clients, rows: Sequence[DistantTask], now_utc: datetime.datetime
) -> tuple[int, int]:
    """Create the tasks of rows; return how many were created, and how many were refused.

    A row that the service answers by any error is refused. One without an answer lines up behind
    all that are near: its queue may be silent, and another one's row must get its turn.
    """
    answers = clients.tasks.create_all([_message(row) for row in rows])
    results = list(zip(rows, answers, strict=True))
    created = [row for row, answer in results if not isinstance(answer, Exception)]
    for row in created:
        row.waits_until = None
        row.expires = expiry(row.key.id(), naive_utc(_due(row) + NAME_KNOWN))
    for named in batched([row for row in created if row.name is not None], MAX_PUT):
        ndb.put_multi(named)
    ndb.delete_multi([row.key for row in created if row.name is None])
    unanswered = [row for row, answer in results if isinstance(answer, _NO_ANSWER)]
    for part in batched([row.key for row in unanswered], MAX_PUT):
        transact(partial(_line_up, part, naive_utc(now_utc + NEAR)))
    refused = len(rows) - len(created) - len(unanswered)
    for row, answer in results:
        if isinstance(answer, Exception) and not isinstance(answer, _NO_ANSWER):
            _reject(clients, row, answer, now_utc)
    return len(created), refused


def _line_up(keys: Sequence[Any], waits_until: datetime.datetime) -> None:
    """Let rows wait behind others, in a transaction: a sweep beside this one may end some."""
    rows = [row for row in ndb.get_multi(keys) if row is not None and row.waits_until is not None]
    for row in rows:
        row.waits_until = waits_until
    ndb.put_multi(rows)


def _reject(
    clients: Clients, row: DistantTask, error: Exception, now_utc: datetime.datetime
) -> None:
    """Try a row again in ten minutes, so that it starves no other; give it up when it is due.

    It is given up only if time mends nothing; a right that the app lacks may be granted later.
    If its queue is gone, the next sweep takes the one that the app declares now.
    """
    is_gone = isinstance(error, UnknownQueueError)
    declared = queue_of(clients.task_paths, row.path) if is_gone else None
    if declared not in (None, row.queue):
        row.queue = declared
        row.put()
        return
    log.error("Cloud Tasks refuses the task %s of %s: %s", row.key.id(), row.path, error)
    if not isinstance(error, PERMANENT_ERRORS) or now_utc < _due(row) + REFUSED_FOR:
        row.waits_until = naive_utc(now_utc + NEAR + REFUSED_FOR)
        row.put()
        return
    dead_tasks.dead_letter(
        clients,
        path=row.path,
        queue=row.queue,
        task_name=_name(row),
        body=row.body.encode(),
        reason=f"Cloud Tasks refuses it. {type(error).__name__}: {error}",
        error=type(error).__name__,
    )
    row.key.delete()


def _message(row: DistantTask) -> Message:
    return Message(
        *(row.path, row.queue, row.body.encode(), _name(row), _due(row), row.max_attempts),
        headers=trace_headers(row.traceparent or ""),
        deadline_s=row.deadline_s,
    )


def _name(row: DistantTask) -> str:
    return str(row.name or hashed_name("distant", row.key.id()))


def _due(row: DistantTask) -> datetime.datetime:
    due: datetime.datetime = row.due
    return due.replace(tzinfo=datetime.UTC)
