"""The stage: a run's incidents are visible in place, and an idle page costs nothing."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from handlers.home.stops import TOUR
from handlers.invitations.stage import STRUCK_S, time_left
from handlers.shared.incidents import Delivery, Incidents, Mark, SlowedQueue
from handlers.shared.stage import Stage, Switches, Timeline, stage_of
from models.invitations import party_key
from rollforward.continuations.progress import RunProgress, RunTotals, progress
from rollforward.runtime import Cost
from tests.handlers.conftest import Browser, app_with
from tests.handlers.invitations.party import ID, PAGE, invite
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

MAX_BYTES_AT_REST = 1000


@pytest.fixture
def breaker(world: World) -> Browser:
    """A browser of an app that has a local platform to ask."""
    url = world.services.cloud_tasks.control_url
    return Browser(app_with(world, settings=replace(world.settings, devserver_url=url)))


def delivery(**other: Any) -> Delivery:
    """Return a delivery that was answered with an error, one second in, and came again."""
    fields: dict[str, Any] = {
        **{"task": "t1", "queue": "fan-out", "path": "/tasks/x", "kind": "normal"},
        **{"faults": ("error",), "at": 1.0, "ended_at": 1.1, "status": 500, "error": None},
        **{"reason": "", "task_state": "done", "task_ended_at": 1.5, "body": None},
    }
    return Delivery(**{**fields, **other})


def staged(incidents: Incidents, elapsed_s: float = 10.0, *, is_over: bool = True) -> Stage:
    time = Timeline(0.0, elapsed_s, is_over)
    return stage_of(time, incidents, Switches(), now=elapsed_s, name=lambda hit: hit.task)


def test_hits_are_counted_with_what_became_of_them(world: World) -> None:
    """Struck and done, struck and open, given up; a 429 of the app's own is no hit."""
    stage = staged(
        Incidents(
            [
                delivery(),
                delivery(task_state="live", task_ended_at=None),
                delivery(task_state="failed", task_ended_at=None),
                delivery(faults=(), status=429, reason="it waits"),
            ]
        )
    )

    assert (stage.hit, stage.repaired, stage.lost) == (3, 1, 1)
    assert stage.hits_in_words == "3 faults hit, 1 repaired, 1 lost"
    assert [hit.healed_s for hit in stage.struck] == [None, None, 0.5]


def test_a_kill_says_which_worker_and_which_deliveries(world: World) -> None:
    """Those that ended without a response when it died; and a flag when all are done."""
    lost = {"faults": (), "status": None, "error": "UNAVAILABLE: Server disconnected"}
    incidents = Incidents(
        [
            delivery(task="page 1.1", ended_at=3.1, task_ended_at=9.0, **lost),
            delivery(task="page 2.4", ended_at=3.2, task_ended_at=9.5, **lost),
            delivery(task="page 3.3", ended_at=30.0, **lost),
        ],
        [Mark(3.0, "kill", "4711")],
    )

    stage = staged(incidents)

    assert stage.outcome.startswith(
        "Worker 4711 was killed at 3.0 s. 2 deliveries were lost and redelivered"
    )
    assert stage.affected == "page 1.1, page 2.4"
    assert stage.kills == 1
    kinds = [(flag.kind, flag.text) for flag in stage.flags]
    assert ("kill", "worker 4711 killed") in kinds
    assert ("healed", "2 redelivered") in kinds


def test_flags_that_are_close_share_one_and_stay_on_the_axis(world: World) -> None:
    """However many faults: each flag is between 0 and 100 percent."""
    incidents = Incidents([delivery(at=i / 10) for i in range(200)])

    stage = staged(incidents)

    faults = [flag for flag in stage.flags if flag.kind == "fault"]
    assert sum(flag.count for flag in faults) == 200
    assert len(faults) <= 52
    assert all(0 <= flag.x <= 100 for flag in stage.flags)


