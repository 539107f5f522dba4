"""Every refusal of the API, with the status code and the words of the service.

The texts marked "recorded" were recorded from the real service by the
conformance suite of aertje/cloud-tasks-emulator (2026). The others say what
the reference documents, in our own words.
"""

NAMES_HELP_URL = "https://cloud.google.com/tasks/docs/reference/rest/v2/projects.locations.queues"
TASKS_HELP_URL = NAMES_HELP_URL + ".tasks"


class Refused(Exception):
    """A call the service would answer with an error.

    Attributes:
        code: The name of the status code, such as "NOT_FOUND".
        message: The words that go with it.
        help_url: A page that explains it, sent as a google.rpc.Help detail.
    """

    def __init__(self, code: str, message: str, help_url: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.help_url = help_url


def invalid(message: str, help_url: str = "") -> Refused:
    """Refuse an argument that can never be right."""
    return Refused("INVALID_ARGUMENT", message, help_url)


def queue_unknown() -> Refused:
    """Recorded: the queue is unknown or was just deleted."""
    return Refused(
        "NOT_FOUND",
        "Queue does not exist. If you just created the queue, "
        "wait at least a minute for the queue to initialize.",
    )


def entity_unknown() -> Refused:
    """Recorded: no such task, or no such queue to delete."""
    return Refused("NOT_FOUND", "Requested entity was not found.")


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
        NAMES_HELP_URL,
    )


def task_name_malformed() -> Refused:
    """Say the form of a task's name, which is neither of ours nor any other's."""
    return invalid(
        "Task name must be formatted: "
        '"projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>/tasks/<TASK_ID>".',
        TASKS_HELP_URL,
    )


def task_id_malformed(task_id: str) -> Refused:
    """Recorded: a task's id has characters it may not have."""
    return invalid(
        f'Task ID "{task_id}" can contain only letters ([A-Za-z]), numbers ([0-9]), '
        "hyphens (-), or underscores (_). Task ID must between 1 and 500 characters.",
        TASKS_HELP_URL,
    )


def task_of_other_queue(queue_name: str, named_queue: str) -> Refused:
    """Recorded: the task's name belongs to another queue than the request's."""
    return invalid(
        f"The queue name from request ('{queue_name}') must be the same as "
        f"the queue name in the named task ('{named_queue}')."
    )


def permission_denied(project: str) -> Refused:
    """Recorded: the project is none of the caller's."""
    return Refused("PERMISSION_DENIED", f"Permission denied on resource project {project}.")
