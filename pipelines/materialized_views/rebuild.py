"""Builds of views: made anew from the sources beside the table that is read, and verified.

`rebuild` begins a new table. From that commit on every save contributes to it, too: saves
read the catalog in their own transaction. What was saved before is walked through once (fill).
A second walk (settle) waits until all that was contributed is applied. From then on tokens wait
for the new table, too, and a third walk (confirm) waits until all that was saved before that is
applied: no token that was met is unmet by the swap. Then one commit makes the new table the one
that is read, and the old one is dropped. Writes go on meanwhile, and readers see the old table
until they see the new one.

`verify` recomputes, while writes go on: what each source contributes against its marker and
the rows' markers, what each row's markers add up to against the row, and what each is ranked
by against what it holds. It lists every difference; there must be none. What is merely under
way is looked at again.

Lost on failure: nothing. Each step is done again by the sweep if who began it died.

Routes: POST /tasks/continuations/views-<group>-<step> for each step: fill, settle, drop, verify.
GET /cron/materialized-views/sweep.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from google.cloud import ndb

from models.continuations import FINISHED, run_key
from models.materialized_views import (
    RowMarker,
    SourceMarker,
    ViewCatalog,
    ViewRow,
    catalog_keys,
    marker_key,
    markers_between,
    markers_of,
    rank_prefix,
    row_key,
    row_marker_key,
)
from models.transactions import TRANSIENT, transact
from pipelines import continuations
from pipelines.continuations.errors import UnknownRunError
from pipelines.continuations.jobs import (
    DeferredItemError,
    ItemError,
    Job,
    RefusedItemError,
    SkippedItemError,
)
from pipelines.continuations.progress import Progress, item_issues, progress
from pipelines.continuations.sources import EntitySource, NumberSource
from pipelines.materialized_views.catalog import (
    Begun,
    Catalog,
    View,
    definition_of,
    is_view,
    kind_of,
    view_name,
)
from pipelines.materialized_views.group import BadContributionError, ViewGroup
from pipelines.materialized_views.rows import RowEntry, add_entry, empty_row, ranks_of
from pipelines.materialized_views.transport import has_pending
from pipelines.materialized_views.updates import source_key, source_name
from pipelines.runtime.clients import Clients
from pipelines.runtime.each import run_each
from pipelines.tasks.declaration import hashed_name
from pipelines.tasks.errors import Retry

log = logging.getLogger(__name__)

FILL, SETTLE, DROP, VERIFY = "fill", "settle", "drop", "verify"
CONFIRM = "confirm"  # The settle's walk once more.
ROWS = "rows"  # In place of a kind of source: the table's own rows.
MARKERS = "markers"  # The markers of its rows.
SCANNED = 500
# What is on its way is mostly there a moment later, and after a crash within a sweep's minute. What
# takes longer, as updates that take turns do, is looked at ever more rarely.
LOOK_AGAIN_S = (1.0, 2.0, 4.0, 8.0, *[15.0] * 4, 90.0, 90.0, 120.0, 300.0, 600.0)
# Eleven minutes: what still is on its way then, a person should hear of.
VERIFY_PASSES = 13
# Some fifteen hours: updates of a busy row take turns.
SETTLE_PASSES = 100
FAILED = "failed"
NOT_BUILT = "its table is not being built any more"


@dataclass(frozen=True)
class Walk:
    """What a run walks over: the sources of one kind, or the rows or markers of a table."""

    view: str
    table: str
    kind: str
    source_table: str = ""  # When the sources are a view's rows: of which table.


@dataclass(frozen=True)
class BuildStatus:
    """How far the table is that is being built. `phase`: "fill", "settle" or "failed".

    `waiting`: sources that are looked at again, since a change of theirs is on its way.
    """

    table: str
    phase: str
    done: int
    expected: int
    failed: int
    waiting: int = 0


@dataclass(frozen=True)
class Difference:
    """Where a view is not what its sources say, and how."""

    where: str
    words: str


@dataclass(frozen=True)
class Verification:
    """What a verification has found so far. `state`: "running" or "finished".

    `waiting`: sources and rows that are looked at again, since a change of theirs is on its way.
    """

    state: str
    checked: int
    expected: int
    differences: Sequence[Difference]
    waiting: int = 0


class ViewMaintenance:
    """Rebuilds and verifies the views of a group."""

    def __init__(self, views: ViewGroup, *, queue: str = "imports") -> None:
        """Make the jobs of a group; list them with the app's.

        Args:
            queue: Where they walk. Their updates travel with all others.
        """
        self.views = views
        self.fill = self._job(queue, FILL, apply=self._fill, on_finished=self._walked, page_size=50)
        self.settle = self._job(
            queue,
            SETTLE,
            check=self._settle,
            on_finished=self._walked,
            max_attempts=SETTLE_PASSES,
            retry_delays_s=LOOK_AGAIN_S,
        )
        self.drop = self._job(queue, DROP, apply=_drop, on_finished=self._dropped)
        self.check = self._job(
            queue,
            VERIFY,
            check=self._verify,
            max_attempts=VERIFY_PASSES,
            retry_delays_s=LOOK_AGAIN_S,
            page_size=50,
        )
        self.jobs = [self.fill, self.settle, self.drop, self.check]

    def _job(self, queue: str, step: str, **how: Any) -> Job[Walk, Any]:
        return Job(f"views-{self.views.group}-{step}", queue, Walk, self._walked_over, **how)

    # Rebuild

    def rebuild(self, clients: Clients, view: type[View]) -> str:
        """Begin to build a view anew, unless that is going on; return the table being built."""
        status = self.rebuilding(clients, view)
        given_up = status.table if status and status.phase == FAILED else None
        table = transact(lambda: self._begin(view, given_up))
        self.advance(clients, view)
        return table

    def rebuilding(self, clients: Clients, view: type[View]) -> BuildStatus | None:
        """Return how far the table is that is being built, None if none is."""
        catalog = self.views.catalog()
        table = catalog.building(view)
        if table is None:
            return None
        walks = self._walks(catalog, view, table)
        runs, phase = _runs(walks, CONFIRM) or _runs(walks, SETTLE), SETTLE
        if not runs:
            runs, phase = _runs(walks, FILL), FILL
        failed = sum(run.totals.failed for run in runs)
        return BuildStatus(
            table,
            FAILED if failed and all(run.state == FINISHED for run in runs) else phase,
            sum(run.totals.ended for run in runs),
            sum(run.expected for run in runs),
            failed,
            sum(run.totals.retrying for run in runs),
        )

    def advance(self, clients: Clients, view: type[View]) -> None:
        """Take the next steps that are due in a view's build; doing it again does no harm."""
        catalog = self.views.catalog()
        drops = self._drops(clients, catalog, view.name)
        _each([*drops, lambda: self._go_on(clients, catalog, view)])

    def _drops(self, clients: Clients, catalog: Catalog, view: str) -> list[Callable[[], None]]:
        """Return what there is to do about the tables of a view that are on their way out."""
        walks = [Walk(view, table, ROWS) for table in catalog.dropping(view)]
        return [partial(self._start, clients, DROP, walk) for walk in walks]

    def _go_on(self, clients: Clients, catalog: Catalog, view: type[View]) -> None:
        table = catalog.building(view)
        if table is None or not catalog.is_known(view, table):
            return  # There is nothing to build, or only another version knows how.
        walks = self._walks(catalog, view, table)
        if not self._is_done(clients, walks, FILL):
            return
        if not self._is_done(clients, walks, SETTLE):
            return
        if table not in catalog.awaited(view):
            transact(lambda: self._await(view, table))
        if not self._is_done(clients, walks, CONFIRM):
            return
        if transact(lambda: self._swap(view, table)):
            each = (view, *self._followers(view))
            _each([partial(self.advance, clients, one) for one in each])

    def sweep(self, clients: Clients) -> int:
        """Go on with what is being built or dropped; return how many views that is.

        A view that is new is listed: a later definition of it knows then that it has a table. One
        that this code does not know is told of: nobody ends what waits for it. What fails is left
        to the next sweep, and stops none of the others.
        """
        catalog = self.views.catalog()
        known = self.views.views
        acts: list[Callable[[], Any]] = []
        if not known.keys() <= catalog.views.keys():
            acts.append(lambda: transact(self._list))
        busy = [v for v in known.values() if catalog.building(v) or catalog.dropping(v.name)]
        acts += [partial(self.advance, clients, view) for view in busy]
        others = catalog.views.keys() - known.keys()
        for other in others:
            acts += self._drops(clients, catalog, other)
        if strangers := sorted(view for view in others if not catalog.is_retired(view)):
            log.warning("not in this version: %s; taken out for good, `retire` it", strangers)
        try:
            _each(acts)
        except TRANSIENT as error:  # Other groups have their turn all the same.
            log.warning("builds of %s are left to the next sweep: %s", self.views.group, error)
        return len(busy)

    def retire(self, clients: Clients, view: str) -> None:
        """Let go of a view that was taken out of the code: its tables are dropped.

        What waits for them ends when it is delivered next.

        Args:
            view: Its name, as the sweep tells it.

        Raises:
            ValueError: this code has the view.
            LookupError: there is no such view in the catalog.
        """
        if view in self.views.views:
            raise ValueError(f"{view} is in the code: take it out and deploy that first")
        if view not in self.views.catalog().views:
            raise LookupError(f"the group {self.views.group} has no view {view}")
        transact(lambda: self._retire(view))
        _each(self._drops(clients, self.views.catalog(), view))

    def _retire(self, view: str) -> None:
        catalog = self.views.catalog()
        if not catalog.is_retired(view):
            self._put(catalog.retiring(view))

    def _list(self) -> None:
        """List the views that are new, in a transaction, each with the table it has by itself."""
        catalog = self.views.catalog()
        for view in self.views.views.values():
            catalog = catalog.listed(view)
        self._put(catalog)

    def _begin(self, view: type[View], given_up: str | None) -> str:
        """Begin a table, in a transaction; return it, or the one that is being built already."""
        catalog = self.views.catalog()
        building = catalog.building(view)
        # What another version builds this code could not fill, or not with all that it has.
        is_ours = building is not None and _is_ours(catalog, view, building)
        if building is not None and is_ours and building != given_up:
            return building
        catalog = catalog.with_next(view)
        self._put(catalog)
        return str(catalog.building(view))

    def _swap(self, view: type[View], table: str) -> bool:
        """Let a table be the one that is read, in a transaction; False: it is not.

        Whether its walks have ended stands here once more: exactly those that it was begun with.
        Views of this view begin anew in the same commit: their sources are other rows now.
        """
        catalog = self.views.catalog()
        entry = catalog.entry(view)
        if entry.building != table or not self._has_ended(catalog, view, table):
            return False
        dropping = [*entry.dropping, entry.live]
        catalog = catalog.changed(view, live=table, building=None, dropping=dropping)
        ours = {each.name: each for each in self._followers(view)}
        for name in {**ours, **dict.fromkeys(catalog.standing_on(view))}:
            catalog = _begun_anew(catalog, name, ours.get(name))
        self._put(catalog)
        return True

    def _await(self, view: type[View], table: str) -> None:
        """Let tokens wait for a table from now on, in a transaction."""
        catalog = self.views.catalog()
        if catalog.building(view) == table:
            self._put(catalog.awaiting(view, table))

    def _has_ended(self, catalog: Catalog, view: type[View], table: str) -> bool:
        """Tell, in a transaction, whether every walk of a table has ended."""
        walks = self._walks(catalog, view, table)
        steps = (FILL, SETTLE, CONFIRM)
        keys = [run_key(_run_id(step, walk)) for walk in walks for step in steps]
        runs = ndb.get_multi(keys)
        return all(run is not None and run.state == FINISHED for run in runs)

    def _followers(self, view: type[View]) -> list[type[View]]:
        return [each for each in self.views.views.values() if each.source is view]

    def _put(self, catalog: Catalog) -> None:
        """Store the catalog in all its copies, in a transaction.

        They are read before: each keeps what only another version of the code knows of it.
        """
        keys = catalog_keys(self.views.group)
        both = zip(keys, ndb.get_multi(keys), strict=True)
        copies = [copy or ViewCatalog(key=key) for key, copy in both]
        for copy in copies:
            copy.populate(views=dict(catalog.views), begun_with=dict(catalog.begun_with))
        ndb.put_multi(copies)

    def _walks(self, catalog: Catalog, view: type[View], table: str) -> list[Walk]:
        """Return a walk for each kind of source that a table was begun with."""
        begun = catalog.begun(table) or Begun.by(view)
        below = catalog.live(view.source) if is_view(view.source) else ""
        own = kind_of(view.source)
        return [Walk(view.name, table, kind, below if kind == own else "") for kind in begun.kinds]

    def _start(self, clients: Clients, step: str, walk: Walk) -> None:
        jobs = {FILL: self.fill, SETTLE: self.settle, CONFIRM: self.settle, DROP: self.drop}
        continuations.start(
            clients, jobs[step], walk, run_id=_run_id(step, walk), expected=self._guess(walk)
        )

    def _is_done(self, clients: Clients, walks: Sequence[Walk], step: str) -> bool:
        """Return whether all walks of a step have ended well; begin those that have not begun."""
        runs = _runs(walks, step)
        if len(runs) < len(walks):
            for walk in walks:
                self._start(clients, step, walk)
            return False
        return all(run.state == FINISHED and not run.totals.failed for run in runs)

    def _guess(self, walk: Walk) -> int | None:
        """Return about how many items a walk will meet, by what is in the table that is read."""
        if walk.kind in (ROWS, MARKERS):
            return None
        view = self.views.views[walk.view]
        live = self.views.catalog().live(view)
        first, beyond = row_key(live, ""), row_key(live, "\U0010ffff")
        rows = ViewRow.query(ViewRow._key > first, ViewRow._key < beyond).fetch(1_000)
        return sum(row.counts.get(walk.kind, 0) for row in rows) or None

    def _walked_over(self, walk: Walk) -> Any:
        if walk.kind == ROWS:
            return EntitySource(ViewRow, named=f"{walk.table}:")
        if walk.kind == MARKERS:
            return EntitySource(RowMarker, between=markers_between(walk.table))
        if walk.source_table:
            return EntitySource(ViewRow, named=f"{walk.source_table}:")
        kind = self._kinds(walk.view).get(walk.kind)
        if kind is not None:
            return EntitySource(kind)
        if self.views.catalog().building(self.views.views[walk.view]) == walk.table:
            raise Retry(f"{walk.table} is of another version, which knows {walk.kind}")
        return NumberSource(0)

    def _kinds(self, view: str) -> dict[str, Any]:
        known = self.views.views[view]
        return {kind_of(kind): kind for kind in (known.source, *known.joins)}

    def _walked(self, clients: Clients, walk: Walk) -> None:
        self.advance(clients, self.views.views[walk.view])

    def _dropped(self, clients: Clients, walk: Walk) -> None:
        """Drop the markers after the rows: a row that is gone takes no more updates."""
        if walk.kind == ROWS:
            self._start(clients, DROP, Walk(walk.view, walk.table, MARKERS))
            return
        transact(lambda: self._forget(walk))

    def _forget(self, walk: Walk) -> None:
        catalog = self.views.catalog()
        if walk.table in catalog.dropping(walk.view):
            self._put(catalog.without(walk.view, walk.table))

    def _fill(
        self, clients: Clients, walk: Walk, items: Sequence[Any]
    ) -> Sequence[ItemError | None]:
        """Contribute sources to the table, in the page's transaction.

        Raises:
            Wait: another version of this code fills the table: it will come along.
        """
        view = self.views.views[walk.view]
        catalog = self.views.catalog_here(clients)
        if catalog.building(view) != walk.table:
            # A walk over rows that have been replaced would bring back what they said.
            return [RefusedItemError(NOT_BUILT)] * len(items)
        if not catalog.is_known(view, walk.table):
            raise Retry(f"{walk.table} is of another version")
        sources = ndb.get_multi([item.key for item in items])
        refusals = [self.views.refusal(view, source) if source else None for source in sources]
        both = zip(sources, refusals, strict=True)
        good = [source for source, refusal in both if source and not refusal]
        self.views.refresh_in_transaction(clients, good)
        return [RefusedItemError(refusal) if refusal else None for refusal in refusals]

    def _settle(
        self, clients: Clients, walk: Walk, items: Sequence[Any]
    ) -> Sequence[ItemError | None]:
        """Defer the sources whose contributions are not in their rows yet."""
        if self.views.catalog().building(self.views.views[walk.view]) != walk.table:
            return [RefusedItemError(NOT_BUILT)] * len(items)
        identities = [self.views.identity(item.key) for item in items]
        markers = ndb.get_multi([marker_key(identity) for identity in identities])
        wanted: dict[Any, int] = {}
        of_item: list[list[Any]] = []
        for identity, marker in zip(identities, markers, strict=True):
            rows = marker.contributions.get(walk.table, {}) if marker else {}
            keys = [_held_key(walk.table, row, identity) for row in rows]
            wanted.update(zip(keys, [known[0] for known in rows.values()], strict=True))
            of_item.append(keys)
        found = dict(zip(wanted, ndb.get_multi(list(wanted)), strict=True))
        there = {key for key, held in found.items() if held and held.sequence >= wanted[key]}
        return [
            None if there.issuperset(keys) else DeferredItemError("its update waits")
            for keys in of_item
        ]

    # Verify

    def verify(self, clients: Clients, view: type[View], verify_id: str) -> None:
        """Begin to verify the table that is read, once for each verify_id."""
        for run_id, walk in self._verify_walks(view, verify_id):
            continuations.start(
                clients, self.check, walk, run_id=run_id, expected=self._guess(walk)
            )

    def verification(self, clients: Clients, view: type[View], verify_id: str) -> Verification:
        """Return what a verification has found so far.

        Raises:
            UnknownRunError: it was not begun.
        """
        walks = self._verify_walks(view, verify_id)
        runs = [progress(run_id, dots=False) for run_id, _ in walks]
        found = [
            Difference(_where(mishap.name), mishap.reason)
            for run in runs
            if run.totals.failed
            for mishap in item_issues(run.run_id)
            if mishap.outcome == FAILED
        ]
        is_over = all(run.state == FINISHED for run in runs)
        return Verification(
            FINISHED if is_over else "running",
            sum(run.totals.ended for run in runs),
            sum(run.expected for run in runs),
            found,
            sum(run.totals.retrying for run in runs),
        )

    def _verify_walks(self, view: type[View], verify_id: str) -> list[tuple[str, Walk]]:
        catalog = self.views.catalog()
        table = catalog.live(view)
        walks = self._walks(
            replace(catalog, begun_with={}), view, table
        )  # As this code would do it.
        walks.append(Walk(view.name, table, ROWS, walks[0].source_table))
        return [(hashed_name(VERIFY, view.name, verify_id, walk.kind), walk) for walk in walks]

    def _verify(
        self, clients: Clients, walk: Walk, items: Sequence[Any]
    ) -> Sequence[ItemError | None]:
        look = self._look_at_rows if walk.kind == ROWS else self._look_at_sources
        keys = [item.key for item in items]
        first = look(walk, keys)
        doubtful = [key for key in keys if first[key]]
        second = look(walk, doubtful) if doubtful else {}
        if doubtful and not self._is_read(walk):
            return [SkippedItemError("its table has been replaced")] * len(keys)
        return [_judged(first[key], second.get(key)) for key in keys]

    def _is_read(self, walk: Walk) -> bool:
        """Return whether a walk's table is read still, and stands on one that is."""
        catalog, view = self.views.catalog(), self.views.views[walk.view]
        is_below_read = not walk.source_table or catalog.live(view.source) == walk.source_table
        return is_below_read and catalog.live(view) == walk.table

    def _look_at_sources(self, walk: Walk, keys: Sequence[Any]) -> dict[Any, _Doubt | None]:
        """Compare sources with their markers, and those with the rows'."""
        identities = [self.views.identity(key) for key in keys]
        both = ndb.get_multi([*keys, *map(marker_key, identities)])
        sources, markers = both[: len(keys)], both[len(keys) :]
        held_keys = [
            _held_key(walk.table, row, identity)
            for identity, marker in zip(identities, markers, strict=True)
            for row in _known(marker, walk.table)
        ]
        held_keys += {key.parent() for key in held_keys}
        held = dict(zip(held_keys, ndb.get_multi(held_keys), strict=True))
        view = self.views.views[walk.view]
        doubts: dict[Any, _Doubt | None] = {}
        for key, identity, source, marker in zip(keys, identities, sources, markers, strict=True):
            try:
                rows = self.views.rows_for(view, identity.kind(), source)
            except BadContributionError as error:
                doubts[key] = _Doubt(str(error), None)
            else:
                doubts[key] = _doubt_source(walk.table, identity, rows, marker, held)
        return doubts

    def _look_at_rows(self, walk: Walk, keys: Sequence[Any]) -> dict[Any, _Doubt | None]:
        return {key: self._doubt_of(walk, key) for key in keys}

    def _doubt_of(self, walk: Walk, key: Any) -> _Doubt | None:
        """Compare a row; one that cannot even be read is a difference and stops no other."""
        try:
            return self._doubt_row(walk, key)
        except TRANSIENT:
            raise
        except Exception as error:
            name = key.id().partition(":")[2]
            return _Doubt(f"row {name} cannot be read: {type(error).__name__}: {error}", None)

    def _doubt_row(self, walk: Walk, key: Any) -> _Doubt | None:
        """Compare a row with what its markers add up to, and those with their sources."""
        row = key.get() or empty_row(key)
        sum_of = empty_row(key)
        name = key.id().partition(":")[2]
        ranked = self.views.views[walk.view].ranked
        prefixes = {measure: rank_prefix(key, measure) for measure in ranked}
        misplaced: list[str] = []
        strangers: Counter[str] = Counter()
        after = None
        while True:
            page = markers_of(key, after=after).fetch(SCANNED)
            sources = [source_key(marker.key.id()) for marker in page]
            stored = [self._stored_as(walk, source) for source in sources]
            both = ndb.get_multi([*map(marker_key, sources), *stored])
            of_sources = zip(page, both[: len(page)], both[len(page) :], strict=True)
            for marker, its_own, source in of_sources:
                add_entry(sum_of, RowEntry(marker.key.id(), marker.sequence, marker.measures))
                if marker.ranks != ranks_of(marker.measures, prefixes):
                    misplaced.append(marker.key.id())
                said = _known(its_own, walk.table).get(name)
                if source is None or said != [marker.sequence, marker.measures]:
                    strangers[marker.key.id()] += 1
            if len(page) < SCANNED:
                break
            after = page[-1].key
        state = (row.fingerprint, sum_of.fingerprint, sorted(strangers), misplaced)
        says, should = (row.counts, row.sums), (sum_of.counts, sum_of.sums)
        if says != should or row.fingerprint != sum_of.fingerprint:
            return _Doubt(f"row {name} says {says}, its markers add up to {should}", state)
        if strangers:
            some = ", ".join(str(source_key(source)) for source in list(strangers)[:3])
            words = f"row {name} holds {len(strangers)} sources that do not say so: {some}"
            return _Doubt(words, state, waits=_waits(walk.table, name))
        if misplaced:
            some = ", ".join(str(source_key(source)) for source in misplaced[:3])
            words = f"row {name} ranks {len(misplaced)} sources by other values: {some}"
            return _Doubt(words, state)
        return None

    def _stored_as(self, walk: Walk, identity: Any) -> Any:
        """Return the key of a source's entity: a view's row is stored under its table."""
        if not walk.source_table or identity.kind() != view_name(walk.source_table):
            return identity
        return row_key(walk.source_table, identity.id())


