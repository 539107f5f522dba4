"""The page of the web log: its form, its content, and numbers that add up."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from handlers.shared.incidents import Delivery, Hits, hits_of
from handlers.shared.pipeline_graph import BOX_HEIGHT, BOX_WIDTH, counts_of, picture_of
from handlers.shared.stream_stage import box_of
from models.weblog import access_logs
from pipelines.weblog import loads, progress, source
from pipelines.weblog.lines import read_log
from pipelines.weblog.pipeline import WEBLOG
from pipelines.weblog.sample import sample_log
from rollforward.continuations.upload_entities import UploadChunk
from rollforward.runtime import Clients
from rollforward.streams import Pulled
from tests.handlers.conftest import Browser
from tests.handlers.looking import look_only
from tests.infra.world import World
from tests.rollforward.streams.harness import PACE

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM, OTHER, THIRD = "a" * 32, "b" * 32, "c" * 32
WIDEST = 23


def test_looking_at_it_before_any_log_says_what_to_press(browser: Browser) -> None:
    page = browser.get("/streams/weblog")

    assert page.status_code == 200
    assert "No data yet" in page.text
    ids = re.findall(r'name="id" value="([0-9a-f]{32})"', page.text)
    assert len(set(ids)) == len(ids) == 2  # Each form of the page is done once for its own.
    assert page.text.count('class="box') == 1 + len(WEBLOG.computations)


@pytest.fixture(autouse=True)
def no_lingering(world: World) -> None:
    """Workers that find nothing leave at once."""
    world.clients.process_state.get_or_create("streams config", lambda: PACE)


@pytest.fixture
def short_sample(monkeypatch: pytest.MonkeyPatch) -> int:
    """A sample of a few lines; return how many of them are requests."""
    lines = list(itertools.islice(sample_log(), 20))
    monkeypatch.setattr(loads, "sample_log", lambda: lines)
    return len(read_log(lines).requests)


def press(browser: Browser, form_id: str = FORM) -> None:
    response = browser.post("/streams/weblog/logs", {"id": form_id, "sample": "yes"})
    assert response.status_code == 303, response.text


def test_the_bytes_of_logs_that_wait_are_bounded(
    browser: Browser, world: World, short_sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S27: until one of them is read; nothing of a log that is refused is stored."""
    press(browser, FORM)
    with world.context():
        [log] = access_logs().logs
        chunks = len(UploadChunk.query().fetch(keys_only=True))
    monkeypatch.setattr(loads, "MAX_WAITING_BYTES", 2 * log["bytes"] - 1)

    refused = browser.post("/streams/weblog/logs", {"id": OTHER, "sample": "yes"})

    assert refused.status_code == 429
    assert "MiB of logs wait to be read" in refused.text
    with world.context():
        assert len(UploadChunk.query().fetch(keys_only=True)) == chunks
    world.settle()
    press(browser, OTHER)


