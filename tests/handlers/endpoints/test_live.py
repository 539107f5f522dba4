"""Live updates: signed topics, ids that say that something changed, and streams of them."""

from __future__ import annotations

import heapq
import html
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from itsdangerous import URLSafeSerializer

from handlers.endpoints.live import ASKED_PER_S, FAST_MS, SLOW_MS, TOLD_PER_S, Pace, watch
from pipelines.runtime.topics import version
from tests.handlers.conftest import Browser, Queue, app_with
from tests.handlers.endpoints.acts import OUTCOMES, PATH, Work
from tests.handlers.pages.test_blog_writing import publish
from tests.world import Services, World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM = "a" * 32


@pytest.fixture
def listener(world: World) -> Browser:
    """A browser of an app with room for two streams."""
    return Browser(app_with(world, settings=replace(world.settings, live_streams=2)))


@pytest.fixture
def updates(browser: Browser) -> str:
    """Where a page asks, that of a sum."""
    browser.post("/sums", {"name": "visitors"})
    return address(browser)


def address(browser: Browser, page: str = "/sums/visitors") -> str:
    found = re.search(r'data-updates="([^"]+)"', browser.get(page).text)
    assert found is not None
    return html.unescape(found[1])


def latest(browser: Browser, updates: str) -> str:
    return str(browser.get(updates).json["id"])


def test_an_id_changes_when_the_topic_is_published(
    browser: Browser, world: World, updates: str
) -> None:
    """And only then."""
    ids = [latest(browser, updates), latest(browser, updates)]
    for topic in ("sums", "stages", "grades"):
        world.clients.publish(topic)
        ids.append(latest(browser, updates))

    before, same, after_sums, after_stages, after_grades = ids
    assert before == same
    assert len({before, after_sums, after_stages}) == 3
    assert after_grades == after_stages


def test_a_form_and_a_task_publish_what_they_change(
    browser: Browser, world: World, updates: str
) -> None:
    """Without a word of their own."""
    before = latest(browser, updates)
    browser.post("/sums/visitors/additions", {"id": "a" * 32, "amount": "5"})
    added = latest(browser, updates)

    world.settle()

    assert len({before, added, latest(browser, updates)}) == 3


def test_what_is_refused_publishes_nothing(browser: Browser, world: World, updates: str) -> None:
    """S35: a stranger's delivery, a form without a token, or of no sense."""
    before = latest(browser, updates)
    no_certs = app_with(world, settings=replace(world.settings, certs_url="http://127.0.0.1:1/"))

    refused = [
        browser.client.post("/tasks/sums/write", data=b"{}"),
        browser.client.post("/sums", data={"name": "x"}),
        browser.post("/sums/visitors/additions", {"id": "a" * 32, "amount": "many"}),
        browser.post("/sums/nobody/additions", {"id": "a" * 32, "amount": "5"}),
        Queue(world, no_certs).deliver("/tasks/sums/write"),
    ]

    assert [answer.status_code for answer in refused] == [403, 403, 400, 404, 503]
    assert latest(browser, updates) == before


@pytest.mark.parametrize("ends", ["lost its race", "service unavailable", "a bug"])
def test_a_delivery_that_fails_publishes(queue: Queue, work: Work, app: Flask, ends: str) -> None:
    """It may have committed something before."""
    watch(app, "acts", PATH)
    work.raises, status, _ = OUTCOMES[ends]
    before = version(queue.world.clients, "acts")

    assert queue.deliver(PATH).status_code == status

    assert version(queue.world.clients, "acts") != before


@pytest.mark.parametrize(
    ("page", "path", "form"),
    [
        ("/counters", "/counters/clicks", {"amount": "1"}),
        ("/streams/weblog", "/streams/weblog/logs", {"sample": "yes"}),
        (f"/numbers/{FORM}", "/numbers", {}),
        ("/blog/1", "/blog/1/comments", {"text": "Hello", "name": "Ada"}),
    ],
)
def test_each_page_that_moves_is_told_what_its_form_changes(
    browser: Browser, world: World, page: str, path: str, form: dict[str, str]
) -> None:
    """So that none has to ask for what it shows again and again."""
    browser.post("/numbers", {"id": FORM})
    publish(browser)
    updates = address(browser, page)
    before = latest(browser, updates)

    assert browser.post(path, {"id": "b" * 32, **form}).status_code == 303

    assert latest(browser, updates) != before


def test_nobody_watches_what_no_page_has_shown_them(
    browser: Browser, world: World, updates: str
) -> None:
    """S35: a token that we have not signed for this use is unknown."""
    token = updates.rpartition("/")[2]
    key = world.settings.secret_keys[0]
    forged = [
        URLSafeSerializer("another key", salt="live updates").dumps(["sums"]),
        URLSafeSerializer(key, salt="pull.work").dumps(["sums"]),
        token[:-1] + ("a" if token[-1] != "a" else "b"),
        *("sums", "x" * 5000, "%00", "é"),
    ]

    for each in forged:
        assert browser.get(f"/updates/{each}").status_code == 404
        assert browser.get(f"/updates/{each}/events").status_code == 404


def test_a_token_that_is_none_takes_nobodys_turn(browser: Browser, updates: str) -> None:
    """S35: however many strangers ask, a page may ask again as soon as before."""
    before = browser.get(updates).json["again_ms"]

    for _ in range(50):
        assert browser.get("/updates/junk").status_code == 404

    # The question before has taken one turn, which is the only one.
    assert browser.get(updates).json["again_ms"] <= before + 1000 / ASKED_PER_S