def test_a_slowed_queue_comes_with_its_reason_and_its_end(world: World) -> None:
    """In few words, with the app's own beside them, and only while the run lasts."""
    incidents = Incidents(
        [delivery(faults=(), status=429, reason="it waits: page is leased")],
        slowed=[SlowedQueue("fan-out", 0.25, 16.0)],
    )

    [slowed] = staged(incidents, is_over=False).slowed

    assert staged(incidents).slowed == []

    assert (slowed.queue, slowed.percent, slowed.left_s) == ("fan-out", 25, 6)
    assert (slowed.reason, slowed.detail) == ("429, a task that waits", "it waits: page is leased")


def test_a_switch_that_is_on_strikes_once_for_certain(breaker: Browser, world: World) -> None:
    """Each run meets it, however short; and the page tells of it."""
    breaker.create_party(ID)
    invite(breaker, world)
    breaker.post("/break-it/errors/on", {"back": PAGE})
    for rule in world.engine.faults.all():
        if rule.id == "page-errors":
            rule.rate = 0.0  # Only what is certain counts here.
    for place in ("Cellar", "Attic"):
        breaker.post(f"{PAGE}/details", {"title": "T", "host": "H", "place": place, "note": "",
                                         "when": "2030-05-01T19:30"})  # fmt: skip
        breaker.post(f"{PAGE}/send")
        strike_and_settle(world)

        text = breaker.get(PAGE).text
        assert "1 fault hit, 1 repaired, 0 lost" in text
        assert "2 mails sent, 1 fault, 0 lost, 0 duplicated" in text

    assert world.services.mail.count() == 4
    breaker.post("/break-it/errors/off", {"back": PAGE})
    assert world.engine.faults.all() == []


def strike_and_settle(world: World) -> None:
    """Deliver due tasks; a delivery that a rule strikes gets the platform's response."""
    for _ in range(20):
        for due in world.engine.due():
            attempt = world.engine.begin_attempt(due.task_name)
            world.end(attempt, 500 if attempt.answers_500 else world.answer(attempt))
        wake_at = world.engine.wake_at()
        if wake_at is None:
            return
        world.clock.sleep(max(0.0, wake_at - world.clock.time_s) + 0.001)


def test_a_part_that_has_not_changed_costs_next_to_nothing(
    breaker: Browser, world: World, party: str
) -> None:
    """A 304 with no more than its headers, on each page that polls; then a change is seen."""
    for path in (f"{party}/live", "/grades/live", "/grades/live?tab=compare", "/live"):
        first = breaker.get(path)
        repeated = breaker.get(path, headers={"If-None-Match": first.headers["ETag"]})

        assert (first.status_code, repeated.status_code) == (200, 304), path
        assert repeated.data == b""
        sent = sum(len(f"{name}: {value}\r\n") for name, value in repeated.headers)
        assert sent <= MAX_BYTES_AT_REST, path

    tag = breaker.get(f"{party}/live").headers["ETag"]
    breaker.post(f"{party}/details", {"title": "New", "host": "H", "place": "P", "note": "",
                                      "when": "2030-05-01T19:30"})  # fmt: skip
    assert breaker.get(f"{party}/live", headers={"If-None-Match": tag}).status_code == 200


def test_the_page_after_send_costs_the_same_for_few_guests_and_for_many(
    world: World, browser: Browser
) -> None:
    """Reads and round trips, of the page and of the part that the script asks for."""

    def costs(party_id: str, guests: int) -> list[tuple[int, int]]:
        page = browser.create_party(party_id)
        form = {"id": party_id[::-1][:31] + "0", "count": str(guests)}
        browser.post(f"{page}/sample-guests", form)
        world.settle()
        browser.post(f"{page}/send")
        found = []
        for path in (page, f"{page}/live"):
            cost_before = world.clients.meter.cost()
            assert browser.get(path).status_code == 200
            spent = world.clients.meter.cost() - cost_before
            found.append((spent.reads, spent.round_trips))
        return found

    assert costs("1" * 31 + "2", 10) == costs("3" * 31 + "4", 1000)


