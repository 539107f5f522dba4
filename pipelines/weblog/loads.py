"""Input of the pipeline: uploaded logs, and the sample.

The first log added while the pipeline is idle begins a run; logs added until it is idle again
belong to that run. A run stores the totals at its beginning; the difference is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from models.weblog import access_logs
from pipelines.times import now_ms
from pipelines.weblog.lines import MAX_LINE_BYTES, BadLineError, Request, read_line
from pipelines.weblog.pipeline import WEBLOG
from pipelines.weblog.progress import observe
from pipelines.weblog.sample import sample_log
from pipelines.weblog.source import MAX_SPAN_MS, cut_lines
from rollforward.continuations.upload_entities import put_upload
from rollforward.datastore import transact
from rollforward.runtime import Clients, naive_utc

MAX_LOGS = 200
MAX_WAITING_BYTES = 64 * 1024 * 1024
MAX_LOG_BYTES = 8 * 1024 * 1024
# A line has some eighty bytes: a file of far more lines costs more than its content is worth.
MAX_LINES = 200_000
MAX_NAME_CHARS = 60
LOOKED_AT = 20
LOOKED_AT_BYTES = (LOOKED_AT + 1) * MAX_LINE_BYTES
# Lines a second of a log at a pace for watching; 0: no limit.
PACES = {"watch": 200, "fast": 0}


class BadLogError(ValueError):
    """The file is no access log; nothing was stored."""


class TooManyLogsError(Exception):
    """Too many logs wait to be read; nothing was added."""


def add_sample(clients: Clients, log_id: str, pace: str = "fast") -> bool:
    """Add the sample to the pipeline; return False if this id was added before.

    Raises:
        TooManyLogsError: try again later.
    """
    return add_log(clients, log_id, "sample", b"".join(sample_log()), pace)


def add_log(clients: Clients, log_id: str, name: str, content: bytes, pace: str = "fast") -> bool:
    """Add a log to the pipeline; return False if this id was added before.

    The call is idempotent: a log is read once for its id.

    Raises:
        BadLogError: its first lines are malformed, or it is too large.
        TooManyLogsError: try again later.
    """
    begin, end = check_log(content)
    seen = observe(clients)
    if all(log["id"] != log_id for log in seen.logs.logs):
        _check_room([*seen.logs.waiting(seen.position.log), {"bytes": len(content)}])
    put_upload(log_id, content, naive_utc(clients.clock.now()))
    entry = {"id": log_id, "name": name[:MAX_NAME_CHARS], "bytes": len(content)}
    entry |= {"pace": PACES[pace], "begin": begin, "end": end}
    started_ms = now_ms(clients)

    def add() -> bool:
        row = access_logs()
        if any(log["id"] == log_id for log in row.logs):
            return False
        if not seen.is_moving and row.count == seen.position.log:
            row.run = {
                "log": row.count,
                "started_ms": started_ms,
                "begin": seen.position.has_read,
                "before": asdict(seen.totals),
            }
        row.logs = [*row.logs, entry]
        _check_room(row.waiting(seen.position.log))
        extra = max(0, len(row.logs) - MAX_LOGS)
        row.logs, row.first_number = row.logs[extra:], row.first_number + extra
        row.put()
        return True

    is_new = transact(add)
    WEBLOG.pull(clients, "requests")
    return is_new


def _check_room(waiting: Sequence[Mapping[str, Any]]) -> None:
    """Check the number and size of waiting logs; read logs are dropped when others arrive.

    Raises:
        TooManyLogsError: a limit is exceeded.
    """
    if len(waiting) > MAX_LOGS:
        raise TooManyLogsError(f"{MAX_LOGS} logs wait to be read")
    if sum(log["bytes"] for log in waiting) > MAX_WAITING_BYTES:
        raise TooManyLogsError(f"{MAX_WAITING_BYTES // 1024**2} MiB of logs wait to be read")


def check_log(content: bytes) -> tuple[int, int]:
    """Check a log; return its approximate begin and end, in its own time.

    Raises:
        BadLogError: it is invalid; the text has the reason.
    """
    if len(content) > MAX_LOG_BYTES:
        raise BadLogError(
            f"a log must have at most {MAX_LOG_BYTES // 1024**2} MiB, got {len(content):,} bytes"
        )
    if (lines := max(content.count(b"\n"), content.count(b"\r"))) > MAX_LINES:
        raise BadLogError(f"a log must have at most {MAX_LINES:,} lines, got {lines:,}")
    problem = "it is empty"
    requests = list[Request]()
    parts = (content[at : at + MAX_LINE_BYTES] for at in range(0, LOOKED_AT_BYTES, MAX_LINE_BYTES))
    for line in islice(cut_lines(parts), LOOKED_AT):
        try:
            requests.append(read_line(line))
        except BadLineError as error:
            problem = str(error)
    if not requests:
        raise BadLogError(f"this is no access log: {problem}")
    requests += _readable(content[-LOOKED_AT_BYTES:].rsplit(b"\n", LOOKED_AT + 1)[1:])
    begin = requests[0].at
    # The source skips lines that are further ahead.
    return begin, max(request.at for request in requests if request.at < begin + MAX_SPAN_MS)


def _readable(lines: Iterable[bytes]) -> Iterator[Any]:
    for line in lines:
        try:
            yield read_line(line)
        except BadLineError:
            continue
