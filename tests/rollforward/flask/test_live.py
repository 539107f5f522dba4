"""Live updates: signed topics, ids that say that something changed, and streams of them."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from itsdangerous import URLSafeSerializer

from rollforward.flask.live import (
    ASKED_PER_S,
    FAST_MS,
    GONE,
    HEARTBEAT_S,
    MAX_WATCHED,
    STREAM_S,
    TOLD_PER_S,
    watch,
)
from rollforward.runtime.topics import version
from tests.handlers.blog.test_writing import publish
from tests.handlers.conftest import Browser, Queue, app_with, on_cloud_run
from tests.infra.world import World
from tests.rollforward.flask.acts import OUTCOMES, PATH, Work

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
    browser.app.extensions["wiring"].clients.process_state.finish_background_work(10)
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
    before = version(queue.world.clients.cache, "acts")

    assert queue.deliver(PATH).status_code == status

    assert version(queue.world.clients.cache, "acts") != before


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
        *("sums", "x" * 3000, "%00", "é"),
    ]

    for each in forged:
        assert browser.get(f"/updates/{each}").status_code == 404
        assert browser.get(f"/updates/{each}/events").status_code == 404


def test_topics_are_signed_by_the_newest_key_and_read_by_each(world: World, updates: str) -> None:
    """S35: when the old key goes, each page has a token of the new one."""
    new = "brand-new-0123456789-abcdefghij-KLM"
    keys = (new, *world.settings.secret_keys)
    rotated = Browser(app_with(world, settings=replace(world.settings, secret_keys=keys)))

    token = address(rotated).rpartition("/")[2]

    assert URLSafeSerializer(new, salt="live updates").loads(token)
    assert rotated.get(updates).status_code == 200


def test_a_token_that_is_none_takes_nobodys_turn(browser: Browser, updates: str) -> None:
    """S35: however many strangers ask, a page may ask again as soon as before."""
    before = browser.get(updates).json["again_ms"]

    for _ in range(50):
        assert browser.get("/updates/junk").status_code == 404

    # The question before has taken one turn, which is the only one.
    assert browser.get(updates).json["again_ms"] <= before + 1000 / ASKED_PER_S


def test_a_lone_page_asks_again_after_a_while(browser: Browser, updates: str) -> None:
    """Nobody else asks, and it would ask without a pause, all the time."""
    again_ms = browser.get(updates).json["again_ms"]

    assert FAST_MS <= again_ms < FAST_MS + 1000 / ASKED_PER_S


def test_one_stream_says_which_of_several_pages_changed(
    browser: Browser, listener: Browser, world: World, updates: str
) -> None:
    """The ids are in the order of the tokens, so that a browser needs one connection for all."""
    tokens = f"{updates},{address(browser, '/counters').rpartition('/')[2]}"
    ids = [latest(browser, updates), latest(browser, address(browser, "/counters"))]
    world.clients.publish("counters")

    stream = listener.get(f"{tokens}/events?after={','.join(ids)}").text

    [told] = re.findall(r"^id: (.*)$", stream, re.MULTILINE)
    assert told == f"{ids[0]},{latest(browser, address(browser, '/counters'))}"
    assert told != ",".join(ids)


def test_a_token_that_is_none_ends_no_stream_of_others(listener: Browser, updates: str) -> None:
    """S35: its page is told so; a list of such tokens is unknown, and a long list is refused."""
    assert (
        f"id: {GONE},{latest(listener, updates)}\n"
        in listener.get(f"/updates/junk,{updates.rpartition('/')[2]}/events").text
    )
    assert listener.get("/updates/junk,more/events").status_code == 404
    longest = ",".join([updates, *["junk"] * (MAX_WATCHED - 1)])
    assert listener.client.head(f"{longest}/events").status_code == 503
    assert listener.get(f"{longest},junk/events").status_code == 400


def test_a_stream_tells_at_once_what_came_while_nobody_listened(
    browser: Browser, listener: Browser, world: World, updates: str
) -> None:
    """By the header that a browser sends when it connects again, or by the address.

    The header counts, because the address is that of the first connection.
    """
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
    quiet = listener.get(f"{updates}/events?after={old}", headers={"Last-Event-ID": new})
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


def test_a_request_without_a_stream_takes_no_place(listener: Browser, updates: str) -> None:
    """S34: of one for the head, or that is refused, nothing is read, so nothing would end it."""
    places = listener.app.extensions["live"].streams.limit

    for _ in range(places + 1):
        assert listener.client.head(f"{updates}/events").status_code == 503
        assert listener.get(f"{updates}/events?after={'x' * 500}").status_code == 400
        assert listener.get("/updates/x/events").status_code == 404

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


def test_pages_that_ask_keep_no_stream_waiting(
    listener: Browser, world: World, updates: str
) -> None:
    """The turns of both are apart: pages may ask by the hundred, and streams are few."""
    again_ms = [listener.get(updates).json["again_ms"] for _ in range(100)]
    stream = iter(listener.client.get(f"{updates}/events").response)
    assert next(stream) == b"retry: 500\n\n"
    began = world.clients.clock.now()

    said = next(stream)

    assert max(again_ms) > FAST_MS
    assert b"event: changed" in said
    assert world.clients.clock.now() == began


STRANGER = "198.51.100.7"


def asked_by(address: str) -> dict[str, Any]:
    """Return what a request from an address has, as Cloud Run's front end sends it on."""
    return {"headers": {"X-Forwarded-For": f"10.0.0.1, {address}"}}


