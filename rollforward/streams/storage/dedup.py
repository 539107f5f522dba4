"""The ids of pushed records: what was accepted is known again, for a stated time.

An interval keeps the ids in numbered rows, each of up to 500. A commit writes the last of them; it
deletes those whose youngest id is older than the horizon, and, when there are more than 200, the
oldest: that bounds memory and storage, and shortens the horizon of an interval that gets more than
100,000 records in its time. `known_for_ms` says for how long an id is known as things stand; a
pipeline's status and a gauge have it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from rollforward.streams.storage.remote_calls import Commit, Key, Read, Steps, StoredRow
from rollforward.streams.storage.schema import IDS, IdsPart, Interval, Names

MAX_PART = 500
MAX_PARTS = 200
# Numbers of parts that an interval may use before it is split or merged, and never again.
PARTS_PER_LAYOUT = 2**20


def known_for_ms(interval: Interval, horizon_ms: int, now_ms: int) -> int:
    """Return how long ago an id may have come that an interval surely knows.

    That is the horizon, or less when the interval has all rows of ids that it may have: then some
    older ones may have gone before their time.
    """
    if len(interval.ids) < MAX_PARTS:
        return horizon_ms
    return min(horizon_ms, max(0, now_ms - 1000 * (interval.ids[0].last_s + 1)))


def split_surplus(parts: Sequence[IdsPart]) -> tuple[Sequence[IdsPart], tuple[IdsPart, ...]]:
    """Return rows of ids, the oldest first, as those for which there is no room and the others."""
    return parts[:-MAX_PARTS], tuple(parts[-MAX_PARTS:])


def key_of(names: Names, computation: str, lo: int, part: IdsPart) -> Key:
    """Return the key of a row of ids of the interval that begins at a slot."""
    return names.ids(computation, lo if part.lo is None else part.lo, part.number)


@dataclass
class KnownIds:
    """The ids that one interval has accepted."""

    names: Names
    computation: str
    lo: int
    horizon_ms: int
    accepted: set[str] = field(default_factory=set)
    parts: dict[Key, StoredRow] = field(default_factory=dict)

    def clear(self) -> None:
        self.accepted.clear()
        self.parts.clear()

    def load(self, interval: Interval, now_ms: int) -> Steps[None]:
        """Read what was accepted within the horizon, as far as it was not read before."""
        keys = [self._key(part) for part in self._fresh(interval, now_ms)]
        keys = [key for key in keys if key not in self.parts]
        found = (yield Read(keys)) if keys else []
        for key, row in zip(keys, found, strict=True):
            if row is not None:
                self.parts[key] = row
                self.accepted.update(row.body)

    def expire(self, interval: Interval, now_ms: int) -> None:
        """Forget what is older than the horizon; the next commit with ids deletes its rows."""
        self._forget({self._key(part) for part in self._fresh(interval, now_ms)})

    def _fresh(self, interval: Interval, now_ms: int) -> list[IdsPart]:
        oldest_s = (now_ms - self.horizon_ms) // 1000
        return [part for part in interval.ids if part.last_s >= oldest_s]

    def change(
        self, interval: Interval, accepted: Sequence[str], now_ms: int, commit: Commit
    ) -> tuple[IdsPart, ...]:
        """Add what was accepted to a commit, and delete what has served; return the parts then."""
        if not self.horizon_ms:
            accepted = ()  # Of records that are pulled: they have ids for weak sinks alone.
        parts, now_s = self._fresh(interval, now_ms), now_ms // 1000
        last = self._last(interval)
        # A clock that was put back may count on ids that were forgotten by what it said before.
        row = self.parts.get(self._key(last)) if last is not None and last in parts else None
        if last is not None and row is not None:
            first, accepted = accepted[: MAX_PART - last.size], accepted[MAX_PART - last.size :]
            if first:
                ids = (*row.body, *first)
                commit.puts.append((self._key(last), ids, row.version))
                parts.remove(last)
                parts.append(IdsPart(last.number, max(now_s, last.last_s), len(ids)))
        number = interval.created_in * PARTS_PER_LAYOUT if last is None else last.number
        for start in range(0, len(accepted), MAX_PART):
            new, number = tuple(accepted[start : start + MAX_PART]), number + 1
            parts.append(IdsPart(number, now_s, len(new)))
            commit.inserts.append((self._key(parts[-1]), new))
        _, youngest = split_surplus(parts)
        kept = {self._key(part) for part in youngest}
        for part in interval.ids:
            if self._key(part) not in kept:
                commit.deletes.append((self._key(part), None))
        return youngest

    def _last(self, interval: Interval) -> IdsPart | None:
        """Return the part that can be added to: of this interval, since it is as it is.

        What was there before it was split or merged may be read by others, too.
        """
        own = [part for part in interval.ids if part.lo is None]
        return own[-1] if own else None

    def committed(self, interval: Interval, commit: Commit, versions: Sequence[int]) -> None:
        """Remember what a commit has written; forget what it has deleted."""
        written = [*((key, body) for key, body, _ in commit.puts), *commit.inserts]
        for (key, body), version in zip(written, versions, strict=True):
            if key.kind == IDS:
                self.parts[key] = StoredRow(body, version)
                self.accepted.update(body)
        self._forget({self._key(part) for part in interval.ids})

    def _forget(self, kept: Collection[Key]) -> None:
        for key in [each for each in self.parts if each not in kept]:
            self.accepted.difference_update(self.parts.pop(key).body)

    def _key(self, part: IdsPart) -> Key:
        return key_of(self.names, self.computation, self.lo, part)
