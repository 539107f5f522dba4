"""Contributing: a change of sources becomes their markers, and updates of the rows that change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.datastore import current
from rollforward.datastore.conversion.keys import key_kind
from rollforward.datastore.transactions import TRANSIENT, current_transaction
from rollforward.materialized_views.catalog import (
    Catalog,
    CatalogStore,
    any_catalog_key,
    view_name,
)
from rollforward.materialized_views.definitions import ViewDefinitions, check_name, identity
from rollforward.materialized_views.entities import SourceMarker, marker_key
from rollforward.materialized_views.rows import Value
from rollforward.materialized_views.updates import Update, parts_of, source_name
from rollforward.materialized_views.updating.freshness import ConsistencyToken
from rollforward.materialized_views.updating.markers import MarkerUpdate, PendingMarkers
from rollforward.materialized_views.updating.prepared import (
    PreparedSave,
    Write,
    before_put,
    put_as_seen,
    stored,
)
from rollforward.materialized_views.updating.transport import UpdateTransport
from rollforward.materialized_views.view import View
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.shared_transaction import SharedBody

# The source, its marker and the update of one row, as a first estimate.
WRITES_PER_SOURCE = 3
# Takes the tables of a view that refuses a source.
OnRefusal = Callable[[Sequence[str]], None]
# Returns the tables of a view that a source is contributed to.
TablesOf = Callable[[Catalog, type[View]], list[str]]


@dataclass(frozen=True)
class Contributor:
    """Contributes sources to the tables of a group, in the transaction that it runs in."""

    definitions: ViewDefinitions
    catalogs: CatalogStore
    transport: UpdateTransport

    def shared_body(
        self, clients: Clients, writes: Sequence[Write], tokens: list[ConsistencyToken]
    ) -> SharedBody[None]:
        """Return a save of sources without hooks as the body of a transaction that callers share.

        Views are asked for their contributions here, by the caller's own thread.

        Args:
            tokens: Takes the token of each attempt.

        Raises:
            LookupError: no view of the group has this kind of source.
        """
        writes = self._checked(writes)
        prepared = PreparedSave.of(self.definitions, writes)
        keys = [key for key, _ in writes]
        markers = [marker_key(identity(key)) for key in keys]
        group = self.definitions.group
        return SharedBody(
            lambda keys: tokens.append(self._save(clients, writes, prepared, keys[-1])),
            reads=lambda draw: [*markers, any_catalog_key(group, draw)],
            rows=frozenset(key.pairs() for key in keys),
            writes=WRITES_PER_SOURCE * len(writes),
        )

    def save(self, clients: Clients, writes: Sequence[Write]) -> ConsistencyToken:
        """Save and delete sources with everything that follows from it.

        Raises:
            BadContributionError: a view cannot take a source.
            LookupError: no view of the group has this kind of source.
        """
        return self._save(clients, self._checked(writes), None, self.catalogs.any_copy(clients))

    def _checked(self, writes: Sequence[Write]) -> list[Write]:
        """Return writes, of each source the last one.

        Raises:
            LookupError: no view of the group has this kind of source.
        """
        for key, _ in writes:
            if key_kind(key) not in self.definitions.by_kind:
                group = self.definitions.group
                raise LookupError(f"no view of {group} has {key_kind(key)} as a source")
        return list(dict(writes).items())

    def _save(
        self, clients: Clients, writes: Sequence[Write], prepared: PreparedSave | None, copy: Any
    ) -> ConsistencyToken:
        if prepared is None:
            for _, source in writes:
                if source is not None:
                    before_put(source)
        seen = writes if prepared is not None else stored(writes)
        token = self.contribute(clients, seen, prepared=prepared, copy=copy)
        for key, source in writes:
            if source is None:
                key.delete()
            elif prepared is not None:
                current.put(source, prepared.sources[key])
            else:
                put_as_seen(source)
        return token

    def refresh(self, clients: Clients, sources: Sequence[Any]) -> None:
        """Contribute sources, as they are, to every table that does not have them and stays.

        A contribution that a view refuses stays unchanged, so that the other views need not wait.
        """
        writes = [(source.key, source) for source in sources]
        tables_of = Catalog.lasting_tables
        self.contribute(clients, writes, on_refusal=lambda tables: None, tables_of=tables_of)

    def contribute(
        self,
        clients: Clients,
        writes: Sequence[Write],
        *,
        on_refusal: OnRefusal | None = None,
        prepared: PreparedSave | None = None,
        copy: Any = None,
        tables_of: TablesOf = Catalog.tables,
    ) -> ConsistencyToken:
        """Bring the markers of sources up to date; enqueue the updates that follow.

        Every check that may refuse a source precedes the first write, so the caller may continue
        in the same transaction. Markers are written last: they name the keys of waiting updates.

        Args:
            on_refusal: Called for each view that refuses a source; None: that is an error.
            prepared: What the views have said of these sources; None: they are asked here.
            copy: The key of the catalog's copy to read; None: any.
            tables_of: Their contributions to other tables stay as they were.

        Returns:
            The updates to wait for, including those to a table that readers do not see yet.
        """
        identities = [identity(key) for key, _ in writes]
        for source_id in identities:
            check_name(source_id)
        *markers, stored_catalog = current.get_multi(
            [*map(marker_key, identities), copy or self.catalogs.any_copy(clients)]
        )
        catalog = Catalog.of(stored_catalog)
        pending = self._pending()
        changes = [
            self._plan(
                clients,
                catalog,
                source_id,
                self._contributed(catalog, source_id, source, prepared, on_refusal, tables_of),
                pending.get(source_id, marker),
                is_deleted=source is None,
            )
            for source_id, (_, source), marker in zip(identities, writes, markers, strict=True)
        ]
        sent = self._enqueue(clients, changes)
        for change, (_, source) in zip(changes, writes, strict=True):
            keys_by_tag = sent[source_name(change.source)]
            pending[change.source] = change.save(clients, keys_by_tag, is_gone=source is None)
        return ConsistencyToken(
            frozenset(row for rows in sent.values() for row in rows.values()),
            frozenset(row for change in changes for row in change.earlier.values()),
            self.definitions.frozen_tables(catalog, set(map(key_kind, identities))),
        )

    def _pending(self) -> dict[Any, SourceMarker | None]:
        """Return the markers that this transaction has put before."""
        name = f"views:{self.definitions.group}"
        return current_transaction().hook(name, PendingMarkers).markers

    def _plan(
        self,
        clients: Clients,
        catalog: Catalog,
        source_key: Any,
        contributed: dict[str, dict[str, dict[str, Value]]],
        marker: SourceMarker | None,
        *,
        is_deleted: bool,
    ) -> MarkerUpdate:
        """Return what becomes of a source's marker; nothing is written yet."""
        change = MarkerUpdate(source_key, marker, clients.clock.now())
        # Only another version of the app can fill these, or their view refused the source.
        retained = [
            table
            for table in change.before
            if table not in contributed and not catalog.is_gone(table)
        ]
        if is_deleted:  # To leave takes no function: any version leaves any table.
            contributed.update((table, {}) for table in retained)
            retained = []
        change.set_contributions(contributed, retained=retained, is_gone=catalog.is_gone)
        return change

    def _contributed(
        self,
        catalog: Catalog,
        source_key: Any,
        source: Any,
        prepared: PreparedSave | None,
        on_refusal: OnRefusal | None,
        tables_of: TablesOf,
    ) -> dict[str, dict[str, dict[str, Value]]]:
        """Return a source's contributions to each table that this code knows how to fill."""
        contributed: dict[str, dict[str, dict[str, Value]]] = {}
        for view in self.definitions.by_kind[key_kind(source_key)]:
            if tables := tables_of(catalog, view):
                try:
                    if prepared is not None:
                        rows = prepared.rows_for(view, source_key)
                    else:
                        rows = self.definitions.rows_for(view, key_kind(source_key), source)
                    if on_refusal is not None:
                        self.transport.check(tables[0], source_key, rows)
                except TRANSIENT:
                    raise
                except Exception:
                    if on_refusal is None:
                        raise
                    on_refusal(tables)
                    continue
                contributed.update((table, rows) for table in tables)
        return contributed

    def _enqueue(
        self, clients: Clients, changes: Sequence[MarkerUpdate]
    ) -> Mapping[str, Mapping[str, str]]:
        """Send updates; return, for each source, where its one of a tag waits."""
        updates: dict[tuple[str, str], list[Update]] = defaultdict(list)
        for change in changes:
            for where, update in change.updates():
                updates[where].append(update)
        sent: dict[str, dict[str, str]] = defaultdict(dict)
        for (table, row), many in updates.items():
            view = self.definitions.views.get(view_name(table))
            tag = f"{table}:{row}"
            for part in parts_of(many):
                place = self.transport.send(clients, view, tag, part)
                for update in part:
                    sent[update.source][tag] = place
        return sent
