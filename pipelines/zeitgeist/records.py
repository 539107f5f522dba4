"""Records of a playback, by feed and time.

Every feed counts a made-up query, each at its own minute of a bucket. A series of a file comes by
one feed, each count in the last millisecond of its bucket, when it is complete.
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
    """Return the records of a feed with begin <= time < end, in order of time."""
    records = [
        PushedRecord(f"{playback.id}:{feed}:{number}:{at}", value, at)
        for number, part in enumerate(playback.parts)
        for value, at in _of_part(playback, part, feed, begin, end)
        if begin <= at < end
    ]
    return sorted(records, key=lambda record: record.timestamp_ms)


def _of_part(
    playback: Playback, part: Part, feed: str, begin: int, end: int
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield values with their times; some lie outside, by less than a bucket."""
    shift, stops = playback.shift, min(part.end + playback.shift, playback.end)
    first_number = max(0, (begin - shift - part.first) // BUCKET_MS)
    end_number = max(first_number, -(-(min(end, stops) - shift - part.first) // BUCKET_MS))
    counts = _made_up(part, feed, first_number, end_number) if part.upload is None else None
    if counts is None:
        counts = _uploaded(part, first_number, end_number) if feed == part.feed else iter(())
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


def _made_up(
    part: Part, feed: str, first_number: int, end_number: int
) -> Iterator[tuple[int, float]]:
    """Yield the made-up counts of a feed, each with the number of its bucket."""
    query, begin = _MADE_UP[part.name], part.first - FIRST_DAY * DAY_MS
    for number in range(first_number, end_number):
        yield number, made_up_count(query, feed, begin + number * BUCKET_MS)


def _uploaded(part: Part, first_number: int, end_number: int) -> Iterator[tuple[int, float]]:
    """Yield the counts of a file, each with the number of its bucket; one for each gap."""
    previous = max(0, first_number - 1)
    counts = _read(part.upload or "", previous, min(end_number, part.buckets))
    for number, count in enumerate(counts, start=previous):
        if number >= first_number and (count >= 0 or counts[number - previous - 1] >= 0):
            yield number, count


def _read(upload: str, first_number: int, end_number: int) -> array[float]:
    counts, content = array("d"), b""
    size = max(0, end_number - first_number) * counts.itemsize
    if size:
        for chunk in read_upload(upload, first_number * counts.itemsize):
            content += chunk
            if len(content) >= size:
                break
    counts.frombytes(content[:size])
    return counts
