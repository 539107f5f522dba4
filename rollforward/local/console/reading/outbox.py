"""The outbox: tasks that the app has committed and not created yet.

The app keeps them in Datastore (kind OutboxTask). A row's key holds when it was written and
whether it is unacked: kept until its task has done its work. See rollforward/outbox/entities.py.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rollforward.local.console.reading.datastore_reader import CALL_OPTIONS, DatastoreReader
from rollforward.look.words import Body, body

KIND = "OutboxTask"
SWEEP_URL = "/cron/outbox/sweep"
METRICS_PATH = "/metrics"
PAGE_ROWS = 50
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
        """Return whether somebody should look at it."""
        return now_s - self.created > (_UNACKED_LATE_S if self.is_unacked else _LATE_S)


@dataclass(frozen=True)
class OutboxRow:
    """One row of kind OutboxTask, as it is shown."""

    id: str
    created: float
    is_unacked: bool
    path: str
    queue: str
    tag: str
    at: float | None
    body: Body


@dataclass(frozen=True)
class Shown:
    """The rows that wait: how many, the oldest ones, and since when."""

    waiting: list[Waiting]
    rows: list[OutboxRow]

    @property
    def is_cut(self) -> bool:
        """True if there are more than were counted."""
        return len(self.waiting) == MAX_COUNTED

    @property
    def oldest(self) -> float | None:
        """The time at which the oldest counted row was written."""
        return min((row.created for row in self.waiting), default=None)


class Outbox:
    """Reads the outbox of the emulator."""

    def __init__(self, reader: DatastoreReader) -> None:
        """Read through this connection."""
        self._reader = reader

    async def late(self, address: str) -> list[Waiting]:
        """Return what has waited too long, oldest first.

        Raises:
            google.api_core.exceptions.GoogleAPIError: Datastore does not answer.
        """
        now_s = time.time()
        waiting = await asyncio.to_thread(self._waiting, address)
        return [row for row in waiting if row.is_late(now_s)]

    async def oldest(self, address: str) -> Shown:
        """Return how much waits, and the oldest rows in full.

        Raises:
            google.api_core.exceptions.GoogleAPIError: Datastore does not answer.
        """
        return await asyncio.to_thread(self._oldest, address)

    def _waiting(self, address: str) -> list[Waiting]:
        query = self._reader.client(address).query(kind=KIND)
        query.keys_only()
        rows = query.fetch(limit=MAX_COUNTED, **CALL_OPTIONS)
        return sorted((_waiting(row.key) for row in rows), key=lambda row: row.created)

    def _oldest(self, address: str) -> Shown:
        client, waiting = self._reader.client(address), self._waiting(address)
        keys = [client.key(KIND, row.id) for row in waiting[:PAGE_ROWS]]
        entities = client.get_multi(keys, **CALL_OPTIONS) if keys else []
        rows = sorted((_row(entity) for entity in entities), key=lambda row: row.created)
        return Shown(waiting, rows)


def relayed_per_s(metrics: str) -> float | None:
    """Return the relay's rate out of the app's metrics, None if they lack it.

    >>> relayed_per_s("# TYPE outbox_relayed_per_second gauge\\noutbox_relayed_per_second 2.5\\n")
    2.5
    """
    for line in metrics.splitlines():
        name, _, value = line.partition(" ")
        if name == "outbox_relayed_per_second":
            return float(value)
    return None


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


def _row(entity: Any) -> OutboxRow:
    waiting, at = _waiting(entity.key), entity.get("at")
    return OutboxRow(
        id=waiting.id,
        created=waiting.created,
        is_unacked=waiting.is_unacked,
        path=str(entity.get("path") or ""),
        queue=str(entity.get("queue") or ""),
        tag=str(entity.get("tag") or ""),
        at=at.timestamp() if isinstance(at, datetime) else None,
        body=body(str(entity.get("body") or "").encode()),
    )
