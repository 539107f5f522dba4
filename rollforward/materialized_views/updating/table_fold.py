"""Folding a table: everything that waits for its rows is applied, many rows in one commit.

A fold lists the updates that wait for a table, whichever process sent them. It leaves the updates
of busy rows, and rings for the time at which they are due. The rest is applied in parts, each in
one transaction: the rows, their markers, and the deletion of the updates' own outbox rows.

If a part fails, and the store is not at fault, it is halved. An update that fails alone gets a task
of its own: it is retried there and parked in the end, and later folds leave it alone.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.auth.exceptions import GoogleAuthError
from google.cloud import ndb

from rollforward.datastore.batched import batched
from rollforward.materialized_views.catalog import view_name
from rollforward.materialized_views.definitions import UnknownTableError, ViewDefinitions
from rollforward.materialized_views.updates import FoldTable, RowUpdates, Update
from rollforward.materialized_views.updating.apply import Applier
from rollforward.materialized_views.updating.pacing import TablePace
from rollforward.materialized_views.updating.transport import UpdateTransport, listed
from rollforward.materialized_views.updating.turns import FoldTurns
from rollforward.outbox.entities import OutboxTask, RowId, outbox_key
from rollforward.outbox.relay import relay
from rollforward.runtime.advisory_lock import advisory_lock
from rollforward.runtime.clients import Clients
from rollforward.tasks.errors import Retry, Unavailable
from rollforward.tracing import start_span

log = logging.getLogger(__name__)

# For a fold of another process: with its parts it takes longer than a transaction.
LOCK_WAIT_S = 5.0
# Of one transaction. An update is a marker and an outbox row.
MAX_ROWS = 100
MAX_UPDATES = 150
MAX_BYTES = 2_000_000
# With views downstream each row is a source as well, with a marker and updates of its own.
MAX_SOURCES = 20
# A listing, and how many of them one task makes; then it rings for the rest.
MAX_LISTED = 1_000
MAX_LISTINGS = 5
# Updates of a table that have tasks of their own are remembered for an hour, the newest of them.
OWN_TASKS_FOR_S = 3_600
MAX_OWN_TASKS = 500


@dataclass(frozen=True)
class WaitingUpdates:
    """Updates of one row that wait in an outbox row."""

    unacked: OutboxTask
    row: str
    updates: Sequence[Update]

    @property
    def id(self) -> str:
        return str(self.unacked.key.id())

    @property
    def saved(self) -> datetime.datetime:
        return RowId.parse(self.id).created


@dataclass(frozen=True)
class TableFolder:
    """Folds the tables of a group."""

    definitions: ViewDefinitions
    transport: UpdateTransport
    applier: Applier

    def fold(self, clients: Clients, args: FoldTable) -> None:
        """Apply the waiting updates of a table, as far as its rows may be written now.

        Raises:
            Unavailable: Cloud Tasks takes no tasks for the updates that need their own.
        """

        def answer() -> None:
            self.transport.bell.answer(clients, args)

        with FoldTurns.of(clients).take(clients, args.table, answer) as is_my_turn:
            if not is_my_turn:
                return
            with advisory_lock(clients, f"views:fold:{args.table}", wait_s=LOCK_WAIT_S):
                answer()
                _Fold(self, clients, args.table).run()

    def read(self, unacked: OutboxTask) -> WaitingUpdates | None:
        """Return the updates in an outbox row; None: this version cannot read them."""
        try:
            RowId.parse(unacked.key.id())
            args = self.transport.read(unacked)
        except Exception as error:  # It may be of any version, or made by hand.
            log.warning("an outbox row of %s cannot be read: %s", unacked.tag, error)
            return None
        if f"{args.table}:{args.row}" != unacked.tag:
            return None
        return WaitingUpdates(unacked, args.row, args.updates)

    def part_size(self, table: str) -> int:
        """Return how many rows of a table one transaction takes."""
        return MAX_SOURCES if view_name(table) in self.definitions.by_kind else MAX_ROWS


class _Fold:
    """One fold of a table."""

    def __init__(self, folder: TableFolder, clients: Clients, table: str) -> None:
        self._folder = folder
        self._clients = clients
        self._table = table
        self._view = folder.definitions.views.get(view_name(table))
        self._own_tasks = _OwnTasks(clients, table)

    def run(self) -> None:
        pace = TablePace.read(self._clients, self._view, self._table)
        later: set[datetime.datetime] = set()
        try:
            is_all = self._run_paced(pace, later)
        finally:
            pace.store(self._clients)
            self._own_tasks.store()
        bell = self._folder.transport.bell
        if not is_all and pace.written:
            bell.ring(self._clients, self._table, None)
        elif later:
            bell.ring(self._clients, self._table, min(later))

    def _run_paced(self, pace: TablePace, later: set[datetime.datetime]) -> bool:
        """Fold the rows that are due, note when the others are; return whether that was all."""
        after = ""
        for _ in range(MAX_LISTINGS):
            found = listed(self._table, after, MAX_LISTED)
            due = []
            for id_, tag in found:
                at = pace.due_at(tag.partition(":")[2])
                if id_ in self._own_tasks:
                    continue
                if at is None:
                    due.append(id_)
                else:
                    later.add(at)
            for part in self._parts(due):
                self._fold_part(part)
                for row in {updates.row for updates in part}:
                    pace.note_write(row)
            if len(found) < MAX_LISTED:
                return True
            after = found[-1][1]
            if not due and found[0][1] == after:  # This tag alone fills a listing, and waits.
                after += "\0"
        return False

    def _parts(self, ids: Sequence[str]) -> Iterator[list[WaitingUpdates]]:
        """Read outbox rows; cut their updates into parts that fit into a transaction."""
        part = _Part(self._folder.part_size(self._table))
        for some in batched(ids, MAX_UPDATES):
            for unacked in ndb.get_multi([outbox_key(id_) for id_ in some]):
                if unacked is None:
                    continue  # Another delivery has applied it.
                updates = self._folder.read(unacked)
                if updates is None:
                    self._give_own_task([unacked])
                elif not part.add(updates):
                    yield part.waiting
                    part = _Part(part.max_rows)
                    part.add(updates)
        if part.waiting:
            yield part.waiting

    def _fold_part(self, part: Sequence[WaitingUpdates]) -> None:
        """Apply a part in one transaction; if it fails, find out which of its updates does."""
        ids = [updates.id for updates in part]
        try:
            with self._span(part):
                self._folder.applier.apply_many(self._clients, self._table, by_row(part), ids)
        except UnknownTableError as error:
            log.warning("%s", error)
            self._give_own_task([updates.unacked for updates in part])
        except (Retry, Unavailable):
            raise
        except Exception as error:
            if _is_of_the_store(error):
                raise
            if len(part) == 1:
                log.warning("an update of %s gets a task of its own: %s", self._table, error)
                self._give_own_task([part[0].unacked])
                return
            log.info("%d updates of %s fail together: %s", len(part), self._table, error)
            middle = _middle(part)
            self._fold_part(part[:middle])
            self._fold_part(part[middle:])

    def _span(self, part: Sequence[WaitingUpdates]) -> Any:
        """Return a span of a part, with a link to the trace of each of its saves."""
        links = [updates.unacked.traceparent for updates in part if updates.unacked.traceparent]
        name, counted = f"fold {view_name(self._table)}", {"rollforward.items": len(part)}
        return start_span(name, "CONSUMER", attributes=counted, links=links)

    def _give_own_task(self, unacked: Sequence[OutboxTask]) -> None:
        """Create the tasks of outbox rows: they are retried, and parked, apart from the others."""
        relayed = relay(self._clients, unacked)
        if relayed.unanswered:
            raise Unavailable(f"{len(relayed.unanswered)} updates need tasks of their own")
        self._own_tasks.add([str(row.key.id()) for row in unacked])


@dataclass
class _Part:
    """Updates that one transaction applies."""

    max_rows: int
    waiting: list[WaitingUpdates] = field(default_factory=list)
    rows: set[str] = field(default_factory=set)
    updates: int = 0
    bytes: int = 0

    def add(self, more: WaitingUpdates) -> bool:
        """Add updates if they fit; the first ones always do."""
        rows = self.rows | {more.row}
        count, size = self.updates + len(more.updates), self.bytes + len(more.unacked.body)
        has_room = len(rows) <= self.max_rows and count <= MAX_UPDATES and size <= MAX_BYTES
        if self.waiting and not has_room:
            return False
        self.waiting.append(more)
        self.rows, self.updates, self.bytes = rows, count, size
        return True


class _OwnTasks:
    """The updates of a table that have tasks of their own; memcached's hint for later folds."""

    def __init__(self, clients: Clients, table: str) -> None:
        self._clients = clients
        self._name = f"views:own-tasks:{table}"
        try:
            ids = json.loads(clients.cache.get(self._name) or b"[]")
        except ValueError:
            ids = []
        ids = ids if isinstance(ids, list) else []
        self._ids = dict.fromkeys(id_ for id_ in ids if isinstance(id_, str))
        self._has_changed = False

    def __contains__(self, id_: str) -> bool:
        return id_ in self._ids

    def add(self, ids: Sequence[str]) -> None:
        self._ids.update(dict.fromkeys(ids))
        self._has_changed = True

    def store(self) -> None:
        if self._has_changed:
            value = json.dumps(list(self._ids)[-MAX_OWN_TASKS:]).encode()
            self._clients.cache.set(self._name, value, OWN_TASKS_FOR_S)


def _is_of_the_store(error: Exception) -> bool:
    """Return whether the store or the machine is at fault, and not the data of some update."""
    if isinstance(error, rpc_errors.InvalidArgument):  # An entity, or all of them, too large.
        return False
    return isinstance(error, (rpc_errors.GoogleAPIError, GoogleAuthError, OSError, MemoryError))


def _middle(part: Sequence[WaitingUpdates]) -> int:
    """Return where to halve a part: between two rows, if it has more than one."""
    middle = len(part) // 2
    if part[0].row == part[-1].row:
        return middle
    borders = [i for i in range(1, len(part)) if part[i - 1].row != part[i].row]
    return min(borders, key=lambda border: abs(border - middle))


def by_row(part: Sequence[WaitingUpdates]) -> list[RowUpdates]:
    """Return all updates of each row; the updates of a row follow each other."""
    gathered = []
    for row, same in groupby(part, key=attrgetter("row")):
        waiting = list(same)
        updates = [update for one in waiting for update in one.updates]
        gathered.append(RowUpdates(row, updates, max(one.saved for one in waiting)))
    return gathered
