"""Playbacks: what is given to the pipeline, how fast, and what is done to it meanwhile.

One playback goes on at a time. Its times are those of its series, moved by whole weeks to behind
all that the pipeline has seen: the watermark never falls, and hours of the week stay as they are.

A feed that is held back pushes nothing, and states no watermark. A query that is changed is pushed
with other counts: ten times as much, or nothing at all, which is what an outage looks like.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from models.zeitgeist import ZeitgeistPlayback, playback_key
from pipelines.zeitgeist.pipeline import FEEDS, ZEITGEIST
from pipelines.zeitgeist.sample import DAYS, FIRST_DAY, QUERIES
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, HOUR_MS, WEEK_MS, Series
from rollforward.continuations.upload_entities import put_upload
from rollforward.datastore import transact
from rollforward.runtime import Clients, naive_utc

SPEEDS = (1, 60, 600, 3_000, 10_000, 30_000, 100_000)
SAMPLE_SPEED = 30_000  # Ten days in half a minute; the first spike after twelve seconds.
MAX_SERIES = 10
# Of all its series together: they are in memory at once.
MAX_BUCKETS = 250_000
SAMPLE_BUCKETS = DAYS * DAY_MS // BUCKET_MS
MAX_UPLOAD_BYTES = 8 * 1024 * 1024
# What a button changes: for so long, by the time of the stream, and times how much.
RUMOUR = (2 * HOUR_MS, 10.0)
SILENCE = (3 * HOUR_MS, 0.0)
MAX_CHANGES = 200
MAX_RECORDS = 400  # Of one push.


class PlaybackGoesOnError(Exception):
    """There is a playback already."""


@dataclass(frozen=True)
class Part:
    """A query of a playback.

    Attributes:
        query: Its key in the pipeline.
        first: Where its first bucket begins, in its own time.
        upload: Its counts: 8 bytes each; below zero: not measured, for so many buckets. None: they
            are made up.
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
    """That a query is asked for more, or less; in the time of the stream."""

    query: str
    begin: int
    end: int
    times: float


