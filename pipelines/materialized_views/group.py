"""Groups of views: saves, rows, tokens."""

from __future__ import annotations

import datetime
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from google.cloud import ndb

from models.fork_join import WorkPack
from models.materialized_views import (
    CATALOG_REPLICAS,
    RowMarker,
    ViewRow,
    catalog_key,
    marker_key,
    markers_of,
    rank_prefix,
    ranked,
    row_key,
    row_marker_key,
    rows_from,
)
from models.outbox import OutboxTask, RowId
from models.transactions import TRANSIENT, current_transaction, transact
from pipelines import outbox
from pipelines.fork_join.insert import MAX_ITEM_BYTES
from pipelines.fork_join.queue import Batch, ForkJoin
from pipelines.materialized_views.catalog import Catalog, View, check_views, kind_of, view_name
from pipelines.materialized_views.freshness import (
    MAX_LISTED,
    ConsistencyToken,
    Freshness,
    Reading,
    count_distinct,
    freshness_of,
    row_order,
)
from pipelines.materialized_views.rows import (
    MAX_MEASURES_BYTES,
    BadContributionError,
    Contributions,
    Measures,
    Row,
    RowEntry,
    RowName,
    Value,
    checked,
    empty_row,
    ranks_of,
    row_text,
    under_text,
)
from pipelines.materialized_views.transport import (
    QueuedUpdate,
    left_of,
    saved_at,
    turn,
    waiting_for_row,
    waiting_for_rows,
)
from pipelines.materialized_views.updates import (
    Apply,
    Follow,
    MarkerUpdate,
    Pending,
    Update,
    fold,
    newest_of,
    parts_of,
    read_for_apply,
    source_key,
    source_name,
)
from pipelines.runtime.clients import Clients
from pipelines.runtime.clock import naive_utc
from pipelines.tasks.declaration import Task
from pipelines.tasks.errors import Reject, Retry

__all__ = ["BadContributionError", "ConsistencyToken", "Contributions", "Row", "View", "ViewGroup"]

log = logging.getLogger(__name__)

T = TypeVar("T")

# In a row marker's key; Datastore takes 1,500 bytes.
MAX_SOURCE_NAME_CHARS = 1_400
LOOK_AGAIN_S = 0.02
# Updates of one row in one transaction: three entities each.
MAX_JOINED = 150
# An item of a fork-join queue, less what stands around the measures: the source's name, mostly.
MAX_FAN_IN_BYTES = MAX_ITEM_BYTES - 6_000
# A deployment mostly takes less. What waits longer has a row that the sweep finds.
WAITS_FOR_A_VERSION = datetime.timedelta(hours=1)
# The kind of a view's rows; as sources they go by the name of their view.
VIEW_ROW_KIND = "ViewRow"


class UnknownTableError(Retry):
    """A table is of another version of this code."""


