"""Orders, in a real browser, on the real stack."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.demos.test_sums import keep
from tests.browser.forms import (
    TIMEOUT_MS,
    broken_in_view,
    check_width,
    expect_still,
    not_by_kills,
    one_window,
    press,
    refresh_until,
    refresh_until_still,
    without_scripts,
)
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def order(page: Page, stack: Stack, count: int, **chosen: str) -> None:
    """Open a sale with a piece for each order but one, whose courier a test sends."""
    page.goto(f"{stack.app}/orders")
    page.locator("input#orders").fill(str(count))
    page.locator("input#stock").fill(str(count - 1))
    for field, value in {"courier": "you", "patience": "60", "pace": "watch", **chosen}.items():
        page.locator(f"select#{field}").select_option(value)
    press(page, page.get_by_role("button", name="Order", exact=True))
    expect(page).to_have_url(re.compile(r"/orders/[0-9a-f]{32}"))


def expect_cards(page: Page, lane: str, count: int) -> None:
    """Wait until a lane has some number of cards."""
    cards = page.get_by_role("listitem").filter(has=page.locator(f"#lane-{lane}"))
    expect(cards.locator(".card-dot")).to_have_count(count, timeout=TIMEOUT_MS)


@broken_in_view
@one_window
def test_orders_are_charged_once_while_a_worker_is_killed(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """Killed during a call to the bank; then the courier comes, and the keyboard leads to steps."""
    order(page, stack, 6, pace="slow")
    expect(page.locator("#lane-reserved ~ ul .card-dot").first).to_be_attached(timeout=TIMEOUT_MS)
    press(page, page.get_by_role("button", name="Kill a worker"))
    expect_cards(page, "charged", 5)
    keep(page, "orders-waiting")
    press(page, page.get_by_role("button", name="The courier comes"))

    expect_cards(page, "done", 5)
    expect_cards(page, "rejected", 1)
    expect_still(page)
    expect(page.locator(".closing")).to_contain_text("6 of 6 orders ended")
    expect(page.locator(".closing")).to_contain_text("1 worker killed")
    expect(page.locator(".closing")).to_contain_text("0 charged twice")
    expect(page.locator(".verdict")).to_contain_text("Adds up")
    keep(page, "orders-done")
    check_width(page)

    page.locator("[data-order]").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-order='1']")).to_be_focused()
    expect(page.locator("[data-order][tabindex='0']")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("note payment", timeout=TIMEOUT_MS)
    assert not_by_kills(problems) == []


@without_scripts
def test_orders_without_javascript(browser: Browser, stack: Stack) -> None:
    """By forms and links; a courier for every second order, and the others are refunded."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    order(page, stack, 6, patience="15", pace="fast")
    refresh_until(page, lambda: page.get_by_label("For which orders").count() > 0)
    page.get_by_label("For which orders").select_option("half")
    press(page, page.get_by_role("button", name="The courier comes"))
    expect(page.locator(".notices")).to_contain_text("The courier was sent to")

    refresh_until_still(page)

    expect(page.locator(".verdict")).to_contain_text("Adds up")
    page.get_by_role("link", name="Table").click()
    rows = page.locator("#lists tbody tr")
    expect(rows).to_have_count(6)
    expect(rows.filter(has_text="no courier came in time")).not_to_have_count(0)
    context.close()
