"""Rebuilding views from their sources, into a second table.

`rebuild` begins a new table. From that commit on every save contributes to it, too, since saves
read the catalog in their own transaction. A first walk contributes the earlier sources (backfill).
A second walk (catch up) waits until all contributions are applied. From then on tokens wait for the
new table, too. A third walk (confirm) waits until all earlier saves are applied, and the swap until
no row holds a source that has left it, so the swap unsatisfies no token. Then one commit makes the
new table the one that is read, and the old one is dropped. Writes continue throughout, and readers
see the old table until the swap.

Lost on failure: nothing. Each step is done again by the sweep if the worker that began it died.

Routes: POST /tasks/continuations/views-<group>-<step> for each step: backfill, catch-up, drop,
verify. GET /cron/materialized-views/sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations.entities import CANCELLED, FINISHED
from rollforward.continuations.jobs import DeferredItemError, ItemError, Job, RefusedItemError
from rollforward.continuations.progress import RunProgress
from rollforward.datastore.transactions import TRANSIENT, transact
from rollforward.materialized_views.catalog import Catalog, TableSet
from rollforward.materialized_views.definitions import identity
from rollforward.materialized_views.group import ViewGroup
from rollforward.materialized_views.maintenance.catch_up import are_waiting, hold_removed
from rollforward.materialized_views.maintenance.tables import Tables
from rollforward.materialized_views.maintenance.verify import FAILED, Verification, Verifier
from rollforward.materialized_views.maintenance.walks import (
    BACKFILL,
    CATCH_UP,
    CONFIRM,
    DROP,
    LOOK_AGAIN_S,
    MARKERS,
    ROWS,
    Walk,
    Walks,
    last_tries,
    runs_of,
)
from rollforward.materialized_views.view import View
from rollforward.runtime.clients import Clients
from rollforward.runtime.process.optional_clients import optional_clients
from rollforward.runtime.run_all import run_all
from rollforward.tasks.errors import Retry

log = logging.getLogger(__name__)

# Some fifteen hours: updates of a busy row are paced.
CATCH_UP_ATTEMPTS = 100
NOT_BUILT = "its table is not being built any more"


@dataclass(frozen=True)
class BuildStatus:
    """Progress of the table being built.

    `phase`: "backfill", "catch-up", "failed", or "cancelled" once a walk of it was cancelled.
    `waiting`: sources that are looked at again, since a change of theirs is in flight.
    """

    table: str
    phase: str
    done: int
    expected: int
    failed: int
    waiting: int = 0

    @property
    def has_stopped(self) -> bool:
        """Whether it goes on only when someone retries or resumes its walk; it can be rebuilt."""
        return self.phase in (FAILED, CANCELLED)


class ViewMaintenance:
    """Rebuilds and verifies the views of a group."""

    def __init__(self, views: ViewGroup, *, queue: str = "imports") -> None:
        """Make the jobs of a group; list them with the app's.

        Args:
            queue: The queue of their walks. Their updates travel with all others.
        """
        self.views = views
        parts = views._internals
        self._definitions, self._catalogs = parts.definitions, parts.catalogs
        self._contributor = parts.contributor
        self._walks = Walks(self._definitions, self._catalogs)
        self._tables = Tables(self._definitions, self._catalogs, self._walks)
        self._verifier = Verifier(self._definitions, self._catalogs, queue)
        self.backfill = self._job(
            queue, BACKFILL, apply=self._backfill, on_finished=self._walked, page_size=50
        )
        self.catch_up = self._job(
            queue,
            CATCH_UP,
            check=self._catch_up,
            on_finished=self._walked,
            max_attempts=CATCH_UP_ATTEMPTS,
            retry_delays_s=LOOK_AGAIN_S,
        )
        self.drop = self._job(queue, DROP, apply=_drop, on_finished=self._dropped)
        self.jobs = [self.backfill, self.catch_up, self.drop, self._verifier.job]

    def _job(self, queue: str, step: str, **options: Any) -> Job[Walk, Any]:
        items = self._walks.rows if step == DROP else self._walks.sources
        return Job(f"views-{self.views.group}-{step}", queue, Walk, items, **options)

    # What a caller asks for

    @optional_clients
    def rebuild(self, clients: Clients, view: type[View]) -> str:
        """Begin to rebuild a view, unless that is going on; return the table being built.

        A cancelled deletion of an old table of the view goes on, too.

        Raises:
            LookupError: another group declares the view.
        """
        status = self.rebuilding(clients, view)
        given_up = status.table if status and status.has_stopped else None
        table = transact(lambda: self._tables.begin(view, given_up))
        self._resume_drops(clients, view.name)
        self.advance(clients, view)
        return table

    @optional_clients
    def rebuilding(self, clients: Clients, view: type[View]) -> BuildStatus | None:
        """Return how far the table is that is being built, None if none is.

        Raises:
            LookupError: another group declares the view.
        """
        self._definitions.check_declared(view)
        catalog = self._catalogs.read()
        table = catalog.building(view)
        if table is None:
            return None
        walks = self._walks_of(catalog, view, table)
        runs = runs_of(clients, walks, CONFIRM) or runs_of(clients, walks, CATCH_UP)
        phase = CATCH_UP if runs else BACKFILL
        runs = runs or runs_of(clients, walks, BACKFILL)
        tries = last_tries(runs, clients)
        failed = sum(run.totals.failed for run in tries)
        return BuildStatus(
            table,
            _stopped_phase(tries) or phase,
            sum(run.totals.ended for run in runs),
            sum(run.expected for run in runs),
            failed,
            sum(run.totals.retrying for run in runs),
        )

    def tables_of(self, view: type[View]) -> TableSet:
        """Return the tables of a view: read, being built, on their way out.

        Raises:
            LookupError: another group declares the view.
        """
        self._definitions.check_declared(view)
        return self._catalogs.read().entry(view)

    @optional_clients
    def retire(self, clients: Clients, view: str) -> None:
        """Drop the tables of a view that was taken out of the code.

        Updates waiting for them end at their next delivery. Called again, it resumes a cancelled
        deletion.

        Args:
            view: Its name, as the sweep warns of it.

        Raises:
            ValueError: this code has the view.
            LookupError: the catalog has no view of this name.
        """
        if view in self.views.views:
            raise ValueError(f"{view} is in the code: take it out and deploy that first")
        if view not in self._catalogs.read().views:
            raise LookupError(f"the group {self.views.group} has no view {view}")
        transact(lambda: self._tables.retire(view))
        self._resume_drops(clients, view)
        _run_all(self._drops(clients, self._catalogs.read(), view))

    @optional_clients
    def verify(self, clients: Clients, view: type[View], verify_id: str) -> None:
        """Begin to verify the table that is read, once for each verify_id.

        Raises:
            LookupError: another group declares the view.
        """
        self._verifier.verify(clients, view, verify_id)

    @optional_clients
    def verification(self, clients: Clients, view: type[View], verify_id: str) -> Verification:
        """Return the findings of a verification so far.

        Raises:
            UnknownRunError: it was not begun, or the table was replaced since.
        """
        return self._verifier.verification(clients, view, verify_id)

    # The steps of a build

    def sweep(self, clients: Clients) -> int:
        """Continue the builds and drops of tables; return how many views are busy.

        New views are listed, so that later versions know of their tables. The sweep warns of views
        unknown to this code, because updates waiting for them never end on their own. A failed step
        is left to the next sweep and stops none of the others.
        """
        catalog = self._catalogs.read()
        views = self.views.views
        acts: list[Callable[[], Any]] = []
        if not views.keys() <= catalog.views.keys():
            acts.append(lambda: transact(self._tables.list_views))
        busy = [v for v in views.values() if catalog.building(v) or catalog.dropping(v.name)]
        acts += [partial(self.advance, clients, view) for view in busy]
        unknown = catalog.views.keys() - views.keys()
        for other in unknown:
            acts += self._drops(clients, catalog, other)
        if strangers := sorted(view for view in unknown if not catalog.is_retired(view)):
            log.warning("not in this version: %s; taken out for good, `retire` it", strangers)
        try:
            _run_all(acts)
        except TRANSIENT as error:  # The other groups are swept all the same.
            log.warning("builds of %s are left to the next sweep: %s", self.views.group, error)
        return len(busy)

    def advance(self, clients: Clients, view: type[View]) -> None:
        """Take the next steps that are due in a view's build; doing it again does no harm."""
        catalog = self._catalogs.read()
        drops = self._drops(clients, catalog, view.name)
        _run_all([*drops, lambda: self._continue(clients, catalog, view)])

    def _drops(self, clients: Clients, catalog: Catalog, view: str) -> list[Callable[[], None]]:
        """Return what there is to do about the tables of a view that are on their way out."""
        walks = [Walk(view, table, ROWS) for table in catalog.dropping(view)]
        return [partial(self._start, clients, DROP, walk) for walk in walks]

    def _resume_drops(self, clients: Clients, view: str) -> None:
        """Resume the cancelled walks that delete a view's old tables; the sweep resumes none."""
        tables = self._catalogs.read().dropping(view)
        walks = [Walk(view, table, kind) for table in tables for kind in (ROWS, MARKERS)]
        for run in runs_of(clients, walks, DROP):
            if run.state == CANCELLED:
                continuations.resume(clients, {self.drop.name: self.drop}, run.run_id)

    def _continue(self, clients: Clients, catalog: Catalog, view: type[View]) -> None:
        table = catalog.building(view)
        if table is None or not catalog.is_known(view, table):
            return  # There is nothing to build, or only another version of the app knows how.
        walks = self._walks_of(catalog, view, table)
        if not self._is_done(clients, walks, BACKFILL):
            return
        if not self._is_done(clients, walks, CATCH_UP):
            return
        if table not in catalog.required_tables(view):
            transact(lambda: self._tables.add_required(view, table))
        if not self._is_done(clients, walks, CONFIRM):
            return
        if hold_removed(clients, self._contributor.transport, walks):
            return  # Until the sweep looks again.
        if transact(lambda: self._tables.swap(view, table)):
            affected = (view, *self._definitions.downstream_of(view))
            _run_all([partial(self.advance, clients, one) for one in affected])

    def _is_done(self, clients: Clients, walks: Sequence[Walk], step: str) -> bool:
        """Return whether all walks of a step have ended well; begin the others."""
        runs = runs_of(clients, walks, step)
        if len(runs) < len(walks):
            for walk in walks:
                self._start(clients, step, walk)
            return False
        tries = last_tries(runs, clients)
        return all(run.state == FINISHED and not run.totals.failed for run in tries)

    def _start(self, clients: Clients, step: str, walk: Walk) -> None:
        jobs = {
            BACKFILL: self.backfill,
            CATCH_UP: self.catch_up,
            CONFIRM: self.catch_up,
            DROP: self.drop,
        }
        expected = self._walks.guess(walk)
        run_id = walk.run_id(step)
        continuations.start(clients, jobs[step], walk, run_id=run_id, expected=expected)

    def _walks_of(self, catalog: Catalog, view: type[View], table: str) -> list[Walk]:
        """Return a walk for each kind of source that a table was begun with."""
        return self._walks.of_table(catalog, view, table, catalog.spec(table))

    # What the jobs do

    def _backfill(
        self, clients: Clients, walk: Walk, keys: Sequence[Any]
    ) -> Sequence[ItemError | None]:
        """Contribute sources to the table, in the page's transaction.

        Raises:
            Retry: another version of the app fills the table, and will take the task.
        """
        view = self.views.views[walk.view]
        catalog = self._catalogs.read_any(clients)
        if catalog.building(view) != walk.table:
            # A walk over replaced rows would bring back their old contributions.
            return [RefusedItemError(NOT_BUILT)] * len(keys)
        if not catalog.is_known(view, walk.table):
            raise Retry(f"{walk.table} belongs to another version of the app")
        sources = ndb.get_multi(keys)
        refusals = [
            self._definitions.refusal(view, source) if source else None for source in sources
        ]
        both = zip(sources, refusals, strict=True)
        good = [source for source, refusal in both if source and not refusal]
        self._contributor.refresh(clients, good)
        return [RefusedItemError(refusal) if refusal else None for refusal in refusals]

    def _catch_up(
        self, clients: Clients, walk: Walk, keys: Sequence[Any]
    ) -> Sequence[ItemError | None]:
        """Defer the sources whose contributions are not in their rows yet."""
        if self._catalogs.read().building(self.views.views[walk.view]) != walk.table:
            return [RefusedItemError(NOT_BUILT)] * len(keys)
        waiting = are_waiting(clients, walk, [identity(key) for key in keys])
        return [DeferredItemError("its update waits") if waits else None for waits in waiting]

    def _walked(self, clients: Clients, walk: Walk) -> None:
        view = self.views.views.get(walk.view)
        if view is not None:  # Else it has been retired.
            self.advance(clients, view)

    def _dropped(self, clients: Clients, walk: Walk) -> None:
        """Drop the markers after the rows: a row that is gone takes no more updates."""
        if walk.kind == ROWS:
            self._start(clients, DROP, Walk(walk.view, walk.table, MARKERS))
            return
        transact(lambda: self._tables.delist(walk.view, walk.table))


