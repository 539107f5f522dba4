"""Attempts: how often a task has failed by its own fault, so that it is not tried for ever.

Cloud Tasks counts every delivery, including deliveries that an outage ended, lost a race or never
reached the app. The answer for a dead worker depends on the front end. So the app counts for
itself. A task's own fault is an unforeseen error, and a delivery that began and never ended: its
worker died, or was too slow.

The first deliveries are noted only when they fail. From the fourth on, a delivery is noted before
it works. A slow delivery that ends after all takes its mark back. A task that was retried forgets
its attempts when it is done, in one call.

Queues retry within seconds, because an outage may end at any time. A task that keeps failing by
its own fault is retried here at ever longer intervals, up to a minute: with the default of 50
attempts it outlasts a bad deployment of half an hour.

Lost on failure: a count, or that a delivery has ended. A task is then tried once more or once less.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward import telemetry
from rollforward.datastore.transactions import transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S, naive_utc
from rollforward.runtime.texts import storable
from rollforward.tasks.attempt_entities import TaskAttempts, attempts_key, expired_attempts
from rollforward.tasks.declaration import hashed_name

log = logging.getLogger(__name__)

# Deliveries before this one note nothing before they work; the first has the number 0.
NOTED_FROM = 3
# Two versions of the code serve at once for so long at most.
DEPLOY_S = 3600.0
# Deliveries to a version without the task that are further apart are of two deployments.
SAME_DEPLOY_S = 2 * DEPLOY_S
# Longer than the pause between any two deliveries of a task.
EXPIRES_S = 2 * 24 * 3600.0
MAX_DELETED = 500
MAX_ERROR_CHARS = 500
MAX_PATH_CHARS = 500
# Answers to a delivery. No documented rule of Cloud Tasks slows a queue for them: an App Engine
# target is slowed by 503 alone, an HTTP target by 429 and every 5xx.
LOST_RACE = 409
FAILED = 422
# A task's own failures are as far apart as its queue wants it, up to this one.
BACKOFF_FROM = 8
MIN_BACKOFF_S = 10.0
MAX_BACKOFF_S = 60.0


class RetryLaterError(Exception):
    """The task has failed often, and is not to be tried again yet."""


@dataclass(frozen=True)
class TaskDelivery:
    """One delivery of a task, as the queue describes it."""

    path: str
    queue: str
    task_name: str
    body: bytes
    number: int  # Of deliveries before this one.
    last_answer: str  # "": none, or this is the first.
    waits: int = 0  # Planned waits before, each of which created the task again.
    due_s: float = 0.0  # By the clock of the queue, in seconds since 1970; 0: unknown.
    born: str = ""  # Tells it from tasks that had its name before; "": it has no name of ours.

    @property
    def attempts_id(self) -> str:
        """Return the id of the row of this task."""
        name = self.task_name or hashlib.sha256(self.path.encode() + self.body).hexdigest()
        return hashed_name(self.queue, name)

    @property
    def is_noted(self) -> bool:
        """Return whether this delivery is noted before it works.

        A delivery that lost its race has ended by an answer of the app, and may be repeated often.
        """
        return self.number >= NOTED_FROM and self.last_answer != str(LOST_RACE)


def delivery_context(delivery: TaskDelivery) -> AbstractContextManager[None]:
    """Let what runs inside know its task, and so each of its log entries."""
    queue, name = (text.rpartition("/")[2] for text in (delivery.queue, delivery.task_name))
    task = telemetry.TaskContext(name, queue, delivery.path, delivery.number)
    return telemetry.in_task(task)


def current_task() -> str:
    """Return the id of the task that this code runs in; "" if it runs in none."""
    task = telemetry.current_task()
    return task.name if task is not None else ""


def begin(clients: Clients, delivery: TaskDelivery) -> int:
    """Note that a delivery begins; return the failures of its task before.

    A store that is out of reach keeps no task from being tried.

    Raises:
        RetryLaterError: it has failed often, and the last time was a moment ago.
    """

    def note() -> int:
        row = _row(clients, delivery)
        failures = _failures(row, delivery)
        if delivery.number not in row.begun:
            _check_due(clients, row, failures)
            row.begun = [*row.begun, delivery.number]
            _back_off(clients, row, failures + 1)  # In case it ends without a word.
            row.put()
        return failures

    return _without_errors(lambda: transact(note)) if delivery.is_noted else 0


def finish_delivery(delivery: TaskDelivery) -> None:
    """Forget the attempts of a task that is done.

    A first delivery has none to forget. A later one may have: a failure may lie before its last
    answer.
    """
    if delivery.number or delivery.waits:
        discard(delivery)


def end_later(clients: Clients, delivery: TaskDelivery) -> None:
    """Note that a delivery has ended for now, by no fault of its task."""

    def note() -> int:
        row = _row(clients, delivery)
        row.retry_at = None
        row.unknown_since = None
        return _end(row, delivery)

    if delivery.is_noted:
        _without_errors(lambda: transact(note))


def end_waiting(clients: Clients, delivery: TaskDelivery, after_s: float) -> None:
    """Note that a task waits until a planned time; what it has failed by before stays counted.

    Its deliveries are numbered from 0 again then, so marks of dead workers become failures.

    Args:
        after_s: Seconds until then; what is known of the task is kept for as long, and longer.
    """

    def note() -> int:
        row = _row(clients, delivery)
        row.failures = _failures(row, delivery)
        row.begun, row.retry_at, row.unknown_since = [], None, None
        row.expires += datetime.timedelta(seconds=after_s)
        return _end(row, delivery)

    if delivery.is_noted or after_s > EXPIRES_S / 2:
        _without_errors(lambda: transact(note))


def fail(clients: Clients, delivery: TaskDelivery, error: str = "") -> int:
    """Count a failure of a task; return how many there are now.

    Args:
        error: What the task raised, for operators.
    """
    call_id = clients.new_id()

    def count() -> int:
        row = _row(clients, delivery)
        if row.counted_by == call_id:
            return _failures(row, delivery)  # Counted before; the commit's reply was lost.
        row.failures += 1
        row.unknown_since = None  # This version has worked on it.
        row.error = storable(error, MAX_ERROR_CHARS)
        row.counted_by = call_id
        _back_off(clients, row, _failures(row, delivery))
        return _end(row, delivery)

    return _without_errors(lambda: transact(count))


def is_old(clients: Clients, delivery: TaskDelivery) -> bool:
    """Return whether a task that this version of the code does not know has waited for another.

    An earlier deployment counts for nothing. This delivery has ended, by no fault of its task.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: it is unknown.
    """

    def look() -> bool:
        row, now_utc = _row(clients, delivery), naive_utc(clients.clock.now())
        row.begun = [number for number in row.begun if number != delivery.number]
        noted_at = row.unknown_at or now_utc
        is_same = abs((now_utc - noted_at).total_seconds()) <= SAME_DEPLOY_S
        row.unknown_since = (is_same and row.unknown_since) or now_utc
        row.unknown_at = now_utc
        row.put()
        waited_s: float = (now_utc - row.unknown_since).total_seconds()
        return waited_s >= DEPLOY_S

    return transact(look)


def discard(delivery: TaskDelivery) -> None:
    """Delete the attempts of one task."""
    key = attempts_key(delivery.attempts_id)
    _without_errors(lambda: len(ndb.delete_multi([key])))


def delete_expired(clients: Clients) -> int:
    """Delete the rows of tasks that were not delivered again, at most 500; return how many."""
    now_utc = naive_utc(clients.clock.now())
    keys = expired_attempts(now_utc).fetch(MAX_DELETED, keys_only=True)
    ndb.delete_multi(keys)
    return len(keys)


def backoff_s(failures: int) -> float:
    """Return the pause before the next attempt, by the number of failures.

    >>> [backoff_s(failures) for failures in (1, 7, 8, 9, 10, 11, 5_000)]
    [0.0, 0.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    """
    if failures < BACKOFF_FROM:
        return 0.0
    return float(min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2 ** min(failures - BACKOFF_FROM, 10)))


def _back_off(clients: Clients, row: TaskAttempts, failures: int) -> None:
    pause_s = backoff_s(failures)
    pause = datetime.timedelta(seconds=pause_s)
    row.retry_at = naive_utc(clients.clock.now()) + pause if pause_s else None


def _check_due(clients: Clients, row: TaskAttempts, failures: int) -> None:
    """Check that a task may be tried; what a clock has written that is ahead does not count."""
    now_utc = naive_utc(clients.clock.now())
    latest = now_utc + datetime.timedelta(seconds=MAX_BACKOFF_S)
    if row.retry_at is not None and now_utc < row.retry_at <= latest:
        raise RetryLaterError(
            f"it has failed {failures} times; the next attempt is at {row.retry_at:%X} UTC"
        )


def _end(row: TaskAttempts, delivery: TaskDelivery) -> int:
    row.begun = [number for number in row.begun if number != delivery.number]
    if row.failures or row.begun:
        row.put()
    else:
        row.key.delete()
    return _failures(row, delivery)


def _row(clients: Clients, delivery: TaskDelivery) -> TaskAttempts:
    """Return the attempts of a task; they expire in two days."""
    now_utc = naive_utc(clients.clock.now())
    key = attempts_key(delivery.attempts_id)
    row: TaskAttempts | None = key.get()
    # What has expired is of another task of the same name; what is of tomorrow, of a wrong clock.
    tomorrow = now_utc + datetime.timedelta(seconds=CLOCK_SKEW_S)
    if row is None or row.expires <= now_utc or row.first > tomorrow:
        row = TaskAttempts(key=key, first=now_utc)
    row.path, row.queue = delivery.path[:MAX_PATH_CHARS], delivery.queue
    row.expires = now_utc + datetime.timedelta(seconds=EXPIRES_S)
    return row


def _failures(row: TaskAttempts, delivery: TaskDelivery) -> int:
    """Count failures, and deliveries before this one that never ended."""
    unheard = [number for number in row.begun if number < delivery.number]
    return int(row.failures) + len(unheard)


def _without_errors(note: Callable[[], int]) -> int:
    try:
        return note()
    except rpc_errors.GoogleAPIError as error:
        log.warning("an attempt is not noted: %s", error)
        return 0