class ViewGroup:
    """A group of views over shared sources: what saves, applies and reads.

    A kind of source belongs to one group, and is saved and deleted through it alone.
    """

    def __init__(
        self, group: str, *views: type[View], queue: str = "views", fan_in_s: float = 1.0
    ) -> None:
        """Gather views.

        Args:
            group: Names their catalog and their task.
            queue: Where their updates travel.
            fan_in_s: How long updates of a row of a fan-in view gather before they are applied.

        Raises:
            TypeError: one of them could never be right, and why.
        """
        check_views(views)
        self.group = group
        self.views = {view.name: view for view in views}
        self._by_kind: dict[str, list[type[View]]] = defaultdict(list)
        for view in views:
            for kind in view.functions():
                self._by_kind[kind].append(view)
        path = f"/tasks/materialized-views/{group}"
        self.task = Task(f"{path}/apply", queue, Apply, self.apply)
        self.follow_task = Task(f"{path}/follow", queue, Follow, self.follow)
        self.tasks: list[Task[Any]] = [self.task, self.follow_task]
        self.fan_in = ForkJoin(
            f"views-{group}",
            QueuedUpdate,
            self._join,
            queue=queue,
            period_s=fan_in_s,
            max_batch_size=MAX_JOINED,
        )

    def claims(self) -> list[str]:
        """Return what belongs to this group alone: its name, its views, the kinds they have."""
        kinds = [kind for kind in self._by_kind if kind not in self.views]
        views = [f"the view {name}" for name in self.views]
        return [f"the name {self.group}", *views, *(f"the kind {kind}" for kind in kinds)]

    # Save

    def save(self, clients: Clients, *sources: Any) -> ConsistencyToken:
        """Save sources with everything that follows from it; return what was set going.

        Raises:
            BadContributionError: a view cannot take a source; nothing was saved.
        """
        for source in sources:
            if source.key is None or source.key.id() is None:
                parent = source.key.parent() if source.key is not None else None
                source.key = ndb.Key(source._get_kind(), clients.new_id(), parent=parent)
        return self._transact(clients, [(source.key, source) for source in sources])

    def delete(self, clients: Clients, *keys: Any) -> ConsistencyToken:
        """Delete sources with everything that follows from it; return what was set going."""
        return self._transact(clients, [(key, None) for key in keys])

    def _transact(self, clients: Clients, writes: Sequence[tuple[Any, Any]]) -> ConsistencyToken:
        tokens: list[
            ConsistencyToken
        ] = []  # Also of a try that was committed although its reply was lost.
        transact(lambda: tokens.append(self._write(clients, writes)))
        return ConsistencyToken.of_all(tokens)

    def save_in_transaction(self, clients: Clients, *sources: Any) -> ConsistencyToken:
        """Do what `save` does, in the transaction that this code runs in.

        The token says nothing of an earlier try that was committed although its reply was lost.

        Raises:
            ValueError: a source has no key: chosen here, it would be another one in each try.
        """
        if not all(source.key and source.key.id() for source in sources):
            raise ValueError("a source that is saved in a transaction has a key before it")
        writes = [(source.key, source) for source in sources]
        return self._write(clients, writes)

    def delete_in_transaction(self, clients: Clients, *keys: Any) -> ConsistencyToken:
        """Do what `delete` does, in the transaction that this code runs in."""
        return self._write(clients, [(key, None) for key in keys])

    def refresh_in_transaction(self, clients: Clients, sources: Sequence[Any]) -> None:
        """Contribute sources, as they are, to every table that does not have them yet.

        What a view refuses of them is left as it is: the other views are not to wait for it.
        """
        self._contribute(clients, [(source.key, source) for source in sources], refused=set())

    def _write(self, clients: Clients, writes: Sequence[tuple[Any, Any]]) -> ConsistencyToken:
        writes = list(dict(writes).items())  # Of one source the last save counts.
        for key, _ in writes:
            if key.kind() not in self._by_kind:
                raise LookupError(f"no view of {self.group} has {key.kind()} as a source")
        token = self._contribute(clients, writes)
        for key, source in writes:
            if source is None:
                key.delete()
            else:
                source.put()
        return token

    def _contribute(
        self,
        clients: Clients,
        writes: Sequence[tuple[Any, Any]],
        *,
        refused: set[str] | None = None,
    ) -> ConsistencyToken:
        """Bring the markers of sources up to date; enqueue the updates that follow.

        Args:
            refused: Gets the tables of views that refuse a source; None: that is an error.

        Returns:
            What there is to wait for, also for a table that readers do not see yet.
        """
        identities = [self.identity(key) for key, _ in writes]
        for identity in identities:
            if len(source_name(identity)) > MAX_SOURCE_NAME_CHARS:
                raise BadContributionError(f"the key of {identity.kind()} is too long for a view")
        *markers, copy = ndb.get_multi([*map(marker_key, identities), self._copy(clients)])
        catalog = Catalog.of(copy)
        pending = current_transaction().hook(f"views:{self.group}", Pending).markers
        updates: dict[tuple[str, str], list[Update]] = defaultdict(list)
        changes: list[MarkerUpdate] = []
        for identity, (_, source), marker in zip(identities, writes, markers, strict=True):
            change = MarkerUpdate(identity, pending.get(identity, marker), clients.clock.now())
            contributed = self._contributed(catalog, identity, source, refused)
            others = self._others(catalog, change.before, contributed)
            if source is None:  # To leave takes no function: a table is left by any version.
                contributed.update((table, {}) for table in others)
            else:
                change.retain(others)
            change.set_contributions(contributed)
            change.drop_tables(catalog.is_gone)
            change.check()
            changes.append(change)
            for where, update in change.updates():
                updates[where].append(update)
        sent = self._enqueue(clients, updates)
        for change, (_, source) in zip(changes, writes, strict=True):
            here = sent[source_name(change.source)]
            pending[change.source] = change.save(clients, here, is_gone=source is None)
        return ConsistencyToken(
            frozenset(row for rows in sent.values() for row in rows.values()),
            frozenset(row for change in changes for row in change.earlier.values()),
            self._missed(catalog, {identity.kind() for identity in identities}),
        )

    def _missed(self, catalog: Catalog, kinds: Iterable[str]) -> frozenset[str]:
        """Return the tables that are read and take nothing of this code's definition."""
        views = [view for kind in kinds for view in self._by_kind[kind]]
        return frozenset(catalog.live(view) for view in views if not catalog.is_fed(view))

    def identity(self, key: Any) -> Any:
        """Return what a source is known by: a row of a view has no table in its name."""
        if key.kind() != VIEW_ROW_KIND:
            return key
        table, _, row = key.id().partition(":")
        return ndb.Key(view_name(table), row)

    def _contributed(
        self, catalog: Catalog, identity: Any, source: Any, refused: set[str] | None
    ) -> dict[str, dict[str, dict[str, Value]]]:
        """Return what a source contributes to each table that this code knows how to fill."""
        contributed: dict[str, dict[str, dict[str, Value]]] = {}
        for view in self._by_kind[identity.kind()]:
            if tables := catalog.tables(view):
                try:
                    rows = self.rows_for(view, identity.kind(), source)
                    if refused is not None:
                        self._check_travel(view, tables[0], identity, rows)
                except TRANSIENT:
                    raise
                except Exception:
                    if refused is None:
                        raise
                    refused.update(tables)
                    continue
                contributed.update((table, rows) for table in tables)
        return contributed

    def _check_travel(
        self, view: type[View], table: str, identity: Any, rows: Mapping[str, dict[str, Value]]
    ) -> None:
        """Look, before anything is written, whether what a view gets can travel to its rows.

        Raises:
            Exception: it cannot.
        """
        some_time = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  Datastore's are naive.
        for row, measures in rows.items():
            update = Update(source_name(identity), 0, measures, is_first=True)
            if view.fan_in:
                self.fan_in.check(f"{table}:{row}", QueuedUpdate(update, some_time))
            else:
                self.task.message(Apply(table, row, [update], held=""))

    def rows_for(self, view: type[View], kind: str, source: Any) -> dict[str, dict[str, Value]]:
        """Return what a source of a kind contributes to a view, as it is stored."""
        if source is None:
            return {}
        if isinstance(source, ViewRow):
            source = Row.of(source, kind_of(self.views[kind].source))
        try:
            most_bytes = MAX_FAN_IN_BYTES if view.fan_in else MAX_MEASURES_BYTES
            return checked(view.functions()[kind](source), view.ranked, most_bytes)
        except (BadContributionError, *TRANSIENT):
            raise
        except Exception as error:
            words = f"{view.name} fails over it: {type(error).__name__}: {error}"
            raise BadContributionError(words) from error

    def refusal(self, view: type[View], source: Any) -> str | None:
        """Return why a view cannot take a source, None if it can."""
        try:
            self.rows_for(view, self.identity(source.key).kind(), source)
        except BadContributionError as error:
            return str(error)
        return None

    def _others(
        self, catalog: Catalog, before: Mapping[str, Any], contributed: Mapping[str, Any]
    ) -> list[str]:
        """Return the tables that a source is in and to which this code contributes nothing now.

        Only another version of it can fill them, or their view refused the source as it is now.
        """
        return [
            table for table in before if table not in contributed and not catalog.is_gone(table)
        ]

    def _enqueue(
        self, clients: Clients, updates: Mapping[tuple[str, str], Sequence[Update]]
    ) -> dict[str, dict[str, str]]:
        """Send updates; return, for each source, where its one of a tag waits."""
        sent: dict[str, dict[str, str]] = defaultdict(dict)
        now = naive_utc(clients.clock.now())
        for (table, row), many in updates.items():
            view = self.views.get(view_name(table))
            tag = f"{table}:{row}"
            for part in parts_of(many):
                place = self._send(clients, view, tag, part, now)
                for update in part:
                    sent[update.source][tag] = place
        return sent

    def _send(
        self,
        clients: Clients,
        view: type[View] | None,
        tag: str,
        part: Sequence[Update],
        now: datetime.datetime,
    ) -> str:
        """Send updates of one row on their way; return the key under which they wait."""
        if view is not None and view.fan_in:
            items = [QueuedUpdate(update, now) for update in part]
            return self.fan_in.insert_in_transaction(clients, tag, *items, tag=tag)
        table, _, row = tag.partition(":")
        return outbox.enqueue_with_ack(
            clients,
            self.task,
            lambda held: Apply(table, row, list(part), held),
            tag=tag,
            at=turn(clients, view, tag) if view is not None else None,
        )

    # Apply

    def apply(self, clients: Clients, args: Apply) -> None:
        """Apply updates to a row, in one transaction with the row's markers.

        Raises:
            Reject: the row cannot hold it. Replay it when the row has room.
            Wait: this code does not know the table: another version of it will come along. After
                an hour the task ends and leaves that to the sweep, which asks again each hour.
        """
        saved = RowId.parse(args.held).created

        def body() -> None:
            outbox.ack(args.held)
            self._apply(clients, args, saved)

        try:
            transact(body)
        except BadContributionError as error:
            raise Reject(str(error)) from error
        except UnknownTableError as error:
            if naive_utc(clients.clock.now()) - saved < WAITS_FOR_A_VERSION:
                raise
            log.warning("%s: it is left to the sweep", error)

    def _join(self, clients: Clients, batch: Batch, items: Sequence[QueuedUpdate]) -> None:
        """Apply all updates of a row that have come together; the join of the fan-in."""
        table, _, row = batch.key.partition(":")
        args = Apply(table, row, [item.update for item in items], held="")
        self._apply(clients, args, max(item.saved for item in items))

    def _apply(self, clients: Clients, args: Apply, saved: datetime.datetime) -> None:
        """Bring a row up to date, in the transaction that takes the updates off their way."""
        key = row_key(args.table, args.row)
        newest = newest_of(args.updates)
        read = read_for_apply(self._copy(clients), key, newest)
        catalog = Catalog.of(read.catalog)
        if catalog.is_gone(args.table):
            return  # It has been replaced, and its rows go.
        view = self._known(catalog, args.table)
        row = read.row or empty_row(key)
        changed = fold(row, newest, read, args)
        if not changed:
            return
        row.applied = max(row.applied, saved)
        _put_row(view, row, changed)
        if view.name in self._by_kind and catalog.live(view) == args.table:
            self._lead(clients, args, key, row if row.counts else None)

    def _known(self, catalog: Catalog, table: str) -> type[View]:
        """Return the view of a table that this code may write.

        Raises:
            UnknownTableError: it may not: only another version knows all that the table has.
        """
        view = self.views.get(view_name(table))
        if view is None or not catalog.is_known(view, table):
            raise UnknownTableError(
                f"{table} is of another version of this code, which will come along"
            )
        return view

    # Follow

    def _lead(self, clients: Clients, args: Apply, key: Any, row: ViewRow | None) -> None:
        """Contribute a row to the views that stand on it.

        One that refuses it is left where it is, and gets a task of its own that fails in its
        stead: this row, and all others that stand on it, go on.
        """
        refused: set[str] = set()
        try:
            self._contribute(clients, [(key, row)], refused=refused)
        except BadContributionError:  # Before the first write: it is of the row, and of no view.
            refused.add(args.table)
        if refused:
            outbox.enqueue(clients, self.follow_task, Follow(args.table, args.row))

    def follow(self, clients: Clients, args: Follow) -> None:
        """Contribute a row, as it is now, to the views that stand on it.

        Raises:
            Reject: one of them refuses it, and why. Replay it when that view is mended.
            Wait: this code does not know the table: another version of it will come along.
        """
        try:
            transact(lambda: self._follow(clients, args))
        except BadContributionError as error:
            raise Reject(f"row {args.row} of {args.table}: {error}") from error

    def _follow(self, clients: Clients, args: Follow) -> None:
        catalog = self.catalog_here(clients)
        if catalog.is_gone(args.table):
            return  # What stands on the view is built anew, from other rows.
        if catalog.live(self._known(catalog, args.table)) != args.table:
            return
        key = row_key(args.table, args.row)
        row = key.get()
        self._contribute(clients, [(key, row if row and row.counts else None)])

    def catalog_here(self, clients: Clients) -> Catalog:
        """Read the catalog in the transaction that this code runs in."""
        return Catalog.of(self._copy(clients).get())

    def _copy(self, clients: Clients) -> Any:
        """Return the key of one of the equal copies of the catalog."""
        return catalog_key(self.group, clients.random.randrange(CATALOG_REPLICAS))

    # Read

    def catalog(self) -> Catalog:
        """Return which tables there are."""
        return Catalog.of(catalog_key(self.group, 0).get())

    def read(
        self,
        clients: Clients,
        view: type[View],
        *,
        at_least: ConsistencyToken | None = None,
        timeout_s: float = 0.3,
        under: tuple[str | int, ...] = (),
        most: int = MAX_LISTED,
    ) -> Reading:
        """Return a view's rows, in the order of their names, and how fresh they are.

        Args:
            at_least: Wait, up to timeout_s, until the rows hold what this token stands for.
            under: Only rows whose names are tuples that begin with these parts.
            most: Rows to return: of more, those whose stored names come first.
        """
        deadline = clients.clock.now() + datetime.timedelta(seconds=timeout_s)
        kind, beginning = kind_of(view.source), under_text(under)

        def look(table: str) -> tuple[Any, Any]:
            # What waits is read first: then a change is told as waiting or in a row, or both.
            first = f"{table}:{beginning}"
            waiting = waiting_for_rows(view, first, MAX_LISTED + 1)
            return waiting, rows_from(first).fetch(most)

        while True:
            is_satisfied, table = self._met(clients, at_least or ConsistencyToken(), deadline, view)
            catalog, (waiting, entities) = self._seen(view, look)
            if table in (None, catalog.live(view)):
                break  # Else it was swapped in after the token was looked at.
        found = [Row.of(entity, kind) for entity in entities]
        rows = sorted((row for row in found if row.count), key=row_order)
        freshness = freshness_of(clients, waiting, [row.applied for row in found])
        return Reading(rows, _as_known(freshness, catalog, view), is_satisfied)

    def row(self, view: type[View], name: RowName) -> Row | None:
        """Return one row, None if no source is in it."""
        text = row_text(name)
        entity = self._of_live(view, lambda table: row_key(table, text).get())
        row = Row.of(entity, kind_of(view.source)) if entity else None
        return row if row and row.count else None

    def _of_live(self, view: type[View], look: Callable[[str], T]) -> T:
        """Return what a look at the table that is read finds."""
        return self._seen(view, look)[1]

    def _seen(self, view: type[View], look: Callable[[str], T]) -> tuple[Catalog, T]:
        """Return what a look at the table that is read finds, and the catalog that names it.

        The table was read from before the look until after it: if it has been replaced meanwhile,
        the look may have met rows that are going, and another one is taken at the next table.
        """
        catalog = self.catalog()
        while True:
            table = catalog.live(view)
            found = look(table)
            catalog = self.catalog()
            if catalog.live(view) == table:
                return catalog, found

    def freshness(self, clients: Clients, view: type[View], name: RowName) -> Freshness:
        """Return how far one row is behind."""
        text = row_text(name)

        def look(table: str) -> tuple[Any, Any]:
            key = row_key(table, text)
            return waiting_for_row(view, key.id(), MAX_LISTED + 1), key.get()

        catalog, (waiting, entity) = self._seen(view, look)
        freshness = freshness_of(clients, waiting, [entity.applied] if entity else [])
        return _as_known(freshness, catalog, view)

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
            view: The one that will be read: that another one takes no changes does not matter.
        """
        deadline = clients.clock.now() + datetime.timedelta(seconds=timeout_s)
        return self._met(clients, token, deadline, view)[0]

    def _met(
        self,
        clients: Clients,
        token: ConsistencyToken,
        deadline: datetime.datetime,
        view: type[View] | None,
    ) -> tuple[bool, str | None]:
        """Wait for a token, at most until a time; tell whether it is met, and for which table.

        That is the table of the view that was read as it was judged; None: it is met for any.
        """
        missed = [t for t in token.missed if view is None or view_name(t) == view.name]
        while True:
            left = left_of(token.rows)
            tables = {each.tag.partition(":")[0] for each in left}.union(missed)
            if not tables:
                return True, None
            catalog = self.catalog()
            is_satisfied = all(tables.isdisjoint(catalog.awaited(v)) for v in self.views.values())
            if is_satisfied or clients.clock.now() >= deadline:
                return is_satisfied, catalog.live(view) if view else None
            clients.clock.sleep(LOOK_AGAIN_S)

    def top(
        self, view: type[View], name: RowName, measure: str, most: int = 1, *, lowest: bool = False
    ) -> list[tuple[Any, Value]]:
        """Return the sources with the greatest values of a ranked measure, greatest first.

        Args:
            lowest: Return those with the least, least first.

        Returns:
            Pairs of a source's key and its value. One read each, however large the row is.
        """
        numbers = self._of_ranks(
            view,
            name,
            measure,
            lambda prefix: ranked(prefix + "n", descending=not lowest).fetch(most),
        )
        return [(source_key(marker.key.id()), marker.measures[measure]) for marker in numbers]

    def distinct(self, view: type[View], name: RowName, measure: str) -> int:
        """Return how many different values of a ranked measure a row has.

        One index read for each of them, in pages.
        """
        return self._of_ranks(view, name, measure, count_distinct)

    def members(
        self, view: type[View], name: RowName, source: Any, *, most: int = MAX_LISTED
    ) -> list[tuple[Any, Measures]]:
        """Return the sources of one kind in a row, by key: the other side of a join."""
        text, kind = row_text(name), kind_of(source)
        markers = self._of_live(
            view, lambda table: markers_of(row_key(table, text), kind=kind).fetch(most)
        )
        return [(source_key(marker.key.id()), marker.measures) for marker in markers]

    def is_waiting(
        self, view: type[View], least: int = 1, *, under: tuple[str | int, ...] = ()
    ) -> bool:
        """Return whether at least so many updates wait."""
        beginning = under_text(under)
        waiting = self._of_live(
            view,
            lambda table: waiting_for_rows(view, f"{table}:{beginning}", least),
        )
        return len(waiting) == least

    def waiting(
        self,
        clients: Clients,
        view: type[View],
        *,
        under: tuple[str | int, ...] = (),
        most: int = 50,
    ) -> list[tuple[Apply, float]]:
        """Return updates that wait, oldest first, and for how many seconds each has."""
        beginning = under_text(under)
        keys = self._of_live(
            view,
            lambda table: waiting_for_rows(view, f"{table}:{beginning}", MAX_LISTED),
        )
        oldest = sorted(keys, key=saved_at)[:most]
        now = naive_utc(clients.clock.now())
        rows = [row for row in ndb.get_multi(oldest) if row is not None]
        return [
            (self._travelling(row), max(0.0, (now - saved_at(row.key)).total_seconds()))
            for row in rows
        ]

    def _travelling(self, stored: OutboxTask | WorkPack) -> Apply:
        """Return the updates that travel in an outbox row or a work pack."""
        if isinstance(stored, OutboxTask):
            return self.task.read(stored.body.encode())
        table, _, row = stored.tag.partition(":")
        updates = [sent.update for sent in self.fan_in.read(stored.items)]
        return Apply(table, row, updates, held="")

    def _of_ranks(
        self, view: type[View], name: RowName, measure: str, look: Callable[[str], T]
    ) -> T:
        """Return what a look at a row's ranks by one measure finds, in the table that is read."""
        if measure not in view.ranked:
            raise LookupError(f"{view.name} does not rank {measure}")
        text = row_text(name)
        return self._of_live(view, lambda table: look(rank_prefix(row_key(table, text), measure)))


