"""The workers of the app: their number, and the deliveries that they work on."""

import json
from typing import Any

from aiohttp import web

from rollforward.local.cloudtasks.store.records import TaskRecord
from rollforward.local.console.frame import Route, Section
from rollforward.local.console.reading import task_rows

MAX_ROWS = 60


class Workers(Section):
    """The page of workers."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/workers", self.workers),
        ]

    async def workers(self, request: web.Request) -> web.Response:
        """Show the attempts that run now, the longest first."""
        running = self.engine.history.running(MAX_ROWS + 1)
        rows = [self._row(task, attempts) for task, attempts in running[:MAX_ROWS]]
        return self.page(
            request,
            "workers.html",
            rows=sorted(rows, key=lambda row: float(row["since"])),
            is_cut=len(running) > MAX_ROWS,
            workers=self.platform.workers(),
        )

    def _row(self, task: TaskRecord, attempts: list[Any]) -> dict[str, Any]:
        at_work = [row for row in attempts if row["duration_ms"] is None]
        since = min((row["started_at"] for row in at_work), default=self.engine.clock.now())
        return task_rows.row_of(self.engine, task) | {
            "since": since,
            "attempts": len(at_work),
            "faults": sorted({fault for row in at_work for fault in json.loads(row["faults"])}),
        }
