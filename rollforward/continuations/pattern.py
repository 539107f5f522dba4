"""Continuations, as the registry knows them: an app registers its jobs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollforward.continuations import listing, sweep
from rollforward.continuations.entities import running_runs
from rollforward.continuations.jobs import LEASE_S, Job
from rollforward.continuations.pages.attempt import page_task
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import age_s
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Gauge, Pattern
from rollforward.tasks.runs import RunDetails, RunList, RunQuery, RunVerb

log = logging.getLogger(__name__)

MAX_MEASURED = 100  # Runs that the gauges read.


class Continuations(Pattern[Job[Any, Any]]):
    """The pages of all jobs."""

    name = "continuations"
    takes = Job

    def tasks(self, parts: Sequence[Job[Any, Any]]) -> Iterable[Task[Any]]:
        return [page_task(job) for job in parts]

    def sweep(
        self, clients: Clients, parts: Sequence[Job[Any, Any]], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Wake the pages that have waited too long; none before its lease has ended."""
        jobs = {job.name: job for job in parts}
        after_s = sweep.STALE_S if stale_s is None else max(stale_s, LEASE_S)
        woken = sweep.sweep(clients, jobs, stale_s=after_s)
        if woken and stale_s is None:
            log.warning("woke %d pages", woken)
        return {"woken": woken}

    def delete_expired(self, clients: Clients) -> int:
        return sweep.delete_expired(clients)

    def gauges(self, clients: Clients, parts: Sequence[Job[Any, Any]]) -> Sequence[Gauge]:
        running = running_runs().fetch(MAX_MEASURED)
        ages = [age_s(clients.clock, run.started) for run in running]
        return [
            Gauge(
                "continuations_running",
                f"Runs that have not ended; at most {MAX_MEASURED} are counted.",
                len(running),
            ),
            Gauge(
                "continuations_oldest_seconds",
                f"Age of the oldest of {MAX_MEASURED} runs that have not ended.",
                max(ages, default=0.0),
            ),
        ]

    def runs(self, clients: Clients, parts: Sequence[Job[Any, Any]], query: RunQuery) -> RunList:
        return listing.list_runs(_by_name(parts), query)

    def run(self, clients: Clients, parts: Sequence[Job[Any, Any]], run_id: str) -> RunDetails:
        return listing.run_details(_by_name(parts), run_id)

    def control_run(
        self, clients: Clients, parts: Sequence[Job[Any, Any]], run_id: str, verb: RunVerb
    ) -> str:
        return listing.control(clients, _by_name(parts), run_id, verb)


def _by_name(parts: Sequence[Job[Any, Any]]) -> listing.Jobs:
    return {job.name: job for job in parts}
