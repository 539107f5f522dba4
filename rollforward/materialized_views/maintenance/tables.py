"""The life of a table: begun, awaited, swapped in, dropped. Each step is one commit of the catalog.

These methods run in the transaction of the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.cloud import ndb

from rollforward.continuations.entities import FINISHED, run_key
from rollforward.materialized_views import catalog_changes as changes
from rollforward.materialized_views.catalog import Catalog, CatalogStore
from rollforward.materialized_views.definitions import ViewDefinitions
from rollforward.materialized_views.maintenance.walks import BACKFILL, CATCH_UP, CONFIRM, Walks
from rollforward.materialized_views.view import View


@dataclass(frozen=True)
class Tables:
    """The tables of a group's views, and how they come and go."""

    definitions: ViewDefinitions
    catalogs: CatalogStore
    walks: Walks

    def list_views(self) -> None:
        """List the views that are new, each with its empty first table."""
        catalog = self.catalogs.read()
        for view in self.definitions.views.values():
            catalog = changes.with_view(catalog, view)
        self.catalogs.write(catalog)

    def begin(self, view: type[View], given_up: str | None) -> str:
        """Begin a table; return it, or the one that is being built already.

        Args:
            given_up: A table whose build has failed: it does not count as being built.
        """
        catalog = self.catalogs.read()
        building = catalog.building(view)
        # This code could not backfill a table of another version of the app, or not completely.
        is_ours = building is not None and _is_current(catalog, view, building)
        if building is not None and is_ours and building != given_up:
            return building
        catalog = changes.with_next(catalog, view)
        self.catalogs.write(catalog)
        return str(catalog.building(view))

    def add_required(self, view: type[View], table: str) -> None:
        """Let tokens wait for a table from now on."""
        catalog = self.catalogs.read()
        if catalog.building(view) == table:
            self.catalogs.write(changes.awaiting(catalog, view, table))

    def swap(self, view: type[View], table: str) -> bool:
        """Let a table be the one that is read; False: it is not.

        This reads again whether all walks of the table's specification have ended. The rebuild of
        the views downstream begins in the same commit, because their sources are now other rows.
        """
        catalog = self.catalogs.read()
        if catalog.building(view) != table or not self.has_ended(catalog, view, table):
            return False
        catalog = changes.swapped(catalog, view, table)
        ours = {below.name: below for below in self.definitions.downstream_of(view)}
        for name in {**ours, **dict.fromkeys(catalog.downstream_of(view))}:
            catalog = changes.rebuilt(catalog, name, ours.get(name))
        self.catalogs.write(catalog)
        return True

    def has_ended(self, catalog: Catalog, view: type[View], table: str) -> bool:
        """Return whether every walk of a table has ended."""
        walks = self.walks.of_table(catalog, view, table, catalog.spec(table))
        steps = (BACKFILL, CATCH_UP, CONFIRM)
        runs = ndb.get_multi([run_key(walk.run_id(step)) for walk in walks for step in steps])
        return all(run is not None and run.state == FINISHED for run in runs)

    def retire(self, view: str) -> None:
        """Drop all tables of a view."""
        catalog = self.catalogs.read()
        if not catalog.is_retired(view):
            self.catalogs.write(changes.retired(catalog, view))

    def delist(self, view: str, table: str) -> None:
        """Take a table that has been dropped out of the catalog."""
        catalog = self.catalogs.read()
        if table in catalog.dropping(view):
            self.catalogs.write(changes.without_table(catalog, view, table))


def _is_current(catalog: Catalog, view: type[View], table: str) -> bool:
    """Return whether a table that is being built is the one that this code would build."""
    spec = catalog.spec(table)
    is_same = spec is None or set(spec.kinds) == set(view.functions())
    return catalog.is_known(view, table) and is_same
