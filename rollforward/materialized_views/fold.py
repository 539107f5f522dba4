"""How a row takes updates: what is read for it, which of them change it, and how it is stored.

What the row holds of a source afterwards, by what is stored when an update of it comes:

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
class Snapshot:
    """What an apply has to know: the catalog, the row, its markers, and the sources' own."""

    catalog: ViewCatalog | None
    row: ViewRow | None
    row_markers: Mapping[str, RowMarker | None]
    source_markers: Mapping[str, SourceMarker | None]


def read_for_apply(catalog: Any, key: Any, newest: Mapping[str, Update]) -> Snapshot:
    """Read a row, its markers, and the sources' markers where the row knows nothing of them.

    Args:
        catalog: The key of a copy of the catalog.
    """
    sources = list(newest)
    likely = [source for source in sources if newest[source].is_first]
    own = [row_marker_key(key, source) for source in sources]
    theirs = [marker_key(source_key(source)) for source in likely]
    copy, row, *found = ndb.get_multi([catalog, key, *own, *theirs])
    row_markers = dict(zip(sources, found[: len(sources)], strict=True))
    source_markers = dict(zip(likely, found[len(sources) :], strict=True))
    unlikely = [
        source for source in sources if row_markers[source] is None and source not in source_markers
    ]
    if unlikely:
        more = ndb.get_multi([marker_key(source_key(source)) for source in unlikely])
        source_markers.update(zip(unlikely, more, strict=True))
    return Snapshot(copy, row, row_markers, source_markers)


def fold(
    row: ViewRow, newest: Mapping[str, Update], read: Snapshot, args: Apply
) -> dict[str, RowEntry | None]:
    """Bring a row up to date; return what it holds now of each source that changed.

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
    """Return what a source contributes to a row that has no marker of it.

    The source was never in this row, or has left it. Only the source's own marker can tell a new
    update from a stale one.
    """
    if marker is None:
        return None
    known = marker.contributions.get(args.table, {}).get(args.row)
    return RowEntry(source, known[0], known[1]) if known else None


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
