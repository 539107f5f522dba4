"""The workers, ticks and sources of streams in virtual time, in an order drawn by a seed.

The code is the real one: it yields its remote calls
(rollforward/streams/storage/remote_calls.py). Here a scheduler answers them, one at a time, and at
any of them may kill a process before or after the effect, or its whole machine; stall it for longer
than its lease; lose the reply; refuse; or apply a
commit later, when its process has given it up. Tasks come twice, late, and in any order, and the
machines' clocks disagree.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.exchange.recovery import recover
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment, StreamConfig
from rollforward.streams.model.errors import MissingCodeError
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.joint_commits import offered
from rollforward.streams.storage.remote_calls import (
    Attempt,
    CallEffects,
    ChangedError,
    Commit,
    CreateTasks,
    Fetch,
    Join,
    Key,
    OutcomeUnknownError,
    Pause,
    Read,
    Scan,
    ScanKeys,
    ScanKeysMany,
    Snapshot,
    StoredRow,
    UnworkableError,
    Wake,
)
from rollforward.streams.storage.schema import CHUNK, INTERVAL, is_late
from rollforward.streams.sweep import sweep_suffix, wake_sources
from rollforward.streams.workers.worker import Worker
from tests.rollforward.streams.simulator.accidents import (
    FAULTS,
    NO_FAULTS,
    Chances,
    KilledError,
    Machine,
    Process,
    UnavailableError,
)
from tests.rollforward.streams.simulator.joining import Joining
from tests.rollforward.streams.simulator.store import Steps, Store, Violation, answered, one_by_one
from tests.rollforward.streams.simulator.workers import worker_steps

PACE = StreamConfig(
    lease_ms=200,
    run_ms=150,
    give_way_ms=20,
    waits_ms=10,
    linger=(),
    gather_s=0,
    watermark_ms=3,
    tick_s=0.1,
    max_records=4,
    max_chunks=3,
    max_small_chunks=5,
    unjoined_ms=50,
)
SWEPT_EVERY_MS = 400
MACHINES = 2
SWEEP = Wake(("", 0), ("sweep",))
# Faults of one schedule come within so many steps; then all must come to rest.
FAULTY_STEPS = 250
MAX_STEPS = 8_000
MAX_GONE = 5
ERRORS = ChangedError, OutcomeUnknownError, UnavailableError, UnworkableError


class Simulation:
    """One schedule of one pipeline."""

    def __init__(self, pipeline: Declaration, seed: int, chances: Chances | None = None) -> None:
        self.pipeline = pipeline
        self.random = random.Random(seed)
        # Of its own: how often the code asks changes nothing else of a schedule.
        self.mistakes = random.Random(seed)
        self.looks_below = random.Random(f"{seed}").random() < 0.3
        self.chances = chances or Chances()
        self.store = Store()
        self.now_ms = self.swept_ms = 1_000_000
        self.wakes: list[tuple[int, Wake]] = []
        self.used: set[tuple[Any, ...]] = set()  # Names of tasks, which stay taken.
        self.done: set[tuple[Any, ...]] = set()
        self.processes: list[Process] = []
        self.zombies: list[Commit] = []
        self.users: list[Callable[[], Any]] = []
        self.has_snapshots = self.random.random() < 0.5
        # Without snapshots the rows of one read may be of different moments, in their order.
        self.tears = not self.has_snapshots and self.random.random() < 0.3
        self.config = PACE if seed % 4 else replace(PACE, linger=(0.002,), gather_s=0.004)
        self.sweeps = True
        # What a broken variant of the protocol replaces.
        self.tick: Callable[..., Any] = tick
        self.pull: Callable[..., Any] = pull
        self.worker: type[Worker] = Worker
        # What weak sinks have acted on; some are too slow to be heard of, or to act at all.
        self.handed: list[tuple[tuple[str, int], Any]] = []
        self.slow_sinks = 0.0
        self.joining = Joining(self, seed)
        self.attempts: Counter[Any] = Counter()  # In memcached.
        self.tells = True  # A look into an inbox may find a part of what is there.
        self.gone: deque[tuple[str, StoredRow]] = deque(maxlen=MAX_GONE)  # Chunks taken out.
        self.steps = self.calls = self.ids = 0
        self.max_steps = MAX_STEPS
        self.has_rested = False  # A sweep has found nothing to do.
        self.counts: Counter[str] = Counter()
        self.broken: dict[int, str] = {}  # Faults that come at certain calls, by their numbers.
        skew = self.random.choice((0, 50, 1_000))
        self.machines = [Machine(n, self.random.randint(-skew, skew)) for n in range(MACHINES)]
        skews = [each.skew_ms for each in self.machines]
        self.spread_ms = max(skews) - min(skews)
        self.acts: dict[type, Callable[[Any], Any]] = {
            Read: lambda call: self.store.read(call.keys, call.at),
            Snapshot: self._snapshot,
            Scan: self._scan,
            ScanKeys: self._peek,
            ScanKeysMany: lambda call: [self._peek(each) for each in call.scans],
            Commit: self._commit,
            Join: lambda call: None,
            CreateTasks: self._create,
            Attempt: self._attempt,
            CallEffects: self._call_effects,
            Fetch: self._fetch,
        }

    @property
    def rows(self) -> Iterable[tuple[Key, StoredRow]]:
        return self.store.rows.items()

    # Who runs

    def environment(self, machine: Machine) -> Environment:
        return Environment(
            machine.pipeline or self.pipeline,
            now_ms=lambda: self.now_ms + machine.skew_ms,
            elapsed_ms=lambda: self.now_ms,
            new_id=self._new_id,
            warn=lambda text: None,
            config=self.config,
            caches=machine.caches,
            run_in_background=lambda steps: self.processes.append(Process(steps, machine, None)),
            is_dead=lambda owner: self.mistakes.random() < self.chances.mistaken,
            can_join=self.joining.is_on,
        )

    def _new_id(self) -> str:
        self.ids += 1
        return f"i{self.ids}"

    def run(self) -> None:
        """Run until all is at rest."""
        for user in self.users:
            self.processes.append(Process(user(), self.machines[0], None, user))
        while self.steps < self.max_steps:
            self.steps += 1
            if self.steps == FAULTY_STEPS:
                self.chances = NO_FAULTS
                for each in self.machines:
                    each.pipeline = None
            if not self._step():
                return
        raise Violation(f"not at rest after {self.max_steps} steps")

    def _step(self) -> bool:
        """Let one process do one call; return False if there is nothing to do any more."""
        chance = self.random.random
        self.now_ms += 1
        if chance() < self.chances.purge:
            self.counts["purge"] += 1
            self.wakes = [each for each in self.wakes if each[1] == SWEEP]
            self.has_rested = False  # What a sweep has just woken may be among what is lost.
        if any(each.wake == SWEEP for each in self.processes):
            self.swept_ms = self.now_ms  # App Engine counts from the end of the last one.
        elif self.sweeps and self.now_ms - self.swept_ms > SWEPT_EVERY_MS:
            self.swept_ms = self.now_ms
            self.wakes.append((self.now_ms, SWEEP))
        runnable = [each for each in self.processes if each.ready_ms <= self.now_ms]
        if self.wakes and (not runnable or chance() < 0.3):
            due = [at for at in self.wakes if at[0] <= self.now_ms]
            if due:
                self._start(due[int(chance() * len(due))])
                return True
        if self.zombies and chance() < 0.1:
            self._apply_zombie()
        if runnable:
            self._resume(runnable[int(chance() * len(runnable))])
            return True
        return self._sleep()

    def _sleep(self) -> bool:
        """Let time pass until somebody goes on; return False if nobody ever will."""
        if self.zombies:
            self._apply_zombie()
            return True
        times = [*(at for at, _ in self.wakes), *(each.ready_ms for each in self.processes)]
        if times:
            self.now_ms = max(self.now_ms, min(times))
            return True
        waits = any(
            key.kind == INTERVAL and row.body.processing_due < NEVER for key, row in self.rows
        )
        if not self.sweeps or (self.has_rested and not waits):
            return False
        self.has_rested = True
        # Not at once: a late commit may have come just now, and its source does not look deserted.
        self.wakes.append((self.now_ms + SWEPT_EVERY_MS, SWEEP))
        return True

    def _start(self, due: tuple[int, Wake]) -> None:
        self.wakes.remove(due)
        at, wake = due
        if self.random.random() < self.chances.delay:
            self.counts["delay"] += 1
            self.wakes.append((at + self.random.randrange(10, 500), wake))
            return
        if self.random.random() < self.chances.double:
            self.counts["double"] += 1
            self.wakes.append((at + self.random.randrange(0, 100), wake))
        machine = self.random.choice(self.machines)
        self.has_rested = self.has_rested and wake == SWEEP
        self.processes.append(Process(self.steps_of(wake, machine), machine, wake))

    def steps_of(self, wake: Wake, machine: Machine) -> Steps:
        name, lo = wake.target
        environment = self.environment(machine)
        if wake == SWEEP:
            return self._sweep(environment)
        if not name:
            return self._tick(environment)
        if lo < 0:
            return self.pull(environment, *name.split("/"))
        return worker_steps(environment, name, lo, self.worker)

    def _tick(self, environment: Environment, *why: str | int) -> Steps:
        steps = self.tick(environment, *why)
        return answered(steps, one_by_one) if self.tears else steps

    def _sweep(self, environment: Environment) -> Steps:
        yield from self._tick(environment, *sweep_suffix(environment))
        if self.looks_below:
            yield from recover(environment)
        yield from wake_sources(environment)

    def do(self, steps: Steps) -> Any:
        """Run steps to their end, while nobody else does anything."""
        process = Process(steps, self.machines[0], None)
        call = next(steps)
        while True:
            try:
                if type(call) is Pause:
                    self.now_ms += int(call.seconds * 1000)
                    process.answer = None
                else:
                    self._act(process, call)
                error, process.error = process.error, None
                call = steps.throw(error) if error else steps.send(process.answer)
            except StopIteration as stop:
                return stop.value

    # One call

    def _resume(self, process: Process) -> None:
        error, process.error, process.joining = process.error, None, None
        try:
            call = process.steps.throw(error) if error else process.steps.send(process.answer)
            while type(call) is Attempt:  # It fails nobody, and takes no time.
                call = process.steps.send(self.acts[Attempt](call))
        except StopIteration:
            self._end(process, again=False)
            return
        except KilledError:
            self.counts["killed"] += 1
            self.kill(process)
            self.joining.kill_taken()
            return
        except (*ERRORS, MissingCodeError):
            self._end(process, again=True)
            return
        process.answer = None
        if type(call) is Pause:
            process.ready_ms = self.now_ms + max(1, int(call.seconds * 1000))
            return
        if type(call) is Join:
            self.joining.offer(process, call.commit)
            return
        self._answer(process, call)

    def _answer(self, process: Process, call: Any) -> None:
        chances, drawn = self.chances, self.random.random()
        self.calls += 1
        if self.calls in self.broken:
            getattr(self, f"_{self.broken[self.calls]}")(process, call)
            return
        if chances is NO_FAULTS:
            self._act(process, call)
            return
        for fault in FAULTS:
            drawn -= getattr(chances, fault)
            if drawn < 0:
                self.counts[fault] += 1
                getattr(self, f"_{fault}")(process, call)
                return
        self._act(process, call)

    def _act(self, process: Process, call: Any) -> None:
        try:
            process.answer = self.acts[type(call)](call)
        except ERRORS as error:
            process.error = error

    def _crash(self, process: Process, call: Any) -> None:
        how = self.random.choice((self._crash_before, self._crash_after, self._crash_amid))
        how(process, call)

    def _crash_before(self, process: Process, call: Any) -> None:
        self.kill(process)

    def _crash_after(self, process: Process, call: Any) -> None:
        self._act(process, call)
        self.kill(process)

    def _machine(self, process: Process, call: Any) -> None:
        for each in [each for each in self.processes if each.machine is process.machine]:
            self.kill(each)
        process.machine.caches = {}

    def _crash_amid(self, process: Process, call: Any) -> None:
        """Die while a call is on its way; a commit may arrive later."""
        if type(call) is Commit:
            self.zombies.append(call)
        self.kill(process)

    def _stall(self, process: Process, call: Any) -> None:
        self._act(process, call)
        process.ready_ms = self.now_ms + self.random.randrange(20, 3 * PACE.lease_ms)

    def _lost(self, process: Process, call: Any) -> None:
        self._act(process, call)
        process.error = OutcomeUnknownError() if type(call) is Commit else UnavailableError()

    def _refused(self, process: Process, call: Any) -> None:
        process.error = OutcomeUnknownError() if type(call) is Commit else UnavailableError()

    def _zombie(self, process: Process, call: Any) -> None:
        self._refused(process, call)
        if type(call) is Commit:
            self.zombies.append(call)

    def _apply_zombie(self) -> None:
        commit = self.zombies.pop(self.random.randrange(len(self.zombies)))
        self.has_rested = False
        try:
            self._commit(commit)
        except (ChangedError, UnworkableError):
            return

    def kill(self, process: Process) -> None:
        """A killed process reaches nothing any more; its task comes again, if none was done."""
        self._end(process, again=True)

    def _end(self, process: Process, *, again: bool) -> None:
        self.processes.remove(process)
        if not again and process.wake not in (None, SWEEP):
            self.done.add(process.wake.name)
        if again and process.wake == SWEEP:
            self.has_rested = False  # It has not come to its end; cron calls again.
            return
        if process.wake is not None and process.wake.name in self.done:
            return  # Delivered twice, and the other one has confirmed it.
        if again and process.wake is not None:
            self.wakes.append((self.now_ms + self.random.randrange(1, 30), process.wake))
        elif again and process.user is not None:
            machine = self.random.choice(self.machines)
            self.processes.append(Process(process.user(), machine, None, process.user))

    # The services

    def _commit(self, commit: Commit) -> list[int]:
        self.counts["commits"] += 1
        if self.joining.is_on and offered(commit):
            return self.joining.commit(commit)
        chunks = [key for key, _ in commit.deletes if key.kind == CHUNK]
        rows = [(key.name, self.store.rows[key]) for key in chunks if key in self.store.rows]
        versions = self.store.commit(commit)
        self.gone.extend(rows)
        return versions

    def _snapshot(self, call: Snapshot) -> tuple[Any, list[StoredRow | None]]:
        moment = dict(self.store.rows) if self.has_snapshots else None
        return moment, self.store.read(call.keys, moment)

    def _scan(self, call: Scan) -> list[tuple[str, StoredRow]]:
        names = self.store.first_names(call.kind, call.low, call.high, call.limit)
        found = [(name, self.store.rows[Key(call.kind, name)]) for name in names]
        is_told = call.allow_partial and self.tells and self.random.random() < 0.5
        chunks = self._some(call, found) if is_told else found
        return self.joining.with_offers(chunks, call) if call.takes_offers else chunks

    def _some(self, call: Scan, found: list[tuple[str, StoredRow]]) -> list[tuple[str, StoredRow]]:
        """Return a part of what is in time, and perhaps what is gone; if none, all or none."""
        chance = self.random.random
        gone = [each for each in self.gone if call.low <= each[0] < call.high and chance() < 0.1]
        some = (each for each in found if chance() < 0.5)
        told = sorted(each for each in (*gone, *some) if not is_late(each[0]))
        return told if told or (call.allow_empty and chance() < 0.5) else found

    def _peek(self, call: ScanKeys) -> list[str]:
        return self.store.first_names(call.kind, call.low, call.high, call.limit, call.at)

    def _fetch(self, call: Fetch) -> Any:
        source: Any = self.pipeline.source(call.stream)
        return source.reader(call.partition)(None, call.position, call.limit)

    def _attempt(self, call: Attempt) -> int:
        self.attempts[call.subject] += 1
        return self.attempts[call.subject]

    def _call_effects(self, call: CallEffects) -> list[int]:
        done = []
        for place, effect in enumerate(call.effects):
            luck = self.random.random() if self.slow_sinks else 1.0
            if luck > self.slow_sinks / 2:
                self.handed.append(effect)
            if luck > self.slow_sinks:
                done.append(place)
        return done

    def _create(self, call: CreateTasks) -> None:
        for wake in call.wakes:
            if wake.name not in self.used:
                self.used.add(wake.name)
                self.wakes.append((self.now_ms + int(wake.delay_s * 1000), wake))
