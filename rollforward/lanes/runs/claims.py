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
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from google.cloud import ndb

from rollforward.datastore.transactions import TRANSIENT
from rollforward.lanes import hints
from rollforward.lanes.errors import LaneBusyError
from rollforward.lanes.rows.entities import Claim, LaneState, LaneTask, state_key, task_key
from rollforward.lanes.rows.states import keep, note_over, remove_claims, write_claim
from rollforward.lanes.runs import lookups
from rollforward.lanes.runs.dead_claims import dead_claims
from rollforward.lanes.runs.lookups import waits_until
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.optimistic_transaction import transact_by_version

if TYPE_CHECKING:
    from rollforward.lanes.declaration import Lane

BEAT_S = 3.0
BEAT_ATTEMPTS = 4
CONFIRMED_FOR_S = 9.0
MAX_ATTEMPTS = 5
QUICK_MS = 100
RELEASE_ATTEMPTS = 4
RELEASE_PAUSE_S = 0.5


@dataclass(frozen=True)
class Claimed:
    """A claim that was made, its tasks, and what else waits.

    Attributes:
        has_more: Whether tasks wait beyond these that could begin now.
        goes_on: The id of the hint for a parallel delivery; "": there is to be none.
        asked_s: When the claim was asked for, by the count of seconds of this machine.
    """

    claim: Claim
    tasks: Sequence[LaneTask]
    has_more: bool
    goes_on: str = ""
    asked_s: float = 0.0


@dataclass(frozen=True)
class Rest:
    """No task may begin now.

    Attributes:
        until: When the next one may; None: no task waits, or another delivery sees to it.
        is_empty: Whether no task waits at all.
    """

    until: datetime.datetime | None = None
    is_empty: bool = False


def take(
    clients: Clients, lane: Lane, lane_id: str, *, watches: bool, goes_on: str = ""
) -> Claimed | Rest:
    """Claim tasks of a key that may begin now.

    Args:
        goes_on: The id of the hint that was delivered. If the key's state names another one as its
            successor, this one ends, unless it watches.
        watches: Whether to find out if dead deliveries hold claims, which takes up to 15 seconds
            while they are not known to be dead.

    Raises:
        LaneBusyError: others change the key all the time.
    """
    for _ in range(MAX_ATTEMPTS):
        state: LaneState | None = state_key(lane_id).get()
        if state is not None and state.rests:
            return Rest()
        if state is not None and goes_on and not watches and state.next_hint not in (None, goes_on):
            return Rest()
        if state is not None and state.claims:
            dead = dead_claims(clients, state, watches=watches)
            remove_claims(clients, lane_id, dead, partial(put_without_claim, clients, lane))
            if dead or watches:
                watches, goes_on = False, ""
                continue
            if len(state.claims) >= lane.limit:
                return Rest()
        hints.unmark(clients, lane_id)
        plan = _plan(clients, lane, lane_id, state)
        if isinstance(plan, Rest):
            if plan.is_empty and state is not None:
                transact_by_version(clients, lambda: _forget(lane, state))  # noqa: B023
            return plan
        asked_s = time.monotonic()
        try:
            is_mine = transact_by_version(
                clients,
                lambda: _claim(clients, lane, lane_id, state, plan),  # noqa: B023
            )
            tasks = plan.tasks
            if is_mine and state is None:  # It may have had one meanwhile, and these have run.
                tasks = _existing(tasks)
        except Exception:
            note_over(clients, plan.claim.owner)  # It may have been written.
            raise
        if is_mine:
            return replace(plan, tasks=tasks, asked_s=asked_s)
    raise LaneBusyError(f"other deliveries change {lane_id} at the same time")


