"""Claims: the right of a delivery to run some tasks of a key, at most `limit` at a time.

A claim expires by what others see, and not by a clock: a delivery beats every three seconds, and
who has watched a claim for fifteen seconds without a beat takes it away. So clocks that differ can
neither end a claim early nor let it live on. Only the lengths of seconds must agree. A delivery
begins no task when its last beat is more than nine seconds old.

Only a redelivery and the sweep watch. A hint that finds the key at its limit ends at once: the
delivery that gives a claim back looks for more tasks.

Lost on failure: the limit, by a process that is frozen for longer than a claim while it runs a
task. That task overlaps with one of the next delivery.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.lanes import hints
from rollforward.lanes.errors import LaneBusyError
from rollforward.lanes.rows.entities import (
    Claim,
    LaneState,
    LaneTask,
    place_of,
    state_key,
    task_key,
    waiting,
)
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S, aware_utc, naive_utc

if TYPE_CHECKING:
    from rollforward.lanes.declaration import Lane

log = logging.getLogger(__name__)

LEASE_S = 15
BEAT_S = 3.0
CONFIRMED_FOR_S = 9.0
MAX_ATTEMPTS = 5
# Of a key's tasks that one delivery claims, and for how long it begins further ones.
MAX_TASKS = 100
SLICE_S = 0.5
KEEP_STATE = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Claimed:
    """A claim that was made, its tasks, and what else waits.

    Attributes:
        has_more: Whether tasks wait beyond these that could begin now.
    """

    claim: Claim
    tasks: Sequence[LaneTask]
    has_more: bool


@dataclass(frozen=True)
class Rest:
    """No task may begin now.

    Attributes:
        until: When the next one may; None: no task waits, or another delivery sees to it.
    """

    until: datetime.datetime | None = None


def take(clients: Clients, lane: Lane, lane_id: str, *, watches: bool) -> Claimed | Rest:
    """Claim tasks of a key that may begin now.

    Args:
        watches: Whether to find out if dead deliveries hold claims, which takes up to 15 seconds
            while they are not known to be dead.

    Raises:
        LaneBusyError: others change the key all the time.
    """
    for _ in range(MAX_ATTEMPTS):
        state: LaneState | None = state_key(lane_id).get()
        if state is not None and state.rests:
            return Rest()
        if state is not None and state.claims:
            dead = dead_claims(clients, state, watches=watches)
            bury(clients, lane, lane_id, dead)
            if dead or watches:
                watches = False
                continue
            if len(state.claims) >= lane.limit:
                return Rest()
        hints.unmark(clients, lane_id)
        plan = _plan(clients, lane, lane_id, state)
        if isinstance(plan, Rest):
            return plan
        if transact(lambda: _claim(clients, lane, lane_id, state, plan)):  # noqa: B023
            return plan
    raise LaneBusyError(f"other deliveries change {lane_id} at the same time")


def _plan(clients: Clients, lane: Lane, lane_id: str, state: LaneState | None) -> Claimed | Rest:
    """Return the tasks that this delivery would run by a state of their key."""
    now_utc, now_ms = clients.clock.now(), _now_ms(clients)
    claimed_ids = {task_id for claim in state.claims for task_id in claim.tasks} if state else set()
    size = _size(lane, state)
    ready = [
        task
        for task in _next_tasks(clients, lane, lane_id, state, size + len(claimed_ids) + 1)
        if task.key.id() not in claimed_ids
    ]
    if lane.order and ready and (until := _waits_until(ready[0], now_utc)) is not None:
        return Rest(until)
    due = [task for task in ready if _waits_until(task, now_utc) is None]
    if not due:
        return Rest()
    if lane.rate is not None:
        arrival_ms = state.arrival_ms if state else 0
        allowed = lane.rate.allowed(arrival_ms, now_ms)
        if not allowed:
            return Rest(lane.rate.next_at(arrival_ms, now_ms))
        size = min(size, allowed)
    if lane.limit > 1:  # Others are to have a share of a short backlog.
        free = lane.limit - (len(state.claims) if state else 0)
        size = min(size, max(1, -(-len(due) // free)))
    tasks = due[:size]
    ids = tuple(task.key.id() for task in tasks)
    claim = Claim(clients.new_owner(), ids, began=now_utc.timestamp())
    return Claimed(claim, tasks, has_more=len(due) > len(tasks))


def _size(lane: Lane, state: LaneState | None) -> int:
    """Return how many tasks a delivery claims: as many as it can begin in its time, about."""
    if state is None or not state.pace_ms:
        return MAX_TASKS if lane.limit == 1 else 1
    return max(1, min(MAX_TASKS, int(1000 * SLICE_S * lane.weight / state.pace_ms)))


def _next_tasks(
    clients: Clients, lane: Lane, lane_id: str, state: LaneState | None, limit: int
) -> list[LaneTask]:
    """Return the next tasks of a key; in an order, the one that has begun and not ended first."""
    if not lane.order:
        # A task that another machine's clock has placed ahead does not wait for that.
        until = place_of(clients.clock.now() + datetime.timedelta(seconds=CLOCK_SKEW_S))
        return list(waiting(lane_id, until).fetch(limit))
    tasks: list[LaneTask] = waiting(lane_id).fetch(limit)
    head = task_key(state.head).get() if state is not None and state.head else None
    return tasks if head is None else [head, *(task for task in tasks if task.key != head.key)]


def _waits_until(task: LaneTask, now_utc: datetime.datetime) -> datetime.datetime | None:
    """Return until when a task waits, aware; None: it may begin."""
    until = aware_utc(task.not_before)
    return until if until is not None and until > now_utc else None


def _claim(
    clients: Clients, lane: Lane, lane_id: str, seen: LaneState | None, plan: Claimed
) -> bool:
    """Write a claim, unless the state is another one than was seen."""
    state: LaneState | None = state_key(lane_id).get()
    if state is not None and state.claim_of(plan.claim.owner) is not None:
        return True  # The commit's reply was lost.
    if (state.stamp if state else None) != (seen.stamp if seen else None):
        return False
    state = state or LaneState(key=state_key(lane_id))
    state.set_claims([*state.claims, plan.claim])
    if lane.order:
        state.head = plan.claim.tasks[0]
    if lane.rate is not None:
        now_ms = _now_ms(clients)
        state.arrival_ms = lane.rate.moved(state.arrival_ms, now_ms, len(plan.tasks))
    put_state(clients, state)
    return True


def put_state(clients: Clients, state: LaneState) -> None:
    """Write a state, in a transaction that has read it."""
    state.stamp = clients.new_id()
    rests = state.rests
    state.expires = None if rests else naive_utc(clients.clock.now() + KEEP_STATE)
    state.put()


# The end of a claim


@dataclass
class Holder:
    """A delivery's claim while it runs its tasks.

    Attributes:
        has_ended: Ids of the tasks that have ended.
        is_lost: Whether another delivery has taken the claim away.
    """

    clients: Clients
    lane: Lane
    lane_id: str
    claim: Claim
    monotonic: Callable[[], float] = time.monotonic
    is_lost: bool = False

    def __post_init__(self) -> None:
        self._began_s = self._confirmed_s = self.monotonic()
        self._is_given_back = False

    @property
    def has_time(self) -> bool:
        """Whether it may begin another task."""
        return self.monotonic() - self._began_s < SLICE_S * self.lane.weight

    def may_begin(self) -> bool:
        """Return whether no other delivery can have taken the claim; make sure by a beat."""
        if self.monotonic() - self._confirmed_s > CONFIRMED_FOR_S:
            self.beat()
        return not self.is_lost and self.monotonic() - self._confirmed_s <= CONFIRMED_FOR_S

    def beat(self) -> None:
        """Show that the delivery lives; give back the tasks that it will not begin any more."""
        sent_s = self.monotonic()
        with self.clients.context():
            gives_back = not self.has_time and not self._is_given_back and self.lane.limit > 1
            self.is_lost = not transact(lambda: self._beat(gives_back=gives_back))
        self._confirmed_s = sent_s
        if gives_back and not self.is_lost:
            self._is_given_back = True
            with self.clients.context():
                hints.hint(self.clients, self.lane.task, self.lane_id)

    def _beat(self, *, gives_back: bool) -> bool:
        state: LaneState | None = state_key(self.lane_id).get()
        claim = state.claim_of(self.claim.owner) if state is not None else None
        if state is None or claim is None:
            return False
        tasks = self._kept(claim) if gives_back else claim.tasks
        _replace(state, replace(claim, beats=claim.beats + 1, tasks=tasks))
        put_state(self.clients, state)
        return True

    def _kept(self, claim: Claim) -> tuple[str, ...]:
        """Return the task that runs: the first one that has not ended."""
        rows = ndb.get_multi([task_key(task_id) for task_id in claim.tasks])
        return tuple(row.key.id() for row in rows if row is not None)[:1]

    def release(self, ended: set[str], *, begun: int, pace_ms: int) -> bool:
        """Give the claim back; return whether it was still this delivery's."""
        return transact(lambda: self._release(ended, begun, pace_ms))

    def _release(self, ended: set[str], begun: int, pace_ms: int) -> bool:
        state: LaneState | None = state_key(self.lane_id).get()
        claim = state.claim_of(self.claim.owner) if state is not None else None
        if state is None or claim is None:
            return False
        state.set_claims([other for other in state.claims if other.owner != claim.owner])
        if state.head in ended:
            state.head = None
        if pace_ms:
            state.pace_ms = pace_ms if not state.pace_ms else (3 * state.pace_ms + pace_ms) // 4
        if self.lane.rate is not None:
            unused = len(self.claim.tasks) - begun
            state.arrival_ms = self.lane.rate.given_back(state.arrival_ms, unused)
        if state.claims or state.head or state.rests or self.lane.rate is not None:
            put_state(self.clients, state)
        else:
            state.key.delete()
        return True


