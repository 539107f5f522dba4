"""The views that this code declares for a group, and their contributions of a source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from google.cloud import ndb

from rollforward.app_code import APP_ERRORS, run_app
from rollforward.datastore.conversion.keys import key_kind
from rollforward.datastore.transactions import TRANSIENT
from rollforward.materialized_views.catalog import Catalog, view_name
from rollforward.materialized_views.entities import ViewRow, table_and_row
from rollforward.materialized_views.rows import BadContributionError, Row, Value, checked
from rollforward.materialized_views.updates import source_name
from rollforward.materialized_views.view import View, check_views, kind_of
from rollforward.runtime.texts import describe_error
from rollforward.tasks.errors import Retry
from rollforward.tasks.waits import MAX_VERSION_WAIT_S

# In a row marker's key; Datastore takes 1,500 bytes.
MAX_SOURCE_NAME_CHARS = 1_400
# The kind of a view's rows; as sources they go by the name of their view.
VIEW_ROW_KIND = "ViewRow"


class UnknownTableError(Retry):
    """A table belongs to another version of the app: its updates wait, and slow no queue."""


class ViewDefinitions:
    """The views of a group, by name and by the kinds of their sources."""

    def __init__(self, group: str, views: Sequence[type[View]]) -> None:
        """Gather views.

        Raises:
            TypeError: one of them could never be right, and why.
        """
        if not group:
            raise TypeError("a group of views needs a name, which is in the paths of its tasks")
        check_views(views)
        self.group = group
        self.views = {view.name: view for view in views}
        self.by_kind: dict[str, list[type[View]]] = defaultdict(list)
        for view in views:
            for kind in view.functions():
                self.by_kind[kind].append(view)

    def claims(self) -> list[str]:
        """Return what belongs to this group alone: its name, its views, the kinds they have.

        Rows that are sources go by the name of their view, as if that were their kind.
        """
        views = [f"the view {name}" for name in self.views]
        return [f"the name {self.group}", *views, *(f"the kind {kind}" for kind in self.by_kind)]

    def check_declared(self, view: type[View]) -> None:
        """Check that a view is of this group: the catalog knows the tables of no other.

        Raises:
            LookupError: another group declares the view.
        """
        if view.name not in self.views:
            hint = "ask the group that declares it"
            raise LookupError(f"the group {self.group} has no view {view.name}: {hint}")

    def downstream_of(self, view: type[View]) -> list[type[View]]:
        """Return the views whose sources are the rows of a view."""
        return [candidate for candidate in self.views.values() if candidate.source is view]

    def rows_for(self, view: type[View], kind: str, source: Any) -> dict[str, dict[str, Value]]:
        """Return the contributions of a source of a kind to a view, as stored.

        Raises:
            BadContributionError: no row can hold it, or the view's function fails.
        """
        if source is None:
            return {}
        if isinstance(source, ViewRow):
            source = Row.of(source, kind_of(self.views[kind].source))
        try:
            return checked(run_app(view.functions()[kind], source), view.ranked)
        except TRANSIENT:
            raise
        except BadContributionError as error:
            name = source.name if isinstance(source, Row) else source.key.id()
            message = f"{view.name} cannot take {kind} {name!r:.100}: {error}"
            raise BadContributionError(message) from error
        except APP_ERRORS as error:
            message = f"{view.name} fails over it: {describe_error(error)}"
            raise BadContributionError(message) from error

    def refusal(self, view: type[View], source: Any) -> str | None:
        """Return why a view cannot take a source, None if it can."""
        try:
            self.rows_for(view, key_kind(identity(source.key)), source)
        except BadContributionError as error:
            return str(error)
        return None

    def known(self, catalog: Catalog, table: str) -> type[View]:
        """Return the view of a table that this code may write.

        Raises:
            UnknownTableError: it may not: only another version of the app knows all of the table.
        """
        view = self.views.get(view_name(table))
        if view is None or not catalog.is_known(view, table):
            raise UnknownTableError(
                f"{table} belongs to another version of the app, for which the task waits",
                after_s=MAX_VERSION_WAIT_S,
            )
        return view

    def frozen_tables(self, catalog: Catalog, kinds: Iterable[str]) -> frozenset[str]:
        """Return the tables that are read and take nothing that this code contributes."""
        views = [view for kind in kinds for view in self.by_kind[kind]]
        return frozenset(catalog.live(view) for view in views if not catalog.accepts(view))


def identity(key: Any) -> Any:
    """Return the key that names a source: of a view's row, without its table."""
    if key_kind(key) == VIEW_ROW_KIND:
        table, row = table_and_row(key)
        return ndb.Key(view_name(table), row)
    return key


def check_name(source: Any) -> None:
    """Check that a source's key fits into the keys of its markers.

    Raises:
        BadContributionError: it does not.
    """
    if len(source_name(source)) > MAX_SOURCE_NAME_CHARS:
        limit = f"at most {MAX_SOURCE_NAME_CHARS:,} characters long as text"
        raise BadContributionError(f"the key of {key_kind(source)} must be {limit}")
