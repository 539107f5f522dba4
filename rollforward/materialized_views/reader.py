"""Reading views: rows with their freshness, tokens to wait for, ranks, members, pending updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from google.cloud import ndb

from rollforward.materialized_views.catalog import Catalog, CatalogStore, view_name
from rollforward.materialized_views.definitions import ViewDefinitions
from rollforward.materialized_views.entities import (
    ViewRow,
    marker_key,
    markers_of,
    rank_prefix,
    ranked,
    row_key,
    rows_from,
)
from rollforward.materialized_views.rows import Measures, Row, RowName, Value, prefix_text, row_text
from rollforward.materialized_views.updates import Apply, source_key
from rollforward.materialized_views.updating.freshness import (
    MAX_LISTED,
    ConsistencyToken,
    Freshness,
    Reading,
    count_distinct,
    freshness_of,
    row_order,
)
from rollforward.materialized_views.updating.transport import (
    UpdateTransport,
    left_of,
    saved_at,
    waiting_for_row,
    waiting_for_rows,
)
from rollforward.materialized_views.view import View, kind_of
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import Timeout, naive_utc
from rollforward.runtime.process.optional_clients import optional_clients

T = TypeVar("T")

LOOK_AGAIN_S = 0.02


class ViewReader:
    """Reads the views of a group."""

    def __init__(
        self, definitions: ViewDefinitions, catalogs: CatalogStore, transport: UpdateTransport
    ) -> None:
        self.views = definitions.views
        self._definitions = definitions
        self._catalogs = catalogs
        self._transport = transport

    def catalog(self) -> Catalog:
        """Return which tables there are."""
        return self._catalogs.read()

    def was_saved(self, key: Any) -> bool:
        """Return whether a source was ever saved through the group, also if it is deleted by now.

        Its marker shows it. A source that never contributed anything has no marker, and a TTL
        policy may delete the marker of a deleted source. In a transaction this reads as part of it.
        """
        return marker_key(key).get() is not None

    @optional_clients
    def read(
        self,
        clients: Clients,
        view: type[View],
        *,
        at_least: ConsistencyToken | None = None,
        timeout_s: float = 0.3,
        prefix: tuple[str | int, ...] = (),
        limit: int = MAX_LISTED,
    ) -> Reading:
        """Return a view's rows, in the order of their names, and how fresh they are.

        Args:
            at_least: Wait, up to timeout_s, until the rows hold this token's changes. Another
                group's token is satisfied at once.
            prefix: Only rows whose names are tuples that begin with these parts.
            limit: Rows to return: of more, those whose stored names come first.
        """
        timeout = Timeout.of(clients.clock, timeout_s)
        kind, beginning = kind_of(view.source), prefix_text(prefix)

        def read_table(table: str) -> tuple[Any, Any]:
            # Pending updates are read first, so each change is seen waiting or in a row, or both.
            key_prefix = f"{table}:{beginning}"
            waiting = waiting_for_rows(view, key_prefix, MAX_LISTED + 1)
            return waiting, rows_from(key_prefix).fetch(limit)

        while True:
            token = at_least or ConsistencyToken()
            is_satisfied, table = self._wait_until(clients, token, timeout, view)
            catalog, (waiting, entities) = self._seen(view, read_table)
            if table in (None, catalog.live(view)):
                break  # Else it was swapped in after the token was judged.
        candidates = [Row.of(entity, kind) for entity in entities]
        rows = sorted((row for row in candidates if row.count), key=row_order)
        freshness = freshness_of(clients, waiting, [row.applied for row in candidates])
        return Reading(rows, _with_frozen(freshness, catalog, view), is_satisfied)

    def row(self, view: type[View], name: RowName) -> Row | None:
        """Return one row, None if no source is in it."""
        return self.rows(view, [name])[0]

    def rows(self, view: type[View], names: Sequence[RowName]) -> list[Row | None]:
        """Return some rows by their names, None for each that no source is in: one read each."""
        texts, kind = [row_text(name) for name in names], kind_of(view.source)
        entities = self._of_live(
            view, lambda table: ndb.get_multi([row_key(table, text) for text in texts])
        )
        rows = [Row.of(entity, kind) if entity else None for entity in entities]
        return [row if row and row.count else None for row in rows]

    def rows_after(self, view: type[View], after: RowName | None, limit: int) -> list[Row]:
        """Return the rows behind one (None: the first ones) in the order of their stored names.

        It includes rows without sources, so the last one is always the cursor of the next call.
        """

        def read_table(table: str) -> Any:
            query = rows_from(f"{table}:")
            if after is not None:
                query = query.filter(ViewRow._key > row_key(table, row_text(after)))
            return query.fetch(limit)

        return [Row.of(entity, kind_of(view.source)) for entity in self._of_live(view, read_table)]

    @optional_clients
    def freshness(self, clients: Clients, view: type[View], name: RowName) -> Freshness:
        """Return how far one row is behind."""
        text = row_text(name)

        def read_table(table: str) -> tuple[Any, Any]:
            key = row_key(table, text)
            return waiting_for_row(view, key.id(), MAX_LISTED + 1), key.get()

        catalog, (waiting, entity) = self._seen(view, read_table)
        freshness = freshness_of(clients, waiting, [entity.applied] if entity else [])
        return _with_frozen(freshness, catalog, view)

    @optional_clients
    def wait(
        self,
        clients: Clients,
        token: ConsistencyToken,
        timeout_s: float,
        *,
        view: type[View] | None = None,
    ) -> bool:
        """Wait until a token's changes are applied; False: they are not, after that long.

        Args:
            token: This group's. Another group's token is satisfied at once.
            view: The one that will be read: that another one is frozen does not matter.
        """
        timeout = Timeout.of(clients.clock, timeout_s)
        return self._wait_until(clients, token, timeout, view)[0]

    def top(
        self, view: type[View], name: RowName, measure: str, limit: int = 1, *, lowest: bool = False
    ) -> list[tuple[Any, Value]]:
        """Return the sources with the highest values of a ranked measure, highest first.

        Args:
            lowest: Return those with the lowest, lowest first.

        Returns:
            Pairs of a source's key and its value. One read each, however large the row is.
        """
        numbers = self._of_ranks(
            view,
            name,
            measure,
            lambda prefix: ranked(prefix + "n", descending=not lowest).fetch(limit),
        )
        return [(source_key(marker.key.id()), marker.measures[measure]) for marker in numbers]

    def distinct(self, view: type[View], name: RowName, measure: str) -> int:
        """Return how many different values of a ranked measure a row has.

        One index read for each of them, in pages.
        """
        return self._of_ranks(view, name, measure, count_distinct)

    def members(
        self, view: type[View], name: RowName, source: Any, *, limit: int = MAX_LISTED
    ) -> list[tuple[Any, Measures]]:
        """Return the sources of one kind in a row, by key: the other side of a join."""
        text, kind = row_text(name), kind_of(source)
        markers = self._of_live(
            view, lambda table: markers_of(row_key(table, text), kind=kind).fetch(limit)
        )
        return [(source_key(marker.key.id()), marker.measures) for marker in markers]

    def is_waiting(
        self, view: type[View], min_count: int = 1, *, prefix: tuple[str | int, ...] = ()
    ) -> bool:
        """Return whether at least `min_count` updates wait."""
        beginning = prefix_text(prefix)
        waiting = self._of_live(
            view, lambda table: waiting_for_rows(view, f"{table}:{beginning}", min_count)
        )
        return len(waiting) == min_count

    @optional_clients
    def waiting(
        self,
        clients: Clients,
        view: type[View],
        *,
        prefix: tuple[str | int, ...] = (),
        limit: int = 50,
    ) -> list[tuple[Apply, float]]:
        """Return updates that wait, oldest first, and for how many seconds each has."""
        beginning = prefix_text(prefix)
        keys = self._of_live(
            view, lambda table: waiting_for_rows(view, f"{table}:{beginning}", MAX_LISTED)
        )
        oldest = sorted(keys, key=saved_at)[:limit]
        now = naive_utc(clients.clock.now())
        rows = [row for row in ndb.get_multi(oldest) if row is not None]
        return [
            (self._transport.read(row), max(0.0, (now - saved_at(row.key)).total_seconds()))
            for row in rows
        ]

    def _of_ranks(
        self, view: type[View], name: RowName, measure: str, read_table: Callable[[str], T]
    ) -> T:
        """Return the result of a look at a row's ranks by one measure."""
        if measure not in view.ranked:
            raise LookupError(f"{view.name} does not rank {measure}")
        text = row_text(name)
        return self._of_live(
            view, lambda table: read_table(rank_prefix(row_key(table, text), measure))
        )

    def _of_live(self, view: type[View], read_table: Callable[[str], T]) -> T:
        """Return the result of a look at the table that is read."""
        return self._seen(view, read_table)[1]

    def _seen(self, view: type[View], read_table: Callable[[str], T]) -> tuple[Catalog, T]:
        """Return the result of a look at the table that is read, and the catalog that names it.

        The table was read from before the look until after it: if it has been replaced meanwhile,
        the look may have met rows that are going, and another one is taken at the next table.

        Raises:
            LookupError: another group declares the view.
        """
        self._definitions.check_declared(view)
        catalog = self.catalog()
        while True:
            table = catalog.live(view)
            result = read_table(table)
            catalog = self.catalog()
            if catalog.live(view) == table:
                return catalog, result

    def _wait_until(
        self,
        clients: Clients,
        token: ConsistencyToken,
        timeout: Timeout,
        view: type[View] | None,
    ) -> tuple[bool, str | None]:
        """Wait for a token, at most for a time; return whether it is satisfied, for which table.

        That is the table of the view that was read as it was judged; None: it holds for any.

        Raises:
            LookupError: another group declares the view.
        """
        if view is not None:
            self._definitions.check_declared(view)
        frozen = [t for t in token.frozen_tables if view is None or view_name(t) == view.name]
        while True:
            pending = left_of(token.rows)
            tables = {update.tag.partition(":")[0] for update in pending}.union(frozen)
            if not tables:
                return True, None
            catalog = self.catalog()
            is_satisfied = all(
                tables.isdisjoint(catalog.required_tables(v)) for v in self.views.values()
            )
            if is_satisfied or timeout.is_over:
                return is_satisfied, catalog.live(view) if view else None
            clients.clock.sleep(LOOK_AGAIN_S)


def _with_frozen(freshness: Freshness, catalog: Catalog, view: type[View]) -> Freshness:
    """Say whether this code's saves reach the table that is read."""
    return replace(freshness, is_frozen=not catalog.is_known(view, catalog.live(view)))
