"""A world for a test: real services, a clock of its own, and deliveries in an order of its own.

The app is the real one, its clients are the official ones, and they talk over gRPC, SMTP and
the memcached protocol. Only two things belong to the test: time, and who is served next.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pymemcache
import requests
from flask import Flask
from google.cloud.datastore_v1.types import RollbackRequest

import main
from handlers.settings import DemoSettings
from pipelines.invitations.mail import Mailer, SmtpMailer
from pipelines.registry import APP
from rollforward.batches import TaskBatch
from rollforward.continuations import Job
from rollforward.counters import Counter
from rollforward.flask import recovery
from rollforward.flask.settings import LOCAL
from rollforward.fork_join import ForkJoin
from rollforward.local.services.mail import MailServer
from rollforward.materialized_views import ViewMaintenance, catalog
from rollforward.materialized_views import entities as materialized_views
from rollforward.outbox import InlineRelay
from rollforward.pull_queues import PullQueue
from rollforward.registry import Registry
from rollforward.runtime import Clients, Meter, open_cache, open_cloud_tasks, open_datastore
from rollforward.runtime.channel.limits import DatastoreLimits
from rollforward.runtime.flusher import PeriodicFlusher
from rollforward.runtime.process.heartbeats import NoHeart
from rollforward.runtime.process.process_state import ProcessState
from rollforward.streams import Pipeline
from rollforward.tasks import CloudTaskQueue, Task, UrlTarget
from rollforward.testing.injection import (
    Crash,
    FaultPlan,
    FaultyCache,
    FaultyMailer,
    FaultyWire,
    WaitingStub,
)
from rollforward.testing.short_answers import DrawnAnswers

PROJECT = "demo-tests"
LOCATION = "us-central1"
ACCOUNT = "tasks@demo-tests.iam.gserviceaccount.com"
BASE_URL = "http://app.test"
SECRET = "tests-only-0123456789abcdef-0123456789abcdef"

SWEPT_EVERY_S = 60.0
SWEEPS = (
    "/cron/continuations/sweep",
    "/cron/outbox/sweep",
    "/cron/materialized-views/sweep",
    "/cron/fork-join/sweep",
    "/cron/pull-queues/sweep",
    "/cron/counters/sweep",
    "/cron/batches/sweep",
    "/cron/streams/sweep",
)

# The tests of views write a catalog some thousand times, in all its copies. The stacks that run as
# processes have as many copies as are deployed.
DEPLOYED_REPLICAS = materialized_views.CATALOG_REPLICAS
materialized_views.CATALOG_REPLICAS = catalog.CATALOG_REPLICAS = 3

_namespaces = itertools.count(random.randrange(2**40))


class NotHealedError(AssertionError):
    """So many sweeps have not made all right."""


class ProcessMemory(ProcessState):
    """The memory of a process, and the threads that store what it has gathered."""

    def clear(self) -> None:
        """Forget everything, as if killed: the threads end, too, and store nothing more."""
        for act in self._last_acts.values():
            flusher = getattr(act, "__self__", None)
            if isinstance(flusher, PeriodicFlusher):
                flusher._buffer = Nothing()
                flusher._has_ended.set()
        super().clear()


class Nothing:
    """The unstored memory of a dead process."""

    def is_empty(self) -> bool:
        return True

    def store(self) -> None:
        pass


@dataclass(frozen=True)
class QueueClock:
    """The queue's clock, which stands still until a test moves it: app and queue agree."""

    engine: Any

    @property
    def time_s(self) -> float:
        return float(self.engine.clock.now())

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.time_s, datetime.UTC)

    def sleep(self, seconds: float) -> None:
        self.engine.advance(seconds)


@dataclass(frozen=True)
class Services:
    """The services beside the tests."""

    datastore: str
    datastore_kind: str
    memcached: str | None
    mail: MailServer
    cloud_tasks: Any
    database: str | None = os.environ.get("TEST_DATABASE") or None
    closers: list[Callable[[], None]] = field(default_factory=list)


