"""Dead letters of pull queues and pipelines: seen one by one, replayed and deleted once."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from google.api_core.exceptions import ServiceUnavailable

from rollforward.continuations.sources import Span
from rollforward.operations.letters import (
    TIMED_JOB,
    LettersArgs,
    LetterSource,
    start_letters,
)
from rollforward.pull_queues.entities import PullItem
from rollforward.registry import Registry
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, Record
from rollforward.streams.driver import run_steps
from rollforward.streams.entities import StreamDead
from rollforward.streams.graph.environment import Environment
from rollforward.streams.inspection import dead_letters
from rollforward.streams.storage.remote_calls import Commit, Steps
from rollforward.streams.storage.schema import DeadRow
from rollforward.tasks.errors import Retry
from tests.infra.world import Services
from tests.rollforward.console.conftest import API, Desk, desk_with
from tests.rollforward.console.test_pages import Browser, reads_of
from tests.rollforward.pull_queues.harness import WORK, add, lease, payloads
from tests.rollforward.streams.harness import PACE

QUEUE = "/letters/pull-queues/work"
one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)


class Picky(Computation):
    """Counts of orders per key; it fails as long as it is picky."""

    inputs: ClassVar = {"orders": lambda order: order["key"]}
    is_picky: ClassVar = True
    max_attempts = 1

    def record(self, ctx: Context, record: Record) -> None:
        if self.is_picky:
            raise ValueError("it is picky")
        ctx.state.list("orders").append(record.value["number"])


PICKY = Pipeline("picky", Picky, intervals=1)


def _fail(*_: object, **__: object) -> Iterator[None]:
    raise ServiceUnavailable("no task can be made")
    yield


def kill_items(desk: Desk, *bodies: str) -> list[str]:
    """Let items be leased until they are dead; return their ids."""
    with desk.world.context():
        return kill_items_here(desk, *bodies)


def kill_items_here(desk: Desk, *bodies: str) -> list[str]:
    """Let items be leased until they are dead, in an open context."""
    world = desk.world
    add(world, *bodies)
    for _ in range(WORK.max_deliveries):
        lease(world, limit=len(bodies), lease_s=1)
        world.clock.sleep(2)
    lease(world, limit=len(bodies))
    return [letter.id for letter in WORK.dead_letters() if letter.payload in bodies]


@pytest.fixture
def desk(services: Services) -> Desk:
    """A desk whose app has a pull queue."""
    return desk_with(services, WORK)


def leased(desk: Desk) -> list[str]:
    with desk.world.context():
        return payloads(lease(desk.world, limit=50))


def test_one_letter_is_seen_and_replayed_or_deleted(desk: Desk) -> None:
    """With its error and its whole body; the other ones stay."""
    ids = dict(zip("abc", kill_items(desk, "a <b>", "b" * 500, "c"), strict=True))
    browser = Browser(desk)
    [first] = [
        name for name in ids.values() if "a &lt;b&gt;" in browser.read(f"{QUEUE}/one/{name}")
    ]
    listed = browser.read(QUEUE)
    fields = {"pattern": "pull-queues", "part": "work"}

    replayed = browser.submit(QUEUE, "/letters/change", id=first, verb="replay", **fields)
    [long] = [
        name for name in ids.values() if "b" * 500 in browser.open(f"{QUEUE}/one/{name}").text
    ]
    deleted = browser.submit(QUEUE, "/letters/change", id=long, verb="delete", **fields)
    again = browser.submit(QUEUE, "/letters/change", id=first, verb="replay", **fields)

    assert "never acked, after 3 leases" in listed
    assert "b" * 500 not in listed
    assert "Replayed" in browser.read(replayed.headers["Location"])
    assert "Deleted" in browser.read(deleted.headers["Location"])
    assert (again.status_code, "no more" in again.text) == (404, True)
    assert leased(desk) == ["a <b>"]
    trail = browser.read("/audit")
    assert "Replay dead letter" in trail
    assert first in trail


@one_emulator
def test_a_body_of_deep_lists_makes_no_page_of_megabytes(desk: Desk) -> None:
    """A producer's payload: indented, its 62 KB would be 31 MB, for the app and for a browser."""
    body = "[" * 500 + "1," * 30_000 + "2" + "]" * 500
    [letter_id] = kill_items(desk, body)

    page = Browser(desk).read(f"{QUEUE}/one/{letter_id}")

    assert body in page
    assert len(page) < 100_000


