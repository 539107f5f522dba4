"""Faults at the press of a button: on a laptop alone, and back to a page of ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from handlers.shared import faults
from rollforward.local.console.fault_words import FAULTS
from tests.handlers.conftest import Browser, app_with, on_app_engine, on_cloud_run
from tests.handlers.invitations.party import ID, PAGE
from tests.infra.world import World

NOBODY = "http://127.0.0.1:1"  # Nothing listens there.

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@pytest.mark.parametrize(
    "path",
    [
        *("/break-it/errors/on", "/break-it/lost/off", "/break-it/worker/kill"),
        *("/break-it/workers", "/zeitgeist/intervals/split", "/zeitgeist/intervals/merge"),
        "/zeitgeist/detector/2",
    ],
)
@pytest.mark.parametrize("deployed", [on_app_engine, on_cloud_run])
def test_nothing_is_broken_in_a_deployed_app(
    world: World, path: str, deployed: Callable[[World], Any]
) -> None:
    """These routes are 404 there, even with a platform to ask set by mistake."""
    settings = replace(deployed(world), devserver_url=world.services.cloud_tasks.control_url)
    browser = Browser(app_with(world, settings=settings))
    secure = {"base_url": "https://x.example"}
    page = browser.get("/invitations", **secure).text
    match = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert match is not None
    referred = {"Referer": "https://x.example/"}

    response = browser.post(path, token=match[1], headers=referred, **secure)

    assert response.status_code == 404
    assert world.engine.faults.all() == []


@pytest.fixture
def breaker(world: World) -> Browser:
    """A browser of an app that has a local platform to ask."""
    url = world.services.cloud_tasks.control_url
    return Browser(app_with(world, settings=replace(world.settings, devserver_url=url)))


BACKS = {
    "": "/",
    PAGE: PAGE,
    "//evil.example": "/",
    "//evil.example/invitations/x": "/",
    "/\\evil.example": "/",
    "\\\\evil.example": "/",
    "https://evil.example/invitations/" + ID: "/",
    "https:evil.example": "/",
    "javascript:alert(1)": "/",
    "http://[": "/",
    "//[/invitations/": "/",
    "/\t/evil.example": "/",
    " //evil.example": "/",
    "/invitations//evil.example": "/",
    "/invitations/../..//evil.example": "/",
    f"{PAGE}\n//evil.example": "/",
    f"{PAGE}\r\nX: y": "/",
    f"{PAGE}?x=//evil.example": "/",
    f"{PAGE}/": "/",
    "\x00//evil.example": "/",
    "/" * 200: "/",
}


@pytest.mark.parametrize("back", BACKS, ids=lambda text: repr(text[:24]))
def test_a_switch_leads_back_to_a_page_of_ours(breaker: Browser, back: str) -> None:
    """S20: for any value of `back` the response leads to a party's page or to the front page."""
    response = breaker.post("/break-it/errors/off", {"back": back})

    assert response.status_code == 303
    assert response.headers["Location"] == BACKS[back]


def test_a_switch_is_on_once_and_off_again(breaker: Browser, party_page: str) -> None:
    """Switching on twice is on; the page says so; off is off."""
    for _ in range(2):
        assert breaker.post("/break-it/lost/on", {"back": party_page}).status_code == 303
    assert switched_on(breaker, party_page) == ["Lost responses"]

    for _ in range(2):
        assert breaker.post("/break-it/lost/off").status_code == 303
    assert switched_on(breaker, party_page) == []
    assert breaker.post("/break-it/nothing/on").status_code == 404


def switched_on(browser: Browser, page: str) -> list[str]:
    """Return the names of the switches that a page shows as on."""
    return re.findall(r'aria-checked="true"[^>]*><span[^>]*></span>([^<]+)', browser.get(page).text)


@pytest.fixture
def party_page(breaker: Browser) -> str:
    return breaker.create_party(ID)


@pytest.fixture
def alone(world: World) -> Browser:
    """A browser of an app whose local platform does not answer."""
    return Browser(app_with(world, settings=replace(world.settings, devserver_url=NOBODY)))


