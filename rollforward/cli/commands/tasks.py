"""`rollforward tasks`: the tasks of the queues, and how their attempts went."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from rollforward.cli.command import Command
from rollforward.cli.errors import WrongUsageError
from rollforward.cli.remote import options as shared
from rollforward.cli.remote import remote_app
from rollforward.cli.remote.tables import format_time

STATES = ("scheduled", "queued", "running", "retrying", "done", "failed", "deleted")
_HEAD = ("TASK", "QUEUE", "STATE", "PATH", "ATTEMPTS", "CREATED", "LAST ERROR")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the filters and the options that name the app."""
    parser.add_argument("--queue", default="", help="one queue; of a deployed app: default")
    parser.add_argument(
        "--state", default="", choices=STATES, help="one state; on the local platform only"
    )
    shared.add_page(parser)
    shared.add_remote_options(parser)


def run(options: argparse.Namespace) -> int:
    """List tasks, the newest first on the local platform, by name of a deployed app."""
    at = remote_app.find(options)
    if at.platform is not None:
        answer = at.platform.get(
            "/tasks",
            queue=options.queue,
            state=options.state,
            after=options.after,
            limit=options.limit,
        )
        rows = [_local_row(row) for row in remote_app.rows_of(answer, "tasks")]
        following = answer.get("next")
    else:
        if options.state:
            raise WrongUsageError("--state is for the local platform: Cloud Tasks tells no state.")
        queue = options.queue or "default"
        answer = at.app.get("/tasks", queue=queue, cursor=options.after, limit=options.limit)
        rows = [_deployed_row(row, queue) for row in remote_app.rows_of(answer, "tasks")]
        following = answer.get("next_cursor")
    return remote_app.show(options, "tasks", rows, _HEAD, _values, following=following)


def _local_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": row.get("id"),
        "queue": row.get("queue"),
        "state": row.get("state"),
        "path": row.get("path"),
        "attempts": row.get("dispatch_count"),
        "created": format_time(row.get("created_at")),
        "due": format_time(row.get("schedule_at")),
        "last_error": row.get("last_error") or "",
    }


def _deployed_row(row: Mapping[str, Any], queue: str) -> dict[str, Any]:
    return {
        "id": row.get("name"),
        "queue": queue,
        "state": None,
        "path": row.get("path"),
        "attempts": row.get("deliveries"),
        "created": format_time(row.get("created")),
        "due": format_time(row.get("due")),
        "last_error": row.get("last_error") or "",
    }


def _values(row: Mapping[str, Any]) -> Iterable[object]:
    names = ("id", "queue", "state", "path", "attempts", "created", "last_error")
    return [row[name] for name in names]


COMMAND = Command(
    "tasks",
    "list the tasks of the queues",
    "List tasks with their attempts and last error. The local platform lists all tasks, the newest "
    "first, with their states; Cloud Tasks lists those that wait in one queue.",
    add_options,
    run,
    remote_app.EPILOG.format(name="tasks") + " --json prints {tasks: [{id, queue, state, path, "
    "attempts, created, due, last_error}], next}; state is null for a deployed app.",
)
