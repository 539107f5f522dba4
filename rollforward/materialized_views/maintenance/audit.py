"""Audits: a source, or a row, compared with the expected one.

A difference is a doubt first. It counts if a second audit finds it again and no update in flight
may explain it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.cloud import ndb

from rollforward.continuations.jobs import DeferredItemError, ItemError, RefusedItemError
from rollforward.datastore.transactions import TRANSIENT
from rollforward.materialized_views.catalog import view_name
from rollforward.materialized_views.definitions import ViewDefinitions, identity
from rollforward.materialized_views.entities import (
    RowMarker,
    SourceMarker,
    ViewRow,
    marker_key,
    markers_of,
    rank_prefix,
    row_key,
    row_marker_key,
    table_and_row,
)
from rollforward.materialized_views.maintenance.walks import Walk, contributions_of
from rollforward.materialized_views.rows import (
    BadContributionError,
    RowEntry,
    add_entry,
    empty_row,
    ranks_of,
)
from rollforward.materialized_views.updates import source_key, source_name
from rollforward.materialized_views.updating.transport import has_pending
from rollforward.runtime.texts import describe_error

# Markers of a row that are read at once.
PAGE_SIZE = 500


@dataclass(frozen=True)
class Doubt:
    """A difference found by one audit. A write between two audits changes `state`."""

    message: str
    state: Any
    is_pending: bool = False  # An update is in flight that may explain it.


def compare(first: Doubt | None, second: Doubt | None) -> ItemError | None:
    """Return what becomes of an item that was audited twice."""
    if first is None or second is None:
        return None
    if first.is_pending or second.is_pending or first != second:
        return DeferredItemError(f"{second.message}: it is being changed")
    return RefusedItemError(second.message)


def audit_sources(
    definitions: ViewDefinitions, walk: Walk, keys: Sequence[Any]
) -> dict[Any, Doubt | None]:
    """Compare sources with their markers, and those with the rows'."""
    identities = [identity(key) for key in keys]
    entities = ndb.get_multi([*keys, *map(marker_key, identities)])
    sources, markers = entities[: len(keys)], entities[len(keys) :]
    row_markers = [
        row_marker_of(walk.table, row, source_id)
        for source_id, marker in zip(identities, markers, strict=True)
        for row in contributions_of(marker, walk.table)
    ]
    stored_keys = [*row_markers, *{key.parent() for key in row_markers}]
    stored = dict(zip(stored_keys, ndb.get_multi(stored_keys), strict=True))
    view = definitions.views[walk.view]
    doubts: dict[Any, Doubt | None] = {}
    for key, source_id, source, marker in zip(keys, identities, sources, markers, strict=True):
        try:
            rows = definitions.rows_for(view, source_id.kind(), source)
        except BadContributionError as error:
            doubts[key] = Doubt(str(error), None)
        else:
            doubts[key] = source_doubt(walk.table, source_id, rows, marker, stored)
    return doubts


def source_doubt(
    table: str,
    source: Any,
    rows: Mapping[str, Any],
    marker: SourceMarker | None,
    stored: Mapping[Any, Any],
) -> Doubt | None:
    """Compare a source's contributions with its marker, and the marker with its rows.

    Args:
        stored: Rows and their markers, by key.
    """
    marked_rows = contributions_of(marker, table)
    state = (marker.sequence if marker else 0, sorted(rows))
    marked = {row: measures for row, (_, measures) in marked_rows.items()}
    if marked != rows:
        return Doubt(f"its marker says {marked}, it contributes {dict(rows)}", state)
    for row, (sequence, measures) in marked_rows.items():
        held = stored[row_marker_of(table, row, source)]
        if held is None or held.sequence < sequence:
            has = held.sequence if held else "nothing of it"
            message = f"row {row} does not hold its change {sequence}, it has {has}"
            return Doubt(message, state, is_pending=has_pending(f"{table}:{row}"))
        if held.sequence == sequence and held.measures != measures:
            return Doubt(f"row {row} holds {held.measures}, not {measures}", state)
        if stored[row_key(table, row)] is None:
            is_pending = has_pending(f"{table}:{row}")
            return Doubt(f"row {row} is not there", state, is_pending)
    return None


