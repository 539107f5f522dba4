"""Walks of a group's jobs over sources, rows and markers, and their progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.continuations.errors import UnknownRunError
from rollforward.continuations.progress import RunProgress, progress
from rollforward.continuations.sources import EntitySource, Slice, Span
from rollforward.materialized_views.catalog import Catalog, CatalogStore, TableSpec
from rollforward.materialized_views.definitions import ViewDefinitions
from rollforward.materialized_views.entities import (
    RowMarker,
    SourceMarker,
    ViewRow,
    markers_between,
    row_key,
)
from rollforward.materialized_views.view import View, is_view, kind_of
from rollforward.runtime.clients import Clients
from rollforward.tasks.declaration import hashed_name
from rollforward.tasks.errors import OtherVersionError, Retry

BACKFILL, CATCH_UP, DROP, VERIFY = "backfill", "catch-up", "drop", "verify"
CONFIRM = "confirm"  # The walk of the catch-up once more.
ROWS = "rows"  # In place of a kind of source: the table's own rows.
MARKERS = "markers"  # The markers of its rows.
# An update in flight mostly arrives a moment later, and after a crash within a sweep's minute. What
# takes longer, as paced updates do, is looked at ever more rarely.
LOOK_AGAIN_S = (1.0, 2.0, 4.0, 8.0, *[15.0] * 4, 90.0, 90.0, 120.0, 300.0, 600.0)
# So many rows are read to guess how many items a walk will meet.
MAX_ROWS_COUNTED = 1_000


@dataclass(frozen=True)
class Walk:
    """The items of a run: the sources of one kind, or the rows or markers of a table."""

    view: str
    table: str
    kind: str
    source_table: str = ""  # When the sources are a view's rows: of which table.
    is_of_sources: bool = False  # They are of a kind that is called as the walks over rows are.

    def run_id(self, step: str) -> str:
        """Return the id of this walk's run in one step of a build."""
        return hashed_name("views", step, self.table, self.kind)


class NoItems:
    """The source of a walk that has nothing to do any more: the items of its pages are gone."""

    def split(self, max_spans: int) -> list[Span]:
        return [Span()]

    def read(self, span: Span, size: int) -> Slice[Any]:
        return Slice([], [], "", None)

    def load(self, load_from: str, names: Sequence[str]) -> list[Any]:
        return [None] * len(names)


@dataclass(frozen=True)
class Walks:
    """The walks over the sources of a group."""

    definitions: ViewDefinitions
    catalogs: CatalogStore

    def of_table(
        self, catalog: Catalog, view: type[View], table: str, spec: TableSpec | None
    ) -> list[Walk]:
        """Return a walk for each kind of source in a specification; None: as this code has them."""
        kinds = (spec or TableSpec.by(view)).kinds
        below = catalog.live(view.source) if is_view(view.source) else ""
        source_kind = kind_of(view.source)
        return [
            Walk(view.name, table, kind, below if kind == source_kind else "") for kind in kinds
        ]

    def rows(self, walk: Walk) -> Any:
        """Return the keys of a table's rows, or of their markers, as a source of a run."""
        if walk.kind == ROWS:
            return EntitySource(ViewRow, key_prefix=f"{walk.table}:", keys_only=True)
        return EntitySource(RowMarker, key_range=markers_between(walk.table), keys_only=True)

    def sources(self, walk: Walk) -> Any:
        """Return the keys of the sources of one kind, as a source of a run.

        A walk over sources that this version does not know ends once its table is gone.

        Raises:
            OtherVersionError: only another version of the app has the view.
            Retry: only another version of the app knows these sources, and builds their table.
        """
        if walk.source_table:
            return EntitySource(ViewRow, key_prefix=f"{walk.source_table}:", keys_only=True)
        view = self.definitions.views.get(walk.view)
        kinds = {kind_of(kind): kind for kind in (view.source, *view.joins)} if view else {}
        if walk.kind in kinds:
            return EntitySource(kinds[walk.kind], keys_only=True)
        catalog = self.catalogs.read()
        if view is None and not catalog.is_gone(walk.table):
            raise OtherVersionError(f"{walk.table} belongs to another version, which has its view")
        if view is not None and catalog.building(view) == walk.table:
            raise Retry(f"{walk.table} belongs to another version, which knows {walk.kind}")
        return NoItems()

    def guess(self, walk: Walk) -> int | None:
        """Return about how many items a walk will meet, by the counts of the table that is read."""
        if walk.kind in (ROWS, MARKERS):
            return None
        live = self.catalogs.read().live(self.definitions.views[walk.view])
        start, end = row_key(live, ""), row_key(live, "\U0010ffff")
        rows = ViewRow.query(ViewRow._key > start, ViewRow._key < end).fetch(MAX_ROWS_COUNTED)
        return sum(row.counts.get(walk.kind, 0) for row in rows) or None


def runs_of(clients: Clients, walks: Sequence[Walk], step: str) -> list[RunProgress]:
    """Return the runs of a step that have begun."""
    runs = []
    for walk in walks:
        try:
            runs.append(progress(walk.run_id(step), dots=False, clients=clients))
        except UnknownRunError:
            continue
    return runs


def last_tries(runs: Sequence[RunProgress], clients: Clients) -> list[RunProgress]:
    """Return the last retry of each run, or the run itself if it was not retried."""
    tries = []
    for run in runs:
        latest = run
        while latest.retried_by is not None:
            latest = progress(latest.retried_by, dots=False, clients=clients)
        tries.append(latest)
    return tries


def contributions_of(marker: SourceMarker | None, table: str) -> dict[str, list[Any]]:
    """Return a source's contributions to a table by its marker: {row: [sequence, measures]}."""
    return marker.contributions.get(table, {}) if marker else {}
