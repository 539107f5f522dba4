"""Time ranges, orders and views of lists, in their addresses."""

from __future__ import annotations

import datetime
import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest

from rollforward.console.pages import dead_tasks, lanes, records, runs
from rollforward.lanes import Lane, Rate
from rollforward.look.lists import AGES, BadChoiceError, ListChoice, parse_time
from rollforward.operations.run_sources import RunSource
from rollforward.tasks.runs import Run
from tests.infra.world import Services
from tests.rollforward.console.conftest import API, Desk, desk_with
from tests.rollforward.console.test_pages import MAX_READS, Browser, reads_of
from tests.rollforward.pull_queues.harness import WORK

NOW = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
LISTS = ("/runs", "/dead", "/lanes", "/lanes/of/mail", "/audit", "/schedules")
LISTS += ("/letters/pull-queues/work",)
VIEWS = {**dead_tasks.VIEWS, **lanes.VIEWS, **runs.VIEWS}


def hours_ago(hours: float) -> datetime.datetime:
    return NOW - hours * HOUR


class Runs:
    """Runs of an app: how many hours ago each began, how long it took, how many items failed."""

    def __init__(self, *rows: tuple[float, float, int]) -> None:
        self.rows = rows
        self.source = RunSource("load", self.newest, lambda *_: None)
        self.now = NOW

    def newest(self, clients: object, started_before: object, limit: int) -> list[Run]:
        listed = []
        for hours, took, failed in sorted(self.rows):
            started = self.now - hours * HOUR
            if started_before is None or started < started_before:  # type: ignore[operator]
                counts = {"done": 1, "failed": failed}
                ended = started + took * HOUR
                listed.append(
                    self.source.run(f"{hours:g}", "finished", started, ended, counts=counts)
                )
        return listed[:limit]


@pytest.fixture
def load() -> Runs:
    return Runs((0.5, 0.1, 0), (2, 1, 3), (30, 0.5, 9), (200, 3, 1))


@pytest.fixture
def desk(services: Services, load: Runs) -> Desk:
    """Return the console of an app with runs of its own, and a lane."""
    desk = desk_with(services, load.source, Lane("mail"), WORK)
    load.now = desk.world.clock.now()
    return desk


def run_ids(text: str) -> list[str]:
    return re.findall(r'href="[^"]*/runs/app/load%3A([0-9.]+)"', text)


def dead_ids(text: str) -> list[str]:
    """Return the tags of the dead tasks of a page, in its order."""
    return re.findall(r"tag (\w+) failed", text)


@pytest.mark.fast
def test_bounds_are_as_narrow_as_the_address_asks_for() -> None:
    """An age and two times: whichever is later, and earlier."""
    choice = ListChoice.of({"age": "6h", "since": "2030-05-01T08:00", "until": "2030-05-01T11:00"})

    assert choice.bounds(NOW) == (hours_ago(4), hours_ago(1))
    assert ListChoice.of({"age": "1h", "since": "2030-05-01T08:00"}).bounds(NOW)[0] == hours_ago(1)
    assert ListChoice.of({"age": "before-24h"}).bounds(NOW) == (None, hours_ago(24))
    assert ListChoice().bounds(NOW) == (None, None)
    assert [choice.has(hours_ago(hours), NOW) for hours in (4.5, 4, 1.5, 1)] == [
        *(False, True, True, False)
    ]
    assert (choice.has(None, NOW), ListChoice().has(None, NOW)) == (False, True)


@pytest.mark.fast
@pytest.mark.parametrize("age", AGES)
def test_an_address_asks_again_for_the_same(age: str) -> None:
    """Its fields, sent once more, give the same choice."""
    query = {"age": age, "since": "2030-05-01T08:00:30+02:00", "until": "2030-05-01T11:00"}
    choice = ListChoice.of({**query, "sort": "oldest"}, ["oldest"])

    assert ListChoice.of(choice.fields, ["oldest"]) == choice
    assert choice.since == parse_time("2030-05-01T06:00:30", "since")


@pytest.mark.fast
@pytest.mark.parametrize(
    "query",
    [
        *({"age": "2h"}, {"age": "__class__"}, {"sort": "name"}, {"since": "soon"}),
        *({"until": "2030-13-01T00:00"}, {"since": "2030-05-01"}, {"since": "0001-01-01T00:00"}),
        *({"until": "9999-12-31T23:59"}, {"since": "٢٠٣٠-05-01T00:00"}),
    ],
)
def test_what_cannot_be_understood_is_refused_by_name(query: dict[str, str]) -> None:
    """The text begins with the field."""
    with pytest.raises(BadChoiceError, match=next(iter(query))):
        ListChoice.of(query, ["oldest"])