def _plan(clients: Clients, lane: Lane, lane_id: str, state: LaneState | None) -> Claimed | Rest:
    """Return the tasks that this delivery would run by a state of their key."""
    now_utc, now_ms = clients.clock.now(), _now_ms(clients)
    claimed_ids = {task_id for claim in state.claims for task_id in claim.tasks} if state else set()
    size = lookups.size_of(lane, state)
    head = state.head if state is not None else None
    ready = lookups.next_tasks(clients, lane, lane_id, head, claimed_ids, size + 1)
    if not ready:
        return Rest(is_empty=not claimed_ids)
    if lane.order and (until := waits_until(ready[0], now_utc)) is not None:
        return Rest(until)
    waits = [(task, waits_until(task, now_utc)) for task in ready]
    due = [task for task, until in waits if until is None]
    if not due:
        return Rest(min(until for _, until in waits if until is not None))
    if lane.rate is not None:
        arrival_ms = state.arrival_ms if state else 0
        allowed = lane.rate.allowed(arrival_ms, now_ms)
        if not allowed:
            return Rest(lane.rate.next_at(arrival_ms, now_ms))
        size = min(size, allowed)
    free = lane.limit - (len(state.claims) if state else 0)
    # Quick tasks are run best by one delivery, which has them all done before another one comes.
    is_quick = state is not None and 0 < state.pace_ms * min(len(due), size) < QUICK_MS
    if lane.limit > 1 and len(due) <= size and not is_quick:  # Others are to have a share.
        size = max(1, -(-len(due) // free))
    tasks = due[:size]
    ids = tuple(task.key.id() for task in tasks)
    is_careful = state is not None and bool(state.is_careful)
    claim = Claim(clients.new_owner(), ids, began=now_utc.timestamp(), is_careful=is_careful)
    has_more = len(due) > len(tasks)
    goes_on = clients.new_id() if has_more and free > 1 and not is_quick else ""
    return Claimed(claim, tasks, has_more, goes_on)


def _claim(
    clients: Clients, lane: Lane, lane_id: str, seen: LaneState | None, plan: Claimed
) -> bool:
    """Write a claim, unless the state is another one than was seen."""

    def write(state: LaneState) -> None:
        if plan.goes_on:
            state.next_hint = plan.goes_on
        if lane.order:
            state.head = plan.claim.tasks[0]
        if lane.rate is not None:
            now_ms = _now_ms(clients)
            state.arrival_ms = lane.rate.moved(state.arrival_ms, now_ms, len(plan.tasks))
            _replace(state, replace(plan.claim, charged_ms=state.arrival_ms))
        put_state(clients, state)

    return write_claim(lane_id, seen, plan.claim, write)


def _existing(tasks: Sequence[LaneTask]) -> Sequence[LaneTask]:
    """Return those of some tasks whose rows are there, as they are now."""
    rows: list[LaneTask | None] = ndb.get_multi([task.key for task in tasks])
    return [row for row in rows if row is not None]


def _forget(lane: Lane, seen: LaneState) -> None:
    """Delete the state of a key without tasks, unless it has changed, or keeps a rate."""
    state: LaneState | None = seen.key.get()
    is_idle = state is not None and state.stamp == seen.stamp and not state.claims
    if state is not None and is_idle and lane.rate is None:
        state.key.delete()


def put_state(clients: Clients, state: LaneState, stamp: str = "") -> None:
    """Write a state, in a transaction that has read it.

    Args:
        stamp: Chosen before the transaction; "": a new one.
    """
    state.stamp = stamp or clients.new_id()
    _put(clients, state)


def _put(clients: Clients, state: LaneState) -> None:
    """Write a state whose claims beat, and which is the same otherwise."""
    keep(clients, state)


# The end of a claim


@dataclass
class Holder:
    """A delivery's claim while it runs its tasks.

    Attributes:
        asked_s: When the claim was asked for: others may have watched it since then. None: now.
        is_lost: Whether another delivery has taken the claim away.
    """

    clients: Clients
    lane: Lane
    lane_id: str
    claim: Claim
    asked_s: float | None = None
    monotonic: Callable[[], float] = time.monotonic
    is_lost: bool = False

    def __post_init__(self) -> None:
        self._began_s = self.monotonic()
        self._confirmed_s = self._began_s if self.asked_s is None else self.asked_s
        self._is_given_back = self._has_left = False
        self._begun: list[str] = []
        self._is_closed = False  # No task begins any more, whatever the time.
        self._lock = threading.Lock()
        # The same after a lost reply: a hint that the state names has to be created.
        self._given_back_to = self.clients.new_id()

    @property
    def has_time(self) -> bool:
        """Whether it may begin another task."""
        is_in_time = self.monotonic() - self._began_s < lookups.SLICE_S * self.lane.weight
        return is_in_time and not self._is_closed

    def begin(self, task_id: str) -> bool:
        """Note that a task begins; return whether it may. The first one always may."""
        with self._lock:
            if self._begun and not self.has_time:
                return False
            self._begun.append(task_id)
            return True

    def can_start(self) -> bool:
        """Return whether no other delivery can have taken the claim; make sure by a beat."""
        if self.monotonic() - self._confirmed_s > CONFIRMED_FOR_S:
            self._confirm()
        return not self.is_lost and self.monotonic() - self._confirmed_s <= CONFIRMED_FOR_S

    def beat(self) -> None:
        """Beat, on a thread of the heart; give back the tasks that will not begin any more."""
        with self._lock:
            gives_back = not self.has_time and not self._is_given_back and self.lane.limit > 1
            self._is_closed = self._is_closed or gives_back
        goes_on = self._given_back_to if gives_back else ""
        with self.clients.context():
            # Few attempts: others of this process wait for this one. More than one, since each
            # claim and each end of the key may win the race for its row.
            self._confirm(goes_on, attempts=BEAT_ATTEMPTS)
            if gives_back and not self.is_lost:
                self._is_given_back = True
                if self._has_left:
                    hints.hint_soon(self.clients, self.lane.task, self.lane_id, goes_on)

    def _confirm(self, goes_on: str = "", *, attempts: int = MAX_ATTEMPTS) -> None:
        """Show that the delivery lives, and find out if it has lost its claim."""
        sent_s = self.monotonic()
        self.is_lost = not transact_by_version(
            self.clients, lambda: self._beat(goes_on), attempts=attempts
        )
        self._confirmed_s = sent_s

    def _beat(self, goes_on: str) -> bool:
        """Count a beat; with the id of a hint, give back the tasks that have not begun."""
        state: LaneState | None = state_key(self.lane_id).get()
        claim = state.claim_of(self.claim.owner) if state is not None else None
        if state is None or claim is None:
            return False
        tasks = claim.tasks
        if goes_on and len(begun := self._started_tasks(claim)) < len(tasks):
            tasks = begun
            state.next_hint = goes_on
        _replace(state, replace(claim, beats=claim.beats + 1, tasks=tasks))
        if tasks is claim.tasks:
            _put(self.clients, state)  # With its stamp: no plan of others depends on beats.
        else:
            put_state(self.clients, state)
        self._has_left = state.next_hint == goes_on != ""
        return True

    def _started_tasks(self, claim: Claim) -> tuple[str, ...]:
        """Return the tasks that have begun: also one that is done may not be deleted yet."""
        begun = set(self._begun)
        return tuple(task_id for task_id in claim.tasks if task_id in begun) or claim.tasks[:1]

    def release(
        self,
        ended: set[str],
        running: str | None,
        *,
        begun: int,
        pace_ms: int,
        goes_on: str = "",
        done: Sequence[LaneTask] = (),
    ) -> frozenset[str] | None:
        """Give the claim back.

        Args:
            running: The task that has begun and not ended, because of an error: it stays the first.
            done: Tasks to delete in the same commit, even without the claim.
            goes_on: The id of the hint that the caller will create, because more tasks wait.

        Returns:
            Ids of the tasks that others have claimed; None: it was not this delivery's any more.
        """
        keys = [task.key for task in done]

        def body() -> frozenset[str] | None:
            if keys:
                ndb.delete_multi(keys)
            return self._release(ended, running, begun, pace_ms, goes_on)

        for attempt in range(1, RELEASE_ATTEMPTS + 1):
            try:
                return transact_by_version(self.clients, body)
            except TRANSIENT:
                if attempt == RELEASE_ATTEMPTS:
                    note_over(self.clients, self.claim.owner)
                    raise
                self.clients.clock.sleep(RELEASE_PAUSE_S * attempt)
        raise AssertionError("unreachable")

    def _release(
        self, ended: set[str], running: str | None, begun: int, pace_ms: int, goes_on: str
    ) -> frozenset[str] | None:
        state: LaneState | None = state_key(self.lane_id).get()
        claim = state.claim_of(self.claim.owner) if state is not None else None
        if state is None or claim is None:
            return None
        state.set_claims([other for other in state.claims if other.owner != claim.owner])
        if self.lane.order and running is not None:
            state.head = running
        elif state.head in ended or not self.lane.order:  # Of a version with one.
            state.head = None
        if running is not None:
            _take_over(running)
        if claim.is_careful:
            state.is_careful = False
        if pace_ms:
            state.pace_ms = pace_ms if not state.pace_ms else (3 * state.pace_ms + pace_ms) // 4
        # Time has given a charge back that has passed.
        if self.lane.rate is not None and _now_ms(self.clients) < claim.charged_ms:
            unused = len(self.claim.tasks) - begun
            state.arrival_ms = self.lane.rate.given_back(state.arrival_ms, unused)
        state.next_hint = goes_on or state.next_hint
        has_rest = bool(state.claims or state.head or state.rests or goes_on)
        if has_rest or self.lane.rate is not None:
            put_state(self.clients, state)
        else:
            state.key.delete()
        return frozenset(task_id for other in state.claims for task_id in other.tasks)


def _take_over(task_id: str) -> None:
    """Write a task that its delivery began and did not end.

    So a commit that would end it, and whose reply its delivery has not waited for, is refused when
    it comes late: the next delivery may be at the task.
    """
    row: LaneTask | None = task_key(task_id).get()
    if row is not None:
        row.takeovers += 1
        row.put()


def _replace(state: LaneState, claim: Claim) -> None:
    state.set_claims([claim if other.owner == claim.owner else other for other in state.claims])


def put_without_claim(
    clients: Clients, lane: Lane, state: LaneState, claim: Claim, *, counts: bool
) -> None:
    """Write a state without the claim of a dead delivery.

    Args:
        counts: Whether the task that it was at has failed once more.
    """
    rows = ndb.get_multi([task_key(task_id) for task_id in claim.tasks])
    undeleted = [row for row in rows if row is not None]
    # The first task is deleted before the second one begins. Later ones may be done and there.
    is_known = claim.is_careful or len(undeleted) == 1 or any(rows[:1])
    state.head = undeleted[0].key.id() if undeleted and lane.order else None
    if undeleted and counts and is_known:
        undeleted[0].failures += 1
        undeleted[0].reason = "its worker died over it, or was too slow"
    elif undeleted and counts:
        state.is_careful = True
    if undeleted:
        # The delivery may be alive, and about to end this task: its commit is refused from now on.
        undeleted[0].takeovers += 1
        undeleted[0].put()
    put_state(clients, state)


def _now_ms(clients: Clients) -> int:
    return int(clients.clock.now().timestamp() * 1000)
