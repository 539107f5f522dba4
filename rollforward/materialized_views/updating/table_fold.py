"""Folding a table: everything that waits for its rows is applied, many rows in one commit.

A fold lists the updates that wait for a table, whichever process sent them. It leaves the updates
of busy rows, and rings for the time at which they are due. The rest is applied in parts, each in
one transaction: the rows, their markers, and the deletion of the updates' own outbox rows.

If a part fails, and the store is not at fault, it is halved. An update that fails alone gets a task
of its own: it is retried there and parked in the end, and later folds leave it alone.
"""

from __future__ import annotations

import datetime
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

from google.api_core import exceptions as rpc_errors

from rollforward.datastore.batched import batched
from rollforward.datastore.versions import read_versions
from rollforward.materialized_views.catalog import view_name
from rollforward.materialized_views.definitions import UnknownTableError, ViewDefinitions
from rollforward.materialized_views.updates import FoldTable, RowUpdates, Update
from rollforward.materialized_views.updating.apply import WAITS_FOR_A_VERSION, Applier
from rollforward.materialized_views.updating.hints import FoldStart, OwnTasks
from rollforward.materialized_views.updating.pacing import TablePace
from rollforward.materialized_views.updating.transport import UpdateTransport, list_unacked
from rollforward.materialized_views.updating.turns import FoldTurns
from rollforward.outbox.entities import OutboxTask, RowId, outbox_key
from rollforward.outbox.relay import relay
from rollforward.runtime.advisory_lock import advisory_lock
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import Timeout, naive_utc
from rollforward.runtime.errors import is_outage
from rollforward.tasks.errors import Retry, Unavailable
from rollforward.tracing import start_span

log = logging.getLogger(__name__)

_DICE = random.Random()

# For a fold of another process that gets on: with its parts it takes longer than a transaction.
LOCK_WAIT_S = 6.0
# Then it comes again, as another fold: where folds follow each other it does not always come next.
COMES_AGAIN_S = 1.0
# A fold ends before others give up waiting for it, and rings for the rest.
MAX_FOLD_S = 4.0
# Of one transaction. An update is a marker and an outbox row.
MAX_ROWS = 100
MAX_UPDATES = 150
MAX_BYTES = 2_000_000
# With views downstream each row is a source as well, with a marker and updates of its own.
MAX_SOURCES = 20
# A listing, and how many of them one task makes; then it rings for the rest. What a fold has listed
# and read when its time is over is listed and read again, so neither is long.
MAX_LISTED = 250
MAX_LISTINGS = 20


