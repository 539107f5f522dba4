"""Requests in progress: the last one waits for background work, if its processor goes with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from flask import Flask

import rollforward as rf
from rollforward.counters import Counter
from rollforward.datastore.transactions import transact
from rollforward.flask import app, open_clients, recovery, requests_in_progress, start
from rollforward.flask.requests_in_progress import RequestsInProgress
from rollforward.fork_join.entities import WorkPack
from rollforward.outbox.background import BackgroundRelay
from rollforward.runtime.process.process_state import ProcessState
from tests.infra.mutation.lines import Bug
from tests.infra.stack import until
from tests.infra.world import Services, World
from tests.rollforward.flask.acts import one_emulator
from tests.rollforward.outbox.gates import Gate
from tests.rollforward.outbox.order_tasks import waiting

pytestmark = pytest.mark.fast


@rf.task
def greet(name: str) -> None:
    """Do nothing."""


PRESSES = Counter("presses", "in_memory", queue="fork-join", flush_interval_s=3600)


class Site:
    """An app of two pages and one that waits, on a process that may lose its processor."""

    def __init__(self, services: Services, *, cpu_always_allocated: bool) -> None:
        self.world = World(services, tasks=[greet], counters=[PRESSES])
        self.gate = Gate(self.world.clients.tasks)
        self.relay = BackgroundRelay()
        self.clients = replace(
            self.world.clients,
            tasks=self.gate,
            relay=self.relay,
            process_state=ProcessState(),
        )
        self.clients.process_state.on_last_request("outbox", self.relay.finish)
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.app = rf.serve(Flask(__name__), greet, PRESSES)
        settings = replace(self.world.settings, cpu_always_allocated=cpu_always_allocated)
        self.app.extensions["rollforward"].open_with(settings, self.clients)
        for page in (self.order, self.press, self.slow, self.broken):
            self.app.add_url_rule(f"/{page.__name__}", view_func=page)

    def order(self) -> str:
        transact(lambda: rf.enqueue(greet, greet.bind("you")))
        return "ordered"

    def press(self) -> str:
        PRESSES.increment(rf.clients(), "home")
        return "pressed"

    def slow(self) -> str:
        self.has_begun.set()
        assert self.may_end.wait(20)
        return "slow"

    def broken(self) -> str:
        self.order()
        raise ValueError("after its commit")

    def close(self) -> None:
        """Let everything end that waits."""
        self.gate.is_open.set()
        self.may_end.set()
        until(lambda: not self.relay._is_draining, 20)
        self.clients.process_state.shutdown()

    def get(self, path: str) -> str:
        return self.app.test_client().get(path).text


@pytest.fixture
def site(services: Services) -> Iterator[Site]:
    site = Site(services, cpu_always_allocated=False)
    yield site
    site.close()


@one_emulator
def test_the_last_request_answers_once_its_tasks_are_created(site: Site) -> None:
    """B5: the processor goes with the response; its task would wait for the next request."""
    with ThreadPoolExecutor(1) as threads:
        response = threads.submit(site.get, "/order")
        assert site.gate.was_asked.wait(20)
        assert not response.done()
        site.gate.is_open.set()
        assert response.result(20) == "ordered"

    assert waiting(site.world) == []


@one_emulator
def test_a_request_that_fails_after_its_commit_waits_as_well(site: Site) -> None:
    """B5: what it has committed is to be done."""
    site.gate.is_open.set()

    assert "ordered" not in site.get("/broken")
    assert waiting(site.world) == []


@one_emulator
def test_a_request_beside_another_one_does_not_wait(site: Site) -> None:
    """B5: the processor stays; the other one waits for what both have left, if it is the last."""
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(site.get, "/slow")
        assert site.has_begun.wait(20)
        assert site.get("/order") == "ordered"
        assert site.gate.was_asked.wait(20)
        assert len(waiting(site.world)) == 1
        site.may_end.set()
        with pytest.raises(TimeoutError):
            slow.result(0.05)
        site.gate.is_open.set()
        assert slow.result(20) == "slow"

    assert waiting(site.world) == []


@one_emulator
def test_the_last_request_stores_what_is_gathered_in_memory(site: Site) -> None:
    """an hour before its flush; SIGTERM may come to a process that has no processor."""
    site.gate.is_open.set()

    assert site.get("/press") == "pressed"
    with site.clients.context():
        assert len(WorkPack.query().fetch()) == 1


@one_emulator
def test_a_response_waits_for_two_seconds_at_most(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: an outage of Cloud Tasks is no outage of the pages; the sweep has the rows.

    Nor of `/health/live`: no other response waits for a call that hangs.
    """
    waits = list[float]()

    def wait_for(_: object, has_ended: Callable[[], bool], timeout_s: float) -> bool:
        waits.append(timeout_s)
        return has_ended()

    monkeypatch.setattr(threading.Condition, "wait_for", wait_for)

    assert site.get("/order") == "ordered"
    assert site.get("/order") == "ordered"
    [waited_s] = waits
    assert 1.9 < waited_s <= requests_in_progress.TIMEOUT_S == 2.0


