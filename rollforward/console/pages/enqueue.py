"""Tasks enqueued by hand, and dead tasks edited and replayed: forms from the declared types."""

from __future__ import annotations

import json
from typing import Any

from flask import Response, request
from flask.typing import ResponseReturnValue

from rollforward.console.api import enqueues
from rollforward.console.api.changes import MAX_ID_BYTES, NO_DEAD_TASK, ChangeRefusedError
from rollforward.console.api.enqueues import declared_task, declared_tasks
from rollforward.console.api.queries import BadQueryError, number_of
from rollforward.console.pages.argument_forms import (
    MAX_VALUE_CHARS,
    BadFormError,
    body_of,
    fields_of,
)
from rollforward.console.pages.frame import Routes, code_url, go_to, page, render, with_query
from rollforward.flask.context import clients, registry
from rollforward.flask.guards.fields import limits
from rollforward.look import words
from rollforward.operations import UnknownDeadTaskError
from rollforward.operations.replays import get_dead_task
from rollforward.tasks import Task
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.stored import arguments

MAX_ROWS = 60
MAX_DELAY_S = 30 * 86_400
MAX_PATH_CHARS = 500


@page
def tasks() -> ResponseReturnValue:
    """Show the tasks that the app declares."""
    text = request.args.get("q", "").strip()
    rows = [
        {
            "path": path,
            "queue": task.queue,
            "function": task.function,
            "code_url": code_url(task.work),
            "url": with_query("/enqueue/task", path=path),
        }
        for path, task in sorted(declared_tasks().items())
        if text.lower() in f"{path} {task.queue} {task.function}".lower()
    ]
    return render("enqueue.html", rows=rows[:MAX_ROWS], count=len(rows), text=text)


@page
@limits(path=MAX_PATH_CHARS)
def form() -> ResponseReturnValue:
    """Show the form of one task's arguments."""
    return _form(declared_task(request.args.get("path", "")))


@page
@limits(path=MAX_PATH_CHARS, value=MAX_VALUE_CHARS)
def enqueue() -> ResponseReturnValue:
    """Enqueue a task with the arguments of its form."""
    task, sent = declared_task(request.form.get("path", "")), request.form
    texts, key = sent.getlist("value"), sent.get("key", "")
    if not key:
        raise ChangeRefusedError(400, "key: the form has none. Load it again.")
    delay = sent.get("delay_s", "").strip() or "0"
    try:
        body, delay_s = body_of(task, texts), number_of(delay, "delay_s")
    except (BadFormError, BadQueryError) as error:
        return _form(task, str(error).rstrip("."), texts, delay)
    if delay_s > MAX_DELAY_S:
        return _form(task, f"delay_s: at most {words.number(MAX_DELAY_S)} seconds", texts, delay)
    enqueues.enqueue_task(task, body, delay_s, key)
    return go_to("/enqueue/task", "enqueued", path=task.path)


@page
@limits(id=MAX_ID_BYTES)
def edit() -> ResponseReturnValue:
    """Show the arguments of a dead task in a form."""
    dead = _open_dead_task(request.args.get("id", ""))
    task, values = _task_and_values(dead)
    return _edit_form(dead, task, values=values)


@page
@limits(id=MAX_ID_BYTES, value=MAX_VALUE_CHARS)
def replay_edited() -> ResponseReturnValue:
    """Replay a dead task with the arguments of its form."""
    dead = _open_dead_task(request.form.get("id", ""))
    task, _ = _task_and_values(dead)
    texts = request.form.getlist("value")
    try:
        body = body_of(task, texts)
    except BadFormError as error:
        return _edit_form(dead, task, str(error), texts)
    enqueues.replay_edited(str(dead.key.id()), body)
    return go_to("/dead", "replayed")


def _form(
    task: Task[Any], problem: str = "", texts: list[str] | None = None, delay: str = ""
) -> Response:
    response = render(
        "enqueue_one.html",
        task=task,
        code_url=code_url(task.work),
        fields=[*zip(fields := fields_of(task), _values(fields, texts), strict=True)],
        problem=problem,
        delay=delay,
        key=clients().new_id(),
    )
    response.status_code = 400 if problem else 200
    return response


def _edit_form(
    dead: DeadTask,
    task: Task[Any],
    problem: str = "",
    texts: list[str] | None = None,
    values: dict[str, Any] | None = None,
) -> Response:
    fields = fields_of(task, values)
    response = render(
        "dead_edit.html",
        dead=dead,
        dead_id=dead.key.id(),
        task=task,
        fields=[*zip(fields, _values(fields, texts), strict=True)],
        problem=problem,
    )
    response.status_code = 400 if problem else 200
    return response


def _values(fields: list[Any], texts: list[str] | None) -> list[str]:
    """Return the texts of a form: as typed, or the values of its fields."""
    is_typed = texts is not None and len(texts) == len(fields)
    return texts if is_typed and texts else [field.value for field in fields]


def _open_dead_task(dead_id: str) -> DeadTask:
    try:
        dead = get_dead_task(dead_id)
    except UnknownDeadTaskError:
        raise ChangeRefusedError(404, NO_DEAD_TASK) from None
    if dead.resolved:
        raise ChangeRefusedError(409, "It was replayed already.")
    return dead


def _task_and_values(dead: DeadTask) -> tuple[Task[Any], dict[str, Any]]:
    """Return the task of a dead task, and its arguments as far as they are of its types."""
    task = registry().tasks.get(dead.path)
    if task is None:
        raise ChangeRefusedError(409, f"It cannot be edited: no task is declared for {dead.path}.")
    envelope = arguments.envelope_of(dead.body.encode())
    if envelope.stored:
        raise ChangeRefusedError(409, "It cannot be edited: rows of their own hold its arguments.")
    try:
        values = json.loads(envelope.args or b"{}")
    except (ValueError, RecursionError):
        values = None
    return task, values if isinstance(values, dict) else {}


ROUTES: Routes = (
    ("/enqueue", "GET", tasks),
    ("/enqueue/task", "GET", form),
    ("/enqueue/task", "POST", enqueue),
    ("/dead/edit", "GET", edit),
    ("/dead/edit", "POST", replay_edited),
)
