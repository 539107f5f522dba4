"""The pages of quilts: forms act once, refuse bad input, and show each square."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from handlers.quilt.stage import number_of
from handlers.shared import demo_stage
from handlers.shared.incidents import Delivery, Hits, Incidents, hits_of
from models.quilt import QuiltSquare, newest_quilts, quilt_key, square_key
from pipelines.quilt import quilts
from pipelines.quilt.design import Design
from tests.handlers.conftest import Browser
from tests.handlers.looking import look_only
from tests.infra.world import Services, World
from tests.rollforward.batches.harness import deliver_all

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM, OTHER = "a" * 32, "b" * 32
CHOSEN = {"size": "8", "palette": "dusk", "pattern": "rings", "pace": "fast"}


@pytest.fixture
def quilt(browser: Browser) -> str:
    """A quilt of which no square is painted, and where its page is."""
    response = browser.post("/quilt", {"id": FORM, **CHOSEN})
    assert response.status_code == 303, response.text
    return response.headers["Location"].partition("#")[0]


def picture(text: str) -> Any:
    """Return the picture for the script."""
    match = re.search(r"data-squares='?\"?([^>]*?)\"?>", text)
    assert match is not None
    return json.loads(unescape(match[1]))


@pytest.mark.parametrize("path", ["/quilt", f"/quilt/{FORM}", f"/quilt/{FORM}/live"])
def test_what_is_read_changes_nothing(
    browser: Browser, quilt: str, snapshot: Callable[[], Any], path: str
) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    look_only(browser, snapshot, path)


def test_the_front_page_and_the_menu_lead_here(browser: Browser) -> None:
    """A card and an entry; before the first quilt the page says what to press."""
    assert browser.get("/").text.count('href="/quilt"') == 2
    assert "Press “Make a quilt”" in browser.get("/quilt").text


def test_a_quilt_is_painted_and_then_finished(browser: Browser, world: World, quilt: str) -> None:
    """F1: blank and busy first; in the end each square has its row, and one completion has run."""
    page = browser.get(quilt).text
    assert "0 <span" in page
    assert "data-spinner" in page
    assert picture(page) == {"finished": False, "squares": [0] * 64, "hits": {}}

    world.settle()

    after = browser.get(f"{quilt}?tab=table").text
    assert "data-spinner" not in after
    assert "64 of 64 squares painted, 0 lost, 0 duplicated" in after
    assert all(picture(after)["squares"])
    assert after.count("<td>Painted</td>") == 64
    with world.context():
        assert len(QuiltSquare.query().fetch(keys_only=True)) == 64
        assert quilt_key(FORM).get().outcome == "succeeded"


def test_a_quilt_of_quilts_shows_its_pieces(browser: Browser, world: World) -> None:
    """F1: four nested batches of 64; the whole is complete when all of them are."""
    browser.post("/quilt", {"id": FORM, **CHOSEN, "size": "4x8"})
    assert "Piece 4: 0 of 64" in browser.get(f"/quilt/{FORM}").text

    world.settle()

    text = browser.get(f"/quilt/{FORM}").text
    assert [f"Piece {number}: 64 of 64" in text for number in (1, 2, 3, 4)] == [True] * 4
    assert "256 of 256 squares painted, 0 lost, 0 duplicated" in text


def test_the_spinner_waits_for_the_completion_task(
    browser: Browser, world: World, quilt: str
) -> None:
    """All squares are painted, and the quilt is not finished before that task has run."""
    deliver_all(world, "default")
    deliver_all(world, "quilt")
    world.clock.sleep(1)
    deliver_all(world, "fork-join")

    text = browser.get(quilt).text
    assert all(picture(text)["squares"])
    assert "data-spinner" in text
    assert "All painted, completion pending" in text


def test_a_form_that_is_sent_twice_makes_one_quilt(
    browser: Browser, world: World, quilt: str
) -> None:
    """The second one leads to the same page."""
    repeated = browser.post("/quilt", {"id": FORM, **CHOSEN, "size": "16"})

    assert repeated.headers["Location"].partition("#")[0] == quilt
    with world.context():
        assert len(newest_quilts().fetch(2)) == 1
        assert quilt_key(FORM).get().edge == 8


@pytest.mark.parametrize(
    ("field", "value"),
    [("size", "9"), ("size", ""), ("palette", "<b>"), ("pattern", "none"), ("pace", "-1")],
)
def test_what_cannot_be_made_is_refused(
    browser: Browser, snapshot: Callable[[], Any], field: str, value: str
) -> None:
    """A clear 400, and nothing changed."""
    stored = snapshot()

    response = browser.post("/quilt", {"id": FORM, **CHOSEN, field: value})

    assert response.status_code == 400
    assert f'id="{field}-error"' in response.text or field == "palette"
    assert "one of " in response.text.lower()
    assert "<b>" not in response.text.partition('class="stage"')[0].partition("problem")[0]
    assert snapshot() == stored


@pytest.mark.parametrize("name", ["x", FORM, "A" * 32, "a" * 33, "..%2f", f"{FORM}.svg"])
def test_a_quilt_that_is_not_there_is_404(browser: Browser, name: str) -> None:
    assert browser.get(f"/quilt/{name}").status_code == 404


def test_the_picture_shows_what_is_painted(browser: Browser, world: World, quilt: str) -> None:
    """As a file of its own; blank squares have no colour. Once finished it may be kept."""
    blank = browser.get(f"{quilt}.svg")
    assert blank.headers["Content-Type"] == "image/svg+xml"
    assert blank.text.count('fill="none"') == 64

    world.settle()

    picture = browser.get(f"{quilt}.svg")
    assert picture.text.count('fill="#') == 64
    assert "max-age" in picture.headers["Cache-Control"]


def hit(number: object, state: str = "done") -> Delivery:
    """Return a delivery that an injected error hit; None: of no square."""
    body = {"args": json.dumps({"number": number})} if number is not None else {}
    return Delivery(
        "t", "quilt", "/tasks/batches/quilt/paint", "normal", ("error",), 1.0, 1.1, 500, None,
        "", state, None, body,
    )  # fmt: skip


def test_deliveries_that_were_hit_belong_to_their_squares(services: Services) -> None:
    """A hit is open until the task is done; one without a square is of a piece."""
    seen = [hit(3), hit(3, "live"), hit(5), hit(None, "live"), hit("x", "live")]

    assert hits_of(seen, number_of) == {3: Hits(2, is_open=True), 5: Hits(1, is_open=False)}


def test_faults_marks_and_reruns_add_up(
    browser: Browser, world: World, quilt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four faults, two of them on one square; two corners, one of a square that only ran again."""
    world.settle()
    with world.context():
        row = square_key(FORM, 9).get()
        row.deliveries = 3
        row.put()
    seen = Incidents([hit(5), hit(5), hit(None), hit("the end")])
    monkeypatch.setattr(demo_stage, "incidents", lambda *_, **__: seen)

    page = browser.get(quilt).text

    assert "4 faults (2 on 1 square, 2 on other tasks), 0 lost" in page
    assert "corner on 2 squares: 1 hit by a fault, 1 only rerun" in page
    assert len(re.findall(r'class="square[^"]* was-hit', page)) == 2
    assert "4 faults hit, 4 repaired, 0 lost" in page
    assert "<dt>reruns</dt><dd>2</dd>" in page


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("days", [0, 8])
def test_a_form_whose_quilt_is_deleted_makes_no_other(
    world: World, browser: Browser, monkeypatch: pytest.MonkeyPatch, pieces: int, days: int
) -> None:
    """F1: its batch has painted and would not again; also when its rows are removed."""
    monkeypatch.setattr(quilts, "MAX_QUILTS", 1)
    design = Design(2, pieces, "indigo", "rings", 0)
    for form_id in (FORM, OTHER, "c" * 32):
        with world.context():
            assert quilts.make(world.clients, form_id, design)
        world.settle()
        world.clock.sleep(1)
    world.clock.sleep(days * 24 * 3600)
    world.sweep()
    world.settle()

    size = {1: "8", 4: "4x8"}[pieces]
    repeated = browser.post("/quilt", {"id": FORM, **CHOSEN, "size": size})

    assert repeated.status_code == 410
    assert "was deleted" in repeated.text
    assert "This was deleted" in repeated.text
    assert browser.get(f"/quilt/{FORM}").status_code == 404
    assert world.engine.due() == []


def test_a_quilt_whose_tasks_were_lost_is_not_given_up(world: World, browser: Browser) -> None:
    """F3: its page says so for as long as the sweep takes, and then who creates them again."""
    with world.context():
        quilts.make(world.clients, FORM, Design(2, 1, "indigo", "rings", 0))
    world.engine.reset("")
    world.clock.sleep(29 * 60)
    waits = browser.get(f"/quilt/{FORM}").text
    world.clock.sleep(17 * 60)
    late = browser.get(f"/quilt/{FORM}").text

    world.sweep()
    world.settle()

    assert "Being painted" in waits
    assert "a sweep will resume it" in late
    assert "given up" not in late
    done = browser.get(f"/quilt/{FORM}").text
    assert "Finished" in done
    assert "a sweep" not in done
