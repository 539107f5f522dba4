"""The watch over the services: who hangs is named, with what to do, and once."""

import contextlib
import socket
import threading

import grpc
import pytest

from rollforward.local import watch
from rollforward.local.cloudtasks.emulator import running
from rollforward.local.errors import NoResponseError
from rollforward.local.services import standalone
from rollforward.local.services.datastore import DatastoreEmulator
from rollforward.local.services.mail import MailServer
from rollforward.local.system.processes import paused
from rollforward.local.watch import SILENT_S, Probe, Watch
from tests.rollforward.local.conftest import recording_app


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Service:
    """A service that answers, refuses or hangs, as told."""

    def __init__(self):
        self.answers = threading.Event()
        self.answers.set()
        self.refuses = False

    def ask(self):
        if self.refuses:
            raise OSError("connection refused")
        assert self.answers.wait(30)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def said():
    return []


@pytest.fixture
def service():
    made = Service()
    yield made
    made.answers.set()


@pytest.fixture
def watching(clock, said, service):
    """A watch over one service."""
    made = Watch(
        [Probe("Datastore", service.ask, "Start again.")],
        lambda name, text: said.append((name, text)),
        clock,
    )
    yield made
    made.close()


def settle(watching):
    """Look until the call under way has been taken."""
    watching.poll()
    asked = watching._health["Datastore"].asked
    with contextlib.suppress(OSError):
        asked.result(30)
    watching.poll()


def test_a_service_that_answers_is_not_spoken_of(watching, clock, said):
    """However long it goes on."""
    for _ in range(20):
        clock.now += SILENT_S / 2
        settle(watching)

    assert said == []
    assert watching.silent_s("Datastore") == 0.0


def test_a_service_that_hangs_is_named_once_and_its_return_too(watching, clock, said, service):
    """After SILENT_S, not before; with what to do; and again when it answers."""
    settle(watching)
    hang(watching, service)
    clock.now += SILENT_S - 0.1
    watching.poll()
    assert said == []

    clock.now += 0.1
    watching.poll()
    clock.now += 30
    watching.poll()
    assert said == [("Datastore", "has not answered for 10 s. Start again.")]
    assert watching.silent_s("Datastore") == SILENT_S + 30
    assert watching.hint("Datastore") == "Start again."

    service.answers.set()
    settle(watching)
    assert said[1:] == [("Datastore", "answers again, after 40 s → nothing to do")]
    assert watching.silent_s("Datastore") == 0.0


def hang(watching, service):
    """Let the service hang from its next call on, which is under way on return."""
    watching._health["Datastore"].asked.result(30)
    service.answers.clear()
    watching.poll()


def test_a_service_that_refuses_is_named_too(watching, clock, said, service):
    """An error is no answer, and it is asked again each time."""
    settle(watching)
    service.refuses = True
    for _ in range(3):
        clock.now += SILENT_S / 2
        settle(watching)

    assert said == [("Datastore", "has not answered for 10 s. Start again.")]


def test_one_that_hangs_keeps_nobody_else_from_being_asked(clock, said, service):
    """Each has a thread of its own."""
    service.answers.clear()
    lively = Service()
    both = Watch(
        [Probe("A", service.ask, ""), Probe("B", lively.ask, "")],
        lambda name, text: said.append(name),
        clock,
    )
    for _ in range(4):
        both.poll()
        both._health["B"].asked.result(30)
        clock.now += SILENT_S / 2
    both.poll()
    both.close()
    service.answers.set()

    assert said == ["A"]


# --- real services --------------------------------------------------------


@pytest.mark.services
def test_a_datastore_that_stands_still_does_not_answer(monkeypatch):
    """A stopped process runs and has its port; asked for a row it says nothing."""
    emulator = DatastoreEmulator()
    emulator.start()
    emulator.admin.ping()

    monkeypatch.setattr("rollforward.local.saves.exports.PING_S", 1.0)
    try:
        with paused([emulator.process.process()]), pytest.raises(NoResponseError):
            emulator.admin.ping()
    finally:
        emulator.stop()


def test_each_kind_of_service_is_asked_in_its_language():
    """A call that it understands: a version, a greeting, a queue, a page."""
    mail = MailServer()
    mail.start()
    with running() as tasks, recording_app() as app, standalone.memcached() as cache:
        watch.ping_mail(mail.address)
        watch.ping_cloud_tasks(tasks.grpc_address, tasks.engine.place.queue_name("none"))
        watch.ping_app(int(app.url.rpartition(":")[2]), "/")
        if cache:
            watch.ping_memcached(cache)
    mail.stop()


@pytest.mark.parametrize("ask", ["mail", "cloud_tasks", "memcached", "app"])
def test_one_that_takes_connections_and_says_nothing_does_not_answer(monkeypatch, ask):
    """It is given up after ASK_TIMEOUT_S."""
    monkeypatch.setattr(watch, "ASK_TIMEOUT_S", 0.5)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        port = mute.getsockname()[1]
        address = f"127.0.0.1:{port}"
        asks = {
            "mail": lambda: watch.ping_mail(address),
            "cloud_tasks": lambda: watch.ping_cloud_tasks(address, "projects/p/queues/q"),
            "memcached": lambda: watch.ping_memcached(address),
            "app": lambda: watch.ping_app(port, "/"),
        }
        with pytest.raises((OSError, grpc.RpcError)):
            asks[ask]()
