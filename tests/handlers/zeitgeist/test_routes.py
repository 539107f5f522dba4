"""The page of zeitgeist: its forms, its content, and a playback's effects."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from handlers.zeitgeist import routes as zeitgeist
from pipelines.zeitgeist import playbacks, player
from pipelines.zeitgeist.check import Check, check
from pipelines.zeitgeist.pipeline import FEEDS, ZEITGEIST
from pipelines.zeitgeist.playbacks import Playback, current, save
from pipelines.zeitgeist.player import Step, play
from pipelines.zeitgeist.progress import Point, points_of
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS
from rollforward.datastore import bodies
from rollforward.datastore.transactions import transact
from rollforward.streams import PushedRecord
from rollforward.streams.model.errors import BackpressureError
from rollforward.streams.storage.schema import LARGE, SLAB
from tests.handlers.conftest import Browser
from tests.handlers.looking import look_only
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM = "a" * 32
DAYS = b"timestamp,value" + b"".join(b"\n2015-03-0%d 12:00:00,%d" % (n, 9 - n) for n in range(1, 5))
FILE = b"timestamp,value\n2015-02-26 21:42:53,10\n2015-02-26 21:47:53,20\n2015-02-26 22:02:53,7\n"


def upload(content: bytes) -> dict[str, Any]:
    return {"id": FORM, "speed": "100000", "files": (io.BytesIO(content), "tokyo.csv")}


def counted(world: World, playback: Playback) -> list[Point]:
    """Return the complete buckets of the first query, where a context is open."""
    query = playback.parts[0].query
    return points_of(world.clients, [query], playback.begin, playback.last)[query]


def compared(world: World) -> Check:
    """Compare the first query with a plain run."""
    with world.context():
        playback = current()
        assert playback is not None
        return check(world.clients, playback, playback.parts[0], playback.last)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sample have two queries and an hour."""
    monkeypatch.setattr(playbacks, "SAMPLE_BUCKETS", 12)
    monkeypatch.setattr(playbacks, "QUERIES", playbacks.QUERIES[:2])


def test_looking_at_it_before_any_playback_says_what_to_press(browser: Browser) -> None:
    page = browser.get("/zeitgeist")

    assert page.status_code == 200
    assert "No playback yet" in page.text
    assert page.text.count('class="box') == 1 + len(ZEITGEIST.computations)
    for tab in ("how", "compare", "code"):
        assert browser.get(f"/zeitgeist?tab={tab}").status_code == 200
    assert browser.get("/zeitgeist?tab=none").status_code == 404


@pytest.mark.parametrize("verb", ["rumour", "quiet", "hold", "release", "speed", "stop"])
def test_a_playback_that_does_not_exist_cannot_be_steered(browser: Browser, verb: str) -> None:
    """Neither before any playback nor by the address of another one; nor by a query it has not."""
    fields = {"feed": "paris", "speed": "3000", "query": f"{FORM[:6]} tokyo"}
    first = browser.post(f"/zeitgeist/playbacks/{FORM}/{verb}", fields)
    browser.post("/zeitgeist/playbacks", upload(FILE))

    other = browser.post(f"/zeitgeist/playbacks/{'b' * 32}/{verb}", fields)
    silent = browser.post(f"/zeitgeist/playbacks/{FORM}/quiet", {"query": "nobody asks"})

    for refused in (first, other):
        assert refused.status_code == 404
        assert "There is no such playback." in refused.text
    assert (silent.status_code, "query must be a query of" in silent.text) == (
        400,
        True,
    )


