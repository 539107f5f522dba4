"""A site: workers and clients that overlap in virtual time, and services as slow as the cloud.

A worker is a process with a processor of its own that handles one task at a time. A queue sends
what its rate and its concurrency allow. A request that finds no idle worker waits for one in the
order of arrival, and holds its place in the queue meanwhile. A client is a process, too, but takes
no tasks. The calls of one request follow each other.

The interceptors are those of an app that is as slow as the cloud (rollforward/cloud_profile), in
virtual time. The processor's times are guesses.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import grpc
from google.cloud.datastore_v1.types import Key

from rollforward.cloud_profile import BUNDLED, load
from rollforward.cloud_profile.slowdown import RandomLatency
from rollforward.runtime.channel.failed_call import error_of
from rollforward.runtime.channel.write_limit import Contended, EntityWriteLimit, Pace, Tickets
from tests.simulation.actors import Actor
from tests.simulation.fault_line import FaultLine
from tests.simulation.processes import Process
from tests.simulation.services.memcached import Memcached, open_cache
from tests.simulation.shop.common import Shop
from tests.simulation.world import World

REQUEST_S, CALL_S = 0.002, 0.0003  # Of the processor: guesses.
SEED = 1
PROCESSOR, PAUSE = "processor", "pauses of the code"
WORKER, CLIENT = "worker", "client"


class SlowLine(FaultLine):
    """Lets calls of memcached take their time; `Site.ask` does so for the others."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._site = site

    def around(
        self,
        name: str,
        effect: Callable[[], Any],
        error: Callable[[grpc.StatusCode], Exception],
        described: Any = None,
    ) -> Any:
        site = self._site
        if site.current is not None and name.startswith("cache"):
            site.wait("memcached", site.profile.draw("memcached", site.chance))
        return effect()


class SiteProcess(Process):
    """A process whose calls take time.

    Attributes:
        role: WORKER or CLIENT.
    """

    def __init__(self, name: str, role: str, site: Site, app: Shop) -> None:
        super().__init__(name, site, [app])
        self.role, self._site = role, site

    def _ask(self, continuation: Any, details: Any, request: Any) -> Any:
        return self._site.ask(continuation, details, request)


