"""The sweep of lanes: keys whose tasks should have begun get a hint.

It goes from key to key, by one query for the first task of each: the number of tasks in a key is no
matter. A sweep looks at a bounded number of keys, and the next one continues there.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from google.cloud import ndb

from rollforward.datastore.expiry import delete_due
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import (
    LaneState,
    LaneTask,
    expired_states,
    first_behind,
    lane_id_of,
    state_key,
)
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc

if TYPE_CHECKING:
    from rollforward.lanes.declaration import Lane

MAX_KEYS = 300
MAX_DELETED = 500
# A task that should have begun so long ago has lost its hint, or waits for its turn.
STALE_S = 30.0
_POSITION_S = 24 * 3600
# No two clocks are so far apart.
DEAD_FOR = datetime.timedelta(days=6)


def wake_stale(clients: Clients, lanes: Sequence[Lane], *, stale_s: float | None = None) -> int:
    """Create hints for keys whose first task should have begun; return their number."""
    stale = datetime.timedelta(seconds=STALE_S if stale_s is None else stale_s)
    end = clients.clock.now() - stale
    return sum(_wake(clients, lane, end) for lane in lanes)


def _wake(clients: Clients, lane: Lane, end: datetime.datetime) -> int:
    position_key = f"lanes:sweep:{lane.name}"
    position = (clients.cache.get(position_key) or b"").decode(errors="replace")
    position = position if position.startswith(f"{lane.name}|") else ""
    firsts: list[LaneTask] = []
    while len(firsts) < MAX_KEYS:
        task = first_behind(lane.name, position).get()
        if task is None:
            position = ""
            break
        firsts.append(task)
        position = lane_id_of(task.key.id())
    # A position that memcached has lost means to begin anew.
    clients.cache.set(position_key, position.encode(), _POSITION_S)
    due = [task for task in firsts if lane.due_at(task, None) <= end]
    states = ndb.get_multi([state_key(lane_id_of(task.key.id())) for task in due])
    hints = [
        LaneArgs(lane_id_of(task.key.id()), is_check=state is not None and bool(state.claimed))
        for task, state in zip(due, states, strict=True)
        if state is None
        or not (state.rests or _is_served(clients, state, task) or lane.due_at(task, state) > end)
    ]
    lane.task.enqueue_many(clients, hints)
    return len(hints)


def _is_served(clients: Clients, state: LaneState, first: LaneTask) -> bool:
    """Return whether the delivery of a key's first task has claimed it a moment ago, by the clocks.

    A key whose first task is free is served if any delivery runs tasks of it.
    """
    now_s = clients.clock.now().timestamp()
    own = [claim for claim in state.claims if first.key.id() in claim.tasks]
    return any(abs(now_s - claim.began) < STALE_S for claim in own or state.claims)


def remove_expired(clients: Clients) -> int:
    """Delete the states of keys that have had nothing to do for a day; return how many went."""
    now_utc = naive_utc(clients.clock.now())

    def is_due(state: LaneState) -> bool:
        # A delivery that lives has moved it on by a day, seconds ago.
        latest = now_utc - DEAD_FOR if state.claims else now_utc
        return state.expires is not None and state.expires <= latest

    keys = expired_states(now_utc).fetch(MAX_DELETED, keys_only=True)
    return delete_due(keys, is_due)
