"""The numbers for whoever watches the app: who gets them, and that they are true."""

from __future__ import annotations

import datetime

import pytest
from werkzeug.test import TestResponse

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.flask.endpoints.metrics import CONTENT_TYPE
from rollforward.outbox.relay import rate_key
from rollforward.runtime import Clients
from rollforward.tasks import dead_tasks
from rollforward.telemetry.metrics import Outcome
from rollforward.testing.injection import ERROR
from tests.handlers.conftest import app_with, on_app_engine
from tests.infra.world import World
from tests.rollforward.outbox.order_tasks import Step, dying, step

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


def ask(world: World) -> TestResponse:
    return world.app.test_client().get("/metrics", headers=world.cron_headers())


def numbers(answer: TestResponse) -> dict[str, float]:
    """Read an answer as Prometheus does: comments aside, a name and a number a line."""
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.partition(" ") for line in lines)}


def test_an_idle_app_has_nothing_that_waits(world: World) -> None:
    """All numbers are there, of every pattern in use, and all are 0."""
    world.flush()

    answer = ask(world)

    assert (answer.status_code, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
    found = numbers(answer)
    assert set(found.values()) == {0}
    assert {name.partition("{")[0] for name in found} == {
        *("outbox_waiting", "outbox_oldest_seconds", "outbox_oldest_unacked_seconds"),
        *("outbox_relayed_per_second", "dead_tasks_open", "patterns_unread"),
        *("distant_tasks_late_seconds", "schedules_late_seconds"),
        *("batches_running", "batches_oldest_seconds"),
        *("continuations_running", "continuations_oldest_seconds"),
        *("flows_running", "flows_failed", "flows_waiting_for_version", "flows_late_seconds"),
        *("lanes_waiting", "lanes_oldest_seconds", "lanes_paused", "lanes_blocked"),
        *("fork_join_waiting_items", "fork_join_oldest_seconds", "fork_join_parked_items"),
        *("views_waiting_updates", "views_oldest_seconds"),
    }


def test_each_number_is_explained_and_has_its_type(world: World) -> None:
    """HELP and TYPE stand before each number, and the last line ends."""
    text = ask(world).text

    lines = text.splitlines()
    assert text.endswith("\n")
    explained, typed = set(), set()
    for line in lines:
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            (explained if word == "HELP" else typed).add(name)
            assert rest == "gauge" or word == "HELP"
        else:
            assert line.partition("{")[0].partition(" ")[0] in explained & typed
    assert len(explained) + len(typed) == sum(line.startswith("#") for line in lines)


def test_the_numbers_are_those_of_the_outbox_and_of_the_dead_tasks(world: World) -> None:
    """Two rows that wait, three that were relayed, one task that was given up."""
    world.flush()

    def enqueue(clients: Clients, count: int) -> None:
        for i in range(count):
            outbox.enqueue(clients, step, Step("o", f"s{i}"))

    with world.context():
        transact(lambda: enqueue(dying(world), 2))
        transact(lambda: enqueue(world.clients, 3))
        dead_tasks.dead_letter(
            world.clients, path="/tasks/x", queue="default", task_name="t", body=b"", reason="no"
        )
    world.clock.sleep(60)

    found = numbers(ask(world))

    assert found.pop("outbox_oldest_seconds") == pytest.approx(60, abs=1)
    assert found.pop("outbox_waiting") == 2
    assert found.pop("outbox_relayed_per_second") == (3 / 60 if world.services.memcached else 0)
    assert found.pop("dead_tasks_open") == 1
    assert set(found.values()) == {0}


def test_a_stranger_gets_an_empty_403(world: World) -> None:
    """S1: how busy the app is, is nobody's business."""
    answer = world.app.test_client().get("/metrics")

    assert (answer.status_code, answer.data) == (403, b"")


def test_on_app_engine_cron_may_ask(world: World) -> None:
    """S2: its front end proves the caller there; the queue's header does not."""
    client = app_with(world, settings=on_app_engine(world)).test_client()

    assert client.get("/metrics", headers={"X-Appengine-Cron": "true"}).status_code == 200
    assert client.get("/metrics", headers={"X-AppEngine-QueueName": "default"}).status_code == 403


def test_numbers_of_deliveries_are_there_while_datastore_is_away(world: World) -> None:
    """The alert on an unavailable service needs them then; a gauge says what could not be read."""
    headers = world.cron_headers()
    assert ask(world).status_code == 200  # The certificates are known from now on.
    world.app.extensions["wiring"].task_metrics.note(
        "/tasks/a", "default", Outcome.UNAVAILABLE, delay_s=None, duration_s=1
    )
    world.plan.kind, world.plan.at, world.plan.calls = ERROR, 0, []

    with world.plan.watched():
        answer = world.app.test_client().get("/metrics", headers=headers)

    assert world.plan.fired
    assert answer.status_code == 200
    found = numbers(answer)
    assert any('outcome="unavailable"' in name for name in found)
    assert found["patterns_unread"] > 0
    assert numbers(ask(world))["patterns_unread"] == 0


def test_a_pattern_whose_gauges_fail_hides_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad row of one pattern left the operator without any number."""
    outbox_pattern = world.registry.patterns["outbox"]
    monkeypatch.setattr(outbox_pattern, "gauges", lambda clients, parts: [][0])

    found = numbers(ask(world))

    assert found["patterns_unread"] == 1
    assert "dead_tasks_open" in found
    assert "outbox_waiting" not in found


@pytest.mark.parametrize(
    "junk",
    [b"x", b"\xff", b"1.5", b"NaN", b"[]", b"9" * 5000, "７".encode(), b"-5", b"", b" ", b"1_0"],
    ids=lambda junk: repr(junk[:8]),
)
def test_junk_in_memcached_is_no_number(world: World, junk: bytes) -> None:
    """S26: whatever stands where the relay counts, the page answers, and the rate is 0."""
    world.flush()
    minute_ago = world.clock.now() - datetime.timedelta(minutes=1)
    assert world.clients.cache.set(rate_key(minute_ago), junk, 60)

    answer = ask(world)

    assert answer.status_code == 200
    assert numbers(answer)["outbox_relayed_per_second"] == 0
