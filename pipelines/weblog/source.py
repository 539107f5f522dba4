"""The source of the requests: uploaded logs, read one after the other from a position on.

The position commits with the records, and includes the counts, so each line counts once in spite of
failures. Each log is shifted by whole days to after the previous one: the watermark never falls,
and the records of an old log would all be late.

Lost on failure: nothing. A read is repeated from the committed position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from models.weblog import log_at
from pipelines.times import DAY_MS
from pipelines.weblog.lines import MAX_LINE_BYTES, BadLineError, Request, read_line
from rollforward.continuations.upload_entities import read_upload
from rollforward.runtime import Clients
from rollforward.streams import Pulled, PullSource

# A line further from the first one has a broken clock, and would make all others late.
MAX_SPAN_MS = 92 * DAY_MS
# Servers write a line when a response ends, so a slow one comes after later requests.
DISORDER = timedelta(minutes=1)
# Interval between the reads of a log at a pace for watching.
PACED_S = 0.25
# Number of logs whose shift is stored.
DATES_KEPT = 20


@dataclass(frozen=True)
class Position:
    """Position in the logs.

    Attributes:
        log: The number of the current or next log.
        offset: In bytes, the beginning of a line.
        lines, bad: Numbers of lines, over all logs.
        base: The beginning of the log in the time of the stream: the beginning of a day.
        first: The beginning of the day of the log's first request, in the log's time; None: no
            request was read.
        latest: The time of the latest request, in the time of the stream.
        dates: `base` and `first` of the last logs with requests.
    """

    log: int = 0
    offset: int = 0
    lines: int = 0
    bad: int = 0
    base: int = DAY_MS
    first: int | None = None
    latest: int = 0
    dates: Sequence[Sequence[int]] = ()

    @property
    def has_read(self) -> int:
        """End of the earlier logs, which are read completely, in the time of the stream."""
        return self.base - DAY_MS

    def to_stream(self, at: int) -> int | None:
        """Return a time of the log in the time of the stream; None: it is out of range."""
        distance = at - (self.first or 0)
        return self.base + distance if -DAY_MS <= distance < MAX_SPAN_MS else None


def read_logs(clients: Clients, position: Any, limit: int) -> Pulled:
    """Read up to `limit` requests of the log at a position.

    The bad lines after them count with them, and so does the log's end.
    """
    current = position_of(position)
    log = log_at(current.log)
    if log is None:
        return Pulled([], position)
    if pace := log.get("pace"):
        clients.clock.sleep(PACED_S)
        limit = min(limit, max(1, round(pace * PACED_S)))
    records: list[tuple[Any, int]] = []
    lines = cut_lines(read_upload(log["id"], current.offset))
    for line in lines:
        following = take(current, line, records)
        if len(records) > limit:
            return Pulled(records[:limit], asdict(current))
        current = following
    return _ended(current, records)


def position_of(stored: Any) -> Position:
    """Return the position that the pipeline stored; None: the beginning."""
    return Position(**(stored or {}))


def take(current: Position, line: bytes, records: list[tuple[Any, int]]) -> Position:
    """Read a line; return the position after it."""
    is_blank = not line.strip()
    current = replace(
        current, offset=current.offset + len(line), lines=current.lines + (not is_blank)
    )
    if is_blank:
        return current
    try:
        request: Request = read_line(line)
    except BadLineError:
        return replace(current, bad=current.bad + 1)
    if current.first is None:
        day = request.at // DAY_MS * DAY_MS
        dates = [*current.dates, (current.base, day)][-DATES_KEPT:]
        current = replace(current, first=day, dates=dates)
    at = current.to_stream(request.at)
    if at is None:
        return replace(current, bad=current.bad + 1)
    records.append((request.value, at))
    return replace(current, latest=max(current.latest, at))


def _ended(current: Position, records: list[tuple[Any, int]]) -> Pulled:
    """Move to the next log: the watermark rises to its beginning, so all windows end."""
    days = (
        max(current.latest, current.base) // DAY_MS + 3
    )  # A whole day between the logs, and one before the new one.
    following = replace(current, log=current.log + 1, offset=0, base=days * DAY_MS, first=None)
    return Pulled(records, asdict(following), watermark=following.has_read)


def cut_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield lines with their ends; an oversized line is split into pieces, which are bad lines."""
    tail = b""
    for chunk in chunks:
        *lines, tail = (tail + chunk).splitlines(keepends=True) or [b""]
        yield from lines
        if tail.endswith(b"\n") or len(tail) > MAX_LINE_BYTES:
            yield tail
            tail = b""
    if tail:
        yield tail


REQUESTS = PullSource("requests", read_logs, disorder=DISORDER)
