"""Deduplication of pushed records: an interval remembers accepted ids for a horizon of time.

It keeps the ids in numbered rows of up to 500. A commit appends to the last row and deletes expired
rows, whose youngest id is older than the horizon. It also deletes the oldest rows above 200, which
bounds memory and storage. That shortens the horizon of an interval with more than 100,000 records
in that time. `known_for_ms` returns the current horizon, shown by a pipeline's status and a gauge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rollforward.streams.storage.remote_calls import Commit, Key, Read, Steps, StoredRow
from rollforward.streams.storage.schema import IDS, IdsPart, Interval, Names, PartId

MAX_PART = 500
MAX_PARTS = 200
# Numbers of id rows that one interval may use; its successors after a split or merge use others.
PARTS_PER_LAYOUT = 2**20


def known_for_ms(interval: Interval, horizon_ms: int, now_ms: int) -> int:
    """Return the age up to which an interval certainly remembers an id.

    This is the horizon, or less if the interval has reached the maximum of id rows. Older rows may
    then have been deleted early.
    """
    if len(interval.ids) < MAX_PARTS:
        return horizon_ms
    return min(horizon_ms, max(0, now_ms - 1000 * (interval.ids[0].last_s + 1)))


def split_surplus(parts: Sequence[IdsPart]) -> tuple[Sequence[IdsPart], tuple[IdsPart, ...]]:
    """Split rows of ids, the oldest first, into the rows above the limit and the others."""
    return parts[:-MAX_PARTS], tuple(parts[-MAX_PARTS:])


def key_of(names: Names, computation: str, lo: int, part: IdsPart) -> Key:
    """Return the key of a row of ids of the interval that begins at a slot."""
    return names.ids(computation, lo if part.lo is None else part.lo, part.number)


@dataclass
class KnownIds:
    """Ids that one interval has accepted."""

    names: Names
    computation: str
    lo: int
    horizon_ms: int
    accepted: set[str] = field(default_factory=set)
    parts: dict[PartId, StoredRow] = field(default_factory=dict)

    def clear(self) -> None:
        self.accepted.clear()
        self.parts.clear()

    def load(self, interval: Interval, now_ms: int) -> Steps[None]:
        """Read the ids accepted within the horizon, except those in memory."""
        current = self._current(interval, now_ms)
        unread = [part for part in current if part.id not in self.parts]
        rows = (yield Read([self._key(part) for part in unread])) if unread else []
        for part, row in zip(unread, rows, strict=True):
            if row is not None:
                self.parts[part.id] = row
                self.accepted.update(row.body)

    def expire(self, interval: Interval, now_ms: int) -> None:
        """Evict ids older than the horizon; the next commit with ids deletes their rows."""
        self._keep_only(self._current(interval, now_ms))

    def _current(self, interval: Interval, now_ms: int) -> list[IdsPart]:
        oldest_s = (now_ms - self.horizon_ms) // 1000
        return [part for part in interval.ids if part.last_s >= oldest_s]

    def change(
        self, interval: Interval, accepted: Sequence[str], now_ms: int, commit: Commit
    ) -> tuple[IdsPart, ...]:
        """Add accepted ids and deletes of expired rows to a commit; return the resulting parts."""
        if not self.horizon_ms:
            accepted = ()  # Pulled records have ids only for weak sinks.
        parts, now_s = self._current(interval, now_ms), now_ms // 1000
        open_part = self._open_part(interval)
        # After a clock was set back, a part may be fresh again although its ids were evicted.
        row = self.parts.get(open_part.id) if open_part and open_part in parts else None
        if open_part is not None and row is not None:
            room = MAX_PART - open_part.size
            appended, accepted = accepted[:room], accepted[room:]
            if appended:
                ids = (*row.body, *appended)
                commit.puts.append((self._key(open_part), ids, row.version))
                parts.remove(open_part)
                parts.append(IdsPart(open_part.number, max(now_s, open_part.last_s), len(ids)))
        number = interval.created_in * PARTS_PER_LAYOUT if open_part is None else open_part.number
        for start in range(0, len(accepted), MAX_PART):
            chunk, number = tuple(accepted[start : start + MAX_PART]), number + 1
            parts.append(IdsPart(number, now_s, len(chunk)))
            commit.inserts.append((self._key(parts[-1]), chunk))
        _, youngest = split_surplus(parts)
        retained = {part.id for part in youngest}
        expired = [part for part in interval.ids if part.id not in retained]
        commit.deletes += [(self._key(part), None) for part in expired]
        return youngest

    def _open_part(self, interval: Interval) -> IdsPart | None:
        """Return the part to append to: the last one created since the last split or merge.

        Other intervals may read the parts from before it, too.
        """
        parts = [part for part in interval.ids if part.lo is None]
        return parts[-1] if parts else None

    def committed(self, interval: Interval, commit: Commit, versions: Sequence[int]) -> None:
        """Update the memory after a commit: add written rows, evict deleted ones."""
        written = [*((key, body) for key, body, _ in commit.puts), *commit.inserts]
        pairs = zip(written, versions, strict=True)
        rows = [(body, version) for (key, body), version in pairs if key.kind == IDS]
        # The youngest parts, in the same order.
        for part, (body, version) in zip(reversed(interval.ids), reversed(rows), strict=False):
            self.parts[part.id] = StoredRow(body, version)
            self.accepted.update(body)
        self._keep_only(interval.ids)

    def _keep_only(self, retained: Iterable[IdsPart]) -> None:
        ids = {part.id for part in retained}
        for id_ in [id_ for id_ in self.parts if id_ not in ids]:
            self.accepted.difference_update(self.parts.pop(id_).body)

    def _key(self, part: IdsPart) -> Key:
        return key_of(self.names, self.computation, self.lo, part)
