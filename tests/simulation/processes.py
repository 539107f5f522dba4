"""The processes of the simulated app: each has the shipped clients, a clock and a memory."""

from __future__ import annotations

import contextlib
import datetime
import random
import smtplib
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import requests

from pipelines.invitations.mail import SmtpMailer
from rollforward.continuations.pages import seen_pages
from rollforward.datastore import transactions
from rollforward.flask.app import mount
from rollforward.flask.settings import APP_ENGINE, Settings
from rollforward.lanes.gathered import claiming
from rollforward.lanes.runs import claims
from rollforward.materialized_views.updating import table_fold
from rollforward.outbox import InlineRelay
from rollforward.registry import Registry
from rollforward.runtime import Clients, Meter, open_datastore
from rollforward.runtime.channel.limits import DatastoreLimits
from rollforward.runtime.process.heartbeats import NoHeart
from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.sharing import group_commit, shared_transaction
from rollforward.streams import driver
from rollforward.streams.storage import inbox_hints
from rollforward.tasks import AppEngineTarget, CloudTaskQueue
from rollforward.testing.injection import FaultyCache, FaultyWire, WaitingStub
from rollforward.testing.services import LOCATION, PROJECT
from rollforward.testing.short_answers import RandomAnswers
from tests.infra import world as _  # noqa: F401  A catalog of few copies, as in the suite.
from tests.simulation.services import channel, http, memcached, payments, smtp
from tests.simulation.shop import app
from tests.simulation.shop.common import Shop
from tests.simulation.shop.payments import Payments
from tests.simulation.shop.receipts import SENDER
from tests.simulation.threads import for_actors

if TYPE_CHECKING:
    from flask.testing import FlaskClient

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


class Version(NamedTuple):
    """A version of the code in a process: its clients, its parts, and the way to its app."""

    clients: Clients
    registry: Registry
    browser: FlaskClient


class Process:
    """A process that serves requests, by one thread or by several.

    Attributes:
        incarnation: Counts its deaths. What an earlier one does has no effect.
        next_version: Of the code, as soon as it is idle; None: it stays.
    """

    def __init__(self, name: str, world: World, shops: Collection[Shop]) -> None:
        self.name = name
        self.incarnation = 0
        self.clock = ProcessClock(world)
        self.random = random.Random(0)
        self.answers = RandomAnswers()
        meter, wire = Meter(), FaultyWire(world.line, self._ask)  # type: ignore[arg-type]
        datastore = open_datastore(PROJECT, emulator=channel.ADDRESS)
        self._limits = DatastoreLimits(lambda: world.now_s)
        stub = channel.datastore_stub(
            channel.of_datastore(lambda: world.store), [meter, self._limits, wire]
        )
        datastore.stub = WaitingStub(stub)
        tasks = channel.tasks_client(lambda *call: world.cloud_tasks(*call), [meter, wire])
        cache = memcached.open_cache(lambda: world.memcached, lambda: world.now_s)
        clients = Clients(
            datastore=datastore,
            tasks=CloudTaskQueue(tasks, PROJECT, LOCATION, AppEngineTarget()),
            cache=FaultyCache(cache, world.line),  # type: ignore[arg-type]
            meter=meter,
            relay=InlineRelay(),
            services={
                SmtpMailer: SmtpMailer(smtp.HOST, smtp.PORT, SENDER),
                Payments: Payments(_session(world), f"{payments.HOST}/charges"),
            },
            clock=self.clock,
            heart=NoHeart(),
            process_state=ProcessState(),
            random=self.random,
        )
        self._versions = {shop.version: _version(shop, clients) for shop in shops}
        self.version = min(self._versions)
        self.next_version: int | None = None

    @property
    def clients(self) -> Clients:
        return self._versions[self.version].clients

    @property
    def registry(self) -> Registry:
        return self._versions[self.version].registry

    def _ask(self, continuation: Any, details: Any, request: Any) -> Any:
        return self.answers.ask(continuation, details, request)

    def begin(self, seed: str) -> None:
        """Begin a schedule as a process that has just been started."""
        self.random.seed(f"{seed} {self.name}")
        self.answers = RandomAnswers(has_snapshots=True, seed=seed)
        self.clock.wrong_by_s = 0.0
        self._limits._open.clear()
        self.version, self.next_version = min(self._versions), None
        self.restart()

    def restart(self) -> None:
        """Die, and be followed by another one: its memory is gone."""
        self.incarnation += 1
        self.clients.process_state.clear()
        if self.next_version is not None:
            self.version, self.next_version = self.next_version, None

    def request(self, method: str, path: str, **options: Any) -> tuple[int, bytes]:
        """Make a request of the app; return status and body."""
        browser = self._versions[self.version].browser
        response = browser.open(path, method=method, base_url=BASE_URL, **options)
        return response.status_code, response.data


def _session(world: World) -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # Neither proxies nor passwords of this machine.
    session.mount("http://", http.adapter_of(world))
    return session


def _version(shop: Shop, clients: Clients) -> Version:
    registry, target = shop.registry(), AppEngineTarget()
    clients = replace(clients, task_paths=registry.tasks)
    settings = Settings(platform=APP_ENGINE, project=PROJECT, secret_keys=(SECRET,), target=target)
    flask = app.make(shop)
    mount(flask, settings, clients, registry, api_prefix=app.API)
    return Version(clients, registry, flask.test_client(use_cookies=False))


@contextlib.contextmanager
def in_virtual_time(world: World) -> Iterator[None]:
    """Let pauses, leases and spans take virtual time, and the seed draw what is random."""
    defaults = {"sleep": world.sleep, "jitter": world.jitter}
    pause = transactions.pause_before_retry
    clock = SimpleNamespace(monotonic=lambda: world.now_s, sleep=world.sleep)
    holder = claims.Holder.__init__
    started = [
        clock.monotonic if value is time.monotonic else value for value in holder.__defaults__
    ]

    def run_in_background(engine: driver.Engine, steps: Any) -> None:
        world.begin_beside("streams", lambda: engine.run(steps))

    with (
        contextlib.ExitStack() as timed,
        for_actors(world),
        mock.patch.object(smtplib, "socket", smtp.sockets_of(world)),
        mock.patch.object(driver.Engine, "_run_in_background", run_in_background),
        mock.patch.object(transactions, "secrets", SimpleNamespace(token_hex=world.token_hex)),
        mock.patch.object(table_fold, "_DICE", world.dice),
        mock.patch.object(holder, "__defaults__", tuple(started)),
        mock.patch.dict(transactions.transact.__kwdefaults__, defaults),
        mock.patch.object(pause, "__defaults__", tuple(defaults.values())),
    ):
        for module in (
            claims,
            claiming,
            driver,
            group_commit,
            inbox_hints,
            seen_pages,
            shared_transaction,
        ):
            timed.enter_context(mock.patch.object(module, "time", clock))
        yield
