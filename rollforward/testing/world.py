"""World of a test: real services, a clock of its own, and deliveries in an order of its own.

The app is the real one, its clients are the official ones, and they talk to the services over gRPC
and memcached's protocol. Only two things belong to the test: time, and which task is next.
"""

from __future__ import annotations

import contextlib
import contextvars
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
from flask import Flask
from google.cloud.datastore_v1.types import RollbackRequest

from rollforward.flask import recovery
from rollforward.lanes.rows.entities import LaneTask
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.schedules.ticks import TICK
from rollforward.tasks.dead_task_entities import DeadTask, open_dead_tasks
from rollforward.testing.injection import Crash, FaultPlan, FaultyWire
from rollforward.testing.opening import QueueClock
from rollforward.testing.services import ACCOUNT, BASE_URL, LOCATION, PROJECT, Services, empty

T = TypeVar("T")

SWEPT_EVERY_S = 60.0
_MAX_DELIVERIES = 2000
_SHOWN_TASKS = 5
_SHOWN_BYTES = 200
_LANES = "/tasks/lanes/"
_HAS_RAISED = "Traceback "
_RACES = (409, 429)


class NotHealedError(AssertionError):
    """Several sweeps have not brought the app to where it should be."""


class NotSettledError(AssertionError):
    """Tasks do not come to an end."""


class TaskFailedError(AssertionError):
    """A task failed by its own fault."""


@dataclass(frozen=True)
class FailedDelivery:
    """A delivery that failed by the app's own fault."""

    path: str
    body: bytes
    detail: str
    traceback: str

    def describe(self) -> str:
        """Describe it, with the traceback of the app."""
        body = self.body[:_SHOWN_BYTES].decode(errors="replace")
        return f"{self.path} failed with the arguments {body}: {self.detail}\n\n{self.traceback}"


