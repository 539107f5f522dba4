"""Readers for pull sources: lines of a file or an upload, entities of a kind, rows of a view.

    PullSource("requests", lines(file("access.log"), parse))
    PullSource("requests", lines(upload("log-17"), parse))
    PullSource("orders", entities(Order, order_record, by=Order.created), poll=MINUTE)
    PullSource("shops", rows_of(SHOPS, SalesByShop, shop_record))

The function that each one takes converts an item to a record, (value, time), or to None to skip it.
If it raises, the item becomes a dead letter, and the source continues; after an outage of a service
that it asks, it is called again. The position commits with the records, so each line, entity or row
is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from google.cloud import ndb

from rollforward.app_code import SIGNALS
from rollforward.continuations.upload_entities import read_upload
from rollforward.materialized_views import Row, View, ViewGroup, row_name
from rollforward.materialized_views.rows import row_text
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.errors import is_outage
from rollforward.runtime.texts import describe_error
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.sources import Pulled, Reader, UnreadableItem
from rollforward.tasks.errors import TaskError

# Returns the content of a file from an offset on, in parts of any size.
Content = Callable[[Clients, int], Iterable[bytes]]
# Returns a record's value and time, or None to skip the item.
ToRecord = Callable[[Any], tuple[Any, int] | None]
_Records = list[tuple[Any, int] | UnreadableItem]

MAX_LINE_BYTES = 200_000
# Of a line that is too long: what its dead letter has of it, and what is searched for its end.
BEGINNING_BYTES, MAX_SKIPPED_BYTES = 1_000, 50_000_000
PART_BYTES = 65_536
SETTLED = timedelta(seconds=30)


def file(path: str | Path) -> Content:
    """Return the content of a file, which each process must have at this path."""

    def content(clients: Clients, offset: int) -> Iterator[bytes]:
        with Path(path).open("rb") as opened:
            opened.seek(offset)
            while part := opened.read(PART_BYTES):
                yield part

    return content


def upload(upload_id: str) -> Content:
    """Return the content of an upload (rollforward/continuations/upload_entities.py)."""
    return lambda clients, offset: read_upload(upload_id, offset)


def lines(content: Content, record: ToRecord, *, grows: bool = False) -> Reader:
    """Read a file line by line; the position is the byte offset.

    Args:
        record: Converts a line, as bytes without its end.
        grows: More may be appended, and a line without an end is incomplete. Otherwise the stream
            ends with the file.
    """

    def read(clients: Clients, position: Any, limit: int) -> Pulled:
        offset, records = position or 0, _Records()
        for number, (line, size) in enumerate(_split_lines(content(clients, offset))):
            if number == limit or (grows and not line.endswith(b"\n")):
                return Pulled(records, offset)
            offset += size
            if len(line) < size:
                records.append(UnreadableItem(_text_of(line), _too_long(size)))
            else:
                records += _converted(record, line.rstrip(b"\r\n"), _text_of)
        return Pulled(records, offset, is_over=not grows)

    return read


def entities(
    kind: type[ndb.Model],
    record: ToRecord,
    *filters: Any,
    by: Any = None,
    settled: timedelta = SETTLED,
    grows: bool = True,
) -> Reader:
    """Read the entities of a kind, present and future ones.

    Args:
        filters: Equality filters of ndb; with `by` they need an index of both properties.
        by: An indexed time property that orders the entities; those without a time are not read.
            None: entities are read in order of their keys, so a new entity is only read if its key
            is behind the last one.
        settled: With `by`, the age at which an entity is read, if more may follow. Writers must
            commit within this time; an entity that is committed later is missed.
        grows: Whether more entities may follow; otherwise the stream ends with the last one,
            however young that is.
    """

    def read(clients: Clients, position: Any, limit: int) -> Pulled:
        query = kind.query(*filters)
        if by is None:
            batch = _after_key(kind, query, position, limit)
        else:
            until = naive_utc(clients.clock.now()) - settled if grows else None
            batch = _after_time(kind, query, by, (position, until), limit)
        records = _Records()
        for entity in batch:
            records += _converted(record, entity, lambda entity: repr(entity.key))
        end = _position(batch[-1], by) if batch else position
        return Pulled(records, end, is_over=not grows and len(batch) < limit)

    return read


def rows_of(views: ViewGroup, view: type[View], record: Callable[[Row], Any]) -> Reader:
    """Read the current rows of a view once, in the order of their stored names; then it ends.

    A row that changes later is not read again.
    """

    def read(clients: Clients, position: Any, limit: int) -> Pulled:
        rows = views.rows_after(view, None if position is None else row_name(position), limit)
        records = _Records()
        for row in rows:
            if row.count:
                records += _converted(record, row, lambda row: repr(row.name))
        end = row_text(rows[-1].name) if rows else position
        return Pulled(records, end, is_over=len(rows) < limit)

    return read


def _converted(record: ToRecord, item: Any, describe: Callable[[Any], str]) -> _Records:
    """Return the record of an item; none if it is skipped."""
    try:
        converted = record(item)
    except (TaskError, *SIGNALS):  # The first says itself that it has to wait.
        raise
    except BaseException as error:
        if is_outage(error):
            raise
        return [UnreadableItem(describe(item), describe_error(error))]
    return [] if converted is None else [converted]


def _text_of(line: bytes) -> str:
    return line.decode(errors="backslashreplace")


def _position(entity: Any, by: Any) -> list[str]:
    """Return the position of an entity: its key, and its time if entities are ordered by time."""
    key = entity.key.urlsafe().decode()
    return [key] if by is None else [key, getattr(entity, by._code_name).isoformat()]


def _after_key(kind: type[ndb.Model], query: Any, position: Any, limit: int) -> list[Any]:
    if position is not None:
        query = query.filter(kind._key > ndb.Key(urlsafe=position[0].encode()))
    return list(query.order(kind._key).fetch(limit))


def _after_time(
    kind: type[ndb.Model], query: Any, by: Any, span: tuple[Any, datetime | None], limit: int
) -> list[Any]:
    """Return entities in order of their times; entities of one time in order of their keys.

    Args:
        span: A position, and the last time; None: any.
    """
    position, until = span
    settled, batch = query if until is None else query.filter(by <= until), list[Any]()
    if position is None:
        settled = settled.filter(by >= datetime.min)  # noqa: DTZ901  None is before all times.
    else:
        key, at = ndb.Key(urlsafe=position[0].encode()), datetime.fromisoformat(position[1])
        batch = list(query.filter(by == at, kind._key > key).order(kind._key).fetch(limit))
        settled = settled.filter(by > at)
    if len(batch) < limit:
        batch += settled.order(by, kind._key).fetch(limit - len(batch))
    return batch


def _split_lines(parts: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield lines with their ends, and their sizes; of a line that is too long only its beginning.

    Raises:
        BadRecordError: no end of a line is found.
    """
    tail, skipped = b"", 0  # Of a line that is too long, `tail` has the beginning.
    for part in parts:
        *lines, rest = part.split(b"\n")
        for line in lines:
            size = len(tail) + skipped + len(line)
            is_whole = size <= MAX_LINE_BYTES
            yield (tail + line if is_whole else (tail or line)[:BEGINNING_BYTES]) + b"\n", size + 1
            tail, skipped = b"", 0
        if skipped or len(tail) + len(rest) > MAX_LINE_BYTES:
            size = len(tail) + skipped + len(rest)
            tail = (tail or rest)[:BEGINNING_BYTES]
            skipped = size - len(tail)
        else:
            tail += rest
        if skipped > MAX_SKIPPED_BYTES:
            raise BadRecordError(_too_long(len(tail) + skipped))
    if tail:
        yield tail, len(tail) + skipped


def _too_long(size: int) -> str:
    return f"a line must have at most {MAX_LINE_BYTES} bytes, got {size}"
