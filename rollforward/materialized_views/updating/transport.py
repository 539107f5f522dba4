"""Transport of updates from a save to their row, and the updates in flight.

Each update is an unacked row of the outbox. The save's own transaction writes it, and the
transaction that changes the view's row deletes it, so pending updates are visible and their age is
known. A fold of the table takes the updates of all its rows (table_fold.py). Updates that a fold
cannot take have tasks of their own. Parked updates wait for a person and are visible as well: the
unacked row stays.

An earlier version of the app sends the updates of views with `fan_in = True` as work items, through
the fork-join queue of their row. This one still joins and shows them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward import outbox
from rollforward.datastore.queries import request_of_range, run_query
from rollforward.fork_join import Batch, ForkJoin
from rollforward.fork_join import entities as fork_join
from rollforward.fork_join.entities import (
    EpochId,
    PackId,
    WorkPack,
    packs_with_tag,
    packs_with_tag_prefix,
)
from rollforward.materialized_views.catalog import accepts
from rollforward.materialized_views.rows import Value
from rollforward.materialized_views.updates import Apply, FoldTable, Update, source_name
from rollforward.materialized_views.updating.bell import Bell
from rollforward.materialized_views.view import View
from rollforward.outbox.entities import OutboxTask, RowId, outbox_key, rows_of_tag, rows_of_tags
from rollforward.runtime.clients import Clients
from rollforward.tasks.dead_tasks import dead_letter
from rollforward.tasks.declaration import Task
from rollforward.tasks.runs import MAX_KEY_BYTES

# Updates of one row in one transaction: three entities each.
MAX_JOINED = 150


@dataclass(frozen=True)
class QueuedUpdate:
    """An update in the fork-join queue of its row, and when it was saved (UTC, naive)."""

    update: Update
    saved: datetime.datetime


class UpdateTransport:
    """The ways of a group's updates: folds, tasks of their own, and work items of old."""

    def __init__(
        self,
        group: str,
        queue: str,
        *,
        apply: Callable[[Clients, Apply], None],
        fold: Callable[[Clients, FoldTable], None],
        join: Callable[[Clients, Batch, Sequence[QueuedUpdate]], None],
        fan_in_s: float,
    ) -> None:
        """Declare the tasks and the queue of updates.

        Args:
            apply: Takes the updates of a task of their own.
            fold: Takes all updates of a table that wait.
            join: Takes work items of a row that have come together.
        """
        self.task = Task(
            f"/tasks/materialized-views/{group}/apply", queue, Apply, apply, on_give_up=self._park
        )
        self.bell = Bell(Task(f"/tasks/materialized-views/{group}/fold", queue, FoldTable, fold))
        self.fan_in = ForkJoin(
            f"views-{group}",
            QueuedUpdate,
            join,
            queue=queue,
            period_s=fan_in_s,
            max_batch_size=MAX_JOINED,
        )

    def _park(self, clients: Clients, args: Apply, reason: str) -> None:
        """Keep an update that no row can hold as one dead task, however often the sweep asks again.

        Its outbox row stays, since tokens wait for the update.
        """
        task, body = self.task, self.task.message(args).body
        dead_letter(
            clients,
            path=task.path,
            queue=task.queue,
            task_name=args.unacked,
            body=body,
            reason=reason,
        )

    def send(
        self,
        clients: Clients,
        view: type[View] | None,
        tag: str,
        part: Sequence[Update],
    ) -> str:
        """Send updates of one row, in a transaction; return the key under which they wait.

        Args:
            view: None: this code does not know it. Then its updates have a task of their own.
        """
        table, _, row = tag.partition(":")
        is_known = view is not None and accepts(table, view)
        unacked = outbox.enqueue_with_ack(
            clients,
            self.task,
            lambda unacked: Apply(table, row, list(part), unacked),
            tag=tag,
            is_gathered=is_known,
        )
        if view is not None and is_known:
            self.bell.ring_on_commit(clients, view, table, row)
        return unacked

    def check(self, table: str, source: Any, rows: Mapping[str, dict[str, Value]]) -> None:
        """Check that a source's contributions can travel to its rows.

        Raises:
            Exception: it cannot.
        """
        for row, measures in rows.items():
            update = Update(source_name(source), 0, measures, is_first=True)
            self.task.message(Apply(table, row, [update], unacked=""))

    def read(self, stored: OutboxTask | WorkPack) -> Apply:
        """Return the updates in an outbox row or a work pack."""
        if isinstance(stored, OutboxTask):
            return self.task.read(stored.body.encode())
        table, _, row = stored.tag.partition(":")
        updates = [queued.update for queued in self.fan_in.read(stored.items)]
        return Apply(table, row, updates, unacked="")