@dataclass(frozen=True)
class WaitingUpdates:
    """Updates of one row that wait in an outbox row."""

    unacked: OutboxTask
    row: str
    updates: Sequence[Update]

    @cached_property
    def id(self) -> str:
        return str(self.unacked.key.id())

    @cached_property
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
            Retry: some rows have lost their races; all others are written.
            UnknownTableError: this code does not know the table: the fold waits for another version
                of the app. Updates that have waited for an hour are left to the sweep.
        """

        def acknowledge() -> None:
            self.transport.bell.acknowledge(clients, args)

        with FoldTurns.of(clients).take(clients, args.table, acknowledge) as is_my_turn:
            if not is_my_turn:
                return
            name = f"views:fold:{args.table}"
            with advisory_lock(clients, name, max_wait_s=LOCK_WAIT_S) as turn:
                acknowledge()
                if turn.is_beside:  # Both would apply the same updates, and one of them in vain.
                    comes = clients.clock.now() + datetime.timedelta(seconds=COMES_AGAIN_S)
                    self.transport.bell.ring(clients, args.table, comes)
                    return
                _Fold(self, clients, args.table, turn.show_progress).run()

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

    def __init__(
        self,
        folder: TableFolder,
        clients: Clients,
        table: str,
        show_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._show_progress = show_progress
        self._clients = clients
        self._table = table
        self._view = folder.definitions.views.get(view_name(table))
        self._own_tasks = OwnTasks(clients, table)
        self._place = FoldStart(clients, table)
        self._pace = TablePace.read(clients, self._view, table)
        self._timeout = Timeout.of(clients.clock, MAX_FOLD_S)
        self._later: set[datetime.datetime] = set()
        self._has_passed_end = False
        self._lost = 0

    def run(self) -> None:
        try:
            is_all = self._run_paced()
            if is_all:
                self._place.next = ""
        finally:
            self._pace.store(self._clients)
            self._place.store()
        bell = self._folder.transport.bell
        if self._later:
            bell.ring(self._clients, self._table, min(self._later))
        if self._lost:
            raise Retry(f"{self._lost} parts of {self._table} have lost their races")
        # After the last row without any write all that is left waits for something else.
        if not is_all and (self._pace.written or not self._has_passed_end):
            bell.ring(self._clients, self._table, None)

    def _run_paced(self) -> bool:
        """Fold the rows that are due, note when the others are; return whether that was all.

        It begins where the last fold ended, and goes on from the first row to there.
        """
        after = self._place.start
        for _ in range(MAX_LISTINGS):
            self._show_progress()
            found = list_unacked(self._clients, self._table, after, MAX_LISTED)
            due = self._due(found)
            is_written = False
            for part in self._parts(due):
                self._place.pass_by(part[-1].unacked.tag)
                is_written |= self._fold_part(part)
                if self._is_late():
                    return False
            if len(found) < MAX_LISTED:
                if self._has_passed_end or not self._place.start:
                    return True
                after, self._has_passed_end = "", True
                continue
            after = found[-1][1]
            self._place.pass_by(after)
            if found[0][1] == after and not is_written:  # This tag alone fills it, and waits.
                after += "\0"
            if self._has_passed_end and after >= self._place.start:
                return True
        return False

    def _due(self, found: Sequence[tuple[str, str]]) -> list[str]:
        """Return the updates of a listing that a fold may apply now."""
        due = []
        for id_, tag in found:
            if self._own_tasks.has(tag, id_):
                continue
            at = self._pace.due_at(tag.partition(":")[2])
            if at is None:
                due.append(id_)
            else:
                self._later.add(at)
        return due

    def _is_late(self) -> bool:
        return self._timeout.is_over

    def _parts(self, ids: Sequence[str]) -> Iterator[list[WaitingUpdates]]:
        """Read outbox rows; cut their updates into parts that fit into a transaction."""
        part = _Part(self._folder.part_size(self._table))
        for some in batched(ids, part.max_rows):
            # Without ndb's futures, which take longer than the rows.
            for row in read_versions(self._clients.datastore, [outbox_key(id_) for id_ in some]):
                if row is None:
                    continue  # Another delivery has applied it.
                unacked, _ = row
                updates = self._folder.read(unacked)
                if updates is None:
                    self._give_own_task([unacked])
                elif not part.add(updates):
                    yield part.waiting
                    part = _Part(part.max_rows)
                    part.add(updates)
        if part.waiting:
            yield part.waiting

    def _fold_part(self, part: Sequence[WaitingUpdates]) -> bool:
        """Apply a part in one transaction; if it fails, find out which of its rows does.

        Returns:
            Whether anything was written.
        """
        ids = [updates.id for updates in part]
        self._show_progress()
        try:
            with self._span(part):
                self._folder.applier.apply_many(self._clients, self._table, by_row(part), ids)
        except UnknownTableError as error:
            newest = max(updates.saved for updates in part)
            if naive_utc(self._clients.clock.now()) - newest < WAITS_FOR_A_VERSION:
                raise
            log.warning("%s: its updates are left to the sweep", error)
            return False
        except rpc_errors.Aborted as error:
            if len(part) > 1:
                return self._split_and_fold(part, is_lost=True)
            log.info("%d updates of %s wait: %s", len(part), self._table, error)
            self._lost += 1
            return False
        except (Retry, Unavailable):
            raise
        except Exception as error:
            if is_outage(error):
                raise
            if part[0].row != part[-1].row:
                log.info("%d updates of %s fail together: %s", len(part), self._table, error)
                return self._split_and_fold(part)
            log.warning("updates of %s get tasks of their own: %s", self._table, error)
            self._give_own_task([updates.unacked for updates in part])
            return False
        for updates in part:
            self._pace.note_write(updates.row)
        return True

    def _split_and_fold(self, part: Sequence[WaitingUpdates], *, is_lost: bool = False) -> bool:
        """Apply the halves of a part, in any order; return whether anything was written.

        Args:
            is_lost: The part has lost its race: one half is enough for a fold that is late.
        """
        middle = _middle(part)
        halves = [part[:middle], part[middle:]]
        _DICE.shuffle(halves)
        is_written = self._fold_part(halves[0])
        if is_lost and self._is_late():
            self._lost += 1
            return is_written
        return self._fold_part(halves[1]) or is_written

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
        self._own_tasks.add([(row.tag, str(row.key.id())) for row in unacked])


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
        count, size = self.updates + len(more.updates), self.bytes + len(more.unacked.body.encode())
        has_room = len(rows) <= self.max_rows and count <= MAX_UPDATES and size <= MAX_BYTES
        if self.waiting and not has_room:
            return False
        self.waiting.append(more)
        self.rows, self.updates, self.bytes = rows, count, size
        return True


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