@dataclass
class World:
    """The app in a namespace of its own."""

    services: Services
    jobs: Sequence[Job[Any, Any]] = ()
    tasks: Sequence[Task[Any]] = ()
    builds: Sequence[ViewMaintenance] = ()
    fork_joins: Sequence[ForkJoin[Any]] = ()
    pull_queues: Sequence[PullQueue] = ()
    counters: Sequence[Counter] = ()
    batches: Sequence[TaskBatch] = ()
    streams: Sequence[Pipeline] = ()
    plan: FaultPlan = field(default_factory=FaultPlan)

    def __post_init__(self) -> None:
        self.engine = self.services.cloud_tasks.engine
        self.clock = QueueClock(self.engine)
        self.settings = settings_for(self.services)
        answers = DrawnAnswers(has_snapshots=self.services.datastore_kind == "firestore")
        self.wire = FaultyWire(self.plan, answers.ask)
        self.clients = open_clients(self.services, self.plan, self.wire)
        # A worker's threads end with it: what gathers in memory must not go on in the next test.
        self.services.closers.extend(
            [self.clients.process_state.shutdown, self.clients.cache.close]
        )
        own = (*self.jobs, *self.tasks, *self.builds, *self.fork_joins, *self.pull_queues)
        own = (*own, *self.counters, *self.batches, *self.streams)
        self.registry = Registry(*APP.declared, *own)
        self.app: Flask = main.create_app(self.settings, self.clients, self.registry)
        self.app.testing = False
        self.order: random.Random | None = None
        self.doubles = False
        self.overlaps = False
        self.current: Any = None
        self.has_died = False

    @contextmanager
    def context(self) -> Iterator[None]:
        """Look at Datastore as the app would."""
        with self.plan.unwatched(), self.clients.context():
            yield

    # Deliveries

    def deliver(self, task_name: str) -> int | None:
        """Deliver one task and return the answer's status; None: the worker died over it."""
        attempt = self.engine.begin_attempt(task_name)
        self.current = attempt
        status = self.answer(attempt)
        if self.doubles and status is not None:
            self.answer(attempt)
        self.end(attempt, status)
        return status

    def answer(self, attempt: Any) -> int | None:
        """Send an attempt's request to the app; None: the worker died over it."""
        path = attempt.url.removeprefix(BASE_URL)
        try:
            answer = self.app.test_client().open(
                path, method=attempt.method, headers=attempt.headers, data=attempt.body
            )
        except Crash:
            self.bury()
            return None
        return answer.status_code

    def end(self, attempt: Any, status: int | None) -> None:
        """Tell the queue how an attempt ended."""
        error = "connection closed" if status is None else None
        self.engine.end_attempt(attempt.id, status=status, error=error)
        self.current = None

    def deliver_together(self) -> None:
        """Deliver everything that is due at the same moment, each task twice over."""
        attempts = [self.engine.begin_attempt(due.task_name) for due in self.engine.due()]
        statuses: dict[int, int | None] = {}

        def answer(attempt: Any) -> None:
            statuses[attempt.id] = self.answer(attempt)

        in_threads(*[lambda a=attempt: answer(a) for attempt in attempts * 2])
        for attempt in attempts:
            self.end(attempt, statuses[attempt.id])

    def bury(self) -> None:
        """End what a dead process left open, as the service does after a minute.

        What it remembered is gone.
        """
        self.has_died = True
        self.plan.dead_threads.clear()
        self.clients.process_state.clear()
        with self.plan.unwatched():
            stub = self.clients.datastore.stub
            for transaction in list(self.wire.open_transactions):
                _rollback(stub, transaction, self.services.database)
            self.wire.open_transactions.clear()

    def deliver_due(self, most: int = 2000) -> None:
        """Deliver what is due, and what that makes due, until nothing is."""
        for _ in range(most):
            due = self.engine.due()
            if not due:
                return
            if self.overlaps:
                self.deliver_together()
            else:
                self.deliver((self.order.choice(due) if self.order else due[0]).task_name)
        raise AssertionError(f"still not idle after {most} deliveries")

    def settle(
        self, rounds: int = 400, patience_s: float = float("inf"), *, revives: bool = False
    ) -> None:
        """Deliver everything, waiting for what is scheduled, until nothing is left.

        What is further ahead than `patience_s` is left: before then, cron would sweep. With
        `revives` a worker that died is followed by another one, as every platform sees to it.
        """
        for _ in range(rounds):
            self.deliver_due()
            if revives and self.has_died:
                self.restart()
                continue
            wake_at = self.engine.wake_at()
            if wake_at is None or wake_at - self.clock.time_s > patience_s:
                return
            self.clock.sleep(max(0.0, wake_at - self.clock.time_s) + 0.001)
        raise AssertionError("tasks keep coming")

    def heal(self, is_done: Callable[[], bool], rounds: int = 8) -> int:
        """Let time pass and the sweep run until all is done; return how many sweeps that took."""
        self.plan.at, self.plan.more = None, {}
        for sweeps in range(rounds):
            self.settle(patience_s=SWEPT_EVERY_S, revives=True)
            with self.context():
                if is_done():
                    return sweeps
            self.clock.sleep(SWEPT_EVERY_S)
            self.sweep()
        raise NotHealedError("not healed by the sweep")

    def restart(self) -> None:
        """Start a worker in the place of one that died."""
        self.has_died = False
        with self.plan.unwatched(), self.clients.context():
            self.clients.cache.delete(recovery.LAST_LOOK)  # Its time is that of another play.
            recovery.recover(self.clients, self.registry)

    def live_tasks(self, queue: str) -> list[Any]:
        """Return the live tasks of a queue, oldest first."""
        parent = f"projects/{PROJECT}/locations/{LOCATION}/queues/{queue}"
        return self.engine.list_tasks(parent)[0]  # type: ignore[no-any-return]

    def flush(self) -> None:
        """Empty memcached."""
        empty(self.services.memcached)

    def sweep(self, *paths: str) -> None:
        """Run every sweep, as cron does, or some."""
        for path in paths or SWEEPS:
            answer = self.app.test_client().get(path, headers=self.cron_headers())
            assert answer.status_code == 200, answer.status_code

    def cron_headers(self) -> dict[str, str]:
        token = self.engine.tokens.oidc_token(ACCOUNT, BASE_URL)
        return {"Authorization": f"Bearer {token}"}


