"""Transport of updates from a save to their row, and the updates in flight.

Each update is an unacked row of the outbox, with a task of its own, paced row by row. With
`fan_in = True` it is a work item in the fork-join queue of its row, and the row is written once per
batch, however many sources change. The save's own transaction writes either, and the transaction
that changes the row deletes it, so pending updates are visible and their age is known. Parked
updates wait for a person and are visible as well: the unacked row stays, and so does the item,
under its tag.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward import outbox
from rollforward.fork_join import Batch, ForkJoin
from rollforward.fork_join import entities as fork_join
from rollforward.fork_join.entities import (
    EpochId,
    PackId,
    WorkPack,
    packs_tagged,
    packs_tagged_under,
)
from rollforward.materialized_views.rows import Value
from rollforward.materialized_views.updates import Apply, Update, source_name
from rollforward.materialized_views.updating.pacing import paced_at
from rollforward.materialized_views.view import View
from rollforward.outbox.entities import OutboxTask, RowId, outbox_key, rows_of_tag, rows_of_tags
from rollforward.runtime.clients import Clients
from rollforward.tasks.declaration import Task

# Updates of one row in one transaction: three entities each.
MAX_JOINED = 150
_SOME_TIME = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  Datastore's are naive.


@dataclass(frozen=True)
class QueuedUpdate:
    """An update in the fork-join queue of its row, and when it was saved (UTC, naive)."""

    update: Update
    saved: datetime.datetime


class UpdateTransport:
    """Both ways of a group's updates: a task of their own, and the fork-join queue of their row."""

    def __init__(
        self,
        group: str,
        queue: str,
        apply: Callable[[Clients, Apply], None],
        join: Callable[[Clients, Batch, Sequence[QueuedUpdate]], None],
        fan_in_s: float,
    ) -> None:
        """Declare the task and the queue of updates.

        Args:
            apply: Takes the updates of a task.
            join: Takes all updates of a row that have come together.
        """
        self.task = Task(f"/tasks/materialized-views/{group}/apply", queue, Apply, apply)
        self.fan_in = ForkJoin(
            f"views-{group}",
            QueuedUpdate,
            join,
            queue=queue,
            period_s=fan_in_s,
            max_batch_size=MAX_JOINED,
        )

    def send(
        self,
        clients: Clients,
        view: type[View] | None,
        tag: str,
        part: Sequence[Update],
        now: datetime.datetime,
    ) -> str:
        """Send updates of one row, in a transaction; return the key under which they wait.

        Args:
            view: None: this code does not know it. Then its updates travel by a task.
        """
        if view is not None and view.fan_in:
            items = [QueuedUpdate(update, now) for update in part]
            return self.fan_in.insert_in_transaction(clients, tag, *items, tag=tag)
        table, _, row = tag.partition(":")
        return outbox.enqueue_with_ack(
            clients,
            self.task,
            lambda unacked: Apply(table, row, list(part), unacked),
            tag=tag,
            at=paced_at(clients, view, tag) if view is not None else None,
        )

    def check(
        self, view: type[View], table: str, source: Any, rows: Mapping[str, dict[str, Value]]
    ) -> None:
        """Check that a source's contributions can travel to its rows.

        Raises:
            Exception: it cannot.
        """
        for row, measures in rows.items():
            update = Update(source_name(source), 0, measures, is_first=True)
            if view.fan_in:
                self.fan_in.check(f"{table}:{row}", QueuedUpdate(update, _SOME_TIME))
            else:
                self.task.message(Apply(table, row, [update], unacked=""))

    def read(self, stored: OutboxTask | WorkPack) -> Apply:
        """Return the updates in an outbox row or a work pack."""
        if isinstance(stored, OutboxTask):
            return self.task.read(stored.body.encode())
        table, _, row = stored.tag.partition(":")
        updates = [queued.update for queued in self.fan_in.read(stored.items)]
        return Apply(table, row, updates, unacked="")


def waiting_for_row(view: type[View], row: str, limit: int) -> list[Any]:
    """Return the keys of pending updates of one row of a table."""
    queries = [rows_of_tag(row), packs_tagged(row)]
    return _keys_of(queries if view.fan_in else queries[:1], limit)


def waiting_for_rows(view: type[View], prefix: str, limit: int) -> list[Any]:
    """Return the keys of pending updates of the rows of a table with a common prefix."""
    queries = [rows_of_tags(prefix), packs_tagged_under(prefix)]
    return _keys_of(queries if view.fan_in else queries[:1], limit)


def _keys_of(queries: Sequence[Any], limit: int) -> list[Any]:
    return [key for query in queries for key in query.fetch(limit, keys_only=True)][:limit]


def has_pending(row: str) -> bool:
    """Return whether anything waits for a row, whichever way it travels."""
    queries = (rows_of_tag(row), packs_tagged(row))
    return any(query.fetch(1, keys_only=True) for query in queries)


def saved_at(key: Any) -> datetime.datetime:
    """Return when a pending update was saved; of a work item, when its batch was opened."""
    if _is_pack(key.id()):
        return EpochId.parse(PackId.parse(key.id()).epoch).opened
    return RowId.parse(key.id()).created


def left_of(names: Collection[str]) -> list[OutboxTask | WorkPack]:
    """Return the updates that a token names and that still wait, or are parked."""
    packs = [name for name in names if _is_pack(name)]
    rows = [name for name in names if not _is_pack(name)]
    unacked = [row for row in ndb.get_multi(map(outbox_key, rows)) if row is not None]
    return [*unacked, *(fork_join.unfolded(packs) if packs else [])]


def check_update_key(name: str) -> None:
    """Check that a text can name an update in flight.

    Raises:
        ValueError: it cannot.
    """
    if _is_pack(name):
        EpochId.parse(PackId.parse(name).epoch)
    elif not RowId.parse(name).is_unacked:
        raise ValueError(f"a token must name unacked rows, got {name!r:.100}")


def _is_pack(name: str) -> bool:
    """Tell a pack's key from an outbox row's, which begins with one digit."""
    return name.find("|") > 1
