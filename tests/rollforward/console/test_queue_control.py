"""Queues told what to do: as the account may, on record, and only the app's own."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.operations import waiting as operations
from rollforward.operations.entities import PingDelivery
from rollforward.operations.pings import PingArgs, ping
from rollforward.operations.queue_control import QueueRefusedError, control_queue
from rollforward.operations.waiting import (
    forget_queue_states,
    list_waiting,
    queue_states,
    recent_queue_states,
)
from rollforward.outbox.entities import OutboxTask, RowId
from rollforward.runtime.messages import Message
from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.process.recent_answer import RecentAnswer
from rollforward.tasks import Task
from rollforward.tasks.cloud_tasks import CloudTaskQueue, QueueState
from tests.infra.world import Services
from tests.rollforward.console.conftest import API, PATH, Act, Desk, desk_with
from tests.rollforward.console.test_pages import Browser


def state(desk: Desk, queue: str = "default") -> QueueState:
    with desk.world.context():
        return next(row for row in queue_states(desk.world.clients) if row.name == queue)


@pytest.fixture
def desk(desk: Desk) -> Any:
    """A desk whose queues are as they were, in the end: all tests share them."""
    before = state(desk)
    yield desk
    with desk.world.context():
        tasks = desk.world.clients.tasks
        assert isinstance(tasks, CloudTaskQueue)
        tasks.control_queue("default", "resume")
        tasks.control_queue("default", "rate", max_per_s=before.max_per_s)


def waiting(desk: Desk) -> int:
    with desk.world.context():
        return len(list_waiting(desk.world.clients, "default").tasks)


def test_a_queue_is_paused_slowed_down_and_resumed(desk: Desk) -> None:
    """By buttons of the page, and on record."""
    browser = Browser(desk)

    told = browser.submit("/waiting", "/queues/change", queue="default", verb="pause")
    paused = state(desk)
    browser.submit("/waiting", "/queues/change", queue="default", verb="rate", max_per_s="0.5")
    slowed = state(desk)
    answer = browser.submit("/waiting", "/queues/change", queue="default", verb="resume")

    assert (paused.state, slowed.max_per_s, state(desk).state) == ("paused", 0.5, "running")
    assert slowed.max_concurrent == paused.max_concurrent
    assert "Running attempts continue" in browser.read(told.headers["Location"])
    assert "Resumed" in browser.read(answer.headers["Location"])
    trail = browser.read("/audit")
    for words in ("Pause queue", "default: 0.5/s", "Resume queue", "operate@example.com"):
        assert words in trail


def test_a_rate_makes_no_queue_that_is_missing(desk: Desk) -> None:
    """Cloud Tasks would make it with retries of its own, and nobody would deploy queue.yaml."""
    with desk.world.context():
        with pytest.raises(QueueRefusedError, match="refuses"):
            control_queue(desk.world.clients, "nowhere", "rate", max_per_s=1)

        assert "nowhere" not in {row.name for row in queue_states(desk.world.clients)}


def test_a_queue_is_purged_by_its_name(desk: Desk) -> None:
    """Another name purges nothing."""
    with desk.world.context():
        for number in range(3):
            desk.world.clients.tasks.create(Message(PATH, "default", b'{"tag": "%d"}' % number))
    browser = Browser(desk)
    page = "/queues/purge?queue=default"

    shown = browser.read(page)
    others = ("fan-out", "", "defaults", "a")
    wrong = [
        browser.submit(page, "/queues/purge", queue="default", typed=other) for other in others
    ]
    left = waiting(desk)
    answer = browser.submit(page, "/queues/purge", queue="default", typed="default")
    desk.world.settle()

    for words in (PATH, "due ticks of schedules", "The work of all other tasks is lost"):
        assert words in shown
    assert {answer.status_code for answer in wrong} == {409}
    assert all("Nothing was purged" in answer.text for answer in wrong)
    assert left == 3
    assert (answer.status_code, waiting(desk), desk.done) == (303, 0, {})


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [
        ("default:explode", {}, 404),
        ("default", {}, 404),
        ("imports:pause", {}, 404),  # A queue of another app.
        ("nothing:pause", {}, 404),
        ("default:rate", {}, 400),
        ("default:rate", {"max_per_s": 0}, 400),
        ("default:rate", {"max_per_s": -1}, 400),
        ("default:rate", {"max_per_s": 501}, 400),
        ("default:rate", {"max_per_s": "fast"}, 400),
        ("default:pause", {"max_per_s": 1}, 400),
    ],
)
def test_a_change_that_cannot_be_understood_changes_nothing(
    desk: Desk, target: str, body: dict[str, Any], status: int
) -> None:
    """And says why."""
    before = state(desk)

    answer = desk.change(f"/queues/{target}", body)

    assert (answer.status_code, bool(answer.json and answer.json["detail"])) == (status, True)
    assert state(desk) == before


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (rpc_errors.PermissionDenied("no"), 403, "cloudtasks.queues.pause"),
        (rpc_errors.FailedPrecondition("it is disabled"), 409, "it is disabled"),
        (rpc_errors.ServiceUnavailable("away"), 503, "away"),
    ],
)
def test_what_the_account_may_not_is_said_with_the_right_to_grant(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, words: str
) -> None:
    """The trail has the attempt and its end."""

    def refuse(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(CloudTaskQueue, "control_queue", refuse)
    browser = Browser(desk)

    answer = browser.submit("/waiting", "/queues/change", queue="default", verb="pause")
    by_api = desk.change("/queues/default:pause")
    monkeypatch.undo()

    assert (answer.status_code, words in answer.text) == (status, True)
    assert (by_api.status_code, words in by_api.text) == (status, True)
    assert "Pause queue" in browser.read("/audit")


@pytest.mark.parametrize("path", ["/queues", "/tasks?queue=default"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (rpc_errors.ServiceUnavailable("away"), 503),
        (rpc_errors.PermissionDenied("no"), 403),
    ],
)
def test_a_list_that_cloud_tasks_does_not_give_is_no_error_of_ours(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, path: str, error: Exception, status: int
) -> None:
    """A program is told to try again, or which right is absent."""

    def refuse(*args: object, **options: object) -> None:
        raise error

    for name in ("queue_states", "waiting"):
        monkeypatch.setattr(CloudTaskQueue, name, refuse)

    answer = desk.ask(f"{API}{path}")

    assert (answer.status_code, answer.content_type) == (status, "application/problem+json")


@pytest.mark.parametrize("path", ["/tasks?queue=default", "/outbox?", "/dead-tasks?"])
def test_a_cursor_of_a_list_is_bounded(desk: Desk, path: str) -> None:
    """Before anything reads it."""
    assert desk.ask(f"{API}{path}&cursor={'x' * 1_600}").status_code == 413


@pytest.mark.parametrize(("count", "has_more"), [(1, False), (2, False), (3, True)])
def test_a_page_of_the_outbox_that_is_exactly_full_leads_nowhere(
    desk: Desk, count: int, has_more: bool
) -> None:
    """Else a program asks once more for nothing."""
    created = desk.world.clock.now().replace(tzinfo=None)
    with desk.world.context():
        for number in range(count):
            row = RowId(f"c{number:023d}", created, 0, False, "1a2b3c4d")
            OutboxTask(id=row.text, path=PATH, queue="default", body="{}").put()

    listed = desk.ask(f"{API}/outbox?limit=2").json or {}

    assert (len(listed["rows"]), bool(listed["next_cursor"])) == (min(count, 2), has_more)


def test_queues_of_other_apps_have_no_buttons(desk: Desk) -> None:
    """They are listed, since they may be the cause of what one sees."""
    text = Browser(desk).read("/waiting")

    assert "imports" in text
    assert 'Purge…<span class="unseen"> default' in text
    assert 'Purge…<span class="unseen"> imports' not in text


def test_the_overview_names_a_queue_that_delivers_nothing(desk: Desk) -> None:
    """Work stands still without a failure; before, an operator met no alert, and a calm page."""
    browser = Browser(desk)
    assert "The queue" not in browser.read("/")

    browser.submit("/waiting", "/queues/change", queue="default", verb="pause")
    assert "The queue default is paused: resume it" in browser.read("/")

    browser.submit("/waiting", "/queues/change", queue="default", verb="resume")
    assert "The queue" not in browser.read("/")


def test_the_overview_names_a_queue_that_does_not_exist(services: Services) -> None:
    """Its tasks wait in the outbox for ten minutes, and are dead tasks then."""
    desk = desk_with(services, Task("/tasks/lost", "nosuch", Act, print))

    assert "The queue nosuch does not exist" in Browser(desk).read("/")


def test_all_open_pages_share_one_list_of_queues_for_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cloud Tasks lists queues 600 times a minute; a change is seen by the next page."""
    clients: Any = SimpleNamespace(process_state=ProcessState())
    now_s, asked = 100.0, Counter[str]()

    def list_queues(_: Any) -> list[QueueState]:
        asked["queues"] += 1
        return []

    def pages() -> int:
        for _ in range(3):
            assert recent_queue_states(clients) == []
        return asked["queues"]

    monkeypatch.setattr(operations, "queue_states", list_queues)
    clients.process_state.get_or_create("operations:queues", lambda: RecentAnswer(lambda: now_s))

    counts = [pages()]
    now_s += operations.STATES_KEPT_S - 0.1
    counts.append(pages())
    now_s += 0.1
    counts.append(pages())
    forget_queue_states(clients)
    counts.append(pages())

    assert counts == [1, 1, 2, 3]