def test_a_stream_tells_at_once_what_came_while_nobody_listened(
    browser: Browser, listener: Browser, world: World, updates: str
) -> None:
    """By the header that a browser sends when it connects again, or by the address."""
    old = latest(browser, updates)
    world.clients.publish("sums")
    new = latest(browser, updates)

    streams = [
        listener.get(f"{updates}/events", headers={"Last-Event-ID": old}).text,
        listener.get(f"{updates}/events?after={old}").text,
    ]

    assert all(text.count("event: changed") == 1 for text in streams)
    assert all(f"id: {new}\n" in text for text in streams)
    # A minute without news: signs of life alone.
    quiet = listener.get(f"{updates}/events", headers={"Last-Event-ID": new})
    assert "event" not in quiet.text
    assert quiet.text.count(":\n\n") > 5
    assert quiet.headers["Content-Type"].startswith("text/event-stream")


def test_there_are_as_many_streams_as_the_setting_says(listener: Browser, updates: str) -> None:
    """S34: the others are told to ask; a place is free when a stream has ended."""
    streams = listener.app.extensions["live"].streams
    held = [listener.client.get(f"{updates}/events") for _ in range(streams.limit)]
    assert [stream.status_code for stream in held] == [200, 200]

    assert listener.get(f"{updates}/events").status_code == 503
    held[0].close()
    assert listener.get(f"{updates}/events").status_code == 200

    streams.close()
    assert next(iter(held[1].response)) == b"retry: 500\n\n"
    assert b"".join(held[1].response) == b""
    assert listener.get(f"{updates}/events").status_code == 503


def test_a_look_at_the_head_of_a_stream_takes_no_place(listener: Browser, updates: str) -> None:
    """S34: nothing of it would be read, so nothing would end it."""
    places = listener.app.extensions["live"].streams.limit

    for _ in range(places + 1):
        assert listener.client.head(f"{updates}/events").status_code == 503

    with listener.client.get(f"{updates}/events") as stream:
        assert stream.status_code == 200


@pytest.mark.parametrize("path", ["", "/events"])
def test_a_long_id_is_refused(browser: Browser, updates: str, path: str) -> None:
    """A 4xx, and no stream is taken."""
    expected = {"": 200, "/events": 400}[path]
    assert browser.get(f"{updates}{path}?after={'x' * 500}").status_code == expected


@pytest.mark.parametrize(
    ("changed", "streams"), [({"live_streams": 0}, "no"), ({"memcached": None}, None)]
)
def test_pages_ask_where_nothing_streams(
    world: World, browser: Browser, updates: str, changed: Any, streams: str | None
) -> None:
    """Without memcached they ask for what they show, as without this."""
    app = app_with(world, settings=replace(world.settings, **changed))

    text = Browser(app).get("/sums/visitors").text

    found = re.search(r'data-streams="(\w+)"', text)
    assert (found[1] if found else None) == streams
    if streams:
        assert Browser(app).get(f"{updates}/events").status_code == 503


def test_the_more_pages_ask_the_less_often_each_may(services: Services) -> None:
    """They all wait longer until the process is asked as often as it can take, and no more."""

    def play(pages: int, seconds: int = 60) -> tuple[Counter[int], list[float]]:
        """Return how many questions came in each second, and how long the last ones had to wait.

        All pages are opened in the same second, and each asks again when it may.
        """
        pace, asked, told = Pace(ASKED_PER_S), Counter[int](), list[float]()
        due = [page / pages for page in range(pages)]
        while due[0] < seconds:
            at = heapq.heappop(due)
            asked[int(at)] += 1
            told.append(pace.wait_s(at, FAST_MS / 1000))
            heapq.heappush(due, at + told[-1])
        return asked, told[-pages:]

    assert max(play(3)[1]) < 1.2 * FAST_MS / 1000
    asked, told = play(100)
    each_s = 100 / ASKED_PER_S
    assert 0.9 * each_s < min(told) <= max(told) < 1.1 * each_s
    assert max(asked[second] for second in range(15, 60)) <= ASKED_PER_S + 1
    assert max(play(2_000, 40)[1]) == SLOW_MS / 1000


def test_a_clock_that_is_put_back_lets_pages_ask_on(services: Services) -> None:
    """Not after the hour that it lost."""
    pace = Pace(ASKED_PER_S)
    pace.wait_s(10_000.0)

    assert pace.wait_s(6_400.0) <= SLOW_MS / 1000
    assert pace.wait_s(6_500.0, FAST_MS / 1000) == FAST_MS / 1000


def test_streams_tell_of_a_change_one_after_the_other(
    listener: Browser, world: World, updates: str
) -> None:
    """The first at once, for else all their pages would ask for their parts in one moment."""
    streams = [iter(listener.client.get(f"{updates}/events").response) for _ in range(2)]
    assert [next(stream) for stream in streams] == [b"retry: 500\n\n"] * 2
    began = world.clients.clock.now()

    said, waited_s = list[bytes](), list[float]()
    for stream in streams:
        said.append(next(stream))
        waited_s.append((world.clients.clock.now() - began).total_seconds())

    assert all(b"event: changed" in each for each in said)
    assert waited_s == pytest.approx([0.0, 1 / TOLD_PER_S], abs=0.002)
