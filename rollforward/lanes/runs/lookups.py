"""Lookups of tasks: the ones of a key that may begin, in their order."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from google.cloud import ndb

from rollforward.lanes.rows.entities import LaneState, LaneTask, place_of, task_key, waiting
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S, aware_utc

if TYPE_CHECKING:
    from rollforward.lanes.declaration import Lane

# Of a key's tasks that one delivery claims, and that all deliveries together have claimed.
MAX_TASKS = 100
MAX_CLAIMED = 500
# How long a delivery begins further tasks, in a lane of weight 1.
SLICE_S = 0.5
_LOOK = 5


def size_of(lane: Lane, state: LaneState | None) -> int:
    """Return how many tasks a delivery claims: as many as it can begin in its time, about."""
    if state is None or not state.pace_ms:
        return MAX_TASKS if lane.limit == 1 else 1
    # All claims of a key are in one row.
    most = max(1, min(MAX_TASKS, MAX_CLAIMED // lane.limit))
    return max(1, min(most, int(1000 * SLICE_S * lane.weight / state.pace_ms)))


def next_tasks(
    clients: Clients,
    lane: Lane,
    lane_id: str,
    head: str | None,
    claimed_ids: Collection[str],
    limit: int,
) -> list[LaneTask]:
    """Return the next tasks of a key that no delivery has claimed.

    Args:
        head: In an order, the task that has begun and not ended, which is the first one.
    """
    if not lane.order:
        # A task that another machine's clock has placed ahead does not wait for that.
        until = place_of(clients.clock.now() + datetime.timedelta(seconds=CLOCK_SKEW_S))
        tasks = _unclaimed(lane_id, until, claimed_ids, limit)
        if tasks or claimed_ids:
            return tasks
        # A clock that is wrong by more: only `not_before` lets a task wait.
        return [task for task in waiting(lane_id).fetch(1) if task.not_before is None]
    tasks = _unclaimed(lane_id, None, claimed_ids, limit)
    first: LaneTask | None = task_key(head).get() if head and head not in claimed_ids else None
    return tasks if first is None else [first, *(task for task in tasks if task.key != first.key)]


def _unclaimed(
    lane_id: str, until: int | None, claimed_ids: Collection[str], limit: int
) -> list[LaneTask]:
    """Return tasks of a key; it reads only the keys of claimed ones."""
    query = waiting(lane_id, until)
    if not claimed_ids:
        return list(query.fetch(limit))
    keys = query.fetch(len(claimed_ids) + limit, keys_only=True)
    free = [key for key in keys if key.id() not in claimed_ids][:limit]
    return [task for task in ndb.get_multi(free) if task is not None]


def waits_until(task: LaneTask, now_utc: datetime.datetime) -> datetime.datetime | None:
    """Return until when a task waits, aware; None: it may begin."""
    until = aware_utc(task.not_before)
    return until if until is not None and until > now_utc else None


def has_due_task(clients: Clients, lane: Lane, lane_id: str, claimed_ids: frozenset[str]) -> bool:
    """Return whether a task waits that no other delivery has claimed, and that may begin now.

    In an order, one that waits for its time counts, too: who takes it finds out until when.
    """
    now_utc = clients.clock.now()
    tasks: Sequence[LaneTask] = next_tasks(clients, lane, lane_id, None, claimed_ids, _LOOK)
    return any(lane.order or waits_until(task, now_utc) is None for task in tasks)