def check_groups(groups: Sequence[ViewGroup]) -> None:
    """Check that groups of views share nothing.

    Raises:
        TypeError: they do, and each would overwrite what the other one keeps of it.
    """
    owners: dict[str, str] = {}
    for views in groups:
        for claim in views.claims():
            if claim in owners:
                both = f"{owners[claim]} and {views.group}"
                raise TypeError(f"{claim} is in the groups {both}: leave it in one, or rename it")
            owners[claim] = views.group


def _as_known(freshness: Freshness, catalog: Catalog, view: type[View]) -> Freshness:
    """Say whether this code knows the table that is read."""
    return replace(freshness, is_frozen=not catalog.is_known(view, catalog.live(view)))


def _put_row(view: type[View], row: ViewRow, changed: Mapping[str, RowEntry | None]) -> None:
    """Store a row and its markers; a row without sources goes."""
    prefixes = {measure: rank_prefix(row.key, measure) for measure in view.ranked}
    for source, held in changed.items():
        key = row_marker_key(row.key, source)
        if held is None:
            key.delete()
            continue
        ranks = ranks_of(held.measures, prefixes)
        measures = dict(held.measures)
        RowMarker(key=key, sequence=held.sequence, measures=measures, ranks=ranks).put()
    if row.counts:
        row.put()
    else:
        row.key.delete()