def empty(memcached: str | None) -> None:
    """Empty a memcached."""
    if memcached is not None:
        host, _, port = memcached.rpartition(":")
        client = pymemcache.Client((host, int(port)), default_noreply=False)
        client.flush_all()
        client.close()


def wipe(datastore: str) -> None:
    """Delete all that an emulator holds: its queries read every namespace of a kind."""
    _session().post(f"http://{datastore}/reset", timeout=30)


@functools.cache
def _session() -> requests.Session:
    """Return a connection that is kept: it is made before each test otherwise."""
    return requests.Session()


def in_threads(*bodies: Callable[[], Any]) -> None:
    """Run functions side by side; what one raises is raised here."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], Any]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[body]) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def settings_for(services: Services) -> DemoSettings:
    """Return settings as `make run` would give them."""
    return DemoSettings(
        platform=LOCAL,
        project=PROJECT,
        secret_keys=(SECRET,),
        target=UrlTarget(BASE_URL, ACCOUNT, BASE_URL),
        smtp_host="127.0.0.1",
        smtp_port=int(services.mail.address.rpartition(":")[2]),
        mail_from="Rollforward <invitations@demo.example>",
        database=services.database,
        datastore_emulator=services.datastore,
        cloud_tasks_emulator=services.cloud_tasks.grpc_address,
        memcached=services.memcached,
        certs_url=f"{services.cloud_tasks.control_url}/oauth2/v1/certs",
    )


def open_clients(services: Services, plan: FaultPlan, wire: FaultyWire) -> Clients:
    """Open the official clients, with faults and limits between them and the services."""
    meter = Meter()
    settings = settings_for(services)
    channel = [meter, wire]
    cloud_tasks = open_cloud_tasks(emulator=services.cloud_tasks.grpc_address, interceptors=channel)
    mailer = SmtpMailer(settings.smtp_host, settings.smtp_port, settings.mail_from)
    datastore = open_datastore(
        PROJECT,
        emulator=services.datastore,
        namespace=f"t{next(_namespaces):x}",
        database=services.database,
        # Before the wire, which may cut what is asked for.
        interceptors=[meter, DatastoreLimits(services.cloud_tasks.engine.clock.now), wire],
    )
    datastore.stub = WaitingStub(datastore.stub)
    return Clients(
        datastore=datastore,
        tasks=CloudTaskQueue(cloud_tasks, PROJECT, LOCATION, settings.target),
        # A busy machine does not make the tests do without it.
        cache=FaultyCache(open_cache(services.memcached, timeout_s=10), plan),
        meter=meter,
        relay=InlineRelay(),
        services={Mailer: FaultyMailer(mailer, plan)},
        clock=QueueClock(services.cloud_tasks.engine),
        heart=NoHeart(),
        process_state=ProcessMemory(),
    )


def _rollback(stub: Any, transaction: bytes, database: str | None) -> None:
    request = RollbackRequest(
        project_id=PROJECT, database_id=database or "", transaction=transaction
    )
    with contextlib.suppress(grpc.RpcError):
        stub.rollback(request, timeout=5)
