"""The tasks of the API: created, listed, deleted, run and retried."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from rollforward.local.cloudtasks.engine.engine_state import EngineState
from rollforward.local.cloudtasks.engine.queue_state import QueueState
from rollforward.local.cloudtasks.protocol import errors, messages, validation
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.protocol.names import project_of, queue_of_task
from rollforward.local.cloudtasks.protocol.paging import MAX_RESPONSE_BYTES, PageTokens
from rollforward.local.cloudtasks.protocol.task_messages import Show, in_view, record_of
from rollforward.local.cloudtasks.store.records import (
    DELETED,
    DONE,
    DUPLICATE,
    FAILED,
    FORCED,
    LIVE,
    PullMessage,
    TaskRecord,
)

MAX_TASKS_PAGE = 1000


class Tasks:
    """The tasks of one engine; each public method is one transaction of the store."""

    def __init__(self, state: EngineState, page_tokens: PageTokens, last_sequence: int) -> None:
        self._state = state
        self._page_tokens = page_tokens
        self._last_sequence = last_sequence

    def create(
        self,
        parent: str,
        request: Any,
        view: int = messages.BASIC,
        *,
        pull: PullMessage | None = None,
    ) -> Any:
        """Add a task and return it as the view shows it.

        Args:
            pull: The content of a task for a pull queue.

        Raises:
            Refused: a rule is broken, the queue is unknown, or the name was
                used before.
        """
        with self._state.change():
            self._state.place.check_queue_name(parent)
            if request.name:
                self._check_named(parent, request.name)
            return self._add(self._state.queue(parent), request, view, pull)

    def create_many(self, parent: str, requests: Iterable[Any]) -> list[Any]:
        """Add many tasks in one commit; a refused one yields its Refused.

        Raises:
            Refused: the queue is unknown.
        """
        with self._state.change():
            self._state.queue(parent)
            return [
                _or_error(self.create, parent, request.task, request.response_view)
                for request in requests
            ]

    def _check_named(self, parent: str, name: str) -> None:
        self._state.place.check_task_name(name)
        if (queue_name := queue_of_task(name)) != parent:
            raise errors.task_of_other_queue(parent, queue_name)

    def _add(self, queue: QueueState, request: Any, view: int, pull: PullMessage | None) -> Any:
        if queue.is_pull != (pull is not None):
            raise errors.wrong_content(queue.is_pull)
        now_s = self._state.clock.now()
        schedule_at = validation.schedule_of(request, now_s)
        message = messages.Task()
        if pull is None:
            validation.complete_task(request, message, project_of(queue.name))
        if request.name and self._is_taken(queue, request.name, now_s):
            raise errors.task_exists()
        sequence = self._last_sequence + 1
        message.name = request.name or f"{queue.name}/tasks/{self._state.task_ids.id_of(sequence)}"
        message.create_time.seconds = int(now_s)
        validation.check_size(request, message, schedule_at, pull)
        self._last_sequence = sequence
        task = record_of(
            message,
            queue.name,
            sequence=sequence,
            is_named=bool(request.name),
            schedule_at=schedule_at,
            now_s=now_s,
            pull=pull,
        )
        self._state.store.tasks.insert(task)
        queue.add(task)
        return in_view(task, view, message)

    def _is_taken(self, queue: QueueState, name: str, now_s: float) -> bool:
        return name in queue.tasks or self._state.store.names.blocked_until(name) > now_s

    def get(self, name: str, view: int = messages.BASIC, show: Show = in_view) -> Any:
        """Return a live task.

        Args:
            show: Makes the message of it.

        Raises:
            Refused: NOT_FOUND, in other words when the task ended recently.
        """
        with self._state.lock:
            self._state.place.check_task_name(name)
            queue = self._state.queues.get(queue_of_task(name))
            task = queue.tasks.get(name) if queue else None
            if task is not None:
                return show(task, view)
            if self._ended_recently(name):
                raise errors.task_ended()
            raise errors.entity_unknown()

    def _ended_recently(self, name: str) -> bool:
        state, now_s = self._state, self._state.clock.now()
        if state.store.names.blocked_until(name) > now_s:
            return True
        # Names of the service's own making have no tombstone: nobody may ask
        # for them again. Their history says when they ended.
        task = state.stored_task(name)
        queue = state.queues.get(queue_of_task(name))
        if task is None or task.ended_at is None or queue is None:
            return False
        return task.ended_at + state.retention.name_s(queue) > now_s

    def page(
        self,
        parent: str,
        view: int = messages.BASIC,
        size: int = 0,
        token: str = "",
        show: Show = in_view,
    ) -> tuple[list[Any], str]:
        """Return a page of a queue's live tasks, oldest first, and the next token.

        A page of large tasks has fewer.

        Args:
            show: Makes the message of each.

        Raises:
            Refused: the queue is unknown or the token is not understood.
        """
        with self._state.lock:
            queue, listing = self._state.queue(parent), f"tasks:{parent}"
            start, limit = self._page_tokens.start(listing, size, token, MAX_TASKS_PAGE)
            tasks = _first_after(queue.tasks.values(), int(start or 0), limit + 1)
            fitting = _first_page(tasks[:limit])
            page = [show(task, view) for task in fitting]
            if len(tasks) == len(fitting):
                return page, ""
            return page, self._page_tokens.next(listing, str(fitting[-1].sequence))

    def delete(self, name: str) -> None:
        """Delete a live task; an attempt in progress is not stopped.

        Raises:
            Refused: NOT_FOUND.
        """
        with self._state.change():
            queue, task = self._state.live_task(name)
            self._state.finish(queue, task, DELETED)

    def delete_many(self, task_names: Iterable[str]) -> list[Refused | None]:
        """Delete many tasks in one commit; a refused one yields its Refused."""
        with self._state.change():
            return [_or_error(self.delete, name) for name in task_names]

    def act_on_many(self, act: Callable[[str], Any], task_names: Iterable[str]) -> int:
        """Run, retry or delete many tasks in one commit; return how many were not refused."""
        with self._state.change():
            ends = [_or_error(act, name) for name in task_names]
            return sum(not isinstance(end, Refused) for end in ends)

    def delete_older(self) -> None:
        """Delete the tasks that have not succeeded within their retention."""
        state = self._state
        with state.change():
            now_s = state.clock.now()
            for queue in state.queues.values():
                created_before = now_s - state.retention.live_s(queue)
                for task in [*queue.tasks.values()]:
                    if task.created_at < created_before:
                        state.finish(queue, task, DELETED)

    def run(self, name: str, view: int = messages.BASIC) -> Any:
        """Dispatch a live task now, regardless of its queue's state, rate and load.

        Raises:
            Refused: NOT_FOUND, or FAILED_PRECONDITION for a task that is for a lease.
        """
        with self._state.change():
            queue, task = self._state.live_push_task(name)
            task.schedule_at = task.due_at = self._state.clock.now()
            task.entry = None
            queue.extras.append((task, FORCED))
            self._state.store.tasks.update(task)
            return in_view(task, view)

    def retry(self, name: str) -> None:
        """Put a task back to work: a window of the emulator, not of the service.

        A waiting task becomes due now, and a failed one becomes live again. A task that is done is
        delivered once more, as a duplicate. A lease of the task ends.

        Raises:
            Refused: NOT_FOUND, or FAILED_PRECONDITION for a deleted task, or one that a worker has
                acknowledged.
        """
        with self._state.change():
            queue = self._state.queue(queue_of_task(name))
            task = queue.tasks.get(name) or self._state.stored_task(name)
            if task is None:
                raise errors.entity_unknown()
            if task.state == DELETED:
                raise Refused("FAILED_PRECONDITION", "The task was deleted.")
            if task.state == DONE and task.pull is not None:
                raise errors.not_sent()
            if task.state == DONE:
                queue.extras.append((task, DUPLICATE))
            elif not task.running:
                self._make_due(queue, task)

    def go_back(self, since: float) -> int:
        """Undo the outcomes of tasks from a moment on; return how many are due again or dropped.

        For a store behind the handlers that has gone back to that moment. Tasks that ended live
        again: what they did is gone. Tasks that were created are dropped and their names free:
        what asked for them is gone, or asks again. Deleted tasks stay deleted, and tasks of other
        projects stay as they are: their store is another one.
        """
        state = self._state
        project = f"projects/{state.place.project}/"
        queues = {name: queue for name, queue in state.queues.items() if name.startswith(project)}
        with state.change():
            dropped = [
                (queue, task)
                for queue in queues.values()
                for task in queue.tasks.values()
                if task.created_at >= since
            ]
            for queue, task in dropped:
                state.finish(queue, task, DELETED)
            state.store.names.free(since, project)
            revived = [
                task
                for task in state.store.tasks.ended(since, (DONE, FAILED))
                if task.created_at < since and task.queue in queues
            ]
            for task in revived:
                self._make_due(queues[task.queue], task)
            return len(dropped) + len(revived)

    def _make_due(self, queue: QueueState, task: TaskRecord) -> None:
        """Let a task be due now; one that has ended lives again."""
        was_live = task.state == LIVE
        task.schedule_at = task.due_at = self._state.clock.now()
        task.state, task.ended_at = LIVE, None
        self._state.store.tasks.update(task)
        if was_live:
            queue.push(task)
        else:
            queue.add(task)


def _or_error(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or its Refused."""
    try:
        return call(*arguments)
    except Refused as refused:
        return refused


def _first_after(tasks: Iterable[TaskRecord], sequence: int, limit: int) -> list[TaskRecord]:
    """Return the first tasks with a higher sequence, in order of sequence."""
    later_tasks = [task for task in tasks if task.sequence > sequence]
    return sorted(later_tasks, key=lambda task: task.sequence)[:limit]


def _first_page(tasks: list[TaskRecord]) -> list[TaskRecord]:
    """Return the first tasks, as many as a response may have, and one at least."""
    total_bytes = itertools.accumulate(task.size_bytes for task in tasks)
    count = sum(size <= MAX_RESPONSE_BYTES for size in total_bytes)
    return tasks[: max(1, count)]
