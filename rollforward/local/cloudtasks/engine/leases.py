"""The leases of pull queues: a task is a worker's until its schedule time, or acknowledged.

A leased task stays in the queue, due when the lease ends. Its schedule time is the proof of the
lease: a worker names it to acknowledge, to renew and to cancel, and the next lease changes it.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2beta2
"""

from typing import Any

from rollforward.local.cloudtasks.delivery.retries import policy_of
from rollforward.local.cloudtasks.engine.engine_state import EngineState
from rollforward.local.cloudtasks.engine.queue_state import QueueState, phase_of
from rollforward.local.cloudtasks.protocol import errors
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.protocol.leases import TagFilter
from rollforward.local.cloudtasks.protocol.messages import micros_of
from rollforward.local.cloudtasks.protocol.paging import MAX_RESPONSE_BYTES
from rollforward.local.cloudtasks.protocol.task_messages import Show
from rollforward.local.cloudtasks.store.records import DONE, FAILED, TaskRecord


class Leases:
    """The leases of one engine; each public method is one transaction of the store."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def lease(
        self, parent: str, max_tasks: int, lease_s: int, tags: TagFilter, view: int, show: Show
    ) -> list[Any]:
        """Lease tasks that are due, earliest first, and return them as the view shows them.

        Raises:
            Refused: the queue is unknown, paused or no pull queue, or is called too often.
        """
        with self._state.change():
            queue, now_s = self._state.queue(parent), self._state.clock.now()
            _check_queue(queue)
            _take_call(queue, now_s)
            tag = _oldest_tag(queue, now_s) if tags.is_oldest else tags.tag
            leased: list[Any] = []
            total_bytes = 0
            while len(leased) < max_tasks and (task := self._next(queue, tag, now_s)):
                total_bytes += task.size_bytes
                if leased and total_bytes > MAX_RESPONSE_BYTES:
                    queue.push(task)
                    break
                self._begin(queue, task, now_s, lease_s)
                leased.append(show(task, view))
            return leased

    def acknowledge(self, name: str, schedule_at: float) -> None:
        """End a task whose worker has done its work.

        Raises:
            Refused: NOT_FOUND, or the lease is not the current one.
        """
        with self._state.change():
            queue, task = self._leased(name, schedule_at)
            self._state.finish(queue, task, DONE)

    def renew(self, name: str, schedule_at: float, lease_s: int) -> TaskRecord:
        """Extend a lease, by this many seconds from now.

        Raises:
            Refused: NOT_FOUND, or the lease is not the current one.
        """
        return self._end_at(name, schedule_at, lease_s)

    def cancel(self, name: str, schedule_at: float) -> TaskRecord:
        """End a lease: the task is due for another one.

        Raises:
            Refused: NOT_FOUND, or the lease is not the current one.
        """
        return self._end_at(name, schedule_at, 0)

    def _end_at(self, name: str, schedule_at: float, lease_s: int) -> TaskRecord:
        with self._state.change():
            queue, task = self._leased(name, schedule_at)
            self._schedule(queue, task, self._state.clock.now() + lease_s)
            return task

    def _leased(self, name: str, schedule_at: float) -> tuple[QueueState, TaskRecord]:
        """Return a task whose current lease ends at this time, with its queue."""
        queue, task = self._state.live_task(name)
        is_current = micros_of(task.schedule_at) == micros_of(schedule_at)
        if not is_current or not task.is_leased(self._state.clock.now()):
            raise errors.not_leased()
        return queue, task

    def _next(self, queue: QueueState, tag: str | None, now_s: float) -> TaskRecord | None:
        """Take out the next due task; a task whose leases are used up fails on the way."""
        policy = policy_of(queue.message.retry_config)
        while True:
            task = queue.pop_due(now_s) if tag is None else queue.pop_tagged(now_s, tag)
            if task is None:
                return None
            first_at = task.first_attempt_at
            if first_at is None or not policy.gives_up(task.dispatch_count, now_s - first_at):
                return task
            self._state.finish(queue, task, FAILED)

    def _begin(self, queue: QueueState, task: TaskRecord, now_s: float, lease_s: int) -> None:
        old_phase = phase_of(task)
        task.dispatch_count += 1
        queue.move(task, old_phase)
        if task.first_attempt_at is None:
            task.first_attempt_at = now_s
        task.last_schedule_at, task.last_dispatch_at = task.schedule_at, now_s
        self._schedule(queue, task, now_s + lease_s)

    def _schedule(self, queue: QueueState, task: TaskRecord, at: float) -> None:
        task.schedule_at = task.due_at = at
        queue.push(task)
        self._state.store.tasks.update(task)


def _check_queue(queue: QueueState) -> None:
    if not queue.is_pull:
        raise Refused("FAILED_PRECONDITION", "Only tasks of a pull queue can be leased.")
    if queue.is_paused:
        raise Refused("FAILED_PRECONDITION", "The queue is paused: no task can be leased from it.")


def _take_call(queue: QueueState, now_s: float) -> None:
    """Spend one call of the rate that a queue allows."""
    queue.lease_calls.fill(now_s, 1.0)
    if not queue.lease_calls.has_token():
        raise Refused(
            "RESOURCE_EXHAUSTED",
            f"At most {queue.lease_calls.burst} calls of LeaseTasks per second and queue.",
        )
    queue.lease_calls.tokens -= 1.0


def _oldest_tag(queue: QueueState, now_s: float) -> str | None:
    """Return the tag of the task that is due first, None if nothing is due."""
    head = queue.head()
    return head.pull.tag if head is not None and head.pull and head.due_at <= now_s else None