def _replace(state: LaneState, claim: Claim) -> None:
    state.set_claims([claim if other.owner == claim.owner else other for other in state.claims])


# Claims of dead deliveries


def dead_claims(clients: Clients, state: LaneState, *, watches: bool) -> list[Claim]:
    """Return the claims of deliveries that are known to be dead, or do not beat when watched."""
    dead = [claim for claim in state.claims if clients.processes.is_dead(claim.owner)]
    if dead or not watches:
        return dead
    seen = {claim.sign_of_life for claim in state.claims}
    for _ in range(LEASE_S):
        clients.clock.sleep(1)
        row: LaneState | None = state.key.get()
        alive = row.claims if row is not None else []
        silent = [claim for claim in alive if claim.sign_of_life in seen]
        if not silent:
            return []
        seen = {claim.sign_of_life for claim in silent}
    return silent


def bury(clients: Clients, lane: Lane, lane_id: str, dead: Sequence[Claim]) -> None:
    """Take claims of dead deliveries away; the task that each was at has failed once more."""
    for claim in dead:
        log.warning("a delivery of %s died over its tasks", lane_id)
        transact(lambda: _bury(clients, lane, lane_id, claim))  # noqa: B023


def _bury(clients: Clients, lane: Lane, lane_id: str, dead: Claim) -> None:
    state: LaneState | None = state_key(lane_id).get()
    claim = state.claim_of(dead.owner) if state is not None else None
    if state is None or claim is None or claim.beats != dead.beats:
        return
    state.set_claims([other for other in state.claims if other.owner != dead.owner])
    rows = ndb.get_multi([task_key(task_id) for task_id in claim.tasks])
    running = next((row for row in rows if row is not None), None)
    if running is not None:
        running.failures += 1
        running.reason = "its worker died over it, or was too slow"
        running.put()
        if lane.order:
            state.head = running.key.id()
    put_state(clients, state)


def _now_ms(clients: Clients) -> int:
    return int(clients.clock.now().timestamp() * 1000)
