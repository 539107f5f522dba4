"""The runs of the app, and one of them with its items, its time and its tasks."""

import asyncio
import time
from urllib.parse import urlencode

from aiohttp import web

from rollforward.local.console.frame import Route, Section, back
from rollforward.local.console.reading import run_pictures, runs, task_rows
from rollforward.local.console.reading.runs import RunRefusedError, Runs, RunsUnavailableError
from rollforward.look import words

_TASKS = 500
_SHOWN_TASKS = 20


class RunPages(Section):
    """The runs of the app: listed, looked at, cancelled, resumed, retried."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/runs", self.runs),
            ("GET", "/runs/{pattern}/{id}", self.run),
            ("POST", "/runs/{pattern}/{id}/{verb:cancel|resume|retry}", self.control),
        ]

    @property
    def _runs(self) -> Runs:
        return Runs(self.platform.cron)

    async def runs(self, request: web.Request) -> web.Response:
        """Show runs, the newest first, as the address filters them."""
        query = request.query
        keys = ("state", "name", "before")
        state, name, before_run = (query.get(key, "").strip() for key in keys)
        if state and state not in runs.STATES:
            raise web.HTTPBadRequest(text=f"There is no state “{state}”.")
        rows, next_before, problem = [], "", ""
        try:
            rows, next_before = await self._runs.newest(state=state, name=name, before=before_run)
        except RunsUnavailableError as error:
            problem = str(error)
        fields = {"state": state, "name": name}
        older = urlencode({k: v for k, v in fields.items() if v} | {"before": next_before})
        return self.page(
            request,
            "runs.html",
            rows=rows,
            older=f"/runs?{older}" if next_before else "",
            is_first=not before_run,
            problem=problem,
            state=state,
            name=name,
        )

    async def run(self, request: web.Request) -> web.Response:
        """Show one run."""
        pattern, run_id = request.match_info["pattern"], request.match_info["id"]
        try:
            details = await self._runs.one(pattern, run_id)
        except RunsUnavailableError as error:
            return self.error(request, 502, str(error))
        if details is None:
            raise web.HTTPNotFound(text="The app has no such run.")
        tasks, attempts = await asyncio.to_thread(self.engine.history.holding, run_id, _TASKS)
        now_s = time.time()
        return self.page(
            request,
            "run.html",
            details=details,
            run=details.run,
            dots=run_pictures.dots_of(details),
            axis=run_pictures.time_axis(details, attempts, now_s),
            args=words.body(details.run.args.encode()),
            tasks=[task_rows.row_of(self.engine, task) for task in tasks[:_SHOWN_TASKS]],
            task_count=len(tasks),
            tasks_url="/tasks?" + urlencode({"q": run_id}),
        )

    async def control(self, request: web.Request) -> web.Response:
        """Cancel, resume or retry a run."""
        pattern, run_id = request.match_info["pattern"], request.match_info["id"]
        verb = request.match_info["verb"]
        try:
            next_id = await self._runs.control(pattern, run_id, verb)
        except RunsUnavailableError as error:
            return self.error(request, 502, str(error))
        except RunRefusedError as error:
            return self.error(request, 409, str(error))
        usual = runs.url_of(pattern, next_id)
        raise await back(request, usual, verb)