def test_letters_are_listed_by_cursor_each_once(desk: Desk) -> None:
    """Also those that died in one commit; a page reads as much of many as of few."""
    ids = kill_items(desk, *(str(number) for number in range(45)))
    seen: list[str] = []
    cursor = ""
    for _ in range(5):
        path = f"{API}/dead-letters/pull-queues/work?limit=10&cursor={cursor}"
        answer = desk.ask(path).json
        assert answer is not None
        seen += [letter["id"] for letter in answer["dead_letters"]]
        cursor = answer["next_cursor"]
        if cursor is None:
            break

    assert sorted(seen) == sorted(ids)
    assert len(seen) == len(ids)
    browser = Browser(desk)
    for path in (QUEUE, f"{QUEUE}/all/replay", f"{QUEUE}/one/{ids[0]}", "/runs/pull-queues/work"):
        assert reads_of(desk, lambda path=path: browser.read(path)) <= 60, path  # type: ignore[misc]


@pytest.mark.parametrize(
    ("part", "cursor"),
    [
        ("pull-queues/work", "no-place"),
        ("pull-queues/work", f"20300101T000000000000|{'本' * 400}"),
        ("streams/picky", "本" * 405),
    ],
)
@one_emulator
def test_a_cursor_that_is_of_no_page_is_refused(services: Services, part: str, cursor: str) -> None:
    """By the bytes that a key takes, and not with the first page."""
    desk = desk_with(services, WORK, PICKY)

    assert desk.ask(f"{API}/dead-letters/{part}?cursor={cursor}").status_code == 400
    assert Browser(desk).open(f"/letters/{part}?cursor={cursor}").status_code == 400


def test_selected_and_all_letters_are_runs(desk: Desk) -> None:
    """Some by their ids; then all that are left, by a form or by the API."""
    ids = kill_items(desk, *"abcd")
    browser = Browser(desk)
    fields = {"pattern": "pull-queues", "part": "work"}

    # One is gone already: the ids of letters may be as long as a record's key.
    chosen = [*ids[:2], "x" * 900]
    some = browser.submit(QUEUE, "/letters/selected", id=chosen, verb="replay", **fields)
    desk.world.settle()
    taken = leased(desk)
    page = browser.read(f"{QUEUE}/all/delete")
    body = {"all": True}
    started = desk.change("/dead-letters/pull-queues/work:delete", body)
    desk.world.settle()

    assert len(taken) == 2
    assert "dead-letters" in browser.read(some.headers["Location"])
    assert "Delete 2 dead letters of work?" in page
    assert started.status_code == 202
    assert "work has no dead letters" in browser.read(QUEUE)
    with desk.world.context():
        assert len(PullItem.query().fetch()) == 2  # Those that are leased.


@one_emulator
def test_letters_that_were_selected_have_no_time_beside_their_ids(desk: Desk) -> None:
    """The run of the first form has the same id, and another job: the second one ended in 500."""
    [letter_id] = kill_items(desk, "a")
    browser = Browser(desk)
    fields = {"pattern": "pull-queues", "part": "work", "verb": "delete", "key": "k"}

    browser.submit(QUEUE, "/letters/selected", id=letter_id, **fields)
    since = "2030-01-01T00:00Z"
    both = browser.submit(QUEUE, "/letters/selected", id=letter_id, since=since, **fields)

    assert (both.status_code, "or those of a time" in both.text) == (400, True)


def bodies_of(desk: Desk, query: str, cursor: str | None = "") -> list[str]:
    """Return the bodies of the letters that the API lists, over all pages of three."""
    bodies: list[str] = []
    while cursor is not None:
        path = f"{API}/dead-letters/pull-queues/work?limit=3&{query}&cursor={cursor}"
        answer = desk.ask(path).json
        assert answer is not None
        for letter in answer["dead_letters"]:
            one = desk.ask(f"{API}/dead-letters/pull-queues/work/{letter['id']}").json
            assert one is not None
            bodies.append(one["body"])
        cursor = answer["next_cursor"]
    return bodies


