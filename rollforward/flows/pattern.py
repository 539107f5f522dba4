"""Flows, as the registry knows them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollforward.flows import listing, sweep
from rollforward.flows.declaration import Flow
from rollforward.flows.rows.entities import (
    RUNNING,
    due_by,
    failed_flows,
    in_state,
    waiting_for_version,
)
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import age_s, naive_utc
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Gauge, SteppedPattern
from rollforward.tasks.runs import RunDetails, RunList, RunQuery, RunVerb

log = logging.getLogger(__name__)

MAX_COUNTED = 1_000


class Flows(SteppedPattern[Flow[Any]]):
    """Flows of steps, until each has ended."""

    name = "flows"
    takes = Flow
    has_unique_names = True

    def expand(self, part: Flow[Any]) -> Iterable[object]:
        """A flow brings the batches that it waits for."""
        return [] if part.batch is None else [part.batch]

    def tasks(self, parts: Sequence[Flow[Any]]) -> Iterable[Task[Any]]:
        return [sweep.EXPIRED.task, *(part.task for part in parts)]

    def sweep(
        self, clients: Clients, parts: Sequence[Flow[Any]], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Wake the flows that are due: after a long sleep, or since their task was lost."""
        return {"woken": sweep.wake_due(clients, {part.name: part.task for part in parts})}

    def delete_expired(self, clients: Clients) -> int:
        return sweep.EXPIRED.sweep(clients)

    def gauges(self, clients: Clients, parts: Sequence[Flow[Any]]) -> Sequence[Gauge]:
        now_utc = naive_utc(clients.clock.now())
        earliest = due_by(now_utc).get()
        return [
            Gauge(
                "flows_running",
                f"Flows that have not ended or failed; at most {MAX_COUNTED} are counted.",
                len(in_state(RUNNING).fetch(MAX_COUNTED, keys_only=True)),
            ),
            Gauge(
                "flows_failed",
                f"Flows that have failed and need a decision; at most {MAX_COUNTED} are counted.",
                self.count_failed(MAX_COUNTED),
            ),
            Gauge(
                "flows_waiting_for_version",
                "Flows that the deployed code cannot continue, and another version may; at most "
                f"{MAX_COUNTED} are counted.",
                len(waiting_for_version().fetch(MAX_COUNTED, keys_only=True)),
            ),
            Gauge(
                "flows_late_seconds",
                "Time by which the first flow that is due is late.",
                age_s(clients.clock, earliest.due) if earliest is not None else 0.0,
            ),
        ]

    def runs(self, clients: Clients, parts: Sequence[Flow[Any]], query: RunQuery) -> RunList:
        return listing.list_runs([part.name for part in parts], query)

    def run(self, clients: Clients, parts: Sequence[Flow[Any]], run_id: str) -> RunDetails:
        return listing.run_details([part.name for part in parts], run_id)

    def control_run(
        self, clients: Clients, parts: Sequence[Flow[Any]], run_id: str, verb: RunVerb
    ) -> str:
        return listing.control(clients, {part.name: part for part in parts}, run_id, verb)

    def cancel(
        self, clients: Clients, parts: Sequence[Flow[Any]], run_id: str, *, request_id: str = ""
    ) -> str:
        flows = {part.name: part for part in parts}
        return listing.control(clients, flows, run_id, "cancel", request_id=request_id)

    def retry(
        self,
        clients: Clients,
        parts: Sequence[Flow[Any]],
        run_id: str,
        *,
        from_step: str = "",
        runs: int = 0,
        request_id: str = "",
    ) -> str:
        flows = {part.name: part for part in parts}
        return listing.retry(
            *(clients, flows, run_id), from_step=from_step, runs=runs, request_id=request_id
        )

    def count_failed(self, limit: int) -> int:
        return len(failed_flows().fetch(limit, keys_only=True))
