"""The source of the requests: uploaded logs, read one after the other from a position on.

The position commits with the records, and has what was counted on the way: so each line counts
once, whatever fails. Each log is moved by whole days to behind the one before it: the watermark
never falls, and the records of an old log would all be late.

Lost on failure: nothing. A read is repeated from the position that was committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from models.weblog import log_at
from pipelines.weblog.lines import MAX_LINE_BYTES, BadLineError, Request, read_line
from rollforward.continuations.upload_entities import read_upload
from rollforward.runtime import Clients
from rollforward.streams import Pulled, PullSource

DAY_MS = 86_400_000
# A line further from the first one of its log has a broken clock: it would make all others late.
MAX_SPAN_MS = 92 * DAY_MS
# Servers write a line when a response ends, so a slow one stands behind later requests.
DISORDER = timedelta(minutes=1)
# Of a log that is to be watched: so often some lines are read.
PACED_S = 0.25
# Logs of which it is known how their times became those of the stream.
DATES_KEPT = 20


@dataclass(frozen=True)
class Position:
    """How far the logs are read.

    Attributes:
        log: The number of the log that comes next, or is being read.
        offset: In bytes, the beginning of a line.
        lines, bad: Of all logs.
        base: Where the log begins in the time of the stream: the beginning of a day.
        first: The beginning of the day of the log's first request, in the log's time; None: no
            request was read.
        latest: The time of the latest request, in the time of the stream.
        dates: Of the last logs that had requests, `base` and `first` of each.
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
        """Up to where nothing of the logs before this one is missing, in the stream's time."""
        return self.base - DAY_MS

    def to_stream(self, at: int) -> int | None:
        """Return a time of the log in the time of the stream; None: it is too far from the rest."""
        distance = at - (self.first or 0)
        return self.base + distance if -DAY_MS <= distance < MAX_SPAN_MS else None


def read_logs(clients: Clients, position: Any, limit: int) -> Pulled:
    """Read up to `limit` requests of the log at a position.

    What cannot be read behind them goes with them, and so does the log's end.
    """
    here = position_of(position)
    log = log_at(here.log)
    if log is None:
        return Pulled([], position)
    if pace := log.get("pace"):
        clients.clock.sleep(PACED_S)
        limit = min(limit, max(1, round(pace * PACED_S)))
    records: list[tuple[Any, int]] = []
    lines = cut_lines(read_upload(log["id"], here.offset))
    for line in lines:
        following = take(here, line, records)
        if len(records) > limit:
            return Pulled(records[:limit], asdict(here))
        here = following
    return _ended(here, records)


def position_of(stored: Any) -> Position:
    """Return a position as the pipeline keeps it; None: the beginning."""
    return Position(**(stored or {}))


def take(here: Position, line: bytes, records: list[tuple[Any, int]]) -> Position:
    """Take a line; return the position behind it."""
    is_blank = not line.strip()
    here = replace(here, offset=here.offset + len(line), lines=here.lines + (not is_blank))
    if is_blank:
        return here
    try:
        request: Request = read_line(line)
    except BadLineError:
        return replace(here, bad=here.bad + 1)
    if here.first is None:
        first = request.at // DAY_MS * DAY_MS
        dates = [*here.dates, (here.base, first)][-DATES_KEPT:]
        here = replace(here, first=first, dates=dates)
    at = here.to_stream(request.at)
    if at is None:
        return replace(here, bad=here.bad + 1)
    records.append((request.value, at))
    return replace(here, latest=max(here.latest, at))


def _ended(here: Position, records: list[tuple[Any, int]]) -> Pulled:
    """Go on to the next log: the watermark rises to where that begins, so all windows end."""
    days = max(here.latest, here.base) // DAY_MS + 3  # One whole day between, and one before it.
    next_ = replace(here, log=here.log + 1, offset=0, base=days * DAY_MS, first=None)
    return Pulled(records, asdict(next_), watermark=next_.has_read)


def cut_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield lines with their ends; one that is too long comes in pieces, which are bad lines."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).splitlines(keepends=True) or [b""]
        yield from lines
        if rest.endswith(b"\n") or len(rest) > MAX_LINE_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


REQUESTS = PullSource("requests", read_logs, disorder=DISORDER)
