"""Runs of all patterns over HTTP: who gets them, that none is missing, what can be done to one."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest
from werkzeug.test import TestResponse

from rollforward import continuations
from rollforward.continuations import ItemError, Job, RefusedItemError, listing
from rollforward.continuations.progress import run_of
from rollforward.operations.audit import list_audit
from rollforward.runtime import Clients
from tests.handlers.conftest import app_with, on_app_engine
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import (
    APPLY,
    Walk,
    items_of,
    ledger,
    put_items,
    run_to_end,
)
from tests.rollforward.flows.shop import BANK, SWEEP, mail, order

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

BROKEN = {"is": True}


def refuse_odd(clients: Clients, args: Walk, items: Sequence[Any]) -> list[ItemError | None]:
    return [RefusedItemError("odd") if BROKEN["is"] and item.value % 2 else None for item in items]


PICKY = Job("picky", "fan-out", Walk, items_of, apply=refuse_odd, page_size=2)


@pytest.fixture
def world(world: World) -> World:
    BROKEN["is"] = True
    return World(world.services, [APPLY, PICKY])


def get(world: World, path: str) -> TestResponse:
    return world.app.test_client().get(f"/control/runs{path}", headers=world.cron_headers())


def post(world: World, path: str) -> TestResponse:
    return world.app.test_client().post(f"/control/runs{path}", headers=world.cron_headers())


def start(world: World, *run_ids: str, job: Job[Any, Any] = APPLY, apart_s: float = 1.0) -> None:
    for run_id in run_ids:
        with world.context():
            continuations.start(world.clients, job, Walk(run_id), run_id=run_id, expected=5)
        world.clock.sleep(apart_s)


def listed(answer: TestResponse) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [run["id"] for run in answer.json["runs"]]


def test_runs_of_every_job_are_listed_newest_first(world: World) -> None:
    """State, items by outcome, and what can be done to each."""
    put_items(world, 5)
    run_to_end(world, APPLY, "old")
    world.clock.sleep(1)
    start(world, "new", job=PICKY)

    new, old = get(world, "").json["runs"]

    assert (new["pattern"], new["id"], new["name"]) == ("continuations", "new", "picky")
    assert (new["state"], new["counts"]["waiting"], new["verbs"]) == ("running", 5, ["cancel"])
    assert (old["state"], old["counts"]["done"], old["verbs"]) == ("finished", 5, [])
    assert datetime.datetime.fromisoformat(old["ended"]).tzinfo is not None


def test_pages_of_runs_list_each_once(world: World) -> None:
    """Those that were started at the very same time, too."""
    start(world, "a", "b")
    start(world, "c", "d", "e", apart_s=0)
    world.clock.sleep(1)
    start(world, "f")

    seen: list[list[str]] = []
    before = ""
    while True:
        answer = get(world, f"?limit=2{before}")
        seen.append(listed(answer))
        if answer.json["next_before"] is None:
            break
        before = f"&before={quote(answer.json['next_before'])}"

    assert seen == [["f", "c", "d", "e"], ["b", "a"]]


def test_a_list_is_filtered_by_state_and_by_job(world: World) -> None:
    """The others are passed over."""
    start(world, "a", "b")
    start(world, "c", job=PICKY)
    with world.context():
        continuations.cancel("a")

    assert listed(get(world, "?state=cancelled")) == ["a"]
    assert listed(get(world, "?name=picky")) == ["c"]
    assert listed(get(world, "?state=running&name=apply&limit=1")) == ["b"]


def test_pages_of_a_filtered_list_have_at_most_as_many_runs_as_asked_for(world: World) -> None:
    """One more than the limit is a page of its own, and no page repeats or leaves out a run."""
    start(world, "a", "b")
    start(world, "other", job=PICKY)
    start(world, "c")

    first = get(world, "?name=apply&limit=2")
    rest = get(world, f"?name=apply&limit=2&before={quote(first.json['next_before'] or '')}")

    assert (listed(first), listed(rest)) == (["c", "b"], ["a"])
    assert rest.json["next_before"] is None


def test_a_run_shows_its_items_and_why_some_failed(world: World) -> None:
    """A letter for each item, in order; the reasons of those that did not go well."""
    put_items(world, 5)
    run_to_end(world, PICKY, "run")

    shown = get(world, "/continuations/run").json

    assert "".join(sorted("".join(part["items"] for part in shown["parts"]))) == "dddff"
    assert [(issue["outcome"], issue["reason"]) for issue in shown["issues"]] == [
        *[("failed", "odd")] * 2
    ]
    assert (shown["run"]["counts"]["failed"], shown["run"]["verbs"]) == (2, ["retry"])
    assert shown["cost"]["writes"] > 0


def test_a_run_says_whether_all_of_its_pages_are_shown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three pages."""
    put_items(world, 5)
    run_to_end(world, PICKY, "run")
    for most, is_all in ((2, False), (3, True), (4, True)):
        monkeypatch.setattr(listing, "MAX_PAGES", most)
        with world.context():
            shown = world.registry.run(world.clients, "continuations", "run")
        assert (len(shown.parts), shown.has_all_parts) == (min(most, 3), is_all)


