"""Counters, in a real browser, on the real stack."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.demos.test_sums import keep
from tests.browser.forms import (
    TIMEOUT_MS,
    broken_in_view,
    check_width,
    expect_still,
    press,
    refresh_until_still,
    without_scripts,
)
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def total(page: Page) -> int:
    """Return the number at the head of the page, once nothing changes any more."""
    expect_still(page)
    return int(page.locator(".answered dd").inner_text().replace("\u202f", "").replace("−", "-"))


@broken_in_view
def test_clicks_are_counted_in_four_ways_while_the_shards_change(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """By sliders that a keyboard moves; in the end every way adds up."""
    page.goto(f"{stack.app}/counters")
    count = total(page)

    page.get_by_label("Amount, may be negative").fill("5")
    press(page, page.get_by_role("button", name="Add", exact=True))
    expect(page.locator(".notices")).to_contain_text("Added 5.")
    shards = page.get_by_role("slider", name="Number")
    shards.focus()
    shards.press("Home")
    for _ in range(6):
        shards.press("ArrowRight")
    expect(page.locator('output[data-of="shards"]')).to_have_text("7")
    press(page, page.get_by_role("button", name="Set", exact=True))
    expect(page.locator(".shard")).to_have_count(7)
    page.get_by_role("slider", name="Clicks a second").fill("20")
    page.get_by_role("slider", name="For seconds").fill("4")
    press(page, page.get_by_role("button", name="Start clicking"))
    press(page, page.get_by_role("button", name="Automatic"))
    keep(page, "counters-running")
    expect(page.locator("#live")).to_contain_text("The load has ended", timeout=TIMEOUT_MS)
    expect(page.locator(".closing")).to_contain_text("0 lost, 0 duplicated", timeout=TIMEOUT_MS)

    expect(page.locator(".kept-ways").get_by_text("exactly")).to_have_count(4, timeout=TIMEOUT_MS)
    assert total(page) > count + 5
    keep(page, "counters-done")
    assert problems == []
    check_width(page)


@without_scripts
def test_the_page_works_without_javascript(browser: Browser, stack: Stack) -> None:
    """Forms and links do it all, the switch of the limit too; the live part is a link away."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{stack.app}/counters")
    switch = page.get_by_role("switch", name="Simulate production’s limit")
    expect(switch).to_be_checked()
    press(page, switch)
    expect(switch).not_to_be_checked()
    page.get_by_label("Count them").select_option("sharded")
    page.get_by_role("slider", name="For seconds").fill("2")
    press(page, page.get_by_role("button", name="Start clicking"))
    expect(page.locator("#live")).to_contain_text("no limit simulated")
    refresh_until_still(page)
    press(page, switch)

    expect(page.locator(".kept-ways tr").nth(2)).to_contain_text("exactly")
    context.close()
