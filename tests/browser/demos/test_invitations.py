"""A host invites guests, in a real browser, on the real stack."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.forms import TIMEOUT_MS, check_width, press, refresh_until, without_scripts
from tests.infra.stack import Stack

GUESTS = 40
LIST = (
    "\ufeff名前,メール\r\n"
    + "".join(f'"Guest, {i}",guest{i}@example.com\r\n' for i in range(1, GUESTS))
    + "佐藤 花子,hanako@example.com\r\n"
    + "Nobody,not-an-address\r\n"
).encode()
pytestmark = [pytest.mark.browser, pytest.mark.timeout(480)]


def create_party(page: Page, stack: Stack) -> None:
    """Fill in the form of a new party."""
    page.goto(f"{stack.app}/invitations")
    page.get_by_label("What", exact=True).fill("Rooftop party")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Rooftop party")


def upload(page: Page, content: bytes) -> None:
    """Upload a file of guests."""
    page.get_by_text("Add your own list").click()
    page.locator("input[type=file]").set_input_files(
        {"name": "guests.csv", "mimeType": "text/csv", "buffer": content}
    )
    page.get_by_role("button", name="Read the list").click()


def send(page: Page) -> None:
    """Press Send, as fast as possible."""
    page.get_by_label("Pace").select_option("fast")
    press(page, page.get_by_role("button", name="Send", exact=True))


def test_a_list_is_uploaded_sent_and_watched_to_the_end(
    page: Page, stack: Stack, problems: list[str]
) -> None:
    """From an empty form to the last mail, without a reload, and the console shows it."""
    create_party(page, stack)
    mails = sum(stack.mails().values())

    upload(page, LIST)
    live = page.locator("#live")
    expect(live).to_contain_text("not-an-address", timeout=TIMEOUT_MS)
    expect(live).to_contain_text(f"{GUESTS} guests", timeout=TIMEOUT_MS)
    send(page)
    expect(live).to_contain_text(f"{GUESTS} sent", timeout=TIMEOUT_MS)
    expect(live).to_have_attribute("data-moving", "no", timeout=TIMEOUT_MS)

    assert sum(stack.mails().values()) == mails + GUESTS
    send(page)
    expect(page.locator("[data-part=notices]")).to_contain_text("0 new mails")
    assert sum(stack.mails().values()) == mails + GUESTS
    assert problems == []
    check_width(page)


def test_the_console_shows_tasks_and_mails(page: Page, stack: Stack, problems: list[str]) -> None:
    """The console shows the app's background work, mail by mail."""
    create_party(page, stack)
    upload(page, LIST)
    live = page.locator("#live")
    expect(live).to_contain_text(f"{GUESTS} guests", timeout=TIMEOUT_MS)
    send(page)
    expect(live).to_contain_text(f"{GUESTS} sent", timeout=TIMEOUT_MS)

    page.goto(f"{stack.console}/tasks?queue=fan-out")
    expect(page.locator("main")).to_contain_text("continuations/tell-guests")
    page.goto(f"{stack.console}/mail")
    expect(page.locator("main")).to_contain_text("Rooftop party")
    assert problems == []


@without_scripts
def test_everything_works_without_javascript(browser: Browser, stack: Stack) -> None:
    """Forms and links do it all; the live part is refreshed by a link."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    create_party(page, stack)
    upload(page, LIST)
    live = page.locator("#live")

    refresh_until(page, lambda: f"{GUESTS} guests" in (live.text_content() or ""))
    send(page)
    refresh_until(page, lambda: f"{GUESTS} sent" in (live.text_content() or ""))

    expect(live).to_contain_text(f"{GUESTS} sent")
    context.close()


# As many bars as a send of a thousand mails has.
MANY_BARS = """cells => {
  while (cells.children.length < 104) cells.append(cells.lastElementChild.cloneNode(true));
}"""


def test_without_javascript_the_picture_of_a_long_send_covers_no_text(
    browser: Browser, stack: Stack
) -> None:
    """On the front page its bars lay over the name of the demo and what it does."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(stack.app)
    bars = page.locator(".still .cells").first
    bars.evaluate(MANY_BARS)

    frame, drawn = page.locator(".still").first.bounding_box(), bars.bounding_box()

    assert frame is not None
    assert drawn is not None
    assert drawn["y"] + drawn["height"] <= frame["y"] + frame["height"]
    context.close()


def test_a_bad_list_is_refused_with_its_reason(page: Page, stack: Stack) -> None:
    """A file that is no list changes nothing and says what to do."""
    create_party(page, stack)

    upload(page, b"\xff\xfen\x00o\x00")

    expect(page.locator(".error").first).to_contain_text("UTF-8")
