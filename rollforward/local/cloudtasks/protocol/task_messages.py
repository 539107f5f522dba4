"""A task's message: what is kept of it, and how the API shows it."""

import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.store.records import PullMessage, TaskRecord

# Makes the message of a task as a view shows it, in the version of the API that asks.
Show = Callable[[TaskRecord, int], Any]


def record_of(
    message: Any,
    queue: str,
    *,
    sequence: int,
    is_named: bool,
    schedule_at: float,
    now_s: float,
    pull: PullMessage | None = None,
) -> TaskRecord:
    """Return the record of a new task.

    Args:
        message: The complete message.
        is_named: Whether the caller chose its name.
        pull: The content of a task in a pull queue.
    """
    is_app_engine = message.HasField("app_engine_http_request")
    if pull is not None:
        path = pull.tag
    elif is_app_engine:
        path = message.app_engine_http_request.relative_uri
    else:
        parts = urlsplit(message.http_request.url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return TaskRecord(
        sequence=sequence,
        name=message.name,
        queue=queue,
        path=sys.intern(path),  # Many tasks have the same.
        is_app_engine=is_app_engine,
        is_named=is_named,
        spec=message.SerializeToString(),
        created_at=now_s,
        schedule_at=schedule_at,
        due_at=schedule_at,
        pull=pull,
    )


def in_view(task: TaskRecord, view: int, message: Any = None) -> Any:
    """Return a task's message as a view shows it.

    Args:
        message: The parsed spec, where it is at hand: it is changed.
    """
    if message is None:
        message = messages.Task.FromString(task.spec)
    kind = message.WhichOneof("message_type")
    if view != messages.FULL and kind is not None:
        getattr(message, kind).ClearField("body")
    message.view = messages.FULL if view == messages.FULL else messages.BASIC
    messages.set_seconds(message.schedule_time, task.schedule_at)
    message.dispatch_count = task.dispatch_count
    message.response_count = task.response_count
    if task.first_attempt_at is not None and task.pull is None:
        messages.set_seconds(message.first_attempt.dispatch_time, task.first_attempt_at)
        _show_last_attempt(task, message.last_attempt)
    return message


def _show_last_attempt(task: TaskRecord, attempt: Any) -> None:
    messages.set_seconds(attempt.schedule_time, task.last_schedule_at or 0.0)
    messages.set_seconds(attempt.dispatch_time, task.last_dispatch_at or 0.0)
    if task.last_response_at is not None:
        messages.set_seconds(attempt.response_time, task.last_response_at)
        attempt.response_status.code = task.last_code
        attempt.response_status.message = task.last_message
