"""Schedules on the console: last and next ticks, and what became of each run."""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from urllib.parse import quote

import pytest
from google.cloud import ndb

from rollforward.schedules import UserSchedules, schedule
from rollforward.schedules.entities import ScheduleRow, row_key
from rollforward.schedules.listing import schedule_state
from rollforward.schedules.sweep import MAX_PER_SWEEP, sweep
from rollforward.tasks import Reject, task
from rollforward.tasks.stored.entities import CancellableTask
from rollforward.tasks.stored.envelope import Envelope
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.world import Services
from tests.rollforward.console.conftest import API, Desk, desk_with
from tests.rollforward.console.test_pages import MAX_READS, Browser, reads_of

BROKEN: dict[str, Exception | None] = {"is": None}
SWEEP = "/cron/schedules/sweep"
# Of users, beside those that are due.
FEW, MANY = 20, 100_000 if IS_EXHAUSTIVE else 1_500


@schedule("*/10 * * * *", tz="Europe/Berlin")
def report(at: datetime.datetime) -> None:
    """Do nothing, or fail."""
    if BROKEN["is"] is not None:
        raise BROKEN["is"]


@task("/tasks/tests/remind", queue="default")
def remind(user: str) -> None:
    """Do nothing."""


REMINDERS = UserSchedules("reminders", remind)


@pytest.fixture
def desk(services: Services) -> Iterator[Desk]:
    """A desk whose app has a schedule, and schedules of users; it is half a minute past a tick."""
    desk = desk_with(services, report, REMINDERS)
    clock = desk.world.clock
    clock.sleep(600 - clock.now().timestamp() % 600 + 30)
    yield desk
    BROKEN["is"] = None


def pass_ticks(desk: Desk, count: int, *, delivers_work: bool = True) -> None:
    """Let ticks come; the last one's work may be left in its queue."""
    for number in range(count):
        desk.world.sweep(SWEEP)
        desk.world.clock.sleep(600)
        if delivers_work or number < count - 1:
            desk.world.settle(patience_s=0)
        else:
            [tick] = desk.world.engine.due()
            desk.world.deliver(tick.task_name)


def states(desk: Desk, name: str = "report") -> list[str]:
    answer = desk.ask(f"{API}/schedules/{name}").json
    assert answer is not None
    return [run["state"] for run in answer["runs"]]


def dead_ids(desk: Desk) -> list[str]:
    answer = desk.ask(f"{API}/schedules/report").json
    assert answer is not None
    return [run["dead_id"] for run in answer["runs"]]


def test_a_schedule_says_when_it_ran_and_runs_again(desk: Desk) -> None:
    """Before its first tick, and with the outcome of each run, the newest first."""
    browser = Browser(desk)
    before = browser.read("/schedules")
    pass_ticks(desk, 2)
    BROKEN["is"] = Reject("the printer is on fire")
    pass_ticks(desk, 1)
    BROKEN["is"] = None
    pass_ticks(desk, 1, delivers_work=False)

    answer = desk.ask(f"{API}/schedules/report").json
    assert answer is not None
    assert "none yet" in before
    assert states(desk) == ["waiting", "dead", "done", "done"]
    times = [datetime.datetime.fromisoformat(run["at"]) for run in answer["runs"]]
    assert [(a - b).total_seconds() for a, b in itertools.pairwise(times)] == [600] * 3
    assert datetime.datetime.fromisoformat(answer["next"]) > desk.world.clock.now()
    assert datetime.datetime.fromisoformat(answer["last"]) == times[0]
    assert len({run["task"] for run in answer["runs"]}) == 4
    page = browser.read("/schedules/one/report")
    for words in ("Waiting", "Dead", "Done", "*/10 * * * *", "Reject", "/tasks/schedules/report"):
        assert words in page
    assert "Waiting" in browser.read("/schedules")


