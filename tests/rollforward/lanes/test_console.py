"""Lanes on the console: what waits, and keys that are paused, resumed and drained, on record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from rollforward.lanes.rows.entities import LaneTask
from rollforward.operations import list_audit, list_dead_tasks
from rollforward.tasks.errors import Reject
from tests.infra.world import Services
from tests.rollforward.console.conftest import API, Desk, desk_with
from tests.rollforward.console.test_pages import MAX_READS, Browser, reads_of
from tests.rollforward.lanes.office import BLOCKING, DESK, IN_ORDER, PACED, send, write

LANE = IN_ORDER.name
ODD = "a/b|c <i>&~ é:"


@pytest.fixture
def desk(services: Services) -> Iterator[Desk]:
    """A desk whose app has lanes."""
    DESK.__init__()  # type: ignore[misc]
    yield desk_with(services, IN_ORDER, BLOCKING, PACED, write)
    DESK.__init__()  # type: ignore[misc]


def add(desk: Desk, key: str, *texts: object, lane: object = IN_ORDER) -> None:
    with desk.world.context():
        send(desk.world.clients, lane, key, *texts)  # type: ignore[arg-type]


def key_path(key: str, path: str = "/lanes/key", lane: str = LANE) -> str:
    return f"{path}?{urlencode({'lane': lane, 'key': key})}"


def block(desk: Desk) -> str:
    """Let a dead task block Ada's key; return its id."""

    def refuse(name: str) -> None:
        raise Reject("no such address")

    DESK.before = refuse
    add(desk, "ada", 0, 1, lane=BLOCKING)
    desk.world.settle()
    DESK.before = lambda name: None
    with desk.world.context():
        [dead] = list_dead_tasks(limit=2).dead_tasks
    return str(dead.key.id())


def test_pages_lead_from_the_lanes_to_a_key_and_its_tasks(desk: Desk) -> None:
    """Whatever characters the key has; nothing of it is read as HTML."""
    add(desk, ODD, *range(3))
    browser = Browser(desk)
    assert f'href="/rollforward/lanes/of/{LANE}"' in browser.read("/lanes")

    listed = browser.read(f"/lanes/of/{LANE}")
    shown = browser.read(key_path(ODD))
    looked_up = browser.open(f"/lanes/of/{LANE}?key={quote(ODD)}")
    as_run = browser.open(f"/runs/lanes/{quote(IN_ORDER(ODD).id, safe='')}")

    assert "a/b|c &lt;i&gt;&amp;~ é:" in listed
    assert "<i>" not in listed + shown
    assert shown.count("/tasks/tests/lane-letter") == 3
    assert looked_up.headers["Location"].endswith(key_path(ODD))
    assert as_run.headers["Location"].endswith(key_path(ODD))
    assert browser.open(f"/runs/lanes/{LANE}").location.endswith(f"/lanes/of/{LANE}")


def test_a_key_with_blanks_around_it_is_drained(desk: Desk) -> None:
    """As the name that a user has typed: nobody sees the blanks, and a form drops them."""
    add(desk, "ada ", 1)
    browser, fields = Browser(desk), {"lane": LANE, "key": "ada ", "verb": "drain"}
    page = key_path("ada ", "/lanes/drain")

    for typed in ("ada", "ada "):
        assert browser.submit(page, "/lanes/change", **fields, typed=typed).status_code == 303
    desk.world.settle()

    assert DESK.written == []


def test_a_key_is_paused_resumed_and_drained_on_record(desk: Desk) -> None:
    """By forms with tokens; a drain asks first, and the trail counts what it deleted."""
    add(desk, ODD, *range(3))
    browser = Browser(desk)
    fields = {"lane": LANE, "key": ODD}
    page = key_path(ODD)

    paused = browser.submit(page, "/lanes/change", **fields, verb="pause")
    desk.world.settle()
    assert (paused.status_code, DESK.written) == (303, [])
    assert "Paused" in browser.read(page)
    careless = browser.submit(page, "/lanes/change", **fields, verb="drain", typed="a")
    assert careless.status_code == 400
    drain = key_path(ODD, "/lanes/drain")
    assert browser.submit(drain, "/lanes/change", **fields, verb="drain", typed=ODD).location
    assert browser.submit(drain, "/lanes/change", **fields, verb="resume").status_code == 303
    add(desk, ODD, "later")
    desk.world.settle()

    assert DESK.written == [f"{ODD}:later"]
    with desk.world.context():
        entries, _ = list_audit(limit=10)
    assert {(entry.action, entry.result) for entry in entries} == {
        ("pause lane", "done: it was open, with 3 tasks"),
        ("drain lane", "done: 3 deleted, 0 running"),
        ("resume lane", "done: it was paused, with 0 tasks"),
    }


