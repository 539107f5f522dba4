"""Tenants, in a real browser, on the real stack."""

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
    refresh_until_still,
    without_scripts,
)
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


def flood(page: Page, stack: Stack, way: str, **chosen: str) -> None:
    """Begin a rush of a small flood, with two tenants behind it."""
    page.goto(f"{stack.app}/tenants")
    form = {"flood": "40", "behind": "2", "tasks": "4", "dead": "1", **chosen}
    for field, value in form.items():
        page.locator(f"input#{field}").fill(value)
    for field, value in {"chosen": "B", "rule": "order", "pace": "watch"}.items():
        page.locator(f"select#{field}").select_option(value)
    press(page, page.get_by_role("button", name=f"Flood, {way}"))
    expect(page).to_have_url(re.compile(r"/tenants/[0-9a-f]{32}"))


@broken_in_view
@one_window
def test_tenants_have_their_turns_while_a_worker_is_killed(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """In lanes: all run once, B in its order, its dead task passed, and all adds up."""
    flood(page, stack, "in lanes")
    expect(page.locator(".strip").first.locator(".fill").first).to_be_attached(timeout=TIMEOUT_MS)
    press(page, page.get_by_role("button", name="Kill a worker"))
    keep(page, "tenants-moving")

    expect_still(page)

    expect(page.locator(".closing")).to_contain_text("47 of 48 tasks done")
    expect(page.locator(".closing")).to_contain_text("1 dead")
    expect(page.locator(".verdict")).to_contain_text("Adds up")
    expect(page.locator(".strip").nth(1)).to_contain_text("in order")
    keep(page, "tenants-lanes")
    check_width(page)
    assert not_by_kills(problems) == []


@without_scripts
def test_tenants_without_javascript(browser: Browser, stack: Stack) -> None:
    """By forms and links, in one queue: all are done, behind each other."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    flood(page, stack, "in one queue", flood="20", dead="0")

    refresh_until_still(page)

    expect(page.locator(".verdict")).to_contain_text("Adds up")
    page.get_by_role("link", name="Table").click()
    rows = page.locator("#lists tbody tr")
    expect(rows).to_have_count(3)
    context.close()
