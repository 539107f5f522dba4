"""Sums, in a real browser, on the real stack."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.forms import (
    TIMEOUT_MS,
    broken_in_view,
    check_width,
    expect_still,
    one_window,
    press,
    refresh_until_still,
    without_scripts,
)
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def open_sum(page: Page, stack: Stack, name: str) -> None:
    """Make a sum, unless there is one, and open its page."""
    page.goto(f"{stack.app}/sums")
    page.get_by_label("Name").fill(name)
    press(page, page.get_by_role("button", name="Create the sum"))
    expect(page.get_by_role("heading", level=1)).to_have_text(name)


def start_load(page: Page, rate: int, writers: int, seconds: int) -> None:
    page.get_by_label("Items a second to 500").fill(str(rate))
    page.get_by_label("Writers to 50").fill(str(writers))
    page.get_by_label("Seconds to 20").fill(str(seconds))
    press(page, page.get_by_role("button", name="Start the writers"))


def both_sides(page: Page) -> dict[str, int]:
    """Return the reconciliation, once nothing changes any more."""
    expect_still(page)
    rows = page.locator(".sum-up div:not(.sign)").all()
    matches = [re.fullmatch(r"(\w+)\s+(\S+)", row.inner_text().strip()) for row in rows]
    return {match[1]: int(match[2].replace("\u202f", "")) for match in matches if match}


def keep(page: Page, name: str) -> None:
    """Keep a picture, where SCREENSHOTS says."""
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        width = (page.viewport_size or {"width": 0})["width"]
        page.screenshot(path=str(Path(folder) / f"{name}-{width}.png"), full_page=True)


def test_a_form_adds_once_and_the_page_follows(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """Without a reload by hand; and the page is as wide as the window."""
    page.goto(f"{stack.app}/sums")
    keep(page, "sums-list")
    check_width(page)
    open_sum(page, stack, "mine")
    keep(page, "sums-empty")
    folded = both_sides(page)["folded"]

    page.get_by_label("Amount may be negative").fill("-17")
    press(page, page.get_by_role("button", name="Add it"))

    expect(page.locator("[data-part=notices]")).to_contain_text("is accepted")
    assert both_sides(page) == {
        "accepted": folded + 1,
        "folded": folded + 1,
        "waiting": 0,
        "parked": 0,
    }
    expect(page.locator(".verdict")).to_contain_text("Adds up")
    page.get_by_text("From a program").click()
    keep(page, "sums-added")
    assert problems == []
    check_width(page)


def test_a_load_fills_batches_and_both_sides_add_up(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """Writers, batches and folds show up while they work; in the end every item is there."""
    open_sum(page, stack, "busy")
    folded = both_sides(page)["folded"]

    start_load(page, rate=100, writers=10, seconds=4)
    expect(page.locator("#live")).to_contain_text("Writers running")
    expect(page.locator(".times .batch").first).to_be_visible(timeout=TIMEOUT_MS)
    keep(page, "sums-running")
    expect(page.locator("#live")).to_contain_text("All items are accepted", timeout=TIMEOUT_MS)

    assert both_sides(page)["folded"] == folded + 400
    expect(page.locator(".verdict")).to_contain_text("Adds up")
    page.get_by_role("link", name="Batches").click()
    rows = page.locator("#twin tbody tr")
    expect(rows.first).to_be_visible()
    assert 2 <= rows.count() <= 30
    keep(page, "sums-done")
    page.locator("[data-theme-toggle]").click()
    keep(page, "sums-dark")
    assert problems == []
    check_width(page)


@broken_in_view
@one_window
def test_both_sides_add_up_when_a_worker_is_killed_and_memcached_flushed(
    page: Page, stack: Stack
) -> None:
    """In the middle of a load, with every fifth task delivered twice."""
    open_sum(page, stack, "broken")
    folded = both_sides(page)["folded"]
    press(page, page.get_by_role("switch", name="Overlaps"))
    start_load(page, rate=60, writers=6, seconds=5)
    page.wait_for_timeout(1000)
    press(page, page.get_by_role("button", name="Flush memcached"))
    page.wait_for_timeout(1000)
    # Not by its button: the worker that is killed may be the one that answers.
    expect(page.get_by_role("button", name="Kill a worker")).to_be_enabled()
    stack.control("/api/v1/workers/kill", {})
    keep(page, "sums-broken")
    expect(page.locator("#live")).to_contain_text("All items are accepted", timeout=TIMEOUT_MS)
    press(page, page.get_by_role("switch", name="Overlaps"))
    stack.control("/api/v1/cron/run", {"name": "/cron/fork-join/sweep"})

    expect(page.locator(".sum-up")).to_contain_text(
        re.compile(rf"folded\s*{folded + 300}\b"), timeout=TIMEOUT_MS
    )
    expect(page.locator(".verdict")).to_contain_text("Adds up", timeout=TIMEOUT_MS)


@without_scripts
def test_everything_works_without_javascript(browser: Browser, stack: Stack) -> None:
    """Forms and links do it all; the live part is refreshed by a link."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    open_sum(page, stack, "plain")
    start_load(page, rate=501, writers=2, seconds=1)
    expect(page.locator("#rate-error")).to_contain_text("from 1 to 500")
    start_load(page, rate=20, writers=2, seconds=1)

    refresh_until_still(page)

    assert both_sides(page) == {"accepted": 20, "folded": 20, "waiting": 0, "parked": 0}
    context.close()
