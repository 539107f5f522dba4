"""Fork-join queues as a pattern of the registry."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollforward.fork_join import sweep
from rollforward.fork_join.entities import WorkOutcome, WorkReceipt
from rollforward.fork_join.queue import ForkJoin
from rollforward.runtime.clients import Clients
from rollforward.tasks.declaration import Task
from rollforward.tasks.expiry import Expiry
from rollforward.tasks.pattern import Pattern

log = logging.getLogger(__name__)

EXPIRY = Expiry(
    "/tasks/fork-join/delete-expired", [WorkReceipt, WorkOutcome], page_size=500, max_tasks=12
)


class ForkJoins(Pattern[ForkJoin[Any]]):
    """The batches of all fork-join queues."""

    name = "fork-join"
    takes = ForkJoin

    def tasks(self, parts: Sequence[ForkJoin[Any]]) -> Iterable[Task[Any]]:
        return [EXPIRY.task, *(task for queue in parts for task in queue.tasks)]

    def sweep(
        self, clients: Clients, parts: Sequence[ForkJoin[Any]], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Wake stranded batches."""
        after_s = sweep.STALE_S if stale_s is None else stale_s
        swept = sweep.sweep_all(clients, parts, stale_s=after_s)
        if stale_s is None and (swept.woken or swept.partitions):
            log.warning("woke %d batches, %d partitions to walk", swept.woken, swept.partitions)
        return {"woken": swept.woken, "partitions": swept.partitions}

    def delete_expired(self, clients: Clients) -> int:
        return EXPIRY.sweep(clients)