def sweep_all(clients: Clients, groups: Sequence[ViewMaintenance]) -> int:
    """Go on with the tables of some groups; return how many are busy. One that fails stops none."""
    busy: list[int] = []
    _each([lambda group=group: busy.append(group.sweep(clients)) for group in groups])  # type: ignore[misc]
    return sum(busy)


def _each(acts: Sequence[Callable[[], Any]]) -> None:
    """Do all of some acts, whichever of them fail: what is broken is left to the next sweep.

    Raises:
        google.api_core.exceptions.GoogleAPIError: a service was unwell; said when all are done.
    """
    complaint = "a step of a build is left to the next sweep"
    run_each((complaint, act) for act in acts).raise_first(*TRANSIENT)


def _is_ours(catalog: Catalog, view: type[View], table: str) -> bool:
    """Return whether a table that is being built is what this code would build."""
    begun = catalog.begun(table)
    is_same = begun is None or set(begun.kinds) == set(view.functions())
    return catalog.is_known(view, table) and is_same


def _begun_anew(catalog: Catalog, name: str, view: type[View] | None) -> Catalog:
    """Return a catalog in which a view is being built whose sources have been replaced.

    It does not go back to an older definition: what a later version reads, that one builds.
    """
    if view is not None and definition_of(catalog.live(view)) <= view.definition:
        return catalog.with_next(view)
    return catalog.with_next_alike(name)


