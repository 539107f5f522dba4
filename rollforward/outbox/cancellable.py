"""Cancellable tasks: enqueued with a row, in one commit."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from rollforward.datastore.transactions import current_transaction, is_in_transaction, transact
from rollforward.outbox.enqueue import enqueue_message, message_of
from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import Message, MessageLane
from rollforward.runtime.sharing.shared_transaction import SharedBody, transact_shared
from rollforward.tasks.declaration import Task
from rollforward.tasks.parameters import lane_key
from rollforward.tasks.stored.arguments import LIFE
from rollforward.tasks.stored.cancellation import (
    LIFE_IN_LANE,
    NAMED,
    TRACKED,
    is_known,
    put_handle,
)
from rollforward.tasks.stored.distant import named_rows
from rollforward.tasks.stored.entities import handle_key
from rollforward.tasks.stored.envelope import Envelope
from rollforward.tasks.stored.names import hashed_name

A = TypeVar("A")


@overload
def enqueue_cancellable(
    clients: Clients,
    task: Task[A],
    args: A,
    /,
    *,
    name: Sequence[str | int] | None = None,
    delay_s: float = 0,
    at: datetime.datetime | None = None,
    lane: MessageLane | None = None,
) -> str: ...


@overload
def enqueue_cancellable(
    task: Task[A],
    args: A,
    /,
    *,
    name: Sequence[str | int] | None = None,
    delay_s: float = 0,
    at: datetime.datetime | None = None,
    lane: MessageLane | None = None,
) -> str: ...


def enqueue_cancellable(
    *args: Any,
    name: Sequence[str | int] | None = None,
    delay_s: float = 0,
    at: datetime.datetime | None = None,
    lane: MessageLane | None = None,
) -> str:
    """Enqueue a task that can be cancelled until it begins; return its handle for `cancel`.

    In a transaction the task is committed with it, as by `enqueue`. Elsewhere this call commits it.

    Args:
        clients: As of `Task.enqueue`, like all the others.
        name: A second call of this name returns the same handle and enqueues nothing, until 32
            days after the task was due.
        lane: Key of a lane in which it waits for its turn. A task that is cancelled there keeps its
            place until its turn, and does not run.

    Raises:
        BadArgumentsError, TooLargeError, UnknownTaskError, NoClientsError: nothing was enqueued.
        google.api_core.exceptions.GoogleAPICallError: it is unknown whether it was.
    """
    clients, message = message_of(args, name=name, delay_s=delay_s, at=at)

    def body() -> str:
        handle = _handle(message, name)
        if name is None or not is_known(handle):
            if not _is_saved(handle):
                life = LIFE if lane is None else LIFE_IN_LANE
                put_handle(clients, handle, message.at, life=life)
            wrapped = Envelope(message.body, handle=handle).body
            if lane is not None:
                lane_key(lane).add_in_transaction(
                    clients, replace(message, body=wrapped, name=None)
                )
            else:
                enqueue_message(clients, replace(message, body=wrapped))
        return handle

    if is_in_transaction():
        return body()
    if lane is not None:
        return transact(body)
    named = [] if name is None else [handle_key(_handle(message, name))]
    named += named_rows(clients, message)
    shared = SharedBody(
        lambda keys: body(), reads=lambda draw: named, rows=frozenset(named), writes=2
    )
    return transact_shared(clients, shared)


def enqueue_tracked(
    clients: Clients,
    task: Task[A],
    args: A,
    *,
    name: Sequence[str | int],
    lane: MessageLane | None = None,
) -> None:
    """Enqueue a named task with a row that is there until it has ended, in this transaction.

    `tracked_handle(task, name)` is the id of the row. In a lane the task has no name: the caller's
    transaction enqueues it once.

    Raises:
        NoTransactionError, BadArgumentsError, TooLargeError, UnknownTaskError: as of `enqueue`.
    """
    _, message = message_of((clients, task, args), name=name, delay_s=0, at=None)
    handle = tracked_handle(task.path, name)
    put_handle(clients, handle, None, life=LIFE if lane is None else LIFE_IN_LANE)
    wrapped = replace(message, body=Envelope(message.body, handle=handle).body)
    if lane is not None:
        lane.add_in_transaction(clients, replace(wrapped, name=None))
    else:
        enqueue_message(clients, wrapped)


def tracked_handle(path: str, name: Sequence[str | int]) -> str:
    """Return the handle of a tracked task."""
    return hashed_name("handle", path, *name) + TRACKED


def _handle(message: Message, name: Sequence[str | int] | None) -> str:
    """Return the same handle for a task each time the body of a transaction runs."""
    if name is not None:
        return hashed_name("handle", message.path, *name) + NAMED
    own = current_transaction().id_of("cancellable", message.digest())
    return hashed_name("handle", message.path, own)


def _is_saved(handle: str) -> bool:
    """Return whether an earlier attempt of this transaction has committed the row of a task.

    It may be cancelled by now, through a handle that was stored with it. Nobody knows the handle
    of a call that commits by itself, and shares its transaction, before it returns.
    """
    transaction = current_transaction()
    is_shared = transaction.entities is not None
    return transaction.doubt is not None and not is_shared and is_known(handle)