def test_the_sample_is_counted_once_and_adds_up(
    browser: Browser, world: World, short_sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run takes logs while it moves, up to a bound; the next one counts from 0 again."""
    monkeypatch.setattr(loads, "MAX_LOGS", 2)
    for form_id in (FORM, FORM, OTHER):
        press(browser, form_id)
    refused = browser.post("/streams/weblog/logs", {"id": THIRD, "sample": "yes"})
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) > 0
    assert "try again when some of them are" in refused.text
    assert 'data-moving="yes"' in browser.get("/streams/weblog").text
    world.settle()
    assert adds_up(browser, 2 * short_sample)

    press(browser, THIRD)
    world.settle()
    assert adds_up(browser, short_sample)
    page = browser.get("/streams/weblog?tab=results").text
    assert "17 May 2015, 08:0" in page
    assert "2015-05-17 08:00</th>" in page
    assert browser.get("/streams/weblog/live").status_code == 200
    with world.context():
        assert (access_logs().first_number, len(access_logs().logs)) == (1, 2)


def adds_up(browser: Browser, requests: int) -> bool:
    """Return whether the page says so for each of three readers, after `requests` requests."""
    page = browser.get("/streams/weblog").text
    closing = f"{requests} records in = {requests} in windows + 0 late + 0 dead + 0 in flight"
    return (
        'data-moving="no"' in page
        and page.count("Adds up") == 4
        and f"{closing}, counted in" in page
    )


def test_what_came_while_the_page_was_read_is_in_flight(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2: it adds up though sources are read after counters, and an emulator has no snapshots."""
    press(browser)

    def torn(clients: Clients) -> progress.Observation:
        seen = observe(clients)
        came = replace(seen.status.sources["requests"], records=5)
        return replace(seen, status=replace(seen.status, sources={"requests": came}))

    observe = progress.observe
    monkeypatch.setattr(progress, "observe", torn)

    text = browser.get("/streams/weblog").text
    assert "5 records in = 0 in windows + 0 late + 0 dead + 5 in flight" in text


def test_the_state_of_a_key_is_read_while_its_windows_are_open(
    browser: Browser, world: World, short_sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones, of a log that does not say that it has ended; of another key there is none."""
    monkeypatch.setattr(source, "_ended", lambda here, records: Pulled(records, asdict(here)))
    press(browser)
    world.settle()

    text = browser.get("/streams/weblog?tab=state&computation=hits").text
    assert "open window" in text
    assert "1 record so far" in text
    one = browser.get("/streams/weblog?tab=state&computation=hits&key=/nowhere").text
    assert "This key has no state" in one
    none = browser.get("/streams/weblog?tab=state&computation=top-paths").text
    assert "all windows are closed" in none


@pytest.mark.parametrize("query", ["tab=nothing", "tab=state&computation=nothing"])
def test_what_there_is_not_is_404(browser: Browser, query: str) -> None:
    assert browser.get(f"/streams/weblog?{query}").status_code == 404


def test_a_bad_upload_is_refused_and_changes_nothing(
    browser: Browser, snapshot: Callable[[], Any]
) -> None:
    """With a page that says why: no file, no log, an empty one, a large one, an unknown pace."""
    stored = snapshot()
    large = b"x" * (loads.MAX_LOG_BYTES + 1)
    for file, message in [
        (None, "Choose a file"),
        (b"hello\n", "this is no access log"),
        (b"", "this is no access log: it is empty"),
        (b"\x00\xff" * 50_000, "this is no access log"),
        (large, "a log must have at most 8 MiB"),
    ]:
        form: dict[str, Any] = {"id": FORM}
        if file is not None:
            form["file"] = (io.BytesIO(file), "access.log")
        response = browser.post("/streams/weblog/logs", form)
        assert response.status_code == 400
        assert message in response.text
    wrong = browser.post("/streams/weblog/logs", {"id": FORM, "sample": "yes", "pace": "slow"})
    assert wrong.status_code == 400
    assert browser.post("/streams/weblog/logs", {"sample": "yes"}).status_code == 400
    assert snapshot() == stored


def test_what_was_hit_is_marked_in_the_picture(services: object) -> None:
    """A worker that was killed in a computation, and an error in the reading of the log."""
    killed = delivery("work", {"computation": "hits", "first_slot": 16_384}, state="live")
    struck = delivery("pull", {"stream": "requests"}, faults=("error",), status=500)
    calm = delivery("work", {"computation": "sessions", "first_slot": 0}, status=500)

    assert hits_of([killed, struck, killed, calm], box_of) == {
        "hits": Hits(2, is_open=True),
        "requests": Hits(1, is_open=False),
    }


def delivery(
    verb: str,
    body: dict[str, Any],
    *,
    faults: tuple[str, ...] = (),
    status: int | None = None,
    state: str = "done",
) -> Delivery:
    path = f"/tasks/streams/weblog/{verb}"
    return Delivery(
        "t", "streams", path, "normal", faults, 1.0, 2.0, status, None, "", state, 3.0, body
    )


def test_every_computation_stands_right_of_what_it_reads(services: object) -> None:
    picture = picture_of(WEBLOG)

    assert all(line.x1 < line.x2 for line in picture.lines)
    assert {box.name for box in picture.boxes} == {*WEBLOG.sources, *WEBLOG.computations}
    places = [(box.x, box.y) for box in picture.boxes]
    assert len(set(places)) == len(places)
    behind = [
        (line.stream, box.name)
        for line in picture.lines
        for box in picture.boxes
        if line.x1 < box.x < line.x2 - BOX_WIDTH and box.y <= line.lane <= box.y + BOX_HEIGHT
    ]
    assert behind == []


def test_what_is_read_changes_nothing(browser: Browser, snapshot: Callable[[], Any]) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    look_only(browser, snapshot, "/streams/weblog")


def test_a_box_holds_its_longest_line() -> None:
    """A browser measures 21 letters (tests/browser/test_pipeline_pictures.py)."""
    counts = (0, 9_999, 10_000, 999_999, 10_000_000)
    lags_ms = (0, 59_999, 5_999_999, 6_000_000, 359_999_999, 8 * 10**10)

    cells = [counts_of(c, ms, c, c, c, 999.0) for c, ms in itertools.product(counts, lags_ms)]

    assert max(len(text) for lines in cells for text, _ in lines) <= WIDEST