@pytest.fixture
def deployed(world: World) -> Browser:
    """A browser of an app as it is deployed, with room for two streams."""
    return Browser(app_with(world, settings=replace(on_cloud_run(world), live_streams=2)))


def test_a_caller_that_asks_by_the_hundred_slows_only_itself(
    deployed: Browser, updates: str
) -> None:
    """S34: by its address, of which a forged one is no part."""
    stranger = [deployed.get(updates, **asked_by(STRANGER)).json["again_ms"] for _ in range(200)]
    forged = {"headers": {"X-Forwarded-For": f"192.0.2.1, {STRANGER}"}}

    visitor = deployed.get(updates, **asked_by("192.0.2.1")).json["again_ms"]

    assert max(stranger) > 14_000
    assert deployed.get(updates, **forged).json["again_ms"] > 14_000
    assert visitor <= FAST_MS + 1000 / ASKED_PER_S


def test_who_holds_all_streams_gives_one_up_to_another_caller(
    deployed: Browser, updates: str
) -> None:
    """S34: and not to a third one, whose share none of the others exceeds."""
    held = [deployed.client.get(f"{updates}/events", **asked_by(STRANGER)) for _ in range(2)]
    assert deployed.get(f"{updates}/events", **asked_by(STRANGER)).status_code == 503

    visitor = deployed.client.get(f"{updates}/events", **asked_by("192.0.2.1"))
    third = deployed.get(f"{updates}/events", **asked_by("192.0.2.2"))

    assert (visitor.status_code, third.status_code) == (200, 503)
    assert b"".join(held[0].response) == b"retry: 500\n\n"
    stays = iter(held[1].response)
    assert [next(stays), next(stays)[:3]] == [b"retry: 500\n\n", b"id:"]


def test_a_stream_lives_by_a_clock_that_is_never_put_back(
    listener: Browser, world: World, updates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S34: it shows that it is there and ends in time: a listener that went frees its thread."""
    elapsed_s = 5000.0

    def sleep(clock: Any, seconds: float) -> None:
        nonlocal elapsed_s
        elapsed_s += seconds

    listener.app.extensions["live"].elapsed_s = lambda: elapsed_s
    seen = latest(listener, updates)
    stream = iter(listener.client.get(f"{updates}/events?after={seen}").response)
    assert next(stream) == b"retry: 500\n\n"
    monkeypatch.setattr(type(world.clock), "sleep", sleep)  # The time of day stands still.

    assert next(stream) == b":\n\n"
    assert elapsed_s - 5000 < HEARTBEAT_S + 1
    assert set(stream) == {b":\n\n"}
    assert STREAM_S < elapsed_s - 5000 < STREAM_S + 1
