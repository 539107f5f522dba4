"""Turns: the deliveries of a flow that was started in a lane.

Each delivery of such a flow is a task of its key there, so the lane's limit, rate and share hold
for it. The first one is a row of the commit that starts the flow, so flows begin in the order of
their commits. Later ones are added by the flow's wake, which is a task of Cloud Tasks. So a flow
that sleeps, or waits for an event, has nothing in the lane, and holds up nobody.

The flow's row says that a turn waits, so another wake adds no second one. The first write of the
turn's delivery ends that. Each of its writes is a compare-and-set: what came after the turn was
added makes it fail, and is seen.

Lost on failure: nothing. A turn is a committed row. One that was drained is noticed by the sweep's
wake, within an hour.
"""

from __future__ import annotations

import datetime
from typing import Any

from rollforward.datastore.transactions import transact
from rollforward.flows.errors import NotDueError
from rollforward.flows.rows.entities import RUNNING, UNDOING, FlowRun
from rollforward.flows.wakes import GRACE, FlowArgs, args_of
from rollforward.lanes.declaration import LaneKey, key_with_id
from rollforward.lanes.rows.entities import time_of, waiting
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import OtherVersionError

# After its turn was added, a flow waits so long for the sweep: a lane has a sweep of its own.
TURN_GRACE = datetime.timedelta(hours=1)
# The place of a turn in its lane is that of a time, shortly after the one in the flow's row.
MARGIN = datetime.timedelta(minutes=2)
# A wake that comes earlier than that, by the row's time, came for nothing.
EARLY = datetime.timedelta(minutes=1)


def has_turns_elsewhere(row: FlowRun, args: FlowArgs) -> bool:
    """Return whether a delivery is a wake, and no turn in the flow's lane."""
    return bool(row.lane) and args.lane != row.lane


def add_turn(clients: Clients, task: Task[FlowArgs], row: FlowRun, lane: LaneKey) -> None:
    """Let a flow wait for its turn, by the transaction that writes its row."""
    now_utc = naive_utc(clients.clock.now())
    row.lane, row.turn, row.due = lane.id, now_utc, now_utc + TURN_GRACE
    lane.add_in_transaction(clients, task.message(args_of(row, lane.id)))


def take_turn(clients: Clients, task: Task[FlowArgs], seen: FlowRun) -> None:
    """Let a flow that was woken wait for its turn, unless it does so already.

    Args:
        seen: The flow as it was read.

    Raises:
        OtherVersionError: this version of the app does not declare the lane.
        NotDueError: it is woken for a time that comes within a minute.
    """
    lane = key_with_id(clients, seen.lane)
    if lane is None:
        raise OtherVersionError(f"{seen.key.id()}: no lane is declared for {seen.lane}")
    if _is_skipped(clients, seen, lane):
        return
    _check_due(clients, seen)

    def body() -> None:
        row: Any = seen.key.get()
        is_same = row is not None and (row.started_by, row.turn) == (seen.started_by, seen.turn)
        if is_same and row.state in (RUNNING, UNDOING):
            row.other_version = row.other_version_since = None  # This one has the lane.
            add_turn(clients, task, row, lane)
            row.put()

    transact(body)


def _is_skipped(clients: Clients, row: FlowRun, lane: LaneKey) -> bool:
    """Return whether a flow waits for its turn already, or for something that has not come."""
    if row.turn is not None:
        first = waiting(lane.id).get(keys_only=True)
        latest = row.turn + MARGIN
        return first is not None and naive_utc(time_of(first.id())) <= latest
    if row.sweeps:
        return False
    return row.due is None or row.due - naive_utc(clients.clock.now()) > GRACE + EARLY


def _check_due(clients: Clients, row: FlowRun) -> None:
    """Check that a time has come for which a flow was woken.

    If this clock is behind, its turn would end by another wake, which comes at once.
    """
    if row.turn is None and not row.sweeps and row.due is not None:
        early_s = (row.due - GRACE - naive_utc(clients.clock.now())).total_seconds()
        if early_s > 0:
            raise NotDueError(f"{row.key.id()} waits", after_s=early_s)
