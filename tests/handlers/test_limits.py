"""An address that asks too often gets a time to retry, while others are served."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from handlers.limits import WINDOW_S
from handlers.settings import DemoSettings
from tests.handlers.conftest import app_with, on_app_engine, on_cloud_run
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

MOST = 3
PAGE = "/health-of-nobody"  # Not there: what is counted is the asking.


def local(world: World) -> DemoSettings:
    return world.settings


@pytest.fixture
def limited(world: World) -> Callable[..., Flask]:
    """Return an app that limits its callers, at the beginning of a minute."""
    world.flush()
    world.clock.sleep(WINDOW_S - world.clock.time_s % WINDOW_S)

    def app(platform: Callable[[World], DemoSettings] = local) -> Flask:
        return app_with(world, settings=replace(platform(world), requests_per_minute=MOST))

    return app


def statuses(app: Flask, times: int, path: str = PAGE, **rest: Any) -> list[int]:
    client = app.test_client()
    return [client.get(path, buffered=True, **rest).status_code for _ in range(times)]


def test_an_address_that_asks_too_often_is_told_when_to_come_again(
    world: World, limited: Callable[..., Flask]
) -> None:
    """S27: the answer is 429 until the minute is over, and others are served meanwhile."""
    app = limited()
    world.clock.sleep(20)

    assert statuses(app, MOST + 1) == [404] * MOST + [429]
    refused = app.test_client().get("/api/v1/openapi.json")
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == str(WINDOW_S - 20)
    assert refused.json["status"] == 429
    assert statuses(app, 1, environ_base={"REMOTE_ADDR": "192.0.2.1"}) == [404]
    world.clock.sleep(WINDOW_S - 20)
    assert statuses(app, 1) == [404]


def test_all_processes_count_together(limited: Callable[..., Flask]) -> None:
    """S27: another process is no other chance."""
    assert statuses(limited(), MOST) == [404] * MOST
    assert statuses(limited(), 1) == [429]


def test_a_limit_is_off_unless_it_is_set(world: World) -> None:
    """An app that trusts all its callers sets no limit."""
    assert set(statuses(world.app, 50)) == {404}


def test_machines_and_health_checks_are_not_counted(
    world: World, limited: Callable[..., Flask]
) -> None:
    """A queue that is limited would slow down the work, and a health check end the instance."""
    app = limited()

    assert set(statuses(app, 2 * MOST, "/health/live")) == {200}
    assert set(statuses(app, 2 * MOST, "/static/app.css")) == {200}
    assert set(statuses(app, 2 * MOST, "/metrics", headers=world.cron_headers())) == {200}
    assert set(statuses(app, 2 * MOST, "/tasks/x")) == {403}


def test_without_memcached_nobody_is_limited_and_the_log_says_so(
    world: World,
    limited: Callable[..., Flask],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An outage of memcached is no outage of the app; its begin and its end are logged once."""
    app = limited()
    with monkeypatch.context() as outage, caplog.at_level(logging.WARNING):
        outage.setattr(type(world.clients.cache), "incr", lambda *args, **options: None)

        assert set(statuses(app, 10 * MOST)) == {404}
    assert statuses(app, MOST + 1)[-1] == 429

    warnings = [
        record.getMessage() for record in caplog.records if "addresses" in record.getMessage()
    ]
    assert warnings == [
        "addresses are limited no more: no memcached",
        "addresses are limited again",
    ]


@pytest.mark.parametrize(
    ("platform", "header", "mine", "forged"),
    [
        (on_app_engine, "X-AppEngine-User-IP", "192.0.2.1", "192.0.2.1"),
        (on_cloud_run, "X-Forwarded-For", "192.0.2.1", "198.51.100.{}, 192.0.2.1"),
        (on_cloud_run, "X-Forwarded-For", "2001:db8::1", "2001:db8::{}"),
        (local, "X-Forwarded-For", "192.0.2.1", "192.0.2.{}"),
        (on_cloud_run, "X-Forwarded-For", "junk", "junk{}"),
    ],
    ids=["appengine", "cloudrun", "cloudrun-v6", "local", "junk"],
)
def test_a_caller_cannot_choose_its_address(
    limited: Callable[..., Flask], platform: Any, header: str, mine: str, forged: str
) -> None:
    """S27: only the front end's header counts, and one subscriber is one caller."""
    app = limited(platform)
    assert statuses(app, MOST, headers={header: mine}) == [404] * MOST

    seen = [statuses(app, 1, headers={header: forged.format(n)})[0] for n in range(2, 5)]

    assert seen == [429] * 3
