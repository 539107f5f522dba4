"""Task batches, as the registry knows them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollforward.batches import listing, sweep
from rollforward.batches.adding.creation import create
from rollforward.batches.batch import TaskBatch
from rollforward.batches.completion import cancel_nested, end_members
from rollforward.batches.entities import running_batches
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import age_s
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Gauge, Pattern
from rollforward.tasks.runs import Run, RunDetails, RunList, RunQuery, RunVerb

log = logging.getLogger(__name__)

MAX_MEASURED = 100  # Batches whose age the gauge reads.


class Batches(Pattern[TaskBatch]):
    """Batches of tasks, until the last of their members has ended."""

    name = "batches"
    takes = TaskBatch
    has_unique_names = True

    def expand(self, part: TaskBatch) -> Iterable[object]:
        """A batch brings the queue of ends, and the task that it completes with."""
        return [end_members] if part.on_complete is None else [end_members, part.on_complete]

    def tasks(self, parts: Sequence[TaskBatch]) -> Iterable[Task[Any]]:
        if not parts:
            return []
        shared: list[Task[Any]] = [create, cancel_nested, sweep.remove_due, sweep.remove_rows]
        return [*shared, *(task for part in parts for task in part.tasks)]

    def sweep(
        self, clients: Clients, parts: Sequence[TaskBatch], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Create the tasks again of batches in which nothing has moved for half an hour."""
        woken = sweep.wake(clients)
        if woken:
            log.warning("woke %d batches", woken)
        return {"woken": woken}

    def delete_expired(self, clients: Clients) -> int:
        return sweep.remove(clients)

    def gauges(self, clients: Clients, parts: Sequence[TaskBatch]) -> Sequence[Gauge]:
        oldest = running_batches().fetch(MAX_MEASURED)
        ages = [age_s(clients.clock, batch.created) for batch in oldest]
        return [
            Gauge(
                "batches_running",
                f"Batches that are not complete; at most {sweep.MAX_COUNTED} are counted.",
                sweep.count_running() if len(oldest) == MAX_MEASURED else len(oldest),
            ),
            Gauge(
                "batches_oldest_seconds",
                f"Age of the oldest of {MAX_MEASURED} batches that are not complete.",
                max(ages, default=0.0),
            ),
        ]

    def runs(self, clients: Clients, parts: Sequence[TaskBatch], query: RunQuery) -> RunList:
        listed = listing.list_runs([part.name for part in parts], query)
        return replace(listed, runs=[_with_waiter(parts, run) for run in listed.runs])

    def run(self, clients: Clients, parts: Sequence[TaskBatch], run_id: str) -> RunDetails:
        details = listing.run_details([part.name for part in parts], run_id)
        run = _with_waiter(parts, details.run)
        if run.part_of is None or run.part_of.pattern == self.name:
            return details
        return replace(details, run=run, numbers={"waited_for_by": run.part_of, **details.numbers})

    def control_run(
        self, clients: Clients, parts: Sequence[TaskBatch], run_id: str, verb: RunVerb
    ) -> str:
        return listing.control(clients, [part.name for part in parts], run_id, verb)


def _with_waiter(parts: Sequence[TaskBatch], run: Run) -> Run:
    """Return a batch with the run that waits for it, unless another batch does."""
    name, _, batch_id = run.id.partition(":")
    declared = {part.name: part for part in parts}.get(name)
    if declared is None or run.part_of is not None:
        return run
    return replace(run, part_of=declared.waiter(batch_id))