@dataclass(frozen=True)
class Playback:
    """A playback, and how far it is; all times but `since_ms` are those of the stream.

    Attributes:
        shift: How much is added to the times of its series.
        since_ms, since: It has gone on at its speed since this time of day, from this time on.
        reached: By feed, up to where everything was pushed.
        step: The number of the task that comes next.
        started_ms, ended_ms: Of the day; None: it goes on.
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
        """Up to where feeds go: a bucket behind the end, so that all buckets are complete."""
        return self.end + BUCKET_MS

    @property
    def is_over(self) -> bool:
        return all(at >= self.last for at in self.reached.values())

    @property
    def front(self) -> int:
        """How far the fastest feed is."""
        return max(self.reached.values())

    @property
    def stride(self) -> int:
        """How much of the stream one step pushes of a feed, at most: a push is short so."""
        return max(1, MAX_RECORDS // len(self.parts)) * BUCKET_MS

    def ahead(self, now_ms: int) -> int:
        """Return the begin of the first bucket that no step can have pushed a record of by now.

        Not even one that is under way, or has died: what it pushed is counted as it was pushed.
        """
        return -(-min(self.due(now_ms), self.front + self.stride) // BUCKET_MS) * BUCKET_MS

    def due(self, now_ms: int) -> int:
        """Return up to where records are due."""
        return min(self.last, self.since + max(0, now_ms - self.since_ms) * self.speed)

    def part(self, query: str) -> Part | None:
        return next((each for each in self.parts if each.query == query), None)

    def times(self, query: str, at: int) -> float:
        """Return times how much a query is asked for, by what was changed."""
        return math.prod(
            each.times
            for each in self.changes
            if each.query == query and each.begin <= at < each.end
        )

    def kept(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return asdict(self)

    @classmethod
    def of(cls, kept: dict[str, Any]) -> Playback:
        """Return the playback that was kept."""
        return cls(
            **{
                **kept,
                "parts": tuple(Part(**each) for each in kept["parts"]),
                "changes": tuple(Change(**each) for each in kept["changes"]),
                "held": tuple(kept["held"]),
            }
        )


def current() -> Playback | None:
    """Return the playback that goes on, or the last one."""
    row = playback_key().get()
    return Playback.of(row.playback) if row is not None else None


def save(wanted: Playback) -> None:
    """Store a playback, in a transaction."""
    ZeitgeistPlayback(key=playback_key(), playback=wanted.kept()).put()


# What is played


def sample_parts(playback_id: str) -> tuple[Part, ...]:
    """Return the made-up queries."""
    first, buckets = FIRST_DAY * DAY_MS, SAMPLE_BUCKETS
    return tuple(Part(f"{playback_id[:6]} {q.name}", q.name, first, buckets) for q in QUERIES)


def upload_parts(clients: Clients, playback_id: str, many: Sequence[Series]) -> tuple[Part, ...]:
    """Store series; return what plays them. Doing it again changes nothing."""
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
    """Return the count of each bucket; of one that was not measured, minus how many follow.

    >>> list(counts_of(Series("s", [(0, 7), (3 * BUCKET_MS, 5)])))
    [7.0, -2.0, -1.0, 5.0]
    """
    first, counts = series.buckets[0][0], array("d")
    for start, count in series.buckets:
        missing = (start - first) // BUCKET_MS - len(counts)
        counts.extend(-float(left) for left in range(missing, 0, -1))
        counts.append(count)
    return counts


# Begin


def new_playback(
    clients: Clients, playback_id: str, title: str, parts: tuple[Part, ...], speed: int
) -> Playback:
    """Return a playback that begins behind all that the feeds have stated."""
    stated = [ZEITGEIST.push(clients, "queries", [], process=feed).watermark for feed in FEEDS]
    first = min(part.first for part in parts)
    weeks = max(0, -(-(max(stated) + DAY_MS - first) // WEEK_MS))
    begin, end = first + weeks * WEEK_MS, max(part.end for part in parts) + weeks * WEEK_MS
    now = now_ms(clients)
    return Playback(
        playback_id, title, parts, weeks * WEEK_MS, begin, end, speed, now, begin,
        dict.fromkeys(FEEDS, begin), started_ms=now,
    )  # fmt: skip


def now_ms(clients: Clients) -> int:
    return int(clients.clock.now().timestamp() * 1000)


# Meanwhile


def change_speed(clients: Clients, playback_id: str, speed: int) -> bool:
    """Go on at another speed, from where the fastest feed is; return False if it is over."""

    def changed(old: Playback) -> Playback:
        now = now_ms(clients)
        return replace(old, speed=speed, since_ms=now, since=old.ahead(now))

    return _change(playback_id, changed)


def hold(playback_id: str, feed: str, *, is_held: bool) -> bool:
    """Hold a feed back, or let it go on; return False if the playback is over."""

    def changed(old: Playback) -> Playback:
        others = tuple(each for each in old.held if each != feed)
        return replace(old, held=(*others, feed) if is_held else others)

    return _change(playback_id, changed)


def ask_for(clients: Clients, playback_id: str, query: str, what: tuple[int, float]) -> bool:
    """Have a query asked for more or less, from the next bucket on; False: that cannot be."""

    def changed(old: Playback) -> Playback | None:
        begin = old.ahead(now_ms(clients))
        if old.part(query) is None or len(old.changes) >= MAX_CHANGES:
            return None
        return replace(old, changes=(*old.changes, Change(query, begin, begin + what[0], what[1])))

    return _change(playback_id, changed)


def stop(clients: Clients, playback_id: str) -> bool:
    """End a playback where its fastest feed is; return False if it is over."""

    def changed(old: Playback) -> Playback:
        end = min(old.end, old.ahead(now_ms(clients)))
        return replace(old, end=end, held=(), since=end + BUCKET_MS)

    return _change(playback_id, changed)


def _change(playback_id: str, changed: Any) -> bool:
    def body() -> bool:
        old = current()
        new = (
            changed(old) if old is not None and old.id == playback_id and not old.is_over else None
        )
        if new is not None:
            save(new)
        return new is not None

    return transact(body)
