"""A delivery of a lane: it runs some tasks of one key, the first ones first, for half a second.

A key with more tasks gets another hint, behind the hints of other keys. So each key that has tasks
gets its turn after at most a turn of each other one, however many tasks they have (deficit round
robin, M. Shreedhar and G. Varghese, 1995; the lane's `weight` is the length of its turns).

    the task               its row
    is done                is deleted: before the next one begins, or together with quick ones
    waits, or fails        waits for its time: in an order at its place, and holds up the others
    can never work         becomes a dead task, in the commit that deletes it

A task runs as a delivery of Cloud Tasks would run it: the same function, arguments, log context and
errors. Its deadline is the lane's.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollforward import telemetry
from rollforward.app_code import APP_ERRORS, run_app
from rollforward.datastore.transactions import TRANSIENT
from rollforward.lanes import hints
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import LaneTask, time_of
from rollforward.lanes.runs import ends
from rollforward.lanes.runs.claims import BEAT_S, Claimed, Holder, Rest, take
from rollforward.lanes.runs.ends import Dead, End, Later
from rollforward.lanes.runs.lookups import has_due_task
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import aware_utc
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import ArgumentsGoneError, BadArgumentsError, EndedError
from rollforward.tasks.stored import deliveries
from rollforward.telemetry.metrics import UNKNOWN, Outcome
from rollforward.tracing import caused_by, start_span

if TYPE_CHECKING:
    from rollforward.lanes.declaration import Lane

log = logging.getLogger(__name__)

# Tasks that took no longer together are deleted by one commit.
TOGETHER_S = 0.02


def deliver(lane: Lane, clients: Clients, args: LaneArgs) -> None:
    """Run tasks of a key, if some may begin and no limit is reached.

    Raises:
        LaneBusyError: others change the key at the same time.
        google.api_core.exceptions.GoogleAPICallError: the service's answer; the queue
            repeats the hint.
    """
    watches = hints.checks_claims(args)
    claimed = take(clients, lane, args.lane_id, watches=watches, goes_on=args.goes_on)
    if isinstance(claimed, Rest):
        if claimed.until is not None:
            hints.hint_at(clients, lane.task, args.lane_id, claimed.until, args)
        return
    holder = Holder(clients, lane, args.lane_id, claimed.claim, claimed.asked_s)
    turn = _ClaimedRun(holder, claimed)
    try:
        if claimed.goes_on:  # For a delivery beside this one.
            hints.hint(clients, lane.task, args.lane_id, claimed.goes_on)
        with clients.heart.heartbeat(holder.beat, BEAT_S):
            turn.run()
    except BaseException:
        # The error matters more, and without this the claim expires.
        with contextlib.suppress(Exception):
            turn.release()
        raise
    goes_on = clients.new_id() if turn.has_more and not turn.waits_for_head else ""
    claimed_ids = turn.release(goes_on)
    if turn.waits_for_head:
        return
    if goes_on and claimed_ids is not None:
        hints.hint(clients, lane.task, args.lane_id, goes_on)
        return
    hints.unmark(clients, args.lane_id)
    if has_due_task(clients, lane, args.lane_id, claimed_ids or frozenset()):
        hints.hint(clients, lane.task, args.lane_id)


class _ClaimedRun:
    """The run of claimed tasks.

    Attributes:
        has_more: Whether tasks of the key wait that could begin now.
        waits_for_head: Whether all others wait for one that has a hint for its time.
    """

    def __init__(self, holder: Holder, claimed: Claimed) -> None:
        self._holder = holder
        self._tasks = claimed.tasks
        there = {task.key.id() for task in claimed.tasks}
        # Tasks that had run before they were claimed have ended.
        self._ended = {task_id for task_id in claimed.claim.tasks if task_id not in there}
        self._done: list[LaneTask] = []  # Those whose rows are still to be deleted.
        self._done_s = 0.0
        self._begun = 0
        self._running: str | None = None
        self._took_s = 0.0
        self.has_more = claimed.has_more
        self.waits_for_head = False

    def run(self) -> None:
        holder = self._holder
        for task in self._tasks:
            if self._begun and not holder.has_time:
                self.has_more = True
                return
            if not holder.can_start():
                self.has_more = not holder.is_lost
                return
            if not holder.begin(task.key.id()):
                self.has_more = True
                return
            if not self._run_task(task):
                return

    def _run_task(self, task: LaneTask) -> bool:
        """Run a task; return whether the next one may begin."""
        holder = self._holder
        began_s = holder.monotonic()
        self._begun += 1
        self._running = task.key.id()
        end = self._end(task)
        self._took_s += holder.monotonic() - began_s
        if not isinstance(end, Later):
            self._running = None
            self._ended.add(task.key.id())
            return not (isinstance(end, Dead) and holder.lane.on_dead == "block")
        is_postponed = ends.reschedule(holder, task, end)
        self._running = None
        self.waits_for_head = is_postponed and holder.lane.order
        return not holder.lane.order

    def _end(self, task: LaneTask) -> End:
        """Call the function of a task; note that it is done, or give it up."""
        holder, clients = self._holder, self._holder.clients
        declared = _declared(clients, task.path)
        failures = int(task.failures)
        context = telemetry.TaskContext(task.key.id(), holder.lane.queue, task.path, failures)
        with telemetry.in_task(context), caused_by(task.traceparent or ""), start_span("lane task"):
            delay_s = (clients.clock.now() - _due(task)).total_seconds()
            began_s = holder.monotonic()
            end = _end(clients, task, declared)
            work_s = holder.monotonic() - began_s
            if isinstance(end, Later) and ends.is_unknown_for_long(end, task, clients.clock.now()):
                end = Dead(end.reason)
            if end is None:
                telemetry.note_run(task.path, holder.lane.queue, Outcome.DONE, delay_s, work_s)
                self._note_done(task, work_s)
                return end
            self._delete_done()  # Earlier tasks of the turn.
            if isinstance(end, Dead):
                end = ends.give_up(holder, task, declared, end.reason)
            path = task.path if declared is not None else UNKNOWN
            telemetry.note_run(path, holder.lane.queue, ends.outcome_of(end), delay_s, work_s)
            if isinstance(end, Later):
                log.info("%s waits for %g s: %s", task.path, end.pause_s, end.reason)
        return end

    def _note_done(self, task: LaneTask, work_s: float) -> None:
        """Delete a task that is done: now, or with later tasks, or with the claim.

        A worker that dies before the deletion repeats the task.
        """
        self._ended.add(task.key.id())
        self._running = None
        self._done.append(task)
        self._done_s += work_s
        is_last = self._begun == len(self._tasks) or not self._holder.has_time
        # The first one always, so that it is known over which task a worker has died.
        is_alone = self._begun == 1 or self._holder.claim.is_careful
        is_due = not is_last and (is_alone or self._done_s >= TOGETHER_S)
        if is_due or ends.has_more_rows(task):
            self._delete_done()

    def _delete_done(self) -> None:
        if self._done:
            ends.finish(self._holder, *self._done)
        self._done, self._done_s = [], 0.0

    def release(self, goes_on: str = "") -> frozenset[str] | None:
        pace_ms = max(1, round(1000 * self._took_s / self._begun)) if self._begun else 0
        try:
            claimed_ids = self._holder.release(
                *(self._ended, self._running),
                begun=self._begun,
                pace_ms=pace_ms,
                goes_on=goes_on,
                done=[task for task in self._done if not ends.has_more_rows(task)],
            )
        except TRANSIENT:
            self._delete_done()  # A commit of their own reads nothing.
            raise
        # Those with more rows, whose deletion has failed before.
        self._done = [task for task in self._done if ends.has_more_rows(task)]
        self._delete_done()
        return claimed_ids


def _end(clients: Clients, task: LaneTask, declared: Task[Any] | None) -> End:
    """Call the function of a task; return how that ended."""
    if declared is None:
        return ends.unknown(f"{task.path} is not declared")
    if task.failures >= declared.max_attempts:
        return Dead(f"{task.failures} runs failed, or ended without a word: {task.reason}")
    try:
        args = declared.read(deliveries.begin(clients, task.body.encode()))
    except EndedError:
        return None
    except ArgumentsGoneError as error:
        return Dead(str(error))
    except BadArgumentsError as error:
        return ends.unknown(f"BadArgumentsError: {error}")
    except Exception as error:
        return _end_of(error, task, declared)
    try:
        run_app(declared.work, clients, args)
    except APP_ERRORS as error:
        end = _end_of(error, task, declared)
        if isinstance(end, Dead) or (isinstance(end, Later) and end.is_failure):
            log.exception("%s failed", task.path)
        return end
    return None


def _due(task: LaneTask) -> datetime.datetime:
    """Return when a task was due: at its place, or after its last pause."""
    return aware_utc(task.not_before) or time_of(task.key.id())


def _end_of(error: BaseException, task: LaneTask, declared: Task[Any]) -> End:
    failures = int(task.failures)
    return ends.end_of(error, failures=failures, max_attempts=declared.max_attempts)


def _declared(clients: Clients, path: str) -> Task[Any] | None:
    tasks = clients.task_paths
    task = tasks.get(path) if isinstance(tasks, Mapping) else None
    return task if isinstance(task, Task) else None
