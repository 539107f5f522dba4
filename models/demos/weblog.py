"""The web log: which logs were given to it, in the order in which they are read.

AccessLogs
    Key: "all". The logs, by the ids of their uploads. Queries: none. Growth: one row, of at most
    200 logs. Only forms write it.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

KEY = "all"


class AccessLogs(ndb.Model):
    """The logs: a list of {"id": upload, "name": text, "bytes": size}."""

    logs = ndb.JsonProperty(indexed=False)


def access_logs_key() -> Any:
    return ndb.Key(AccessLogs, KEY)


def access_logs() -> list[dict[str, Any]]:
    """Return the logs, in the order in which they are read."""
    row = access_logs_key().get()
    return list(row.logs or []) if row is not None else []
