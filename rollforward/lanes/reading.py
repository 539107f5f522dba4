"""Keys of lanes as programs and operators see them, at a bounded cost.

A list goes from key to key: of the tasks of one it reads at most 100 ids, and then looks behind all
of them. So a key with 100,000 tasks costs as much as one with 100.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.cloud import ndb

from rollforward.lanes.hints import scope_of
from rollforward.lanes.rows.entities import (
    Claim,
    LaneState,
    LaneTask,
    first_after,
    lane_id_of,
    resting_states,
    state_key,
    task_key,
    time_of,
    unquote,
    waiting,
)
from rollforward.runtime.clients import Clients

if TYPE_CHECKING:
    from rollforward.lanes.declaration import Lane

# Of the tasks of a key: in a list, and when one key is looked at.
MAX_LISTED = 100
MAX_COUNTED = 1_000
# Of all tasks of a lane, and the keys behind them that a gauge looks at.
MAX_BACKLOG = 1_000
MAX_HOPS = 20
MAX_RESTING = 500
OLDEST_S = 600


@dataclass(frozen=True)
class KeyState:
    """A key of a lane.

    Attributes:
        waiting: How many tasks it has, those at work included: at most 100 in a list, 1,000 alone.
        first: When its first task was added, or is due, aware; None: it has none.
        is_paused: Whether no task begins until `resume`.
        blocked_by: The id of the dead task that blocks it; "": none.
        claims: The deliveries that run tasks of it now.
    """

    lane: str
    key: str
    waiting: int
    first: datetime.datetime | None
    is_paused: bool
    blocked_by: str
    claims: Sequence[Claim]

    @property
    def rests(self) -> bool:
        """Whether no task begins until a person says so."""
        return self.is_paused or bool(self.blocked_by)


@dataclass(frozen=True)
class KeyPage:
    """Keys of a lane, and where the next page begins; None: there are no more."""

    keys: Sequence[KeyState]
    next_after: str | None = None


@dataclass(frozen=True)
class Backlog:
    """Tasks and keys of a lane, counted.

    Attributes:
        waiting: Its tasks, those at work included; at most 1,000 are counted.
        oldest_s: The age of the oldest first task of a key that does not rest, among the keys
            that were looked at. In a lane that gathers, since its window might have ended.
        paused, blocked: How many keys rest; at most 500 are counted, together.
    """

    waiting: int
    oldest_s: float
    paused: int
    blocked: int


def state_of(lane_id: str) -> KeyState:
    """Return a key."""
    ids = [key.id() for key in waiting(lane_id).fetch(MAX_COUNTED, keys_only=True)]
    return _key_state(lane_id, ids, state_key(lane_id).get())


def keys_of(lane: str, *, start_after: str = "", limit: int) -> KeyPage:
    """Return keys of a lane that have tasks."""
    ids_by_key = _first_ids(lane, f"{lane}|{start_after}" if start_after else "", limit + 1)
    lane_ids = list(ids_by_key)[:limit]
    states = ndb.get_multi([state_key(lane_id) for lane_id in lane_ids])
    keys = [
        _key_state(lane_id, ids_by_key[lane_id], state)
        for lane_id, state in zip(lane_ids, states, strict=True)
    ]
    return KeyPage(keys, _after(lane_ids[-1]) if len(ids_by_key) > limit else None)


def resting_keys(lane: str, *, start_after: str = "", limit: int) -> KeyPage:
    """Return keys of a lane that are paused or blocked; a page may have fewer than its limit."""
    after = f"{lane}|{start_after}" if start_after else ""
    states = resting_states(lane, after).fetch(limit + 1)
    keys = [_with_ids(state) for state in states[:limit] if state.rests]
    return KeyPage(keys, _after(states[limit - 1].key.id()) if len(states) > limit else None)


def _with_ids(state: LaneState) -> KeyState:
    ids = [key.id() for key in waiting(state.key.id()).fetch(MAX_LISTED, keys_only=True)]
    return _key_state(state.key.id(), ids, state)


def backlog_of(clients: Clients, declared: Lane) -> Backlog:
    """Return the backlog of a lane: a query of 1,000 ids, and one for each of some keys behind."""
    lane = declared.name
    ids = [key.id() for key in first_after(lane).fetch(MAX_BACKLOG, keys_only=True)]
    firsts = {lane_id: next(group) for lane_id, group in itertools.groupby(ids, lane_id_of)}
    if len(ids) == MAX_BACKLOG:
        for _ in range(MAX_HOPS):
            key = first_after(lane, list(firsts)[-1]).get(keys_only=True)
            if key is None:
                break
            firsts[lane_id_of(key.id())] = key.id()
        oldest_id = cached_oldest(clients, lane)
        if oldest_id is not None:
            firsts.setdefault(lane_id_of(oldest_id), oldest_id)
    resting = [state for state in resting_states(lane).fetch(MAX_RESTING) if state.rests]
    for state in resting:
        firsts.pop(state.key.id(), None)
    now_utc = clients.clock.now()
    due = [declared.due_at(LaneTask(key=task_key(first)), None) for first in firsts.values()]
    ages_s = [(now_utc - at).total_seconds() for at in due]
    blocked = sum(bool(state.blocked_by) for state in resting)
    return Backlog(len(ids), max([0.0, *ages_s]), len(resting) - blocked, blocked)


def note_oldest(clients: Clients, lane: str, task_id: str) -> None:
    """Note the oldest task that a sweep has seen, unless an older one still waits."""
    noted = cached_oldest(clients, lane)
    if noted is None or time_of(task_id) < time_of(noted):
        clients.cache.set(_oldest_key(clients, lane), task_id.encode(), OLDEST_S)


def cached_oldest(clients: Clients, lane: str) -> str | None:
    """Return the oldest task that sweeps have seen, if it still waits: memcached knows it."""
    noted = (clients.cache.get(_oldest_key(clients, lane)) or b"").decode(errors="replace")
    if not noted.startswith(f"{lane}|") or task_key(noted).get() is None:
        return None
    return noted


def _oldest_key(clients: Clients, lane: str) -> str:
    return f"{scope_of(clients)}:oldest:{lane}"


def _first_ids(lane: str, position: str, limit: int) -> Mapping[str, Sequence[str]]:
    """Return the first ids of each of some keys."""
    listed: dict[str, list[str]] = {}
    while len(listed) < limit:
        ids = [key.id() for key in first_after(lane, position).fetch(MAX_LISTED, keys_only=True)]
        groups = {lane_id: list(group) for lane_id, group in itertools.groupby(ids, lane_id_of)}
        if not groups:
            break
        if len(ids) == MAX_LISTED and len(groups) > 1:
            groups.popitem()  # Maybe not all of its ids: the next query begins with it.
        listed |= groups
        position = list(groups)[-1]
    return dict(itertools.islice(listed.items(), limit))


def _key_state(lane_id: str, ids: Sequence[str], state: Any) -> KeyState:
    stored: LaneState | None = state
    lane, _, key = lane_id.partition("|")
    return KeyState(
        lane=lane,
        key=unquote(key),
        waiting=len(ids),
        first=time_of(ids[0]) if ids else None,
        is_paused=bool(stored is not None and stored.is_paused),
        blocked_by=str((stored.blocked_by if stored is not None else "") or ""),
        claims=stored.claims if stored is not None else (),
    )


def _after(lane_id: str) -> str:
    """Return the place behind a key in the list of its lane: the key, quoted."""
    return lane_id.partition("|")[2]
