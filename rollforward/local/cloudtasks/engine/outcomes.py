"""The outcome of an attempt: the task is done, is retried, or has failed for good."""

from rollforward.local.cloudtasks.delivery import statuses
from rollforward.local.cloudtasks.delivery.retries import policy_of
from rollforward.local.cloudtasks.engine.engine_state import EngineState
from rollforward.local.cloudtasks.engine.queue_state import QueueState, phase_of
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.store.records import (
    DONE,
    DUPLICATE,
    FAILED,
    FORCED,
    LIVE,
    OVERLAP,
    Attempt,
    Response,
    TaskRecord,
)

MAX_BODY_KEPT_BYTES = 64 * 1024


class Outcomes:
    """Applies the ends of attempts. Callers are inside a change of the state."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def apply(self, attempt: Attempt, response: Response) -> None:
        """End an attempt that ran, and its task if this decides it."""
        self._record(attempt, response)
        attempt.queue.running -= 1
        if attempt.is_copy:
            self._end_copy(attempt)
        else:
            self._end_current(attempt)
        self._state.store.attempts.end(attempt)

    def _record(self, attempt: Attempt, response: Response) -> None:
        """Write the response into the attempt; slow the queue down if it asks for that."""
        now_s = self._state.clock.now()
        attempt.duration_ms = (self._state.clock.real() - attempt.started_real) * 1000
        attempt.status = response.status
        attempt.error = response.error
        attempt.response_headers = dict(response.headers)
        attempt.response_body = response.body[:MAX_BODY_KEPT_BYTES]
        if attempt.loses_response and response.status is not None:
            attempt.error = "The response was lost (fault lose_response)."
            return
        is_app_engine = attempt.task.is_app_engine
        if statuses.throttles(is_app_engine, response.status):
            heeds = statuses.supports_retry_after(is_app_engine, response.status)
            pause_s = statuses.retry_after_s(response.headers, now_s) if heeds else 0.0
            attempt.queue.throttle.slow_down(now_s, pause_s)

    def _end_copy(self, attempt: Attempt) -> None:
        """End a repeated delivery: only the success of an overlapping one counts."""
        if attempt.kind == OVERLAP and attempt.has_succeeded and attempt.task.state == LIVE:
            self._succeed(attempt.queue, attempt.task)

    def _end_current(self, attempt: Attempt) -> None:
        task, queue = attempt.task, attempt.queue
        old_phase = phase_of(task)
        task.running -= 1
        _count_response(attempt, self._state.clock.now())
        if task.state != LIVE:
            self._state.store.tasks.update(task)
            return
        queue.move(task, old_phase)
        if attempt.has_succeeded:
            self._succeed(queue, task)
        elif task.running:
            self._state.store.tasks.update(task)  # Another attempt of it will decide.
        else:
            self._fail(attempt)

    def _succeed(self, queue: QueueState, task: TaskRecord) -> None:
        self._state.finish(queue, task, DONE)
        if self._state.faults.matching_rule("duplicate", task):
            queue.extras.append((task, DUPLICATE))

    def _fail(self, attempt: Attempt) -> None:
        """Schedule the retry of a failed task, or give it up."""
        task, queue, now_s = attempt.task, attempt.queue, self._state.clock.now()
        spec = messages.Task.FromString(task.spec)
        task_config = spec.retry_config if spec.HasField("retry_config") else None
        policy = policy_of(queue.message.retry_config, task_config)
        first_at = task.first_attempt_at if task.first_attempt_at is not None else now_s
        if policy.gives_up(task.dispatch_count, now_s - first_at):
            self._state.finish(queue, task, FAILED)
            return
        delay_s = policy.delay_s(task.dispatch_count)
        if statuses.supports_retry_after(task.is_app_engine, attempt.status):
            delay_s = max(delay_s, statuses.retry_after_s(attempt.response_headers, now_s))
        base = attempt.started_at if attempt.kind == FORCED else now_s
        task.schedule_at = task.due_at = attempt.next_retry_at = base + delay_s
        queue.push(task)
        self._state.store.tasks.update(task)


def _count_response(attempt: Attempt, now_s: float) -> None:
    """Note the next attempt's headers and the task's counters after this one."""
    task = attempt.task
    status = attempt.status if attempt.error is None else None
    task.last_response_at = now_s
    task.last_code, task.last_message = statuses.attempt_status(status, attempt.error)
    if status is not None:
        task.response_count += 1
    if attempt.has_succeeded:
        return
    task.previous_status = statuses.previous_response(task.is_app_engine, status, attempt.error)
    task.retry_reason = statuses.retry_reason(task.is_app_engine, status)
    if status is not None and statuses.counts_as_execution(task.is_app_engine, status):
        task.execution_count += 1
