"""Queues paused, resumed, purged and slowed down, as far as the app's account may."""

from __future__ import annotations

from google.api_core import exceptions as rpc_errors

from rollforward.operations.waiting import queue_client
from rollforward.runtime.clients import Clients
from rollforward.tasks.cloud_tasks import QueueState, QueueVerb

QUEUE_VERBS: tuple[QueueVerb, ...] = ("pause", "resume", "purge", "rate")
# What Cloud Tasks takes.
MAX_PER_S = 500.0
_RIGHTS = {"pause": "pause", "resume": "resume", "purge": "purge", "rate": "update"}


class QueueDeniedError(Exception):
    """The app's account may not do this to a queue; the text says what to grant."""


class QueueRefusedError(Exception):
    """Cloud Tasks does not do this to a queue; the text says why."""


def control_queue(
    clients: Clients, queue: str, verb: QueueVerb, *, max_per_s: float = 0
) -> QueueState:
    """Pause, resume or purge a queue, or set its rate; return its new state.

    Raises:
        CannotListError: this app has no queues of Cloud Tasks.
        QueueDeniedError, QueueRefusedError: nothing was changed.
        google.api_core.exceptions.GoogleAPICallError: it is unknown whether it was changed.
    """
    try:
        return queue_client(clients).control_queue(queue, verb, max_per_s=max_per_s)
    except rpc_errors.PermissionDenied as error:
        raise QueueDeniedError(
            f"The app's account may not: grant it cloudtasks.queues.{_RIGHTS[verb]}, which "
            "roles/cloudtasks.queueAdmin has, or do it with gcloud under your own account"
        ) from error
    except (
        rpc_errors.NotFound,
        rpc_errors.InvalidArgument,
        rpc_errors.FailedPrecondition,
    ) as error:
        raise QueueRefusedError(f"Cloud Tasks refuses: {error.message}") from error
