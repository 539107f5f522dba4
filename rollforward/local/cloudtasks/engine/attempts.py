"""Attempts: which delivery comes next, its request, and its end.

1. begin_ready (what pause, rate and concurrency allow) or begin (a named one, limits or not)
   returns the attempt with the request to send.
2. end takes the response; outcomes.py decides the task's outcome.
"""

import logging

from rollforward.local.cloudtasks.delivery.app_engine import AppEngineApp
from rollforward.local.cloudtasks.delivery.faults import DEFAULT_DELAY_S
from rollforward.local.cloudtasks.delivery.outgoing import OutgoingRequest, build_request
from rollforward.local.cloudtasks.delivery.tokens import TokenIssuer
from rollforward.local.cloudtasks.engine.engine_state import EngineState
from rollforward.local.cloudtasks.engine.outcomes import Outcomes
from rollforward.local.cloudtasks.engine.queue_state import QueueState, phase_of
from rollforward.local.cloudtasks.protocol import errors, messages
from rollforward.local.cloudtasks.protocol.names import queue_of_task
from rollforward.local.cloudtasks.store.records import (
    DUPLICATE,
    LIVE,
    NORMAL,
    OVERLAP,
    Attempt,
    DueDelivery,
    Response,
    TaskRecord,
)

_DEFAULT_KILL_AFTER_S = 0.05
# The service charges a larger delivery as several operations.
_CHARGED_BYTES = 32 * 1024

log = logging.getLogger(__name__)


