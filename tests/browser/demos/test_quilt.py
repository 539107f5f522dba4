"""Quilts, in a real browser, on the real stack."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.demos.test_sums import keep
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


def make(page: Page, stack: Stack, **chosen: str) -> None:
    """Make a quilt, of 64 squares that one can watch, or as chosen."""
    page.goto(f"{stack.app}/quilt")
    for field, value in {"size": "8", "pace": "watch", **chosen}.items():
        page.locator(f"select#{field}").select_option(value)
    press(page, page.get_by_role("button", name="Make a quilt"))
    expect(page).to_have_url(re.compile(r"/quilt/[0-9a-f]{32}"))


def painted(page: Page) -> int:
    return page.locator(".quilt .is-painted").count()


def expect_finished(page: Page, count: int) -> None:
    expect(page.locator(".closing")).to_contain_text("0 lost", timeout=TIMEOUT_MS)
    expect_still(page)
    expect(page.locator("[data-spinner]")).to_have_count(0)
    assert painted(page) == count


@one_window
def test_a_quilt_is_painted_while_one_looks(page: Page, stack: Stack, problems: list[str]) -> None:
    """Blank and busy, then square by square, alike in two windows and after a reload."""
    make(page, stack)
    expect(page.locator("[data-spinner]")).to_be_visible()
    expect(page.locator(".quilt-frame")).to_have_attribute("aria-busy", "true")
    other = page.context.new_page()
    other.goto(page.url)
    expect(page.locator(".quilt .is-painted")).not_to_have_count(0, timeout=TIMEOUT_MS)
    keep(page, "quilt-running")
    check_width(page)
    page.reload()

    expect_finished(page, 64)
    expect_finished(other, 64)
    squares = "document.querySelector('[data-squares]').dataset.squares"
    assert json.loads(page.evaluate(squares)) == json.loads(other.evaluate(squares))
    keep(page, "quilt-done")
    assert problems == []
    check_width(page)


@one_window
def test_a_finished_quilt_is_played_again_and_walked_by_keyboard(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """The scrubber takes squares back; the arrows move between squares and describe each."""
    make(page, stack, pace="fast", size="12")
    expect_finished(page, 144)

    scrubber = page.get_by_role("slider")
    scrubber.fill("0")
    assert painted(page) == 0
    expect(page.locator("output[for=moment]")).to_contain_text("0 painted")
    scrubber.fill(str(scrubber.get_attribute("max")))
    assert painted(page) == 144
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    scrubber.fill(str(scrubber.get_attribute("max")))

    page.locator("[data-square='0']").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowDown", "End"):
        page.keyboard.press(key)
    expect(page.locator("[data-square='23']")).to_be_focused()
    expect(page.locator("[data-square-detail]")).to_contain_text("Row 2, column 12: ")
    expect(page.locator("[data-square-detail]")).to_contain_text("by worker")
    task = page.locator("[data-square-detail]").get_by_role("link")
    shown = page.request.get(str(task.get_attribute("href"))).text()
    assert "/tasks/batches/quilt/paint" in shown
    assert problems == []


@broken_in_view
@one_window
def test_what_is_hit_is_hatched_and_none_stays_blank(page: Page, stack: Stack) -> None:
    """Errors on, and a worker killed in the middle: all is painted all the same."""
    page.goto(f"{stack.app}/quilt")
    press(page, page.get_by_role("switch", name="Errors"))
    make(page, stack)
    expect(page.locator(".quilt .is-painted")).not_to_have_count(0, timeout=TIMEOUT_MS)
    stack.control("/api/v1/workers/kill", {})
    expect(page.locator(".quilt .is-open, .quilt .was-hit").first).to_be_attached(
        timeout=TIMEOUT_MS
    )
    keep(page, "quilt-broken")

    expect_finished(page, 64)
    press(page, page.get_by_role("switch", name="Errors"))

    expect(page.locator(".closing")).to_contain_text("64 of 64 squares painted")
    expect(page.locator(".closing")).to_contain_text("1 worker killed")
    assert page.locator(".quilt .was-hit").count() > 0
    keep(page, "quilt-healed")


@without_scripts
def test_a_quilt_without_javascript(browser: Browser, stack: Stack) -> None:
    """Four quilts in one, by forms and links; the table says what each square is."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    make(page, stack, size="4x8", pace="fast")

    refresh_until_still(page)

    assert painted(page) == 256
    assert page.locator(".tree").inner_text().count("64 of 64") == 4
    page.get_by_role("link", name="Table").click()
    expect(page.locator("#lists tbody tr")).to_have_count(256)
    context.close()


def test_reduced_motion_fades_and_turns_nothing(browser: Browser, stack: Stack) -> None:
    """A visitor who asked for no motion gets none."""
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    make(page, stack)

    look = (
        "each => [getComputedStyle(each).animationName, getComputedStyle(each).transitionDuration]"
    )
    assert page.locator("[data-spinner]").evaluate(look)[0] == "none"
    assert page.locator(".quilt .paint").first.evaluate(look)[1] == "0s"
    expect_finished(page, 64)
    context.close()
