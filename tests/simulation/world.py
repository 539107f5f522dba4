"""The world of a schedule: time, processes, the queue's deliveries, and who is next.

The scheduler draws, by the seed, one of all that could happen now: an actor goes on, a due task is
delivered, the scheduler of cron calls. If nothing can, time goes on to what is next.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory.rows import Rows
from benchmarks.memory.service import MemoryDatastore
from rollforward.flask import recovery
from rollforward.local.cloudtasks import queue_yaml
from rollforward.local.cloudtasks.clock import Clock
from rollforward.local.cloudtasks.delivery.app_engine import AppEngineApp
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol.names import Place
from rollforward.local.cloudtasks.store.store import Store
from rollforward.testing.injection import Crash
from rollforward.testing.services import LOCATION, PROJECT
from tests.simulation.actors import Actor
from tests.simulation.fault_line import FaultLine
from tests.simulation.faults import Fault
from tests.simulation.processes import BASE_URL, CRON_HEADER, Process
from tests.simulation.services import channel
from tests.simulation.services.memcached import Memcached
from tests.simulation.services.moods import CALM, Moods
from tests.simulation.services.payments import PaymentService
from tests.simulation.services.smtp import Relay
from tests.simulation.shop.common import Shop
from tests.simulation.watch import StuckError

ROOT = Path(__file__).parents[2]
BEGIN_S = 1_900_000_000.0
PROCESSES = 3
KEPT_US = 1_000 * 1_000_000  # Longer than a transaction lives.
DEADLINE_S = 600.0  # Of a delivery, unless its task has another one.
RECOVERY = "recovers"
DONE_BELOW = 300  # Of statuses: a task is done.
MAX_TURNS = 20_000
SWITCHES = (0.0, 0.02, 0.1, 0.4)  # How often an actor lets others go on at a call.
OFTEN = (0.1, 0.4, 0.8)  # The same, if threads of a process are to meet.


class NotSettledError(AssertionError):
    """The app does not come to rest."""


class World:
    """The services and processes of one schedule after the other."""

    def __init__(self, shops: Collection[Shop]) -> None:
        self.now_s = BEGIN_S
        self.line = FaultLine(self)
        self.engine = Engine(
            Store(None),
            Place(PROJECT, LOCATION, False),
            AppEngineApp(BASE_URL),
            clock=Clock(lambda: self.now_s),
            rng=random.Random(0),
            in_memory=True,
        )
        queue_yaml.apply(self.engine, queue_yaml.read(ROOT / "queue.yaml", self.engine.place))
        self.cloud_tasks = channel.of_cloud_tasks(self.engine)
        self.store = MemoryDatastore()
        self.memcached = Memcached(lambda: self.now_s)
        self.relay = Relay(CALM.mail)
        self.payments = PaymentService(self, CALM.payments)
        self.current: Actor | None = None
        self.actors: list[Actor] = []
        self.later: list[tuple[float, str, Callable[[Process], None]]] = []
        self.deployments: list[tuple[float, Process, int]] = []
        self.order = random.Random(0)
        self.dice = random.Random(0)
        self.switch_rate = 0.0
        self.threads = 1
        self.serving: Sequence[Process] = ()
        self.sweeps = 0
        self.resumed = 0
        self.stuck: AssertionError | None = None
        self.is_purged = False
        self.statuses: Counter[str] = Counter()
        self.processes = [Process(f"p{number}", self, shops) for number in range(PROCESSES)]

    def begin(
        self,
        seed: str,
        faults: Sequence[Fault],
        moods: Moods,
        *,
        threads: int = 1,
        serving: int = PROCESSES,
        is_swept: bool = False,
    ) -> None:
        """Begin a schedule in an empty world.

        Args:
            moods: Of the services outside of the app.
            threads: So many requests a process serves at a time.
            serving: So many of the processes serve any.
            is_swept: The app has served for a while: a sweep has come before the first call.
        """
        self.now_s = BEGIN_S
        self.engine.reset()
        rows = Rows(now_us=lambda: int(self.now_s * 1e6), kept_us=KEPT_US)
        self.store = MemoryDatastore(rows)
        self.memcached = Memcached(lambda: self.now_s)
        self.relay = Relay(moods.mail)
        self.payments = PaymentService(self, moods.payments)
        self.actors, self.later, self.deployments, self.current = [], [], [], None
        self.order = random.Random(f"{seed} order")
        self.dice.seed(f"{seed} dice")
        self.switch_rate = self.order.choice(SWITCHES if threads == 1 else OFTEN)
        self.threads, self.serving = threads, self.processes[:serving]
        self.statuses = Counter()
        self.sweeps = 0
        self.stuck = None
        self.is_purged = False
        for process in self.processes:
            process.begin(seed)
        if is_swept:
            self._sweep(self.processes[0])
        self.line.begin(faults)

    def end(self) -> None:
        """End all threads of a schedule."""
        for actor in self.actors:
            actor.abandon()
        while self.actors:
            # One that dies may need what another one holds, which dies after it.
            with contextlib.suppress(StuckError):
                self._go_on(self.actors[0])

    def progress(self) -> int:
        """Return a number that grows with each turn and each call."""
        return self.resumed + self.line.calls

    # For the code under test

    def sleep(self, seconds: float) -> None:
        """Let others run for a time."""
        if self.current is None:
            self.now_s += seconds
        else:
            self.current.pause(self.now_s + max(0.0, seconds))

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Let others run until something is true; return whether it is, in time."""
        ends_s = math.inf if timeout_s is None else self.now_s + timeout_s
        while not is_true():
            if self.current is None or self.now_s >= ends_s:
                return False
            self.current.wait(is_true, ends_s)
        return True

    def jitter(self, low: float, high: float) -> float:
        return self.order.uniform(low, high)

    def token_hex(self, size: int) -> str:
        return self.dice.randbytes(size).hex()

    # Turns

    def run(self, *, until_s: float | None = None) -> None:
        """Take turns until nothing happens any more, or until a time.

        Raises:
            NotSettledError: it goes on and on.
        """
        for _ in range(MAX_TURNS):
            if not self._take_turn():
                wake_s = self._next_s()
                if wake_s is None or (until_s is not None and wake_s > until_s):
                    self.now_s = max(self.now_s, until_s or 0.0)
                    return
                self.now_s = max(self.now_s, wake_s)
        raise NotSettledError(f"still not idle after {MAX_TURNS} turns")

    def unfinished(self) -> list[str]:
        """Return the actors that have not ended, the jobs to come, and the tasks in the queues."""
        jobs = [f"{name} at {at_s}" for at_s, name, _ in self.later]
        tasks = [task for queue in self.engine.queues.all() for task in queue.tasks.values()]
        paths = [f"{task.path} waits" for task in tasks]
        return [*(f"{actor} has not ended" for actor in self.actors), *jobs, *paths]

    def _take_turn(self) -> bool:
        """Do one of the things that can be done now."""
        self._give_up()
        ready = [actor for actor in self.actors if actor.is_ready(self.now_s)]
        requests = Counter(id(actor.process) for actor in self.actors if not actor.is_beside)
        self._deploy([process for process in self.processes if not requests[id(process)]])
        # One that is to have another version takes no more: it has it as soon as it is idle.
        idle = [
            process
            for process in self.serving
            if process.next_version is None and requests[id(process)] < self.threads
        ]
        later = [job for job in self.later if job[0] <= self.now_s] if idle else []
        due = self.engine.due() if idle else []
        choices = len(ready) + len(later) + len(due)
        if not choices:
            return False
        chosen = self.order.randrange(choices)
        if chosen < len(ready):
            self._go_on(ready[chosen])
            return True
        process = self.order.choice(idle)
        chosen -= len(ready)
        if chosen < len(later):
            _, name, job = later[chosen]
            self.later.remove(later[chosen])
            self._go_on(self._start(name, process, lambda: job(process)))
        else:
            self._go_on(self._deliver(due[chosen - len(later)].task_name, process))
        return True

    def _next_s(self) -> float | None:
        """Return when something can be done that cannot be done now."""
        times = [actor.wakes_at_s for actor in self.actors] + [job[0] for job in self.later]
        times += [at_s for at_s, *_ in self.deployments]
        times += [self._deadline_s(actor) for actor in self.actors if actor.is_awaited]
        wake_s = self.engine.wake_at()
        if wake_s is not None:
            times.append(wake_s)
        later = [at_s for at_s in times if self.now_s < at_s < math.inf]
        return min(later, default=None)

    def _start(self, name: str, process: Process, work: Callable[[], None]) -> Actor:
        actor = Actor(name, process, work, self.now_s)
        self.actors.append(actor)
        return actor

    def _go_on(self, actor: Actor) -> None:
        self.current = actor
        self.resumed += 1
        try:
            actor.resume()
        finally:
            self.current = None
            if actor.has_ended:
                self.actors.remove(actor)
                self._answer(actor)
        if self.stuck is not None:
            stuck, self.stuck = self.stuck, None
            raise stuck
        for other in [other for other in self.actors if other.is_dead]:
            if not other.has_ended:  # The end of another one has ended it, too.
                self._go_on(other)

    def _answer(self, actor: Actor, error: str = "connection closed") -> None:
        """Tell the queue how a delivery has ended, if it waits for that."""
        if actor.is_awaited:
            actor.is_awaited = False
            status = actor.status if actor.has_ended else None
            error_of = None if status is not None else error
            actor.is_acknowledged = status is not None and status < DONE_BELOW
            self.engine.end_attempt(actor.delivery.id, status=status, error=error_of)

    def _give_up(self) -> None:
        """Give up deliveries that have not ended in time; their processes go on."""
        for actor in self.actors:
            if actor.is_awaited and self._deadline_s(actor) <= self.now_s:
                self._answer(actor, "DEADLINE_EXCEEDED")

    def _deadline_s(self, actor: Actor) -> float:
        return float(actor.delivery.started_at + (actor.delivery.deadline_s or DEADLINE_S))

    def _deploy(self, idle: Sequence[Process]) -> None:
        """Give processes another version of the code, when it is time and they are idle."""
        for deployment in list(self.deployments):
            at_s, process, version = deployment
            if at_s <= self.now_s:
                process.next_version = version
                self.deployments.remove(deployment)
        for process in idle:
            if process.next_version is not None:
                process.restart()
                self._recover(process)

    # What happens

    def deploy(self, at_s: float, number: int, version: int) -> None:
        """Let a process have a version of the code from a time on."""
        self.deployments.append((at_s, self.processes[number], version))

    def begin_beside(self, name: str, work: Callable[[], object]) -> None:
        """Let the current process do something beside its requests; an error ends that alone."""
        assert self.current is not None

        def attempt() -> None:
            with contextlib.suppress(Exception):
                work()

        self._start(name, self.current.process, attempt).is_beside = True

    def at(self, at_s: float, name: str, job: Callable[[Process], None]) -> None:
        """Let a process that is idle then do something at a time."""
        self.later.append((at_s, name, job))

    def _deliver(self, task_name: str, process: Process) -> Actor:
        attempt = self.engine.begin_attempt(task_name)
        path = attempt.url.removeprefix(BASE_URL)

        def work() -> None:
            actor.status = self._send(attempt, process)

        actor = self._start(f"delivers {path}", process, work)
        actor.delivery, actor.is_awaited = attempt, True
        return actor

    def _send(self, attempt: Any, process: Process) -> int:
        path = attempt.url.removeprefix(BASE_URL)
        status, _ = process.request(
            attempt.method, path, headers=attempt.headers, data=attempt.body
        )
        self.statuses[f"{path} {status}"] += 1
        return status

    def sweep(self) -> None:
        """Let the scheduler call the sweep."""
        self.sweeps += 1
        self.at(self.now_s, "sweeps", self._sweep)

    def _sweep(self, process: Process) -> None:
        status, _ = process.request("GET", "/cron/sweep", headers=CRON_HEADER)
        self.statuses[f"sweep {status}"] += 1

    # Faults

    def die(self) -> None:
        """End the current process; another one takes its place, and looks for abandoned work."""
        assert self.current is not None
        process = self.current.process
        process.restart()
        self._recover(process)
        raise Crash

    def _recover(self, process: Process) -> None:
        """Let a process that has just begun look for abandoned work."""

        def recover() -> None:
            with process.clients.context():
                recovery.recover(process.clients, process.registry)

        self._start(RECOVERY, process, recover).is_beside = True

    def purge(self) -> None:
        """Purge all queues by hand."""
        self.is_purged = True
        for queue in self.engine.queues.all():
            self.engine.purge_queue(queue.name)

    def double(self, after_s: float) -> None:
        """Let the current delivery come once more, some seconds later."""
        attempt = self.current.delivery if self.current else None
        if attempt is not None:
            self.at(self.now_s + after_s, "doubles", lambda process: self._send(attempt, process))

    def end_faults(self) -> None:
        """Break nothing any more, and put the clocks right."""
        self.line.end()
        for process in self.processes:
            process.clock.wrong_by_s = 0.0

    def set_clock(self, wrong_by_s: float) -> None:
        """Let the clock of the current process be wrong."""
        assert self.current is not None
        self.current.process.clock.wrong_by_s = wrong_by_s
