"""Rows of tasks: cancellable ones, which each delivery reads first, and tracked ones.

`cancel` and the first delivery meet in a transaction on this row: one of them is first. So a task
that was cancelled never begins, and one that has begun is not cancelled.

A tracked task cannot be cancelled and costs nothing at its begin. Its row goes when the task has
succeeded. It stays, with the state, when the declaration gives the task up or its dead task is
deleted. A missing row may also have expired, and a row whose task was deleted from its queue waits.

Lost on failure: nothing. The row goes when the task has ended. A row of a named task, of a
cancelled one, or of one that was never created, expires 32 days after the task was due. A tracked
task that was given up keeps its row for 32 days. In a lane a row stays for as long as the task
waits, and a tracked task keeps it while its dead task is open.
"""

from __future__ import annotations

import datetime
import logging

from google.api_core import exceptions as rpc_errors

from rollforward.datastore import current
from rollforward.datastore.expiry import expiry
from rollforward.datastore.transactions import is_in_transaction, running_transaction, transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.texts import has_unpaired_surrogate
from rollforward.tasks.errors import EndedError
from rollforward.tasks.runs import MAX_KEY_BYTES
from rollforward.tasks.stored.arguments import LIFE
from rollforward.tasks.stored.entities import (
    BEGUN,
    CANCELLED,
    GIVEN_UP,
    WAITING,
    CancellableTask,
    handle_key,
)

log = logging.getLogger(__name__)

# A task in a lane may wait for years, in a key that is paused.
LIFE_IN_LANE = datetime.timedelta(days=3650)
NAMED = "-n"  # The end of a handle that is made of a name.
TRACKED = "-t"  # The end of a handle that cannot cancel.

_HOOK = "handles"


def cancel(handle: str) -> bool:
    """Cancel a task; in a transaction, with it.

    Returns:
        True: it has never begun, and never will. False: it has begun or ended, or the handle is
        unknown.
    """
    if has_unpaired_surrogate(handle) or not 0 < len(handle.encode()) <= MAX_KEY_BYTES:
        return False
    return _cancel(handle) if is_in_transaction() else transact(lambda: _cancel(handle))


def is_known(handle: str) -> bool:
    """Return whether a handle has a row: its task was enqueued."""
    return handle in _written() or current.get_multi([handle_key(handle)])[0] is not None


def put_handle(
    clients: Clients, handle: str, due: datetime.datetime | None, *, life: datetime.timedelta = LIFE
) -> None:
    """Write the row of a task, in the transaction that enqueues it.

    Args:
        life: For how long it stays after the task was due, unless that has ended before.
    """
    now_utc = clients.clock.now()
    expires = expiry(handle, naive_utc(max(due or now_utc, now_utc) + life))
    row = CancellableTask(key=handle_key(handle), state=WAITING, expires=expires)
    _written()[handle] = row
    current.put(row)


def begin(handle: str) -> None:
    """Note that a task begins.

    Raises:
        EndedError: it was cancelled.
        google.api_core.exceptions.GoogleAPICallError: it is unknown whether it was.
    """
    if not handle.endswith(TRACKED):
        transact(lambda: _begin(handle))


def expire_row(clients: Clients, handle: str) -> None:
    """Let the row of a task that waits no more go in 32 days, in this transaction.

    The row of a tracked one says what became of the task, and goes 32 days after its end.
    """
    if handle and not handle.endswith(TRACKED):
        _note(handle, expires=_expires_at(clients, handle))


def forget(handle: str) -> None:
    """Delete the row of a task that has ended; if that fails it expires.

    The row of a named task stays until then, so that a second call of the name finds it.
    """
    if handle.endswith(NAMED):
        return
    try:
        handle_key(handle).delete()
    except rpc_errors.GoogleAPIError as error:
        log.warning("the handle %s is not deleted yet: %s", handle, error)


def note_end(clients: Clients, handle: str) -> None:
    """Delete the row of a task that has ended, in this transaction; a cancelled task's row expires.

    A second cancel then gets the answer of the first.
    """
    row = handle_key(handle).get() if not handle.endswith(TRACKED) else None
    if row is not None and row.state == CANCELLED:
        expire_row(clients, handle)
    else:
        forget(handle)


def give_up(clients: Clients, handle: str) -> None:
    """Note that a tracked task was given up without a dead task; delete the row of any other."""
    if not handle.endswith(TRACKED):
        forget(handle)
        return
    try:
        transact(lambda: note_give_up(clients, handle))
    except rpc_errors.GoogleAPIError as error:
        log.warning("the handle %s still says that its task waits: %s", handle, error)


def note_give_up(clients: Clients, handle: str) -> None:
    """Note that a task was given up, in the transaction that deletes its row."""
    if handle.endswith(TRACKED):
        _note(handle, state=GIVEN_UP, expires=_expires_at(clients, handle))
    else:
        forget(handle)


def note_death(handle: str, dead_id: str) -> None:
    """Note the dead task of a tracked task, in the transaction that writes it."""
    if handle.endswith(TRACKED):
        _note(handle, state=WAITING, dead_id=dead_id)


def abandon(clients: Clients, handle: str) -> None:
    """Note that a tracked task is never done, in the transaction that deletes its dead task."""
    if handle.endswith(TRACKED):
        _note(handle, state=CANCELLED, expires=_expires_at(clients, handle))


def _expires_at(clients: Clients, handle: str) -> str:
    return expiry(handle, naive_utc(clients.clock.now() + LIFE))


def _note(handle: str, **values: str) -> None:
    """Set properties of a row, in this transaction, if it is there."""
    row = handle_key(handle).get()
    if row is not None:
        row.populate(**values)
        row.put()


def _cancel(handle: str) -> bool:
    if handle.endswith(TRACKED):
        return False
    row = _written().get(handle) or handle_key(handle).get()
    if row is None or row.state == BEGUN:
        return False
    if row.state == WAITING:
        row.state = CANCELLED
        row.put()
    return True


def _begin(handle: str) -> None:
    row = handle_key(handle).get()
    if row is None:
        return  # It has ended before, or is the replay of a dead task.
    if row.state == CANCELLED:
        raise EndedError(f"the task {handle} was cancelled")
    if row.state == WAITING:
        row.state = BEGUN
        row.put()


def _written() -> dict[str, CancellableTask]:
    """Return the rows of tasks that this transaction enqueues: it does not read what it writes."""
    transaction = running_transaction()
    return {} if transaction is None else transaction.hook(_HOOK, _Written).rows


class _Written:
    """The rows of one attempt of a transaction."""

    def __init__(self) -> None:
        self.rows: dict[str, CancellableTask] = {}

    def on_retry(self, cause: Exception) -> None:
        self.rows.clear()

    def on_commit(self) -> None: ...

    def on_outcome_unknown(self) -> None: ...