class Attempts:
    """The attempts of one engine; each public method is one transaction of the store.

    Attributes:
        operations: The operations that the service would have charged for deliveries since the
            start.
    """

    def __init__(
        self, state: EngineState, app: AppEngineApp, tokens: TokenIssuer, last_id: int
    ) -> None:
        self._state = state
        self._app = app
        self._tokens = tokens
        self._last_id = last_id
        self.operations = 0
        self._outcomes = Outcomes(state)

    def due(self, queue_name: str = "") -> list[DueDelivery]:
        """Return what could be delivered now, rates and concurrency aside."""
        with self._state.lock:
            now_s = self._state.clock.now()
            deliveries: list[DueDelivery] = []
            for queue in self._state.select(queue_name):
                deliveries += [DueDelivery(task.name, kind, now_s) for task, kind in queue.extras]
                tasks = [] if queue.dispatches_nothing else queue.due_tasks(now_s)
                deliveries += [DueDelivery(task.name, NORMAL, task.due_at) for task in tasks]
            return deliveries

    def begin(self, name: str, kind: str = NORMAL) -> Attempt:
        """Begin one delivery by hand: of a waiting task, or of a due copy.

        Raises:
            Refused: NOT_FOUND: the task does not exist, or no copy is due. FAILED_PRECONDITION: the
                task is for a lease.
        """
        state = self._state
        with state.change():
            now_s = state.clock.now()
            if kind == NORMAL:
                queue, task = state.live_push_task(name)
                task.entry = None
                return self._begin(queue, task, NORMAL, now_s)
            queue = state.queue(queue_of_task(name))
            extra = next((e for e in queue.extras if (e[0].name, e[1]) == (name, kind)), None)
            if extra is None:
                raise errors.entity_unknown()
            queue.extras.remove(extra)
            return self._begin(queue, extra[0], kind, now_s)

    def begin_ready(self, limit: int = 256) -> list[Attempt]:
        """Begin what every queue's state, rate and concurrency allow, up to limit per queue.

        A task of which no request can be made is logged, and waits for the next start: without the
        attempt that has begun with it, it would be running here, and never be sent.
        """
        with self._state.change(is_news=False):
            now_s = self._state.clock.now()
            begun: list[Attempt] = []
            for queue in self._state.queues.values():
                for _ in range(limit):
                    try:
                        attempt = self._begin_next(queue, now_s)
                    except ValueError:
                        log.exception("A task of %s cannot be sent", queue.name)
                        continue
                    if attempt is None:
                        break
                    begun.append(attempt)
            return begun

    def wake_at(self) -> float | None:
        """Return when begin_ready may have something, if nothing else happens."""
        with self._state.lock:
            now_s = self._state.clock.now()
            times = [queue.wake_at(now_s) for queue in self._state.queues.values()]
            return min((at for at in times if at is not None), default=None)

    def request_of(self, name: str) -> OutgoingRequest:
        """Return the request that the next attempt of a task would send, in any state.

        Raises:
            Refused: NOT_FOUND: the task or its queue is unknown. FAILED_PRECONDITION: it sends
                none.
        """
        with self._state.lock:
            queue = self._state.queue(queue_of_task(name))
            task = queue.tasks.get(name) or self._state.stored_task(name)
            if task is None:
                raise errors.entity_unknown()
            if task.pull is not None:
                raise errors.not_sent()
            spec = messages.Task.FromString(task.spec)
            return build_request(
                task, spec, queue.message, task.dispatch_count, self._app, self._tokens
            )

    def _begin_next(self, queue: QueueState, now_s: float) -> Attempt | None:
        while queue.extras:
            task, kind = queue.extras.popleft()
            if kind == DUPLICATE or task.state == LIVE:
                return self._begin(queue, task, kind, now_s)
        while queue.is_open(now_s):
            task_due = self._next_due(queue, now_s)
            if task_due is None:
                return None
            if self._is_held_back(queue, task_due, now_s):
                continue
            queue.take_token(now_s)
            return self._begin(queue, task_due, NORMAL, now_s)
        return None

    def _next_due(self, queue: QueueState, now_s: float) -> TaskRecord | None:
        head = queue.head()
        if head is None or head.due_at > now_s:
            return None
        faults = self._state.faults
        reorders = faults.matching_rule("reorder", head) is not None
        return queue.pop_due(now_s, faults.pick if reorders else None)

    def _is_held_back(self, queue: QueueState, task: TaskRecord, now_s: float) -> bool:
        """Let a due task wait, once for each attempt; return whether it does.

        For as long as a dispatch takes, and for a delay fault if one strikes.
        """
        if task.due_at != task.schedule_at:
            return False
        rule = self._state.faults.matching_rule("delay", task)
        held_s = self._state.behaviour.dispatch_s()
        if rule is not None:
            held_s += DEFAULT_DELAY_S if rule.param is None else rule.param
        if rule is None and held_s <= 0:
            return False
        task.is_delayed = rule is not None
        task.due_at = now_s + held_s
        queue.push(task)
        self._state.store.tasks.update(task)
        return True

    def _begin(self, queue: QueueState, task: TaskRecord, kind: str, now_s: float) -> Attempt:
        attempt = self._new(queue, task, kind, now_s)
        self._apply_faults(queue, attempt)
        self._state.running[attempt.id] = attempt
        queue.running += 1
        if not attempt.is_copy:
            self._count_dispatch(queue, task, now_s)
        self._state.store.attempts.insert(attempt)
        return attempt

    def _new(self, queue: QueueState, task: TaskRecord, kind: str, now_s: float) -> Attempt:
        spec = messages.Task.FromString(task.spec)
        number = task.dispatch_count
        if kind in (DUPLICATE, OVERLAP):
            number = max(0, number - 1)
        request = build_request(task, spec, queue.message, number, self._app, self._tokens)
        self._last_id += 1
        self.operations += max(1, -(-len(request.body) // _CHARGED_BYTES))
        return Attempt(
            id=self._last_id,
            task=task,
            number=number,
            kind=kind,
            method=request.method,
            url=request.url,
            headers=request.headers,
            body=request.body,
            deadline_s=messages.seconds_of(spec.dispatch_deadline),
            follows_redirects=not task.is_app_engine,
            started_at=now_s,
            started_real=self._state.clock.real(),
            queue=queue,
        )

    def _apply_faults(self, queue: QueueState, attempt: Attempt) -> None:
        """Mark the attempt with the faults that strike it."""
        task, faults = attempt.task, self._state.faults
        if task.is_delayed:
            attempt.faults.append("delay")
            task.is_delayed = False
        if faults.matching_rule("error", task):
            attempt.answers_500 = True
            attempt.faults.append("error")
        if rule := faults.matching_rule("kill_worker", task):
            attempt.kills_worker = True
            attempt.kill_after_s = _DEFAULT_KILL_AFTER_S if rule.param is None else rule.param
            attempt.faults.append("kill_worker")
        if attempt.is_copy:
            attempt.faults.append(attempt.kind)
            return
        # A handler that is not called sends no response that could be lost.
        if not attempt.answers_500 and faults.matching_rule("lose_response", task):
            attempt.loses_response = True
            attempt.faults.append("lose_response")
        if faults.matching_rule("overlap", task):
            queue.extras.append((task, OVERLAP))

    def _count_dispatch(self, queue: QueueState, task: TaskRecord, now_s: float) -> None:
        old_phase = phase_of(task)
        task.dispatch_count += 1
        task.running += 1
        queue.move(task, old_phase)
        if task.first_attempt_at is None:
            task.first_attempt_at = now_s
        task.last_schedule_at, task.last_dispatch_at = task.schedule_at, now_s
        task.last_response_at = None
        self._state.store.tasks.update(task)

    def end(self, attempt_id: int, response: Response) -> Attempt | None:
        """End an attempt; return it, or None when it was forgotten meanwhile."""
        with self._state.change():
            attempt = self._state.running.pop(attempt_id, None)
            if attempt is not None:
                self._outcomes.apply(attempt, response)
            return attempt

    def is_running(self, attempt_id: int) -> bool:
        """Return whether an attempt has begun and not ended (nor been reset away)."""
        with self._state.lock:
            return attempt_id in self._state.running

    def forget(self, queue: QueueState) -> None:
        """Forget what runs of a queue: its end will change nothing."""
        self._state.running = {
            key: attempt
            for key, attempt in self._state.running.items()
            if attempt.queue is not queue
        }