@pytest.mark.parametrize("path", LISTS)
def test_every_list_refuses_a_time_that_is_none(desk: Desk, path: str) -> None:
    """And shows the fields of the others."""
    browser = Browser(desk, "read")

    for query in ("age=2h", "since=soon", "until=x"):
        assert browser.open(f"{path}?{query}").status_code == 400, query
    text = browser.read(f"{path}?since=2030-05-01T08:00&age=1h")
    assert 'value="2030-05-01T08:00"' in text
    assert '<option value="1h" selected>' in text
    assert 'method="post"' not in text


@pytest.mark.parametrize("path", ["/runs", "/dead", "/lanes", "/lanes/of/mail"])
def test_every_list_refuses_an_order_that_it_has_not(desk: Desk, path: str) -> None:
    """Each has orders of its own."""
    assert Browser(desk).open(f"{path}?sort=__class__").status_code == 400


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_an_address_of_its_list(desk: Desk, view: str) -> None:
    """The page leads there, it answers, and its form holds the choice."""
    address, browser = VIEWS[view], Browser(desk, "read")
    text = browser.read(address)

    assert f">{view}</a>" in unescape(text)
    for name, [value] in parse_qs(urlsplit(address).query).items():
        chosen = re.search(rf'<select id="{name}".*?</select>', text, re.DOTALL)
        assert chosen is not None
        option = rf'<option(?: value="{re.escape(value)}")? selected>'
        assert re.search(option, chosen[0]), (name, value)


def test_runs_are_chosen_by_the_time_of_their_start(desk: Desk, load: Runs) -> None:
    """Within, before, and between two times, also in pages of the API."""
    browser = Browser(desk)
    since = (load.now - 40 * HOUR).strftime("%Y-%m-%dT%H:%M")
    until = (load.now - 1 * HOUR).strftime("%Y-%m-%dT%H:%M")

    assert run_ids(browser.read("/runs")) == ["0.5", "2", "30", "200"]
    assert run_ids(browser.read("/runs?age=6h")) == ["0.5", "2"]
    assert run_ids(browser.read("/runs?age=before-24h")) == ["30", "200"]
    assert run_ids(browser.read(f"/runs?since={since}&until={until}")) == ["2", "30"]
    paged, before = [], ""
    while True:
        query = {"limit": 1, "since": f"{since}Z", "before": before}
        page = desk.ask(f"{API}/runs", query_string=query).get_json()
        paged += [run["id"] for run in page["runs"]]
        if not (before := page["next_before"]):
            break
    assert paged == ["load:0.5", "load:2", "load:30"]


def test_runs_are_put_in_order(desk: Desk) -> None:
    """By age, duration and failures."""
    browser = Browser(desk)

    assert run_ids(browser.read("/runs?sort=oldest")) == ["200", "30", "2", "0.5"]
    assert run_ids(browser.read("/runs?sort=longest&age=7d")) == ["2", "30", "0.5"]
    assert run_ids(browser.read("/runs?sort=most+failed")) == ["30", "2", "200", "0.5"]


def test_an_order_says_of_which_runs_it_is(services: Services) -> None:
    """Of those that were read; the next page goes on behind them."""
    load = Runs(*((hours, 0.5, hours) for hours in range(1, 51)))
    desk = desk_with(services, load.source)
    load.now = desk.world.clock.now()
    browser, seen = Browser(desk), []
    address = "/runs?pattern=app&sort=oldest"

    for number in range(4):
        text = browser.read(address)
        page = [float(hours) for hours in run_ids(text)]
        assert page == sorted(page, reverse=True)
        seen += page
        following = re.search(r'href="([^"]+)" rel="next"', text)
        assert (f"of the newest {len(page)} runs" in text) == (number == 0)
        assert (f"of the {len(page)} runs on this page" in text) == (number > 0)
        if following is None:
            break
        assert "sort=oldest" in following[1]
        address = unescape(following[1])

    assert sorted(seen) == [float(hours) for hours in range(1, 51)]


def test_dead_tasks_are_listed_from_the_oldest_in_pages(desk: Desk) -> None:
    """By an index: no page has one twice, and a time bounds them."""
    for number in range(45):
        desk.give_up(str(number), reason=f"ValueError: tag {number} failed", queue="mail")
        desk.world.clock.sleep(60)
    browser, seen = Browser(desk), []
    address = "/dead?sort=oldest&queue=mail"

    for _ in range(3):
        text = browser.read(address)
        assert reads_of(desk, lambda address=address: browser.read(address)) <= MAX_READS  # type: ignore[misc]
        seen += dead_ids(text)
        following = re.search(r'href="([^"]+)" rel="next">Newer', text)
        address = unescape(following[1]) if following else ""
        if not address:
            break

    assert seen == [str(number) for number in range(45)]
    assert dead_ids(browser.read("/dead?age=5m")) == ["44", "43", "42", "41"]
    assert dead_ids(browser.read("/dead?age=5m&sort=oldest")) == ["41", "42", "43", "44"]
    assert dead_ids(browser.read("/dead?age=before-24h")) == []


