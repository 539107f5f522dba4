"""Log of a published stream: each bundle of a publication is appended as rows.

The number of a record in the log of its interval is the interval's count of records. The commit of
a bundle names the interval's version, so no number is used twice and none is left out.

A row states the published watermark that its worker knew. A tick had published it, so each on-time
record before it was in the log by then. So a reader may take it before it takes the row's records,
and a reader that begins in the middle has the same watermarks as one that was there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rollforward.streams.model.errors import MissingCodeError
from rollforward.streams.model.sources import Pulled
from rollforward.streams.publications.publication import LogRecord
from rollforward.streams.publications.subscription import LoggedRecord, Subscription
from rollforward.streams.storage.remote_calls import Key, Read, ScanKeys, Steps, StoredRow
from rollforward.streams.storage.schema import LOG, Head, Interval, LogRow, Names

MAX_ROW_RECORDS, MAX_ROW_SIZE = 500, 200_000
# In one read; a row larger than that is read alone.
MAX_ROWS, MAX_READ_SIZE = 20, 250_000
MAX_NUMBER = 10**15 - 2  # A name has 15 digits for it.


class Position(NamedTuple):
    """Position in a log: the number of the next record.

    `created_in`: the layout version that created the interval, whose numbers begin at 0.
    """

    created_in: int = 0
    number: int = 0


class Entry(NamedTuple):
    """A record of a log, and what holds once it is read."""

    position: Position
    watermark: int
    record: LoggedRecord | str


def log_rows(
    names: Names,
    publication: str,
    lo: int,
    interval: Interval,
    watermark: int,
    at_ms: int,
    records: Sequence[LogRecord],
) -> list[tuple[Key, LogRow]]:
    """Return the rows that append records to the log of an interval.

    Args:
        interval: Its row before the commit.
        watermark: The published watermark, as it is in any head that was read before the commit.
    """
    rows, start = [], interval.records
    for part in _parts(records):
        pairs = [(record.timestamp_ms, record.value) for record in part]
        end = start + len(part)
        key = names.log(publication, lo, interval.created_in, end, at_ms)
        rows.append((key, LogRow(start, watermark, sum(record.size for record in part), pairs)))
        start = end
    return rows


def _parts(records: Sequence[LogRecord]) -> Iterator[Sequence[LogRecord]]:
    """Cut records into the parts of one row each."""
    first = size = 0
    for number, record in enumerate(records):
        count = number - first
        if count and (count >= MAX_ROW_RECORDS or size + record.size > MAX_ROW_SIZE):
            yield records[first:number]
            first, size = number, 0
        size += record.size
    yield records[first:]


def read_log(source: Subscription, partition: str, position: Any, limit: int) -> Steps[Pulled]:
    """Read the log of a partition from a position on.

    The head is read before the log. So a reader that comes to the end of the log has all records
    before the watermark of that head.

    Args:
        position: As an earlier read returned it; None: where the subscription starts.

    Raises:
        MissingCodeError: the publication runs with other partitions than this code has.
    """
    names, publication = Names(source.publication.pipeline), source.publication.name
    lo = source.first_slot(partition)
    [head] = yield Read([names.head])
    watermark, place = _published(head, source), None
    if position is not None:
        place = Position(*position)
    elif source.starts_at_end:
        [interval] = yield Read([names.interval(publication, lo)])
        return Pulled((), _tail(head, interval), watermark=watermark)
    rows, is_end = yield from _rows(names, publication, lo, place or Position(), limit)
    entries = list(_entries(rows, place))
    taken = entries[:limit]
    is_end = is_end and len(taken) == len(entries)
    if taken:
        place, reached = taken[-1].position, taken[-1].watermark
        watermark = max(watermark, reached) if is_end else reached
    records: list[Any] = [entry.record for entry in taken if not source.skips(entry.record)]
    return Pulled(records, place or Position(), watermark=watermark)


def _tail(head: StoredRow | None, interval: StoredRow | None) -> Position:
    """Return the position after all records that are in a log."""
    if interval is not None:
        return Position(interval.body.created_in, interval.body.records)
    # It does not run. If it ran before, the next layout version creates its interval.
    return Position() if head is None else Position(head.body.layout_version, MAX_NUMBER)


def _rows(
    names: Names, publication: str, lo: int, place: Position, limit: int
) -> Steps[tuple[Sequence[tuple[str, StoredRow]], bool]]:
    """Return the rows of about as many records as a read takes, and whether there are no more.

    The names of rows have the numbers of their records, so no row is read in vain.
    """
    low = names.log_prefix(publication, lo, place.created_in, place.number + 1)
    listed = yield ScanKeys(LOG, low, names.past_log(publication, lo), None, MAX_ROWS)
    if not listed:
        return [], True
    wanted, count = list[str](), 0
    for name in listed:
        if count >= limit:
            break
        wanted.append(name)
        end, _ = position_of(name)
        count += end.number - (place.number if end.created_in == place.created_in else 0)
        place = end
    found = yield Read([Key(LOG, name) for name in wanted])
    rows = [(name, row) for name, row in zip(wanted, found, strict=True) if row is not None]
    read = _within_size(rows)
    return read, len(listed) < MAX_ROWS and len(read) == len(listed)


def has_more(source: Subscription, partition: str, position: Any) -> Steps[bool]:
    """Return whether a log has records after a position."""
    names, publication = Names(source.publication.pipeline), source.publication.name
    [interval] = yield Read([names.interval(publication, source.first_slot(partition))])
    if interval is None or not interval.body.records:
        return False
    return position is None or Position(*position) < _tail(None, interval)


def _published(head: StoredRow | None, source: Subscription) -> int:
    """Return the published watermark; 0: the publication does not run.

    Raises:
        MissingCodeError: it has other partitions.
    """
    body: Head = Head() if head is None else head.body
    name = source.publication.name
    if name not in body.intervals:
        return 0
    if [*body.intervals[name]] != source.first_slots:
        raise MissingCodeError(
            f"{name} runs with {len(body.intervals[name])} partitions, and this code has "
            f"{len(source.first_slots)}: only instances with that number can read it"
        )
    return body.published.get(name, 0)


def _within_size(rows: Sequence[tuple[str, StoredRow]]) -> Sequence[tuple[str, StoredRow]]:
    size = 0
    for number, (_, row) in enumerate(rows):
        size += row.body.size
        if number and size > MAX_READ_SIZE:
            return rows[:number]
    return rows


def position_of(name: str) -> tuple[Position, int]:
    """Return the position after a row, by its name, and when it was written, in ms.

    >>> position_of("p:hits-log:0000:000000003:000000000000120:000001700000000")
    (Position(created_in=3, number=120), 1700000000)
    """
    _, created_in, number, at_ms = name.rsplit(":", 3)
    return Position(int(created_in), int(number)), int(at_ms)


def _entries(rows: Sequence[tuple[str, StoredRow]], place: Position | None) -> Iterator[Entry]:
    """Yield the records of rows from a position on; None: from the first that is kept."""
    watermark = 0  # That of a row may be lower than the one before: its worker's head was older.
    for name, row in rows:
        body, (end, _) = row.body, position_of(name)
        watermark = max(watermark, body.watermark)
        if place is None:
            place = Position(end.created_in, body.start)
        if end.created_in != place.created_in:
            place = Position(end.created_in)
        if body.start > place.number:
            # Not a pair of a value and a time: it becomes a dead letter of each reader.
            missing = f"records {place.number} to {body.start - 1} were deleted before this read"
            place = Position(end.created_in, body.start)
            yield Entry(place, watermark, missing)
        for at, value in body.records[place.number - body.start :]:
            place = Position(end.created_in, place.number + 1)
            yield Entry(place, watermark, LoggedRecord(value, at, watermark))
