"""The outbox as a pattern of the registry: it has no parts, and every app has it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never

from rollforward.outbox.depth import MAX_COUNTED, depth
from rollforward.outbox.sweep import STALE_S, drain, sweep
from rollforward.runtime.clients import Clients
from rollforward.tasks import attempts
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Gauge, Pattern

log = logging.getLogger(__name__)


class Outbox(Pattern[Never]):
    """The rows of tasks that were committed with data."""

    name = "outbox"

    def tasks(self, parts: Sequence[Never]) -> Iterable[Task[Any]]:
        return [drain]

    def sweep(
        self, clients: Clients, parts: Sequence[Never], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Create the tasks of abandoned rows."""
        swept = sweep(clients, stale_s=STALE_S if stale_s is None else stale_s)
        if stale_s is None and (swept.created or swept.partitions):
            log.warning("relayed %d rows, %d partitions to walk", swept.created, swept.partitions)
        return {"created": swept.created, "partitions": swept.partitions}

    def delete_expired(self, clients: Clients) -> int:
        """Delete the attempts of unfinished tasks, since tasks have no sweep of their own."""
        return attempts.delete_expired(clients)

    def gauges(self, clients: Clients, parts: Sequence[Never]) -> Sequence[Gauge]:
        rows = depth(clients)
        return [
            Gauge("outbox_waiting", f"Rows; at most {MAX_COUNTED} are counted.", rows.waiting),
            Gauge(
                "outbox_oldest_seconds",
                "Age of the oldest row whose task is not known to exist.",
                rows.oldest_s,
            ),
            Gauge(
                "outbox_oldest_unacked_seconds",
                "Age of the oldest row that waits for the ack of its task.",
                rows.oldest_unacked_s,
            ),
            Gauge(
                "outbox_relayed_per_second",
                "Tasks created from rows, over the last full minute; 0 without memcached.",
                rows.relayed_per_s,
            ),
        ]
