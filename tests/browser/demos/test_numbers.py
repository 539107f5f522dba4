"""Numbers, in a real browser, on the real stack."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.demos.test_sums import keep
from tests.browser.forms import (
    TIMEOUT_MS,
    check_width,
    expect_still,
    one_window,
    press,
    without_scripts,
)
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


@one_window
def test_a_run_fills_its_rows_and_keeps_its_address(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """In place, while it measures; then as if a nanosecond were a second, by a switch."""
    page.goto(f"{stack.app}/numbers")
    press(page, page.get_by_role("button", name="Measure this stack"))
    expect(page).to_have_url(re.compile("/numbers/[0-9a-f]{32}"))
    address = page.url.partition("#")[0]
    expect(page.locator(".strips circle").first).to_be_attached(timeout=TIMEOUT_MS)
    keep(page, "numbers-running")
    expect_still(page)

    expect(page.locator(".closing")).to_contain_text("12 of 12 operations")
    expect(page.locator("#lists")).to_contain_text("Cannot be measured from Python")
    medians = page.locator(".strips td.n:not(.talk)")
    expect(medians.filter(has_text="–")).to_have_count(0)
    check_width(page)
    press(page, page.get_by_role("switch", name="1 ns = 1 s"))
    expect(page.get_by_role("switch", name="1 ns = 1 s")).to_be_checked()
    assert page.url.startswith(address)
    expect(page.locator(".strips tbody")).to_contain_text(re.compile("days|months"))
    expect(page.locator(".strips tbody")).not_to_contain_text("µs")
    keep(page, "numbers-long")
    check_width(page)
    press(page, page.get_by_role("switch", name="1 ns = 1 s"))
    expect(page.locator(".strips tbody")).to_contain_text("ms")
    assert problems == []


@without_scripts
def test_without_scripts_all_of_it_works(browser: Browser, stack: Stack) -> None:
    """The switch is a form, the tabs are links, and a link shows how far a run is."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{stack.app}/numbers")
    press(page, page.get_by_role("button", name="Measure this stack"))
    press(page, page.get_by_role("link", name="Refresh"))
    press(page, page.get_by_role("switch", name="1 ns = 1 s"))
    expect(page.locator(".number-axis").first).to_contain_text("317 y")
    press(page, page.get_by_role("link", name="The code that ran"))
    expect(page.locator(".excerpt").first).to_contain_text("def _timed")
    expect(page.get_by_role("switch", name="1 ns = 1 s")).to_be_checked()
    context.close()
