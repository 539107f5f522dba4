"""Changes of a catalog as tables come and go: each function returns the changed catalog."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from rollforward.materialized_views.catalog import (
    RETIRED,
    Catalog,
    TableSet,
    TableSpec,
    table_name,
    version_of,
    view_name,
)
from rollforward.materialized_views.view import View


def with_view(catalog: Catalog, view: type[View]) -> Catalog:
    """List a view; a new one with its empty first table."""
    if view.name in catalog.views:
        return catalog
    return _with_spec(with_tables(catalog, view), catalog.live(view), TableSpec.by(view))


def with_next(catalog: Catalog, view: type[View]) -> Catalog:
    """Begin a view's next table, and give up the one that is being built, if one is."""
    entry = catalog.entry(view)
    return _with_next(catalog, view.name, entry, view.version, TableSpec.by(view))


def rebuilt(catalog: Catalog, name: str, view: type[View] | None) -> Catalog:
    """Begin the next table of a view whose sources are being replaced.

    It does not go back to an older version: a later version of the app builds the table it reads.
    So does the one that knows the view, if this code does not (None).
    """
    if view is not None and version_of(catalog.live(view)) <= view.version:
        return with_next(catalog, view)
    entry = TableSet.of(catalog.views[name])
    return _with_next(catalog, name, entry, version_of(entry.live), catalog.spec(entry.live))


def awaiting(catalog: Catalog, view: type[View], table: str) -> Catalog:
    """Let tokens wait for a table that is about to be read."""
    spec = catalog.spec(table) or TableSpec.by(view)
    return _with_spec(catalog, table, replace(spec, is_awaited=True))


def swapped(catalog: Catalog, view: type[View], table: str) -> Catalog:
    """Make a table the one that is read, and drop the one that was."""
    entry = catalog.entry(view)
    dropping = [*entry.dropping, entry.live]
    return with_tables(catalog, view, live=table, building=None, dropping=dropping)


def without_table(catalog: Catalog, view: str, table: str) -> Catalog:
    """Forget a table that has been dropped."""
    entry = TableSet.of(catalog.views[view])
    remaining = [other for other in entry.dropping if other != table]
    return _with_entry(catalog, view, replace(entry, dropping=remaining))


def retired(catalog: Catalog, view: str) -> Catalog:
    """Drop all tables of a view.

    Readers get an empty table that is never filled. A view that comes back is rebuilt then.
    """
    entry = TableSet.of(catalog.views[view])
    out = [table for table in (entry.live, entry.building) if table]
    build = entry.builds + 1
    live, dropping = table_name(view, RETIRED, build), [*entry.dropping, *out]
    return _with_entry(catalog, view, TableSet(live, builds=build, dropping=dropping))


def with_tables(catalog: Catalog, view: type[View], **changes: Any) -> Catalog:
    """Change some of one view's tables."""
    return _with_entry(catalog, view.name, replace(catalog.entry(view), **changes))


def _with_next(
    catalog: Catalog, name: str, entry: TableSet, version: int, spec: TableSpec | None
) -> Catalog:
    build = entry.builds + 1
    table = table_name(name, version, build)
    dropping = [*entry.dropping, *([entry.building] if entry.building else [])]
    entry = replace(entry, building=table, builds=build, dropping=dropping)
    return _with_spec(_with_entry(catalog, name, entry), table, spec)


def _with_entry(catalog: Catalog, name: str, entry: TableSet) -> Catalog:
    """Replace an entry's tables, keep its other stored fields and the specs of these tables."""
    views = {**catalog.views, name: {**catalog.views.get(name, {}), **asdict(entry)}}
    begun_with = {
        table: spec
        for table, spec in catalog.begun_with.items()
        if view_name(table) != name or table in (entry.live, entry.building)
    }
    return Catalog(views, begun_with)


def _with_spec(catalog: Catalog, table: str, spec: TableSpec | None) -> Catalog:
    added = {table: asdict(spec)} if spec else {}
    return Catalog(catalog.views, {**catalog.begun_with, **added})
