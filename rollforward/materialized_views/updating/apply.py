"""Applying updates to rows, and changed rows to the views downstream."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollforward import outbox
from rollforward.datastore import current
from rollforward.datastore.batched import MAX_COMMIT_BYTES
from rollforward.datastore.transactions import transact
from rollforward.fork_join import Batch
from rollforward.materialized_views.catalog import Catalog, CatalogStore, any_catalog_key
from rollforward.materialized_views.definitions import UnknownTableError, ViewDefinitions
from rollforward.materialized_views.entities import ViewRow, row_key, table_and_row
from rollforward.materialized_views.rows import BadContributionError, empty_row
from rollforward.materialized_views.updates import Apply, Propagate, RowUpdates
from rollforward.materialized_views.updating.contribute import Contributor
from rollforward.materialized_views.updating.fold import ApplyReads, fold, put_row, read_for_apply
from rollforward.materialized_views.updating.transport import QueuedUpdate
from rollforward.materialized_views.view import View
from rollforward.outbox.entities import RowId
from rollforward.runtime.advisory_lock import advisory_lock
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.idempotency import digest_of
from rollforward.runtime.sharing.shared_transaction import SharedBody, transact_declared
from rollforward.tasks.dead_tasks import dead_letter_in_transaction
from rollforward.tasks.declaration import Task, hashed_name
from rollforward.tasks.errors import Reject
from rollforward.tasks.waits import version_pause_s

log = logging.getLogger(__name__)

# Most deployments take less. An update that waits longer has a row that the sweep finds.
WAITS_FOR_A_VERSION = datetime.timedelta(hours=1)


class TooLargeCommitError(Exception):
    """Several rows, each of which may fit into a commit, do not fit into one together."""


@dataclass(frozen=True)
class Applier:
    """Applies updates to the rows of a group's tables."""

    definitions: ViewDefinitions
    catalogs: CatalogStore
    contributor: Contributor
    propagate_task: Task[Propagate]

    def apply(self, clients: Clients, args: Apply) -> None:
        """Apply updates to a row, in one transaction with the row's markers.

        Raises:
            Reject: the row cannot hold it. Replay it when the row has room.
            UnknownTableError: this code does not know the table: the task waits for another
                version of the app. After an hour it ends and leaves that to the sweep, which asks
                again each hour.
        """
        saved = RowId.read(args.unacked).created  # The row may be of a newer version.
        reads = ApplyReads.of(args.table, [RowUpdates(args.row, args.updates, saved)])

        def body() -> None:
            outbox.ack(args.unacked)
            self._apply(clients, reads, self.catalogs.any_copy(clients))

        try:
            with advisory_lock(clients, f"views:apply:{args.table}:{args.row}"):
                transact(body)
        except BadContributionError as error:
            raise Reject(str(error)) from error
        except UnknownTableError as error:
            if naive_utc(clients.clock.now()) - saved < WAITS_FOR_A_VERSION:
                raise
            log.warning("%s: it is left to the sweep", error)

    def apply_many(
        self, clients: Clients, table: str, rows: Sequence[RowUpdates], unacked: Sequence[str]
    ) -> None:
        """Apply the updates of several rows of a table, in one transaction.

        Args:
            unacked: The outbox rows that hold these updates.

        Raises:
            BadContributionError: one of the rows cannot hold it, or, of several rows, a view
                downstream of one refuses it.
            TooLargeCommitError: the rows have to be written in several commits.
            UnknownTableError: this code does not know the table.
        """

        group = self.definitions.group
        reads = ApplyReads.of(table, rows)

        def body(keys: Sequence[Any]) -> None:
            for row in unacked:
                outbox.ack(row)
            self._apply(clients, reads, keys[0])
            if len(rows) > 1 and (size := current.written_bytes()) > MAX_COMMIT_BYTES:
                raise TooLargeCommitError(f"{len(rows)} rows are {size:,} bytes together")

        transact_declared(
            clients,
            SharedBody(body, reads=lambda draw: [any_catalog_key(group, draw), *reads.keys]),
        )

    def join(self, clients: Clients, batch: Batch, queued: Sequence[QueuedUpdate]) -> None:
        """Apply all updates of a row that have come together as work items.

        Only an earlier version of the app sends them so.
        """
        table, _, row = batch.key.partition(":")
        updates = [update.update for update in queued]
        saved = max(update.saved for update in queued)
        reads = ApplyReads.of(table, [RowUpdates(row, updates, saved)])
        self._apply(clients, reads, self.catalogs.any_copy(clients))

    def _apply(self, clients: Clients, reads: ApplyReads, copy: Any) -> None:
        """Bring rows up to date, in the transaction that deletes the updates' own entities.

        Args:
            copy: The key of the catalog's copy to read.
        """
        table, snapshots = reads.table, read_for_apply(copy, reads)
        catalog = Catalog.of(next(iter(snapshots.values())).catalog)
        if catalog.is_gone(table):
            return  # It has been replaced, and its rows go.
        view = self._known(clients, catalog, table, max(row.saved for row in reads.rows.values()))
        written: list[tuple[Any, ViewRow | None]] = []
        for key, updates in reads.rows.items():
            row = snapshots[key].row or empty_row(key)
            changed = fold(row, reads.newest[key], snapshots[key])
            if changed:
                row.applied = max(row.applied, updates.saved)
                put_row(view, row, changed)
                written.append((key, row if row.counts else None))
        if view.name in self.definitions.by_kind and catalog.live(view) == table:
            self._propagate(clients, table, written)

    def _known(
        self, clients: Clients, catalog: Catalog, table: str, saved: datetime.datetime
    ) -> type[View]:
        """Return the view of a table.

        Raises:
            UnknownTableError: this code does not know the table. The pauses grow with the age of
                the update: while two versions serve, the next delivery may meet the other one.
        """
        try:
            return self.definitions.known(catalog, table)
        except UnknownTableError as error:
            waited_s = (naive_utc(clients.clock.now()) - saved).total_seconds()
            raise UnknownTableError(str(error), after_s=version_pause_s(waited_s)) from error

    def _propagate(
        self, clients: Clients, table: str, written: Sequence[tuple[Any, ViewRow | None]]
    ) -> None:
        """Contribute rows to the views downstream of them.

        A view that refuses a lone row is left unchanged and gets a task of its own, which fails in
        its stead. This row and all other views downstream are updated. If one of several is
        refused, the error is raised, so that the rows are applied one by one.
        """
        if len(written) != 1:
            self.contributor.contribute(clients, written)
            return
        refused: set[str] = set()
        ((key, row),) = written
        try:
            self.contributor.contribute(clients, [(key, row)], on_refusal=refused.update)
        except BadContributionError:  # Before the first write: it is of the row, and of no view.
            refused.add(table)
        if refused:
            name, text = table_and_row(key)
            outbox.enqueue_with_ack(
                clients,
                self.propagate_task,
                lambda unacked: Propagate(name, text, unacked),
                tag=f"propagate:{name}:{text}",
            )

    def propagate(self, clients: Clients, args: Propagate) -> None:
        """Contribute a row, as it is now, to the views downstream of it.

        Raises:
            Reject: one of them refuses it, and why. Replay it when that view is fixed.
            UnknownTableError: this code does not know the table: the task waits for another
                version of the app.
        """

        def body() -> None:
            _ack(args)
            catalog = self.catalogs.read_any(clients)
            if catalog.is_gone(args.table):
                return  # The views downstream are rebuilt, from other rows.
            if catalog.live(self.definitions.known(catalog, args.table)) != args.table:
                return
            key = row_key(args.table, args.row)
            row = key.get()
            self.contributor.contribute(clients, [(key, row if row and row.counts else None)])

        try:
            transact(body)
        except BadContributionError as error:
            raise Reject(f"row {args.row} of {args.table}: {error}") from error

    def park(self, clients: Clients, args: Propagate, reason: str) -> None:
        """Keep a row that a view downstream refuses as a dead task, in place of its outbox row."""
        task, row = self.propagate_task, digest_of(args.row)  # A row may be longer than a name.
        dead_id = hashed_name("propagate", args.table, row, args.unacked)
        body = task.message(args).body

        def park() -> None:
            _ack(args)
            dead_letter_in_transaction(
                clients, dead_id=dead_id, path=task.path, queue=task.queue, body=body, reason=reason
            )

        transact(park)


def _ack(args: Propagate) -> None:
    if args.unacked:
        outbox.ack(args.unacked)