def test_a_ping_arrives_once_for_each_request(desk: Desk) -> None:
    """A second request with its key sends none, and a second delivery changes nothing."""
    headers = {"Idempotency-Key": "p1"}

    sent = desk.change("/pings", headers=headers)
    before = desk.ask(f"{API}/pings/{sent.json['id']}").json["queues"]
    count = waiting(desk)
    desk.world.settle()
    again = desk.change("/pings", headers=headers)
    after = desk.ask(f"{API}/pings/{sent.json['id']}").json["queues"]
    with desk.world.context():
        ping.work(desk.world.clients, PingArgs(sent.json["id"], "default", 0.0))

    assert (sent.status_code, again.json, count, waiting(desk)) == (201, sent.json, 1, 0)
    assert sent.json["queues"] == [{"queue": name, "error": None} for name in ("default", "outbox")]
    assert [row["delivered_after_s"] for row in before] == [None, None]
    assert all(0 <= row["delivered_after_s"] < 60 for row in after)
    assert desk.ask(f"{API}/pings/{sent.json['id']}").json["queues"] == after


def test_deliveries_of_pings_are_kept_for_a_day(desk: Desk) -> None:
    """A sweep deletes them."""
    desk.change("/pings")
    desk.world.settle()

    def swept(hours: int) -> int:
        desk.world.clock.sleep(hours * 3600)
        desk.world.registry.sweep(desk.world.clients, "operations", deletes=True)
        return len(PingDelivery.query().fetch())

    with desk.world.context():
        assert [swept(23), swept(2)] == [2, 0]


def test_a_reader_sends_no_ping_and_sees_those_of_others(desk: Desk) -> None:
    """An id that is too long, or a body with arguments, is refused."""
    sent = desk.change("/pings")

    assert desk.change("/pings", role="read").status_code == 403
    assert desk.ask(f"{API}/pings/{sent.json['id']}", role="read").status_code == 200
    assert desk.ask(f"{API}/pings/{'x' * 101}").status_code == 404
    assert desk.change("/pings", {"queue": "default"}).status_code == 400
