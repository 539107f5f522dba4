"""Enqueue a task in a transaction, as a row in its commit; see the package's docstring."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, overload

from rollforward.datastore import current
from rollforward.datastore.transactions import Transaction, current_transaction
from rollforward.outbox.entities import OutboxTask, RowId, outbox_key
from rollforward.outbox.relay import plain_row_of, row_of
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.messages import Message, MessageLane
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import BadArgumentsError
from rollforward.tasks.parameters import lane_key, with_clients
from rollforward.tasks.stored.arguments import store_in_transaction
from rollforward.tasks.stored.distant import MAX_AHEAD_S, is_distant, put_distant
from rollforward.tasks.stored.names import MAX_BODY_BYTES, MAX_COMMITTED_BYTES

A = TypeVar("A")

_HOOK = "outbox"
_FORM = "enqueue takes a task and its arguments, as in rf.enqueue(ship, ship.bind('A1'))"


@overload
def enqueue(
    clients: Clients,
    task: Task[A],
    args: A,
    /,
    *,
    name: Sequence[str | int] | None = None,
    delay_s: float = 0,
    at: datetime.datetime | None = None,
    lane: MessageLane | None = None,
) -> None: ...


@overload
def enqueue(
    task: Task[A],
    args: A,
    /,
    *,
    name: Sequence[str | int] | None = None,
    delay_s: float = 0,
    at: datetime.datetime | None = None,
    lane: MessageLane | None = None,
) -> None: ...


def enqueue(
    *args: Any,
    name: Sequence[str | int] | None = None,
    delay_s: float = 0,
    at: datetime.datetime | None = None,
    lane: MessageLane | None = None,
) -> None:
    """Enqueue a task in the transaction that this code runs in: `enqueue(ship, ship.bind("A1"))`.

    Args:
        clients: As of `Task.enqueue`, like all the others.

    Raises:
        NoTransactionError: this is not the body of `transact`.
        BadArgumentsError, TooLargeError, UnknownTaskError, NoClientsError: nothing was enqueued.
    """
    clients, message = message_of(args, name=name, delay_s=delay_s, at=at)
    if lane is not None:
        lane_key(lane).add_in_transaction(clients, message)
    else:
        enqueue_message(clients, message)


def message_of(
    args: tuple[Any, ...],
    *,
    name: Sequence[str | int] | None,
    delay_s: float,
    at: datetime.datetime | None,
) -> tuple[Clients, Message]:
    """Return the clients and the checked message of a call of `enqueue`, and of its like.

    Raises:
        BadArgumentsError, TooLargeError, UnknownTaskError, NoClientsError: as of `enqueue`.
    """
    clients, (task, task_args) = with_clients(args, 2, _FORM)
    if not isinstance(task, Task):
        raise BadArgumentsError(f"{_FORM}, got {task!r:.100} as the task")
    task.check_registered(clients)
    due = task.due(clients, delay_s, at, max_s=MAX_AHEAD_S)
    return clients, task.message(task_args, name=name, at=due, max_bytes=MAX_COMMITTED_BYTES)


def enqueue_message(clients: Clients, message: Message) -> None:
    """Enqueue a message as it is, in the transaction that this code runs in.

    Raises:
        NoTransactionError: this is not the body of `transact`.
    """
    _outbound(clients).put(lambda row: message, is_unacked=False)


def enqueue_with_ack(
    clients: Clients,
    task: Task[A],
    make_args: Callable[[str], A],
    *,
    tag: str,
    at: datetime.datetime | None = None,
    is_gathered: bool = False,
) -> str:
    """Enqueue a task whose row stays until the task's own transaction acks it.

    Args:
        make_args: Returns the task's arguments, given the row that it must ack. The row's name
            depends on the arguments, so its end is put in afterwards.
        tag: Finds the row while it is pending.
        is_gathered: The caller takes the row by its tag, together with others. The sweep creates
            the task if nobody has taken it.

    Returns:
        The row: deleted once the task has done its work.

    Raises:
        NoTransactionError, BadArgumentsError, TooLargeError, UnknownTaskError: as of `enqueue`.
    """
    task.check_registered(clients)
    due = task.due(clients, 0, at)
    return _outbound(clients).put(
        lambda row: task.message(make_args(row), at=due),
        is_unacked=True,
        tag=tag,
        is_gathered=is_gathered,
    )


def ack(row: str) -> None:
    """Delete an unacked row, in the transaction of its task."""
    current.delete(outbox_key(row))


@dataclass
class _Outbound:
    """The rows of one transaction."""

    clients: Clients
    transaction: Transaction
    created: datetime.datetime
    rows: list[OutboxTask] = field(default_factory=list)
    doubtful: list[OutboxTask] = field(default_factory=list)  # Of attempts that may be committed.

    def put(
        self,
        make: Callable[[str], Message],
        *,
        is_unacked: bool,
        tag: str | None = None,
        is_gathered: bool = False,
    ) -> str:
        """Write a row; `make` returns its message, given the row.

        A body that runs again writes the same rows. The key depends on the message and on how many
        equal ones came before. So a body that decides otherwise then, for it finds a part of its
        work done, overwrites no row of the last attempt, which may be committed, and doubles none.
        """
        draft = RowId(self.transaction.id, self.created, 0, is_unacked)
        draft_text = draft.text
        message = make(draft_text)
        digest = message.digest(tag)
        number = self.transaction.count(f"{_HOOK}|{digest}") - 1
        row = replace(draft, number=number, digest=digest).text
        # The transaction's random id is in it, so it stands for nothing else there.
        body = message.body.replace(draft_text.encode(), row.encode())
        message = replace(message, body=body)
        if len(message.body) > MAX_BODY_BYTES:
            message = store_in_transaction(self.clients, message, row)
        if is_distant(self.clients, message.at):
            put_distant(message, row)
            return row
        if is_gathered and message.at is None:
            current.put_row(self.clients.datastore, plain_row_of(row, message, tag))
            return row
        entity = row_of(row, message, tag)
        current.put(entity)
        if not is_gathered:
            self.rows.append(entity)
        return row

    def on_retry(self, cause: Exception) -> None:
        self.doubtful += self.rows
        self.rows = []

    def on_outcome_unknown(self) -> None:
        """Look for rows that may be committed anyway."""
        rows = {row.key: row for row in (*self.doubtful, *self.rows)}
        if rows and self.transaction.doubt is not None:
            self.clients.relay.resolve(self.clients, list(rows.values()))

    def on_commit(self) -> None:
        rows = {row.key: row for row in self.rows}
        doubtful = {row.key: row for row in self.doubtful if row.key not in rows}
        if rows:
            self.clients.relay.send(self.clients, list(rows.values()))
        if doubtful:
            self.clients.relay.resolve(self.clients, list(doubtful.values()))


def _outbound(clients: Clients) -> _Outbound:
    transaction, created = current_transaction(), naive_utc(clients.clock.now())
    return transaction.hook(_HOOK, lambda: _Outbound(clients, transaction, created))
