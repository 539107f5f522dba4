"""Updates of views: how a save becomes updates, and how a row takes them.

Nothing here knows how an update travels from the one to the other.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from google.cloud import ndb
from pydantic import Field

from models.materialized_views import (
    RowMarker,
    SourceMarker,
    ViewCatalog,
    ViewRow,
    marker_key,
    row_marker_key,
)
from pipelines.materialized_views.rows import (
    MAX_SUMS,
    BadContributionError,
    Measures,
    RowEntry,
    Value,
    add_entry,
    remove_entry,
)
from pipelines.runtime.clients import Clients
from pipelines.runtime.clock import naive_utc

TABLE = r"^[a-z0-9_]+\.\d+\.\d+$"
# So many updates of one row travel together at most, and not more than a task can carry.
MAX_UPDATES = 100
MAX_UPDATES_BYTES = 90_000
# With its key it must fit into an entity.
MAX_MARKER_BYTES = 1_000_000
# A source's marker knows of so many rows that it left which change took it out of them.
MAX_LEFT = 20
# A source's marker may be forgotten so long after it. A source made anew then begins above all that
# it had, unless that process's clock is behind by more than this.
FORGET_AFTER = datetime.timedelta(days=60)


@dataclass(frozen=True)
class Update:
    """A change of what one source contributes to one row; no measures: it leaves the row."""

    source: str
    sequence: int
    measures: dict[str, Value] | None
    is_first: bool  # The row does not know the source yet, as far as its marker tells.


@dataclass(frozen=True)
class Apply:
    """Updates of one row, and the outbox row that holds them."""

    table: Annotated[str, Field(pattern=TABLE)]
    row: str
    updates: Annotated[list[Update], Field(max_length=MAX_UPDATES)]
    held: str


@dataclass(frozen=True)
class Follow:
    """A row that the views which stand on it have to look at again."""

    table: Annotated[str, Field(pattern=TABLE)]
    row: str


@dataclass(frozen=True)
class Pending:
    """The markers that the body of a transaction has put, in the try at hand.

    Reads in a transaction show what was there before it: a source that is saved once more in the
    same body goes on from here.
    """

    markers: dict[Any, SourceMarker | None] = field(default_factory=dict)

    def on_retry(self, cause: Exception) -> None:
        self.markers.clear()

    def on_commit(self) -> None:
        """Nothing follows from the commit."""

    def on_give_up(self) -> None:
        """Nothing was put that anybody would go on from."""


class MarkerUpdate:
    """What becomes of one source's marker."""

    def __init__(self, source: Any, marker: SourceMarker | None, now: datetime.datetime) -> None:
        """Begin with a source's marker; None: it has none, or none any more.

        Args:
            now: Without a marker the sequence begins at this time, in microseconds. So it does not
                meet updates of an earlier life of the source, however late these come.
        """
        self.source = source
        self.marker = marker
        self.before: dict[str, Any] = marker.contributions if marker else {}
        # Of each row's tag the outbox row that was the last to bring it a change.
        self.earlier: dict[str, str] = (marker.sent or {}) if marker else {}
        self.sequence = marker.sequence + 1 if marker else int(now.timestamp() * 1_000_000)
        self.after: dict[str, dict[str, Any]] = {}
        self._updates: list[tuple[tuple[str, str], Update]] = []

    def set_contributions(
        self, contributed: Mapping[str, Mapping[str, Mapping[str, Value]]]
    ) -> None:
        """Set what the source contributes from now on."""
        for table, rows in contributed.items():
            known = self.before.get(table, {})
            self.after[table] = {
                row: self._entered(table, row, dict(measures), known.get(row))
                for row, measures in rows.items()
            }
            for row in known.keys() - rows.keys():
                self._note(table, row, None, is_first=False)
        self.after = {table: rows for table, rows in self.after.items() if rows}

    def _entered(
        self, table: str, row: str, measures: dict[str, Value], known: Sequence[Any] | None
    ) -> list[Any]:
        if known is not None and _is_same(known[1], measures):
            return list(known)
        self._note(table, row, measures, is_first=known is None)
        return [self.sequence, measures]

    def _note(
        self, table: str, row: str, measures: dict[str, Value] | None, *, is_first: bool
    ) -> None:
        update = Update(source_name(self.source), self.sequence, measures, is_first)
        self._updates.append(((table, row), update))

    def retain(self, tables: Sequence[str]) -> None:
        """Leave what it contributes to some tables as it is."""
        self.after.update((table, self.before[table]) for table in tables)

    def drop_tables(self, is_gone: Callable[[str], bool]) -> None:
        """Forget what was sent to tables that nobody reads any more."""
        self.earlier = {
            tag: row for tag, row in self.earlier.items() if not is_gone(tag.partition(":")[0])
        }

    def updates(self) -> Iterator[tuple[tuple[str, str], Update]]:
        """Return a row of a table, and what changes there, for each."""
        return iter(self._updates)

    def check(self) -> None:
        """Check that the marker can hold it.

        Raises:
            BadContributionError: it cannot.
        """
        if not self._updates:
            return
        sent = {f"{table}:{row}": "x" * 70 for (table, row), _ in self._updates}
        if len(json.dumps([self.after, {**self.earlier, **sent}])) > MAX_MARKER_BYTES:
            raise BadContributionError("a source contributes more than its marker can hold")

    def save(
        self, clients: Clients, sent: Mapping[str, str], *, is_gone: bool
    ) -> SourceMarker | None:
        """Store the marker, if it says anything new; return it as it is now.

        Args:
            sent: The outbox rows that this change has set going, by tag: `earlier` is the rest.
        """
        self.earlier = {tag: row for tag, row in self.earlier.items() if tag not in sent}
        was_gone = self.marker is not None and self.marker.forget_after is not None
        if self.after == self.before and is_gone == was_gone:
            return self.marker
        if self.marker is None and not self.after:
            return None
        # One that was read keeps what only another version of the code knows of it.
        marker = self.marker or SourceMarker(key=marker_key(self.source))
        marker.populate(
            sequence=self.sequence,
            contributions=self.after,
            sent={**self._remembered(), **sent},
            forget_after=naive_utc(clients.clock.now()) + FORGET_AFTER if is_gone else None,
        )
        marker.put()
        return marker

    def _remembered(self) -> dict[str, str]:
        """Return the earlier ones that the next token has to name: of rows it left, the last."""
        inside = {f"{table}:{row}" for table, rows in self.after.items() for row in rows}
        left = [tag for tag in self.earlier if tag not in inside][:-MAX_LEFT]
        return {tag: row for tag, row in self.earlier.items() if tag not in left}


