"""The web log: which logs were given to it, in the order in which they are read.

AccessLogs
    Key: "all". The last logs, by the ids of their uploads, and what there was when the last run
    began. Queries: none. Growth: one row, of at most 200 logs. Only forms write it.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

KEY = "all"


class AccessLogs(ndb.Model):
    """The logs, each {"id": upload, "name": text, "bytes": size, "pace", "begin", "end"}."""

    logs = ndb.JsonProperty(indexed=False)
    # The number of the first of them; earlier ones were read and are dropped.
    first_number = ndb.IntegerProperty(indexed=False, default=0)
    # The last run: {"log": the number of its first one, "started_ms", "begin", "before"}.
    run = ndb.JsonProperty(indexed=False)

    def waiting(self, position: int) -> list[dict[str, Any]]:
        """Return the logs from a number on that have not been read to their end."""
        return list(self.logs or [])[max(0, position - int(self.first_number)) :]

    @property
    def count(self) -> int:
        """How many logs were ever given."""
        return int(self.first_number) + len(self.logs or [])


def access_logs_key() -> Any:
    return ndb.Key(AccessLogs, KEY)


def access_logs() -> AccessLogs:
    """Return the logs that were given."""
    return access_logs_key().get() or AccessLogs(key=access_logs_key(), logs=[])


def log_at(number: int) -> dict[str, Any] | None:
    """Return a log by its number; None: it was not given yet.

    Raises:
        LookupError: it is forgotten.
    """
    row = access_logs()
    if number < row.first_number:
        raise LookupError(f"the log {number} is forgotten")
    entries: list[dict[str, Any]] = row.logs[number - row.first_number :][:1]
    return entries[0] if entries else None
