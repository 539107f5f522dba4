"""Students by grade, in a real browser, on the real stack."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.stack import Stack

TIMEOUT_MS = 60_000

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


def press(page: Page, button: Locator) -> None:
    """Press a button and wait for the page that it leads to: the old one proves nothing."""
    with page.expect_navigation():
        button.click()


def add_student(page: Page, name: str, grade: str, points: str) -> None:
    """Fill in the form of a student, and send it."""
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Grade 1 to 12").fill(grade)
    page.get_by_label("Points 0 to 100").fill(points)
    press(page, page.get_by_role("button", name="Add the student"))


def count_in(page: Page, grade: int) -> int:
    """Return how many students a bar has, once nothing is on its way to it any more."""
    expect(page.locator("#live")).to_have_attribute("data-moving", "no", timeout=TIMEOUT_MS)
    words = page.locator(".bars").get_attribute("aria-label") or ""
    found = re.search(rf"grade {grade}: ([\d\u202f]+)", words)
    assert found is not None, words
    return int(found[1].replace("\u202f", ""))


def total(page: Page) -> int:
    return sum(count_in(page, grade) for grade in range(1, 13))


def test_a_student_is_added_moved_and_deleted_and_the_bars_follow(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """Without a reload by hand; and the page is as wide as the window."""
    page.goto(f"{stack.app}/grades")
    seven, eight = count_in(page, 7), count_in(page, 8)

    add_student(page, "佐藤 花子", "7", "92")
    assert count_in(page, 7) == seven + 1
    expect(page.locator(".cost")).to_contain_text("佐藤 花子 was added to grade 7")

    page.get_by_label("Grade of 佐藤 花子").first.select_option("8")
    press(page, page.get_by_role("button", name="Save 佐藤 花子").first)
    assert (count_in(page, 7), count_in(page, 8)) == (seven, eight + 1)

    press(page, page.get_by_role("button", name="Delete 佐藤 花子").first)
    assert (count_in(page, 7), count_in(page, 8)) == (seven, eight)
    assert problems == []
    width = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0, "the page is wider than the window"


def test_a_thousand_reach_the_bars_and_nothing_drifts(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """One press; the live follows to the total, and Verify finds no difference."""
    page.goto(f"{stack.app}/grades")
    before = total(page)

    press(page, page.get_by_role("button", name="made-up students"))
    expect(page.locator("#live")).to_contain_text("1\u202f000 added", timeout=TIMEOUT_MS)
    assert total(page) == before + 1000

    press(page, page.get_by_role("button", name="Verify"))
    expect(page.locator("#live")).to_contain_text("Drift 0", timeout=TIMEOUT_MS)
    assert problems == []
    width = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0, "the page is wider than the window"


def test_everything_works_without_javascript(browser: Browser, stack: Stack) -> None:
    """Forms and links do it all; the live part is refreshed by a link."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{stack.app}/grades")
    add_student(page, "Ada", "13", "92")
    expect(page.locator("#grade-error")).to_contain_text("from 1 to 12")
    add_student(page, "Ada", "12", "92")

    for _ in range(60):
        press(page, page.get_by_role("link", name="Refresh"))
        if page.locator("#live").get_attribute("data-moving") == "no":
            break
        page.wait_for_timeout(500)
    before = count_in(page, 12)
    page.get_by_text("Add your own list").click()
    page.get_by_label("Or paste rows").fill("Bob, 12, 50\nNobody, 0, 0\n")
    press(page, page.get_by_role("button", name="Read the list"))
    for _ in range(60):
        press(page, page.get_by_role("link", name="Refresh"))
        if page.locator("#live").get_attribute("data-moving") == "no":
            break
        page.wait_for_timeout(500)

    assert count_in(page, 12) == before + 1
    expect(page.locator("#live")).to_contain_text("line 2")
    context.close()
