"""Logs that are given to the pipeline: an upload, or the sample."""

from __future__ import annotations

from demos.weblog.lines import BadLineError, read_line
from demos.weblog.pipeline import WEBLOG
from demos.weblog.sample import sample_log
from models.demos.weblog import AccessLogs, access_logs_key
from models.transactions import transact
from models.uploads import put_upload
from pipelines.runtime import Clients, naive_utc

MAX_LOGS = 200
MAX_LOG_BYTES = 8 * 1024 * 1024
MAX_NAME_CHARS = 60
LOOKED_AT = 20


class BadLogError(ValueError):
    """This is no access log, or there are too many; nothing was stored."""


def add_sample(clients: Clients, log_id: str) -> bool:
    """Give the sample to the pipeline; return False if that was done for this id before."""
    return add_log(clients, log_id, "sample", b"".join(sample_log()))


def add_log(clients: Clients, log_id: str, name: str, content: bytes) -> bool:
    """Give a log to the pipeline; return False if that was done for this id before.

    It may be repeated: a log is read once for its id.

    Raises:
        BadLogError: none of its first lines can be read, it is too large, or there are too many.
    """
    check_log(content)
    put_upload(log_id, content, naive_utc(clients.clock.now()))
    entry = {"id": log_id, "name": name[:MAX_NAME_CHARS], "bytes": len(content)}

    def add() -> bool:
        row = access_logs_key().get() or AccessLogs(key=access_logs_key(), logs=[])
        if any(each["id"] == log_id for each in row.logs):
            return False
        if len(row.logs) >= MAX_LOGS:
            raise BadLogError(f"there are {MAX_LOGS} logs already, which is the most")
        row.logs = [*row.logs, entry]
        row.put()
        return True

    is_new = transact(add)
    WEBLOG.pull(clients, "requests")
    return is_new


def check_log(content: bytes) -> None:
    """Check that a log can be read.

    Raises:
        BadLogError: it cannot; the text says why.
    """
    if len(content) > MAX_LOG_BYTES:
        raise BadLogError(f"a log has at most {MAX_LOG_BYTES // 1024**2} MB")
    problem = "it is empty"
    for line in content[:1_000_000].splitlines()[:LOOKED_AT]:
        try:
            read_line(line)
        except BadLineError as error:
            problem = str(error)
        else:
            return
    raise BadLogError(f"this is no access log: {problem}")