class World:
    """An app on services of a test, and the queue that delivers its tasks."""

    sweep_paths: Sequence[str] = ("/cron/sweep",)

    def __init__(
        self,
        services: Services,
        app: Flask,
        clients: Clients,
        registry: Registry,
        wire: FaultyWire,
    ) -> None:
        self.services = services
        self.app = app
        self.clients = clients
        self.registry = registry
        self.wire = wire
        self.plan: FaultPlan = wire.plan
        self.engine = services.cloud_tasks.engine
        self.clock = QueueClock(self.engine)
        # A worker's threads end with it: what gathers in memory must not go on in the next test.
        services.closers.extend([clients.process_state.shutdown, clients.cache.close])
        self.order: random.Random | None = None
        self.doubles = False
        self.overlaps = False
        self.current: Any = None
        self.has_died = False
        self.note: Callable[[str], None] = lambda event: None  # Takes what happened, in words.
        self.fails_fast = False
        # Of tasks in lanes, when a test began to watch them; None: it does not.
        self.known_failures: Mapping[str, int] | None = None
        self.failures: list[FailedDelivery] = []

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
        caller, self.plan.delivery = self.plan.delivery, urlsplit(path).path
        try:
            response = apart(
                lambda: self.app.test_client().open(
                    path, method=attempt.method, headers=attempt.headers, data=attempt.body
                )
            )
        except Crash:
            self.bury()
            self.note(f"the worker that handled {path} died")
            return None
        finally:
            self.plan.delivery = caller
        self.note(f"{path} was delivered and answered {response.status_code}")
        status: int = response.status_code
        reasons = (response.get_json(silent=True) or {}) if response.is_json else {}
        is_refused = 300 <= status < 500 and status not in _RACES
        if status == 500 or is_refused or "traceback" in reasons:  # Not a service's trouble.
            self.failures.append(
                FailedDelivery(
                    urlsplit(path).path,
                    attempt.body,
                    reasons.get("detail", "") or f"the app answered {response.status}",
                    reasons.get("traceback", ""),
                )
            )
        if self.known_failures is not None and path.startswith(_LANES):
            self.failures += self._failed_in_lanes(self.known_failures)
        return status

    def lane_rows(self) -> list[LaneTask]:
        """Return the tasks that wait in lanes, key by key, in their order there."""

        def fetch() -> list[LaneTask]:
            with self.context():
                rows: list[LaneTask] = LaneTask.query().order(LaneTask._key).fetch()
                return rows

        return apart(fetch)

    def failures_in_lanes(self) -> dict[str, int]:
        """Return how often each task in a lane has failed by its own fault: the lane retries it."""
        waiting = {_lane_task(row): int(row.failures) for row in self.lane_rows()}
        return waiting | {str(dead.key.id()): int(dead.count) for dead in _dead_in_lanes(self)}

    def _failed_in_lanes(self, known: Mapping[str, int]) -> list[FailedDelivery]:
        return [
            FailedDelivery(dead.path, dead.body.encode(), dead.error or "", dead.reason)
            for dead in _dead_in_lanes(self)
            if dead.count > known.get(str(dead.key.id()), 0)
        ] + [
            FailedDelivery(row.path, row.body.encode(), row.reason or "", "")
            for row in self.lane_rows()
            if row.failures > known.get(_lane_task(row), 0)
        ]

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
        """End the transactions of a dead process, as the service does after a minute.

        Its memory is gone.
        """
        self.has_died = True
        self.plan.dead_threads.clear()
        self.clients.process_state.clear()
        with self.plan.unwatched():
            stub = self.clients.datastore.stub
            for transaction in list(self.wire.open_transactions):
                _rollback(stub, transaction, self.services.database)
            self.wire.open_transactions.clear()

    def deliver_due(self, limit: int = _MAX_DELIVERIES) -> None:
        """Deliver all due tasks, and their own tasks in turn, until none is due."""
        __tracebackhide__ = True
        for _ in range(limit):
            due = self.engine.due()
            if not due:
                return
            if self.overlaps:
                self.deliver_together()
            else:
                self.deliver((self.order.choice(due) if self.order else due[0]).task_name)
            if self.fails_fast and self.failures:
                raise TaskFailedError(self.failures[0].describe())
        raise NotSettledError(f"still not idle after {limit} deliveries: {self.describe_waiting()}")

    def settle(
        self,
        rounds: int = 400,
        patience_s: float = float("inf"),
        *,
        revives: bool = False,
        limit: int = _MAX_DELIVERIES,
    ) -> None:
        """Deliver everything, waiting for scheduled tasks, until nothing is left.

        Tasks further ahead than `patience_s` are left: before then, cron would sweep. So are ticks
        of schedules that were further ahead at the beginning, since each tick leads to another.
        With `revives` a worker that died is followed by another one, as every platform sees to it.
        """
        __tracebackhide__ = True
        ticks_until_s = self.clock.time_s + patience_s
        for _ in range(rounds):
            self.deliver_due(limit)
            if revives and self.has_died:
                self.restart()
                continue
            wake_at = self.engine.wake_at()
            if wake_at is not None and wake_at > ticks_until_s:
                wake_at = _wake_without_ticks(self.engine, self.clock.time_s)
            if wake_at is None or wake_at - self.clock.time_s > patience_s:
                return
            self.clock.sleep(max(0.0, wake_at - self.clock.time_s) + 0.001)
        raise NotSettledError(f"tasks keep coming: {self.describe_waiting()}")

    def heal(self, is_done: Callable[[], bool], rounds: int = 8) -> int:
        """Let time pass and the sweep run until all is done; return how many sweeps that took."""
        self.plan.at, self.plan.more, self.plan.pending = None, {}, []
        for sweeps in range(rounds):
            # A task may come again until the sweep has brought what it waits for.
            with contextlib.suppress(*([NotSettledError] if sweeps + 1 < rounds else [])):
                self.settle(patience_s=SWEPT_EVERY_S, revives=True)
            with self.context():
                if is_done():
                    return sweeps
            if sweeps + 1 == rounds:
                break
            self.note("a minute passes, and the sweep runs")
            self.clock.sleep(SWEPT_EVERY_S)
            self.sweep()
        raise NotHealedError("not healed by the sweep")

    def restart(self) -> None:
        """Start a worker in the place of one that died."""
        self.has_died = False
        self.note("another worker starts")

        def recover() -> None:
            with self.context():
                self.clients.cache.delete(recovery.LAST_LOOK)  # Its time is that of another play.
                recovery.recover(self.clients, self.registry)

        apart(recover)

    def describe_waiting(self) -> str:
        """Return which tasks wait, for an error."""
        waiting = Counter(
            urlsplit(task.path).path
            for queue in self.engine.queues.all()
            for task in queue.tasks.values()
        )
        lines = [f"{path} ({count})" for path, count in waiting.most_common(_SHOWN_TASKS)]
        return ", ".join(lines) or "none waits now"

    def live_tasks(self, queue: str) -> list[Any]:
        """Return the live tasks of a queue, oldest first."""
        parent = f"projects/{PROJECT}/locations/{LOCATION}/queues/{queue}"
        return self.engine.list_tasks(parent)[0]  # type: ignore[no-any-return]

    def flush(self) -> None:
        """Empty memcached."""
        empty(self.services.memcached)

    def sweep(self, *paths: str) -> None:
        """Run every sweep, as cron does, or some."""
        for path in paths or self.sweep_paths:
            status = self.call_cron(path)
            assert status == 200, f"{path} answers {status}"

    def call_cron(self, path: str) -> int:
        """Call a URL of the app as the scheduler does, and return the status."""
        headers = self.cron_headers()
        response = apart(lambda: self.app.test_client().get(path, headers=headers))
        return int(response.status_code)

    def cron_headers(self) -> dict[str, str]:
        """Return the headers by which Cloud Scheduler proves itself."""
        token = self.engine.tokens.oidc_token(ACCOUNT, BASE_URL)
        return {"Authorization": f"Bearer {token}"}


def _dead_in_lanes(world: World) -> list[DeadTask]:
    """Return the tasks of lanes that raised in their last attempt, and wait no more."""

    def fetch() -> list[DeadTask]:
        with world.context():
            rows: list[DeadTask] = open_dead_tasks().fetch()
            return rows

    return [dead for dead in apart(fetch) if dead.lane_id and _HAS_RAISED in dead.reason]


def _lane_task(row: LaneTask) -> str:
    """Return what stays of the id of a task in a lane while it is put off."""
    return str(row.key.id().rpartition("-")[2])


def _wake_without_ticks(engine: Any, now_s: float) -> float | None:
    tasks = [task for queue in engine.queues.all() for task in queue.tasks.values()]
    times = [task.due_at for task in tasks if urlsplit(task.path).path != TICK.path]
    return min((float(at) for at in times if at > now_s), default=None)


def apart(body: Callable[[], T]) -> T:
    """Run a function outside of the contexts that the test has open, as another thread would."""
    return contextvars.Context().run(body)


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


def _rollback(stub: Any, transaction: bytes, database: str | None) -> None:
    request = RollbackRequest(
        project_id=PROJECT, database_id=database or "", transaction=transaction
    )
    with contextlib.suppress(grpc.RpcError):
        stub.rollback(request, timeout=5)