def test_a_run_that_fails_is_not_said_to_wait(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page says how often it has failed, and by which error."""
    pass_ticks(desk, 1, delivers_work=False)
    waiting = states(desk)
    BROKEN["is"] = OSError("the paper is jammed")
    for _ in range(2):
        desk.world.deliver_due()
        desk.world.clock.sleep(60)

    browser = Browser(desk)
    assert (waiting, states(desk)) == (["waiting"], ["retrying"])
    for path in ("/schedules", "/schedules/one/report"):
        assert "Retrying" in browser.read(path)
        assert "2 failures: OSError: the paper is jammed" in browser.read(path)


def test_a_schedule_whose_arguments_cannot_be_read_says_so(desk: Desk) -> None:
    """And how to mend it; in a list, too."""
    with desk.world.context():
        REMINDERS.put(desk.world.clients, "ada", "0 8 * * *", remind.bind("ada"))
        row: ScheduleRow = row_key("reminders", "ada").get()
        row.body = '{"bird": 1}'
        row.put()

    browser = Browser(desk)
    assert "Cannot run" in browser.read("/schedules/users/reminders")
    page = browser.read("/schedules/one/reminders?id=ada")
    assert re.search("Put the schedule again, or delete it.*user: Field required", page)


def test_a_dead_run_that_is_replayed_is_done_and_one_that_is_deleted_says_so(desk: Desk) -> None:
    """Its page leads to the dead task."""
    BROKEN["is"] = Reject("the printer is on fire")
    pass_ticks(desk, 2)
    BROKEN["is"] = None
    runs = desk.ask(f"{API}/schedules/report").json["runs"]  # type: ignore[index]

    desk.change(f"/dead-tasks/{runs[0]['dead_id']}:replay")
    waiting = states(desk)
    desk.change(f"/dead-tasks/{runs[1]['dead_id']}:delete")
    desk.world.settle(patience_s=0)

    assert (waiting, states(desk)) == (["waiting", "dead"], ["done", "deleted"])


def test_a_run_that_dies_again_after_its_replay_is_dead(desk: Desk) -> None:
    """Its page leads to the new dead task, which is replayed or deleted like the first one."""
    BROKEN["is"] = Reject("the printer is on fire")
    pass_ticks(desk, 2)
    first_ids = dead_ids(desk)
    for dead_id in first_ids:
        desk.change(f"/dead-tasks/{dead_id}:replay")
    waiting = states(desk)
    desk.world.settle(patience_s=0)
    dead, second_ids = states(desk), dead_ids(desk)
    BROKEN["is"] = None
    desk.change(f"/dead-tasks/{second_ids[0]}:replay")
    desk.change(f"/dead-tasks/{second_ids[1]}:delete")
    desk.world.settle(patience_s=0)

    assert (waiting, dead) == (["waiting", "waiting"], ["dead", "dead"])
    assert len({*first_ids, *second_ids}) == 4
    assert states(desk) == ["done", "deleted"]


def test_a_run_that_dies_again_after_its_deletion_is_dead_and_then_waits(desk: Desk) -> None:
    """Its task was delivered twice: the outcome of the second delivery counts."""
    BROKEN["is"] = Reject("the printer is on fire")
    pass_ticks(desk, 1)
    [dead_id] = dead_ids(desk)
    [run] = desk.ask(f"{API}/schedules/report").json["runs"]  # type: ignore[index]
    desk.change(f"/dead-tasks/{dead_id}:delete")
    with desk.world.context():
        [row] = CancellableTask.query().fetch()
        body = Envelope(b"{}", handle=row.key.id()).body
    desk.give_up("again", path=report.task.path, task_name=run["task"], body=body)
    dead = states(desk)
    desk.change(f"/dead-tasks/{dead_id}:replay")

    assert (dead, states(desk)) == (["dead"], ["waiting"])


@pytest.mark.parametrize("changes", [{"path": "/tasks/schedules/moved"}, {"queue": "outbox"}])
def test_runs_of_before_a_deployment_keep_their_outcome(
    desk: Desk, changes: dict[str, str]
) -> None:
    """The path or the queue of the schedule's task changed in it."""
    pass_ticks(desk, 1)
    BROKEN["is"] = Reject("the printer is on fire")
    pass_ticks(desk, 1)
    pass_ticks(desk, 1, delivers_work=False)
    moved = replace(report, task=replace(report.task, **changes))

    with desk.world.context():
        before, after = (
            schedule_state(desk.world.clients, part, "", runs=3) for part in (report, moved)
        )
    assert before is not None
    assert after is not None
    assert [run.state for run in after.runs] == ["waiting", "dead", "done"]
    assert after.runs == before.runs


def test_runs_that_the_version_before_wrote_are_read_and_kept(desk: Desk) -> None:
    """Its row has a revision in the place of an object, and its dead tasks left no id."""
    BROKEN["is"] = Reject("the printer is on fire")
    pass_ticks(desk, 1)
    pass_ticks(desk, 1, delivers_work=False)
    before = desk.ask(f"{API}/schedules/report").json
    with desk.world.context():
        row = row_key("report", "").get()
        row.recent = json.dumps([[at, work["revision"]] for at, work in json.loads(row.recent)])
        row.put()
        for handle in CancellableTask.query().fetch():
            handle.dead_id = None
            handle.put()

    assert desk.ask(f"{API}/schedules/report").json == before
    desk.world.settle(patience_s=0)
    pass_ticks(desk, 1)
    assert states(desk) == ["dead", "dead", "dead"]


def test_a_run_that_its_declaration_gave_up_says_so(services: Services) -> None:
    """It has no dead task."""
    reasons: list[str] = []
    handled = replace(report.task, on_give_up=lambda clients, args, reason: reasons.append(reason))
    desk = desk_with(services, replace(report, task=handled))
    BROKEN["is"] = Reject("the printer is on fire")
    try:
        pass_ticks(desk, 1)
    finally:
        BROKEN["is"] = None

    assert reasons == ["Reject: the printer is on fire"]
    assert states(desk) == ["given up"]
    assert "Given up" in Browser(desk).read("/schedules/one/report")


def test_a_run_whose_task_was_purged_says_that_it_may_be_gone(desk: Desk) -> None:
    """After a day; nobody tells the app of a purge."""
    browser = Browser(desk)
    pass_ticks(desk, 1, delivers_work=False)
    desk.world.engine.purge_queue(desk.world.engine.place.queue_name("default"))
    before = browser.read("/schedules/one/report")
    desk.world.clock.sleep(2 * 86_400)

    assert states(desk) == ["waiting"]
    for path in ("/schedules", "/schedules/one/report"):
        assert "or its task was deleted from the queue" in browser.read(path)
    assert "or its task was deleted from the queue" not in before


def test_a_schedule_keeps_its_last_ten_runs(desk: Desk) -> None:
    """Each page reads at most sixty rows."""
    pass_ticks(desk, 12)

    assert states(desk) == ["done"] * 10
    assert reads_of(desk, lambda: Browser(desk).read("/schedules/one/report")) <= MAX_READS


def put_users(desk: Desk, count: int, *, due_ids: tuple[str, ...] = ()) -> None:
    """Store schedules of users past their own commits: of most the next tick is far away."""
    now_utc = desk.world.clock.now().replace(tzinfo=None)
    with desk.world.context():
        for start in range(0, count, 500):
            rows = []
            for number in range(start, min(start + 500, count)):
                row_id = f"u{number:06d}"
                late = datetime.timedelta(minutes=-5 if row_id in due_ids else 600 + number)
                rows.append(
                    ScheduleRow(
                        key=row_key("reminders", row_id), cron="0 9 * * *", tz="UTC",
                        body=f'{{"user": "{row_id}"}}', next_at=now_utc + late, revision="r",
                    )
                )  # fmt: skip
            ndb.put_multi(rows)


def test_schedules_of_users_are_listed_by_cursor(desk: Desk) -> None:
    """Each once, at most sixty reads a page; one is found by its id."""
    put_users(desk, 40)
    browser = Browser(desk)
    seen: list[str] = []
    start_after = ""
    while True:
        answer = desk.ask(f"{API}/schedules/reminders/users?after={start_after}").json
        assert answer is not None
        seen += [row["id"] for row in answer["schedules"]]
        if answer["next_after"] is None:
            break
        start_after = answer["next_after"]

    assert seen == [f"u{number:06d}" for number in range(40)]
    pages = ["/schedules", "/schedules/users/reminders", "/schedules/users/reminders?after=u000009"]
    for path in (*pages, "/schedules/one/reminders?id=u000007"):
        assert reads_of(desk, lambda path=path: browser.read(path)) <= MAX_READS, path  # type: ignore[misc]
    found = browser.open("/schedules/users/reminders?id=u000007")
    assert found.headers["Location"].endswith("/schedules/one/reminders?id=u000007")


def test_schedules_with_the_longest_ids_are_shown_and_listed_by_pages(desk: Desk) -> None:
    """The API takes each `next_after` that it answers, also of a time."""
    clients, ids = desk.world.clients, [f"{number:0500d}" for number in range(20)]
    with desk.world.context():
        for row_id in ids:
            REMINDERS.put(clients, row_id, "0 8 * * *", remind.bind("ann"))
    desk.world.sweep(SWEEP)

    for query in ("", "since=2020-01-01T00:00Z&"):
        first = desk.ask(f"{API}/schedules/reminders/users?{query}").json
        assert first is not None
        rest = desk.ask(f"{API}/schedules/reminders/users?{query}after={first['next_after']}").json
        assert rest is not None
        assert [row["id"] for row in (*first["schedules"], *rest["schedules"])] == ids
    assert desk.ask(f"{API}/schedules/reminders?id={ids[0]}").status_code == 200


def test_schedules_of_users_are_chosen_by_their_next_tick(desk: Desk) -> None:
    """The earliest first, each once, also beside rows of other schedules and many of one tick."""
    put_users(desk, 40, due_ids=("u000007", "u000031", "u000019"))
    now = desk.world.clock.now()
    with desk.world.context():
        tick = now.replace(tzinfo=None) - datetime.timedelta(minutes=5)
        others = [
            ScheduleRow(
                key=row_key(name, f"x{number:02d}"), cron="0 9 * * *", tz="UTC", body="{}",
                next_at=tick, revision="r",
            )
            for name in ("another", "reminders")
            for number in range(30)
        ]  # fmt: skip
        ndb.put_multi(others)
    browser = Browser(desk)
    now_text, pages = f"{now:%Y-%m-%dT%H:%M:%SZ}", []
    query: str | None = f"until={now_text}"
    while query is not None:
        answer = desk.ask(f"{API}/schedules/reminders/users?{query}").json
        assert answer is not None
        pages.append([row["id"] for row in answer["schedules"]])
        after = answer["next_after"]
        query = f"until={now_text}&after={after}" if after else None
    end = now + datetime.timedelta(minutes=602, seconds=30)
    later = f"since={now_text}&until={end:%Y-%m-%dT%H:%M:%SZ}"
    near = desk.ask(f"{API}/schedules/reminders/users?{later}").json
    address = f"/schedules/users/reminders?until={now_text}"

    expected = [*(f"x{number:02d}" for number in range(30)), "u000007", "u000019", "u000031"]
    assert sorted(id_ for page in pages for id_ in page) == sorted(expected)
    assert near is not None
    assert [row["id"] for row in near["schedules"]] == ["u000000", "u000001", "u000002"]
    assert reads_of(desk, lambda: browser.read(address)) <= MAX_READS
    following = unescape(re.findall(r'href="([^"]+)" rel="next"', browser.read(address))[0])
    assert "until=" in following
    assert browser.read(following)
    older = f"after={pages_after(desk, now_text)}&since={now_text}"
    for query in (older, "after=x&since=2030-01-01T00:00Z", "since=soon", "age=1h"):
        assert browser.open(f"/schedules/users/reminders?{query}").status_code == 400, query


def pages_after(desk: Desk, until: str) -> str:
    """Return where the second page of the ticks before a time begins."""
    answer = desk.ask(f"{API}/schedules/reminders/users?until={until}").json
    assert answer is not None
    return quote(answer["next_after"])


def test_schedules_of_the_code_are_chosen_by_their_last_tick(desk: Desk) -> None:
    """One that has not ticked is in no time."""
    browser = Browser(desk)
    before = browser.read("/schedules?age=24h")
    pass_ticks(desk, 1)
    desk.world.clock.sleep(1_800)

    assert "had its last tick in this time range" in before
    assert "/schedules/one/report" in browser.read("/schedules?age=1h")
    assert "/schedules/one/report" not in browser.read("/schedules?age=5m")
    assert "/schedules/one/report" not in browser.read("/schedules?age=before-24h")
    at = desk.ask(f"{API}/schedules/report").json["last"]  # type: ignore[index]
    for bounds, count in ((f"since={quote(at)}", 1), (f"until={quote(at)}", 0)):
        answer = desk.ask(f"{API}/schedules?{bounds}").json
        assert answer is not None
        assert len(answer["schedules"]) == count, bounds


def test_a_page_of_a_time_reads_a_bounded_number_of_schedules(services: Services) -> None:
    """However many the code declares; those that were not searched are on the next page."""
    parts = [replace(report, name=f"report-{number:02d}") for number in range(60)]
    parts = [replace(part, task=replace(part.task, path=f"/tasks/{part.name}")) for part in parts]
    desk = desk_with(services, *parts)
    clock = desk.world.clock
    clock.sleep(600 - clock.now().timestamp() % 600 + 30)
    pass_ticks(desk, 1)
    browser, seen = Browser(desk), []
    address = "/schedules?age=24h"
    while address:
        assert reads_of(desk, lambda address=address: browser.read(address)) <= MAX_READS  # type: ignore[misc]
        text = browser.read(address)
        seen += re.findall(r'href="[^"]*/schedules/one/(report-\d+)', text)
        following = re.search(r'href="([^"]+)" rel="next"', text)
        address = unescape(following[1]) if following else ""

    assert seen == [part.name for part in parts]


@pytest.mark.parametrize(
    "path",
    [
        "/schedules/one/nothing",
        "/schedules/one/unknown",
        "/schedules/one/reminders",
        "/schedules/one/reminders?id=nobody",
        f"/schedules/one/reminders?id={'本' * 400}",
        "/schedules/users/nothing",
        f"/schedules/users/reminders?after={'本' * 400}",
        f"/schedules/users/reminders?id={'本' * 400}",
    ],
)
def test_a_schedule_that_is_none_is_a_404(desk: Desk, path: str) -> None:
    """By the page."""
    assert Browser(desk).open(path).status_code == 404


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
def test_a_sweep_reads_those_that_are_due_however_many_wait(desk: Desk) -> None:
    """The same reads and writes beside few as beside many."""
    due_ids = ("u000003", "u000011", "u000017")
    spent = []
    for count in (FEW, MANY):
        desk.world.sweep(SWEEP)
        put_users(desk, count, due_ids=due_ids)
        meter = desk.world.clients.meter
        before = meter.total()
        with desk.world.context():
            parts = {part.name: part for part in desk.world.registry.parts("schedules")}
            assert sweep(desk.world.clients, parts)["overdue"] == len(due_ids)
        cost = meter.total() - before
        spent.append((cost.reads, cost.writes))
        desk.world.settle(patience_s=0)

    assert spent[0] == spent[1]
    assert spent[0][0] < FEW < MAX_PER_SWEEP
