"""The records of a playback: what each feed pushes, and when.

A made-up query is counted by every feed, each at its own minute of a bucket. A series of a file
comes by one feed, each count in the last millisecond of its bucket: it is not known before that.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from pipelines.zeitgeist.pipeline import FEEDS
from pipelines.zeitgeist.playbacks import Part, Playback
from pipelines.zeitgeist.sample import FIRST_DAY, QUERIES, made_up_count
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, MINUTE_MS
from rollforward.continuations.upload_entities import read_upload
from rollforward.streams import PushedRecord

_MADE_UP = {query.name: query for query in QUERIES}


def records_of(playback: Playback, feed: str, begin: int, end: int) -> list[PushedRecord]:
    """Return what a feed pushes from a time on, before another one, in order of time."""
    found = [
        PushedRecord(f"{playback.id}:{feed}:{number}:{at}", value, at)
        for number, part in enumerate(playback.parts)
        for value, at in _of_part(playback, part, feed, begin, end)
        if begin <= at < end
    ]
    return sorted(found, key=lambda each: each.timestamp_ms)


def _of_part(
    playback: Playback, part: Part, feed: str, begin: int, end: int
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield values with their times; some lie outside, by less than a bucket."""
    shift, stops = playback.shift, min(part.end + playback.shift, playback.end)
    first = max(0, (begin - shift - part.first) // BUCKET_MS)
    last = max(first, -(-(min(end, stops) - shift - part.first) // BUCKET_MS))
    counts = _made_up(part, feed, first, last) if part.upload is None else None
    if counts is None:
        counts = _uploaded(part, first, last) if feed == part.feed else iter(())
    late = (FEEDS.index(feed) + 1) * MINUTE_MS if part.upload is None else BUCKET_MS - 1
    for number, count in counts:
        start = part.first + number * BUCKET_MS + shift
        if start >= stops:
            break
        if count < 0:
            yield {"query": part.query, "until": start - int(count) * BUCKET_MS}, start
        else:
            n = round(count * playback.times(part.query, start))
            yield {"query": part.query, "n": n}, start + late
    if feed == (part.feed or FEEDS[0]):
        yield {"query": part.query, "until": None}, stops


def _made_up(part: Part, feed: str, first: int, last: int) -> Iterator[tuple[int, float]]:
    """Yield the made-up counts of a feed, each with the number of its bucket."""
    query, begin = _MADE_UP[part.name], part.first - FIRST_DAY * DAY_MS
    for number in range(first, last):
        yield number, made_up_count(query, feed, begin + number * BUCKET_MS)


def _uploaded(part: Part, first: int, last: int) -> Iterator[tuple[int, float]]:
    """Yield the counts of a file, each with the number of its bucket; of a gap, its begin."""
    before = max(0, first - 1)
    counts = _read(part.upload or "", before, min(last, part.buckets))
    for number, count in enumerate(counts, start=before):
        if number >= first and (count >= 0 or counts[number - before - 1] >= 0):
            yield number, count


def _read(upload: str, first: int, last: int) -> array[float]:
    counts, content = array("d"), b""
    wanted = max(0, last - first) * counts.itemsize
    if wanted:
        for chunk in read_upload(upload, first * counts.itemsize):
            content += chunk
            if len(content) >= wanted:
                break
    counts.frombytes(content[:wanted])
    return counts
