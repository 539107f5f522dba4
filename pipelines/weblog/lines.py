r"""Lines of access logs, in the common and the combined format of Apache and nginx.

    192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /cakes?page=2 HTTP/1.1" 200 5120 "-" "Mozilla/5"

A line that cannot be read costs that line and no other: it is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.times import read_time

# Longer ones are no line of a log that a browser led to.
MAX_LINE_BYTES = 16_384
# What is longer is cut: both are keys, of at most 500 bytes in UTF-8.
MAX_VISITOR_CHARS = 100
MAX_PATH_CHARS = 120
# Of the bad lines that are named.
MAX_NAMED = 10
# A line without a request: the browser hung up before it asked for anything.
NO_PATH = "-"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_LINE = re.compile(
    r"(?P<host>\S+) \S+ (?:\S+|\S.{0,200}?) "
    r"\[(?P<day>\d\d)/(?P<month>[A-Z][a-z][a-z])/(?P<year>\d{4})"
    r":(?P<time>\d\d:\d\d:\d\d) (?P<zone>[+-]\d{4})\] "
    r'"(?P<request>(?:[^"\\]|\\.)*)" '
    r"(?P<status>[1-5]\d\d) (?P<bytes>\d{1,15}|-)(?: .*)?",
    flags=re.ASCII,
)


class BadLineError(ValueError):
    """This is no line of an access log; the text says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a line says; `at` in milliseconds since 1970, `bytes` of the body."""

    visitor: str
    path: str
    status: int
    bytes: int
    at: int

    @property
    def value(self) -> dict[str, str | int]:
        """Return it as the value of a record."""
        return {
            "visitor": self.visitor,
            "path": self.path,
            "status": self.status,
            "bytes": self.bytes,
        }


@dataclass(frozen=True)
class Log:
    """The requests of a log in the order of its lines; how many lines are bad, and the first."""

    requests: Sequence[Request]
    bad: int
    named: Sequence[tuple[int, str]]


def read_log(lines: Iterable[bytes], first_line: int = 1) -> Log:
    """Read the lines of a log; empty ones are nothing.

    Args:
        first_line: The number of the first one.
    """
    requests, bad, named = list[Request](), 0, list[tuple[int, str]]()
    for number, line in enumerate(lines, start=first_line):
        if not line.strip():
            continue
        try:
            requests.append(read_line(line))
        except BadLineError as error:
            bad += 1
            if len(named) < MAX_NAMED:
                named.append((number, str(error)))
    return Log(requests, bad, named)


def read_line(line: bytes) -> Request:
    """Read one line.

    Raises:
        BadLineError: it is none of an access log.
    """
    if len(line) > MAX_LINE_BYTES:
        raise BadLineError(f"a line has at most {MAX_LINE_BYTES} bytes, not {len(line)}")
    found = _LINE.fullmatch(line.decode("utf-8", "replace").rstrip("\r\n"))
    if found is None:
        raise BadLineError("this is neither the common nor the combined format")
    size = found["bytes"]
    return Request(
        visitor=found["host"][:MAX_VISITOR_CHARS],
        path=_path(found["request"]),
        status=int(found["status"]),
        bytes=0 if size == "-" else int(size),
        at=_time(found),
    )


def _path(request: str) -> str:
    """Return the path of a request's first line, without what follows a question mark.

    >>> [_path(line) for line in ("GET /a?b=1 HTTP/1.1", "GET /two words HTTP/1.1", "GET /a", "-")]
    ['/a', '/two words', '/a', '-']
    """
    target = request.partition(" ")[2]
    before, _, protocol = target.rpartition(" ")
    if protocol.startswith("HTTP/"):
        target = before
    return target.partition("?")[0][:MAX_PATH_CHARS] or NO_PATH


def _time(found: re.Match[str]) -> int:
    """Return the time of a line.

    Raises:
        BadLineError: there is no such time, or it lies before 1970 or far ahead.
    """
    try:
        month = MONTHS.index(found["month"]) + 1
        day, zone = f"{found['year']}-{month:02}-{found['day']}", found["zone"]
        return read_time(f"{day}T{found['time']}{zone}")
    except (ValueError, OverflowError) as error:
        raise BadLineError(f"its time is none: {error}") from error
