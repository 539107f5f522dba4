"""The length of a send to watch: what the page promises is what this stack has shown."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from handlers.invitations.pace import note_rate, watched_length
from rollforward.runtime import Clients
from tests.handlers.conftest import Browser
from tests.handlers.invitations.party import PAGE, invite
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

NOW = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC)


def send_of(mails: int, took_s: float, *, limit: float | None = None, ended_s: float = 1) -> Any:
    """Return a send that has ended some seconds before NOW."""
    started = NOW.replace(tzinfo=None) - datetime.timedelta(seconds=took_s + ended_s)
    totals = SimpleNamespace(done=mails)
    run = SimpleNamespace(
        state="finished", totals=totals, elapsed_s=took_s, max_rate=limit, started=started
    )
    return SimpleNamespace(latest=run)


@pytest.fixture
def clients(world: World) -> Clients:
    return world.clients


def test_fifteen_seconds_are_promised_of_what_any_machine_sends(clients: Clients) -> None:
    """Of more guests nothing is promised, before a send has shown what this stack can do."""
    assert watched_length(clients, 1_000).is_known
    assert not watched_length(clients, 10_000).is_known

    note_rate(clients, send_of(10_000, 40.0, limit=667.0), NOW)

    length = watched_length(clients, 10_000)
    assert (length.seconds, length.rate, length.is_known) == (40.0, 250.0, True)
    assert length.is_longer
    assert not watched_length(clients, 1_000).is_longer


@pytest.mark.parametrize(
    "send",
    [
        send_of(10_000, 15.1, limit=667.0),  # It was held back.
        send_of(40, 10.0),
        send_of(10_000, 40.0, ended_s=3600),
    ],
)
def test_a_send_that_shows_nothing_is_not_kept(clients: Clients, send: Any) -> None:
    """One at its limit, a small one, an old one."""
    note_rate(clients, send, NOW)

    assert not watched_length(clients, 10_000).is_known


def test_the_page_says_so_before(browser: Browser, world: World) -> None:
    """Beside the choice of the pace."""
    browser.create_party()
    invite(browser, world, "email\n" + "".join(f"g{i}@example.com\n" for i in range(40)))
    assert "slow, to watch: 15 s</option>" in browser.get(PAGE).text

    note_rate(world.clients, send_of(1_000, 1_000.0), NOW)

    page = browser.get(PAGE).text
    assert "slow, to watch: 40 s</option>" in page
    assert "This machine sends about 1 mail a second." in page
