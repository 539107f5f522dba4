"""Groups of views: callers save sources through them and read rows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.datastore.conversion.keys import key_id
from rollforward.datastore.transactions import transact
from rollforward.fork_join import Batch
from rollforward.materialized_views.catalog import CatalogStore
from rollforward.materialized_views.definitions import ViewDefinitions
from rollforward.materialized_views.reader import ViewReader
from rollforward.materialized_views.updates import Apply, FoldTable, Propagate
from rollforward.materialized_views.updating.apply import Applier
from rollforward.materialized_views.updating.contribute import Contributor
from rollforward.materialized_views.updating.freshness import ConsistencyToken
from rollforward.materialized_views.updating.prepared import have_hooks
from rollforward.materialized_views.updating.table_fold import TableFolder
from rollforward.materialized_views.updating.transport import QueuedUpdate, UpdateTransport
from rollforward.materialized_views.view import View
from rollforward.runtime.clients import Clients
from rollforward.runtime.process.optional_clients import optional_clients
from rollforward.runtime.sharing.shared_transaction import transact_shared
from rollforward.tasks.declaration import Task


@dataclass(frozen=True)
class Internals:
    """The parts of a group, which its maintenance shares."""

    definitions: ViewDefinitions
    catalogs: CatalogStore
    contributor: Contributor
    applier: Applier
    folder: TableFolder


class ViewGroup(ViewReader):
    """A group of views over shared sources. It saves sources, and reads as a ViewReader does.

    A kind of source belongs to one group, and is saved and deleted through it alone.
    """

    def __init__(
        self, group: str, *views: type[View], queue: str = "views", fan_in_s: float = 1.0
    ) -> None:
        """Gather views.

        Args:
            group: Names their catalog and their task.
            queue: The queue of their updates.
            fan_in_s: Deprecated. It is the period of work items that an earlier version sends.

        Raises:
            TypeError: one of them could never be right, and why.
        """
        definitions, catalogs = ViewDefinitions(group, views), CatalogStore(group)
        transport = UpdateTransport(
            group, queue, apply=self.apply, fold=self.fold, join=self._join, fan_in_s=fan_in_s
        )
        super().__init__(definitions, catalogs, transport)
        path = f"/tasks/materialized-views/{group}"
        propagate = Task(
            f"{path}/propagate",
            queue,
            Propagate,
            self.propagate,
            on_give_up=lambda clients, args, reason: applier.park(clients, args, reason),
        )
        contributor = Contributor(definitions, catalogs, transport)
        applier = Applier(definitions, catalogs, contributor, propagate)
        folder = TableFolder(definitions, transport, applier)
        self._internals = Internals(definitions, catalogs, contributor, applier, folder)
        self.group = group
        self.task = transport.task
        self.tasks: list[Task[Any]] = [transport.task, transport.bell.task, propagate]
        self.fan_in = transport.fan_in

    def claims(self) -> list[str]:
        """Return what belongs to this group alone: its name, its views, the kinds they have."""
        return self._internals.definitions.claims()

    @optional_clients
    def save(self, clients: Clients, *sources: Any) -> ConsistencyToken:
        """Save sources with everything that follows; return a token of the updates sent.

        Raises:
            BadContributionError: a view cannot take a source; nothing was saved.
            TypeError: one of them is no entity.
        """
        _check_all(sources, ndb.Model, "save takes entities")
        for source in sources:
            if source.key is None or key_id(source.key) is None:
                source.key = _new_key(source, clients.new_id())
        return self._transact(clients, [(source.key, source) for source in sources])

    @optional_clients
    def delete(self, clients: Clients, *keys: Any) -> ConsistencyToken:
        """Delete sources with everything that follows; return a token of the updates sent.

        Raises:
            TypeError: one of them is no key.
        """
        _check_all(keys, ndb.Key, "delete takes keys")
        return self._transact(clients, [(key, None) for key in keys])

    def _transact(self, clients: Clients, writes: Sequence[tuple[Any, Any]]) -> ConsistencyToken:
        # One of each try: a try may have been committed although its reply was lost.
        tokens: list[ConsistencyToken] = []
        contributor = self._internals.contributor
        if have_hooks(writes):
            transact(lambda: tokens.append(contributor.save(clients, writes)))
        else:
            transact_shared(clients, contributor.shared_body(clients, writes, tokens))
        return ConsistencyToken.of_all(tokens)

    @optional_clients
    def save_in_transaction(self, clients: Clients, *sources: Any) -> ConsistencyToken:
        """Do what `save` does, in the transaction that this code runs in.

        The token says nothing of an earlier try that was committed although its reply was lost.

        Raises:
            ValueError: a source has no key: chosen here, it would be another one in each try.
            TypeError: one of them is no entity.
        """
        _check_all(sources, ndb.Model, "save_in_transaction takes entities")
        if not all(source.key and source.key.id() for source in sources):
            raise ValueError("a source that is saved in a transaction must have a complete key")
        writes = [(source.key, source) for source in sources]
        return self._internals.contributor.save(clients, writes)

    @optional_clients
    def delete_in_transaction(self, clients: Clients, *keys: Any) -> ConsistencyToken:
        """Do what `delete` does, in the transaction that this code runs in."""
        _check_all(keys, ndb.Key, "delete_in_transaction takes keys")
        return self._internals.contributor.save(clients, [(key, None) for key in keys])

    # What the tasks do

    def apply(self, clients: Clients, args: Apply) -> None:
        """Apply updates to a row; see Applier.apply."""
        self._internals.applier.apply(clients, args)

    def fold(self, clients: Clients, args: FoldTable) -> None:
        """Apply the waiting updates of a table; see TableFolder.fold."""
        self._internals.folder.fold(clients, args)

    def _join(self, clients: Clients, batch: Batch, queued: Sequence[QueuedUpdate]) -> None:
        self._internals.applier.join(clients, batch, queued)

    def propagate(self, clients: Clients, args: Propagate) -> None:
        """Contribute a row to the views downstream of it; see Applier.propagate."""
        self._internals.applier.propagate(clients, args)


def _new_key(source: ndb.Model, id_: str) -> Any:
    """Return a key for a source without an id; parent and namespace stay."""
    partial_key, kind = source.key, source._get_kind()
    if partial_key is None:
        return ndb.Key(kind, id_)
    return ndb.Key(kind, id_, parent=partial_key.parent(), namespace=partial_key.namespace())


def _check_all(values: Sequence[Any], kind: type[Any], rule: str) -> None:
    """Check the arguments of a save or a deletion.

    Raises:
        TypeError: one of them is of another type; a list is none.
    """
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"{rule}, each as an argument of its own, got {value!r:.100}")


def check_groups(groups: Sequence[ViewGroup]) -> None:
    """Check that groups of views share nothing.

    Raises:
        TypeError: they do, and each would overwrite the other one's markers.
    """
    owners: dict[str, str] = {}
    for views in groups:
        for claim in views.claims():
            if claim in owners:
                both = f"{owners[claim]} and {views.group}"
                raise TypeError(f"{claim} is in the groups {both}: leave it in one, or rename it")
            owners[claim] = views.group
