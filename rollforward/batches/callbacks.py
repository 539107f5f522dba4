"""Callbacks: each completion has one, which is enqueued until it is acknowledged.

The commit that completes a batch enqueues the callback, and keeps its arguments in the batch's row.
The task is the library's own, in the callback's queue: it runs the callback, then takes that from
the row. So a queue that is purged loses no callback, because the sweep finds the row and enqueues
the task again. A task that is delivered after the acknowledgement does nothing.

A callback that fails for good is acknowledged by the commit that keeps it as a dead task, which can
be replayed.
"""

from __future__ import annotations

import datetime
import logging
from dataclasses import asdict
from functools import partial
from typing import Any

from google.api_core import exceptions as rpc_errors

from rollforward import outbox
from rollforward.batches.declaration import Completed, message_task
from rollforward.batches.entities import COMPLETED, RUNNING, BatchState, state_key
from rollforward.datastore.transactions import transact
from rollforward.datastore.versions import commit_if_current, read_versions
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.type_adapters import adapter_of
from rollforward.tasks import dead_tasks
from rollforward.tasks.declaration import Task

log = logging.getLogger(__name__)

# Longer than a delivery and its retries last, so that few callbacks that are slow get two tasks.
CALL_AGAIN_S = 3600.0
CALL_AT_LEAST_S = 24 * 3600.0


def path_of(name: str) -> str:
    """Return where the callbacks of a declaration's batches are delivered."""
    return f"/tasks/batches/{name}/completed"


def completed(state: BatchState) -> Completed:
    """Return the totals of a complete batch."""
    name, _, batch_id = state.key.id().partition(":")
    return Completed(
        name,
        batch_id,
        generation=state.generation,
        outcome=state.outcome or "",
        members=state.members,
        done=state.done,
        failed=state.failed,
        cancelled=state.cancelled,
    )


# Enqueue


def enqueue(clients: Clients, state: BatchState) -> None:
    """Enqueue the callback of a completion, in its transaction; the caller puts the row."""
    if state.callback_path:
        args = completed(state)
        state.unacked = {**state.unacked, str(args.generation): asdict(args)}
        state.due = state.completed + datetime.timedelta(seconds=_first_pause_s(state))
        _enqueue(clients, state, args)


def enqueue_again(clients: Clients, state: BatchState) -> bool:
    """Enqueue the callbacks again that are not acknowledged; return whether there are any.

    Those of a batch that is removed are left alone. The caller puts the row, in a transaction.
    """
    if state.state != RUNNING:
        state.due = _next_due(clients, state)
    if state.due is None:
        return False
    for args in state.unacked.values():
        _enqueue(clients, state, adapter_of(Completed).validate_python(args))
    return bool(state.unacked)


def _enqueue(clients: Clients, state: BatchState, args: Completed) -> None:
    task = message_task(path_of(args.name), state.callback_queue, Completed)
    outbox.enqueue(clients, task, args)


def _first_pause_s(state: BatchState) -> float:
    """Return how long the first task is left alone: less if the batch is removed before."""
    return min(CALL_AGAIN_S, float(state.keep_s) / 2)


def _next_due(clients: Clients, state: BatchState) -> datetime.datetime | None:
    """Return when the sweep looks again: after twice as long each time, as none may ever ack."""
    if state.state != COMPLETED or not state.unacked:
        return None
    now_utc = naive_utc(clients.clock.now())
    waited_s = (now_utc - state.completed).total_seconds()
    pause_s = min(max(waited_s, _first_pause_s(state)), CALL_AT_LEAST_S)
    return now_utc + datetime.timedelta(seconds=pause_s)


# Deliver


def task_of(name: str, callback: Task[Completed]) -> Task[Completed]:
    """Return the task that calls back for the batches of a declaration."""
    return Task(
        path_of(name),
        callback.queue,
        Completed,
        partial(call, callback),
        callback.max_attempts,
        on_give_up=partial(give_up, callback),
    )


def call(callback: Task[Completed], clients: Clients, args: Completed) -> None:
    """Run a callback that is not acknowledged, and acknowledge it.

    A batch whose row is gone has no acknowledgement: its callback runs, as any task does.
    """
    [row] = read_versions(clients.datastore, [_key(args)])
    if not _is_unacked(row and row[0], args):
        return
    callback.work(clients, args)
    if row is None:
        return
    state, version = row
    _acknowledge(state, args)
    try:
        commit_if_current(clients.datastore, puts=[(state, version)])
    except rpc_errors.GoogleAPICallError as error:  # Such as: the batch was run again meanwhile.
        log.info("an acknowledgement of %s needs a transaction: %s", _key(args).id(), error)
        transact(lambda: _acknowledge_in_transaction(args))


def give_up(callback: Task[Completed], clients: Clients, args: Completed, reason: str) -> None:
    """Keep a callback as a dead task, by the commit that acknowledges it; or tell who else cares.

    The dead task is the callback itself: replayed, it runs even after an acknowledgement.
    """
    dead_id = clients.new_id()

    def keep() -> None:
        if _acknowledge_in_transaction(args) and callback.on_give_up is None:
            dead_tasks.dead_letter_in_transaction(
                clients,
                dead_id=dead_id,
                path=callback.path,
                queue=callback.queue,
                body=callback.message(args).body,
                reason=reason,
            )

    if callback.on_give_up is not None and _is_unacked(_key(args).get(), args):
        callback.on_give_up(clients, args, reason)
    transact(keep)


def _acknowledge_in_transaction(args: Completed) -> bool:
    """Acknowledge a callback; return whether it was not acknowledged before."""
    state: BatchState | None = _key(args).get()
    if not _is_unacked(state, args):
        return False
    if state is not None:
        _acknowledge(state, args)
        state.put()
    return True


def _acknowledge(state: Any, args: Completed) -> None:
    state.unacked = {
        generation: completion
        for generation, completion in state.unacked.items()
        if generation != str(args.generation)
    }
    if state.state == COMPLETED and not state.unacked:
        state.due = None


def _is_unacked(state: Any, args: Completed) -> bool:
    return state is None or str(args.generation) in state.unacked


def _key(args: Completed) -> Any:
    return state_key(f"{args.name}:{args.batch_id}")
