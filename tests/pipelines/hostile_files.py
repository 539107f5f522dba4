"""Files that nobody means well with, each as long as an upload may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipelines.grades import student_lists
from pipelines.grades.student_lists import student_rows
from pipelines.invitations import guest_lists
from pipelines.invitations.guest_lists import guest_rows
from pipelines.weblog.loads import BadLogError, check_log
from pipelines.weblog.source import Position, cut_lines, take
from pipelines.zeitgeist.series import BadSeriesError, read_series
from rollforward.continuations.csv_source import BadFileError, CsvSource, normalized
from rollforward.continuations.sources import Span

CHUNK = 65_536
LINE = b'192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /cakes?p=2 HTTP/1.1" 200 51 "-" "M"\n'
# What may stand before anything else, so that a file is taken for what it is not.
HEADS = {"guests": b"name,email\n", "students": b"name,grade,points\n", "log": LINE * 20}
PLAIN = {
    "series": b"".join(
        b"2015-02-%02d %02d:%02d:00,%d\n" % (day, hour, minute, day * hour)
        for day in range(1, 29)
        for hour in range(24)
        for minute in range(0, 60, 5)
    ),
    "students": b"Ada Lovelace the %dth of her name, 7, 92\n" % 12,
    "guests": b"Ada Lovelace of London,ada.of.london@example.com\n",
    "log": LINE,
}
HOSTILE = {
    "newlines": b"\n",
    "carriage returns": b"\r",
    "commas": b",",
    "quotes": b'"',
    "open quotes": b'"a\n',
    "quoted lines": b'","\n',
    "open, then escaped": b'"x\n' + b'""\n' * 49,
    "short lines": b"a,b\n",
    "rows of commas": b"," * 16_000 + b"\n",
    "quoted commas": b'"' + b"," * 16_000 + b'"\n',
    "quoted cells": b'"",' * 5_000 + b"\n",
    "blanks": b" ",
    "NULs": b"\0",
    "not UTF-8": b"\xff",
    "one line": b"x",
    "combining marks": "\u0300\u0316".encode(),
    "wide letters": "😀".encode(),
    "digits": b"9",
    "lines of digits": b"9" * 4_000 + b"\n",
    "rows of digits": b"2015-01-01," + b"9" * 4_000 + b"\n",
    "addresses": b"a,a@" + b"a." * 100 + b"com\n",
    "dates in lines": b"a - [17/May/2015:10:05:03 +0000] " * 400 + b"\n",
    "an open request": b'a - - [17/May/2015:10:05:03 +0000] "' + b"\\x" * 8_000 + b"\n",
}


def file_of(part: bytes, size: int, head: bytes = b"") -> bytes:
    """Return a file of some size that repeats a part."""
    return (head + part * (size // len(part) + 1))[:size]


def _series(content: bytes) -> None:
    read_series("series", content)


def _students(content: bytes) -> None:
    content = normalized(content)
    source = student_rows(
        lambda offset: _chunks(content, offset), student_lists.columns_of(content)
    )
    _walk(source)


def _guests(content: bytes) -> None:
    content = normalized(content)
    _walk(guest_rows(lambda offset: _chunks(content, offset), guest_lists.columns_of(content)))


def _walk(source: CsvSource[Any]) -> None:
    [span] = source.split(1)
    position: str | None = span.after
    while position is not None:
        position = source.read(Span(after=position), 250).next


def _log(content: bytes) -> None:
    check_log(content)
    here, records = Position(), list[Any]()
    for line in cut_lines(iter(_chunks(content, 0))):
        here = take(here, line, records)
        records.clear()


def _chunks(content: bytes, offset: int) -> list[bytes]:
    return [content[at : at + CHUNK] for at in range(offset, len(content), CHUNK)]


READERS: Mapping[str, Callable[[bytes], None]] = {
    "series": _series,
    "students": _students,
    "guests": _guests,
    "log": _log,
}
# A reader that refuses a file has ended well.
REFUSALS = (BadFileError, BadSeriesError, BadLogError)