class CountedTickets(Tickets):
    """Tickets that know the kind of the row that was asked for last.

    Attributes:
        refused: How many writes came too often, by the kind of row.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kind = ""
        self.refused = Counter[str]()

    def take(self, name: str, pace: Pace, count: int = 1, at_once: float = 1.0) -> None:
        kind = self.kind = str(Key.pb().FromString(bytes.fromhex(name)).path[-1].kind)
        try:
            super().take(name, pace, count, at_once)
        except Contended:
            self.refused[f"{kind} (too often)"] += 1
            raise


class Site(World):
    """The services and processes of one run.

    Attributes:
        on_commit: Is told each entity that a commit writes.
        spent: Seconds by role and by what they were spent with.
        lost: Commits that lost a race, by the kind of their first row.
        full_s: How long each queue could send nothing more while workers had no request.
        is_over: Whether clients end.
    """

    def __init__(self, app: Shop, workers: int, clients: int, *, is_limited: bool = True) -> None:
        super().__init__([app])
        # Seeded, so that a play can be repeated.
        self.profile = replace(load(BUNDLED), seed=SEED)
        self.chance = Random(f"{SEED} queues")
        self.line = SlowLine(self)
        self.drawn = RandomLatency(self.profile, sleep=self._pass, monotonic=lambda: self.now_s)
        self._tickets_of = Memcached(lambda: self.now_s)
        cache = open_cache(lambda: self._tickets_of, lambda: self.now_s)
        self.tickets = CountedTickets(cache, now_s=lambda: self.now_s, sleep=self._wait_for_row)
        self.limit = EntityWriteLimit(self.tickets, pace=self._pace(), is_on=is_limited)
        self.workers = [SiteProcess(f"w{n}", WORKER, self, app) for n in range(workers)]
        self.clients = [SiteProcess(f"c{n}", CLIENT, self, app) for n in range(clients)]
        self.processes = [*self.workers, *self.clients]
        self.on_commit: Callable[[Any], None] = lambda entity: None
        self.spent = Counter[tuple[str, str]]()
        self.lost = Counter[str]()
        self.full_s = Counter[str]()
        self.is_over = False
        self._idle = deque(self.workers)
        self._requests: deque[Any] = deque()  # They wait for a worker.
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def _pace(self) -> Pace:
        names = ("per_s", "window_s", "max_wait_s", "abort_after_s")
        return Pace(*(self.profile[f"entity_writes.{name}"] for name in names))

    def let_queues_run(self, at_once: int, rate: float) -> None:
        """Let each queue send more than its file says."""
        for queue in self.engine.queues.all():
            message = queue.message
            message.rate_limits.max_concurrent_dispatches = at_once
            message.rate_limits.max_dispatches_per_second = rate
            message.rate_limits.max_burst_size = max(message.rate_limits.max_burst_size, 100)
            queue.configure(message, True, self.now_s)

    # Time

    def sleep(self, seconds: float) -> None:
        self.wait(PAUSE, seconds)

    def wait(self, what: str, seconds: float) -> None:
        """Let others run for a time that is spent with something."""
        self._pass(seconds)
        self._note(what, seconds)

    def _pass(self, seconds: float) -> None:
        super().sleep(seconds)

    def _note(self, what: str, seconds: float) -> None:
        if self.current is not None:
            self.spent[self.current.process.role, what] += max(0.0, seconds)

    def _wait_for_row(self, seconds: float) -> None:
        self.wait(f"wait for {self.tickets.kind}", seconds)

    # Calls

    def ask(self, continuation: Any, details: Any, request: Any) -> Any:
        """Make a call of Datastore or Cloud Tasks, as slowly as the profile says."""
        if self.current is None:
            return continuation(details, request)
        rpc = details.method.rpartition("/")[2]
        message = getattr(request, "_pb", request)

        def effect(details: Any, request: Any) -> Any:
            call = continuation(details, request)
            if rpc == "Commit" and error_of(call) is None:
                self._tell(message)
            return call

        def slowly(details: Any, request: Any) -> Any:
            self.wait(PROCESSOR, CALL_S)
            began_s = self.now_s
            call = self.drawn.intercept_unary_unary(effect, details, request)
            self._note(rpc, self.now_s - began_s)
            return call

        call = self.limit.intercept_unary_unary(slowly, details, request)
        if rpc == "Commit" and error_of(call) is not None:
            self.lost[_kind_of(message)] += 1
        return call

    def _tell(self, message: Any) -> None:
        for mutation in message.mutations:
            operation = mutation.WhichOneof("operation")
            if operation not in (None, "delete"):
                self.on_commit(getattr(mutation, operation))

    # Turns

    def begin_client(self, number: int, work: Callable[[SiteProcess], None]) -> None:
        """Let a client work."""
        process = self.clients[number]
        self._continue(self._start("acts", process, lambda: work(process)))

    def run(self, *, until_s: float | None = None) -> None:
        """Take turns until a time, or until nothing happens any more."""
        end_s = float("inf") if until_s is None else until_s
        while True:
            self._dispatch()
            while self._requests and self._idle:
                self._serve(self._requests.popleft(), self._idle.popleft())
            wake_s = self._wake_s()
            if wake_s is None:
                return
            next_s = min(wake_s, end_s)
            self._note_full(max(0.0, next_s - self.now_s))
            self.now_s = max(self.now_s, next_s)
            if wake_s > end_s:
                return
            if self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[2]()

    def _wake_s(self) -> float | None:
        wake_s = self.engine.wake_at()
        times = [at_s for at_s, *_ in self._events[:1]]
        if wake_s is not None and wake_s > self.now_s:
            times.append(wake_s)
        return min(times, default=None)

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), event))

    def _dispatch(self) -> None:
        for attempt in self.engine.begin_ready():
            at_s = self.now_s + self.profile.draw("dispatch", self.chance)
            self._at(at_s, partial(self._requests.append, attempt))

    def _serve(self, attempt: Any, process: Process) -> None:
        def work() -> None:
            self.wait(PROCESSOR, REQUEST_S)
            actor.status = self._send(attempt, process)

        actor = self._start("serves", process, work)
        actor.delivery, actor.is_awaited = attempt, True
        self._continue(actor)

    def _continue(self, actor: Actor) -> None:
        """Let an actor go on when it is time."""

        def turn() -> None:
            self._go_on(actor)
            if not actor.has_ended:
                self._continue(actor)
            elif actor.process.role == WORKER:
                self._idle.append(actor.process)

        self._at(actor.wakes_at_s, turn)

    def _note_full(self, seconds: float) -> None:
        for queue in self.engine.queues.all():
            limit = queue.message.rate_limits.max_concurrent_dispatches
            if queue.running >= limit and not self._requests:
                self.full_s[queue.name.rpartition("/")[2]] += seconds


def _kind_of(message: Any) -> str:
    for mutation in message.mutations:
        operation = mutation.WhichOneof("operation")
        if operation not in (None, "insert"):
            written = getattr(mutation, operation)
            return str((written if operation == "delete" else written.key).path[-1].kind)
    return "inserts"
