"""Origins and host names of requests: pages of other sites move nothing here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.handlers.conftest import PARTY, Browser, app_with, on_app_engine, on_cloud_run
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

NEW_PARTY = {"id": "a" * 32, **PARTY}


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example",
        "rebound.example:8080",
        "127.0.0.1.rebound.example",
        "localhost.rebound.example",
        "127.0.0.1@rebound.example",
        "rebound.example#127.0.0.1",
        "127.0.0.2",
        "[::1]",
    ],
)
def test_a_name_that_was_bound_to_this_machine_is_refused(
    world: World, browser: Browser, snapshot: Callable[[], Any], host: str
) -> None:
    """A page whose name leads here by DNS gets no cookie, no token, and moves nothing."""
    token, stored = browser.token(), snapshot()
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}

    seen = [
        browser.get("/grades", headers=headers),
        browser.post("/invitations", NEW_PARTY, token=token, headers=headers),
        browser.post("/break-it/worker/kill", token=token, headers=headers),
        world.app.test_client().post("/api/v1/sums/s", json={"amount": 1}, headers=headers),
        world.app.test_client().post("/tasks/x", headers=headers),
    ]

    assert {answer.status_code for answer in seen} <= {400, 403}
    assert seen[0].status_code == 400
    assert not any("Set-Cookie" in answer.headers for answer in seen)
    assert snapshot() == stored


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "localhost", "127.0.0.1"])
def test_this_machines_names_are_answered(browser: Browser, host: str) -> None:
    """With any port or none: a tunnel may have its own."""
    assert browser.get("/invitations", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("deployed", [on_app_engine, on_cloud_run])
def test_a_deployed_app_answers_to_the_names_of_its_front_end(world: World, deployed: Any) -> None:
    """Deployed, the front end decides which names lead here."""
    app = app_with(world, settings=deployed(world))

    answer = app.test_client().get("/health/live", headers={"Host": "rollforward.example"})

    assert answer.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://["},
        {"Referer": "http://evil.example/page"},
        {"Origin": "http://evil.example", "Referer": "http://localhost/"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"},
    ],
    ids=str,
)
def test_a_form_from_another_site_is_refused_with_a_good_token(
    browser: Browser, snapshot: Callable[[], Any], headers: dict[str, str]
) -> None:
    """S19: a thief of a token still needs a page of ours to send it from."""
    token, stored = browser.token(), snapshot()

    answer = browser.post("/invitations", NEW_PARTY, token=token, headers=headers)

    assert answer.status_code == 403
    assert snapshot() == stored


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://localhost"},
        {"Referer": "http://localhost/invitations"},
        # As `gcloud run services proxy` sends it: the browser knows that its page is the sender.
        {"Origin": "http://localhost:9000", "Sec-Fetch-Site": "same-origin"},
    ],
    ids=str,
)
def test_a_form_of_ours_is_taken(browser: Browser, headers: dict[str, str]) -> None:
    """A page of ours, a program that says nothing of itself, and a proxy on the way."""
    answer = browser.post("/invitations", NEW_PARTY, token=browser.token(), headers=headers)

    assert answer.status_code == 303
