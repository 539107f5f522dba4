"""Fork-join queues as a pattern of the registry."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollforward.fork_join import listing, sweep
from rollforward.fork_join.entities import (
    EpochId,
    PackId,
    WorkOutcome,
    WorkReceipt,
    packs_of_queue,
    parked_packs,
)
from rollforward.fork_join.queue import ForkJoin
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import age_s
from rollforward.tasks.declaration import Task
from rollforward.tasks.expiry import Expiry
from rollforward.tasks.pattern import Gauge, Pattern
from rollforward.tasks.runs import RunDetails, RunVerb, UnknownRunError

log = logging.getLogger(__name__)

MAX_COUNTED = 1_000  # Keys of a queue that the gauges read.

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

    def gauges(self, clients: Clients, parts: Sequence[ForkJoin[Any]]) -> Sequence[Gauge]:
        counts = [
            (part.name, waiting, parked)
            for part, waiting, parked in zip(
                parts,
                _fetch(packs_of_queue(part.name) for part in parts),
                _fetch(parked_packs(part.name) for part in parts),
                strict=True,
            )
        ]
        gauges: list[Gauge] = []
        for name, waiting, parked in counts:
            labels = {"fork_join": name}
            ages = [age_s(clients.clock, EpochId.parse(pack.epoch).opened) for pack in waiting]
            gauges += [
                Gauge(
                    "fork_join_waiting_items",
                    f"Items that are not folded, in at most {MAX_COUNTED} packs.",
                    sum(pack.items for pack in waiting),
                    labels,
                ),
                Gauge(
                    "fork_join_oldest_seconds",
                    f"Age of the oldest batch of at most {MAX_COUNTED} packs that wait.",
                    max(ages, default=0.0),
                    labels,
                ),
                Gauge(
                    "fork_join_parked_items",
                    f"Items that failed for good, and wait for a replay; at most {MAX_COUNTED}.",
                    len(parked),
                    labels,
                ),
            ]
        return gauges

    def delete_expired(self, clients: Clients) -> int:
        return EXPIRY.sweep(clients)

    def part_names(self, parts: Sequence[ForkJoin[Any]]) -> Iterable[str]:
        return [queue.settings.name for queue in parts]

    def run(self, clients: Clients, parts: Sequence[ForkJoin[Any]], run_id: str) -> RunDetails:
        for queue in parts:
            if queue.settings.name == run_id:
                return listing.queue_details(queue)
        raise UnknownRunError(run_id)

    def control_run(
        self, clients: Clients, parts: Sequence[ForkJoin[Any]], run_id: str, verb: RunVerb
    ) -> str:
        for queue in parts:
            if queue.settings.name == run_id:
                return listing.retry_parked(clients, queue, verb)
        raise UnknownRunError(run_id)


def _fetch(queries: Iterable[Any]) -> list[list[PackId]]:
    """Return the packs that queries find, by keys alone; the queries run side by side."""
    futures = [query.fetch_async(MAX_COUNTED, keys_only=True) for query in queries]
    return [[PackId.parse(key.id()) for key in future.result()] for future in futures]
