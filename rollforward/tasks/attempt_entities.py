"""Attempts at tasks that have failed by their own fault.

TaskAttempts
    Key: hash of the queue and the task's name, as of a dead task.
    Queries: expires <= a time, by expires: expired rows; by expires descending: those that failed
    last, for operators. Single-property index.
    Growth: a row for each task that has failed by its own fault, or begins its fourth delivery. It
    goes when the task is done or dead, and otherwise two days after its last change.
"""

from __future__ import annotations

import datetime
from typing import Any

from google.cloud import ndb


class TaskAttempts(ndb.Model):
    """Failures and unfinished deliveries of a task."""

    failures = ndb.IntegerProperty(indexed=False, default=0)
    # The numbers of the deliveries that began and have not ended.
    begun = ndb.IntegerProperty(indexed=False, repeated=True)
    first = ndb.DateTimeProperty(indexed=False, required=True)
    # Since when no version of the code could work on it, and when that was found last.
    unknown_since = ndb.DateTimeProperty(indexed=False)
    unknown_at = ndb.DateTimeProperty(indexed=False)
    retry_at = ndb.DateTimeProperty(indexed=False)  # Not tried before; None: whenever it comes.
    expires = ndb.DateTimeProperty(required=True)
    path = ndb.TextProperty()  # With the queue and the error: for operators.
    queue = ndb.TextProperty()
    error = ndb.TextProperty()
    counted_by = ndb.TextProperty()  # The last call that was counted: the idempotency guard.


def attempts_key(attempts_id: str) -> Any:
    """Return the key of a task's attempts."""
    return ndb.Key(TaskAttempts, attempts_id)


def expired_attempts(now_utc: datetime.datetime) -> Any:
    """Return the query for the rows that are not needed any more."""
    return TaskAttempts.query(TaskAttempts.expires <= now_utc).order(TaskAttempts.expires)


def latest_attempts() -> Any:
    """Return the query for the attempts, those changed last first."""
    return TaskAttempts.query().order(-TaskAttempts.expires)
