"""Keys paused, resumed and drained, and dead tasks that go back into their key.

A paused key begins no task. A delivery that has claimed tasks of it runs them to the end of its
turn: half a second, or the task at work. A resume clears the pause and the block.

Each change starts from the key's present state, so a repeated one changes nothing more. It is a
commit by versions, so nobody waits for an operator who is at it, or has died over it. If the
deliveries of a busy key win each race, the last attempts are transactions that lock.

Lost on failure: nothing. After a lost reply the caller repeats the call. A hint that was lost is
made good by the sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.transactions import is_in_transaction, transact
from rollforward.lanes import adding, hints
from rollforward.lanes.gathered.window import Window, place_in_key
from rollforward.lanes.rows.entities import LaneState, id_at, place_in, state_key, waiting
from rollforward.lanes.runs.claims import put_state
from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import Message
from rollforward.runtime.sharing.optimistic_transaction import transact_by_version
from rollforward.tasks.stored import arguments, cancellation

if TYPE_CHECKING:
    from rollforward.lanes.declaration import Lane

T = TypeVar("T")

# Of one drain, and of one of its commits.
MAX_DRAINED = 10_000
MAX_PER_COMMIT = 100
DRAIN_S = 20.0


@dataclass(frozen=True)
class Drained:
    """A drain's result.

    Attributes:
        deleted: How many tasks were deleted.
        at_work: How many were left, since deliveries have claimed them.
        has_more: Whether more tasks wait: drain the key again.
    """

    deleted: int
    at_work: int
    has_more: bool


def _change(clients: Clients, body: Callable[[], T]) -> T:
    """Run a change of a key: by versions, and if all its attempts lose their race, by a lock."""
    if not is_in_transaction():
        with contextlib.suppress(rpc_errors.Aborted):
            return transact_by_version(clients, body)
    return transact(body)  # It refuses to be nested.


def pause(clients: Clients, lane_id: str) -> None:
    """Let no further task of a key begin."""

    def body() -> None:
        state: LaneState | None = state_key(lane_id).get()
        if state is None or not state.is_paused:
            state = state or LaneState(key=state_key(lane_id))
            state.is_paused = True
            put_state(clients, state)

    _change(clients, body)


def resume(clients: Clients, lane: Lane, lane_id: str) -> None:
    """Clear the pause of a key, and its block by a dead task; create a hint."""

    def body() -> None:
        state: LaneState | None = state_key(lane_id).get()
        if state is not None and state.rests:
            state.is_paused, state.blocked_by = False, None
            put_state(clients, state)

    _change(clients, body)
    hints.hint(clients, lane.task, lane_id)


def drain(
    clients: Clients,
    lane_id: str,
    *,
    limit: int = MAX_DRAINED,
    elapsed_s: Callable[[], float] = time.monotonic,
) -> Drained:
    """Delete the tasks of a key that wait, and none that a delivery has claimed.

    Args:
        limit: How many at most; after 20 seconds no further ones.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: some may be deleted.
    """
    deleted, began_s = 0, elapsed_s()
    while True:
        count, stamp = min(MAX_PER_COMMIT, limit - deleted), clients.new_id()
        seen: LaneState | None = state_key(lane_id).get()
        claimed = len(seen.ids_at_work) if seen is not None else 0
        keys = waiting(lane_id).fetch(count + claimed + 1, keys_only=True)
        gone, at_work = _change(
            clients,
            lambda: _drain(clients, lane_id, keys, count, stamp),  # noqa: B023
        )
        deleted += gone
        has_more = len(keys) > gone + at_work
        if not has_more or deleted >= limit or elapsed_s() - began_s > DRAIN_S:
            return Drained(deleted, at_work, has_more)


def _drain(
    clients: Clients, lane_id: str, keys: list[ndb.Key], count: int, stamp: str
) -> tuple[int, int]:
    """Delete up to a number of tasks in a transaction; return how many, and those at work.

    The new stamp refuses deliveries that have read the tasks and not claimed them.
    """
    state: LaneState | None = state_key(lane_id).get()
    claimed = state.ids_at_work if state is not None else frozenset()
    at_work = sum(key.id() in claimed for key in keys)
    if state is not None and state.stamp == stamp:  # The commit's reply was lost.
        return int(state.drained), at_work
    rows = ndb.get_multi([key for key in keys if key.id() not in claimed][:count])
    rows = [row for row in rows if row is not None]
    if not rows:
        return 0, at_work
    for row in rows:
        body = row.body.encode()
        arguments.release(clients, body)
        handle = arguments.envelope_of(body).handle
        cancellation.expire_row(clients, handle)
        cancellation.abandon(clients, handle)
    ndb.delete_multi([row.key for row in rows])
    state = state or LaneState(key=state_key(lane_id))
    removed = {row.key.id() for row in rows}
    if state.head in removed:
        state.head = None
    # Calls that come later are not to be dropped for a run that will never be.
    Window.of(state).without({place_in_key(task_id) for task_id in removed}).store(state)
    state.drained = len(rows)
    put_state(clients, state, stamp)
    return len(rows), at_work


# Dead tasks


def take_back(
    clients: Clients, lane: Lane, lane_id: str, message: Message, *, dead_id: str, lane_task: str
) -> None:
    """Let the task of a dead task wait again, in the caller's transaction.

    The task that blocks its key runs first and unblocks it. Another one waits behind all others.

    Args:
        lane_task: The id that it had in the lane.
    """
    state: LaneState | None = state_key(lane_id).get()
    if state is None or state.blocked_by != dead_id:
        adding.add_in_transaction(clients, lane.task, lane_id, message, is_ordered=lane.order)
        return
    unique = hashlib.sha256(lane_task.encode()).hexdigest()[:12]
    state.blocked_by, state.head = None, id_at(lane_id, place_in(lane_task), unique)
    put_state(clients, state)
    adding.put_first_in_transaction(clients, lane.task, state.head, message)


def unblock(clients: Clients, lane: Lane, lane_id: str, *, dead_id: str) -> None:
    """Unblock a key whose dead task is deleted, in the caller's transaction."""
    state: LaneState | None = state_key(lane_id).get()
    if state is None or state.blocked_by != dead_id:
        return
    state.blocked_by = None
    put_state(clients, state)
    adding.wake_after_transaction(clients, lane.task, lane_id)