@pytest.mark.parametrize(
    "path",
    [
        *("/break-it/errors/on", "/break-it/lost/off", "/break-it/worker/kill"),
        "/break-it/workers",
    ],
)
def test_a_silent_platform_is_said_to_be_silent(alone: Browser, path: str) -> None:
    """The response leads back to the page, which says what to do: it is no error of ours."""
    assert alone.post(path).status_code == 303
    assert "The local platform did not answer" in alone.get("/").text


@pytest.mark.parametrize("count", ["", "0", "-1", "33", "two", "1" * 40])
def test_a_bad_count_of_workers_is_refused(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    """The page says which counts there are, instead of blaming a platform that answers."""
    asked = []

    def platform(method: str, path: str, body: Any) -> Any:
        asked.append(method)
        return {"count": 2, "max": 32}

    monkeypatch.setattr(faults, "ask_platform", platform)

    refused = browser.post("/break-it/workers", {"count": count})

    assert refused.status_code == 400
    assert "count must be a whole number from 1 to 32." in refused.text
    assert asked == ["GET"]


def test_a_flush_that_worked_is_not_called_a_failure(world: World, alone: Browser) -> None:
    """memcached was emptied; what failed is the mark of it, and the page says so."""
    if world.services.memcached is None:
        pytest.skip("needs memcached")
    alone.post("/break-it/memcached/flush")
    page = alone.get("/").text

    assert "memcached is empty" in page
    assert "memcached does not answer" not in page


def console_rule(world: World, **rule: Any) -> None:
    """Switch a fault on as the console does."""
    world.engine.faults.add(**{"kind": "error", "rate": 0.5, **rule})


@pytest.mark.parametrize(
    ("rule", "is_shown"),
    [
        ({}, True),
        ({"path": "/tasks/continuations"}, True),
        ({"path": "/tasks/quilt"}, False),
        ({"queue": "fan-out"}, False),
        ({"kind": "delay"}, False),
    ],
    ids=str,
)
def test_a_rule_of_the_console_is_shown_by_the_switch_that_has_its_effect(
    breaker: Browser, world: World, party_page: str, rule: dict[str, str], is_shown: bool
) -> None:
    """On, and removed by switching it off; one that no switch has is named, with its scope."""
    console_rule(world, **rule)
    text = breaker.get(party_page).text

    assert (switched_on(breaker, party_page) == ["Errors "]) == is_shown
    assert ("Fault in force:" in text) != is_shown
    breaker.post("/break-it/errors/off", {"back": party_page})
    assert (world.engine.faults.all() == []) == is_shown


@pytest.mark.parametrize("path", ["/", "/invitations", "/blog", "/sums", "/no-such-page"])
def test_each_page_says_which_faults_are_in_force(
    breaker: Browser, world: World, path: str
) -> None:
    """With a way to stop them; a rule that has struck as often as it may is none any more."""
    assert "in force" not in breaker.get(path).text

    console_rule(world, path="/tasks/<x>")
    text = breaker.get(path).text

    assert "Fault in force:</b> Errors, 50 % of deliveries, path /tasks/&lt;x&gt;." in text
    assert 'in the </span><span class="short" aria-hidden="true">In the </span>console' in text
    world.engine.faults.all()[0].max_count = 1
    world.engine.faults.all()[0].fired = 1
    assert "in force" not in breaker.get(path).text


def test_faults_have_the_names_that_the_console_has(world: World) -> None:
    """Two lists, as nothing that is deployed imports the local platform."""
    assert {kind: words.name for kind, words in FAULTS.items()} == faults.NAMES


def test_a_kill_elsewhere_is_not_reported_by_a_page_without_a_run(
    breaker: Browser, world: World, party_page: str
) -> None:
    """It says what it was told to do, and nothing of what others did."""
    world.engine.incidents.mark("kill", "4711")

    assert "4711" not in breaker.get(party_page).text