def list_unacked(clients: Clients, table: str, after: str, limit: int) -> list[tuple[str, str]]:
    """Return the keys of unacked updates of a table, each with its row's tag, in order of tags.

    Without ndb, which takes longer for a short list than the service.

    Args:
        after: Begin with this tag; empty: with the first.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    low, high = f"{table}:", f"{table}:\U0010ffff"
    kind, client = OutboxTask._get_kind(), clients.datastore
    request = request_of_range(client, kind, "tag", after or low, high, limit)
    request.query.projection.add().property.name = "tag"
    entities = [result.entity for result in run_query(client, request)]
    return [(_id_of(entity), entity.properties["tag"].string_value) for entity in entities]


def _id_of(entity: Any) -> Any:
    """Return the id of an entity's key: a text, unless the row was made by hand."""
    last = entity.key.path[-1]
    return last.name or last.id


def waiting_for_row(view: type[View], row: str, limit: int) -> list[Any]:
    """Return the keys of pending updates of one row of a table."""
    queries = _pending_of_row(row)
    return _keys_of(queries if view.fan_in else queries[:1], limit)


def waiting_for_rows(view: type[View], prefix: str, limit: int) -> list[Any]:
    """Return the keys of pending updates of the rows of a table with a common prefix."""
    queries = _pending_with_prefix(prefix)
    return _keys_of(queries if view.fan_in else queries[:1], limit)


def sample_of_table(view: type[View], table: str, limit: int) -> list[Any]:
    """Return the keys of pending updates of a table: of many, those of its first and last rows."""
    prefix = f"{table}:"
    keys = waiting_for_rows(view, prefix, limit)
    if len(keys) < limit:
        return keys
    last = rows_of_tags(prefix, is_reversed=True).fetch(limit, keys_only=True)
    return [*dict.fromkeys([*keys, *last])]


def _keys_of(queries: Sequence[Any], limit: int) -> list[Any]:
    return [key for query in queries for key in query.fetch(limit, keys_only=True)][:limit]


def has_pending(row: str) -> bool:
    """Return whether anything waits for a row, whichever way it travels."""
    return _has_any(_pending_of_row(row))


def has_pending_rows(table: str) -> bool:
    """Return whether anything waits for any row of a table, whichever way it travels."""
    return _has_any(_pending_with_prefix(f"{table}:"))


def pending_keys(table: str) -> Iterator[Any]:
    """Yield the keys of all that waits for rows of a table, whichever way it travels."""
    for query in _pending_with_prefix(f"{table}:"):
        yield from query.iter(keys_only=True)


def _pending_of_row(row: str) -> Sequence[Any]:
    """Return the queries for all that waits for a row, by the way it travels."""
    return rows_of_tag(row), packs_with_tag(row)


def _pending_with_prefix(prefix: str) -> Sequence[Any]:
    """Return the same for the rows of a table with a common prefix."""
    return rows_of_tags(prefix), packs_with_tag_prefix(prefix)


def _has_any(queries: Sequence[Any]) -> bool:
    return any(query.fetch(1, keys_only=True) for query in queries)


def saved_at(key: Any) -> datetime.datetime:
    """Return when a pending update was saved; of a work item, when its batch was opened."""
    if key.kind() == WorkPack._get_kind():
        return EpochId.parse(PackId.parse(key.id()).epoch).opened
    return RowId.read(key.id()).created


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
    try:
        is_update = len(name.encode()) <= MAX_KEY_BYTES
        if _is_pack(name):
            EpochId.parse(PackId.parse(name).epoch)
        else:
            is_update &= RowId.parse(name).is_unacked
    except ValueError:  # Also of half of a surrogate pair.
        is_update = False
    if not is_update:
        raise ValueError(f"a token must name unacked rows, got {name!r:.100}")


def _is_pack(name: str) -> bool:
    """Tell a pack's key from an outbox row's, which begins with one digit."""
    return name.find("|") > 1
