r"""Lines of access logs, in the common and the combined format of Apache and nginx.

    192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /cakes?page=2 HTTP/1.1" 200 5120 "-" "Mozilla/5"

A malformed line affects no other line; it is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.times import read_time

# No request of a browser leads to a longer line.
MAX_LINE_BYTES = 16_384
# Longer ones are cut: both are keys, of at most 500 bytes in UTF-8.
MAX_VISITOR_CHARS = 100
MAX_PATH_CHARS = 120
# Number of bad lines that are listed.
MAX_NAMED = 10
# The path of a line without a request: the browser hung up before it sent one.
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
    """This is no line of an access log; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a line; `at` in milliseconds since 1970, `bytes` of the body."""

    visitor: str
    path: str
    status: int
    bytes: int
    at: int

    @property
    def value(self) -> dict[str, str | int]:
        """Return the request as the value of a record."""
        return {
            "visitor": self.visitor,
            "path": self.path,
            "status": self.status,
            "bytes": self.bytes,
        }


@dataclass(frozen=True)
class Log:
    """Requests of a log in the order of its lines; number of bad lines, and the first of them."""

    requests: Sequence[Request]
    bad: int
    named: Sequence[tuple[int, str]]


def read_log(lines: Iterable[bytes], first_line: int = 1) -> Log:
    """Read the lines of a log, without empty ones.

    Args:
        first_line: The number of the first line.
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
        BadLineError: it is no line of an access log.
    """
    if len(line) > MAX_LINE_BYTES:
        raise BadLineError(f"a line must have at most {MAX_LINE_BYTES} bytes, got {len(line)}")
    match = _LINE.fullmatch(line.decode("utf-8", "replace").rstrip("\r\n"))
    if match is None:
        raise BadLineError("a line must be in the common or the combined format")
    size = match["bytes"]
    return Request(
        visitor=match["host"][:MAX_VISITOR_CHARS],
        path=_path(match["request"]),
        status=int(match["status"]),
        bytes=0 if size == "-" else int(size),
        at=_time(match),
    )


def _path(request: str) -> str:
    """Return the path of a request's first line, without what follows a question mark.

    >>> [_path(line) for line in ("GET /a?b=1 HTTP/1.1", "GET /two words HTTP/1.1", "GET /a", "-")]
    ['/a', '/two words', '/a', '-']
    """
    target = request.partition(" ")[2]
    path, _, protocol = target.rpartition(" ")
    if protocol.startswith("HTTP/"):
        target = path
    return target.partition("?")[0][:MAX_PATH_CHARS] or NO_PATH


def _time(match: re.Match[str]) -> int:
    """Return the time of a line.

    Raises:
        BadLineError: the time is invalid, or lies before 1970 or far ahead.
    """
    try:
        month = MONTHS.index(match["month"]) + 1
        day, zone = f"{match['year']}-{month:02}-{match['day']}", match["zone"]
        return read_time(f"{day}T{match['time']}{zone}")
    except (ValueError, OverflowError) as error:
        raise BadLineError(f"invalid timestamp: {error}") from error
