"""Tasks due in more than 30 days: rows until Cloud Tasks takes them, two days before they are due.

A row's task has a name: the caller's, or one that is made of the row's key. The sweep creates the
task and removes the row, so a sweep that comes twice creates one task. With a name of the caller's
the row stays for nine days after the task is due, so that a second call of this name creates no
task.

Lost on failure: nothing. While no sweep runs, tasks that become due are late.
"""

from __future__ import annotations

import datetime
from typing import Any

from rollforward.datastore import current
from rollforward.datastore.transactions import is_in_transaction
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.messages import Message
from rollforward.runtime.sharing.shared_transaction import SharedBody, transact_shared
from rollforward.tasks.errors import MAX_DELAY_S
from rollforward.tasks.stored.entities import DistantTask, distant_key
from rollforward.tasks.stored.names import hashed_name
from rollforward.tracing import TRACE_HEADER

# Years after which nobody knows the code.
MAX_AHEAD_S = 10 * 366 * 24 * 3600
# The service's clock may be behind ours.
DISTANT_AFTER_S = MAX_DELAY_S - 3600


def is_distant(clients: Clients, due: datetime.datetime | None) -> bool:
    """Return whether a task has to wait in a row."""
    return due is not None and (due - clients.clock.now()).total_seconds() > DISTANT_AFTER_S


def create_distant(clients: Clients, message: Message) -> bool:
    """Write the row of a distant task; return False if its name exists already."""
    call_id = clients.new_id()
    row = _row_of(message, message.name or call_id, call_id)
    if is_in_transaction():
        return _insert(row)
    shared = SharedBody(
        lambda keys: _insert(row), reads=lambda draw: [row.key], rows=frozenset([row.key])
    )
    return transact_shared(clients, shared)


def put_distant(message: Message, owner: str) -> None:
    """Write the row of a distant task in this transaction, unless its name exists already.

    Args:
        owner: The same each time the body runs; for a message without a name.
    """
    _insert(_row_of(message, message.name or owner, owner))


def named_rows(clients: Clients, message: Message) -> list[Any]:
    """Return the keys of the rows that hold a message's name: one, if it is distant and named."""
    if message.name is None or not is_distant(clients, message.at):
        return []
    return [_key_of(message, message.name)]


def _insert(row: DistantTask) -> bool:
    [stored] = current.get_multi([row.key])
    if stored is None:
        current.put(row)
        return True
    return bool(stored.call_id == row.call_id)  # Written before; the commit's reply was lost.


def _row_of(message: Message, owner: str, call_id: str) -> DistantTask:
    assert message.at is not None
    due = naive_utc(message.at)
    return DistantTask(
        key=_key_of(message, owner),
        path=message.path,
        queue=message.queue,
        body=message.body.decode(),
        name=message.name,
        due=due,
        waits_until=due,
        call_id=call_id,
        max_attempts=message.max_attempts,
        deadline_s=message.deadline_s,
        traceparent=message.headers.get(TRACE_HEADER),
    )


def _key_of(message: Message, owner: str) -> Any:
    return distant_key(hashed_name("distant", message.path, owner))