def test_a_key_with_a_line_break_is_changed_and_no_other(desk: Desk) -> None:
    """A browser sends a field's line break as two characters, which paused another key."""
    key, other = "ada\nb", "ada\r\nb"
    add(desk, key, 1)
    add(desk, other, 1)
    browser = Browser(desk)

    def press(page: str, label: str, **typed: str) -> None:
        forms = re.findall(r"<form.*?</form>", browser.read(page), re.DOTALL)
        [form] = [text for text in forms if re.search(f">{label}\\b", text)]
        sent = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        sent = {name: re.sub(r"\r?\n", "\r\n", value) for name, value in sent.items()} | typed
        [address] = re.findall(r'action="([^"]*)"', form)
        browser.client.post(unescape(address), data=sent, headers=browser.headers)

    def states() -> list[tuple[bool, int]]:
        with desk.world.context():
            keys = [IN_ORDER(text).state() for text in (key, other)]
        return [(state.is_paused, state.waiting) for state in keys]

    press(key_path(key), "Pause")
    assert states() == [(True, 1), (False, 1)]
    press(key_path(key, "/lanes/drain"), "Drain", typed="ada b")
    assert states() == [(True, 0), (False, 1)]
    press(key_path(key), "Resume")
    assert states() == [(False, 0), (False, 1)]


def test_the_api_lists_lanes_keys_and_tasks_and_changes_a_key(desk: Desk) -> None:
    """A drain says how many tasks went."""
    add(desk, ODD, *range(3))
    path = f"/lanes/{LANE}/{quote(ODD, safe='')}"

    [lane] = [row for row in desk.ask(f"{API}/lanes").json["lanes"] if row["name"] == LANE]  # type: ignore[index]
    [key] = desk.ask(f"{API}/lanes/{LANE}").json["keys"]  # type: ignore[index]
    shown = desk.ask(API + path).json
    answers = [desk.change(f"{path}:{verb}") for verb in ("pause", "drain", "drain", "resume")]

    assert (lane["waiting"], lane["order"], key["key"], key["waiting"]) == (3, "yes", ODD, 3)
    assert shown is not None
    assert len(shown["tasks"]) == 3
    assert [answer.status_code for answer in answers] == [200] * 4
    counts = [(answer.json or {}).get("deleted") for answer in answers]
    assert counts == [None, 3, 0, None]
    with desk.world.context():
        assert LaneTask.query().fetch() == []


def test_a_key_names_the_task_that_is_at_work(desk: Desk) -> None:
    """And counts what its delivery has claimed behind it."""
    add(desk, "ada", 0, 1)
    seen: list[Any] = []

    def look(name: str) -> None:
        with ThreadPoolExecutor(1) as another:
            answer = another.submit(desk.ask, f"{API}/lanes/{LANE}?key=ada").result()
        seen.append(answer.json)

    DESK.before = look
    desk.world.settle()

    first = seen[0]["tasks"][0]["id"]
    assert [(claim["tasks"], claim["claimed"]) for claim in seen[0]["claims"]] == [([first], 2)]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/lanes/nothing", 404),
        ("/lanes/nothing/ada", 404),
        (f"/lanes/{LANE}/{'x' * 400}", 404),
        (f"/lanes/{LANE}?state=odd", 400),
        (f"/lanes/{LANE}?after={'x' * 700}", 413),
    ],
)
def test_what_is_not_there_is_refused(desk: Desk, path: str, status: int) -> None:
    """A change of it, too, and nothing is written."""
    assert desk.ask(API + path).status_code == status
    if status == 404:
        assert desk.change(f"{path}:pause").status_code == 404
    assert desk.change(f"/lanes/{LANE}/ada:stop").status_code == 404
    with desk.world.context():
        assert list_audit(limit=5)[0] == []


def test_a_key_and_the_dead_task_that_blocks_it_lead_to_each_other(desk: Desk) -> None:
    """A replay of it runs first, and the key goes on."""
    dead_id = block(desk)
    browser = Browser(desk)

    shown = browser.read(key_path("ada", lane=BLOCKING.name))
    dead = browser.read(f"/dead/one/{dead_id}")
    assert f"/rollforward/dead/one/{dead_id}" in shown
    assert "lanes/key?lane=test-blocking&amp;key=ada" in dead
    assert "Blocked" in browser.read(f"/lanes/of/{BLOCKING.name}?state=resting")

    assert desk.change(f"/dead-tasks/{dead_id}:replay").status_code == 200
    desk.world.settle()
    assert DESK.of("ada") == ["0", "1"]


