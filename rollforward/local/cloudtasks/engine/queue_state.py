"""A queue at work: its live tasks, and which of them may go next."""

import itertools
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from rollforward.local.cloudtasks.delivery.rates import Ramp, Throttle, TokenBucket
from rollforward.local.cloudtasks.engine.due_heap import DueHeap
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.store.records import TaskRecord

# Reordering looks this far down the queue: enough to mix any test's tasks,
# and bounded for a queue of many thousands.
_REORDER_DEPTH = 64
LEASE_CALLS_PER_S = 10

WAITING, RETRYING, RUNNING = "waiting", "retrying", "running"


class QueueState:
    """One queue. Callers hold the engine's lock.

    Attributes:
        message: The Queue message, as the API shows it.
        name: The queue's full name, one text for all of its tasks.
        tasks: The live tasks by name, oldest first.
        extras: Deliveries outside the order and the limits: (task, kind).
        running: Deliveries in progress, copies included.
        phases: How many live tasks wait, retry or run.
        is_pull: Its tasks are not sent: workers lease them.
        lease_calls: The rate of LeaseTasks calls, as a bucket of tokens.
    """

    def __init__(
        self,
        message: Any,
        from_yaml: bool,
        now_s: float,
        ramp: Ramp | None = None,
        *,
        is_pull: bool = False,
    ) -> None:
        self.message = message
        self.name = str(message.name)
        self.from_yaml = from_yaml
        self.is_pull = is_pull
        self.lease_calls = TokenBucket(LEASE_CALLS_PER_S, LEASE_CALLS_PER_S, LEASE_CALLS_PER_S, 0.0)
        self.tasks: dict[str, TaskRecord] = {}
        self.extras: deque[tuple[TaskRecord, str]] = deque()
        self.running = 0
        self.phases: Counter[str] = Counter()
        self.throttle = Throttle()
        self.ramp = ramp or Ramp()
        self.bucket = TokenBucket(0.0, 0, 0.0, now_s)
        self._heap = DueHeap()
        self._heaps_of_tags: dict[str, DueHeap] = {}
        self._pushes = itertools.count()
        self.configure(message, from_yaml, now_s)
        self.bucket.tokens = float(self.bucket.burst)

    @property
    def is_paused(self) -> bool:
        """True while the queue lets no task go."""
        return bool(self.message.state != messages.RUNNING)

    @property
    def dispatches_nothing(self) -> bool:
        """True while no task is dispatched: the queue is paused, or its tasks are leased."""
        return self.is_pull or self.is_paused

    def configure(self, message: Any, from_yaml: bool, now_s: float) -> None:
        """Take new settings; tokens that are already there stay."""
        self._fill(now_s)
        self.message = message
        self.from_yaml = from_yaml
        self.bucket.rate_per_s = message.rate_limits.max_dispatches_per_second
        self.bucket.burst = message.rate_limits.max_burst_size

    # --- the live tasks ---------------------------------------------------

    def add(self, task: TaskRecord) -> None:
        """Take a live task in and give it its place."""
        self.tasks[task.name] = task
        self.phases[phase_of(task)] += 1
        self.push(task)

    def remove(self, task: TaskRecord, phase: str) -> None:
        """Let a task go that was in this phase."""
        if self.tasks.get(task.name) is task:
            del self.tasks[task.name]
        self.phases[phase] -= 1
        task.entry = None
        if task.pull is not None:
            heap = self._heaps_of_tags.get(task.pull.tag)
            if heap is not None and heap.head() is None:
                del self._heaps_of_tags[task.pull.tag]

    def move(self, task: TaskRecord, old_phase: str) -> None:
        """Count a live task under its new phase."""
        self.phases[old_phase] -= 1
        self.phases[phase_of(task)] += 1

    def push(self, task: TaskRecord) -> None:
        """Give a task its place by due time; a place it had before is void."""
        task.entry = (task.due_at, task.sequence, next(self._pushes), task)
        self._heap.push(task.entry)
        if task.pull is not None:
            self._heaps_of_tags.setdefault(task.pull.tag, DueHeap()).push(task.entry)

    # --- what may go next -------------------------------------------------

    def has_slot(self) -> bool:
        """Return whether one more delivery may run at the same time."""
        return self.running < self.message.rate_limits.max_concurrent_dispatches

    def is_open(self, now_s: float) -> bool:
        """Return whether pause, concurrency and rate allow a dispatch now."""
        if self.dispatches_nothing or not self.has_slot():
            return False
        self._fill(now_s)
        return self.bucket.has_token()

    def take_token(self, now_s: float) -> None:
        """Spend the token of a dispatch."""
        self.bucket.tokens -= 1.0
        self.ramp.use(now_s)

    def _fill(self, now_s: float) -> float:
        """Add the tokens that came; return the factor on the queue's rate."""
        self.throttle.recover(now_s)
        factor = self.throttle.factor * self.ramp.factor(self.bucket.rate_per_s, now_s)
        self.bucket.fill(now_s, factor)
        return factor

    def head(self) -> TaskRecord | None:
        """Return the task with the earliest due time."""
        return self._heap.head()

    def pop_due(self, now_s: float, pick: Callable[[int], int] | None = None) -> TaskRecord | None:
        """Take out the next due task, or one that pick chooses by index."""
        if pick is None:
            return self._heap.pop_due(now_s)
        due: list[TaskRecord] = []
        while len(due) < _REORDER_DEPTH and (task := self._heap.pop_due(now_s)):
            due.append(task)
        if not due:
            return None
        chosen = due.pop(pick(len(due)))
        for task in due:
            self.push(task)
        return chosen

    def pop_tagged(self, now_s: float, tag: str) -> TaskRecord | None:
        """Take out the next due task that has this tag."""
        heap = self._heaps_of_tags.get(tag)
        return None if heap is None else heap.pop_due(now_s)

    def due_tasks(self, now_s: float) -> list[TaskRecord]:
        """Return all tasks that are due, earliest first, without taking them out."""
        due = [entry for entry in self._heap if entry[0] <= now_s]
        return [entry[3] for entry in sorted(due, key=lambda entry: entry[:3])]

    def wake_at(self, now_s: float) -> float | None:
        """Return when a dispatch may become possible without anything else happening."""
        if self.extras:
            return now_s
        head = self.head()
        if head is None or self.dispatches_nothing or not self.has_slot():
            return None
        token_at = self.bucket.next_token_at(self._fill(now_s))
        return None if token_at is None else max(head.due_at, token_at)

    def is_idle(self, now_s: float, *, with_scheduled: bool, with_retrying: bool) -> bool:
        """Return whether nothing runs and nothing will run on its own."""
        if self.running or self.extras:
            return False
        if self.dispatches_nothing:
            return True
        head = self.head()
        if head is not None and (with_scheduled or head.due_at <= now_s or self._holds_back(now_s)):
            return False
        return not (with_retrying and self.phases[RETRYING])

    def _holds_back(self, now_s: float) -> bool:
        """Return whether a task whose time has come goes out a little later."""
        return any(entry[3].schedule_at <= now_s for entry in self._heap)


def phase_of(task: TaskRecord) -> str:
    """Return the phase of a live task."""
    if task.running:
        return RUNNING
    return RETRYING if task.dispatch_count else WAITING
