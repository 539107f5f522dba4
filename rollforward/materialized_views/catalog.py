"""The catalog of a group: the tables of its views, stored in equal copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from google.cloud import ndb

from rollforward.materialized_views.entities import (
    CATALOG_REPLICAS,
    ViewCatalog,
    catalog_key,
    catalog_keys,
)
from rollforward.materialized_views.view import MIN_VERSION, View
from rollforward.runtime.clients import Clients

# The version of the empty table of a view that was retired.
RETIRED = MIN_VERSION - 1


@dataclass(frozen=True)
class TableSet:
    """The tables of a view.

    `live` is read, `building` is being made, `dropping` are on their way out; `builds` is the
    number of the last one begun.
    """

    live: str
    building: str | None = None
    builds: int = 1
    dropping: Sequence[str] = ()

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> TableSet:
        """Return the stored tables, without fields that only a later version of the app knows."""
        names = {attribute.name for attribute in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in names})


@dataclass(frozen=True)
class TableSpec:
    """The specification of a table: the kinds of its sources, and the measures that it ranks.

    `is_awaited`: it is about to be read, so a token also waits for this table.
    """

    kinds: Sequence[str]
    ranked: Sequence[str]
    is_awaited: bool = False

    @classmethod
    def by(cls, view: type[View]) -> TableSpec:
        """Return the specification by which this code begins a table of a view."""
        return cls(list(view.functions()), list(view.ranked))


@dataclass(frozen=True)
class Catalog:
    """The tables of a group's views, by the name of the view.

    `begun_with` holds the TableSpec of each table, as stored.
    """

    views: Mapping[str, Mapping[str, Any]]
    begun_with: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, copy: ViewCatalog | None) -> Catalog:
        """Return the catalog in a stored copy; None: there is none yet."""
        return cls(copy.views, copy.begun_with or {}) if copy else cls({})

    def entry(self, view: type[View]) -> TableSet:
        """Return a view's tables; a view that was never built has an empty first one."""
        if view.name in self.views:
            return TableSet.of(self.views[view.name])
        return TableSet(table_name(view.name, view.version, 1))

    def live(self, view: type[View]) -> str:
        """Return the table that is read."""
        return self.entry(view).live

    def building(self, view: type[View]) -> str | None:
        """Return the table that is being built, if one is."""
        return self.entry(view).building

    def dropping(self, view: str) -> Sequence[str]:
        """Return the tables of a view that are on their way out, known here or not."""
        stored = self.views.get(view)
        return TableSet.of(stored).dropping if stored else ()

    def is_retired(self, view: str) -> bool:
        """Return whether a view has been retired: no code has its live table's version."""
        return version_of(self.views[view]["live"]) == RETIRED

    def tables(self, view: type[View]) -> list[str]:
        """Return the tables that take contributions of this version of the view."""
        entry = self.entry(view)
        existing = [table for table in (entry.live, entry.building) if table]
        return [table for table in existing if accepts(table, view)]

    def lasting_tables(self, view: type[View]) -> list[str]:
        """Return those of them that stay: the table that is read does not if one is being built."""
        replaced = self.live(view) if self.building(view) else None
        return [table for table in self.tables(view) if table != replaced]

    def accepts(self, view: type[View]) -> bool:
        """Return whether the table that is read takes contributions of this version."""
        return accepts(self.live(view), view)

    def spec(self, table: str) -> TableSpec | None:
        """Return a table's specification; None: an older version of the app stored none."""
        stored = self.begun_with.get(table)
        if stored is None:
            return None
        return TableSpec(stored["kinds"], stored["ranked"], stored.get("is_awaited", False))

    def is_known(self, view: type[View], table: str) -> bool:
        """Return whether this code may backfill, write and swap in a table of a view.

        Its version is the table's, and it has all kinds of sources and all ranked measures of the
        table. Otherwise another version of the app has to do it.
        """
        spec = self.spec(table) or TableSpec((), ())
        has_all = {*view.functions()}.issuperset(spec.kinds)
        return accepts(table, view) and has_all and {*view.ranked}.issuperset(spec.ranked)

    def required_tables(self, view: type[View]) -> set[str]:
        """Return the tables that must hold a token's changes before the token is satisfied."""
        entry = self.entry(view)
        spec = self.spec(entry.building) if entry.building else None
        return {
            entry.live,
            *([entry.building] if entry.building and spec and spec.is_awaited else []),
        }

    def downstream_of(self, view: type[View]) -> list[str]:
        """Return the views whose sources are this view's rows, also of those unknown here."""
        downstream = []
        for name, stored in self.views.items():
            specs = [self.spec(table) for table in (stored["live"], stored["building"]) if table]
            if any(spec and view.name in spec.kinds for spec in specs):
                downstream.append(name)
        return downstream

    def is_gone(self, table: str) -> bool:
        """Return whether a table has been replaced; of views unknown here as well."""
        entry = self.views.get(view_name(table))
        return entry is not None and table not in (entry["live"], entry["building"])


@dataclass(frozen=True)
class CatalogStore:
    """The stored catalog of a group: in equal copies, so that no single row is hot."""

    group: str

    def any_copy(self, clients: Clients) -> Any:
        """Return the key of one of the copies, at random."""
        return catalog_key(self.group, clients.random.randrange(CATALOG_REPLICAS))

    def read(self) -> Catalog:
        """Return which tables there are."""
        return Catalog.of(catalog_key(self.group, 0).get())

    def read_any(self, clients: Clients) -> Catalog:
        """Return the same from a copy at random: for transactions that run side by side."""
        return Catalog.of(self.any_copy(clients).get())

    def write(self, catalog: Catalog) -> None:
        """Store the catalog in all its copies, in a transaction.

        They are read before: each keeps what only another version of the app knows of it.
        """
        keys = catalog_keys(self.group)
        both = zip(keys, ndb.get_multi(keys), strict=True)
        copies = [copy or ViewCatalog(key=key) for key, copy in both]
        for copy in copies:
            copy.populate(views=dict(catalog.views), begun_with=dict(catalog.begun_with))
        ndb.put_multi(copies)


def any_catalog_key(group: str, draw: int) -> Any:
    """Return the key of one of the copies of a group's catalog, by a random number."""
    return catalog_key(group, draw % CATALOG_REPLICAS)


def table_name(view: str, version: int, build: int) -> str:
    """Return the name of a build of a view.

    >>> table_name("students_by_grade", 1, 3)
    'students_by_grade.1.3'
    """
    return f"{view}.{version}.{build}"


def view_name(table: str) -> str:
    """Return the view that a table belongs to."""
    return table.partition(".")[0]


def version_of(table: str) -> int:
    """Return the version of the view that a table was built by."""
    return int(table.split(".")[1])


def accepts(table: str, view: type[View]) -> bool:
    """Return whether a table takes contributions of this version of a view."""
    return version_of(table) == view.version
