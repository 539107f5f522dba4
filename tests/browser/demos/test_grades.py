"""Students by grade, in a real browser, on the real stack."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.forms import (
    TIMEOUT_MS,
    check_width,
    expect_still,
    one_window,
    press,
    refresh_until_still,
    without_scripts,
)
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.stack import Stack

STUDENTS = 300

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def add_student(page: Page, name: str, grade: str, points: str) -> None:
    """Fill in the form of a student, and send it."""
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Grade 1 to 12").fill(grade)
    page.get_by_label("Points 0 to 100").fill(points)
    press(page, page.get_by_role("button", name="Add the student"))


def count_in(page: Page, grade: int) -> int:
    """Return how many students a bar has, once nothing is on its way to it any more."""
    expect_still(page)
    label = page.locator(".bars").get_attribute("aria-label") or ""
    match = re.search(rf"grade {grade}: ([\d\u202f]+)", label)
    assert match is not None, label
    return int(match[1].replace("\u202f", ""))


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
    expect(page.locator("[data-part=cost]")).to_contain_text("佐藤 花子 was added to grade 7")

    page.get_by_role("link", name="The roster").click()
    page.get_by_label("Grade of 佐藤 花子").first.select_option("8")
    press(page, page.get_by_role("button", name="Save 佐藤 花子").first)
    page.get_by_role("link", name="The chart").click()
    assert (count_in(page, 7), count_in(page, 8)) == (seven, eight + 1)

    page.get_by_role("link", name="The roster").click()
    press(page, page.get_by_role("button", name="Delete 佐藤 花子").first)
    page.get_by_role("link", name="The chart").click()
    assert (count_in(page, 7), count_in(page, 8)) == (seven, eight)
    assert problems == []
    check_width(page)


def add_many(page: Page) -> int:
    """Add a list of students; return how many. With SOAK=1 it is the thousand of the button."""
    if IS_EXHAUSTIVE:
        press(page, page.get_by_role("button", name="made-up students"))
        return 1000
    add_list(page, STUDENTS)
    return STUDENTS


def add_list(page: Page, count: int) -> None:
    """Paste a list of students, and send it."""
    rows = "".join(f"Student {i}, {i % 12 + 1}, {i % 101}\n" for i in range(count))
    page.get_by_text("Add your own list").click()
    page.get_by_label("Or paste rows").fill(rows)
    press(page, page.get_by_role("button", name="Read the list"))


@one_window
def test_a_long_list_reaches_the_bars_and_nothing_drifts(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """A list of several commits: the page follows to the total, and Verify finds no difference."""
    page.goto(f"{stack.app}/grades")
    count = total(page)

    added = add_many(page)
    shown = f"{added:,}".replace(",", "\u202f")
    expect(page.locator("#live")).to_contain_text(f"{shown} added", timeout=TIMEOUT_MS)
    assert total(page) == count + added

    press(page, page.get_by_role("button", name="Verify"))
    expect(page.locator("#live")).to_contain_text("Drift 0", timeout=TIMEOUT_MS)
    assert problems == []
    check_width(page)


@without_scripts
def test_everything_works_without_javascript(browser: Browser, stack: Stack) -> None:
    """Forms and links do it all; the live part is refreshed by a link."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{stack.app}/grades")
    add_student(page, "Ada", "13", "92")
    expect(page.locator("#grade-error")).to_contain_text("from 1 to 12")
    add_student(page, "Ada", "12", "92")

    refresh_until_still(page)
    count = count_in(page, 12)
    page.get_by_text("Add your own list").click()
    page.get_by_label("Or paste rows").fill("Bob, 12, 50\nNobody, 0, 0\n")
    press(page, page.get_by_role("button", name="Read the list"))
    refresh_until_still(page)

    assert count_in(page, 12) == count + 1
    expect(page.locator("#live")).to_contain_text("line 2")
    context.close()
