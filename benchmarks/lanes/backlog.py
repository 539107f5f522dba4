"""Operations of a key with a backlog, and of keys without tasks.

    python -m benchmarks.lanes.backlog 100000         # backlogs of 1,000, 10,000 and 100,000 tasks
    python -m benchmarks.lanes.backlog 1000 100000    # 100,000 idle keys
    make bench NAMES=lanes ITEMS=100000          # the same, after the other figures of lanes

Nothing is timed, as operations are the same on a busy machine. This process delivers hints one
after the other until some hundred tasks of the key have run. So a figure describes a task in the
middle of its backlog, with its share of claims, queries and hints, and without the write that added
it.

Keys whose tasks have all run are idle. Their lane is swept before they have any tasks, and after.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from benchmarks.harness.results import Result
from benchmarks.harness.testbed import PROJECT
from rollforward.lanes import Lane, sweep
from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.lanes.runs.delivery import deliver
from rollforward.local.services.standalone import datastore_emulator, memcached
from rollforward.outbox import InlineRelay
from rollforward.runtime import Clients, Cost, Meter, open_cache, open_datastore
from rollforward.runtime.channel.rpc import DeadlineInterceptor
from rollforward.runtime.messages import Message
from rollforward.tasks import task

TASK = "/tasks/bench/backlog"
LANES = (Lane("bench-backlog-ordered", order=True), Lane("bench-backlog-shared"))
SMALLEST, LARGEST, FACTOR = 1_000, 10_000, 10
RUN = 500  # Tasks per backlog.
IDLE = 1_000
SWEEPS = 60  # An hour of sweeps.
# The emulator scans all rows of a key to find its first ones.
PATIENCE_S = 300
COUNTED = ("writes", "reads", "query_reads", "tasks", "round_trips")
# For a task that another call has added: its deletion, and its share of a claim.
MAX_WRITES = 1.2
# A turn takes as many tasks as fit into half a second, so figures depend on the machine a little.
MAX_GROWTH = 1.2


class WrongError(Exception):
    """Tasks were lost, or idle keys have rows, so the cost is meaningless."""


@dataclass
class Hints:
    """A queue that only stores and counts the created tasks."""

    waiting: deque[Message] = field(default_factory=deque)
    names: set[str] = field(default_factory=set)
    calls: int = 0
    created: int = 0

    def create(self, message: Message) -> bool:
        return self.create_many([message])[0]

    def create_many(self, messages: Sequence[Message]) -> list[bool]:
        self.calls += 1
        return [self._add(message) for message in messages]

    def create_all(self, messages: Sequence[Message]) -> list[bool | Exception]:
        return [*self.create_many(messages)]

    def _add(self, message: Message) -> bool:
        if message.name and message.name in self.names:
            return False
        self.names.add(message.name or "")
        self.created += 1
        self.waiting.append(message)
        return True


@dataclass
class Stack:
    """The clients of a process, their costs, and the numbers of the tasks that ran."""

    clients: Clients
    meter: Meter
    hints: Hints
    ran: list[int] = field(default_factory=list)

    def cost(self) -> Cost:
        queue = Cost(tasks=self.hints.created, round_trips=self.hints.calls)
        return self.meter.total() + queue

    def deliver(self, lane: Lane, until: int) -> None:
        """Deliver hints until a number of tasks have run, or no hint is left."""
        while self.hints.waiting and len(self.ran) < until:
            deliver(lane, self.clients, lane.task.read(self.hints.waiting.popleft().body))


@contextmanager
def _stack() -> Iterator[Stack]:
    meter, hints = Meter(), Hints()
    with datastore_emulator() as datastore, memcached() as cache:
        clients = Clients(
            datastore=open_datastore(
                PROJECT, emulator=datastore, interceptors=[meter, DeadlineInterceptor(PATIENCE_S)]
            ),
            tasks=hints,  # type: ignore[arg-type]
            cache=open_cache(cache),
            meter=meter,
            relay=InlineRelay(),
        )
        with clients.context():
            yield Stack(clients, meter, hints)


def measure(largest: int = LARGEST, idle: int = IDLE) -> Iterator[Result]:
    """Count operations; yield the figures of each size, and their growth.

    Args:
        largest: The largest backlog of a key.
        idle: The number of keys whose only task has run.

    Raises:
        WrongError: a task did not run, or ran twice, or an idle key has a row.
    """
    with _stack() as stack:
        for lane in LANES:
            yield from _backlogs(stack, lane, _sizes(largest))
    with _stack() as stack:
        yield from _idle(stack, LANES[1], idle)


def _sizes(largest: int) -> list[int]:
    """Return the sizes of backlogs up to a largest one.

    >>> _sizes(100_000)
    [1000, 10000, 100000]
    """
    sizes = [SMALLEST]
    while sizes[-1] * FACTOR <= largest:
        sizes.append(sizes[-1] * FACTOR)
    return sizes


# A backlog


def _backlogs(stack: Stack, lane: Lane, sizes: Sequence[int]) -> Iterator[Result]:
    """Add growing backlogs to one key, and count the operations of some hundred tasks of each."""
    name = "ordered" if lane.order else "shared"
    costs: list[dict[str, float]] = []
    added = 0
    stack.ran.clear()
    _swept(stack, lane)  # The first sweep begins at a random place, as memcached has none.
    for size in sizes:
        missing_count = size - (added - len(stack.ran))
        _add(stack, lane, "hot", range(added, added + missing_count))
        added += missing_count
        swept = _swept(stack, lane)
        costs.append(_run(stack, lane))
        for counted in COUNTED:
            yield Result(
                f"lanes.{counted}_per_task_{name}_of_{size}",
                costs[-1][counted],
                "operations a task",
                f"{size:,} tasks of one key wait",
                MAX_WRITES if counted == "writes" else None,
                at_least=False,
            )
        yield Result(
            f"lanes.round_trips_per_sweep_{name}_of_{size}",
            swept.round_trips,
            "round trips a sweep",
            f"{size:,} tasks of one key wait",
            raw=swept.as_dict(),
        )
    stack.hints.waiting.clear()
    for counted in COUNTED:
        low, high = costs[0][counted], costs[-1][counted]
        yield Result(
            f"lanes.{counted}_growth_{name}",
            high / low if low else 1.0 + high,
            "times",
            f"{sizes[-1]:,} tasks that wait, against {sizes[0]:,}",
            MAX_GROWTH,
            at_least=False,
        )


def _add(stack: Stack, lane: Lane, key: str, numbers: range) -> None:
    @task(TASK, queue="default")
    def counted(number: int) -> None:
        stack.ran.append(number)

    # A sweep of the next lane runs before that lane has tasks.
    paths = {counted.path: counted, **{other.task.path: other.task for other in LANES}}
    stack.clients = replace(stack.clients, task_paths=paths)
    counted.enqueue_many(
        stack.clients, [counted.bind(number) for number in numbers], lane=lane(key)
    )


def _run(stack: Stack, lane: Lane) -> dict[str, float]:
    """Run some hundred tasks; return the cost per task."""
    done, start_cost = len(stack.ran), stack.cost()
    stack.deliver(lane, done + RUN)
    count, cost = len(stack.ran) - done, stack.cost() - start_cost
    if count < RUN or len(set(stack.ran)) < len(stack.ran):
        raise WrongError(f"{count} of {RUN} tasks have run, or one ran twice")
    if lane.order and stack.ran != sorted(stack.ran):
        raise WrongError("tasks did not run in their order")
    return {counted: getattr(cost, counted) / count for counted in COUNTED}


# Idle keys


def _idle(stack: Stack, lane: Lane, keys: int) -> Iterator[Result]:
    """Count the operations of sweeps before any key has had a task, and after many have had one."""
    _swept(stack, lane)  # The first sweep begins at a random place, as memcached has none.
    empty = _swept(stack, lane, SWEEPS)
    for number in range(keys):
        _add(stack, lane, f"key-{number}", range(number, number + 1))
        stack.deliver(lane, number + 1)
    stack.deliver(lane, keys + 1)  # Delivers the last hints.
    if sorted(stack.ran) != list(range(keys)):
        raise WrongError(f"{len(stack.ran)} of {keys} tasks have run")
    rows = [row for kind in (LaneTask, LaneState) for row in kind.query().fetch(keys_only=True)]
    idle = _swept(stack, lane, SWEEPS)
    versus = f"{keys:,} keys that have had a task, {SWEEPS} sweeps, against none"
    yield Result("lanes.rows_of_idle_keys", len(rows), "rows", versus, 0.0, at_least=False)
    for counted in COUNTED:
        with_idle, without = getattr(idle, counted), getattr(empty, counted)
        yield Result(
            f"lanes.{counted}_by_idle_keys",
            with_idle - without,
            "operations an hour",
            versus,
            0.0,
            at_least=False,
            raw={"with": with_idle, "without": without},
        )


def _swept(stack: Stack, lane: Lane, times: int = 1) -> Cost:
    """Sweep a lane some times; return the cost."""
    start_cost = stack.cost()
    for _ in range(times):
        sweep.wake_stale(stack.clients, [lane])
        sweep.remove_expired(stack.clients)
    return stack.cost() - start_cost


if __name__ == "__main__":
    for figure in measure(*map(int, sys.argv[1:3])):
        print(figure.line(), flush=True)
