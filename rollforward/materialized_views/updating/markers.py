"""Source markers: the marker after one change of its source, and the updates for its rows."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollforward.datastore import current
from rollforward.datastore.conversion.keys import new_entity
from rollforward.materialized_views.entities import SourceMarker, marker_key
from rollforward.materialized_views.rows import BadContributionError, Measures, Value
from rollforward.materialized_views.updates import Update, source_name
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc

# With its key it must fit into an entity.
MAX_MARKER_BYTES = 1_000_000
# A source's marker knows of so many rows that it left which change took it out of them.
MAX_LEFT = 20
# A source's marker may be deleted so long after its source. A source that is created again then
# begins above all that it had, unless that process's clock is behind by more than this.
FORGET_AFTER = datetime.timedelta(days=60)


@dataclass(frozen=True)
class PendingMarkers:
    """The markers that the body of a transaction has put, in the try at hand.

    Reads in a transaction do not show its own writes, so a source that is saved again in the same
    body continues from here.
    """

    markers: dict[Any, SourceMarker | None] = field(default_factory=dict)

    def on_retry(self, cause: Exception) -> None:
        self.markers.clear()

    def on_commit(self) -> None:
        """Do nothing: no later save reads this."""

    def on_outcome_unknown(self) -> None:
        """Do nothing: no later save reads this."""


class MarkerUpdate:
    """A change of one source's marker: first its contributions are set, then it is saved."""

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
        self,
        contributed: Mapping[str, Mapping[str, Mapping[str, Value]]],
        *,
        retained: Sequence[str],
        is_gone: Callable[[str], bool],
    ) -> None:
        """Set the source's contributions to each table from now on.

        Args:
            retained: Tables whose contributions stay as they were.
            is_gone: Whether a table has been replaced. Its updates in flight are forgotten.

        Raises:
            BadContributionError: the marker cannot hold it.
        """
        entries = {table: self.before[table] for table in retained}
        for table, rows in contributed.items():
            entries[table] = self._changed(table, rows)
        self.after = {table: rows for table, rows in entries.items() if rows}
        self.earlier = {
            tag: row for tag, row in self.earlier.items() if not is_gone(tag.partition(":")[0])
        }
        self._check_size()

    def _changed(self, table: str, rows: Mapping[str, Mapping[str, Value]]) -> dict[str, list[Any]]:
        """Return the marker's entries for a table's rows; note an update for each changed row."""
        stored = self.before.get(table, {})
        entries = {
            row: self._entry(table, row, dict(measures), stored.get(row))
            for row, measures in rows.items()
        }
        for row in stored.keys() - rows.keys():
            self._add_update(table, row, None, is_first=False)
        return entries

    def _entry(
        self, table: str, row: str, measures: dict[str, Value], stored: Sequence[Any] | None
    ) -> list[Any]:
        if stored is not None and _is_equal(stored[1], measures):
            return list(stored)
        self._add_update(table, row, measures, is_first=stored is None)
        return [self.sequence, measures]

    def _add_update(
        self, table: str, row: str, measures: dict[str, Value] | None, *, is_first: bool
    ) -> None:
        update = Update(source_name(self.source), self.sequence, measures, is_first)
        self._updates.append(((table, row), update))

    def _check_size(self) -> None:
        if not self._updates:
            return
        sent = {f"{table}:{row}": "x" * 70 for (table, row), _ in self._updates}
        if len(json.dumps([self.after, {**self.earlier, **sent}])) > MAX_MARKER_BYTES:
            raise BadContributionError("a source contributes more than its marker can hold")

    def updates(self) -> Iterator[tuple[tuple[str, str], Update]]:
        """Return a row of a table, and what changes there, for each."""
        return iter(self._updates)

    def save(
        self, clients: Clients, sent: Mapping[str, str], *, is_gone: bool
    ) -> SourceMarker | None:
        """Store the marker, if it says anything new; return it as it is now.

        Args:
            sent: The outbox rows that this change has created, by tag.
        """
        self.earlier = {tag: row for tag, row in self.earlier.items() if tag not in sent}
        was_gone = self.marker is not None and self.marker.forget_after is not None
        if self.after == self.before and is_gone == was_gone:
            return self.marker
        if self.marker is None and not self.after:
            return None
        values = {
            "sequence": self.sequence,
            "contributions": self.after,
            "sent": {**self._named_by_tokens(), **sent},
            "forget_after": naive_utc(clients.clock.now()) + FORGET_AFTER if is_gone else None,
        }
        if self.marker is not None:  # It keeps what only another version of the app knows of it.
            self.marker.populate(**values)
        marker = self.marker or new_entity(SourceMarker, marker_key(self.source), **values)
        current.put(marker)
        return marker

    def _named_by_tokens(self) -> dict[str, str]:
        """Return the earlier ones that the next token has to name: of rows it left, the last."""
        inside = {f"{table}:{row}" for table, rows in self.after.items() for row in rows}
        dropped = [tag for tag in self.earlier if tag not in inside][:-MAX_LEFT]
        return {tag: row for tag, row in self.earlier.items() if tag not in dropped}


def _is_equal(stored: Measures, measures: Measures) -> bool:
    """Return whether two contributions are the same, 1 and 1.0 not being."""
    return stored == measures and all(type(stored[name]) is type(measures[name]) for name in stored)