def test_a_file_is_played_once_to_its_end(browser: Browser, world: World) -> None:
    """With a gap of two buckets; its times are its own on the page."""
    for _ in range(2):
        response = browser.post("/zeitgeist/playbacks", upload(FILE))
        assert response.status_code == 303, response.text
    world.settle(rounds=200)

    with world.context():
        playback = current()
        assert playback is not None
        points = counted(world, playback)
        status = ZEITGEIST.status(world.clients)
    assert playback.is_over
    assert playback.ended_ms is not None
    assert [point.count for point in points] == [10, 20, 7]
    assert [each.start - playback.begin for each in points] == [0, BUCKET_MS, 4 * BUCKET_MS]
    assert status.sources["queries"].records == 5  # Three counts, a gap and the end.
    assert (status.sources["queries"].late, status.computations["counter"].dead) == (0, 0)
    page = browser.get("/zeitgeist").text
    assert ">tokyo</a>" in page
    assert "Thu 26 Feb 22:00" in page
    # An axis that is not linear says so, and its levels are labelled.
    assert "vertical axis: square root of the count" in page
    levels = re.findall(r'class="level" [^>]*/><text class="top" x="4" y="([\d.]+)">(\d+)<', page)
    assert [float(y) for y, _ in levels] == [13, 113, 163]
    assert [int(count) for _, count in levels] == [22, 6, 1]
    assert "5 records in = 5 counted + 0 late + 0 dead + 0 duplicates + 0 in flight, played" in page


