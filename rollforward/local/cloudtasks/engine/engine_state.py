"""The state that queues, tasks and attempts share: store, clock, faults, lock, live queues.

One lock guards everything. Every change happens inside change(), which is one
transaction of the store and wakes the dispatcher.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rollforward.local.cloudtasks.clock import Clock
from rollforward.local.cloudtasks.delivery.behaviour import Behaviour
from rollforward.local.cloudtasks.delivery.faults import FaultBook
from rollforward.local.cloudtasks.delivery.rates import Ramp
from rollforward.local.cloudtasks.engine import task_ids
from rollforward.local.cloudtasks.engine.queue_state import QueueState, phase_of
from rollforward.local.cloudtasks.engine.task_ids import TaskIds
from rollforward.local.cloudtasks.protocol import errors, messages
from rollforward.local.cloudtasks.protocol.names import Place, queue_of_task
from rollforward.local.cloudtasks.store.records import Attempt, TaskRecord
from rollforward.local.cloudtasks.store.store import Store

_DAY_S = 86400.0
_PRUNE_EVERY = 256


@dataclass(frozen=True)
class Retention:
    """Retention of history and of names.

    Attributes:
        tombstone_s: A task's name after its end, 24 hours at the service.
        yaml_tombstone_s: The same for a queue of queue.yaml, 9 days.
        queue_tombstone_s: A deleted queue's name, 3 days.
        task_s: A task that never succeeds, 31 days after its creation.
        yaml_task_s: The same for a queue of queue.yaml, 10 years.
        ended_tasks: How many ended tasks are kept to be looked at.
        operation_s: A long-running operation.
    """

    tombstone_s: float = _DAY_S
    yaml_tombstone_s: float = 9 * _DAY_S
    queue_tombstone_s: float = 3 * _DAY_S
    task_s: float = 31 * _DAY_S
    yaml_task_s: float = 3650 * _DAY_S
    ended_tasks: int = 20_000
    operation_s: float = _DAY_S

    def name_s(self, queue: QueueState) -> float:
        """Return for how long the name of a task stays blocked after its end."""
        return self.yaml_tombstone_s if queue.from_yaml else self.tombstone_s

    def live_s(self, queue: QueueState) -> float:
        """Return how old a task may become that never succeeds."""
        return self.yaml_task_s if queue.from_yaml else self.task_s


class EngineState:
    """The state of one engine.

    Attributes:
        lock: Held while anything here is read or changed.
        queues: The queues by their full names.
        running: The attempts that have begun and not ended, by their ids.
        task_ids: The ids of tasks whose callers chose none.
        change_listeners: Called after each change, or after several that came together.
    """

    def __init__(
        self,
        store: Store,
        place: Place,
        clock: Clock,
        faults: FaultBook,
        retention: Retention,
        behaviour: Behaviour,
    ) -> None:
        self.store = store
        self.place = place
        self.clock = clock
        self.faults = faults
        self.retention = retention
        self.behaviour = behaviour
        self.lock = threading.RLock()
        self.queues: dict[str, QueueState] = {}
        self.running: dict[int, Attempt] = {}
        salt = self.get_or_create("id_salt", lambda: str(secrets.randbits(task_ids.BITS)))
        self.task_ids = TaskIds(int(salt))
        self.change_listeners: list[Callable[[], None]] = []
        self._depth = 0
        self._is_together = False
        self._has_news = False
        self._ended_since_prune = 0

    @contextmanager
    def change(self, *, is_news: bool = True) -> Iterator[None]:
        """Hold the lock; commit, and tell the listeners, when the outermost block ends."""
        with self.lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                is_outermost = self._depth == 0
                if is_outermost and not self._is_together:
                    self._commit()
            is_told = is_outermost and is_news
            self._has_news |= is_told
            is_told &= not self._is_together
        if is_told:
            self._notify()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold the lock; the changes within are committed, and announced, together at the end."""
        with self.lock:
            self._is_together, self._has_news = True, False
            try:
                yield
            finally:
                self._is_together = False
                self._commit()
            is_told = self._has_news
        if is_told:
            self._notify()

    def _commit(self) -> None:
        """Commit; if that fails, go back to the stored state, as after a restart.

        Otherwise a task of a call that failed would be here and not on the disk: it would be
        delivered, its name would be taken, and the next start would lose it. An attempt in
        progress is sent again; its end is not known here. Faults, marks and the clock stay.
        """
        try:
            self.store.commit()
        except Exception:
            self.running.clear()
            self.queues.clear()
            self._take_over()
            raise

    def _notify(self) -> None:
        for listener in self.change_listeners:
            listener()

    def get_or_create(self, key: str, make: Callable[[], Any]) -> Any:
        """Return a value of the store, made and kept the first time."""
        value = self.store.meta(key)
        if value is None:
            value = make()
            self.store.set_meta(key, value)
        return value

    def load(self) -> None:
        """Take over the stored state; a task that was running is still due, and runs again."""
        self.store.attempts.close_lost()
        self._take_over()

    def _take_over(self) -> None:
        now_s = self.clock.now()
        for stored in self.store.queues.all():
            message = messages.Queue.FromString(stored.spec)
            self.queues[stored.name] = self.new_queue(
                message, stored.from_yaml, now_s, is_pull=stored.is_pull
            )
        for task in self.store.tasks.live():
            queue = self.queues[task.queue]
            task.queue = queue.name  # A million waiting tasks share the text.
            queue.add(task)

    def new_queue(
        self, message: Any, from_yaml: bool, now_s: float, *, is_pull: bool = False
    ) -> QueueState:
        """Return a queue that is cold."""
        ramp = Ramp(self.behaviour.allowed_per_s, self.behaviour.cold_after_s)
        return QueueState(message, from_yaml, now_s, ramp, is_pull=is_pull)

    def queue(self, name: str) -> QueueState:
        """Return a queue.

        Raises:
            Refused: NOT_FOUND, or the name is malformed.
        """
        self.place.check_queue_name(name)
        queue = self.queues.get(name)
        if queue is None:
            raise errors.queue_unknown()
        return queue

    def select(self, name: str = "") -> list[QueueState]:
        """Return the queue of this name, all of them for no name; none if it is unknown."""
        return [queue for queue in self.queues.values() if name in ("", queue.name)]

    def live_task(self, name: str) -> tuple[QueueState, TaskRecord]:
        """Return a task that has not ended, with its queue.

        Raises:
            Refused: NOT_FOUND, or the name is malformed.
        """
        self.place.check_task_name(name)
        queue = self.queues.get(queue_of_task(name))
        task = queue.tasks.get(name) if queue else None
        if queue is None or task is None:
            raise errors.entity_unknown()
        return queue, task

    def stored_task(self, name: str) -> TaskRecord | None:
        """Return the youngest task of a name from the store, ended or not."""
        return self.store.tasks.by_name(name, self.task_ids.sequence_of(name))

    def live_push_task(self, name: str) -> tuple[QueueState, TaskRecord]:
        """Return a task that has not ended and that is sent, with its queue.

        Raises:
            Refused: NOT_FOUND, the name is malformed, or the task is for a lease.
        """
        queue, task = self.live_task(name)
        if task.pull is not None:
            raise errors.not_sent()
        return queue, task

    def finish(self, queue: QueueState, task: TaskRecord, state: str) -> None:
        """End a live task; its name stays blocked for a while."""
        now_s = self.clock.now()
        queue.remove(task, phase_of(task))
        task.state, task.ended_at = state, now_s
        if task.is_named:
            self.store.names.block(task.name, now_s + self.retention.name_s(queue))
        self.store.tasks.update(task)
        self._ended_since_prune += 1
        if self._ended_since_prune >= _PRUNE_EVERY:
            self.prune()

    def prune(self) -> None:
        """Drop ended tasks beyond their number, and names and operations that expired."""
        now_s = self.clock.now()
        self._ended_since_prune = 0
        self.store.prune(self.retention.ended_tasks, now_s, now_s - self.retention.operation_s)