def test_a_page_reads_as_much_of_many_keys_as_of_few(desk: Desk) -> None:
    """And of a key with many tasks as of one with a few: each is listed once."""
    with desk.world.context():
        for number in range(40):
            IN_ORDER(f"k{number:02}").pause(desk.world.clients)
            many = [write.bind("k", str(at)) for at in range(150 if number == 7 else 1)]
            write.enqueue_many(desk.world.clients, many, lane=IN_ORDER(f"k{number:02}"))
    browser = Browser(desk)
    seen: list[str] = []
    start_after = ""
    while True:
        answer = desk.ask(f"{API}/lanes/{LANE}?after={start_after}").json or {}
        seen += [row["key"] for row in answer["keys"]]
        if answer["next_after"] is None:
            break
        start_after = answer["next_after"]

    assert seen == [f"k{number:02}" for number in range(40)]
    for path in (f"/lanes/of/{LANE}", key_path("k07"), key_path("k07", "/lanes/drain")):
        assert reads_of(desk, lambda path=path: browser.read(path)) <= MAX_READS, path  # type: ignore[misc]


@pytest.mark.parametrize("key", ["/home/a", "home//a"])
def test_a_key_with_slashes_is_never_taken_for_another_one(desk: Desk, key: str) -> None:
    """Neither by a match nor by a redirect that a client follows."""
    add(desk, "home/a", 0)
    add(desk, key, 0)

    answer = desk.change(f"/lanes/{LANE}/{key}:drain")

    assert answer.status_code in (200, 404)
    with desk.world.context():
        assert IN_ORDER("home/a").state().waiting == 1


@pytest.mark.parametrize("key", ["/home/a", "a//b", "//", "..", "a/../b", "./a", "?key=b&", "%2Fa"])
def test_each_key_has_an_address(desk: Desk, key: str) -> None:
    """As a parameter of the query: also one that clients would resolve in a path."""
    other = "home/a" if key == "/home/a" else "b"
    add(desk, key, *range(3))
    add(desk, other, 0)
    query = urlencode({"key": key})

    shown = desk.ask(f"{API}/lanes/{LANE}?{query}").json or {}
    paused = desk.change(f"/lanes/{LANE}:pause?{query}")
    drained = desk.change(f"/lanes/{LANE}:drain?{query}")
    resumed = desk.change(f"/lanes/{LANE}:resume?{query}")

    assert (shown["key"], len(shown["tasks"])) == (key, 3)
    assert paused.json == {"lane": LANE, "key": key, "was": "open", "waiting": 3}
    assert resumed.json == {"lane": LANE, "key": key, "was": "paused", "waiting": 0}
    assert (drained.json or {})["deleted"] == 3
    with desk.world.context():
        assert IN_ORDER(other).state().waiting == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/lanes/{LANE}:pause", 404),
        (f"/lanes/{LANE}:pause?key=", 404),
        ("/lanes/nothing:pause?key=ada", 404),
        (f"/lanes/{LANE}:stop?key=ada", 404),
        (f"/lanes/{LANE}?key=ada", 404),
        (f"/lanes/{LANE}:pause?key={'x' * 400}", 404),
        (f"/lanes/{LANE}:pause?key={'x' * 700}", 413),
    ],
)
def test_a_change_of_no_key_is_refused(desk: Desk, path: str, status: int) -> None:
    """And nothing is written."""
    assert desk.change(path).status_code == status
    with desk.world.context():
        assert list_audit(limit=5)[0] == []


@pytest.mark.parametrize(("has_failed", "state"), [(False, "Scheduled"), (True, "Retrying")])
def test_a_delayed_task_is_scheduled_and_one_that_failed_is_retried(
    desk: Desk, has_failed: bool, state: str
) -> None:
    """Both have a time before which they do not run."""
    with desk.world.context():
        arguments = write.bind("ada", "0")
        write.enqueue(desk.world.clients, arguments, lane=PACED("ada"), delay_s=600)
        if has_failed:
            [row] = LaneTask.query().fetch(2)
            row.failures = 1
            row.put()

    shown = Browser(desk).read(key_path("ada", lane=PACED.name))

    assert [word for word in ("Scheduled", "Retrying") if word in shown] == [state]