def test_letters_are_chosen_and_changed_by_the_time_of_their_death(desk: Desk) -> None:
    """By the page and by the API; a change of all keeps to the time that was confirmed."""
    clock, times = desk.world.clock, []
    for hour in range(4):
        times.append(clock.now())
        kill_items(desk, *(f"{hour}-{number}" for number in range(2)))
        clock.sleep(3_000)
    browser, since, until = Browser(desk), *(at.strftime("%Y-%m-%dT%H:%M:%SZ") for at in times[1:3])
    within = ["1-0", "1-1"]

    assert sorted(bodies_of(desk, f"since={since}&until={until}")) == within
    assert sorted(bodies_of(desk, f"since={since}")) == [*within, "2-0", "2-1", "3-0", "3-1"]
    assert sorted(bodies_of(desk, f"until={until}")) == ["0-0", "0-1", *within]
    first = desk.ask(f"{API}/dead-letters/pull-queues/work?limit=1").json
    assert first is not None
    cursor = first["next_cursor"]  # It leads to letters that died before the time.
    assert sorted(bodies_of(desk, f"since={since}&until={until}", cursor)) == within
    page = browser.read(f"{QUEUE}?since={since}&until={until}")
    assert sorted(re.findall(r">([0-9]-[0-9])<", page)) == within
    older = re.findall(r">([0-9]-[0-9])<", browser.read(f"{QUEUE}?age=before-1h"))
    assert sorted(older) == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    assert "No dead letter of this time" in browser.read(f"{QUEUE}?age=5m")

    confirm = browser.read(f"{QUEUE}/all/delete?since={since}&until={until}")
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', confirm))
    browser.client.post("/rollforward/letters/selected", data=fields, headers=browser.headers)
    tasks = desk.world.live_tasks("default")
    desk.world.settle()
    # Code from before there were times takes nothing by such a form, and knows no such job.
    assert "all" not in fields
    assert tasks
    assert all(TIMED_JOB in task.http_request.url for task in tasks)
    assert "Delete 2 dead letters of work?" in confirm
    for query in ("age=1h", f"since={since}", f"until={until}"):
        assert "Those that died" in browser.read(f"{QUEUE}/all/delete?{query}")
    assert sorted(bodies_of(desk, "")) == ["0-0", "0-1", "2-0", "2-1", "3-0", "3-1"]
    change = "/dead-letters/pull-queues/work:delete"
    assert desk.change(change, {"all": True, "until": until}).status_code == 202
    desk.world.settle()
    assert sorted(bodies_of(desk, "")) == ["2-0", "2-1", "3-0", "3-1"]


def put_dead(environment: Environment, since: datetime.datetime, count: int = 120) -> Steps[None]:
    """Store dead letters, each fortieth after a time and the others before it."""
    rows = []
    for number in range(count):
        died = since + datetime.timedelta(hours=1 if number % 40 == 39 else -2)
        key = environment.names.dead("picky", f"{number:03d}")
        died_ms = int(died.timestamp() * 1000)
        rows.append((key, DeadRow("picky", f"k{number}", "it is picky", died_ms)))
    yield Commit(inserts=rows)


@one_emulator
def test_letters_of_a_pipeline_are_chosen_by_time_among_the_next_fifty(services: Services) -> None:
    """They are in the order of their ids: a page may be short, and the next one goes on."""
    desk = desk_with(services, PICKY)
    since = desk.world.clock.now() + datetime.timedelta(hours=1)
    with desk.world.context():
        run_steps(desk.world.clients, PICKY, put_dead, since)
    found: list[str] = []
    cursor, pages = "", 0
    while cursor is not None:
        pages += 1
        at = since.strftime("%Y-%m-%dT%H:%M:%SZ")
        answer = desk.ask(f"{API}/dead-letters/streams/picky?since={at}&cursor={cursor}").json
        assert answer is not None
        found += [letter["id"] for letter in answer["dead_letters"]]
        cursor = answer["next_cursor"]

    assert found == ["picky:039", "picky:079", "picky:119"]
    assert pages == 3
    text = Browser(desk).read(f"/letters/streams/picky?until={since:%Y-%m-%dT%H:%M}")
    assert text.count("it is picky") == 20


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/dead-letters/pull-queues/work:replay", {"all": True, "since": "soon"}, 400),
        (
            "/dead-letters/pull-queues/work:replay",
            {"ids": ["x"], "until": "2030-01-01T00:00Z"},
            400,
        ),
        ("/dead-letters/pull-queues/work:replay", {}, 400),
        ("/dead-letters/pull-queues/work:replay", {"ids": ["x"], "all": True}, 400),
        ("/dead-letters/pull-queues/work:replay", {"ids": [""]}, 400),
        ("/dead-letters/pull-queues/work:explode", {"all": True}, 404),
        ("/dead-letters/pull-queues/nothing:replay", {"all": True}, 404),
        ("/dead-letters/nothing/work:replay", {"all": True}, 404),
        ("/dead-letters/counters/work:replay", {"all": True}, 404),
        ("/dead-letters/pull-queues/work/none:replay", {}, 404),
        ("/dead-letters/pull-queues/work/none:explode", {}, 404),
        (f"/dead-letters/pull-queues/work/{'x' * 1_600}:replay", {}, 404),
        ("/dead-letters/pull-queues/nothing/none:replay", {}, 404),
    ],
)
def test_a_change_that_cannot_be_understood_changes_nothing(
    desk: Desk, path: str, body: dict[str, Any], status: int
) -> None:
    """And says what is wrong."""
    [letter_id] = kill_items(desk, "a")

    answer = desk.change(path, body)

    assert (answer.status_code, bool(answer.json and answer.json["detail"])) == (status, True)
    desk.world.settle()
    with desk.world.context():
        assert [letter.id for letter in WORK.dead_letters()] == [letter_id]