def test_what_is_complete_lies_before_the_watermark(
    browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what became complete after the page had read how far the pipeline is."""
    browser.post("/zeitgeist/playbacks", upload(FILE))
    with world.context():
        status = ZEITGEIST.status(world.clients)
    world.settle(rounds=200)

    monkeypatch.setattr(type(ZEITGEIST), "status", lambda *_: status)

    # The last of its counts is that of 22:00.
    assert "complete up to Thu 26 Feb 22:05" in browser.get("/zeitgeist").text


def test_the_sample_is_pushed_by_all_feeds_and_one_is_held_back(
    browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first hours: the watermark stops while a feed is paused, and nothing is late after it."""
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
    assert "paris delayed" in browser.get("/zeitgeist/live").text

    browser.post(f"{where}/release", {"feed": "paris"})
    world.settle(rounds=200)
    with world.context():
        playback, status = current(), ZEITGEIST.status(world.clients)
        points = counted(world, playback)  # type: ignore[arg-type]
    assert status.sources["queries"].records == 12 * len(FEEDS) + 1
    assert (status.sources["queries"].late, len(points)) == (0, 12)
    assert points[-1].count == 0
    assert compared(world).is_right


def test_what_a_step_is_about_to_push_is_not_changed_any_more(
    browser: Browser, world: World, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody presses Outage while it pushes: from where that ends on the query counts zero."""
    real, pressed = player._push, list[bool]()

    def push(clients: Any, playback: Playback, *rest: Any) -> int:
        if not pressed:
            what = (BUCKET_MS, 0.0)
            pressed.append(playbacks.ask_for(clients, FORM, playback.parts[0].query, what))
        return real(clients, playback, *rest)

    browser.post("/zeitgeist/playbacks", {"id": FORM, "speed": "600", "sample": "yes"})
    world.clock.sleep(2.0)  # Four buckets are due.
    monkeypatch.setattr(player, "_push", push)
    world.settle(rounds=400)

    assert pressed == [True]
    comparison = compared(world)
    assert (comparison.is_right, comparison.buckets) == (True, 12)
    with world.context():
        playback = current()
        assert playback is not None
        assert [n for n, point in enumerate(counted(world, playback)) if not point.count] == [4]


def test_a_step_that_is_held_back_pushes_later_what_it_could_not(
    browser: Browser, world: World, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends well while the other feeds continue; nothing is missing."""
    real, refused = ZEITGEIST.push, list[str]()

    def push(*args: Any, process: str, **more: Any) -> Any:
        if process == "tokyo" and not refused:
            refused.append(process)
            raise BackpressureError("queries has to wait")
        return real(*args, process=process, **more)

    browser.post("/zeitgeist/playbacks", {"id": FORM, "speed": "3000", "sample": "yes"})
    world.clock.sleep(1.0)
    monkeypatch.setattr(ZEITGEIST, "push", push)
    with world.context():
        play.work(world.clients, Step(FORM, 0))
        playback = current()
    assert playback is not None
    moved = {feed for feed in FEEDS if playback.reached[feed] > playback.begin}
    assert (playback.step, moved) == (1, {"paris", "austin"})

    world.settle(rounds=200)
    assert compared(world).is_right


def test_intervals_are_split_and_put_together_and_the_results_are_the_same(
    browser: Browser, world: World, few: None
) -> None:
    """G10, by the page's buttons: it says how many there were and are."""
    form = {"speed": "100000", "sample": "yes"}
    where = "/zeitgeist/intervals"
    assert "nothing to split" in browser.post(f"{where}/split", follow_redirects=True).text
    browser.post("/zeitgeist/playbacks", {"id": FORM, **form})
    world.clock.sleep(0.001)
    world.deliver_due()
    texts = [browser.post(f"{where}/split", follow_redirects=True).text for _ in range(8)]
    world.settle(rounds=200)

    assert "4 intervals before, 5 now" in texts[0]
    assert "an interval of its own already" in texts[-1]
    with world.context():
        computations = ZEITGEIST.status(world.clients).computations
    splits = sum(len(computation.intervals) - 4 for computation in computations.values())
    assert compared(world).is_right
    page = browser.get(f"/zeitgeist?tab=compare&q={FORM[:6]}+weather").text
    assert "The same" in page

    undone = browser.post(f"{where}/merge", follow_redirects=True).text
    assert f"Undone: {splits} split" in undone
    with world.context():
        computations = ZEITGEIST.status(world.clients).computations
    assert {len(computation.intervals) for computation in computations.values()} == {4}
    assert compared(world).is_right


def test_the_detector_is_replaced_and_put_back_while_records_flow(
    browser: Browser, world: World, few: None
) -> None:
    """G15, by the page's button: it shows the version, how far the change is, and the results."""
    browser.post("/zeitgeist/playbacks", {"id": FORM, "speed": "100000", "sample": "yes"})
    world.deliver_due()
    text = browser.post("/zeitgeist/detector/2", follow_redirects=True).text
    assert "Version 2 of the detector takes over" in text
    assert re.search(r"replacing, \d+ of \d+ know", text)
    world.settle(rounds=200)

    page = browser.get("/zeitgeist").text
    assert "detector v2<" in page
    assert "Detector v2 → v1" in page
    assert "Last change: detector, version 1 → 2" in page
    assert compared(world).is_right

    browser.post("/zeitgeist/detector/1")
    world.settle(rounds=200)
    assert "Detector v1 → v2" in browser.get("/zeitgeist").text
    assert "no version 3" in browser.post("/zeitgeist/detector/3", follow_redirects=True).text


@pytest.mark.parametrize("has_dead", [False, True])
def test_a_look_reads_each_row_once_and_days_that_are_over_never_again(
    browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch, has_dead: bool
) -> None:
    """Unless something is dead: its replay would change them."""
    browser.post("/zeitgeist/playbacks", upload(DAYS))
    with world.context():
        playback = current()
        assert playback is not None
        if has_dead:
            bad = PushedRecord("bad", {"query": playback.parts[0].query, "n": -1}, playback.begin)
            ZEITGEIST.push(world.clients, "queries", [bad], process="tokyo")
    world.settle(rounds=200)
    reads = list[bodies.Name]()
    read = bodies.read

    def noted(client: Any, names: Sequence[bodies.Name], at: Any = None) -> Any:
        reads.extend(names)
        return read(client, names, at)

    monkeypatch.setattr(bodies, "read", noted)
    looks, trips = [], []
    for _ in range(2):
        calls_before = world.clients.meter.cost().round_trips
        assert "Tue 3 Mar" in browser.get("/zeitgeist/live?day=2").text
        trips.append(world.clients.meter.cost().round_trips - calls_before)
        looks.append(Counter(reads))
        reads.clear()

    first, second = looks
    twice = [name for name, count in first.items() if count > 1]
    # Nothing was told: whether a key has no state is asked twice.
    assert [name.name.split(":")[1] for name in twice] == ["board"]
    # Playback, head, sources; of each computation inboxes and intervals; states of two of them.
    assert trips[1] <= 3 + 2 * len(ZEITGEIST.computations) + 6
    assert states_in(first, "history")
    assert bool(states_in(second, "history")) == has_dead


def states_in(names: Iterable[bodies.Name], computation: str) -> list[bodies.Name]:
    """Return the rows of a computation's states."""
    return [name for name in names if name.kind in (SLAB, LARGE) and computation in name.name]


def test_a_record_too_many_is_seen_when_it_is_compared(
    browser: Browser, world: World, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record from outside the playback counts in its bucket, unlike in a plain run."""
    browser.post("/zeitgeist/playbacks", {"id": FORM, "speed": "100000", "sample": "yes"})
    with world.context():
        playback = current()
        assert playback is not None
        extra = PushedRecord("extra", {"query": playback.parts[0].query, "n": 1}, playback.begin)
        ZEITGEIST.push(world.clients, "queries", [extra], process="tokyo")
    world.settle(rounds=200)

    comparison = compared(world)
    assert (comparison.is_right, comparison.wrong) == (False, [playback.begin])
    page = browser.get("/zeitgeist?tab=compare").text
    assert "✕</span> Different" in page
    assert "The same" not in page
    monkeypatch.setattr(zeitgeist, "MAX_BUCKETS", 11)
    assert "too many to replay" in browser.get("/zeitgeist?tab=compare").text


def test_a_step_that_died_before_its_commit_pushes_the_same_again(
    browser: Browser, world: World
) -> None:
    """The row says that nothing was pushed, and so does the step: the ids say that it was."""
    browser.post("/zeitgeist/playbacks", upload(FILE))
    with world.context():
        playback = current()
        assert playback is not None
        world.clock.sleep(1.0)
        play.work(world.clients, Step(FORM, 0))
        transact(lambda: save(playback))
    world.settle(rounds=200)

    with world.context():
        points = counted(world, playback)
        status = ZEITGEIST.status(world.clients)
    assert [point.count for point in points] == [10, 20, 7]
    assert (status.sources["queries"].records, status.computations["counter"].repeated) == (10, 5)


def test_what_is_stopped_ends_where_it_is_and_another_one_begins_behind_it(
    browser: Browser, world: World
) -> None:
    form = {"speed": "1", "sample": "yes"}
    browser.post("/zeitgeist/playbacks", {"id": FORM, **form})
    assert "Another playback is running" in browser.post(
        "/zeitgeist/playbacks", {"id": "b" * 32, **form}, follow_redirects=True
    ).text  # fmt: skip
    browser.post(f"/zeitgeist/playbacks/{FORM}/stop")
    world.settle(rounds=200)
    with world.context():
        first = current()
    assert first is not None
    assert (first.id, first.is_over) == (FORM, True)
    assert first.begin <= first.end <= first.begin + BUCKET_MS  # The bucket that was begun.

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
        (upload(b"hello"), "okyo.csv”: line 1"),
        ({"speed": "2", "sample": "yes"}, "speed must be one of"),
    ],
)
def test_a_form_that_cannot_be_is_refused_and_changes_nothing(
    browser: Browser, snapshot: Callable[[], Any], form: dict[str, Any], why: str
) -> None:
    stored = snapshot()
    response = browser.post("/zeitgeist/playbacks", {"id": FORM, **form})
    assert response.status_code == 400
    assert why in response.text
    assert snapshot() == stored


def test_series_that_would_fill_the_memory_together_are_refused(
    browser: Browser, snapshot: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S23: a playback's series are in memory at once, so all of them share one bound."""
    monkeypatch.setattr("pipelines.zeitgeist.playbacks.MAX_BUCKETS", 1)
    stored = snapshot()

    response = browser.post(
        "/zeitgeist/playbacks", {"id": FORM, **upload(b"2015-01-01,1\n2015-01-02,1\n")}
    )

    assert response.status_code == 400
    assert "at most 1 buckets" in response.text
    assert snapshot() == stored


def test_what_is_read_changes_nothing(browser: Browser, snapshot: Callable[[], Any]) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    look_only(browser, snapshot, "/zeitgeist")
