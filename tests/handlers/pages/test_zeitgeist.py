"""The page of zeitgeist: its forms, what it shows, and what a playback does."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from demos.zeitgeist import playbacks
from demos.zeitgeist.pipeline import FEEDS, ZEITGEIST
from demos.zeitgeist.playbacks import current
from demos.zeitgeist.progress import points_of
from demos.zeitgeist.series import BUCKET_MS, DAY_MS
from tests.handlers.conftest import Browser
from tests.handlers.pages.looking import look_only
from tests.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM = "a" * 32
FILE = b"timestamp,value\n2015-02-26 21:42:53,10\n2015-02-26 21:47:53,20\n2015-02-26 22:02:53,7\n"


def upload(content: bytes) -> dict[str, Any]:
    return {"id": FORM, "speed": "100000", "files": (io.BytesIO(content), "tokyo.csv")}


def test_looking_at_it_before_any_playback_says_what_to_press(browser: Browser) -> None:
    page = browser.get("/zeitgeist")

    assert page.status_code == 200
    assert "Nothing was played yet" in page.text
    assert page.text.count('class="box') == 1 + len(ZEITGEIST.computations)
    assert all(browser.get(f"/zeitgeist?tab={tab}").status_code == 200 for tab in ("how", "code"))
    assert browser.get("/zeitgeist?tab=none").status_code == 404


def test_a_file_is_played_once_to_its_end(browser: Browser, world: World) -> None:
    """With a gap of two buckets; its times are its own on the page."""
    for _ in range(2):
        response = browser.post("/zeitgeist/playbacks", upload(FILE))
        assert response.status_code == 303, response.text
    world.settle(rounds=200)

    with world.context():
        playback = current()
        assert playback is not None
        found = points_of(world.clients, playback.parts[0].query, playback.begin, playback.last)
        status = ZEITGEIST.status(world.clients)
    assert playback.is_over
    assert [each.count for each in found] == [10, 20, 7]
    assert [each.start - playback.begin for each in found] == [0, BUCKET_MS, 4 * BUCKET_MS]
    assert status.sources["queries"].records == 5  # Three counts, a gap and the end.
    assert (status.sources["queries"].late, status.computations["counter"].dead) == (0, 0)
    page = browser.get("/zeitgeist").text
    assert ">tokyo</a>" in page
    assert "Thu 26 Feb 22:00" in page


def test_the_sample_is_pushed_by_all_feeds_and_one_is_held_back(
    browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first hours: the watermark stands while a feed is held, and nothing is late after it."""
    monkeypatch.setattr(playbacks, "SAMPLE_BUCKETS", 12)
    monkeypatch.setattr(playbacks, "QUERIES", playbacks.QUERIES[:1])
    browser.post("/zeitgeist/playbacks", {"id": FORM, "speed": "3000", "sample": "yes"})
    where = f"/zeitgeist/playbacks/{FORM}"
    assert browser.post(f"{where}/hold", {"feed": "paris"}).status_code == 303
    assert browser.post(f"{where}/speed", {"speed": "100000"}).status_code == 303
    query = f"{FORM[:6]} weather"
    assert browser.post(f"{where}/quiet", {"query": query}).status_code == 303
    for _ in range(12):
        world.deliver_due()
        world.clock.sleep(0.3)

    with world.context():
        playback, status = current(), ZEITGEIST.status(world.clients)
    assert playback is not None
    assert playback.reached["paris"] == playback.begin >= status.sources["queries"].watermark
    assert playback.front == playback.last
    assert "held back" in browser.get("/zeitgeist/live").text

    browser.post(f"{where}/release", {"feed": "paris"})
    world.settle(rounds=200)
    with world.context():
        playback, status = current(), ZEITGEIST.status(world.clients)
        counted = points_of(world.clients, query, playback.begin, playback.last)  # type: ignore[union-attr]
    assert status.sources["queries"].records == 12 * len(FEEDS) + 1
    assert (status.sources["queries"].late, len(counted)) == (0, 12)
    assert counted[-1].count == 0


def test_what_is_stopped_ends_where_it_is_and_another_one_begins_behind_it(
    browser: Browser, world: World
) -> None:
    form = {"speed": "1", "sample": "yes"}
    browser.post("/zeitgeist/playbacks", {"id": FORM, **form})
    assert "goes on already" in browser.post(
        "/zeitgeist/playbacks", {"id": "b" * 32, **form}, follow_redirects=True
    ).text  # fmt: skip
    browser.post(f"/zeitgeist/playbacks/{FORM}/stop")
    world.settle(rounds=200)
    with world.context():
        first = current()
    assert first is not None
    assert (first.id, first.is_over, first.end) == (FORM, True, first.begin)

    browser.post("/zeitgeist/playbacks", {"id": "b" * 32, **form})
    with world.context():
        second = current()
    assert second is not None
    assert second.begin > first.last
    assert (second.begin - first.begin) % (7 * DAY_MS) == 0


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"speed": "1"}, "hoose files"),
        (upload(b"hello"), "okyo: row 1"),
        ({"speed": "2", "sample": "yes"}, "A speed is one of"),
    ],
)
def test_a_form_that_cannot_be_is_refused_and_changes_nothing(
    browser: Browser, snapshot: Callable[[], Any], form: dict[str, Any], why: str
) -> None:
    before = snapshot()
    response = browser.post("/zeitgeist/playbacks", {"id": FORM, **form})
    assert response.status_code == 400
    assert why in response.text
    assert snapshot() == before


def test_what_is_read_changes_nothing(browser: Browser, snapshot: Callable[[], Any]) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    look_only(browser, snapshot, "/zeitgeist")
