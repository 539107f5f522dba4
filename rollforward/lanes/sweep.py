"""The sweep of lanes: keys whose tasks should have begun get a hint.

It goes from key to key by queries for ids alone: the number of tasks in a key is no matter. A sweep
looks at a bounded number of keys, and the next one continues there.

A note in memcached says when a key was swept, and which claims it had. So a queue that is slow does
not fill up with hints, and a claim is watched only if it has not beaten since the last sweep.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from google.cloud import ndb

from rollforward.datastore.expiry import delete_due
from rollforward.lanes.hints import LaneArgs, scope_of
from rollforward.lanes.reading import note_oldest
from rollforward.lanes.rows.entities import (
    LaneState,
    LaneTask,
    expired_states,
    first_after,
    lane_id_of,
    state_key,
    task_key,
    time_of,
)
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S, naive_utc
from rollforward.runtime.run_all import run_all

if TYPE_CHECKING:
    from rollforward.lanes.declaration import Lane

# Of a lane, in one sweep: queries, and the ids that each returns.
MAX_QUERIES, PER_QUERY = 40, 100
MAX_DELETED = 500
# A task that should have begun so long ago has lost its hint, or waits for its turn.
STALE_S = 30.0
# A key that was swept has so long for its hint: the next sweep leaves it out.
SWEPT_FOR_S = 90.0
# Tasks whose time is far ahead by a wrong clock are looked for in one sweep of so many.
LOOKS_AHEAD_EACH = 10
_NOTED_S = 24 * 3600
# No two clocks are so far apart.
DEAD_FOR = datetime.timedelta(days=6)


def wake_stale(clients: Clients, lanes: Sequence[Lane], *, stale_s: float | None = None) -> int:
    """Create hints for keys whose first task should have begun; return their number."""
    stale = datetime.timedelta(seconds=STALE_S if stale_s is None else stale_s)
    end = clients.clock.now() - stale
    results = run_all(
        (f"the lane {lane.name} was not swept", partial(_wake, clients, lane, end))
        for lane in lanes
    )
    results.raise_first()
    return sum(results.returned)


def _wake(clients: Clients, lane: Lane, end: datetime.datetime) -> int:
    task_ids, position = _first_tasks(clients, lane)
    tasks = [task for task in _rows(clients, task_ids) if _is_due(clients, lane, task, end)]
    states = ndb.get_multi([state_key(lane_id_of(task.key.id())) for task in tasks])
    hints = []
    for task, state in zip(tasks, states, strict=True):
        if state is None or not _is_served(clients, lane, state, task, end):
            hints += _hints(clients, lane_id_of(task.key.id()), state)
    pairs = zip(tasks, states, strict=True)
    working = [task.key.id() for task, state in pairs if state is None or not state.rests]
    if working:
        note_oldest(clients, lane.name, min(working, key=time_of))
    lane.task.enqueue_many(clients, hints)
    # Not before: a sweep that fails is to look at the same keys again.
    clients.cache.set(_position(clients, lane), position.encode(), _NOTED_S)
    return len(hints)


def _first_tasks(clients: Clients, lane: Lane) -> tuple[list[str], str]:
    """Return the ids of the first tasks of keys, and the key behind which the next sweep begins.

    If memcached has lost the place, a sweep begins anywhere: no key is always too far away.
    """
    stored = clients.cache.get(_position(clients, lane))
    if stored is None:
        anywhere = f"{lane.name}|{clients.random.choice('0123456789abcdefghijklmnopqrstuvwxyz')}"
        position, has_wrapped = anywhere, False
    else:
        text = stored.decode(errors="replace")
        position = text if text.startswith(f"{lane.name}|") else ""
        has_wrapped = True
    firsts: dict[str, str] = {}
    for _ in range(MAX_QUERIES):
        keys: list[Any] = first_after(lane.name, position).fetch(PER_QUERY, keys_only=True)
        for key in keys:
            firsts.setdefault(lane_id_of(key.id()), key.id())
        if len(keys) == PER_QUERY:
            position = lane_id_of(keys[-1].id())
        elif has_wrapped:
            return list(firsts.values()), ""
        else:
            position, has_wrapped = "", True
    return list(firsts.values()), position


def _rows(clients: Clients, task_ids: Sequence[str]) -> list[LaneTask]:
    """Return the tasks that may be due; tasks of a time ahead in some of the sweeps only."""
    now_utc = clients.clock.now()
    if now_utc.minute % LOOKS_AHEAD_EACH:
        task_ids = [task_id for task_id in task_ids if time_of(task_id) <= now_utc]
    rows = ndb.get_multi([task_key(task_id) for task_id in task_ids])
    return [row for row in rows if row is not None]


def _is_due(clients: Clients, lane: Lane, task: LaneTask, end: datetime.datetime) -> bool:
    if lane.due_at(task, None) <= end:
        return True
    # Only `not_before` says that a task is for later. This place is by a clock that was ahead.
    ahead = clients.clock.now() + datetime.timedelta(seconds=CLOCK_SKEW_S)
    return task.not_before is None and time_of(task.key.id()) > ahead


def _is_served(
    clients: Clients, lane: Lane, state: LaneState, task: LaneTask, end: datetime.datetime
) -> bool:
    """Return whether a key needs no hint: it rests, waits for its time, or has just been claimed.

    A key whose first task is free is served if any delivery runs tasks of it.
    """
    if state.rests or (lane.due_at(task, state) > end and not state.claims):
        return True
    now_s = clients.clock.now().timestamp()
    its_claims = [claim for claim in state.claims if task.key.id() in claim.tasks]
    return any(abs(now_s - claim.began) < STALE_S for claim in its_claims or state.claims)


def _hints(clients: Clients, lane_id: str, state: LaneState | None) -> list[LaneArgs]:
    """Return the hint of a key, unless it has had one a moment ago; note that."""
    signs = sorted(f"{claim.owner} {claim.beats}" for claim in state.claims) if state else []
    now_s, note_key = clients.clock.now().timestamp(), f"{scope_of(clients)}:swept:{lane_id}"
    note = _parse_note(clients.cache.get(note_key))
    if note is not None and 0 <= now_s - note[0] < SWEPT_FOR_S:
        return []
    clients.cache.set(note_key, json.dumps([now_s, signs]).encode(), _NOTED_S)
    is_silent = note is None or not set(signs).isdisjoint(note[1])
    return [LaneArgs(lane_id, is_check=bool(signs) and is_silent)]


def _parse_note(value: bytes | None) -> tuple[float, list[str]] | None:
    """Return the time and the claims of a note; what memcached makes up counts as none."""
    try:
        now_s, signs = json.loads(value or b"")
        return float(now_s), [str(sign) for sign in signs]
    except (ValueError, TypeError):
        return None


def _position(clients: Clients, lane: Lane) -> str:
    return f"{scope_of(clients)}:sweep:{lane.name}"


def remove_expired(clients: Clients) -> int:
    """Delete the states of keys that have had nothing to do for a day; return how many went."""
    now_utc = naive_utc(clients.clock.now())

    def is_due(state: LaneState) -> bool:
        # A delivery that lives has moved it on by a day, seconds ago.
        latest = now_utc - DEAD_FOR if state.claims else now_utc
        return state.expires is not None and state.expires <= latest

    keys = expired_states(now_utc).fetch(MAX_DELETED, keys_only=True)
    return delete_due(keys, is_due)
