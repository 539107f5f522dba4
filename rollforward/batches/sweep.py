"""The sweep of batches: it wakes those in which nothing moves, and deletes the expired ones.

Each batch says when it is to be woken in one property, and when it is to be removed in another, so
neither hides the other. A running one in which nothing has ended for half an hour may
have lost tasks, by a queue that was purged: all that is open gets its tasks again, again an hour
later, and then ever more rarely, at least once a day. Long work is then delivered twice, as any
task may be. One that is nested in a batch which is over is cancelled instead: the task that was to
do so got lost.

A complete batch is woken while its callback is not acknowledged: the callback is enqueued again an
hour after the completion, and then ever more rarely, at least once a day, until the batch is
removed.

A batch that was complete for its time is first marked as removed, so that nothing can re-open it,
then its rows are deleted by a task. If many are due at a time, tasks mark them, a hundred each. The
mark stays for 32 days, longer than a task can wait, and as long as there are rows. One that is
nested stays until its parent is removed, which may be run again until then. And a parent's mark
stays as long as a batch that is nested in it: a new batch of the parent's id would take that for
its own.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pydantic
from google.cloud import ndb

from rollforward import outbox
from rollforward.batches import callbacks
from rollforward.batches.adding.creation import Create, create
from rollforward.batches.adding.populate import is_needed
from rollforward.batches.completion import complete_if_done, touch
from rollforward.batches.entities import (
    COMPLETED,
    REMOVED,
    RUNNING,
    BatchState,
    batches_in,
    due_batches,
    pages_within,
    removable_batches,
    results_within,
    running_batches,
    state_key,
    work_within,
)
from rollforward.datastore.batched import batched
from rollforward.datastore.transactions import transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.idempotency import digest_of
from rollforward.runtime.run_all import run_all
from rollforward.tasks.declaration import task

# By one sweep.
MAX_WOKEN = 100
MAX_REMOVED = 5_000
REMOVED_PER_TASK = 100  # Each by its own transaction, which takes seconds together.
MAX_COUNTED = 1_000
MAX_DELETED = 500  # By one call.
CALLS_PER_TASK = 20
WAKE_AGAIN_S = 3600.0
WAKE_AT_LEAST_S = 24 * 3600.0
REMOVED_FOR = datetime.timedelta(days=32)
# What cannot go yet is looked at again after that time, and then once more.
LOOKED_AT_AGAIN = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Remove:
    """The batch whose rows to delete."""

    batch: Annotated[str, pydantic.Field(max_length=300)]


def wake(clients: Clients) -> int:
    """Wake the batches in which nothing has moved; return how many.

    Raises:
        Exception: what the first one to fail raised, when all were tried.
    """
    due = due_batches(naive_utc(clients.clock.now())).fetch(MAX_WOKEN, keys_only=True)
    return _act(clients, [(_wake, key.id()) for key in due])


@dataclass(frozen=True)
class RemoveDue:
    """Batches whose time has come."""

    batches: list[Annotated[str, pydantic.Field(max_length=300)]]


def remove(clients: Clients) -> int:
    """Begin to remove the batches whose time has come, or enqueue tasks that do; return how many.

    While the tasks wait, the next sweeps find the same batches, and tasks of these names.
    """
    now_utc = naive_utc(clients.clock.now())
    due = [key.id() for key in removable_batches(now_utc).fetch(MAX_REMOVED, keys_only=True)]
    if len(due) <= REMOVED_PER_TASK:
        return _remove(clients, due)
    parts = [RemoveDue(list(part)) for part in batched(due, REMOVED_PER_TASK)]
    hour = f"{now_utc:%Y%m%dT%H}"  # A task may be lost, by a queue that is purged.
    names = [(hour, digest_of("|".join(part.batches))) for part in parts]
    remove_due.enqueue_many(clients, parts, names=names)
    return len(due)


@task("/tasks/batches/remove-due", queue="default")
def remove_due(clients: Clients, args: RemoveDue) -> None:
    """Begin to remove some batches."""
    _remove(clients, args.batches)


def _remove(clients: Clients, batches: Sequence[str]) -> int:
    acts = {COMPLETED: _mark, REMOVED: _forget}
    states = ndb.get_multi([state_key(batch) for batch in batches])
    due = [state for state in states if state is not None and state.state in acts]
    return _act(clients, [(acts[state.state], state.key.id()) for state in due])


def count_running() -> int:
    """Return how many batches are not complete, counting up to 1,000."""
    return len(running_batches().fetch(MAX_COUNTED, keys_only=True))


def _act(clients: Clients, acts: Iterable[tuple[Callable[[Clients, str], bool], str]]) -> int:
    """Act on batches, each on its own; return on how many."""
    results = run_all(
        (f"the sweep of batch {batch} failed", partial(act, clients, batch)) for act, batch in acts
    )
    results.raise_first()
    return sum(results.returned)


def _wake(clients: Clients, batch: str) -> bool:
    def body() -> bool:
        state = state_key(batch).get()
        if state is None or not _is_past(clients, state.due):
            return False
        if state.state == RUNNING and not is_needed(state):
            complete_if_done(clients, state, is_cancelled=True)
            state.put()
            return True
        has_members = _wake_members(clients, state)
        has_callbacks = callbacks.enqueue_again(clients, state)
        state.put()
        return has_members or has_callbacks

    return transact(body)


def _wake_members(clients: Clients, state: BatchState) -> bool:
    """Create the tasks of open members again; return whether there are any."""
    if state.state != RUNNING:
        return False
    if state.waiting:
        state.wakes += 1
        creation = Create(state.key.id(), state.key.id(), state.generation, wake=state.wakes)
        outbox.enqueue(clients, create, creation)
    touch(clients, state, _pause_s(state.wakes))
    return bool(state.waiting)


def _pause_s(wakes: int) -> float:
    """Return how long a batch is left alone: longer each time, as none may ever end."""
    return min(WAKE_AGAIN_S * 2.0 ** min(max(wakes, 1) - 1, 10), WAKE_AT_LEAST_S)


def _mark(clients: Clients, batch: str) -> bool:
    def body() -> bool:
        state = _removable(clients, batch, COMPLETED)
        if state is None:
            return False
        parent: BatchState | None = state_key(state.parent).get() if state.parent else None
        if parent is not None and _can_run_again(clients, parent):
            looked_at_again = naive_utc(clients.clock.now()) + LOOKED_AT_AGAIN
            state.remove_at = parent.remove_at or looked_at_again
            state.put()
            return False
        state.state, state.due = REMOVED, None
        state.remove_at = naive_utc(clients.clock.now()) + REMOVED_FOR
        outbox.enqueue(clients, remove_rows, Remove(batch))
        state.put()
        return True

    return transact(body)


def _can_run_again(clients: Clients, parent: BatchState) -> bool:
    """Return whether a batch may be run again, with those that are nested in it."""
    return parent.state != REMOVED and not _is_past(clients, parent.remove_at)


def _forget(clients: Clients, batch: str) -> bool:
    has_rows = bool(_rows_of(batch, 1))
    is_parent = batches_in(batch).get(keys_only=True) is not None

    def body() -> bool:
        state = _removable(clients, batch, REMOVED)
        if state is None:
            return False
        if has_rows:  # The task that deletes them got lost, by a queue that was purged.
            outbox.enqueue(clients, remove_rows, Remove(batch))
        if has_rows or is_parent:
            state.remove_at = naive_utc(clients.clock.now()) + LOOKED_AT_AGAIN
            state.put()
        else:
            state.key.delete()
        return True

    return transact(body)


def _removable(clients: Clients, batch: str, expected: str) -> BatchState | None:
    state: BatchState | None = state_key(batch).get()
    if state is None or state.state != expected:
        return None
    return state if _is_past(clients, state.remove_at) else None


def _is_past(clients: Clients, when: datetime.datetime | None) -> bool:
    return when is not None and when <= naive_utc(clients.clock.now())


@task("/tasks/batches/remove", queue="default")
def remove_rows(clients: Clients, args: Remove) -> None:
    """Delete all rows of a batch that is marked as removed, but the mark."""
    state: BatchState | None = state_key(args.batch).get()
    if state is None or state.state != REMOVED:
        return
    for _ in range(CALLS_PER_TASK):
        keys = _rows_of(args.batch, MAX_DELETED // 3)
        if not keys:
            return
        ndb.delete_multi(keys)
    remove_rows.enqueue(clients, args)


def _rows_of(batch: str, limit: int) -> list[Any]:
    """Return the keys of some rows of a batch, up to a limit of each kind."""
    return [
        key
        for query in (pages_within, work_within, results_within)
        for key in query(batch).fetch(limit, keys_only=True)
    ]