@one_emulator
def test_a_relay_that_has_caught_up_is_waited_for_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: after the outage each task exists before its response, as before."""
    monkeypatch.setattr(requests_in_progress, "TIMEOUT_S", 0.01)
    assert site.get("/order") == "ordered"
    site.gate.is_open.set()
    until(lambda: waiting(site.world) == [], 20)
    monkeypatch.setattr(requests_in_progress, "TIMEOUT_S", 20)

    until(lambda: not site.relay._is_draining, 20)
    assert site.get("/order") == "ordered"
    assert waiting(site.world) == []


@one_emulator
def test_no_request_waits_where_the_processor_stays(services: Services) -> None:
    """On a laptop, on App Engine, and on Cloud Run with instance-based billing."""
    site = Site(services, cpu_always_allocated=True)

    assert site.get("/order") == "ordered"
    assert site.gate.was_asked.wait(20)
    assert len(waiting(site.world)) == 1
    site.close()


@one_emulator
def test_no_recovery_begins_that_may_stop_amid_a_transaction(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would be locked for a minute; the sweep of each minute is a request."""
    begun = list[bool]()
    monkeypatch.setattr(recovery, "start", lambda *_: begun.append(True))
    registry = site.app.extensions["rollforward"].registry
    settings = site.app.extensions["wiring"].settings
    monkeypatch.setattr(app, "_check_queues", lambda *_: None)
    monkeypatch.setattr(app.delivery_log, "install", lambda: None)  # For all tests after it.

    for is_allocated in (False, True):
        start(replace(settings, cpu_always_allocated=is_allocated), site.clients, registry)

    assert begun == [True]


@one_emulator
def test_the_relay_of_an_app_is_waited_for(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: as the app opens its clients."""
    waited = list[BackgroundRelay]()
    monkeypatch.setattr(BackgroundRelay, "finish", lambda relay, _: waited.append(relay))
    clients = open_clients(World(services).settings, {})

    clients.process_state.finish_background_work(1)
    clients.cache.close()

    assert waited == [clients.relay]


def test_work_that_fails_to_finish_keeps_no_response_back(caplog: pytest.LogCaptureFixture) -> None:
    """The next act, and the request's own error, are as they were."""
    state, done = ProcessState(), list[str]()

    def fail(_: float) -> None:
        raise ValueError("no processor")

    state.on_last_request("first", lambda _: done.append("first"))
    state.on_last_request("second", fail)
    in_progress = RequestsInProgress(state)

    with pytest.raises(KeyError), in_progress.one():
        raise KeyError("its own")

    assert done == ["first"]
    assert "second has not finished its background work" in caplog.text


def test_acts_run_when_the_last_request_ends_and_the_latest_act_first() -> None:
    """A flush leaves rows to the relay, which was there before it."""
    state, done = ProcessState(), list[str]()
    for name in ("relay", "flush"):
        state.on_last_request(name, partial(lambda name, _: done.append(name), name))
    in_progress = RequestsInProgress(state)

    with in_progress.one():
        with in_progress.one():
            pass
        assert done == []
    assert done == ["flush", "relay"]
    with in_progress.one():
        pass
    assert done == ["flush", "relay"] * 2


_IN_TURN = test_acts_run_when_the_last_request_ends_and_the_latest_act_first
BUGS = (
    Bug(RequestsInProgress, "one", "self._count == 0", "True", _IN_TURN),
    Bug(RequestsInProgress, "one", "self._count -= 1", "pass", _IN_TURN),
    Bug(ProcessState, "finish_background_work", "reversed(", "iter(", _IN_TURN),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """B5: which request waits, and for what first."""
    bug.check_noticed(monkeypatch)
