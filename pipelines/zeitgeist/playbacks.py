"""Playbacks: input of the pipeline, its speed, and changes while it runs.

One playback runs at a time. The times of its series are shifted by whole weeks to after the
pipeline's watermark, which never falls; so hours of the week stay the same.

A feed that is held back pushes neither records nor a watermark. A changed query is pushed with
other counts: ten times as much, or nothing at all, like an outage.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from models.zeitgeist import ZeitgeistPlayback, playback_key
from pipelines.times import now_ms
from pipelines.zeitgeist.pipeline import FEEDS, ZEITGEIST
from pipelines.zeitgeist.sample import DAYS, FIRST_DAY, QUERIES
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, HOUR_MS, WEEK_MS, Series
from rollforward.continuations.upload_entities import put_upload
from rollforward.datastore import transact
from rollforward.runtime import Clients, naive_utc

SPEEDS = (1, 60, 600, 3_000, 10_000, 30_000, 100_000)
SAMPLE_SPEED = 30_000  # Ten days in half a minute; the first spike after twelve seconds.
MAX_SERIES = 10
# Limit of all its series together: they are in memory at once.
MAX_BUCKETS = 250_000
SAMPLE_BUCKETS = DAYS * DAY_MS // BUCKET_MS
MAX_UPLOAD_BYTES = 8 * 1024 * 1024
# Changes of the buttons: duration in the time of the stream, and factor.
RUMOUR = (2 * HOUR_MS, 10.0)
SILENCE = (3 * HOUR_MS, 0.0)
MAX_CHANGES = 200
MAX_RECORDS = 400  # Limit of one push.


class PlaybackGoesOnError(Exception):
    """Another playback is running."""


@dataclass(frozen=True)
class Part:
    """A query of a playback.

    Attributes:
        query: Its key in the pipeline.
        first: The beginning of its first bucket, in its own time.
        upload: Its counts, 8 bytes each; -n: a gap of n buckets begins. None: they are made up.
    """

    query: str
    name: str
    first: int
    buckets: int
    upload: str | None = None
    feed: str = ""

    @property
    def end(self) -> int:
        return self.first + self.buckets * BUCKET_MS


@dataclass(frozen=True)
class Change:
    """A factor on the requests of a query; its times are in the time of the stream."""

    query: str
    begin: int
    end: int
    times: float


@dataclass(frozen=True)
class Playback:
    """A playback and its progress; times are in the time of the stream, `..._ms` are wall times.

    Attributes:
        shift: The offset added to the times of its series.
        since_ms, since: It has run at its speed since this wall time, from this stream time on.
        reached: By feed, the end of the pushed records.
        step: The number of the next task.
        started_ms, ended_ms: Start and end; None: it is running.
    """

    id: str
    title: str
    parts: tuple[Part, ...]
    shift: int
    begin: int
    end: int
    speed: int
    since_ms: int
    since: int
    reached: Mapping[str, int]
    held: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    step: int = 0
    started_ms: int = 0
    ended_ms: int | None = None

    @property
    def last(self) -> int:
        """End of the feeds: a bucket after `end`, so that all buckets complete."""
        return self.end + BUCKET_MS

    @property
    def is_over(self) -> bool:
        return all(at >= self.last for at in self.reached.values())

    @property
    def front(self) -> int:
        """Position of the fastest feed."""
        return max(self.reached.values())

    @property
    def stride(self) -> int:
        """Maximum time span of one push, which bounds its records."""
        return max(1, MAX_RECORDS // len(self.parts)) * BUCKET_MS

    def ahead(self, now_ms: int) -> int:
        """Return the begin of the first bucket of which no step can have pushed a record by now.

        This includes running and dead steps: their records are counted as they were pushed.
        """
        return -(-min(self.due(now_ms), self.front + self.stride) // BUCKET_MS) * BUCKET_MS

    def due(self, now_ms: int) -> int:
        """Return the end of the due records."""
        return min(self.last, self.since + max(0, now_ms - self.since_ms) * self.speed)

    def part(self, query: str) -> Part | None:
        return next((part for part in self.parts if part.query == query), None)

    def times(self, query: str, at: int) -> float:
        """Return the product of a query's changes at a time."""
        return math.prod(
            change.times
            for change in self.changes
            if change.query == query and change.begin <= at < change.end
        )

    def kept(self) -> dict[str, Any]:
        """Return the playback as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Playback:
        """Return a stored playback."""
        return cls(
            **{
                **stored,
                "parts": tuple(Part(**fields) for fields in stored["parts"]),
                "changes": tuple(Change(**fields) for fields in stored["changes"]),
                "held": tuple(stored["held"]),
            }
        )


def current() -> Playback | None:
    """Return the running playback, or the last one."""
    row = playback_key().get()
    return Playback.of(row.playback) if row is not None else None


def save(playback: Playback) -> None:
    """Store a playback, in a transaction."""
    ZeitgeistPlayback(key=playback_key(), playback=playback.kept()).put()


# Parts


def sample_parts(playback_id: str) -> tuple[Part, ...]:
    """Return the made-up queries."""
    begin, buckets = FIRST_DAY * DAY_MS, SAMPLE_BUCKETS
    return tuple(Part(f"{playback_id[:6]} {q.name}", q.name, begin, buckets) for q in QUERIES)


def upload_parts(clients: Clients, playback_id: str, many: Sequence[Series]) -> tuple[Part, ...]:
    """Store series; return the parts that play them. A repeated call changes nothing."""
    parts = []
    for number, series in enumerate(many):
        counts, upload = counts_of(series), f"{playback_id}-{number}"
        put_upload(upload, counts.tobytes(), naive_utc(clients.clock.now()))
        parts.append(
            Part(
                f"{playback_id[:6]} {series.name}",
                series.name,
                series.buckets[0][0],
                len(counts),
                upload,
                FEEDS[number % len(FEEDS)],
            )
        )
    return tuple(parts)


def counts_of(series: Series) -> array[float]:
    """Return the count of each bucket; in a gap, minus the number of its remaining buckets.

    >>> list(counts_of(Series("s", [(0, 7), (3 * BUCKET_MS, 5)])))
    [7.0, -2.0, -1.0, 5.0]
    """
    begin, counts = series.buckets[0][0], array("d")
    for start, count in series.buckets:
        gap = (start - begin) // BUCKET_MS - len(counts)
        counts.extend(-float(remaining) for remaining in range(gap, 0, -1))
        counts.append(count)
    return counts


# Start


def new_playback(
    clients: Clients, playback_id: str, title: str, parts: tuple[Part, ...], speed: int
) -> Playback:
    """Return a playback that begins after the watermarks of all feeds."""
    stated = [ZEITGEIST.push(clients, "queries", [], process=feed).watermark for feed in FEEDS]
    first_start = min(part.first for part in parts)
    weeks = max(0, -(-(max(stated) + DAY_MS - first_start) // WEEK_MS))
    begin, end = first_start + weeks * WEEK_MS, max(part.end for part in parts) + weeks * WEEK_MS
    started_ms = now_ms(clients)
    return Playback(
        playback_id, title, parts, weeks * WEEK_MS, begin, end, speed, started_ms, begin,
        dict.fromkeys(FEEDS, begin), started_ms=started_ms,
    )  # fmt: skip


# Changes


def change_speed(clients: Clients, playback_id: str, speed: int) -> bool:
    """Change the speed, from the position of the fastest feed; return False if it is over."""

    def changed(playback: Playback) -> Playback:
        changed_ms = now_ms(clients)
        return replace(playback, speed=speed, since_ms=changed_ms, since=playback.ahead(changed_ms))

    return _change(playback_id, changed)


def hold(playback_id: str, feed: str, *, is_held: bool) -> bool:
    """Hold a feed back, or resume it; return False if the playback is over."""

    def changed(playback: Playback) -> Playback:
        held = tuple(name for name in playback.held if name != feed)
        return replace(playback, held=(*held, feed) if is_held else held)

    return _change(playback_id, changed)


def ask_for(clients: Clients, playback_id: str, query: str, change: tuple[int, float]) -> bool:
    """Change the requests of a query from the next bucket on; return False if that is refused."""

    def changed(playback: Playback) -> Playback | None:
        begin = playback.ahead(now_ms(clients))
        if playback.part(query) is None or len(playback.changes) >= MAX_CHANGES:
            return None
        return replace(
            playback,
            changes=(*playback.changes, Change(query, begin, begin + change[0], change[1])),
        )

    return _change(playback_id, changed)


def stop(clients: Clients, playback_id: str) -> bool:
    """End a playback at the position of its fastest feed; return False if it is over."""

    def changed(playback: Playback) -> Playback:
        end = min(playback.end, playback.ahead(now_ms(clients)))
        return replace(playback, end=end, held=(), since=end + BUCKET_MS)

    return _change(playback_id, changed)


def _change(playback_id: str, changed: Any) -> bool:
    def body() -> bool:
        playback = current()
        replacement = (
            changed(playback)
            if playback is not None and playback.id == playback_id and not playback.is_over
            else None
        )
        if replacement is not None:
            save(replacement)
        return replacement is not None

    return transact(body)
