"""Dead tasks: what the app parked because it could never work.

The app writes them to Datastore (kind DeadTask), and only the app can run one again. A replay is a
task of its own, sent through Cloud Tasks like any other.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.console.reading.datastore_reader import CALL_OPTIONS, DatastoreReader
from rollforward.look.words import Body, body

KIND = "DeadTask"
REPLAY_PATH = "/tasks/dead/replay"
REPLAY_QUEUE = "default"
PAGE_DEAD = 100
MAX_NAME_BYTES = 1500  # Of a key in Datastore.
MAX_REPLAYED = _MAX_READ = 1000


@dataclass(frozen=True)
class DeadTask:
    """One row of kind DeadTask."""

    id: str
    path: str
    queue: str
    body: Body
    reason: str
    count: int
    created: float | None
    updated: float | None
    resolved: bool

    @property
    def at(self) -> float:
        """The time of its last failure."""
        return self.updated or self.created or 0.0

    def has(self, text: str) -> bool:
        """Return whether a text stands in it, in any case."""
        sought = text.casefold()
        where = (self.path, self.queue, self.reason, self.body.text)
        return any(sought in field.casefold() for field in where)


class DeadTasks:
    """Reads dead tasks from the emulator."""

    def __init__(self, reader: DatastoreReader) -> None:
        """Read through this connection."""
        self._reader = reader

    async def newest(
        self,
        address: str,
        *,
        text: str = "",
        unresolved_only: bool = False,
        limit: int = PAGE_DEAD,
    ) -> list[DeadTask]:
        """Return the newest dead tasks of the Datastore at this address.

        Args:
            text: Only those with this in their path, queue, reason or body.

        Raises:
            google.api_core.exceptions.GoogleAPIError: it does not answer.
        """
        tasks = await asyncio.to_thread(self._read, address)
        if unresolved_only:
            tasks = [dead for dead in tasks if not dead.resolved]
        return [dead for dead in tasks if dead.has(text)][:limit]

    def _read(self, address: str) -> list[DeadTask]:
        # Sorted here: `created` may be unindexed, and a parked task is a rare thing.
        query = self._reader.client(address).query(kind=KIND)
        rows = query.fetch(limit=_MAX_READ, **CALL_OPTIONS)
        tasks = [_dead_task(row) for row in rows]
        tasks.sort(key=lambda dead: (dead.resolved, -dead.at))
        return tasks


def enqueue_replays(
    engine: Engine, dead_task_ids: Sequence[str], app_url: str, account: str
) -> int:
    """Ask the app to run many dead tasks again; return how many were not refused."""

    def replay(dead_task_id: str) -> None:
        enqueue_replay(engine, dead_task_id, app_url, account)

    return engine.tasks.act_on_many(replay, dead_task_ids)


def enqueue_replay(engine: Engine, dead_task_id: str, app_url: str, account: str) -> str:
    """Ask the app, through Cloud Tasks, to run a dead task again; return the task's id.

    Raises:
        rollforward.local.cloudtasks.protocol.errors.Refused: there is no queue for it.
    """
    task = messages.Task()
    request = task.http_request
    request.url = app_url + REPLAY_PATH
    request.http_method = messages.HttpMethod.POST
    request.headers["Content-Type"] = "application/json"
    request.body = json.dumps({"dead_task_id": dead_task_id}).encode()
    request.oidc_token.service_account_email = account
    request.oidc_token.audience = app_url
    created = engine.tasks.create(engine.place.queue_name(REPLAY_QUEUE), task)
    return str(created.name).rpartition("/")[2]


def _dead_task(row: Any) -> DeadTask:
    """Return a row as it is shown; a property that is missing is shown as empty."""
    raw = row.get("body") or b""
    return DeadTask(
        id=str(row.key.id_or_name),
        path=str(row.get("path") or ""),
        queue=str(row.get("queue") or ""),
        body=body(raw if isinstance(raw, bytes) else str(raw).encode()),
        reason=str(row.get("reason") or ""),
        count=int(row.get("count") or 0),
        created=_seconds(row.get("created")),
        updated=_seconds(row.get("updated")),
        resolved=bool(row.get("resolved")),
    )


def _seconds(value: Any) -> float | None:
    return value.timestamp() if isinstance(value, datetime) else None
