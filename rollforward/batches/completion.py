"""Completion: members end, and with the last of them their batch.

An end is an item of one fork-join queue, by the key of its batch. The fold counts each member once:
in one transaction it changes the member's letter in its page, which only a member that is open has,
and the numbers of the batch. A repeated or late end, or the end of a cancelled member, finds no
open member and changes nothing.

The same commit decides whether the batch is complete, and then sends its callback and ends the
member that the batch is. Sealing and cancelling decide it likewise, on the same entity, so exactly
one of them all completes a generation of the batch.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic
from google.cloud import ndb

from rollforward import outbox
from rollforward.batches import callbacks, policy
from rollforward.batches.entities import (
    CANCELLED,
    COMPLETED,
    DONE,
    HAS_FAILED,
    RUNNING,
    SUCCEEDED,
    BatchPage,
    BatchResults,
    BatchState,
    batches_in,
    page_key,
    results_key,
    state_key,
)
from rollforward.batches.errors import UnknownBatchError
from rollforward.batches.running_cache import completes_batch, forget
from rollforward.datastore.transactions import current_transaction, transact
from rollforward.datastore.versions import read_versions
from rollforward.fork_join import Batch, fork_join
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.declaration import task

MAX_RESULT_BYTES = 1_000  # As JSON, of a result or an error: a fold's 500 are in one row.
MAX_ERROR_CHARS = 300
# An end waits so long for others. The last one of a batch does not, if memcached knows that it is.
PERIOD_S = 0.5
# The end of a member waits so long for others of its process, as long as they keep coming.
LINGER_S = 0.1
# A batch in which nothing ends for so long may have lost a task: no delivery lasts longer.
STALE_S = 1800.0
MAX_CANCELLED = 100


@dataclass(frozen=True)
class End:
    """The end of a member: done or failed."""

    page: Annotated[str, pydantic.Field(max_length=600)]
    position: int
    generation: int
    is_done: bool
    result: Any = None
    error: str = ""


def count_if_current(
    clients: Clients, batch: Batch, ends: Sequence[End]
) -> list[tuple[ndb.Model, int | None]] | None:
    """Return the rows that count ends, if no transaction is needed: all that the result depends on.

    Completing a batch needs one, because the outbox enqueues its callback.
    """
    names = list(dict.fromkeys(end.page for end in ends))
    versions = read_versions(clients.datastore, [state_key(batch.key), *map(page_key, names)])
    rows = [row for row in versions if row is not None]
    if len(rows) < len(versions):
        return None
    state: Any = rows[0][0]
    pages: dict[str, Any] = {name: row[0] for name, row in zip(names, rows[1:], strict=True)}
    if state.state != RUNNING:
        return None
    counted = _count_all(state, pages, ends)
    if len(counted) < len(pages) or policy.is_over(state):
        return None
    results = [row for name, ended in counted.items() for row in _results(pages[name], ended)]
    touch(clients, state)
    return [*rows, *((row, None) for row in results)]


@fork_join(
    "batches",
    queue="fork-join",
    period_s=PERIOD_S,
    linger_s=LINGER_S,
    are_last=completes_batch,
    guarded=count_if_current,
)
def end_members(clients: Clients, batch: Batch, ends: Sequence[End]) -> None:
    """Count the ends that a fold has gathered, in its transaction."""
    count_ends(clients, batch.key, ends)


def count_ends(clients: Clients, batch: str, ends: Sequence[End]) -> None:
    """Count members that have ended, each once; complete the batch with the last of them."""
    state, pages = _read(batch, ends)
    if state is None or state.state != RUNNING:
        return
    counted = _count_all(state, pages, ends)
    if not counted:
        return
    for name, ended in counted.items():
        for results in _results(pages[name], ended):
            results.put()
        pages[name].put()
    complete_if_done(clients, state)
    touch(clients, state)
    state.put()


def count(state: BatchState, page: BatchPage, end: End) -> bool:
    """Count the end of a member; return whether it was open."""
    if end.generation <= state.cancelled_through or not page.is_open(end.position, end.generation):
        return False
    if end.is_done:
        page.end(end.position, DONE, state.generation)
        state.done += 1
    else:
        page.end(end.position, HAS_FAILED, state.generation)
        state.failed += 1
    return True


def complete_if_done(
    clients: Clients, state: BatchState, *, is_cancelled: bool = False, error: str = ""
) -> None:
    """Complete a batch if it is over, or cancelled; its caller puts the row, in a transaction.

    Args:
        why: The error of its member in another batch; empty: its numbers.
    """
    if state.state != RUNNING or not (is_cancelled or policy.is_over(state)):
        return
    now_utc = naive_utc(clients.clock.now())
    state.outcome = CANCELLED if is_cancelled else policy.outcome_of(state)
    if state.waiting:
        state.cancelled = state.waiting
        state.cancelled_through = state.generation
    # A member that has failed may have nested since: two of its deliveries overlapped.
    if state.cancelled or state.failed:
        outbox.enqueue(clients, cancel_nested, CancelNested(state.key.id(), state.generation))
    state.state, state.sealed, state.completed = COMPLETED, True, now_utc
    state.due, state.remove_at = None, now_utc + datetime.timedelta(seconds=state.keep_s)
    callbacks.enqueue(clients, state)
    if state.parent:
        end_parent(clients, state, error)


def touch(clients: Clients, state: BatchState, after_s: float = STALE_S) -> None:
    """Schedule the sweep of a running batch, in case nothing else happens."""
    if state.state == RUNNING:
        state.due = naive_utc(clients.clock.now()) + datetime.timedelta(seconds=after_s)
        state.remove_at = None


def end_parent(clients: Clients, state: BatchState, reason: str = "") -> None:
    """End the member that a batch is, in the transaction that completes it."""
    numbers = callbacks.completed(state)
    has_succeeded = state.outcome == SUCCEEDED
    error = f"of {numbers.members} members {numbers.failed} failed, {numbers.cancelled} cancelled"
    counts = {"done": numbers.done, "failed": numbers.failed, "cancelled": numbers.cancelled}
    end = End(
        state.parent_page,
        state.parent_position,
        state.parent_generation,
        is_done=has_succeeded,
        result={"batch": state.key.id(), **counts} if has_succeeded else None,
        error="" if has_succeeded else reason or f"{state.outcome}: {error} ({state.key.id()})",
    )
    end_members.insert_in_transaction(clients, state.parent, end)


# Cancel


@dataclass(frozen=True)
class CancelNested:
    """Arguments: the parent, its generation, and the nested batch to continue after."""

    batch: str
    generation: int
    after: str = ""


def cancel(clients: Clients, batch: str) -> bool:
    """Complete a batch now: what has not ended is cancelled; return whether it was running.

    Raises:
        UnknownBatchError: the batch does not exist.
    """

    def body() -> bool:
        state = state_of(batch)
        call_id = current_transaction().id
        if state.state != RUNNING:
            return bool(state.changed_by == call_id)  # Then its reply was lost.
        state.changed_by = call_id
        complete_if_done(clients, state, is_cancelled=True)
        state.put()
        return True

    was_running = transact(body)
    forget(clients, batch)
    return was_running


@task("/tasks/batches/cancel-nested", queue="default")
def cancel_nested(clients: Clients, args: CancelNested) -> None:
    """Cancel the batches that are members of a batch which is over."""
    query = batches_in(args.batch)
    if args.after:
        query = query.filter(BatchState._key > state_key(args.after))
    children = query.fetch(MAX_CANCELLED)
    if len(children) == MAX_CANCELLED:
        following = replace(args, after=children[-1].key.id())
        # Each attempt enqueues it: by one name, there is one walk.
        name = ("cancel nested", following.batch, following.generation, following.after)
        cancel_nested.enqueue(clients, following, name=name)
    for child in children:
        if child.state == RUNNING:
            cancel_child(clients, child.key.id(), args.generation)


def cancel_child(clients: Clients, batch: str, generation: int, error: str = "") -> None:
    """Cancel a nested batch that runs, unless it does so for a later generation of its parent."""

    def body() -> None:
        state = state_key(batch).get()
        if state is None or state.state != RUNNING:
            return
        if state.parent_generation <= generation:
            complete_if_done(clients, state, is_cancelled=True, error=error)
            state.put()

    transact(body)


def state_of(batch: str) -> BatchState:
    """Return a batch.

    Raises:
        UnknownBatchError: there is none.
    """
    state: BatchState | None = state_key(batch).get()
    if state is None or state.state not in (RUNNING, COMPLETED):
        raise UnknownBatchError(f"there is no batch {batch}, or no more")
    return state


def _read(batch: str, ends: Sequence[End]) -> tuple[BatchState | None, dict[str, BatchPage]]:
    """Return a batch and the pages of some ends, by one read."""
    names = list(dict.fromkeys(end.page for end in ends))
    state, *pages = ndb.get_multi([state_key(batch), *map(page_key, names)])
    return state, {name: page for name, page in zip(names, pages, strict=True) if page is not None}


def _count_all(
    state: BatchState, pages: Mapping[str, BatchPage], ends: Sequence[End]
) -> dict[str, list[End]]:
    """Count members that have ended; return the ends of open members, by page."""
    counted: dict[str, list[End]] = defaultdict(list)
    for end in ends:
        page = pages.get(end.page)
        if page is not None and count(state, page, end):
            counted[end.page].append(end)
    return counted


def _results(page: BatchPage, ends: Sequence[End]) -> list[BatchResults]:
    """Return the row of what members returned, or why they failed; none if they said nothing."""
    outcomes = [
        [end.position, end.generation, end.is_done, end.result if end.is_done else end.error]
        for end in ends
        if end.error or end.result is not None
    ]
    if not outcomes:
        return []
    page.results += 1
    return [BatchResults(key=results_key(page.key.id(), page.results - 1), results=outcomes)]
