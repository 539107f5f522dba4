"""Late rows of the outbox, for the first page; the app's own console shows all.

The app keeps them in Datastore (kind OutboxTask). A row's key holds when it was written and
whether it is unacked: kept until its task has done its work. See rollforward/outbox/entities.py.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rollforward.local.console.reading.datastore_reader import CALL_OPTIONS, DatastoreReader

KIND = "OutboxTask"
MAX_COUNTED = 1000
# A row is relayed within milliseconds, or by the next sweep. An unacked one may wait in its queue.
_LATE_S = 60.0
_UNACKED_LATE_S = 600.0


@dataclass(frozen=True)
class Waiting:
    """The facts in a row's key."""

    id: str
    created: float
    is_unacked: bool

    def is_late(self, now_s: float) -> bool:
        """Return whether it needs attention."""
        return now_s - self.created > (_UNACKED_LATE_S if self.is_unacked else _LATE_S)


class Outbox:
    """Reads the outbox of the emulator."""

    def __init__(self, reader: DatastoreReader) -> None:
        """Read through this connection."""
        self._reader = reader

    async def late(self, address: str) -> list[Waiting]:
        """Return rows that have waited too long, oldest first.

        Raises:
            google.api_core.exceptions.GoogleAPIError: Datastore does not answer.
        """
        now_s = time.time()
        waiting = await asyncio.to_thread(self._waiting, address)
        return [row for row in waiting if row.is_late(now_s)]

    def _waiting(self, address: str) -> list[Waiting]:
        query = self._reader.client(address).query(kind=KIND)
        query.keys_only()
        rows = query.fetch(limit=MAX_COUNTED, **CALL_OPTIONS)
        return sorted((_waiting(row.key) for row in rows), key=lambda row: row.created)


def _waiting(key: Any) -> Waiting:
    """Return what a key tells, "<partition>|<created>|<h or o>|..."; another one is old."""
    id_ = str(key.id_or_name)
    _, created, kind, *_ = [*id_.split("|"), "", "", ""]
    return Waiting(id_, _seconds(created), kind == "h")


def _seconds(created: str) -> float:
    try:
        return datetime.strptime(created, "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