def test_dead_tasks_are_put_in_order_of_their_deliveries(desk: Desk) -> None:
    """And a change of all that match keeps to the time, not to the order."""
    for tag, deliveries in (("a", 1), ("b", 7), ("c", 3)):
        desk.give_up(tag, reason=f"ValueError: tag {tag} failed", deliveries=deliveries)
        desk.world.clock.sleep(600)
    browser = Browser(desk)

    text = browser.read("/dead?sort=most+deliveries&age=1h")
    confirm = browser.read("/dead/all/replay?sort=most+deliveries&age=15m")

    assert dead_ids(text) == ["b", "c", "a"]
    assert "Replay 1 dead task?" in confirm
    assert "in the last 15 minutes" in confirm


def test_an_order_says_of_which_dead_tasks_it_is(desk: Desk) -> None:
    """The first page has the newest, each later one its own."""
    for number in range(21):
        desk.give_up(str(number), reason=f"ValueError: tag {number} failed", deliveries=number)
        desk.world.clock.sleep(60)
    browser = Browser(desk)

    first = browser.read("/dead?sort=most+deliveries")
    following = re.search(r'href="([^"]+)" rel="next"', first)
    assert following is not None
    second = browser.read(unescape(following[1]))

    assert "of the newest 20 dead tasks that match" in first
    assert dead_ids(second) == ["0"]
    assert "of the 1 dead tasks on this page" in second
    assert "newest" not in re.findall("The order is [^<]*", second)[0]
    assert "The order is" not in browser.read("/dead?sort=most+deliveries&age=15m")


def test_lanes_and_their_keys_are_put_in_order_and_chosen_by_time(services: Services) -> None:
    """By tasks, by the oldest one, by rate, by name."""
    mail, print_ = Lane("mail"), Lane("print", rate=Rate(1, per_s=60))
    desk = desk_with(services, mail, print_)
    act = desk.world.registry.tasks["/tasks/tests/act"]
    for lane, key, count in ((print_, "x", 1), (mail, "b", 2), (mail, "a", 1), (mail, "c", 1)):
        with desk.world.context():
            desk.world.clock.sleep(600)
            messages = [act.message(act.args(f"{key}{number}")) for number in range(count)]
            lane(key).add(desk.world.clients, messages)
    browser = Browser(desk, "read")

    def lanes_of(path: str) -> list[str]:
        return re.findall(r'data-key="(mail|print)"', browser.read(path))

    def keys_of(path: str) -> list[str]:
        return re.findall(r'data-key="([abc])"', browser.read(path))

    assert (lanes_of("/lanes"), lanes_of("/lanes?sort=oldest+task")) == (
        ["mail", "print"],
        ["print", "mail"],
    )
    assert lanes_of("/lanes?sort=slowest+rate") == ["print", "mail"]
    assert lanes_of("/lanes?age=before-1h") == []
    desk.world.clock.sleep(2_000)
    assert lanes_of("/lanes?age=before-1h") == ["print"]
    assert keys_of("/lanes/of/mail") == ["a", "b", "c"]
    assert keys_of("/lanes/of/mail?sort=most+tasks")[0] == "b"
    assert keys_of("/lanes/of/mail?sort=oldest+task") == ["b", "a", "c"]
    assert keys_of("/lanes/of/mail?age=before-24h") == []


def test_the_audit_trail_is_chosen_by_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest first, in pages."""
    for tag in "ab":
        dead_id = desk.give_up(tag)
        assert desk.change(f"/dead-tasks/{dead_id}:delete").status_code == 200
        desk.world.clock.sleep(3_000)
    browser = Browser(desk, "read")

    assert desk.ask(f"{API}/audit?before=soon").status_code == 400
    assert desk.ask(f"{API}/audit?before=5000-01-01T00:00:00Z").status_code == 400
    assert browser.read("/audit").count("Delete dead task") == 2
    assert browser.read("/audit?age=1h").count("Delete dead task") == 1
    assert browser.read("/audit?age=before-1h").count("Delete dead task") == 1
    assert "No change in this time" in browser.read("/audit?age=before-24h")

    monkeypatch.setattr(records, "PAGE_ROWS", 1)
    first = browser.read("/audit")
    [older] = re.findall(r'href="([^"]+)" rel="next"', first)
    last = browser.read(unescape(older))
    assert [page.count("Delete dead task") for page in (first, last)] == [1, 1]
    assert ["Newest" in page for page in (first, last)] == [False, True]
    assert ["Older" in page for page in (first, last)] == [True, False]


def test_a_standing_pattern_lists_its_parts_alone(desk: Desk) -> None:
    """It has no runs."""
    text = Browser(desk).read("/runs?pattern=lanes")

    assert "/runs/lanes/mail" in text
    assert "No runs yet" not in text
    assert run_ids(text) == []
