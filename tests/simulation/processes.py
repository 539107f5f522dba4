"""The processes of the simulated app: each has the shipped clients, a clock and a memory."""

from __future__ import annotations

import contextlib
import datetime
import random
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from rollforward.datastore import transactions
from rollforward.flask.app import mount
from rollforward.flask.settings import APP_ENGINE, Settings
from rollforward.lanes.runs import claims
from rollforward.materialized_views.updating import table_fold
from rollforward.outbox import InlineRelay
from rollforward.registry import Registry
from rollforward.runtime import Clients, Meter, open_datastore
from rollforward.runtime.channel.limits import DatastoreLimits
from rollforward.runtime.process.heartbeats import NoHeart
from rollforward.runtime.process.process_state import ProcessState
from rollforward.tasks import AppEngineTarget, CloudTaskQueue
from rollforward.testing.injection import FaultyCache, FaultyWire, WaitingStub
from rollforward.testing.services import LOCATION, PROJECT
from rollforward.testing.short_answers import DrawnAnswers
from tests.simulation.services import channel, memcached

if TYPE_CHECKING:
    from flask import Flask

    from tests.simulation.world import World

SECRET = "of-the-simulator-0f3c9e7a1b5d8e2f-4c6a9b1d7e3f5a8c"
BASE_URL = "https://app.invalid"
QUEUE_HEADER = {"X-AppEngine-QueueName": "simulated"}
CRON_HEADER = {"X-Appengine-Cron": "true"}


class ProcessClock:
    """The clock of a process, which may be wrong; its sleepers let others run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.wrong_by_s = 0.0

    def now(self) -> datetime.datetime:
        seconds = self._world.now_s + self.wrong_by_s
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)


class Process:
    """A process that serves one request at a time.

    Attributes:
        incarnation: Counts its deaths. What an earlier one does has no effect.
    """

    def __init__(
        self, name: str, world: World, make: Callable[[], Flask], registry: Registry
    ) -> None:
        self.name = name
        self.incarnation = 0
        self.clock = ProcessClock(world)
        self.random = random.Random(0)
        self.answers = DrawnAnswers()
        meter, wire = Meter(), FaultyWire(world.line, self._ask)  # type: ignore[arg-type]
        datastore = open_datastore(PROJECT, emulator=channel.ADDRESS)
        self._limits = DatastoreLimits(lambda: world.now_s)
        stub = channel.datastore_stub(
            channel.of_datastore(lambda: world.store), [meter, self._limits, wire]
        )
        datastore.stub = WaitingStub(stub)
        tasks = channel.tasks_client(lambda *call: world.cloud_tasks(*call), [meter, wire])
        cache = memcached.open_cache(lambda: world.memcached, lambda: world.now_s)
        self.clients = Clients(
            datastore=datastore,
            tasks=CloudTaskQueue(tasks, PROJECT, LOCATION, AppEngineTarget()),
            cache=FaultyCache(cache, world.line),  # type: ignore[arg-type]
            meter=meter,
            relay=InlineRelay(),
            task_paths=registry.tasks,
            clock=self.clock,
            heart=NoHeart(),
            process_state=ProcessState(),
            random=self.random,
        )
        self.registry = registry
        self.app = make()
        target = AppEngineTarget()
        settings = Settings(
            platform=APP_ENGINE, project=PROJECT, secret_keys=(SECRET,), target=target
        )
        mount(self.app, settings, self.clients, registry, api_prefix="/api")
        self._client = self.app.test_client(use_cookies=False)

    def _ask(self, continuation: Any, details: Any, request: Any) -> Any:
        return self.answers.ask(continuation, details, request)

    def begin(self, seed: str) -> None:
        """Begin a schedule as a process that has just been started."""
        self.random.seed(f"{seed} {self.name}")
        self.answers = DrawnAnswers(has_snapshots=True, seed=seed)
        self.clock.wrong_by_s = 0.0
        self._limits._open.clear()
        self.restart()

    def restart(self) -> None:
        """Die, and be followed by another one: its memory is gone."""
        self.incarnation += 1
        self.clients.process_state.clear()

    def request(self, method: str, path: str, **options: Any) -> tuple[int, bytes]:
        """Make a request of the app; return status and body."""
        response = self._client.open(path, method=method, base_url=BASE_URL, **options)
        return response.status_code, response.data


@contextlib.contextmanager
def in_virtual_time(world: World) -> Iterator[None]:
    """Let pauses and the leases of lanes take virtual time, and the seed draw what is random."""
    defaults = {"sleep": world.sleep, "jitter": world.jitter}
    pause = transactions.pause_before_retry
    clock = SimpleNamespace(monotonic=lambda: world.now_s)
    holder = claims.Holder.__init__
    started = [
        clock.monotonic if value is time.monotonic else value for value in holder.__defaults__
    ]
    with (
        mock.patch.object(claims, "time", clock),
        mock.patch.object(transactions, "secrets", SimpleNamespace(token_hex=world.token_hex)),
        mock.patch.object(table_fold, "_DICE", world.dice),
        mock.patch.object(holder, "__defaults__", tuple(started)),
        mock.patch.dict(transactions.transact.__kwdefaults__, defaults),
        mock.patch.object(pause, "__defaults__", tuple(defaults.values())),
    ):
        yield