def test_while_faults_strike_the_time_left_leaves_room_for_a_retry(world: World) -> None:
    """A page that is struck at the very end waits for its lease."""
    totals = RunTotals(99, 0, 0, 0, 0, 0, 1, Cost())
    started = datetime.datetime(2030, 1, 1)  # noqa: DTZ001  As Datastore has it.
    run = RunProgress("r", "running", 100, totals, 10.0, [], started=started, requested=100)

    assert time_left(run, Stage()) == pytest.approx(10 / 99)
    assert time_left(run, Stage(switches=frozenset({"errors"}))) == STRUCK_S
    assert time_left(replace(run, held_s=9.0), Stage(kills=1)) == 9.0
    assert time_left(replace(run, state="finished"), Stage()) is None


def test_a_demo_runs_by_one_press(
    world: World, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party with guests and their mails, students, items; a repeated press changes nothing."""
    monkeypatch.setattr("handlers.home.demo_runs.GUESTS", 20)
    monkeypatch.setattr("handlers.home.demo_runs.STUDENTS", 20)
    monkeypatch.setattr("handlers.home.demo_runs.RATE", 20)
    monkeypatch.setattr("handlers.home.demo_runs.SECONDS", 2)
    for name, place in (("invitations", PAGE), ("grades", "/grades"), ("sums", "/sums/visitors")):
        for _ in range(2):
            response = browser.post(f"/demo/{name}", {"id": ID, "tour": "1"})
            assert response.status_code == 303
            assert response.headers["Location"].startswith(f"{place}?tour=1")
    world.settle(rounds=2000)

    assert world.services.mail.count() == 20
    text = browser.get(PAGE).text
    assert "20 mails sent, 0 lost, 0 duplicated" in text
    with world.context():
        run_id = party_key(ID).get().sends[0]["run_id"]
        assert progress(run_id).max_rate is not None
    assert "20 students added" in browser.get("/grades").text
    assert f"1 of {len(TOUR)}" in browser.get(f"{PAGE}?tour=1").text
    assert browser.post("/demo/nothing", {"id": ID}).status_code == 404


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("counters", "/counters"),
        ("weblog", "/streams/weblog"),
        ("zeitgeist", "/zeitgeist"),
        ("numbers", f"/numbers/{ID}"),
        ("quilt", f"/quilt/{ID}"),
        ("orders", f"/orders/{ID}"),
        ("tenants", f"/tenants/{ID}"),
    ],
)
def test_each_demo_of_a_card_runs_once_for_its_form(
    browser: Browser, snapshot: Callable[[], Any], name: str, place: str
) -> None:
    """And leads to its stage, within the tour if that is where it was pressed."""
    first = browser.post(f"/demo/{name}", {"id": ID, "tour": "2"})
    assert first.headers["Location"].partition("#")[0] == f"{place}?tour=2"
    stored, *_ = snapshot()

    repeated = browser.post(f"/demo/{name}", {"id": ID})
    assert repeated.headers["Location"].partition("#")[0] == place
    assert snapshot()[0] == stored
    assert f"2 of {len(TOUR)}" in browser.get(f"{place}?tour=2").text


@pytest.mark.parametrize("tab", ["nothing", "x" * 200, "../how"])
def test_a_tab_that_is_not_there_is_404(
    browser: Browser, party: str, snapshot: Callable[[], Any], tab: str
) -> None:
    """S28: no template is asked for by a name of the visitor's."""
    stored = snapshot()

    for path in (party, "/grades"):
        assert browser.get(path, query_string={"tab": tab}).status_code == 404
    assert browser.get("/grades", query_string={"more": tab}).status_code == 404
    assert snapshot() == stored


@pytest.mark.parametrize(("is_complete", "kind"), [(True, "end"), (False, "cut")])
def test_the_last_flag_is_green_for_a_complete_run_only(
    services: object, is_complete: bool, kind: str
) -> None:
    """A quilt that stopped unfinished, and a send that was cancelled, end in grey."""
    time = Timeline(0.0, 10.0, is_over=True, end="over", is_complete=is_complete)

    stage = stage_of(time, Incidents([]), Switches(), now=10.0, name=lambda hit: hit.task)

    assert stage.flags[-1].kind == kind
