"""Logs that are given to the pipeline: an upload, or the sample.

The first log that is given while the pipeline is at rest begins a run; what is given until it is at
rest again belongs to it. What there was when a run began is kept with it: the rest is the run's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from models.weblog import access_logs
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
# A line of a log has some eighty bytes: what has far more lines costs more than it holds.
MAX_LINES = 200_000
MAX_NAME_CHARS = 60
LOOKED_AT = 20
LOOKED_AT_BYTES = (LOOKED_AT + 1) * MAX_LINE_BYTES
# Lines a second of a log that is to be watched; 0: as fast as it goes.
PACES = {"watch": 200, "fast": 0}


class BadLogError(ValueError):
    """This is no access log; nothing was stored."""


class TooManyLogsError(Exception):
    """So many logs wait to be read that no more are taken; nothing was given."""


def add_sample(clients: Clients, log_id: str, pace: str = "fast") -> bool:
    """Give the sample to the pipeline; return False if that was done for this id before.

    Raises:
        TooManyLogsError: try again later.
    """
    return add_log(clients, log_id, "sample", b"".join(sample_log()), pace)


def add_log(clients: Clients, log_id: str, name: str, content: bytes, pace: str = "fast") -> bool:
    """Give a log to the pipeline; return False if that was done for this id before.

    It may be repeated: a log is read once for its id.

    Raises:
        BadLogError: none of its first lines can be read, or it is too large.
        TooManyLogsError: try again later.
    """
    begin, end = check_log(content)
    seen = observe(clients)
    if all(each["id"] != log_id for each in seen.logs.logs):
        _check_room([*seen.logs.waiting(seen.position.log), {"bytes": len(content)}])
    put_upload(log_id, content, naive_utc(clients.clock.now()))
    entry = {"id": log_id, "name": name[:MAX_NAME_CHARS], "bytes": len(content)}
    entry |= {"pace": PACES[pace], "begin": begin, "end": end}
    started_ms = round(clients.clock.now().timestamp() * 1000)

    def add() -> bool:
        row = access_logs()
        if any(each["id"] == log_id for each in row.logs):
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
    """Check that not too many logs wait; those that were read are forgotten when others come.

    Raises:
        TooManyLogsError: they do.
    """
    if len(waiting) > MAX_LOGS:
        raise TooManyLogsError(f"{MAX_LOGS} logs wait to be read")
    if sum(log["bytes"] for log in waiting) > MAX_WAITING_BYTES:
        raise TooManyLogsError(f"{MAX_WAITING_BYTES // 1024**2} MiB of logs wait to be read")


def check_log(content: bytes) -> tuple[int, int]:
    """Check that a log can be read; return about when it begins and ends, in its own time.

    Raises:
        BadLogError: it cannot; the text says why.
    """
    if len(content) > MAX_LOG_BYTES:
        raise BadLogError(f"a log has at most {MAX_LOG_BYTES // 1024**2} MiB")
    if max(content.count(b"\n"), content.count(b"\r")) > MAX_LINES:
        raise BadLogError(f"a log has at most {MAX_LINES:,} lines")
    problem = "it is empty"
    found = list[Request]()
    parts = (content[at : at + MAX_LINE_BYTES] for at in range(0, LOOKED_AT_BYTES, MAX_LINE_BYTES))
    for line in islice(cut_lines(parts), LOOKED_AT):
        try:
            found.append(read_line(line))
        except BadLineError as error:
            problem = str(error)
    if not found:
        raise BadLogError(f"this is no access log: {problem}")
    found += _readable(content[-LOOKED_AT_BYTES:].rsplit(b"\n", LOOKED_AT + 1)[1:])
    begin = found[0].at
    # Lines from further ahead are not read.
    return begin, max(each.at for each in found if each.at < begin + MAX_SPAN_MS)


def _readable(lines: Iterable[bytes]) -> Iterator[Any]:
    for line in lines:
        try:
            yield read_line(line)
        except BadLineError:
            continue
