"""Every error of the API, with the status code and the words of the service.

The texts marked "recorded" were recorded from the real service by the
conformance suite of aertje/cloud-tasks-emulator (2026). The others say what
the reference documents, in our own words.
"""

import datetime
from typing import Any
from zoneinfo import ZoneInfo

from google.rpc import error_details_pb2 as details_pb2

_REFERENCE = "https://cloud.google.com/tasks/docs/reference/rest/v2/projects.locations.queues"
_CONSOLE_URL = "https://console.developers.google.com"
# The service tells times as they are where Google is.
_SERVICE_ZONE = "America/Los_Angeles"
_LAST_SECOND = 253_402_300_799  # Of the year 9999, where Timestamps end.
# The words of a refusal are sent as metadata, of which gRPC takes 8 KB; a letter may need nine
# bytes there, and the words are in the details once more.
_MAX_MESSAGE_BYTES = 1_500
_MAX_PROJECT = 200


class Refused(Exception):
    """A call the service would answer with an error.

    Attributes:
        code: The name of the status code, for example "NOT_FOUND".
        message: The words that go with it.
        details: Messages of google.rpc that are sent along, for example Help.
    """

    def __init__(self, code: str, message: str, *details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = text_of(message, _MAX_MESSAGE_BYTES)
        self.details = details


def text_of(text: str, max_bytes: int) -> str:
    """Return the beginning of a text, as UTF-8 can carry it.

    >>> text_of("half a pair: \\ud800", 20), text_of("\u00fc" * 9, 5)
    ('half a pair: ?', '\u00fc\u00fc')
    """
    return text.encode(errors="replace")[:max_bytes].decode(errors="ignore")


def invalid(message: str, *details: Any) -> Refused:
    """Refuse an argument that can never be right."""
    return Refused("INVALID_ARGUMENT", message, *details)


def _help(description: str, url: str) -> Any:
    link = details_pb2.Help.Link(description=description, url=url)
    return details_pb2.Help(links=[link])


def queue_unknown() -> Refused:
    """Recorded: the queue is unknown or was just deleted."""
    return Refused(
        "NOT_FOUND",
        "Queue does not exist. If you just created the queue, "
        "wait at least a minute for the queue to initialize.",
    )


def entity_unknown() -> Refused:
    """Recorded: the task does not exist, or the queue to delete does not."""
    return Refused("NOT_FOUND", "Requested entity was not found.")


def policy_changed() -> Refused:
    """Refuse a policy that was read before another caller changed it."""
    return Refused(
        "ABORTED",
        "There were concurrent policy changes. Please retry the whole read-modify-write with "
        "exponential backoff.",
    )


def task_ended() -> Refused:
    """Recorded: the task ended, but its name is remembered."""
    return Refused(
        "NOT_FOUND",
        "The task no longer exists, though a task with this name existed recently. "
        "The task either successfully completed or was deleted.",
    )


def task_exists() -> Refused:
    """Recorded: the name belongs to a live or a recent task."""
    return Refused("ALREADY_EXISTS", "Requested entity already exists")


def queue_exists() -> Refused:
    """Recorded: a queue of this name exists."""
    return Refused("ALREADY_EXISTS", "Queue already exists")


def queue_too_recent() -> Refused:
    """Recorded: a queue of this name was deleted a short while ago."""
    return Refused(
        "FAILED_PRECONDITION",
        "The queue cannot be created because a queue with this name existed too recently.",
    )


def queue_name_malformed() -> Refused:
    """Recorded: a queue's name has the wrong form."""
    return invalid(
        "Queue name must be formatted: "
        '"projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>".',
        _help("Definition of queue name", f"{_REFERENCE}#Queue.FIELDS.name"),
    )


def queue_of_other_parent(name: str, parent: str) -> Refused:
    """Recorded: the queue's name belongs to another location than the request's."""
    return invalid(f"{name} must begin with {parent}.")


def task_name_malformed() -> Refused:
    """Say the form of a task's name, which is neither of ours nor any other's."""
    return invalid(
        "Task name must be formatted: "
        '"projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>/tasks/<TASK_ID>".',
        _task_id_help(),
    )


def task_id_malformed(task_id: str) -> Refused:
    """Recorded: a task's id has characters it may not have."""
    return invalid(
        f'Task ID "{task_id}" can contain only letters ([A-Za-z]), numbers ([0-9]), '
        "hyphens (-), or underscores (_). Task ID must between 1 and 500 characters.",
        _task_id_help(),
    )


def _task_id_help() -> Any:
    return _help("Definition of task ID", f"{_REFERENCE}.tasks#Task.FIELDS.name")


def task_of_other_queue(queue_name: str, named_queue: str) -> Refused:
    """Recorded: the task's name belongs to another queue than the request's."""
    return invalid(
        f"The queue name from request ('{queue_name}') must be the same as "
        f"the queue name in the named task ('{named_queue}')."
    )


def schedule_too_late(schedule_at: float, limit_s: int) -> Refused:
    """Recorded: a task is scheduled too far ahead."""
    zone = ZoneInfo(_SERVICE_ZONE)
    at = datetime.datetime.fromtimestamp(min(schedule_at, _LAST_SECOND), zone)
    return invalid(
        f"The Task.scheduleTime, {at.isoformat()}, is too far in the future. "
        f"Schedule time must be no more than {limit_s // 3600}h in the future."
    )


def wrong_content(is_pull: bool) -> Refused:
    """Refuse a task that its queue's kind cannot have."""
    if is_pull:
        return invalid("A task of a pull queue must have a pull_message.")
    return invalid("Task.pull_message can be set only if Queue.pull_target is set.")


def not_sent() -> Refused:
    """Refuse to send a task that waits for a worker's lease."""
    return Refused("FAILED_PRECONDITION", "A pull task is not sent: it can only be leased.")


def not_leased() -> Refused:
    """Refuse a worker whose lease has ended, or which never had one."""
    return Refused(
        "FAILED_PRECONDITION",
        "The lease has expired, or another schedule_time proves the current lease.",
    )


def task_too_large() -> Refused:
    """Recorded: a task's stored form is too large."""
    return invalid("Task size too large")


def permission_denied(project: str) -> Refused:
    """Recorded: the project is none of the caller's."""
    project = project[:_MAX_PROJECT]
    message = f"Permission denied on resource project {project}."
    info = details_pb2.ErrorInfo(
        reason="CONSUMER_INVALID",
        domain="googleapis.com",
        metadata={
            "consumer": f"projects/{project}",
            "containerInfo": project,
            "service": "cloudtasks.googleapis.com",
        },
    )
    localized = details_pb2.LocalizedMessage(locale="en-US", message=message)
    console = _help("Google developers console", _CONSOLE_URL)
    return Refused("PERMISSION_DENIED", message, info, localized, console)
