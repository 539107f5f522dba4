"""The blog, in a real browser, on the real stack."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.forms import TIMEOUT_MS, check_width, one_window, press, without_scripts
from tests.browser.looks import WINDOWS
from tests.infra.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]

LONG = "\n\n".join(["A line that is long enough to be read for a while. " * 6] * 12)


def publish(page: Page, stack: Stack, title: str, body: str = "They *begin* beyond a row.") -> None:
    """Write a post as a visitor, after a look at its preview."""
    page.goto(f"{stack.app}/blog/new")
    if page.get_by_label("Your name").count():
        page.get_by_label("Your name").fill("Ada")
    page.get_by_label("Title").fill(title)
    page.get_by_label("Text Markdown").fill(body)
    page.get_by_label("Tags").fill("paging")
    press(page, page.get_by_role("button", name="Preview"))
    expect(page.get_by_text("nothing is saved yet")).to_be_visible()
    press(page, page.get_by_role("button", name="Publish"))
    expect(page.get_by_role("heading", level=1)).to_have_text(title)


def say(page: Page, text: str) -> None:
    if page.get_by_label("Your name").count():
        page.get_by_label("Your name").fill("Bob")
    page.get_by_label("Comment plain text").fill(text)
    press(page, page.get_by_role("button", name="Send the comment"))


def test_a_post_is_written_read_and_discussed(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """By its form, preview and threads; no page is wider than the window."""
    publish(page, stack, "On pages")
    check_width(page)
    say(page, "Hello <3")
    expect(page.locator(".comment-text")).to_have_text("Hello <3")
    press(page, page.get_by_role("link", name="Reply to Ada"))
    say(page, "Hello yourself")
    expect(page.locator(".comment.depth-1 .comment-text")).to_have_text("Hello yourself")
    check_width(page)

    for path in ("/blog", "/blog/cost", "/blog/tags/paging"):
        page.goto(f"{stack.app}{path}")
        check_width(page)
    assert problems == []


RECTS = "all => all.map((each) => each.getBoundingClientRect()).map((box) => [box.left, box.right])"
# Where the first letter of a paragraph stands, as seen from the right.
FROM_RIGHT = """paragraph => {
  const letter = document.createRange();
  letter.setStart(paragraph.firstChild, 0);
  letter.setEnd(paragraph.firstChild, 1);
  return paragraph.getBoundingClientRect().right - letter.getBoundingClientRect().right;
}"""


def test_a_hebrew_post_reads_from_right_to_left_and_its_line_of_facts_does_not(
    browser: Any, stack: Stack
) -> None:
    """The name stood behind the date, and a full stop before its sentence."""
    page = browser.new_context().new_page()
    page.goto(f"{stack.app}/blog/new")
    page.get_by_label("Your name").fill("שרה")
    page.get_by_label("Title").fill("שלום, עולם.")
    page.get_by_label("Text Markdown").fill("שלום, עולם.")
    press(page, page.get_by_role("button", name="Publish"))
    say(page, "שלום, עולם.")

    for paragraph in (".reading h1", ".prose p", ".comment-text"):
        assert page.locator(paragraph).evaluate(FROM_RIGHT) < 1, paragraph
    page.goto(f"{stack.app}/blog")
    facts = page.locator(".post-item", has_text="שלום").locator(".byline").first
    author, time, link = facts.locator("bdi, time, a").evaluate_all(RECTS)
    assert author[1] <= time[0]
    assert time[1] <= link[0]
    page.context.close()


def test_long_names_make_no_page_wider(browser: Any, stack: Stack) -> None:
    """A title and a name without a place to break them, on a phone."""
    page = browser.new_context(viewport=WINDOWS["phone"]["viewport"]).new_page()
    page.goto(f"{stack.app}/blog/new")
    page.get_by_label("Your name").fill("W" * 40)
    page.get_by_label("Title").fill("W" * 160)
    page.get_by_label("Text Markdown").fill("W" * 500)
    press(page, page.get_by_role("button", name="Publish"))
    check_width(page)
    page.goto(f"{stack.app}/blog")
    check_width(page)
    page.goto(f"{stack.app}/grades")
    page.get_by_label("Name").fill("W" * 60)
    press(page, page.get_by_role("button", name="Add the student"))
    page.goto(f"{stack.app}/grades?tab=roster")
    check_width(page)
    page.context.close()


@one_window
def test_new_comments_never_move_the_text_being_read(
    page: Page, browser: Any, stack: Stack, problems: list[str]
) -> None:
    """A bar says how many there are; a press adds them below the others."""
    publish(page, stack, "A long one", LONG)
    for number in range(6):
        say(page, f"Comment {number}")
    page.goto(page.url.partition("?")[0].partition("#")[0])
    paragraph = page.locator(".prose p").nth(8)
    paragraph.scroll_into_view_if_needed()
    box = paragraph.bounding_box()

    other = browser.new_context().new_page()
    other.goto(page.url)
    say(other, "From somebody else")
    expect(page.locator("[data-arrivals-count]")).to_have_text("1 new comment", timeout=TIMEOUT_MS)
    assert paragraph.bounding_box() == box
    tops = page.locator(".comment").evaluate_all("all => all.map((each) => each.offsetTop)")

    page.get_by_role("button", name="Show").click()

    shown = page.locator("#arrived .comment-text")
    expect(shown).to_have_text("From somebody else")
    expect(shown).to_be_in_viewport()
    after = page.locator(".comment").evaluate_all("all => all.map((each) => each.offsetTop)")
    assert after[: len(tops)] == tops
    assert page.locator("#arrived").evaluate("each => each === document.activeElement")
    other.context.close()
    assert problems == []


@without_scripts
def test_without_scripts_all_of_it_works(browser: Any, stack: Stack) -> None:
    """A link looks for new comments, and every form leads to a page."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    publish(page, stack, "Plain")
    say(page, "One")
    press(page, page.get_by_role("link", name="Check for new comments"))
    expect(page.get_by_role("heading", name="No new comments")).to_be_visible()
    press(page, page.get_by_role("link", name="All comments"))
    expect(page.locator(".comment-text")).to_have_text("One")
    context.close()
