"""The rows of a task at its delivery: read before it works, and deleted when it has ended."""

from __future__ import annotations

from rollforward.runtime.clients import Clients
from rollforward.tasks.errors import EndedError
from rollforward.tasks.stored import arguments, cancellation
from rollforward.tasks.stored.envelope import split_envelope


def begin(clients: Clients, body: bytes) -> bytes:
    """Return the arguments of a delivery, as JSON; its task cannot be cancelled from now on.

    Raises:
        BadArgumentsError: the body has another form.
        EndedError: the task is done, or was cancelled.
        ArgumentsGoneError: the rows of the arguments do not exist.
        google.api_core.exceptions.GoogleAPICallError: they could not be read.
    """
    envelope = split_envelope(body)
    if envelope.handle:
        try:
            cancellation.begin(envelope.handle)
        except EndedError:
            arguments.finish(clients, body)
            raise
    return arguments.load(envelope)


def give_up(clients: Clients, body: bytes) -> None:
    """Delete the arguments of a task that its declaration gave up, and note that it was."""
    arguments.finish(clients, body)
    if handle := arguments.envelope_of(body).handle:
        cancellation.give_up(clients, handle)


def finish_in_transaction(clients: Clients, body: bytes, *, is_given_up: bool) -> None:
    """Delete the rows of a task that has ended, in the transaction that deletes the task.

    Args:
        is_given_up: Whether its declaration gave it up, which a tracked task remembers.
    """
    arguments.finish_in_transaction(clients, body)
    if not (handle := arguments.envelope_of(body).handle):
        return
    if handle.endswith(cancellation.NAMED):
        cancellation.expire_row(clients, handle)
    elif is_given_up:
        cancellation.note_give_up(clients, handle)
    else:
        cancellation.note_end(clients, handle)


def finish(clients: Clients, body: bytes) -> None:
    """Delete the rows of a task that has ended; rows that stay by a failure expire."""
    arguments.finish(clients, body)
    if handle := arguments.envelope_of(body).handle:
        cancellation.forget(handle)