def _is_same(known: Measures, measures: Measures) -> bool:
    """Return whether two contributions are the same, 1 and 1.0 not being."""
    return known == measures and all(type(known[name]) is type(measures[name]) for name in known)


def parts_of(updates: Sequence[Update]) -> Iterator[list[Update]]:
    """Cut updates of one row into what travels together."""
    part: list[Update] = []
    room = MAX_UPDATES_BYTES
    for update in updates:
        size = len(json.dumps(asdict(update), ensure_ascii=False).encode())
        if part and (len(part) == MAX_UPDATES or size > room):
            yield part
            part, room = [], MAX_UPDATES_BYTES
        part.append(update)
        room -= size
    if part:
        yield part


def source_name(key: Any) -> str:
    """Return a source's key as text, its kind first."""
    return f"{key.kind()}:{key.urlsafe().decode()}"


def source_key(name: str) -> Any:
    """Return the key in a source's name."""
    return ndb.Key(urlsafe=name.partition(":")[2].encode())


def newest_of(updates: Sequence[Update]) -> dict[str, Update]:
    """Return the last update of each source."""
    newest: dict[str, Update] = {}
    for update in updates:
        known = newest.get(update.source)
        if known is None:
            newest[update.source] = update
        elif update.sequence > known.sequence:
            newest[update.source] = replace(update, is_first=known.is_first or update.is_first)
    return newest


@dataclass(frozen=True)
class Read:
    """What an apply has to know: the catalog, the row, its markers, and the sources' own."""

    catalog: ViewCatalog | None
    row: ViewRow | None
    before: Mapping[str, RowMarker | None]
    truth: Mapping[str, SourceMarker | None]


def read_for_apply(catalog: Any, key: Any, newest: Mapping[str, Update]) -> Read:
    """Read a row, its markers, and the sources' markers where the row knows nothing of them.

    Args:
        catalog: The key of a copy of the catalog.
    """
    sources = list(newest)
    likely = [source for source in sources if newest[source].is_first]
    own = [row_marker_key(key, source) for source in sources]
    theirs = [marker_key(source_key(source)) for source in likely]
    copy, row, *found = ndb.get_multi([catalog, key, *own, *theirs])
    before = dict(zip(sources, found[: len(sources)], strict=True))
    truth = dict(zip(likely, found[len(sources) :], strict=True))
    unlikely = [source for source in sources if before[source] is None and source not in truth]
    if unlikely:
        more = ndb.get_multi([marker_key(source_key(source)) for source in unlikely])
        truth.update(zip(unlikely, more, strict=True))
    return Read(copy, row, before, truth)


def fold(
    row: ViewRow, newest: Mapping[str, Update], read: Read, args: Apply
) -> dict[str, RowEntry | None]:
    """Bring a row up to date; return what it holds now of each source that changed.

    Raises:
        BadContributionError: it would have more measures than a row can hold.
    """
    most = max(MAX_SUMS, len(row.sums))
    changed: dict[str, RowEntry | None] = {}
    for source, update in newest.items():
        marker = read.before[source]
        if marker is not None and not _is_older(marker, update):
            continue
        held = _held(update) if marker is not None else _told(source, read.truth[source], args)
        if marker is not None:
            remove_entry(row, RowEntry(source, marker.sequence, marker.measures))
        elif held is None:
            continue
        if held is not None:
            add_entry(row, held)
        changed[source] = held
    if len(row.sums) > most:
        words = (
            f"row {args.row} of {args.table} would have {len(row.sums)} measures, at most {most}"
        )
        raise BadContributionError(f"{words}: let its sources share names, or part it into rows")
    return changed


def _is_older(marker: RowMarker, update: Update) -> bool:
    """Return whether a row holds less of a source than an update brings."""
    return bool(marker.sequence < update.sequence)


def _held(update: Update) -> RowEntry | None:
    if update.measures is None:
        return None
    return RowEntry(update.source, update.sequence, update.measures)


def _told(source: str, marker: SourceMarker | None, args: Apply) -> RowEntry | None:
    """Return what a source contributes to a row that knows nothing of it, by its own marker.

    The row may never have heard of the source, or have forgotten it when it left. Only the
    source's marker tells an update that is due from one that comes too late.
    """
    if marker is None:
        return None
    known = marker.contributions.get(args.table, {}).get(args.row)
    return RowEntry(source, known[0], known[1]) if known else None
