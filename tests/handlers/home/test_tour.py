"""The tour: its length first, a way back and out at each stop, and what it has shown at its end."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from handlers.home import tour
from handlers.home.stops import CHAPTERS, TOUR
from handlers.home.tour import MINUTES
from handlers.shared.incidents import Delivery, Incidents, Mark
from tests.handlers.conftest import Browser, app_with, on_cloud_run
from tests.handlers.invitations.party import ID
from tests.infra.documents import ROOT
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


def test_the_length_of_the_tour_stands_before_it(browser: Browser) -> None:
    """On the front page and on a page of its own, which lists each stop."""
    length = f"{len(TOUR)} stops, about {MINUTES} minutes"

    assert f"Take the tour: {length}" in browser.get("/").text
    page = browser.get("/tour").text
    assert f"The tour: {length}" in page
    assert all(step.title in page for step in TOUR)


def bar_of(page: str) -> str:
    """Return the bar of the tour."""
    return page.partition('<section class="tour"')[2].partition("</section>")[0]


def ways(bar: str) -> dict[str, str]:
    """Return where each way of a bar leads: a link, or the demo and stop of a form."""
    links = dict(re.findall(r'<a class="[^"]*" href="([^"]*)">([^<]*)', bar))
    forms = re.findall(
        r'action="(/demo/\w+)">.*?name="tour" value="(\d+)"><button>([^<]*)<', bar, re.DOTALL
    )
    led = {text: place for place, text in links.items()}
    return led | {text: f"{place} {step}" for place, step, text in forms}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (5, {"Back": "/demo/invitations 4", "Run again": "/demo/grades 5"}),
        (6, {"Back": "/demo/grades 5", "Run again": "/demo/sums 6"}),
        (1, {"Back": "/tour", "Run again": "/demo/invitations 1"}),
        (len(TOUR), {"Back": "/demo/zeitgeist 11", "Next: what you saw": "/tour/summary"}),
    ],
)
def test_each_stop_leads_back_on_and_out(
    browser: Browser, step: int, expected: dict[str, str]
) -> None:
    """And lets its run be repeated: the reader sets the pace."""
    bar = bar_of(browser.get(f"/grades?tour={step}").text)

    assert expected.items() <= ways(bar).items()
    assert ways(bar)["Exit"] == "/grades"
    assert f"<b>{step} of {len(TOUR)}: {TOUR[step - 1].title}." in bar


def test_a_stop_starts_its_own_run_and_one_without_a_run_shows_the_last_one(
    browser: Browser, party: str
) -> None:
    """Break it and Kill a worker begin a send each; Nothing is lost looks at the last one."""
    first = ways(bar_of(browser.get(f"{party}?tour=1").text))
    third = ways(bar_of(browser.get(f"{party}?tour=3").text))
    fourth = ways(bar_of(browser.get(f"{party}?tour=4").text))

    assert first["Next: Break it"] == "/demo/invitations 2"
    assert third["Next: Nothing is lost"] == f"{party}?tour=4"
    assert fourth["Back"] == f"{party}?tour=3"
    assert "Run again" not in fourth


RUSH = {
    **{"flood": "2", "behind": "1", "tasks": "1", "chosen": "B", "rule": "none", "dead": "0"},
    **{"way": "line", "pace": "fast"},
}


@pytest.mark.parametrize(
    ("page", "has_bar"),
    [("/tenants?tour=9", True), ("/tenants", False), ("/tenants?tour=99", False), ("", False)],
)
def test_a_press_that_a_stop_asks_for_stays_at_the_stop(
    browser: Browser, page: str, has_bar: bool
) -> None:
    """“Press Flood, in one queue” led to a page without the tour, in the middle of it."""
    sender = {"Referer": f"http://localhost{page}" if page else "http://[?tour=9"}
    sender["Sec-Fetch-Site"] = "same-origin"
    response = browser.post("/tenants", {"id": ID, **RUSH}, headers=sender)

    place, _, anchor = response.headers["Location"].partition("#")
    assert anchor == "now"
    assert ("tour=9" in place) == has_bar
    assert bool(bar_of(browser.get(place).text)) == has_bar


def test_tabs_and_the_link_without_scripts_stay_at_the_stop(browser: Browser) -> None:
    """A reader without scripts follows Refresh to see how a run goes on."""
    page = browser.get("/tenants?tour=9").text

    links = re.findall(r'<a (?:class="refresh" data-live-refresh )?href="([^"]*)"', page)
    own = [link for link in links if "again=" in link or "#tabs" in link]
    assert len(own) == 4
    assert all("tour=9" in link for link in own)


def hit(path: str, fault: str, state: str) -> Delivery:
    """A delivery that a fault has hit."""
    faults = (fault,) if fault else ()
    status = 500 if fault else None
    return Delivery(
        *("t", "q", path, "normal", faults, 1.0, 2.0, status, None, "", state, None, None)
    )


def test_its_end_says_which_faults_hit_what_and_what_met_them(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted since the tour began, demo by demo, with the code and what to read."""
    asked: list[Any] = []
    grades = "/tasks/materialized-views/grades/apply"
    seen = Incidents(
        [
            hit("/tasks/sums/write", "error", "done"),
            hit("/tasks/sums/write", "", "done"),
            hit(grades, "lose_response", "live"),
            hit("/tasks/other", "error", "done"),
        ],
        [Mark(1.0, "kill", "7"), Mark(1.0, "flush", ""), Mark(2.0, "flush", "")],
    )
    monkeypatch.setattr(tour, "incidents", lambda since: asked.append(since) or seen)
    assert "No tour was taken in the last six hours" in browser.get("/tour/summary").text
    assert asked == []
    browser.post("/demo/sums", {"id": ID, "tour": "6"})

    page = browser.get("/tour/summary").text

    assert len(asked) == 1
    assert (
        "3 deliveries hit by faults, 2 of them repaired; 1 worker kill, 2 memcached flushes" in page
    )
    sums = page.partition(">Sums ")[2].partition("</tr>")[0]
    assert "1 got an error response, 1 lost its worker" in sums
    assert "2 of 2 repaired" in sums
    assert "pipelines/sums/sums.py:" in sums
    assert "0 of 1 repaired" in page.partition(">Students by grade ")[2].partition("</tr>")[0]
    assert "none" in page.partition(">Counters ")[2].partition("</tr>")[0]


def test_a_deployed_app_counts_no_faults(world: World) -> None:
    """It has no platform to ask, and says so."""
    settings = replace(on_cloud_run(world), devserver_url=None)
    page = Browser(app_with(world, settings=settings)).get(
        "/tour/summary", base_url="https://x.example"
    )

    assert "A deployed app has no fault injection" in page.text


def test_each_demo_of_the_tour_has_a_chapter_whose_code_and_document_exist(
    services: object,
) -> None:
    """No path of the last page leads nowhere."""
    assert {step.demo for step in TOUR} == set(CHAPTERS)
    assert all((ROOT / chapter.reading).is_file() for chapter in CHAPTERS.values())
    assert all(tour.excerpt(*chapter.code, "").code for chapter in CHAPTERS.values())
