"""Counters as a pattern of the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rollforward.counters import listing
from rollforward.counters.commits import has_increments
from rollforward.counters.counter import Counter
from rollforward.counters.entities import CounterReceipt
from rollforward.runtime import Clients
from rollforward.runtime.run_all import run_all
from rollforward.tasks import Task
from rollforward.tasks.expiry import Expiry
from rollforward.tasks.pattern import Pattern
from rollforward.tasks.runs import RunDetails, UnknownRunError

EXPIRY = Expiry("/tasks/counters/delete-expired", [CounterReceipt], page_size=250, max_tasks=24)


class Counters(Pattern[Counter]):
    """The shards of all counters, and the receipts of increments."""

    name = "counters"
    takes = Counter
    has_unique_names = True

    def expand(self, part: Counter) -> Iterable[object]:
        """Return the queue of a counter that is gathered."""
        return () if part.fork_join is None else (part.fork_join,)

    def tasks(self, parts: Sequence[Counter]) -> Iterable[Task[Any]]:
        return [EXPIRY.task, *(task for part in parts for task in part.tasks)]

    def sweep(
        self, clients: Clients, parts: Sequence[Counter], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Drain and shrink idle counters.

        A starting worker runs it, too, and tests whether the service has increments.
        """
        if any(part.tasks for part in parts):
            has_increments(clients)
        results = run_all(
            (f"the sweep of counter {part.name} failed", partial(part.sweep, clients))
            for part in parts
        )
        results.raise_first()
        return {"due": sum(results.returned)}

    def delete_expired(self, clients: Clients) -> int:
        return EXPIRY.sweep(clients)

    def part_names(self, parts: Sequence[Counter]) -> Iterable[str]:
        return [counter.name for counter in parts]

    def run(self, clients: Clients, parts: Sequence[Counter], run_id: str) -> RunDetails:
        for counter in parts:
            if counter.name == run_id:
                return listing.counter_details(clients, counter)
        raise UnknownRunError(run_id)
