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

from pipelines.streams.calls import Commit, Found, Key, Read, Steps
from pipelines.streams.rows import IDS, IdsPart, Interval, Names

MAX_PART = 500
MAX_PARTS = 200


def known_for_ms(interval: Interval, horizon_ms: int, now_ms: int) -> int:
    """Return how long ago an id may have come that an interval surely knows.

    That is the horizon, or less when the interval has all rows of ids that it may have: then some
    older ones may have gone before their time.
    """
    if len(interval.ids) < MAX_PARTS:
        return horizon_ms
    return min(horizon_ms, max(0, now_ms - 1000 * (interval.ids[0].last_s + 1)))


@dataclass
class KnownIds:
    """The ids that one interval has accepted."""

    names: Names
    computation: str
    lo: int
    horizon_ms: int
    seen: set[str] = field(default_factory=set)
    parts: dict[int, Found] = field(default_factory=dict)

    def clear(self) -> None:
        self.seen.clear()
        self.parts.clear()

    def load(self, interval: Interval, now_ms: int) -> Steps[None]:
        """Read what was accepted within the horizon, as far as it was not read before."""
        fresh = self._fresh(interval, now_ms)
        numbers = [part.number for part in fresh if part.number not in self.parts]
        found = (yield Read([self._key(number) for number in numbers])) if numbers else []
        for number, row in zip(numbers, found, strict=True):
            if row is not None:
                self.parts[number] = row
                self.seen.update(row.body)

    def expire(self, interval: Interval, now_ms: int) -> None:
        """Forget what is older than the horizon; the next commit with ids deletes its rows."""
        self._forget({part.number for part in self._fresh(interval, now_ms)})

    def _fresh(self, interval: Interval, now_ms: int) -> list[IdsPart]:
        oldest_s = (now_ms - self.horizon_ms) // 1000
        return [part for part in interval.ids if part.last_s >= oldest_s]

    def change(
        self, interval: Interval, accepted: Sequence[str], now_ms: int, commit: Commit
    ) -> tuple[IdsPart, ...]:
        """Add what was accepted to a commit, and delete what has served; return the parts then."""
        parts, now_s = self._fresh(interval, now_ms), now_ms // 1000
        last = interval.ids[-1] if interval.ids else IdsPart(0, 0, MAX_PART)
        number = last.number
        # A clock that was put back may count on ids that were forgotten by what it said before.
        if last in parts and number in self.parts:
            first, accepted = accepted[: MAX_PART - last.size], accepted[MAX_PART - last.size :]
            if first:
                ids, row = (*self.parts[number].body, *first), self.parts[number]
                commit.puts.append((self._key(number), ids, row.version))
                parts[-1] = IdsPart(number, max(now_s, last.last_s), len(ids))
        for start in range(0, len(accepted), MAX_PART):
            new, number = tuple(accepted[start : start + MAX_PART]), number + 1
            commit.inserts.append((self._key(number), new))
            parts.append(IdsPart(number, now_s, len(new)))
        kept = {part.number for part in parts[-MAX_PARTS:]}
        for part in interval.ids:
            if part.number not in kept:
                commit.deletes.append((self._key(part.number), None))
        return tuple(parts[-MAX_PARTS:])

    def committed(self, interval: Interval, commit: Commit, versions: Sequence[int]) -> None:
        """Remember what a commit has written; forget what it has deleted."""
        written = [*((key, body) for key, body, _ in commit.puts), *commit.inserts]
        for (key, body), version in zip(written, versions, strict=True):
            if key.kind == IDS:
                self.parts[int(key.name.rpartition(":")[2])] = Found(body, version)
                self.seen.update(body)
        self._forget({part.number for part in interval.ids})

    def _forget(self, kept: Collection[int]) -> None:
        for number in [each for each in self.parts if each not in kept]:
            self.seen.difference_update(self.parts.pop(number).body)

    def _key(self, number: int) -> Key:
        return self.names.ids(self.computation, self.lo, number)
