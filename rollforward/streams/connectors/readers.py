"""What a pull source reads: the lines of a file or an upload, entities of a kind, rows of a view.

    PullSource("requests", lines(file("access.log"), parse))
    PullSource("requests", lines(upload("log-17"), parse))
    PullSource("orders", entities(Order, order_record, by=Order.created), poll=MINUTE)
    PullSource("shops", rows_of(SHOPS, SalesByShop, shop_record))

Each makes a record, (value, time), of what it reads, or None of what is no record. The position
commits with the records, so each line, entity or row is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from google.cloud import ndb

from rollforward.continuations.upload_entities import read_upload
from rollforward.materialized_views import Row, View, ViewGroup, row_name
from rollforward.materialized_views.rows import row_text
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.sources import Pulled

# Returns the content of a file from an offset on, in parts of any size.
Content = Callable[[Clients, int], Iterable[bytes]]
Reader = Callable[[Clients, Any, int], Pulled]
# A record: its value and its time; None: this is none. What it raises stops the source.
ToRecord = Callable[[Any], tuple[Any, int] | None]

MAX_LINE_BYTES = 200_000
PART_BYTES = 65_536
SETTLED = timedelta(seconds=30)


def file(path: str | Path) -> Content:
    """Return the content of a file that each process finds at a path."""

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
    """Read a file line by line; the position is that in bytes.

    Args:
        record: Takes a line without its end, as bytes.
        grows: More may be written behind the end, and a line without an end is not yet whole. Else
            the stream ends with the file.
    """

    def read(clients: Clients, position: Any, limit: int) -> Pulled:
        offset, records = position or 0, list[tuple[Any, int]]()
        for number, line in enumerate(_cut(content(clients, offset))):
            if number == limit or (grows and not line.endswith(b"\n")):
                return Pulled(records, offset)
            offset += len(line)
            made = record(line.rstrip(b"\r\n"))
            if made is not None:
                records.append(made)
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
    """Read the entities of a kind, those that are there and those that come.

    Args:
        filters: Equality filters of ndb; with `by` they need an index of both properties.
        by: The time property by which entities come, indexed. None: they are read in order of their
            keys, and what comes later is only found behind the last one.
        settled: With `by` an entity is read when its time is so long ago: whoever writes one
            commits it by then. One that is committed later than that is missed.
        grows: Whether more come; else the stream ends with the last one.
    """

    def read(clients: Clients, position: Any, limit: int) -> Pulled:
        query = kind.query(*filters)
        if by is None:
            found = _after_key(kind, query, position, limit)
        else:
            until = naive_utc(clients.clock.now()) - settled
            found = _after_time(kind, query, by, (position, until), limit)
        records = [made for each in found if (made := record(each)) is not None]
        last = _position(found[-1], by) if found else position
        return Pulled(records, last, is_over=not grows and len(found) < limit)

    return read


def rows_of(views: ViewGroup, view: type[View], record: Callable[[Row], Any]) -> Reader:
    """Read the rows of a view as they stand, in the order of their stored names; then it ends.

    A row that changes later is not read again.
    """

    def read(clients: Clients, position: Any, limit: int) -> Pulled:
        after = None if position is None else row_name(position)
        found = views.rows_after(view, after, limit)
        records = [made for row in found if row.count and (made := record(row)) is not None]
        last = row_text(found[-1].name) if found else position
        return Pulled(records, last, is_over=len(found) < limit)

    return read


def _position(entity: Any, by: Any) -> list[str]:
    """Return where an entity stands: its key, and its time if they come in order of that."""
    key = entity.key.urlsafe().decode()
    return [key] if by is None else [key, getattr(entity, by._code_name).isoformat()]


def _after_key(kind: type[ndb.Model], query: Any, position: Any, limit: int) -> list[Any]:
    if position is not None:
        query = query.filter(kind._key > ndb.Key(urlsafe=position[0].encode()))
    return list(query.order(kind._key).fetch(limit))


def _after_time(
    kind: type[ndb.Model], query: Any, by: Any, span: tuple[Any, datetime], limit: int
) -> list[Any]:
    """Return entities in order of their times, those of one time in order of their keys."""
    position, until = span
    settled, found = query.filter(by <= until), list[Any]()
    if position is not None:
        key, at = ndb.Key(urlsafe=position[0].encode()), datetime.fromisoformat(position[1])
        found = list(query.filter(by == at, kind._key > key).order(kind._key).fetch(limit))
        settled = settled.filter(by > at)
    if len(found) < limit:
        found += settled.order(by, kind._key).fetch(limit - len(found))
    return found


def _cut(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines with their ends.

    Raises:
        BadRecordError: a line is too long.
    """
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(rest) > MAX_LINE_BYTES:
            raise BadRecordError(f"a line has at most {MAX_LINE_BYTES} bytes: {rest[:60]!r}")
    if rest:
        yield rest
