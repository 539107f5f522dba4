"""Pages while they move: axe and the ruler find nothing in the middle of a run under faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, Page

from tests.browser.forms import TIMEOUT_MS
from tests.browser.looks import shown_violations
from tests.infra import pictures
from tests.infra.pictures import Where, submit
from tests.infra.runs.sampling import IS_SAMPLED, sample
from tests.infra.stack import Stack, running_stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

# In force while each page is looked at: redelivered, doubled and held-back work has looks of its
# own.
FAULTS: dict[str, dict[str, Any]] = {
    "moving-errors": {"kind": "error", "rate": 0.3},
    "moving-overlaps": {"kind": "overlap", "rate": 0.2},
    "moving-delays": {"kind": "delay", "rate": 0.2, "param": 2},
}
IS_MOVING = "() => document.querySelector('#live').dataset.moving === 'yes'"


def send_slowly(stack: Stack) -> str:
    """Send the mails of a party at a pace that one can watch."""
    party = submit(stack, "/invitations", "/invitations")
    submit(stack, party, "/sample-guests", count="1000")
    pictures.settled(stack, party)
    submit(stack, party, "/send", pace="watch")
    return party


def paint_slowly(stack: Stack) -> str:
    """Have many squares painted."""
    return submit(stack, "/quilt", "/quilt", size="16", pace="slow")


RUNS: dict[str, Where] = {
    "invitations": send_slowly,
    "grades": pictures.add_students,
    "sums": pictures.load_a_sum,
    "counters": pictures.click,
    "weblog": pictures.count_a_log,
    "zeitgeist": pictures.play_queries,
    "quilt": paint_slowly,
    "orders": pictures.order_shoes,
    "tenants": pictures.flood,
    "numbers": pictures.measure,
    "blog": pictures.fill_the_blog,
}
RUNS_OF = 3
PLAYED = sample("moving", list(RUNS), RUNS_OF) if IS_SAMPLED else list(RUNS)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A stack of its own: a blog in which another test has written takes no samples."""
    with running_stack() as running:
        yield running


@pytest.fixture
def faulty(stack: Stack) -> Iterator[Stack]:
    """The stack, with faults in force."""
    for name, rule in FAULTS.items():
        stack.control("/api/v1/faults", {"id": name, **rule})
    yield stack
    for name in FAULTS:
        url = f"{stack.console}/api/v1/faults/{name}"
        requests.delete(url, json={}, timeout=30).raise_for_status()


def seen_moving(page: Page, url: str) -> tuple[int, dict[str, list[str]]]:
    """Look at a page until its run is over; return how often it moved all the while, and faults."""
    faults: dict[str, list[str]] = {}
    looks, ends_at = 0, time.monotonic() + TIMEOUT_MS / 1000
    while page.evaluate(IS_MOVING) and looks < 2 and time.monotonic() < ends_at:
        found = shown_violations(page, url)
        looks += page.evaluate(IS_MOVING)
        faults |= found
    return looks, faults


# As live.js shows a page whose server has not answered for a while.
STALE = """() => {
  const live = document.querySelector("#live");
  live.classList.add("is-stale");
  return getComputedStyle(live).filter;
}"""


@pytest.mark.parametrize("path", ["/quilt", "/counters"])
def test_a_page_without_its_server_is_readable(browser: Browser, faulty: Stack, path: str) -> None:
    """What it shows is greyed, with as much contrast as before; faults are in force."""
    page = browser.new_page(reduced_motion="reduce")
    page.goto(faulty.app + path, timeout=TIMEOUT_MS)
    page.get_by_role("button", name="Pause").click()  # No answer takes the grey away.
    is_greyed = page.evaluate(STALE) != "none"

    faults = shown_violations(page, path)
    page.close()

    assert is_greyed
    assert faults == {}


@pytest.mark.parametrize("name", PLAYED)
def test_axe_finds_nothing_while_a_page_moves(browser: Browser, faulty: Stack, name: str) -> None:
    """By day and at night, at a desk and on a phone, with faults in force and a worker killed."""
    page = browser.new_page()
    path = RUNS[name](faulty)
    page.goto(faulty.app + path, timeout=TIMEOUT_MS)
    page.wait_for_function(IS_MOVING)
    faulty.control("/api/v1/workers/kill", {})

    looks, faults = seen_moving(page, path)
    page.close()

    assert faults == {}
    assert looks > 0
