"""The tasks of any state, and one with its attempts; run, retried, deleted."""

import base64
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from devserver.cloudtasks import views
from devserver.console import words, work
from devserver.console.pages.frame import Route, Section, back, whole


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
        query = request.query
        queue, state, text = (query.get(name, "").strip() for name in ("queue", "state", "q"))
        if state and state not in views.STATES:
            raise web.HTTPBadRequest(text=f"There is no state “{state}”.")
        before = whole(query.get("before", ""))
        rows, next_before = work.find_tasks(
            self.engine, queue=queue, state=state, text=text, before=before
        )
        kept = {"queue": queue, "state": state, "q": text}
        older = urlencode({k: v for k, v in kept.items() if v} | {"before": str(next_before)})
        return self.page(
            request,
            "tasks.html",
            rows=rows,
            older=f"/tasks?{older}" if next_before else "",
            is_first=not before,
            queue_ids=[row["id"] for row in work.queue_rows(self.engine)],
            **{"queue": queue, "state": state, "text": text},
        )

    async def task(self, request: web.Request) -> web.Response:
        """Show one task with all its attempts, the latest first."""
        shown = views.task_with_attempts_json(self.engine, self._task_name(request))
        for attempt in shown["attempts"]:
            answer = attempt["response"]
            attempt["answer"] = words.body(_bytes(answer["body"])) if answer else None
        return self.page(
            request,
            "task.html",
            task=shown,
            body=words.body(_bytes(shown["request"]["body"])),
            attempts=list(reversed(shown["attempts"])),
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


def _bytes(body: dict[str, Any]) -> bytes:
    """Return the bytes of a body as views.body_json shows it."""
    if "base64" in body:
        return base64.b64decode(body["base64"])
    return str(body.get("text", "")).encode()