def test_a_run_is_cancelled_resumed_and_its_failed_items_retried(world: World) -> None:
    """The three verbs; the retry answers with the id of its own run."""
    put_items(world, 5)
    start(world, "run", job=PICKY)

    cancelled = post(world, "/continuations/run:cancel")
    state = get(world, "/continuations/run").json["run"]
    resumed = post(world, "/continuations/run:resume")
    world.settle()
    BROKEN["is"] = False
    retried = post(world, "/continuations/run:retry")
    world.settle()

    assert (cancelled.json, state["state"], state["verbs"]) == (
        {"id": "run"},
        "cancelled",
        ["resume"],
    )
    assert resumed.json == {"id": "run"}
    again = get(world, f"/continuations/{retried.json['id']}").json["run"]
    assert (again["retry_of"], again["counts"]["done"]) == ("run", 2)
    assert post(world, "/continuations/run:retry").status_code == 409


def test_the_audit_trail_has_each_change_of_a_run_with_the_account_of_its_caller(
    world: World,
) -> None:
    """As those of the console: a program's change is told from an operator's by its account."""
    start(world, "run")

    post(world, "/continuations/run:cancel")
    post(world, "/continuations/none:cancel")

    with world.context():
        entries, _ = list_audit(limit=10)
    account = world.settings.target.service_account
    assert {(entry.operator, entry.action, entry.target, entry.result) for entry in entries} == {
        (account, "cancel run", "continuations/run", "done"),
        (account, "cancel run", "continuations/none", "UnknownRunError: none"),
    }


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/continuations/run:resume", 409),
        ("/continuations/run:retry", 409),
        ("/continuations/none:cancel", 404),
        ("/nothing/run:cancel", 404),
        ("/outbox/run:cancel", 404),
        ("/continuations/run:explode", 404),
        ("/continuations/run", 404),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_says_why(
    world: World, path: str, status: int
) -> None:
    """A problem, and the run goes on."""
    start(world, "run")

    answer = post(world, path)

    assert (answer.status_code, answer.content_type) == (status, "application/problem+json")
    assert answer.json["detail"]
    with world.context():
        assert run_of("run").state == "running"


@pytest.mark.parametrize(
    "query",
    [
        "?state=odd",
        "?limit=0",
        "?limit=x",
        "?limit=1000",
        "?limit=0000000019999",
        "?before=x",
        "?before=2026-01-01",
        "?before=0001-01-01T00:00:00%2B14:00",
        "?before=9999-12-31T23:59:59-14:00",
    ],
)
def test_a_bad_query_is_a_400(world: World, query: str) -> None:
    """With what it should be."""
    assert get(world, query).status_code == 400


