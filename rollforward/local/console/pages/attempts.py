"""The attempts of a run's tasks on a time axis: the queue of this machine keeps them all.

The run itself, with its items, is a page of the app's console, which leads here.
"""

import asyncio
import time
from urllib.parse import quote, urlencode

from aiohttp import web

from rollforward.local.cloudtasks.protocol.names import short
from rollforward.local.cloudtasks.store.records import TaskRecord
from rollforward.local.console.frame import Route, Section
from rollforward.local.console.pages.app_console import PREFIX, entity_url
from rollforward.local.console.reading import attempt_axis, run_times, task_rows

_TASKS = 500
_SHOWN_TASKS = 20


class Attempts(Section):
    """The attempts and the tasks of one run."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/attempts/{pattern}/{id}", self.attempts),
        ]

    async def attempts(self, request: web.Request) -> web.Response:
        """Show the tasks whose arguments name the run, and their attempts."""
        pattern, run_id = request.match_info["pattern"], request.match_info["id"]
        tasks, attempts = await asyncio.to_thread(self.engine.history.holding, run_id, _TASKS)
        place = f"{quote(pattern, safe='')}/{quote(run_id, safe='')}"
        return self.page(
            request,
            "attempts.html",
            run_id=run_id,
            run_url=f"{self.platform.app_url}{PREFIX}/runs/{place}",
            axis=attempt_axis.attempt_axis(attempts, time.time()),
            times=run_times.run_times(tasks, attempts, self.engine.clock.now()),
            summary_of=lambda task: task_rows.summary_of(task.path, b""),
            url_of=self._url_of,
            logs_url="/logs?" + urlencode({"q": run_id}),
            traces_url="/traces?" + urlencode({"run": run_id}),
            entity_url=entity_url(pattern, run_id),
            dead_url=f"{self.platform.app_url}{PREFIX}/dead?" + urlencode({"pattern": pattern}),
            tasks=[task_rows.row_of(self.engine, task) for task in tasks[:_SHOWN_TASKS]],
            task_count=len(tasks),
            tasks_url="/tasks?" + urlencode({"q": run_id}),
        )

    def _url_of(self, task: TaskRecord) -> str:
        return f"/tasks/{self.engine.place.queue_id(task.queue)}/{short(task.name)}"
