"""Operations as a pattern of the registry: no parts of an app, and in every app."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Never

from google.cloud import ndb

from rollforward.datastore.expiry import delete_due
from rollforward.operations.audit import delete_expired_entries
from rollforward.operations.bulk import delete_selected, replay_selected
from rollforward.operations.entities import expired_entries, expired_ping_deliveries
from rollforward.operations.pings import ping
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.dead_task_entities import expired_dead_tasks
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Pattern

MAX_DELETED = 250


class Operations(Pattern[Never]):
    """Dead tasks in bulk, the audit trail, and pings."""

    name = "operations"

    def extra_parts(self) -> Iterable[object]:
        """Return the jobs that replay and delete dead tasks."""
        return (replay_selected, delete_selected)

    def tasks(self, parts: Sequence[Never]) -> Iterable[Task[Any]]:
        return (ping,)

    def delete_expired(self, clients: Clients) -> int:
        now_utc = naive_utc(clients.clock.now())
        entries = expired_entries(now_utc).fetch(MAX_DELETED, keys_only=True)
        delete_expired_entries(entries)
        pings = expired_ping_deliveries(now_utc).fetch(MAX_DELETED, keys_only=True)
        ndb.delete_multi(pings)  # Each has an id of its own: no later ping has its key.
        dead = expired_dead_tasks(now_utc).fetch(MAX_DELETED, keys_only=True)
        return (
            len(entries)
            + len(pings)
            + delete_due(dead, lambda row: row.expires is not None and row.expires <= now_utc)
        )
