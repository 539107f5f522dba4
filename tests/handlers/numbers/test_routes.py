"""The pages of numbers: what they show, what their form does once, and addresses that stay."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from models.numbers import NumbersRun, numbers_run_key
from pipelines.numbers import results
from pipelines.numbers.probes import PROBES
from tests.handlers.conftest import Browser
from tests.handlers.looking import look_only
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def run(browser: Browser, world: World) -> str:
    """A run of which two probes are taken, and the place of its page."""
    response = browser.post("/numbers", {"id": FORM})
    assert response.status_code == 303, response.text
    with world.context():
        results.record(FORM, "put", [0.002, 0.004, 0.02], at=world.clients.clock.now())
        results.record(FORM, "memcached", [], "memcached is away", at=world.clients.clock.now())
    return response.headers["Location"].partition("#")[0]


READ = ["/numbers", f"/numbers/{FORM}", f"/numbers/{FORM}/live", "/numbers?scale=long"]
READ += [f"/numbers?tab={tab}" for tab in ("how", "code", "limits")]


@pytest.mark.parametrize("path", READ)
def test_what_is_read_changes_nothing(
    browser: Browser, run: str, snapshot: Callable[[], Any], path: str
) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    look_only(browser, snapshot, path)


def test_the_front_page_and_the_menu_lead_here(browser: Browser) -> None:
    """A card and an entry."""
    assert browser.get("/").text.count('href="/numbers"') == 2


def test_before_the_first_run_the_page_says_what_the_talk_says(browser: Browser) -> None:
    """All rows, no number of ours, and what to press."""
    page = browser.get("/numbers").text

    assert "No measurements yet" in page
    assert all(probe.title in page for probe in PROBES)
    assert "10 ms, a disk seek: at most 100 a second (2008)" in page
    assert "<circle cx" not in page.partition("<tbody>")[2].partition("</tbody>")[0]


@pytest.mark.parametrize("path", ["/", *READ])
def test_the_talk_is_named_before_it_is_mentioned(browser: Browser, run: str, path: str) -> None:
    """Whose it is, where it was held, and when."""
    text = re.sub(r"<(?!abbr)[^>]*>", " ", browser.get(path).text)
    before, mention, _ = text.partition("talk")

    assert not mention or "Brett Slatkin" in before
    assert path == "/" or f"/numbers/{FORM}/live" in path or "Google I/O 2008" in text


def test_a_run_shows_what_it_has_found_so_far(browser: Browser, run: str) -> None:
    """Median and p95, how many times the talk's number, and what could not be measured."""
    page = browser.get(run).text

    assert f"2 of {len(PROBES)}" in page
    assert "<b>4 ms</b>" in page
    assert ">20 ms<" in page
    assert "here 0.4 ×" in page
    assert "Not measured: memcached is away" in page
    assert "Cannot be measured from Python" in page
    assert 'data-moving="yes"' in page


def test_a_nanosecond_is_a_second_by_a_link(browser: Browser, run: str) -> None:
    """The page and its live part say how long it would be; other scales are refused."""
    page = browser.get(f"{run}?scale=long").text

    assert "<b>1.5 months</b>" in page
    assert "<b>4 ms</b>" not in page
    assert f'data-live="{run}/live?scale=long"' in page
    assert "1.5 months" in browser.get(f"{run}/live?scale=long").text
    assert 'name="scale"' not in page
    assert browser.get(f"{run}?scale=odd").status_code == 404
    assert browser.get(f"{run}?tab=odd").status_code == 404


def test_a_run_tells_what_follows_from_its_numbers(browser: Browser, world: World) -> None:
    """Ratios of a write and a read, of a batched and a single write; and the end of the run."""
    browser.post("/numbers", {"id": FORM})
    world.settle(rounds=2000)

    page = browser.get("/numbers").text

    assert re.search(r"Write : read</dt><dd>[0-9.]+ ×", page)
    assert "12 of 12 operations" in page
    assert ", all measured" in page
    assert 'data-moving="no"' in page


def test_a_form_that_is_sent_twice_measures_once(
    browser: Browser, world: World, run: str, snapshot: Callable[[], Any]
) -> None:
    """And one that comes while another run measures leads to that one."""
    stored = snapshot()

    repeated = browser.post("/numbers", {"id": FORM})
    other = browser.post("/numbers", {"id": OTHER}, follow_redirects=True)

    assert repeated.headers["Location"] == f"{run}#now"
    assert "Another run is measuring" in other.text
    assert snapshot() == stored


@pytest.mark.parametrize("form", [{}, {"id": ""}, {"id": "../x"}, {"id": "A" * 32}])
def test_a_form_without_an_id_of_ours_does_nothing(
    browser: Browser, snapshot: Callable[[], Any], form: dict[str, str]
) -> None:
    """Bad input gets a clear error, and changes nothing."""
    stored = snapshot()
    assert browser.post("/numbers", form).status_code == 400
    assert browser.client.post("/numbers", data={"id": FORM}).status_code == 403
    assert snapshot() == stored


@pytest.mark.parametrize("run_id", [OTHER, "x", "A" * 32, "a" * 33, "%00", "a" * 3_000])
def test_a_run_that_is_not_there_is_404(browser: Browser, run: str, run_id: str) -> None:
    """S28: at each of its addresses."""
    for path in (f"/numbers/{run_id}", f"/numbers/{run_id}/live", f"/numbers/{run_id}.csv"):
        assert browser.get(path).status_code == 404, path


def test_the_samples_can_be_had_as_a_file(browser: Browser, run: str) -> None:
    """A line for each sample, in the order in which they were taken."""
    response = browser.get(f"{run}.csv")

    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert response.mimetype == "text/csv"
    assert response.headers["Content-Disposition"].startswith("attachment")
    assert [(row["probe"], row["sample"], row["ms"]) for row in rows] == [
        ("put", "1", "2.0000"),
        ("put", "2", "4.0000"),
        ("put", "3", "20.0000"),
    ]


def test_a_run_is_told_beside_the_one_before(browser: Browser, world: World, run: str) -> None:
    """The last run's median, and how many times as long it takes now."""
    with world.context():
        older = numbers_run_key(FORM).get()
        newer = NumbersRun(id=OTHER, started=older.started, machine=older.machine)
        newer.started = older.started.replace(year=older.started.year + 1)
        newer.put()
        results.record(OTHER, "put", [0.008], at=world.clients.clock.now())

    assert "now 2 ×" in browser.get(f"/numbers/{OTHER}").text
    assert "now 2 ×" in browser.get("/numbers").text
    assert "now 2 ×" not in browser.get(run).text
