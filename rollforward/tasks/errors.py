"""The ways in which a task ends, and the errors of enqueuing one."""

from __future__ import annotations

from google.api_core import exceptions as rpc_errors

MAX_DELAY_S = 30 * 24 * 3600


class EnqueueError(Exception):
    """Base class for errors of enqueuing."""


class BadArgumentsError(EnqueueError, ValueError):
    """The arguments do not fit the task's declaration."""


class TooLargeError(EnqueueError, ValueError):
    """The task's body is larger than Cloud Tasks would take."""


class UnknownTaskError(EnqueueError, LookupError):
    """No registry has this task, so it would never be delivered; the text says what to add."""


class UnknownQueueError(EnqueueError, rpc_errors.NotFound):
    """A task goes to a queue that does not exist; the text says which, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)  # type: ignore[no-untyped-call]

    def __str__(self) -> str:
        return str(self.message)


class NotAttemptedError(EnqueueError):
    """This message was not sent: the service did not answer for those before it."""


class NotConfirmedError(EnqueueError):
    """The service does not say whether this task was created."""


# Cloud Tasks will refuse this task again, whatever the service's health.
PERMANENT_ERRORS = (
    rpc_errors.InvalidArgument,
    rpc_errors.NotFound,
    rpc_errors.FailedPrecondition,
    rpc_errors.OutOfRange,
)


class TaskError(Exception):
    """A way for a task to end other than by returning."""


class Reject(TaskError):
    """This task can never work: keep it as a dead task and stop retrying."""


class Retry(TaskError):
    """This task cannot work yet; waiting is no failure of it.

    Without a time it has lost a race, and the queue retries it soon. With one it is a planned
    wait: the task is created again for that time, under a new name, and slows no queue.

    Attributes:
        after_s: Seconds until the next try, up to 30 days; None: as the queue backs off.
    """

    def __init__(self, *args: object, after_s: float | None = None) -> None:
        super().__init__(*args)
        if after_s is not None and not 0 <= after_s <= MAX_DELAY_S:
            raise ValueError(f"after_s must be 0 to {MAX_DELAY_S} seconds, got {after_s!r}")
        self.after_s = after_s


class Unavailable(TaskError):
    """A service that this task needs does not answer: the queue slows down and retries."""


class EndedError(TaskError):
    """This task has ended: it is done, or it was cancelled."""


class ArgumentsGoneError(TaskError):
    """The rows of this task's arguments do not exist."""


class OtherVersionError(TaskError):
    """Only another version of the code may be able to read the data of this task.

    The task waits for an hour, which a deployment may take, and is given up then.
    """
