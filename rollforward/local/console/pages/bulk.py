"""One action on all the tasks that a filter finds: shown with its count, confirmed, done."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from rollforward.local.cloudtasks.server import views
from rollforward.local.cloudtasks.store.records import DELETED, LIVE, TaskRecord
from rollforward.local.console.frame import Route, Section, back, whole
from rollforward.local.console.pages.tasks import filter_of, parse_time
from rollforward.local.console.reading import task_rows, work
from rollforward.local.console.reading.work import TaskFilter

MAX_TASKS = work.MAX_SEARCHED
_SHOWN = 5


class BulkActions(Section):
    """Retry, run now or delete all the tasks of a filter."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/tasks/all/{verb:run|retry|delete}/confirm", self.confirm),
            ("POST", "/tasks/all/{verb:run|retry|delete}/confirm", self.act),
        ]

    async def confirm(self, request: web.Request) -> web.Response:
        """Say how many tasks it would be, and ask."""
        verb, chosen = request.match_info["verb"], filter_of(request, self.engine.clock.now())
        tasks, is_cut = self._allowed(chosen, verb)
        return self.page(
            request,
            "bulk.html",
            verb=verb,
            count=len(tasks),
            searched=MAX_TASKS,
            is_cut=is_cut,
            rows=[task_rows.row_of(self.engine, task) for task in tasks[:_SHOWN]],
            chosen=chosen,
            list_url="/tasks?" + urlencode(chosen.fields),
            # What is created while the person reads is left alone.
            before=tasks[0].sequence + 1 if tasks else 0,
        )

    async def act(self, request: web.Request) -> web.Response:
        """Do it to the tasks that were there when the count was shown."""
        fields = await request.post()
        state = str(fields.get("state", ""))
        if state and state not in views.STATES:
            raise web.HTTPBadRequest(text=f"There is no state “{state}”.")
        queue, text = str(fields.get("queue", "")), str(fields.get("q", "")).strip()
        since = parse_time(str(fields.get("since", "")))
        chosen = TaskFilter(queue, state, text, since=since)
        sequence = whole(str(fields.get("before", "")))
        if not sequence:
            raise web.HTTPBadRequest(text="The form names no tasks. Go back to the list.")
        verb = request.match_info["verb"]
        tasks, _ = self._allowed(replace(chosen, before=sequence), verb)
        verbs: dict[str, Callable[[str], Any]] = {
            "run": self.engine.tasks.run,
            "retry": self.engine.tasks.retry,
            "delete": self.engine.tasks.delete,
        }
        done = self.engine.tasks.act_on_many(verbs[verb], [task.name for task in tasks])
        raise await back(request, "/tasks", f"all-{verb}", count=done)

    def _allowed(self, chosen: TaskFilter, verb: str) -> tuple[list[TaskRecord], bool]:
        """Return the tasks that can be acted upon, and whether older ones were not looked at."""
        if verb != "retry" and not chosen.state:
            # Tasks that have ended would fill the list, however many newer ones there are.
            chosen = replace(chosen, state=LIVE)
        search = work.find_tasks(self.engine, chosen, MAX_TASKS)
        return [task for task in search.tasks if _is_allowed(task, verb)], search.searched_to > 0


def _is_allowed(task: TaskRecord, verb: str) -> bool:
    """Return whether a task can be acted upon: one that runs is not retried, and so on."""
    if verb == "retry":
        return task.state != DELETED and not task.running
    return task.state == LIVE
