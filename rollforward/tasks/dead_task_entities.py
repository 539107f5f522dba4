"""Tasks that can never work, kept to be looked at and replayed.

DeadTask
    Key: hash of queue and task name: a repeated delivery is kept in the same row.
    Queries: resolved = False, by key: the list and the count. Single-property index.
    Growth: one row a task given up. `body` is at most 100 KB.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb


class DeadTask(ndb.Model):
    """A task that was given up."""

    path = ndb.TextProperty(required=True)
    queue = ndb.TextProperty(required=True)
    task_name = ndb.TextProperty(required=True)
    body = ndb.TextProperty(required=True)
    reason = ndb.TextProperty(required=True)
    count = ndb.IntegerProperty(indexed=False, default=0)
    counted_by = ndb.TextProperty()  # The last call that was counted: the idempotency guard.
    replays = ndb.IntegerProperty(indexed=False, default=0)
    created = ndb.DateTimeProperty(indexed=False, required=True)
    updated = ndb.DateTimeProperty(indexed=False, required=True)
    resolved = ndb.BooleanProperty(default=False)


def open_dead_tasks() -> Any:
    """Return the query for the dead tasks that have not been dealt with."""
    return DeadTask.query(DeadTask.resolved == False).order(DeadTask._key)  # noqa: E712
