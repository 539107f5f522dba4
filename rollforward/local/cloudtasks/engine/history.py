"""The history that the service hides: tasks of any state, with their attempts."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from rollforward.local.cloudtasks.delivery.faults import FAILING
from rollforward.local.cloudtasks.delivery.reasons import reason_of
from rollforward.local.cloudtasks.engine import queue_state
from rollforward.local.cloudtasks.engine.engine_state import EngineState
from rollforward.local.cloudtasks.engine.queue_state import phase_of
from rollforward.local.cloudtasks.protocol import errors
from rollforward.local.cloudtasks.store.records import DELETED, DONE, FAILED, LIVE, TaskRecord

_MAX_LOOKED_AT = 20_000
_ABOVE_ALL = 2**63 - 1  # The highest sequence that the store can hold.


@dataclass(frozen=True)
class QueueLoad:
    """The load of a queue.

    Attributes:
        next_at: The time when the first of its tasks is due, None without tasks.
        rate_per_s: Dispatches per second that it allows now.
    """

    tasks: int
    next_at: float | None
    ended_last_minute: int
    running: int
    rate_per_s: float


class History:
    """The tasks of one engine, live and ended, as far as ended ones are kept."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def state_of(self, task: TaskRecord) -> str:
        """Return a task's state in words for people."""
        if task.state != LIVE:
            return task.state
        if task.is_leased(self._state.clock.now()):
            return queue_state.RUNNING
        phase = phase_of(task)
        if phase != queue_state.WAITING:
            return phase
        return "scheduled" if task.due_at > self._state.clock.now() else "queued"

    def last_error(self, task: TaskRecord) -> str:
        """Return why a task's last attempt failed, if it did, in the app's own words if it says.

        The service's words come from its status alone.
        """
        if not task.last_message:
            return ""
        with self._state.lock:
            reason = reason_of(self._state.store.attempts.last_response(task.sequence))
        return reason.detail if reason and reason.detail else task.last_message

    def last_fault(self, task: TaskRecord) -> str:
        """Return the kind of the fault that failed a task's last attempt, "" if none did."""
        if not task.last_message:
            return ""
        with self._state.lock:
            faults = self._state.store.attempts.last_faults(task.sequence)
        return next((kind for kind in faults if kind in FAILING), "")

    def last_duration_ms(self, task: TaskRecord) -> float | None:
        """Return how long a task's newest attempt took, None if none has ended."""
        with self._state.lock:
            return self._state.store.attempts.last_duration_ms(task.sequence)

    def holding(self, text: str, limit: int) -> tuple[list[TaskRecord], list[Any]]:
        """Return the newest tasks whose request holds a text, and the rows of their attempts.

        Only the newest 20,000 tasks are looked at: nothing is dispatched meanwhile.
        """
        with self._state.lock:
            newest = self._state.store.tasks.newest(_ABOVE_ALL, 1)
            above = newest[0].sequence - _MAX_LOOKED_AT if newest else 0
            stored = self._state.store.tasks.newest(
                _ABOVE_ALL, limit, above=above, holding=text.encode()
            )
            tasks = [self._in_memory(task) for task in stored]
            rows = self._state.store.attempts.of_tasks([task.sequence for task in tasks])
            return tasks, rows

    def attempts_since(self, since: float, limit: int) -> list[Any]:
        """Return the rows of attempts that began since a moment, among the `limit` youngest."""
        with self._state.lock:
            return self._state.store.attempts.newest(since, limit)

    def running(self, limit: int) -> list[tuple[TaskRecord, list[Any]]]:
        """Return running tasks, the newest first, each with the rows of its attempts."""
        with self._state.lock:
            tasks = self.newest("", queue_state.RUNNING, 0, limit)
            rows = self._state.store.attempts.of_tasks([task.sequence for task in tasks])
        return [(task, [row for row in rows if row["sequence"] == task.sequence]) for task in tasks]

    def counts(self) -> dict[str, Counter[str]]:
        """Return how many tasks are in each state, by queue; ended ones as far as kept."""
        with self._state.lock:
            counts = {
                name: Counter(self.state_of(task) for task in queue.tasks.values())
                for name, queue in self._state.queues.items()
            }
            for (name, state), count in self._state.store.tasks.ended_counts().items():
                if name in counts:
                    counts[name][state] += count
            return counts

    def figures(self, queue_name: str) -> QueueLoad:
        """Return the load of a queue.

        Raises:
            Refused: NOT_FOUND.
        """
        state = self._state
        with state.lock:
            queue, now_s = state.queue(queue_name), state.clock.now()
            queue.throttle.recover(now_s)
            rate_per_s = queue.message.rate_limits.max_dispatches_per_second
            return QueueLoad(
                tasks=len(queue.tasks),
                next_at=min((task.due_at for task in queue.tasks.values()), default=None),
                ended_last_minute=state.store.attempts.ended_since(queue_name, now_s - 60),
                running=queue.running,
                rate_per_s=rate_per_s * queue.throttle.factor,
            )

    def newest(
        self, queue_name: str = "", state: str = "", before: int = 0, limit: int = 50
    ) -> list[TaskRecord]:
        """Return tasks, newest first.

        Args:
            queue_name: Only tasks of this queue.
            state: Only tasks in this state; LIVE for all that have not ended, "" for any.
            before: Only those with a sequence below this one; 0 for all.
        """
        below = before or _ABOVE_ALL
        with self._state.lock:
            if state in ("", DONE, FAILED, DELETED):
                stored = self._state.store.tasks.newest(below, limit, queue_name, state)
                return [self._in_memory(task) for task in stored]
            tasks = [
                task
                for queue in self._state.select(queue_name)
                for task in queue.tasks.values()
                if task.sequence < below and state in (LIVE, self.state_of(task))
            ]
            return sorted(tasks, key=lambda task: -task.sequence)[:limit]

    def _in_memory(self, task: TaskRecord) -> TaskRecord:
        """Return the live object of a task, which also knows its running attempt."""
        queue = self._state.queues.get(task.queue)
        return queue.tasks.get(task.name, task) if queue else task

    def of_task(self, name: str) -> tuple[TaskRecord, list[Any]]:
        """Return a task of any state with the rows of its attempts.

        Raises:
            Refused: NOT_FOUND.
        """
        with self._state.lock:
            task = self._state.stored_task(name)
            if task is None:
                raise errors.entity_unknown()
            return self._in_memory(task), self._state.store.attempts.of_task(task.sequence)