def _stopped_phase(tries: Sequence[RunProgress]) -> str | None:
    """Return the phase of a build that does not go on; None: it does.

    Args:
        tries: The last tries of the walks of its step.
    """
    if any(run.state == CANCELLED for run in tries):
        return CANCELLED
    is_over = all(run.state == FINISHED for run in tries)
    return FAILED if is_over and any(run.totals.failed for run in tries) else None


def _drop(clients: Clients, walk: Walk, keys: Sequence[Any]) -> Sequence[ItemError | None]:
    ndb.delete_multi(keys)
    return [None] * len(keys)


def sweep_all(clients: Clients, groups: Sequence[ViewMaintenance]) -> int:
    """Continue the builds of some groups; return how many are busy. One that fails stops none."""
    results = run_all(
        (f"the sweep of the views of {group.views.group} failed", partial(group.sweep, clients))
        for group in groups
    )
    results.raise_first()
    return sum(results.returned)


def _run_all(acts: Sequence[Callable[[], Any]]) -> None:
    """Do all of some acts, whichever of them fail; failed ones are left to the next sweep.

    Raises:
        google.api_core.exceptions.GoogleAPIError: a service was unavailable; raised after the last.
    """
    complaint = "a step of a build is left to the next sweep"
    run_all((complaint, act) for act in acts).raise_first(*TRANSIENT)
