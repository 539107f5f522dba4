"""Workers of streams in virtual time, with a profile's latencies for remote calls.

The simulation runs the real code, which yields its remote calls
(rollforward/streams/storage/remote_calls.py). N workers run the tasks of one queue, one task at a
time, each on a processor and in a process of its own. Ticks have a queue of their own. Commits that
share a row are serialized. All random numbers depend on one seed. Nothing fails here; the tests
search schedules with faults.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.scaling.profile import CALL_MS, FOUND_MS, RECORD_MS, ContendedError, Latencies
from benchmarks.scaling.rows import Rows
from rollforward.datastore.lookup import MAX_KEYS
from rollforward.datastore.queries import MAX_IN_PARALLEL
from rollforward.streams.coordinator import tick
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment, StreamConfig
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    CreateTasks,
    Key,
    OutcomeUnknownError,
    Pause,
    Read,
    Scan,
    ScanKeys,
    ScanKeysMany,
    Snapshot,
    StoredRow,
    Wake,
)
from rollforward.streams.storage.schema import CHUNK, HEAD, chunk_size
from rollforward.streams.workers.worker import Worker

Steps = Generator[Any, Any, Any]

FIRST_MS = 1_735_732_800_000
RETRY_MS = 100.0
TICKS = 8  # The concurrency in queue.yaml.


@dataclass
class Machine:
    """A process with its caches."""

    caches: dict[Any, Any] = field(default_factory=dict)


@dataclass
class Queue:
    """A queue of tasks, and the processes that run them."""

    machines: list[Machine]
    at_once: int
    due: deque[Wake] = field(default_factory=deque)
    running: int = 0
    full_ms: float = 0.0  # The time in which only `at_once` has delayed tasks.
    since_ms: float = 0.0


@dataclass
class Process:
    """Running steps."""

    steps: Steps
    machine: Machine
    role: str
    queue: Queue | None = None
    wake: Wake | None = None
    began_ms: float = 0.0


class Simulation:
    """One pipeline and its workers."""

    def __init__(
        self,
        pipeline: Declaration,
        workers: int,
        *,
        at_once: int,
        latencies: Latencies,
        config: StreamConfig,
        seed: int,
    ) -> None:
        self.pipeline, self.latencies, self.config = pipeline, latencies, config
        self.random = random.Random(seed)
        self.rows = Rows()
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._named: set[tuple[Any, ...]] = set()
        self._free_ms: dict[Key, float] = {}  # The end of a row's last commit.
        self.work = Queue([Machine() for _ in range(workers)], at_once)
        self.ticks = Queue([Machine() for _ in range(TICKS)], TICKS)
        self.spent: Counter[tuple[str, str]] = Counter()  # Milliseconds by role and activity.
        self.calls: Counter[tuple[str, str]] = Counter()
        self.tick_ms: list[float] = []
        self.weigh: Callable[[Commit], int] = bytes_of
        self.costs: Counter[str] = Counter()  # Rows read and written, calls, bytes.

    # Time

    def at(self, at_ms: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_ms, self._count, event))

    def run(self, until_ms: float) -> None:
        """Process the events up to a time."""
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, event = heapq.heappop(self._events)
            event()
        self.now_ms = until_ms

    def environment(self, machine: Machine) -> Environment:
        return Environment(
            self.pipeline,
            now_ms=lambda: FIRST_MS + int(self.now_ms),
            elapsed_ms=lambda: self.now_ms,
            new_id=lambda: f"{self.random.getrandbits(64):016x}",
            warn=lambda text: None,
            config=self.config,
            caches=machine.caches,
            run_in_background=lambda steps: self.start(steps, machine, "ring"),
        )

    def start(self, steps: Steps, machine: Machine, role: str) -> None:
        """Start steps outside of any queue."""
        self._resume(Process(steps, machine, role, began_ms=self.now_ms), None)

    # Queues

    def _create(self, wakes: Iterable[Wake]) -> None:
        for wake in wakes:
            if wake.name not in self._named:
                self._named.add(wake.name)
                delay_ms = wake.delay_s * 1000 + self.latencies.draw("dispatch", self.random)
                self.at(self.now_ms + delay_ms, lambda wake=wake: self._enqueue(wake))

    def _enqueue(self, wake: Wake) -> None:
        queue = self.work if wake.target[0] else self.ticks
        self.note_full(queue)
        queue.due.append(wake)
        self._dispatch(queue)

    def _dispatch(self, queue: Queue) -> None:
        while queue.due and queue.machines and queue.running < queue.at_once:
            wake = queue.due.popleft()
            place = self.random.randrange(len(queue.machines))
            machine = queue.machines.pop(place)
            queue.running += 1
            environment, (name, lo) = self.environment(machine), wake.target
            steps: Steps = Worker(environment, name, lo).run() if name else tick(environment)
            role = "work" if name else "tick"
            self._resume(Process(steps, machine, role, queue, wake, self.now_ms), None)

    def note_full(self, queue: Queue) -> None:
        """Add the time that tasks waited despite idle processes; call this before each change."""
        if queue.due and queue.machines:
            queue.full_ms += self.now_ms - queue.since_ms
        queue.since_ms = self.now_ms

    def _end(self, process: Process, *, is_retried: bool) -> None:
        self.rows.end_moment(id(process))
        if process.role == "tick":
            self.tick_ms.append(self.now_ms - process.began_ms)
        queue, wake = process.queue, process.wake
        if queue is None or wake is None:
            return
        self.note_full(queue)
        queue.running -= 1
        queue.machines.append(process.machine)
        if is_retried:
            self.at(self.now_ms + RETRY_MS, lambda: self._enqueue(wake))
        self._dispatch(queue)

    # Calls

    def _resume(self, process: Process, answer: Any) -> None:
        resume = process.steps.throw if isinstance(answer, Exception) else process.steps.send
        try:
            call = resume(answer)
        except StopIteration:
            self._end(process, is_retried=False)
        except (ChangedError, OutcomeUnknownError):
            self._end(process, is_retried=True)
        else:
            self._begin(process, call)

    def _begin(self, process: Process, call: Any) -> None:
        """Delay a call by its processor time, and then send it."""
        name = type(call).__name__.lower()
        self.calls[process.role, name] += 1
        if isinstance(call, Pause):
            self._spend(process, "pause", call.seconds * 1000)
            self.at(self.now_ms + call.seconds * 1000, lambda: self._resume(process, None))
            return
        cpu_ms = CALL_MS
        if isinstance(call, Commit):
            cpu_ms += RECORD_MS * letters_of(call)
        self._spend(process, "processor", cpu_ms)
        self.at(self.now_ms + cpu_ms, lambda: self._send(process, call, name))

    def _send(self, process: Process, call: Any, name: str) -> None:
        if isinstance(call, Commit):
            self._send_commit(process, call)
            return
        answer, rows = self._answered(process, call)
        if isinstance(call, CreateTasks):
            self.costs["tasks"] += rows
        elif not isinstance(call, ScanKeys | ScanKeysMany):  # Names alone do not count as reads.
            self.costs["reads"] += rows
        self.costs["calls"] += 1
        if isinstance(call, ScanKeysMany):
            self.costs["queries"] += len(call.scans)
            took_ms = self._groups_ms("scankeys", len(call.scans), MAX_IN_PARALLEL)
            took_ms += FOUND_MS * rows
        elif isinstance(call, Read | Snapshot) and rows > MAX_KEYS:
            parts = [min(MAX_KEYS, rows - start) for start in range(0, rows, MAX_KEYS)]
            took_ms = sum(self.latencies.draw(name, self.random, part) for part in parts)
        elif name in ("scankeys", "scan"):
            took_ms = self.latencies.draw(name, self.random, returned=rows)
        else:
            took_ms = self.latencies.draw(name, self.random, rows)
        self._spend(process, name, took_ms)
        self.at(self.now_ms + took_ms, lambda: self._resume(process, answer))

    def _groups_ms(self, name: str, count: int, at_once: int) -> float:
        """Return the time of calls in concurrent groups, each as long as its slowest call."""
        draws = [self.latencies.draw(name, self.random) for _ in range(count)]
        return sum(max(draws[start : start + at_once]) for start in range(0, count, at_once))

    def _answered(self, process: Process, call: Any) -> tuple[Any, int]:
        """Return the answer to a call without writes, and the number of its rows or tasks."""
        if isinstance(call, Read):
            return self.rows.read(call.keys, call.at), len(call.keys)
        if isinstance(call, Snapshot):
            moment = self.rows.begin_moment(id(process))
            return (moment, self.rows.read(call.keys)), len(call.keys)
        if isinstance(call, CreateTasks):
            self._create(call.wakes)
            return None, len(call.wakes)
        if isinstance(call, ScanKeysMany):
            answers = [self._answered(process, scan)[0] for scan in call.scans]
            return answers, sum(map(len, answers))
        assert isinstance(call, ScanKeys | Scan)
        at = call.at if isinstance(call, ScanKeys) else None
        rows = self.rows.scan(call.kind, call.low, call.high, call.limit, at)
        return ([name for name, _ in rows] if isinstance(call, ScanKeys) else rows), len(rows)

    def _send_commit(self, process: Process, commit: Commit) -> None:
        """Commit after earlier commits to the same rows, and within the rate of each row."""
        keys = [key for key, *_ in (*commit.puts, *commit.inserts, *commit.deletes)]
        written = [key for key, *_ in (*commit.puts, *commit.deletes)]
        free_ms, held_by = self.now_ms, ""
        try:
            for key in written:
                at_ms = max(
                    self._free_ms.get(key, 0.0),
                    self.now_ms + self.latencies.wait_for(key, self.now_ms),
                )
                if at_ms > free_ms:
                    free_ms, held_by = at_ms, key.kind
        except ContendedError:
            self._spend(process, "contended", self.latencies.abort_ms)
            self.calls[process.role, "contended"] += 1
            abort_ms = self.now_ms + self.latencies.abort_ms
            self.at(abort_ms, lambda: self._resume(process, ChangedError()))
            return
        if held_by:
            self._spend(process, f"wait for {held_by}", free_ms - self.now_ms)
        self.costs.update(calls=1, writes=len(keys), bytes=self.weigh(commit))
        took_ms = self.latencies.draw("commit", self.random, len(keys))
        self._spend(process, "commit", took_ms)
        for key in written:
            self._free_ms[key] = free_ms + took_ms
        self.at(free_ms + took_ms, lambda: self._apply(process, commit))

    def _apply(self, process: Process, commit: Commit) -> None:
        try:
            answer: Any = self.rows.commit(commit)
        except ChangedError as error:
            self.calls[process.role, "lost"] += 1
            if any(key.kind == HEAD for key, *_ in commit.puts):
                self.calls[process.role, "lost head"] += 1
            answer = error
        self._resume(process, answer)

    def _spend(self, process: Process, name: str, took_ms: float) -> None:
        self.spent[process.role, name] += took_ms


def letters_of(commit: Commit) -> int:
    """Return the number of records that a commit moves out of inboxes and into inboxes."""
    keys = [key for key, *_ in (*commit.inserts, *commit.deletes)]
    return sum(chunk_size(key.name)[0] for key in keys if key.kind == CHUNK)


def bytes_of(commit: Commit) -> int:
    """Return the approximate bytes of records that a commit writes."""
    return sum(chunk_size(key.name)[1] for key, _ in commit.inserts if key.kind == CHUNK)


def found_letters(replaced: Iterable[tuple[Key, StoredRow]], computation: str) -> Iterable[Any]:
    """Yield the records of a computation from its replaced chunks."""
    for key, row in replaced:
        if key.kind == CHUNK and key.name.split(":", 2)[1] == computation:
            yield from row.body
