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

    @classmethod
    def of(cls, path: str, function: str) -> UnknownTaskError:
        """Return the error about a task by its path, and by its function or its part."""
        return cls(
            f"{path} is in no registry, so no delivery would find it: add what declares it "
            f"({_declaring(path, function)}) to rf.serve(app, ...), or to the app's Registry(...)"
        )


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


# Parts by the paths of their tasks.
_PARTS = {
    "batches": "TaskBatch",
    "continuations": "job",
    "counters": "Counter",
    "flows": "flow",
    "fork-join": "fork-join queue",
    "lanes": "Lane",
    "materialized-views": "ViewMaintenance of",
    "streams": "Pipeline",
}


def _declaring(path: str, function: str) -> str:
    """Return what an app has to register: a function of its own, or a part of it by its name.

    >>> _declaring("/tasks/counters/likes/settle", "rollforward.counters.counter.Counter._settle")
    "the Counter 'likes'"
    >>> _declaring("/tasks/ship", "shop.ship")
    'shop.ship'
    """
    _, _, pattern, *names = [*path.split("/"), "", ""]
    if not function.startswith("rollforward.") or pattern not in _PARTS:
        return function
    name = names[0]
    if name.startswith("views-"):  # A walk over the sources of a group.
        pattern, name = "materialized-views", name.split("-")[1]
    return f"the {_PARTS[pattern]} {name!r}"