@dataclass(frozen=True)
class _Doubt:
    """Something that does not fit: `state` changes when anybody writes meanwhile."""

    words: str
    state: Any
    waits: bool = False  # An update is under way that may explain it.


def _judged(first: _Doubt | None, second: _Doubt | None) -> ItemError | None:
    """Say what becomes of an item that was looked at twice."""
    if first is None or second is None:
        return None
    if first.waits or second.waits or first != second:
        return DeferredItemError(f"{second.words}: it is being changed")
    return RefusedItemError(second.words)


def _doubt_source(
    table: str,
    source: Any,
    rows: Mapping[str, Any],
    marker: SourceMarker | None,
    held: Mapping[Any, Any],
) -> _Doubt | None:
    known = _known(marker, table)
    state = (marker.sequence if marker else 0, sorted(rows))
    noted = {row: measures for row, (_, measures) in known.items()}
    if noted != rows:
        return _Doubt(f"its marker says {noted}, it contributes {dict(rows)}", state)
    for row, (sequence, measures) in known.items():
        there = held[_held_key(table, row, source)]
        if there is None or there.sequence < sequence:
            has = there.sequence if there else "nothing of it"
            words = f"row {row} does not hold its change {sequence}, it has {has}"
            return _Doubt(words, state, waits=_waits(table, row))
        if there.sequence == sequence and there.measures != measures:
            return _Doubt(f"row {row} holds {there.measures}, not {measures}", state)
        if held[row_key(table, row)] is None:
            return _Doubt(f"row {row} is not there", state, waits=_waits(table, row))
    return None


def _known(marker: SourceMarker | None, table: str) -> dict[str, list[Any]]:
    return marker.contributions.get(table, {}) if marker else {}


def _waits(table: str, row: str) -> bool:
    """Return whether updates of a row wait: applied and released is one commit."""
    return has_pending(f"{table}:{row}")


def _held_key(table: str, row: str, source: Any) -> Any:
    return row_marker_key(row_key(table, row), source_name(source))


def _drop(clients: Clients, walk: Walk, items: Sequence[Any]) -> Sequence[ItemError | None]:
    ndb.delete_multi([item.key for item in items])
    return [None] * len(items)


def _where(name: str) -> str:
    """Return a source's or a row's name as people know it."""
    try:
        key = ndb.Key(urlsafe=name.encode())
    except Exception:
        return name
    return "/".join(str(part) for part in key.flat())


def _run_id(step: str, walk: Walk) -> str:
    return hashed_name("views", step, walk.table, walk.kind)


def _runs(walks: Sequence[Walk], step: str) -> list[Progress]:
    """Return the runs of a step that have begun."""
    runs = []
    for walk in walks:
        try:
            runs.append(progress(_run_id(step, walk), dots=False))
        except UnknownRunError:
            continue
    return runs
