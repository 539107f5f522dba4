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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.materialized_views.entities import (
    RowMarker,
    SourceMarker,
    ViewCatalog,
    ViewRow,
    marker_key,
    rank_prefix,
    row_marker_key,
)
from rollforward.materialized_views.rows import (
    MAX_SUMS,
    BadContributionError,
    RowEntry,
    add_entry,
    ranks_of,
    remove_entry,
)
from rollforward.materialized_views.updates import Apply, Update, source_key
from rollforward.materialized_views.view import View


@dataclass(frozen=True)
class ApplySnapshot:
    """The entities that an apply reads: the catalog, the row, its markers, the sources' markers."""

    catalog: ViewCatalog | None
    row: ViewRow | None
    row_markers: Mapping[str, RowMarker | None]
    source_markers: Mapping[str, SourceMarker | None]


def read_for_apply(
    catalog: Any, newest_by_row: Mapping[Any, Mapping[str, Update]]
) -> dict[Any, ApplySnapshot]:
    """Read rows, their markers, and the sources' markers where a row knows nothing of them.

    Args:
        catalog: The key of a copy of the catalog.
        newest_by_row: The last update of each source, by the row's key.
    """
    pairs = [(key, source) for key, newest in newest_by_row.items() for source in newest]
    likely = {
        source: None
        for newest in newest_by_row.values()
        for source, update in newest.items()
        if update.is_first
    }
    row_keys = [*newest_by_row]
    marker_keys = [row_marker_key(key, source) for key, source in pairs]
    copy, *entities = ndb.get_multi(
        [catalog, *row_keys, *marker_keys, *(marker_key(source_key(name)) for name in likely)]
    )
    rows = dict(zip(row_keys, entities, strict=False))
    markers = dict(zip(pairs, entities[len(row_keys) :], strict=False))
    source_markers = dict(zip(likely, entities[len(row_keys) + len(pairs) :], strict=True))
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
        for key, newest in newest_by_row.items()
    }


def fold(
    row: ViewRow, newest: Mapping[str, Update], read: ApplySnapshot, args: Apply
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
            entry = _from_source_marker(source, read.source_markers[source], args)
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
        many = f"row {args.row} of {args.table} would have {len(row.sums)} measures"
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


def _from_source_marker(source: str, marker: SourceMarker | None, args: Apply) -> RowEntry | None:
    """Return a source's entry for a row that has no marker of it.

    The source was never in this row, or has left it. Only the source's own marker can tell a new
    update from a stale one.
    """
    if marker is None:
        return None
    stored = marker.contributions.get(args.table, {}).get(args.row)
    return RowEntry(source, stored[0], stored[1]) if stored else None


def put_row(view: type[View], row: ViewRow, changed: Mapping[str, RowEntry | None]) -> None:
    """Store a row and its markers; a row without sources is deleted."""
    prefixes = {measure: rank_prefix(row.key, measure) for measure in view.ranked}
    for source, entry in changed.items():
        key = row_marker_key(row.key, source)
        if entry is None:
            key.delete()
            continue
        ranks = ranks_of(entry.measures, prefixes)
        measures = dict(entry.measures)
        RowMarker(key=key, sequence=entry.sequence, measures=measures, ranks=ranks).put()
    if row.counts:
        row.put()
    else:
        row.key.delete()