def row_marker_of(table: str, row: str, source: Any) -> Any:
    """Return the key of a source's marker in a row of a table."""
    return row_marker_key(row_key(table, row), source_name(source))


def audit_row(walk: Walk, key: Any, ranked: Sequence[str]) -> Doubt | None:
    """Compare a row; one that cannot even be read is a difference and stops no other."""
    try:
        return RowAudit.scan(walk, key, ranked).verdict()
    except TRANSIENT:
        raise
    except Exception as error:
        _, name = table_and_row(key)
        return Doubt(f"row {name} cannot be read: {describe_error(error)}", None)


@dataclass
class RowAudit:
    """A row and the sum of its markers: `scan` fills it, `verdict` reads it."""

    table: str
    row: ViewRow
    markers_sum: ViewRow
    strangers: list[str] = field(default_factory=list)  # Sources that do not say they are in it.
    misplaced: list[str] = field(default_factory=list)  # Sources that are ranked by other values.

    @classmethod
    def scan(cls, walk: Walk, key: Any, ranked: Sequence[str]) -> RowAudit:
        """Read a row, all of its markers, and their sources."""
        audit = cls(walk.table, key.get() or empty_row(key), empty_row(key))
        prefixes = {measure: rank_prefix(key, measure) for measure in ranked}
        cursor = None
        while True:
            page = markers_of(key, after=cursor).fetch(PAGE_SIZE)
            audit._add(walk, page, prefixes)
            if len(page) < PAGE_SIZE:
                return audit
            cursor = page[-1].key

    def _add(self, walk: Walk, page: Sequence[RowMarker], prefixes: Mapping[str, str]) -> None:
        """Add a page of the row's markers up, each compared with its source."""
        sources = [source_key(marker.key.id()) for marker in page]
        source_markers = [marker_key(source) for source in sources]
        entities = [_stored_as(walk, source) for source in sources]
        stored = ndb.get_multi([*source_markers, *entities])
        by_marker = zip(page, stored[: len(page)], stored[len(page) :], strict=True)
        for marker, source_marker, entity in by_marker:
            name = marker.key.id()
            add_entry(self.markers_sum, RowEntry(name, marker.sequence, marker.measures))
            if marker.ranks != ranks_of(marker.measures, prefixes):
                self.misplaced.append(name)
            says = contributions_of(source_marker, self.table).get(self.name)
            if entity is None or says != [marker.sequence, marker.measures]:
                self.strangers.append(name)

    @property
    def name(self) -> str:
        """The row's name, as it is stored."""
        return table_and_row(self.row.key)[1]

    def verdict(self) -> Doubt | None:
        """Return the first thing that is wrong with the row."""
        says, should = _content(self.row), _content(self.markers_sum)
        state = (
            self.row.fingerprint,
            self.markers_sum.fingerprint,
            sorted(self.strangers),
            self.misplaced,
        )
        row = f"row {self.name}"
        if says != should or self.row.fingerprint != self.markers_sum.fingerprint:
            return Doubt(f"{row} says {says}, its markers add up to {should}", state)
        if self.strangers:
            count, some = len(self.strangers), _some(self.strangers)
            message = f"{row} holds {count} sources that do not say so: {some}"
            return Doubt(message, state, is_pending=has_pending(f"{self.table}:{self.name}"))
        if self.misplaced:
            count, some = len(self.misplaced), _some(self.misplaced)
            return Doubt(f"{row} ranks {count} sources by other values: {some}", state)
        return None


def _content(row: ViewRow) -> tuple[Any, Any]:
    return row.counts, row.sums


def _some(sources: Sequence[str]) -> str:
    return ", ".join(str(source_key(source)) for source in sources[:3])


def _stored_as(walk: Walk, source: Any) -> Any:
    """Return the key of a source's entity: a view's row is stored under its table."""
    if not walk.source_table or source.kind() != view_name(walk.source_table):
        return source
    return row_key(walk.source_table, source.id())
