"""The ways in which a task ends, and the errors of enqueuing one."""

from __future__ import annotations

from google.api_core import exceptions as rpc_errors


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
    """This task lost its race: it is retried soon."""


class Unavailable(TaskError):
    """A service that this task needs does not answer: the queue slows down and retries."""


class OtherVersionError(TaskError):
    """Only another version of the code may be able to read the data of this task.

    The task waits for an hour, which a deployment may take, and is given up then.
    """