@pytest.mark.parametrize("before", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_the_first_and_the_last_time_may_be_asked_for(world: World, before: str) -> None:
    """A list is empty before all times."""
    start(world, "a")

    assert listed(get(world, f"?before={before}")) == (["a"] if before > "2" else [])


@pytest.mark.parametrize(
    "run_id", ["a" * 1_000, "a" * 1_501, "本" * 501, "%00", "%ff", "a" * 1_499]
)
def test_an_id_of_no_run_is_a_404(world: World, run_id: str) -> None:
    """Also one that is too long for a name in Datastore."""
    for pattern in ("continuations", "batches", "nothing"):
        assert get(world, f"/{pattern}/{run_id}").status_code == 404
        assert post(world, f"/{pattern}/{run_id}:cancel").status_code == 404


def test_an_id_with_a_slash_is_found(world: World) -> None:
    """Anything that prints may be an id."""
    start(world, "one/two/本")

    (run_id,) = listed(get(world, ""))

    assert get(world, "/continuations/" + quote(run_id)).json["run"]["id"] == run_id
    assert post(world, "/continuations/" + quote(run_id) + ":cancel").json == {"id": run_id}


def test_a_run_of_a_job_that_is_gone_is_listed_and_left_alone(world: World) -> None:
    """Another version's job: nothing here could work on its items."""
    start(world, "run")
    with world.context():
        continuations.cancel("run")
        row = run_of("run")
        row.job = "gone"
        row.put()

    (run,) = get(world, "").json["runs"]

    assert (run["name"], run["state"], run["verbs"]) == ("gone", "cancelled", [])
    assert "called gone" in post(world, "/continuations/run:resume").json["detail"]


@pytest.mark.parametrize("path", ["", "/continuations/run", "/nothing"])
def test_a_stranger_gets_an_empty_403(world: World, path: str) -> None:
    """S1: what an app works on is nobody's business."""
    client = world.app.test_client()

    for answer in (
        client.get(f"/control/runs{path}"),
        client.post(f"/control/runs{path or '/x/y:cancel'}"),
    ):
        assert (answer.status_code, answer.data) == (403, b"")


def test_on_app_engine_the_queues_header_proves_nothing_here(world: World) -> None:
    """S2: cron's does."""
    client = app_with(world, settings=on_app_engine(world)).test_client()

    assert client.get("/control/runs", headers={"X-Appengine-Cron": "true"}).status_code == 200
    assert client.get("/control/runs", headers={"X-AppEngine-QueueName": "q"}).status_code == 403


def test_each_item_is_applied_once_whatever_is_pressed(world: World) -> None:
    """Cancel and resume, twice over, while pages go out."""
    names = put_items(world, 12)
    start(world, "run")
    for verb in ("cancel", "resume", "resume", "cancel", "resume"):
        post(world, f"/continuations/run:{verb}")
        for due in world.engine.due()[:1]:
            world.deliver(due.task_name)
    world.settle()

    assert ledger(world, "run") == dict.fromkeys(names, 1)


def fail_a_flow(services: Services) -> World:
    """Return an app in which the flow A1 has failed at its charge."""
    world = World(services, [APPLY], flows=[order], tasks=[mail])
    BANK.__init__()  # type: ignore[misc]
    BANK.before = lambda verb: 1 / 0  # type: ignore[assignment, return-value]
    with world.context():
        order.start(world.clients, "A1", "boots")
    for _ in range(6):
        world.settle(patience_s=60)
        world.clock.sleep(3_600)
        world.sweep(SWEEP)
    BANK.before = lambda verb: None
    return world


def test_a_failed_flow_is_listed_and_retried_from_a_step(services: Services) -> None:
    """It is a state of its own; what cannot be retried is refused, and changes nothing."""
    world = fail_a_flow(services)
    start(world, "run")
    path = f"/flows/{quote('test-orders|A1')}"

    [run] = get(world, "?state=failed").json["runs"]
    refused = [
        post(world, f"{path}:retry?from_step={step}").status_code
        for step in ("nothing", "s" * 201, quote("本" * 100), "%00")
    ]
    refused += [
        post(world, f"{target}?from_step=charge").status_code
        for target in (f"{path}:cancel", "/continuations/run:retry", "/flows/none:retry")
    ]
    unchanged = get(world, path).json
    retried = post(world, f"{path}:retry?from_step=charge")
    world.settle(patience_s=60)

    assert (run["id"], run["verbs"]) == ("test-orders|A1", ["retry", "cancel"])
    assert "ZeroDivisionError" in run["reason"]
    assert refused == [409, 413, 400, 409, 409, 409, 404]
    assert (unchanged["run"], unchanged["starts"]) == (run, ["reserve", "charge"])
    assert retried.json == {"id": "test-orders|A1"}
    [again] = get(world, "?pattern=flows").json["runs"]
    assert (again["state"], again["counts"]["done"]) == ("running", 2)
    assert again["note"] == "waits for the event courier, times out"
    assert listed(get(world, "?pattern=continuations")) == ["run"]
    assert get(world, "?pattern=nothing").status_code == 400
