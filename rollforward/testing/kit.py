"""Fixture `rollforward`: an app on real services, a clock that the test moves, faults on demand."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import grpc
from flask import Flask

from rollforward.flask.opening import KEY, Opening
from rollforward.flask.settings import Settings
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks import Task
from rollforward.tasks.stored.arguments import load
from rollforward.tasks.stored.distant import MAX_AHEAD_S
from rollforward.tasks.stored.entities import DistantTask, waiting_until
from rollforward.tasks.stored.envelope import split_envelope
from rollforward.testing.calls import SERVICES
from rollforward.testing.client import AppClient, client_of
from rollforward.testing.exploration import FAULTS, Exploration, Exploring
from rollforward.testing.injection import ERROR, KINDS, FaultPlan, FaultyService, FaultyWire
from rollforward.testing.opening import new_namespace, open_clients
from rollforward.testing.services import Services
from rollforward.testing.world import World, apart

A = TypeVar("A")

WITHIN_S = 60.0
MAX_DELIVERIES = 500
_FULL_VIEW = 2
_KNOWN_CALLS = (
    *("Commit", "Lookup", "RunQuery", "RunAggregationQuery", "BeginTransaction", "Rollback"),
    *("AllocateIds", "CreateTask", "BatchCreateTasks"),
    *(f"cache.{name}" for name in ("get", "set", "add", "delete", "count", "change")),
)


class NoAppError(TypeError):
    """The kit has no app, or something that is no app of `rf.serve`."""


class Rollforward:
    """An app in a test.

    Attributes:
        app: The Flask app.
        clients: Its clients; a context of theirs is open while the test runs.
        client: A visitor. Forms get a CSRF token.
        world: The queue, the clock and the faults, for tests that need more than the methods here.
    """

    def __init__(
        self, app: Flask, services: Services, fakes: Mapping[type, object] | None = None
    ) -> None:
        """Open an app of `rf.serve` on the services of the tests.

        Args:
            fakes: Services of the app by type, which replace its own ones.

        Raises:
            NoAppError: `app` does not come from `rf.serve`.
            UnknownQueueError: a task goes to a queue that does not exist.
        """
        opening = getattr(app, "extensions", {}).get(KEY)
        if not isinstance(opening, Opening):
            raise NoAppError(
                f"the tests need the app that rf.serve(app, ...) returns, got {app!r:.100}: name "
                'it in the ini file, as in rollforward_app = "shop:serve", or return it from a '
                "fixture rollforward_app"
            )
        self.fakes = fakes
        plan = FaultPlan()
        wire = FaultyWire(plan, lambda continuation, *call: continuation(*call))
        self.app = app
        app_services = {**opening.services, **(fakes or {})}
        self.clients: Clients = open_clients(
            services,
            plan,
            wire,
            app_services={
                kind: FaultyService(kind.__name__, service, plan)
                for kind, service in app_services.items()
            },
            task_paths=opening.registry.tasks,
        )
        self._opening = opening
        self._settings = Settings(**services.settings())
        opening.open_with(self._settings, self.clients)
        queues = services.cloud_tasks.engine.queues.all()
        opening.registry.check_queues(queue.name.rpartition("/")[2] for queue in queues)
        self.world = World(services, app, self.clients, opening.registry, wire)
        self.client: AppClient = client_of(app, self.world)
        self.on_explored: Callable[[Exploration], None] = lambda counts: None

    def close(self) -> None:
        """Close the clients."""
        self.clients.process_state.clear()
        self.clients.cache.close()

    def reset(self) -> None:
        """Forget everything: entities, tasks, cached values, the worker's memory, the visitor."""
        world, plan = self.world, self.world.plan
        self.clients.process_state.clear()
        plan.reset()
        plan.on_break = lambda kind, index, call: None
        plan.is_watching = False
        plan.dead_threads.clear()
        world.wire.open_transactions.clear()
        world.services.delete_all()
        self.clients.datastore.namespace = new_namespace()
        world.order, world.doubles, world.overlaps = None, False, False
        world.has_died, world.fails_fast = False, False
        world.failures.clear()
        world.note = lambda event: None
        self.client.forget()
        if self.app.extensions["wiring"].clients is not self.clients:
            self._opening.open_with(self._settings, self.clients)

    @property
    def now(self) -> datetime.datetime:
        """The time of the app and of its queues."""
        return self.clients.clock.now()

    def advance(self, seconds: float) -> None:
        """Move the clock; no task runs by that: call `settle`."""
        self.clients.clock.sleep(seconds)

    def settle(
        self, *, within_s: float = WITHIN_S, retries: bool = False, limit: int = MAX_DELIVERIES
    ) -> None:
        """Deliver all due tasks, and the tasks that they create, until none is left.

        Each is delivered as Cloud Tasks does it: to the app's endpoint, as JSON, with its token.
        The clock moves along with tasks that are due soon: the end of a batch, a retry.

        Args:
            within_s: Tasks that are due later than this from now on are left.
            retries: Whether a task that raises is retried until it is a dead task.
            limit: Deliveries at one time after which the app counts as one that never rests. Ten
                times as many retries are allowed.

        Raises:
            TaskFailedError: a task raised, and `retries` is not set.
            NotSettledError: tasks keep creating tasks.
        """
        __tracebackhide__ = True
        world = self.world
        is_exploring = self.client.is_patient
        world.failures.clear()
        world.fails_fast = not (retries or is_exploring)
        if world.fails_fast and world.registry.parts("lanes"):
            world.known_failures = world.failures_in_lanes()
        try:
            world.settle(10 * limit, within_s, revives=True, limit=limit)
        finally:
            world.fails_fast, world.known_failures = False, None

    def visitor(self) -> AppClient:
        """Return another visitor, with cookies of its own."""
        visitor = client_of(self.app, self.world)
        visitor.is_patient = self.client.is_patient
        return visitor

    def sweep(self) -> None:
        """Run the sweep, as cron does each minute."""
        for path in self.world.sweep_paths:
            status = self.cron(path)
            assert status == 200, f"{path} answers {status}"

    def cron(self, path: str) -> int:
        """Call a URL of the app as the scheduler does; return the status.

        In an exploration a call that a fault breaks is made again, as the scheduler's next one.
        """
        fired = self.world.plan.fired
        status = self.world.call_cron(path)
        if status >= 500 and self.client.is_patient and self.world.plan.fired != fired:
            self.world.note(f"the scheduler calls {path} again")
            status = self.world.call_cron(path)
        return status

    def enqueued(self, task: Task[A]) -> list[A]:
        """Return the arguments of a task's waiting deliveries, oldest first.

        Those in lanes come after those in the queues, each key's in their order there, and those
        due in more than 30 days last. They compare equal to `task.bind(...)`, or to the task's own
        dataclass.
        """
        engine = self.world.engine
        bodies: list[bytes] = []
        for queue in engine.queues.all():
            token = ""
            while True:
                page, token = engine.list_tasks(queue.name, _FULL_VIEW, 0, token)
                requests = [one.http_request for one in page]
                bodies += [sent.body for sent in requests if urlsplit(sent.url).path == task.path]
                if not token:
                    break
        bodies += [row.body.encode() for row in self.world.lane_rows() if row.path == task.path]
        bodies += [row.body.encode() for row in _distant_rows(self.world) if row.path == task.path]
        with self.world.plan.unwatched():
            return [task.read(load(split_envelope(body))) for body in bodies]

    def fail(
        self, *, next: str, fault: str = ERROR, times: int = 1, code: str = "UNAVAILABLE"
    ) -> None:
        """Break the next remote calls of a service, or of a method.

        Args:
            next: "datastore", "tasks", "cache", "app", or a method: "Commit", "Payments.charge".
            fault: "error" (no effect), "reply-lost" (effect, and the caller sees an error),
                "crash-before" or "crash-after" (the worker dies).
            code: The gRPC code of an error or a lost reply.

        Raises:
            ValueError: nothing would ever fail by this.
        """
        if fault not in KINDS:
            raise ValueError(f"fault must be one of {', '.join(KINDS)}, got {fault!r}")
        if code not in grpc.StatusCode.__members__ or times < 1:
            raise ValueError(
                "code must be one of gRPC, such as UNAVAILABLE, and times 1 or more, got "
                f"{code!r} and {times}"
            )
        if next not in (*SERVICES, *_KNOWN_CALLS) and not self._has_method(next):
            raise ValueError(
                f"next must be one of {', '.join((*SERVICES, *_KNOWN_CALLS))}, or a method of a "
                f'service of the app, such as "Payments.charge", got {next!r}'
            )
        is_coded = fault in KINDS[:2]
        self.world.plan.break_next(next, f"{fault}:{code}" if is_coded else fault, times)

    def _has_method(self, name: str) -> bool:
        """Return whether a service of the app has a method, as in "Payments.charge"."""
        kind, _, method = name.partition(".")
        services = {one.__name__: service for one, service in self.clients.services.items()}
        return bool(method) and kind in services and hasattr(services[kind], method)

    def explore(
        self,
        scenario: Callable[[], object] | Sequence[Callable[[], object]],
        check: Callable[[], object],
        *,
        meanwhile: Callable[[], object] | None = None,
        faults: Collection[str] = FAULTS,
        services: Collection[str] = SERVICES,
        limit: int | None = None,
        time_s: float | None = None,
        sweeps: int = 2,
        leaves: Collection[str] = (),
        only: str = "",
    ) -> Exploration:
        """Break every remote call of a scenario in every way, and check each time.

        The scenario is played once without faults, which counts its remote calls. Then each call
        and each fault has a play of its own, in an empty store. A request that fails by a fault is
        sent again, as a visitor does; a step that fails by one is called again. Afterwards the app
        gets the time to recover (retries, a new worker, sweeps), and `check` must hold.

        Args:
            scenario: A function, or several steps, that act by `client`, `settle` and `advance`.
            check: Asserts the result, with a context open. It must not change anything.
            meanwhile: Acts of another visitor (`visitor()`), tried during each call. `check` must
                hold with them and without.
            faults: See FAULTS.
            services: Names of SERVICES; only their calls are broken.
            limit: The number of plays with a fault; those are spread over all calls.
            time_s: Begin no play after this many seconds.
            sweeps: How many sweeps, a minute apart, may pass until `check` holds.
            leaves: Parts of the names of rows that are left on purpose: "DeadTask".
            only: Play this fault alone, as a failure prints it.

        Raises:
            ExploreError: `check` failed. The text has the script of each failed play.
        """
        __tracebackhide__ = True
        steps = [scenario] if callable(scenario) else list(scenario)
        exploring = Exploring(self, steps, check, sweeps=sweeps, leaves=leaves, meanwhile=meanwhile)
        return exploring.run(
            faults=faults, services=services, limit=limit, time_s=time_s, only=only
        )


def _distant_rows(world: World) -> list[DistantTask]:
    """Return the tasks due in more than 30 days, the first one first."""

    def fetch() -> list[DistantTask]:
        with world.context():
            latest = world.clients.clock.now() + datetime.timedelta(seconds=MAX_AHEAD_S)
            rows: list[DistantTask] = waiting_until(naive_utc(latest)).fetch()
            return rows

    return apart(fetch)
