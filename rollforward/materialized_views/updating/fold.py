"""Folding updates into a row: reading, deciding which updates change it, storing.

The row's entry of a source afterwards, by the markers stored when an update of the source comes:

| the row's marker of the source | the row holds afterwards |
|---|---|
| of the same change, or a newer one | what it held: the update is stale |
| of an older change | what the update brings; nothing, if the source leaves |
| none, and the source's own marker names the row | what that marker says, not the update |
| none, and the source's own marker does not | nothing: the source has left, the update is late |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.datastore import current
from rollforward.datastore.conversion.keys import new_entity
from rollforward.materialized_views.entities import (
    RowMarker,
    SourceMarker,
    ViewCatalog,
    ViewRow,
    marker_key,
    rank_prefix,
    row_key,
    row_marker_key,
    table_and_row,
)
from rollforward.materialized_views.rows import (
    MAX_SUMS,
    BadContributionError,
    RowEntry,
    add_entry,
    ranks_of,
    remove_entry,
)
from rollforward.materialized_views.updates import (
    RowUpdates,
    Update,
    last_updates,
    source_key,
)
from rollforward.materialized_views.view import View


@dataclass(frozen=True)
class ApplySnapshot:
    """The entities that an apply reads: the catalog, the row, its markers, the sources' markers."""

    catalog: ViewCatalog | None
    row: ViewRow | None
    row_markers: Mapping[str, RowMarker | None]
    source_markers: Mapping[str, SourceMarker | None]


@dataclass(frozen=True)
class ApplyReads:
    """The reads of an apply, beside the catalog.

    Attributes:
        table: Its name.
        rows: The updates of each row, by its key.
        newest: The last update of each source, by the key of its row.
        pairs: A row's key and a source, for each marker of a row.
        likely: The sources whose own markers are likely to be needed.
        keys: The keys of the rows, of the markers of rows, and of the markers of sources.
    """

    table: str
    rows: Mapping[Any, RowUpdates]
    newest: Mapping[Any, Mapping[str, Update]]
    pairs: Sequence[tuple[Any, str]]
    likely: Sequence[str]
    keys: Sequence[Any]

    @classmethod
    def of(cls, table: str, rows: Sequence[RowUpdates]) -> ApplyReads:
        """Return the reads for updates of some rows of a table."""
        by_key = {row_key(table, row.row): row for row in rows}
        newest = {key: last_updates(row.updates) for key, row in by_key.items()}
        pairs = [(key, source) for key, by_source in newest.items() for source in by_source]
        likely = [*dict.fromkeys(name for key, name in pairs if newest[key][name].is_first)]
        markers = [row_marker_key(key, source) for key, source in pairs]
        source_markers = [marker_key(source_key(name)) for name in likely]
        keys = [*newest, *markers, *source_markers]
        return cls(table, by_key, newest, pairs, likely, keys)


def read_for_apply(catalog: Any, reads: ApplyReads) -> dict[Any, ApplySnapshot]:
    """Read rows, their markers, and the sources' markers where a row knows nothing of them.

    Args:
        catalog: The key of a copy of the catalog.
    """
    copy, *entities = current.get_multi([catalog, *reads.keys])
    rows = dict(zip(reads.newest, entities, strict=False))
    markers = dict(zip(reads.pairs, entities[len(rows) :], strict=False))
    source_markers = dict(zip(reads.likely, entities[len(rows) + len(markers) :], strict=True))
    unlikely = {
        source: None
        for (key, source), marker in markers.items()
        if marker is None and source not in source_markers
    }
    if unlikely:
        unlikely_markers = ndb.get_multi([marker_key(source_key(name)) for name in unlikely])
        source_markers.update(zip(unlikely, unlikely_markers, strict=True))
    return {
        key: ApplySnapshot(
            copy, rows[key], {source: markers[key, source] for source in newest}, source_markers
        )
        for key, newest in reads.newest.items()
    }


def fold(
    row: ViewRow, newest: Mapping[str, Update], read: ApplySnapshot
) -> dict[str, RowEntry | None]:
    """Bring a row up to date; return its new entry for each source that changed.

    Raises:
        BadContributionError: it would have more measures than a row can hold.
    """
    limit = max(MAX_SUMS, len(row.sums))
    changed: dict[str, RowEntry | None] = {}
    for source, update in newest.items():
        row_marker = read.row_markers[source]
        if row_marker is None:
            entry = _from_source_marker(update, read.source_markers[source], row.key)
            if entry is None:
                continue
        elif _is_older(row_marker, update):
            entry = _from_update(update)
            remove_entry(row, RowEntry(source, row_marker.sequence, row_marker.measures))
        else:
            continue
        if entry is not None:
            add_entry(row, entry)
        changed[source] = entry
    if len(row.sums) > limit:
        table, name = table_and_row(row.key)
        many = f"row {name} of {table} would have {len(row.sums)} measures"
        hint = "let its sources share names, or part it into rows"
        raise BadContributionError(f"{many}, at most {limit}: {hint}")
    return changed


def _is_older(row_marker: RowMarker, update: Update) -> bool:
    """Return whether a row holds less of a source than an update brings."""
    return bool(row_marker.sequence < update.sequence)


def _from_update(update: Update) -> RowEntry | None:
    if update.measures is None:
        return None
    return RowEntry(update.source, update.sequence, update.measures)


def _from_source_marker(update: Update, marker: SourceMarker | None, row: Any) -> RowEntry | None:
    """Return a source's entry for a row that has no marker of it.

    The source was never in this row, or has left it. Only the source's own marker can tell a new
    update from a stale one.
    """
    if marker is None:
        return None
    table, name = table_and_row(row)
    stored = marker.contributions.get(table, {}).get(name)
    return RowEntry(update.source, stored[0], stored[1]) if stored else None


def put_row(view: type[View], row: ViewRow, changed: Mapping[str, RowEntry | None]) -> None:
    """Store a row and its markers; a row without sources is deleted."""
    prefixes = {measure: rank_prefix(row.key, measure) for measure in view.ranked}
    for source, entry in changed.items():
        key = row_marker_key(row.key, source)
        if entry is None:
            current.delete(key)
            continue
        ranks = ranks_of(entry.measures, prefixes)
        values = {"sequence": entry.sequence, "measures": dict(entry.measures), "ranks": ranks}
        current.put(new_entity(RowMarker, key, **values))
    if row.counts:
        current.put(row)
    else:
        current.delete(row.key)
