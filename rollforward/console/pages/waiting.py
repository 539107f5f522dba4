"""Waiting tasks: retried after failures, kept by a queue, committed to the outbox."""

from __future__ import annotations

from typing import Any

from flask import request
from flask.typing import ResponseReturnValue
from google.api_core import exceptions as rpc_errors

from rollforward.console.api import changes
from rollforward.console.api.queries import PAGE_ROWS
from rollforward.console.pages.frame import Routes, go_to, page, render, with_query
from rollforward.flask.context import clients, registry
from rollforward.flask.guards.fields import limits
from rollforward.look import words
from rollforward.operations.waiting import (
    MAX_OUTBOX_CURSOR,
    CannotListError,
    failing_tasks,
    list_outbox,
    list_waiting,
    queue_states,
)
from rollforward.outbox.depth import depth
from rollforward.runtime.clock import aware_utc
from rollforward.tasks.attempt_entities import TaskAttempts

MAX_CURSOR_CHARS = 1_100
_UNKNOWN = "waits for a version of the code that knows it and its arguments"


@page
@limits(cursor=MAX_CURSOR_CHARS)
def waiting() -> ResponseReturnValue:
    """Show tasks that are retried after failures, and those of a queue, if it can be listed."""
    queue, cursor = request.args.get("queue", "").strip(), request.args.get("cursor", "")
    queues: Any = ()
    listed, problem, older = None, "", ""
    try:
        queues = queue_states(clients())
        if queue:
            listed = list_waiting(clients(), queue, cursor=cursor, limit=PAGE_ROWS)
            if listed.next_cursor:
                older = with_query("/waiting", queue=queue, cursor=listed.next_cursor)
    except (CannotListError, rpc_errors.GoogleAPICallError) as error:
        problem = str(error)
    return render(
        "waiting.html",
        failing=[_to_values(row) for row in failing_tasks(PAGE_ROWS)],
        queues=queues,
        names=sorted({task.queue for task in registry().tasks.values()}),
        queue=queue,
        tasks=listed.tasks if listed else (),
        is_listed=listed is not None,
        problem=problem,
        older=older,
        is_first=not cursor,
        first=with_query("/waiting", queue=queue),
    )


@page
@limits(cursor=MAX_OUTBOX_CURSOR)
def outbox() -> ResponseReturnValue:
    """Show the depth of the outbox, and its rows, the oldest first."""
    cursor = request.args.get("cursor", "")
    listed = list_outbox(cursor=cursor, limit=PAGE_ROWS)
    next_cursor = listed.next_cursor
    rows = [
        {
            **vars(row),
            "created": row.created.timestamp(),
            "due": row.due.timestamp() if row.due else None,
            "body": words.body(row.body.encode()),
        }
        for row in listed.rows
    ]
    return render(
        "outbox.html",
        depth=depth(clients()),
        rows=rows,
        older=with_query("/outbox", cursor=next_cursor) if next_cursor else "",
        is_first=not cursor,
        first=with_query("/outbox"),
    )


@page
def sweep_outbox() -> ResponseReturnValue:
    """Sweep the outbox now, whatever the schedule is."""
    changes.sweep_outbox()
    return go_to("/outbox", "swept")


def _to_values(row: TaskAttempts) -> dict[str, Any]:
    first, retry_at = aware_utc(row.first), aware_utc(row.retry_at)
    return {
        "path": row.path or "not known",
        "queue": row.queue or "",
        "failures": row.failures,
        "unfinished": len(row.begun),
        "error": _UNKNOWN if row.unknown_since else row.error or "",
        "first": first.timestamp() if first else None,
        "retry_at": retry_at.timestamp() if retry_at else None,
    }


ROUTES: Routes = (
    ("/waiting", "GET", waiting),
    ("/outbox", "GET", outbox),
    ("/outbox/sweep", "POST", sweep_outbox),
)