@one_emulator
def test_a_letter_that_dies_again_is_left_to_the_next_run(desk: Desk) -> None:
    """A run that comes twice replays nothing that failed since."""
    ids = kill_items(desk, "a")
    world = desk.world
    for _ in range(2):
        with world.context():
            jobs = world.registry.jobs
            start_letters(world.clients, jobs, "replay", "pull-queues", "work", run_id="run")
        world.settle()
        with world.context():
            for _ in range(WORK.max_deliveries):
                lease(world, lease_s=1)
                world.clock.sleep(2)
            lease(world)

    with world.context():
        assert [letter.id for letter in WORK.dead_letters()] == ids


@one_emulator
def test_a_run_over_all_letters_ends_at_those_that_died_since(desk: Desk) -> None:
    """While a consumer is broken letters come behind its cursor without an end."""
    [first] = kill_items(desk, "a")
    world = desk.world
    until = world.clients.clock.now()
    world.clock.sleep(1)
    kill_items(desk, "b", "c")
    source = LetterSource(world.registry, LettersArgs("replay", "pull-queues", "work", until, []))

    with world.context():
        one = source.read(Span(), 1)
        rest = source.read(Span(after=one.next or ""), 1)

    assert (list(one.names), list(rest.names), rest.next) == ([first], [], None)


@one_emulator
def test_what_cannot_be_done_now_is_no_error_of_ours(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A race that is lost too often, and a letter of later code."""
    [letter_id] = kill_items(desk, "a")

    def refuse(*_: object) -> None:
        raise Retry("not now")

    monkeypatch.setattr(Registry, "change_letter", refuse)
    answer = desk.change(f"/dead-letters/pull-queues/work/{letter_id}:replay")
    fields = {"pattern": "pull-queues", "part": "work", "id": letter_id, "verb": "replay"}
    page = Browser(desk).submit(QUEUE, "/letters/change", **fields)

    assert (answer.status_code, page.status_code) == (503, 503)


@one_emulator
def test_letters_of_a_pipeline_are_replayed_once(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one and in bulk, with all deliveries doubled and two runs at the same time."""
    desk = desk_with(services, PICKY)
    world = desk.world
    world.clients.process_state.get_or_create("streams config", lambda: PACE)
    numbers = range(6)
    records = [
        PushedRecord(f"r{number}", {"key": "k", "number": number}, 1_000 + number)
        for number in numbers
    ]
    with world.context():
        PICKY.push(world.clients, "orders", records)
        PICKY.close(world.clients, "orders")
    world.settle(rounds=400, patience_s=30)
    browser = Browser(desk)
    listed = desk.ask(f"{API}/dead-letters/streams/picky").json
    assert listed is not None
    ids = [letter["id"] for letter in listed["dead_letters"]]
    shown = browser.read(f"/letters/streams/picky/one/{ids[0]}")
    assert "it is picky" in shown
    assert "number" in shown

    monkeypatch.setattr(Picky, "is_picky", False)
    world.doubles = True
    with monkeypatch.context() as patch:  # The record is there, whoever wakes its reader.
        patch.setattr(dead_letters, "wake_intervals", _fail)
        one = desk.change(f"/dead-letters/streams/picky/{ids[0]}:replay")
    again = desk.change(f"/dead-letters/streams/picky/{ids[0]}:replay")
    gone = desk.change(f"/dead-letters/streams/picky/{ids[1]}:delete")
    runs = [desk.change("/dead-letters/streams/picky:replay", {"all": True}) for _ in range(2)]
    world.settle(rounds=400, patience_s=30)

    assert [answer.status_code for answer in (one, again, gone, *runs)] == [200, 404, 200, 202, 202]
    with world.context():
        assert StreamDead.query().fetch() == []
        orders = [
            order for _, state in PICKY.states(world.clients, "picky") for order in state["orders"]
        ]
    assert Counter(Counter(orders).values()) == Counter({1: len(numbers) - 1})


def test_the_overview_leads_to_dead_letters(desk: Desk) -> None:
    """The gauge says to act above 0; before, the overview was calm."""
    browser = Browser(desk)
    assert "dead letters" not in browser.read("/")

    kill_items(desk, "a")

    assert "work has dead letters to replay or delete" in browser.read("/")
    assert f'href="/rollforward{QUEUE}"' in browser.read("/")
