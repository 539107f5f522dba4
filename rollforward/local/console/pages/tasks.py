"""The tasks of any state, and one with its attempts; run, retried, deleted."""

import base64
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from rollforward.local.cloudtasks.server import views
from rollforward.local.console.frame import Route, Section, back, whole
from rollforward.local.console.reading import task_rows, work
from rollforward.local.console.reading.work import PAGE_TASKS, TaskFilter
from rollforward.look import words
from rollforward.look.lists import BadChoiceError, ListChoice, seconds_of
from rollforward.tracing import TRACE_HEADER, trace_id_of

# Lists that people look at first; an address of one's own is as good.
VIEWS = {
    "Failed in the last hour": "/tasks?state=failed&age=1h",
    "Retrying, most attempts first": "/tasks?state=retrying&sort=attempts",
    "Waiting, oldest first": "/tasks?state=queued&sort=oldest",
    "The last 5 minutes": "/tasks?age=5m",
}


class Tasks(Section):
    """The tasks of any state, and one with its attempts; run, retried, deleted."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/tasks", self.tasks),
            ("GET", "/tasks/{queue}/{task}", self.task),
            ("POST", "/tasks/{queue}/{task}/{verb:run|retry|delete}", self.change_task),
        ]

    async def tasks(self, request: web.Request) -> web.Response:
        """Show tasks, newest first, as the address filters them."""
        chosen = filter_of(request, self.engine.clock.now())
        find = work.sorted_tasks if chosen.sort else work.find_tasks
        search = find(self.engine, chosen, PAGE_TASKS)
        older = ""
        if search.searched_to and not chosen.sort:
            older = "/tasks?" + urlencode(chosen.fields | {"before": str(search.searched_to)})
        return self.page(
            request,
            "tasks.html",
            rows=[task_rows.row_of(self.engine, task) for task in search.tasks],
            older=older,
            searched=work.MAX_SEARCHED,
            is_cut=bool(older) and len(search.tasks) < PAGE_TASKS,
            is_first=not chosen.before,
            queue_ids=[row["id"] for row in work.queue_rows(self.engine)],
            chosen=chosen,
            filter_query=urlencode(chosen.fields),
            fixed_query=urlencode(chosen.fixed_fields),
            ages=work.AGES,
            sorts=work.SORTS,
            max_sorted=work.MAX_SORTED if chosen.sort and search.searched_to else 0,
            views=VIEWS,
        )

    async def task(self, request: web.Request) -> web.Response:
        """Show one task with all its attempts, the latest first."""
        name = self._task_name(request)
        shown = views.task_with_attempts_json(self.engine, name)
        body = _bytes(shown["request"]["body"])
        return self.page(
            request,
            "task.html",
            task=shown,
            words=task_rows.summary_of(shown["path"], body),
            trace_id=self._trace_id(shown["request"]["headers"]),
            overdue_s=task_rows.overdue_s(shown, self.engine.clock.now()),
            held_back=self._held_back(shown["queue"]),
            body=words.body(body),
            curl=task_rows.as_curl(self.engine.attempts.request_of(name)),
            attempts=_newest_first(shown["attempts"]),
            is_live=shown["ended_at"] is None,
        )

    async def change_task(self, request: web.Request) -> web.Response:
        """Run, retry or delete a task."""
        name, verb = self._task_name(request), request.match_info["verb"]
        verbs: dict[str, tuple[Callable[[str], Any], str]] = {
            "run": (self.engine.tasks.run, "ran"),
            "retry": (self.engine.tasks.retry, "retried"),
            "delete": (self.engine.tasks.delete, "deleted"),
        }
        act, notice = verbs[verb]
        act(name)
        raise await back(request, "/tasks", notice)

    def _task_name(self, request: web.Request) -> str:
        return f"{self.queue_name(request)}/tasks/{request.match_info['task']}"

    def _trace_id(self, headers: dict[str, str]) -> str:
        """Return the trace that a task belongs to, if it is kept; "" otherwise."""
        carried = {name.lower(): value for name, value in headers.items()}
        trace_id = trace_id_of(carried.get(TRACE_HEADER.lower(), ""))
        return trace_id if self.platform.traces.get(trace_id) is not None else ""

    def _held_back(self, queue_id: str) -> str:
        """Return why tasks of a queue begin late, "" if nothing is known of it."""
        row = next((row for row in work.queue_rows(self.engine) if row["id"] == queue_id), None)
        if row is None:
            return "its queue was deleted"
        if row["state"] != "running":
            return f"its queue is {row['state']}"
        if row["speed_factor"] < 1:
            return f"its queue is slowed to {row['speed_factor']:.0%} by 429 or 5xx responses"
        if row["running"] >= row["max_concurrent"]:
            return "its queue runs as many tasks as allowed"
        return "older tasks use up the rate of its queue" if row["waiting"] > 1 else ""


def filter_of(request: web.Request, now_s: float) -> TaskFilter:
    """Return what the address of a list asks for.

    Raises:
        web.HTTPBadRequest: the state, time or order does not exist.
    """
    query = request.query
    queue, state, text = (query.get(name, "").strip() for name in ("queue", "state", "q"))
    if state and state not in views.STATES:
        raise web.HTTPBadRequest(text=f"There is no state “{state}”.")
    asked = {name: query.get(name, "") for name in ("age", "sort")}
    try:
        chosen = ListChoice.of(asked, work.SORTS, work.AGES)
    except BadChoiceError as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    since = now_s - seconds_of(chosen.age) if chosen.age else parse_time(query.get("since", ""))
    before = whole(query.get("before", ""))
    return TaskFilter(queue, state, text, before, chosen.age, since, chosen.sort)


def parse_time(text: str) -> float:
    """Return a moment of an address in seconds since 1970; 0 if it has none.

    Raises:
        web.HTTPBadRequest: the text is none.
    """
    if text and not re.fullmatch(r"\d{1,12}(\.\d{1,6})?", text, re.ASCII):
        raise web.HTTPBadRequest(text="since: a number of seconds since 1970.")
    return float(text or 0)


def _newest_first(attempts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return attempts, the latest first: each with its place, its body, and whose copy it is."""
    number = 0
    for attempt in attempts:
        number += not attempt["is_copy"]
        attempt["place"] = max(number, 1)
        response = attempt["response"]
        attempt["answer"] = words.body(_bytes(response["body"])) if response else None
        ended_at = attempt["started_at"] + (attempt["duration_ms"] or 0) / 1000
        retry_at = attempt["next_retry_at"]
        attempt["backoff_s"] = None if retry_at is None else max(0.0, retry_at - ended_at)
        is_good = response is not None and 200 <= response["status"] <= 299
        attempt["is_good"] = is_good and not attempt["error"]
    return attempts[::-1]


def _bytes(body: dict[str, Any]) -> bytes:
    """Return the bytes of a body as views.body_json shows it."""
    if "base64" in body:
        return base64.b64decode(body["base64"])
    return str(body.get("text", "")).encode()
